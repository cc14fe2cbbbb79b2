"""What a comparison of attention trains: the maps that take softmax's place, with their parameters, and for how long.

Without torch, so that what is wrong with an option is told at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import softmaxima
from softmaxima.base.numbers import InputError, choose

MAPS = Path(softmaxima.__file__).parent / "maps"  # one file a map


@dataclass(frozen=True)
class Variant:
    """A map as attention, and which number of it learns, one a head: "alpha" or "sink"."""

    name: str
    map: str
    params: Mapping[str, Any] = field(default_factory=dict)
    learnt: str = ""
    is_bar: bool = False  # it has learnt nothing of where to look
    is_peer: bool = False

    @property
    def kind(self) -> str:
        return f"learns its {self.learnt}" if self.learnt else "fixed"


REFERENCE = "softmax"
VARIANTS = (
    Variant("softmax", "softmax"),
    Variant("elastic softmax", "elastic_softmax", learnt="sink"),
    Variant("sparsemax", "sparsemax"),
    Variant("entmax-1.5", "entmax15"),
    Variant("entmax-α", "entmax", learnt="alpha"),
    Variant("normmax", "normmax"),
    Variant("top-8 softmax", "topk_softmax", {"k": 8}),
    Variant("top-p softmax", "topp_softmax", {"p": 0.9}),
    Variant("rectified softmax", "rectified_softmax", {"empty": "uniform"}),
    Variant("Taylor softmax", "taylor_softmax", {"order": 2}),
    Variant("normalised sigmoid", "proportional", {"f": "sigmoid"}),
    Variant("normalised softplus", "proportional", {"f": "softplus"}),
    Variant("normalised square", "proportional", {"f": "square"}),
)
# What all are held to: each head averages all that it sees, so that nothing of queries and keys counts.
EVEN = Variant("even attention", "softmax", {"temperature": 1e6}, is_bar=True)
# The registered maps that are not compared, and why.
LEFT_OUT = {
    "minp_softmax": "it is newer than the comparison, and like top-p softmax keeps what is probable enough",
    "fusedmax": "it is newer than the comparison",
    "oscarmax": "it is newer than the comparison, and makes nearly all of many keys equal",
    "log_softmax": "it gives logarithms of probabilities",
    "budget_sparsemax": "its weights add up to a budget, so that its outputs are no means of values",
    "eps_softmax": "it is softmax to six digits, and with an ε that learns it is elastic softmax",
}


USUAL, QUICK = (5, 500), (2, 30)  # seeds and steps


def check_names(names: Sequence[str]) -> None:
    """Raise `InputError` for a name of none of those above, and of no map that someone has added."""
    added = [Variant(path.stem, path.stem) for path in MAPS.glob("[a-z]*.py") if path.stem not in LEFT_OUT]
    for name in names:
        if name in LEFT_OUT:
            raise InputError(f"--maps: {name} is left out, for {LEFT_OUT[name]}; choose another")
        choose("--maps", [*VARIANTS, *added], [name], "map", VARIANTS)
