r"""margin_softmax_loss: L = −log softmax(x)_t, x_c = s cos θ_c but x_t = s ψ(θ_t), of the angles θ of classes and hidden states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, as_scores, as_tensor, check_place, check_value, like_input, scale_domain
from softmaxima.base.cosines import cosines
from softmaxima.base.modules import WithOptions, held_value
from softmaxima.base.numbers import check_choice, check_count, check_number
from softmaxima.base.public import public
from softmaxima.base.tracing import sizes
from softmaxima.heads.arguments import check_hidden, check_indices, check_options, check_weight
from softmaxima.heads.exact import best_classes
from softmaxima.heads.labelled import Rows, as_rows
from softmaxima.heads.linear_loss import ask
from softmaxima.heads.margins import Margin
from softmaxima.losses.finding import find_loss
from softmaxima.losses.margin import ANGLES, COSINES

# What one number of each kind is, by itself; "combined" takes all three.
KINDS = {"arcface": "angle", "cosface": "cosine", "am": "cosine", "combined": ""}


@public
def margin_softmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    kind: str = "arcface",
    margin: float | tuple[float, float, float] = 0.5,
    scale: float | Tensor = 64.0,
    centres: int = 1,
    loss: str | tuple[str, Any] = "cross_entropy",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    class_weight: Tensor | None = None,
    reduction: str = "mean",
    chunk: int | str = "auto",
    outputs: str | tuple[str, ...] = (),
) -> Any:
    """A margin loss of the cosines of hidden states with the vectors of very many classes, of some rows at a time, in nats.

    Args:
        hidden: h (…, features), of any length: cosines are of h/‖h‖ with w/‖w‖.
        weight: W (classes, features), one vector a class; or (classes · centres, features), those of a class one after the other.
        target: class indices (…).
        kind: what the target's cosine cos θ becomes, so that it must win by a margin:
            "arcface"         cos(θ + m)                  m in [0, π)
            "cosface", "am"   cos θ − m                   m in [0, 2)
            "combined"        cos(m₁θ + m₂) − m₃          margin = (m₁, m₂, m₃), m₁ ≥ 1
            Past m₁θ + m₂ = π, where the cosine would turn, it goes on decreasing (see `sm.arcface`).
        margin: m.
        scale: s > 0, of all cosines: a number, a tensor that broadcasts to (…, 1) and may require grad, or a module that says it,
            such as `Positive`. AM-softmax's temperature is 1/s.
        centres: vectors a class, the nearest of which counts (sub-centre ArcFace).
        loss: as for `linear_loss`, of the scores s·cos θ.
        The others, errors: as for `linear_loss`. log_prob and entropy are those without the margin.

    The gradient is the true one, finite also at cosines of ±1. Of an angle θ next to 0 or π it has the digits that a cosine has,
    with a relative error of some ε/θ² (0.6 % at 0.003 in float32), and of ε/θ by class vectors of "cosface"; `sm.arcface` and
    `sm.cosface` of features have all.
    Cost and memory: as of `linear_loss`.

    Sources: Wang et al. (2018), arXiv:1801.05599 and arXiv:1801.09414; Deng et al. (2019), arXiv:1801.07698; Deng et al. (2020),
    "Sub-center ArcFace", ECCV.

    >>> import torch, softmaxima as sm
    >>> sm.margin_softmax_loss(torch.tensor([[3.0, 0.0]]), torch.eye(2), torch.tensor([0]), kind="am", margin=0.4, scale=5.0)
    tensor(0.0486)
    """
    name = "margin_softmax_loss"
    states, layer, labels, more = as_cosines(name, hidden, weight, target, kind, margin, scale, centres)
    return ask(
        name,
        find_loss(name, loss),
        states,
        layer,
        labels,
        given=hidden,
        dtype=as_scores(name, hidden, "hidden").dtype,
        class_weight=class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        chunk=chunk,
        outputs=outputs,
        **more,
    )


def as_cosines(
    name: str, hidden: Any, weight: Any, target: Any, kind: Any, margin: Any, scale: Any, centres: Any
) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """(hidden, weight, labels, what else `as_request` takes of cosines), checked."""
    moved = check_margin(name, kind, margin)
    centres, states = check_count(name, "centres", centres), check_hidden(name, hidden)
    inverse = 1 / check_value(name, "scale", scale, *scale_domain(states.dtype))
    layer = check_weight(name, weight, states)
    if sizes(layer)[0] % centres:
        raise ValueError(f"{name}: weight must have {centres} rows for each class, got {sizes(layer)[0]} rows")
    labels = check_indices(name, target, states)
    return states, layer, labels, {"tau": inverse, "unit": True, "centres": centres, "margin": moved}


@dataclass(frozen=True)
class CosineRows(Rows):
    """Hidden states whose scores are the cosines with the nearest vector of each class."""

    centres: int = 1

    @property
    def classes(self) -> int:
        return sizes(self.weight)[0] // self.centres

    def scores(self, classes: slice) -> Tensor:
        vectors = self.weight[classes.start * self.centres : classes.stop * self.centres]
        return cosines(self.hidden, vectors).unflatten(-1, (-1, self.centres)).amax(-1)


def as_cosine_rows(name: str, hidden: Any, weight: Any, centres: int) -> CosineRows:
    """Checked."""
    rows = as_rows(name, hidden, weight, None, 1.0)
    return CosineRows(rows.hidden, rows.weight, None, 1.0, rows.shape, rows.dtype, hidden, centres)


def check_margin(name: str, kind: Any, margin: Any) -> Margin:
    """The margin of that kind."""
    field = KINDS[check_choice(name, "kind", kind, tuple(KINDS))]
    if field:
        return Margin(**{field: check_number(name, "margin", margin, *(ANGLES if field == "angle" else COSINES))})
    if not isinstance(margin, (tuple, list)) or len(margin) != 3:
        raise TypeError(f"{name}: a combined margin must be (m₁, m₂, m₃), got {margin!r}; (1, 0.3, 0.2) for instance")
    factor, angle, cosine = margin
    return Margin(
        check_number(name, "margin[0]", factor, lambda m: 1 <= m < math.inf, "a finite number of at least 1"),
        check_number(name, "margin[1]", angle, *ANGLES),
        check_number(name, "margin[2]", cosine, *COSINES),
    )


@public
class MarginSoftmax(WithOptions, nn.Module):
    """`margin_softmax_loss` as a module, with the vectors of the classes.

    Args:
        in_features, classes: the vectors are `weight` (classes · centres, in_features), normally distributed at first.
        The others: as for `margin_softmax_loss`.

    Shapes: `forward(hidden, target)` takes (…, in_features) and (…); `cosines(hidden)` gives (…, classes), and `predict(hidden, k)`
    the classes of the k largest, (…, k).

    >>> import torch, softmaxima as sm
    >>> head = sm.MarginSoftmax(8, 1000, kind="combined", margin=(1.0, 0.3, 0.2), scale=32.0, centres=2)
    >>> head(torch.randn(4, 8), torch.tensor([0, 1, 2, 999])).shape
    torch.Size([])
    """

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        kind: str = "arcface",
        margin: float | tuple[float, float, float] = 0.5,
        scale: float | Tensor | nn.Module = 64.0,
        centres: int = 1,
        class_weight: Tensor | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_options(name, margin_softmax_loss, options)
        size = check_margin(name, kind, margin)
        margin = (size.factor, size.angle, size.cosine) if kind == "combined" else getattr(size, KINDS[kind])
        place = check_place(name, device, dtype)
        scale = held_value(name, "scale", scale, *scale_domain(place["dtype"]))
        centres = check_count(name, "centres", centres)
        self.in_features, self.classes = check_count(name, "in_features", in_features), check_count(name, "classes", classes)
        shape = (self.classes * centres, self.in_features)
        self.weight = nn.Parameter(torch.empty(shape, **place))
        self.hold(kind=kind, margin=margin, scale=scale, centres=centres, class_weight=class_weight, **options)
        self.reset_parameters()
        with torch.no_grad():  # which refuses options that it would refuse
            self(self.weight.new_zeros((0, in_features)), torch.zeros(0, dtype=torch.long, device=self.weight.device))

    def reset_parameters(self) -> None:
        """The vectors' first values, whose norms are about 1."""
        nn.init.normal_(self.weight, std=sizes(self.weight)[1] ** -0.5)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.classes}, {super().extra_repr()}"

    def forward(self, hidden: Tensor, target: Tensor) -> Any:
        hidden = as_tensor(type(self).__name__, "hidden", hidden)  # the vectors learn from arrays too
        return margin_softmax_loss(hidden, self.weight, target, **self.options)

    def predict(self, hidden: Array, k: int = 1) -> Array:
        """The k classes of the largest cosines, (…, k), the best first; no array of cosines is larger than 64 MiB."""
        name = type(self).__name__
        return best_classes(name, as_cosine_rows(name, hidden, self.weight, self.options["centres"]), k)

    def cosines(self, hidden: Tensor) -> Tensor:
        """Of the nearest vector of each class, (…, classes): all at once, for as many rows as there is memory for."""
        states = check_hidden(type(self).__name__, hidden)
        check_weight(type(self).__name__, self.weight, states)
        found = cosines(states, self.weight).unflatten(-1, (-1, self.options["centres"])).amax(-1)
        return like_input(found.to(states.dtype), hidden)
