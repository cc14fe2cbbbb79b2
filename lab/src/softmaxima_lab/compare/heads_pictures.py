r"""Digits in pictures: what heads with margins are compared on. With each seed three digits are left out of training.

The network learns to tell the other seven apart, and gives features f of a picture. Of pictures that were held out:

    accuracy        of pictures of the seven digits, the share that is named right
    recall@1        of pictures of the three others, the share whose nearest picture among them, by the cosine of f, shows the
                    same digit
    pairs in order  of those, how often a picture of the same digit is nearer than one of another, of equal ones half: the area
                    under the curve of a verification

The last two say what features are worth for classes that were not known when they were learnt, as of faces. Beside them stand the
pixels themselves in the place of features, which learn nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from softmaxima_lab.compare.engine import Question, Reached, digest, reached
from softmaxima_lab.compare.heads_bodies import FEATURES, HIDDEN, of_pixels
from softmaxima_lab.compare.heads_layers import Layer
from softmaxima_lab.compare.heads_plan import Head
from softmaxima_lab.compare.heads_tasks import Lesson
from softmaxima_lab.compare.measures import METRICS
from softmaxima_lab.compare.pixels import HELD_OUT, Pixels, digits, mnist

DIGITS, UNSEEN = 10, 3
BATCH, RATE = 64, 2e-3
BINS = 40  # of cosines between −1 and 1, and of angles between 0 and 90°

ACCURACY = METRICS["accuracy"]
RECALL = replace(ACCURACY, name="recall", words="recall@1", attribute="recall")
FREQUENCIES, PIXELS = "class frequencies", "pixels"
END = ", or there are too few steps to learn it, or too few seeds to see it."
WHY = "learn nothing: what is learnt of seven digits does not serve the other three here, or there are too few seeds to see it."
QUESTIONS = (
    Question(
        "by digits left out of training",
        RECALL,
        "recall",
        {PIXELS: WHY},
        compares_all_the_same=True,
    ),
    Question("by digits that are learnt", ACCURACY, "accuracy", {FREQUENCIES: f"reads nothing: nothing can be learnt here{END}"}),
)


@dataclass(frozen=True)
class Pictures:
    """A task. A row is a picture."""

    name: str
    heading: str
    title: str
    candidates: tuple[Head, ...]
    x: Tensor  # [rows, pixels]
    y: Tensor
    is_held: Tensor  # whether a picture is held out
    notes: tuple[str, ...]
    doubt: str = ""
    questions: tuple[Question, ...] = QUESTIONS
    batch: int = BATCH
    rate: float = RATE
    is_large: bool = False
    model: str = f"one layer of {HIDDEN}, then {FEATURES} features"

    @property
    def rows(self) -> int:
        return int((~self.is_held).sum()) * (DIGITS - UNSEEN) // DIGITS

    @property
    def digest(self) -> str:
        return digest(self.x, self.y, self.is_held)

    def lesson(self, seed: int) -> Lesson:
        unseen = torch.randperm(DIGITS, generator=torch.Generator().manual_seed(seed))[:UNSEEN]
        is_unseen = torch.isin(self.y, unseen)
        learnt = torch.tensor([digit for digit in range(DIGITS) if digit not in unseen])
        class_of = torch.full((DIGITS,), -1).scatter(0, learnt, torch.arange(len(learnt)))
        own, held = (~is_unseen & which for which in (~self.is_held, self.is_held))
        x, y = self.x[own], class_of[self.y[own]]
        counts = torch.bincount(y, minlength=len(learnt)).float()
        held_x, held_y = self.x[held], class_of[self.y[held]]
        other_x, other_y = self.x[is_unseen], self.y[is_unseen]

        def marks(body: nn.Module, layer: Layer) -> Reached:
            features = body(held_x)
            cosines = layer.cosines(features)
            is_own = functional.one_hot(held_y, len(learnt)).bool()
            found, drawn = retrieval(body(other_x), other_y)
            drawn |= {"own": histogram(cosines[is_own]), "other": histogram(cosines.masked_fill(is_own, -2).amax(-1))}
            return reached({"accuracy": (layer.predict(features) == held_y).double(), **found}, drawn=drawn)

        def bars() -> Mapping[str, Reached]:
            found, drawn = retrieval(other_x, other_y)
            named = (held_y == counts.argmax()).double()
            return {FREQUENCIES: reached({"accuracy": named}), PIXELS: reached(found, drawn=drawn)}

        return Lesson(x, y, counts, lambda: of_pixels(x.shape[1]), FEATURES, marks, bars)


def retrieval(features: Tensor, y: Tensor) -> tuple[dict[str, Tensor], dict[str, list[float]]]:
    """(recall and pairs of each row; histograms of the angle to the nearest picture of its own class and of another)."""
    f = functional.normalize(features, dim=-1)
    cosines = (f @ f.T).fill_diagonal_(-2)  # none is its own neighbour
    same = y.unsqueeze(-1) == y
    nearest_same, nearest_other = (cosines.masked_fill(~which, -2).amax(-1) for which in (same, ~same))
    found = {"recall": (nearest_same > nearest_other).double(), "pairs": pairs_in_order(cosines, y)}
    return found, {"same": angles(nearest_same), "different": angles(nearest_other)}


def pairs_in_order(cosines: Tensor, y: Tensor) -> Tensor:
    """Of each row, the share of pairs of another row of its class and one of another class whose first has the larger cosine."""
    found = torch.zeros(len(y), dtype=torch.float64)
    for label in y.unique():
        own, others = (y == label).nonzero().squeeze(-1), (y != label).nonzero().squeeze(-1)
        same, other = cosines[own][:, own], cosines[own][:, others].sort(-1).values
        below = torch.searchsorted(other, same) + torch.searchsorted(other, same, right=True)  # nothing, of the row itself
        found[own] = below.double().sum(-1) / 2 / max(1, (len(own) - 1) * len(others))
    return found


def histogram(cosines: Tensor) -> list[float]:
    """How many are in each of equal parts of [−1, 1]."""
    return torch.histc(cosines.clamp(-1, 1), BINS, -1, 1).tolist()


def angles(cosines: Tensor) -> list[float]:
    """How many have their angle in each of equal parts of [0°, 90°], those that are wider in the last."""
    return torch.histc(cosines.clamp(0, 1).acos().rad2deg(), BINS, 0, 90).tolist()


def digits_task(heads: tuple[Head, ...]) -> Pictures:
    """scikit-learn's digits."""
    return pictures_task(digits(), heads)


def mnist_task(heads: tuple[Head, ...]) -> Pictures:
    """5000 pictures of MNIST."""
    return pictures_task(mnist(), heads)


def pictures_task(given: Pixels, heads: tuple[Head, ...]) -> Pictures:
    """A task of pictures."""
    notes = (
        f"{len(given.y)} pictures of {given.size}, of which {100 * HELD_OUT:.0f} % are held out",
        f"with each seed {UNSEEN} digits of the {DIGITS} are left out of training, others each time",
    )
    return Pictures(given.name, given.heading, given.title, heads, given.x, given.y, given.is_held, notes)
