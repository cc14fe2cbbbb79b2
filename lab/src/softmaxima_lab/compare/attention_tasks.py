"""What Transformers learn in a comparison of attention: the next byte of a text, and which digit a picture shows.

Of a text, the last tenth is held out; it is cut into blocks of the length that is learnt, each read by itself. Of the digits of
scikit-learn, 30 % are held out, the classes in proportion; a picture of 8×8 is 16 patches of 2×2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from softmaxima_lab.compare.attention_plan import EVEN, Variant
from softmaxima_lab.compare.engine import Question, digest
from softmaxima_lab.compare.measures import METRICS, Metric
from softmaxima_lab.compare.transformer import Shape, Transformer
from softmaxima_lab.tables.texts import Text, characters

CONTEXT = 64  # bytes that are read at once
TEXT_BATCH, DIGITS_BATCH = 8, 32
HELD_OUT_OF_TEXT, HELD_OUT_OF_DIGITS = 0.1, 0.3
MOST_BLOCKS = 512  # that are scored, evenly spaced, of those held out
SEARCHED = 1 << 30  # bytes that are searched at most for blocks that were learnt word for word
BYTES = 256
SHAPE = Shape(size=32, heads=4, layers=2)

MUCH = 0.1  # of what is held out, that is known word for word
DOUBT = "{:.0f} % of what is held out occurs word for word in what is learnt, so that memory pays."

BITS = Metric(
    "bits", "loss per character", "quality", -1, "{:.3f} bits", unit="bits per character", decimals=3, is_mean_of_rows=True
)
ACCURACY = replace(METRICS["accuracy"], attribute="quality")
BASELINE = "class frequencies"
END = ", or there are too few steps to learn it, or too few seeds to see it."
BARS = {
    BASELINE: f"reads nothing: nothing can be learnt here{END}",
    EVEN.name: f"looks at all alike: where to look makes no difference here{END}",
}


@dataclass(frozen=True)
class Task:
    """What is learnt. A row is a block of a text or a picture; y has a class for each prediction."""

    name: str
    heading: str
    title: str
    candidates: tuple[Variant, ...]
    metric: Metric
    x: Tensor  # to train on, [rows, …]; of a text, whose rows overlap, a view of its bytes
    y: Tensor
    counts: Tensor  # how often each class is to be predicted there
    held_x: Tensor
    held_y: Tensor
    batch: int
    rate: float  # of learning
    length: int  # tokens of a row
    classes: int
    causal: bool
    bits: float  # what a nat of a prediction adds to the quality of a text
    embedding: Callable[[int], nn.Module]
    notes: tuple[str, ...]  # what it is made of
    doubt: str  # why what is held out says less than it seems, or nothing
    shape: Shape

    @property
    def questions(self) -> tuple[Question, ...]:
        return (Question(f"by {self.metric.words}", self.metric, "quality", BARS, counts_bars=False),)

    @property
    def digest(self) -> str:
        return digest(self.x, self.y, self.held_x, self.held_y)

    @property
    def model(self) -> str:
        return f"Transformer of {self.shape.words}, pre-norm"

    def network(self, variant: Variant) -> Transformer:
        """Untrained."""
        return Transformer(variant, self.shape, self.embedding(self.shape.size), self.length, self.classes, self.causal)

    def rows(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(what each row adds to the quality, which is their mean; its cross-entropy in nats a prediction)."""
        nats = (
            nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten().long(), reduction="none")
            .reshape(len(y), -1)
            .mean(-1)
            .double()
        )
        if self.causal:
            return self.bits * nats, nats
        return ((scores.argmax(-1) == y) & scores.isfinite().all(-1)).double(), nats

    def baseline(self) -> Tensor:
        """What each held-out row adds to the quality of who has counted classes and reads nothing."""
        scores = (self.counts + 1.0).log().expand(*self.held_y.shape, self.classes)
        return self.rows(scores, self.held_y)[0]


class OfBytes(nn.Embedding):
    """A vector for each byte."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.long())


def text_task(text: Text, variants: tuple[Variant, ...]) -> Task:
    """The next byte."""
    content = torch.frombuffer(bytearray(text.content), dtype=torch.uint8)
    cut = math.floor((1 - HELD_OUT_OF_TEXT) * len(content))
    windows = content[:cut].unfold(0, CONTEXT + 1, 1)
    blocks = content[cut:].unfold(0, CONTEXT + 1, CONTEXT)
    blocks = blocks[torch.linspace(0, len(blocks) - 1, min(len(blocks), MOST_BLOCKS)).long()]
    held = bytes(blocks[:, 1:].flatten().tolist())
    looked_for, learnt = blocks[:: max(1, len(blocks) * cut // SEARCHED)].tolist(), text.content[:cut]
    known = sum(bytes(block) in learnt for block in looked_for)
    return Task(
        name="text",
        heading="Text",
        title=text.name,
        candidates=variants,
        metric=BITS,
        x=windows[:, :-1],
        y=windows[:, 1:],
        counts=torch.bincount(content[1:cut], minlength=BYTES),
        held_x=blocks[:, :-1],
        held_y=blocks[:, 1:],
        batch=TEXT_BATCH,
        rate=1e-2,
        length=CONTEXT,
        classes=BYTES,
        causal=True,
        bits=len(held) / max(1, characters(held)) / math.log(2),
        embedding=lambda size: OfBytes(BYTES, size),
        notes=(
            *text.notes,
            f"{text.characters} characters, of which the last tenth of the bytes is held out",
            f"{len(blocks)} blocks of {CONTEXT} bytes are scored, each read by itself",
            f"{known} of {len(looked_for)} occur word for word in what is learnt",
        ),
        doubt=DOUBT.format(100 * known / len(looked_for)) if known > MUCH * len(looked_for) else "",
        shape=SHAPE,
    )


def digits_task(variants: tuple[Variant, ...]) -> Task:
    """Which digit it is."""
    pictures, labels = load_digits(return_X_y=True)
    patches = (pictures / 16).reshape(-1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4).astype(np.float32)
    own, held = train_test_split(np.arange(len(labels)), test_size=HELD_OUT_OF_DIGITS, random_state=0, stratify=labels)
    x, y = torch.from_numpy(patches), torch.from_numpy(labels).long()
    return Task(
        name="digits",
        heading="Digits",
        title="scikit-learn's digits",
        candidates=variants,
        metric=ACCURACY,
        x=x[own],
        y=y[own],
        counts=torch.bincount(y[own], minlength=10),
        held_x=x[held],
        held_y=y[held],
        batch=DIGITS_BATCH,
        rate=5e-3,
        length=16,
        classes=10,
        causal=False,
        bits=0.0,
        embedding=lambda size: nn.Linear(4, size),
        notes=(f"{len(labels)} pictures of 8×8, of which {len(held)} are held out", "16 patches of 2×2 and a token of its own"),
        doubt="",
        shape=SHAPE,
    )
