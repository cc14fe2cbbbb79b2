"""Pairs of a map and the loss that trains it: the usual loss of each map, and the pairs that `softmaxima compare` trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

import softmaxima as sm
from softmaxima.base.numbers import choose as core_choose
from softmaxima.maps import REGISTRY, Map, find_map

FUNCTIONS = {f.__name__: f for f in (torch.sigmoid, functional.softplus, torch.square)}  # that a parameter can name
MARGIN_TEMPERATURE = 1 / 16  # of cosines, which alone span too little for a confident softmax

Head = Literal["linear", "cosine"]


@dataclass(frozen=True)
class Pair:
    """A map and the loss that trains it.

    A "linear" head gives scores h Wᵀ + b; a "cosine" head takes the same parameters as class vectors (W, b), and gives their
    cosines with (h, 1).
    """

    name: str
    map: str  # its name in softmaxima.maps.REGISTRY
    loss: str  # the name of a function of softmaxima
    params: Mapping[str, Any] = field(default_factory=dict)  # of the map
    options: Mapping[str, Any] = field(default_factory=dict)  # of the loss
    head: Head = "linear"
    temperature: float = 1.0

    def probabilities(self, scores: Tensor) -> Tensor:
        """The map of the scores [rows, classes]."""
        return find_map(self.map)(scores, temperature=self.temperature, **self.params)

    def losses(self, scores: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """The loss of the scores [rows, classes] for class indices [rows]: its mean, or each row's with reduction "none"."""
        return getattr(sm, self.loss)(scores, target, reduction=reduction, **self.options)

    @property
    def code(self) -> str:
        """Lines that train with the pair and predict, given `scores`, or `features` and `class_vectors`, and `target`."""
        options = "".join(f", {name}={_literal(value)}" for name, value in self.options.items())
        params = "".join(f", {name}={_literal(value)}" for name, value in self.params.items())
        if self.temperature != 1:
            params += f", temperature={_literal(self.temperature)}"
        function = f"sm.{self.map}" if hasattr(sm, self.map) else f"sm.maps.REGISTRY[{_literal(self.map)}]"
        lines = [f"loss = sm.{self.loss}(scores, target{options})", f"p = {function}(scores{params})"]
        if self.head == "cosine":
            normalize = "torch.nn.functional.normalize"
            lines.insert(0, f"scores = {normalize}(features) @ {normalize}(class_vectors).T")
        imports = ["import torch"] if "torch." in "".join(lines) else []
        return "\n".join([*imports, "import softmaxima as sm", "", *lines])


def _literal(value: Any) -> str:
    """Python for a parameter's value."""
    for module, name in ((torch, "torch"), (functional, "torch.nn.functional")):
        if callable(value) and getattr(module, value.__name__, None) is value:
            return f"{name}.{value.__name__}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# The maps whose loss has a name of its own.
LOSSES = {
    "softmax": "cross_entropy",
    "sparsemax": "sparsemax_loss",
    "entmax15": "entmax15_loss",
    "entmax": "entmax_loss",
    "elastic_softmax": "elastic_cross_entropy",
    "fusedmax": "fusedmax_loss",
    "oscarmax": "oscarmax_loss",
    "topk_softmax": "sparse_softmax_loss",
    "topp_softmax": "sparse_softmax_loss",
}


def usual_pair(map: Map, name: str | None = None, **params: Any) -> Pair:
    """A map with its own loss, its Fenchel–Young loss where that has no name, or the cross-entropy of its probabilities."""
    name = name or map.name.replace("_", " ")
    if map.name in LOSSES:
        return Pair(name, map.name, LOSSES[map.name], params, params)
    if map.regulariser is not None:
        return Pair(name, map.name, "fenchel_young_loss", params, {"map": map.name, **params})
    can_be_zero = map.properties.sparse or map.properties.mass == "zero or one"
    return _eps_pair(name, map.name, 1e-6 if can_be_zero else 0.0, **params)


def _eps_pair(name: str, map: str, eps: float = 1e-6, **params: Any) -> Pair:
    beside = {f"map_{key}" if key == "empty" else key: value for key, value in params.items()}  # an option of losses too
    return Pair(name, map, "eps_cross_entropy", params, {"map": map, "eps": eps, **beside})


def _margin_pair(name: str, loss: str, options: Mapping[str, float]) -> Pair:
    return Pair(name, "softmax", loss, options=options, head="cosine", temperature=MARGIN_TEMPERATURE)


def pairs(classes: int) -> tuple[Pair, ...]:
    """Every pair for that many classes: those chosen here, and the usual pair of each other map of probabilities of one class."""
    chosen = _chosen_pairs(k=min(3, classes - 1))
    maps = [map for map in REGISTRY.values() if map.properties.of_one_class and not map.properties.logarithmic]
    return tuple(pair for map in maps for pair in chosen.get(map.name, (usual_pair(map),)))


def _chosen_pairs(k: int) -> dict[str, tuple[Pair, ...]]:
    """The pairs of the maps that have several, or that need a parameter or another name."""
    return {
        "softmax": (
            usual_pair(REGISTRY["softmax"]),
            Pair("softmax · smoothed", "softmax", "cross_entropy", options={"label_smoothing": 0.1}),
            Pair("softmax · soft accuracy", "softmax", "soft_accuracy_loss"),
            _margin_pair("softmax · AM margin", "am_softmax_loss", {"margin": 0.2, "temperature": MARGIN_TEMPERATURE}),
            _margin_pair("softmax · ArcFace", "arcface", {"margin": 0.2, "scale": 1 / MARGIN_TEMPERATURE}),
        ),
        "sparsemax": (
            usual_pair(REGISTRY["sparsemax"]),
            _eps_pair("sparsemax · eps CE", "sparsemax"),
            Pair("sparsemax · surrogate", "sparsemax", "surrogate_loss", options={"map": "sparsemax"}),
        ),
        "entmax": (usual_pair(REGISTRY["entmax"], "entmax-1.25", alpha=1.25),),
        "entmax15": (usual_pair(REGISTRY["entmax15"], "entmax-1.5"),),
        "topk_softmax": (usual_pair(REGISTRY["topk_softmax"], f"top-{k} softmax", k=k),),
        "topp_softmax": (usual_pair(REGISTRY["topp_softmax"], "top-p softmax", p=0.9),),
        "rectified_softmax": (_eps_pair("rectified softmax", "rectified_softmax", empty="uniform"),),
        "proportional": tuple(_eps_pair(f"normalised {name}", "proportional", f=f) for name, f in FUNCTIONS.items()),
    }


def choose(offered: Sequence[Pair], names: Sequence[str]) -> tuple[Pair, ...]:
    """The pairs of these names; a name that no pair has may be a map's, and stands for all its pairs. No names: every pair.

    Case, spaces and punctuation do not count: "sparsemax eps ce" is "sparsemax · eps CE".
    """
    return core_choose("--maps", offered, names, "pair or map")


def with_functions(params: Mapping[str, Any]) -> dict[str, Any]:
    """With the function in the place of its name."""
    return {name: FUNCTIONS[value] if name == "f" and isinstance(value, str) else value for name, value in params.items()}


def with_names(params: Mapping[str, Any]) -> dict[str, Any]:
    """With the name in the place of a function."""
    return {name: name_of(value) or value for name, value in params.items()}


def name_of(value: Any) -> str | None:
    return next((name for name, function in FUNCTIONS.items() if function is value), None)
