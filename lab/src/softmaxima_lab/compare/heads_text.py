r"""The next word of a text, from the four words before it: what heads of very many classes are compared on.

With p the probabilities of a held-out word with n classes, t its class:

    perplexity         exp of the mean of −log p_t; infinite where one p_t is 0
    ε-perplexity       exp of the mean of −log((p_t + ε)/(1 + nε)), ε = 0.01/n for every head: a hundredth part of all
                       probability is shared out evenly, so that an exact zero costs log(101 n) and not ∞
    sparsemax score    the mean of p_t + ½(1 − ‖p‖²), between 0 and 1, and finite without an ε: 1 less the sparsemax loss
    top-1, top-5       share of words that are among the 1 or 5 most probable, of those with p > 0
    calibration        Σ_b (words in b / words) · |share named right in b − mean max p in b|, over 15 bins b of max p
    support            mean number of classes with p > 0
    mass               mean of Σ_c p_c, which an elastic softmax has below 1
    zeros              share of words with p_t = 0

Source: Martins, Marinho and Martins (2020), "Sparse Text Generation", arXiv:2004.02644, of the second and the third.

A word is a run of letters, digits and _, or of one other sign. Classes are the most frequent of the words that occur twice or more
in what is learnt, and one for all other words; they are ordered by how frequent they are, the most frequent first.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from softmaxima.base.numbers import InputError
from softmaxima_lab.compare.engine import Question, Reached, digest, reached
from softmaxima_lab.compare.heads_bodies import CONTEXT, EMBEDDING, HIDDEN, LastWords
from softmaxima_lab.compare.heads_layers import Layer
from softmaxima_lab.compare.heads_plan import LEAST_WORDS, Head, Settings
from softmaxima_lab.compare.heads_tasks import Lesson
from softmaxima_lab.compare.measures import BINS, METRICS, Metric
from softmaxima_lab.tables.texts import Text

WORD = re.compile(r"\w+|([^\w\s])\1*")
BATCH, RATE = 256, 5e-3
HELD_OUT = 0.1
SHARE = 0.01  # nε, in the ε-perplexity
SHARES = tuple(10.0 ** (power / 2) for power in range(-8, 3))  # nε that are drawn
AT_ONCE = 1 << 21  # probabilities that are held
RUN, MUCH = 12, 0.1  # words in a row, of which some are known word for word
DOUBT = "{:.0f} % of the runs of {} words that are held out occur word for word in what is learnt, so that memory pays."

PERPLEXITY = Metric(
    "perplexity", "ε-perplexity", "perplexity", -1, "{:.1f}", by_ratio=True, ratio_words=("lower", "higher"), unit="%", decimals=1,
    is_mean_of_rows=True, least=1.0,
)  # fmt: skip
SCORE = Metric("score", "sparsemax score", "score", 1, "{:.3f}", decimals=3, most_gain=1.0, is_mean_of_rows=True)
NAMED = replace(METRICS["accuracy"], attribute="top1", words="top-1 accuracy")
BASELINE = "word frequencies"
END = ", or there are too few steps to learn it, or too few seeds to see it."
BARS = {BASELINE: f"reads nothing: nothing can be learnt of the words before{END}"}


@dataclass(frozen=True)
class NextWord:
    """The task. A row is four words and the one after them."""

    title: str
    candidates: tuple[Head, ...]
    windows: Tensor  # to train on, [rows, context + 1]
    held: Tensor
    counts: Tensor  # how often each class is in what is learnt, falling
    notes: tuple[str, ...]
    doubt: str
    name: str = "text"
    heading: str = "Text"
    batch: int = BATCH
    rate: float = RATE
    is_large: bool = True
    model: str = f"{CONTEXT} words of {EMBEDDING} numbers each, then one layer of {HIDDEN}"
    questions: tuple[Question, ...] = field(init=False)

    def __post_init__(self) -> None:
        most = replace(PERPLEXITY, most_gain=math.log1p(self.classes / SHARE))
        asked = (
            Question("by ε-perplexity", most, "smoothed nats", BARS, math.exp, weighs_time=True),
            Question("by sparsemax score", SCORE, "score", BARS),
            Question("by first guesses", NAMED, "top1", BARS),
        )
        object.__setattr__(self, "questions", asked)

    @property
    def classes(self) -> int:
        return len(self.counts)

    @property
    def rows(self) -> int:
        return len(self.windows)

    @property
    def digest(self) -> str:
        return digest(self.windows[:, -1], self.held, self.counts)

    def lesson(self, seed: int) -> Lesson:
        return Lesson(
            x=self.windows[:, :-1],
            y=self.windows[:, -1],
            counts=self.counts,
            body=lambda: LastWords(self.classes),
            features=HIDDEN,
            marks=self.marks,
            bars=self.bars,
        )

    def marks(self, body: nn.Module, layer: Layer) -> Reached:
        rows = max(1, AT_ONCE // self.classes)
        parts = [_marks(layer.probabilities(body(part[:, :-1])), part[:, -1]) for part in self.held.split(rows)]
        return _together(parts, self.classes)

    def bars(self) -> Mapping[str, Reached]:
        """Of who has counted the words that are learnt."""
        p = (self.counts + 1) / (self.counts + 1).sum()
        parts = [_marks(p.expand(len(part), -1), part[:, -1]) for part in self.held.split(max(1, AT_ONCE // self.classes))]
        return {BASELINE: _together(parts, self.classes)}


def _marks(p: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What each of some rows of p [rows, classes] adds to the measures, and what they are made of."""
    p, y = p.double(), y.long().unsqueeze(-1)
    of_target = p.gather(-1, y)
    before = (p > of_target) | ((p == of_target) & (torch.arange(p.shape[-1]) < y))
    rank = before.sum(-1)
    known = (of_target > 0).squeeze(-1)
    return {
        "target": of_target.squeeze(-1),
        "score": of_target.squeeze(-1) + (1 - p.square().sum(-1)) / 2,
        "top1": ((rank == 0) & known).double(),
        "top5": ((rank < 5) & known).double(),
        "support": (p > 0).sum(-1).double(),
        "mass": p.sum(-1),
        "sure": p.amax(-1),
    }


def _together(parts: list[dict[str, Tensor]], classes: int) -> Reached:
    of_row = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    target, sure = of_row.pop("target"), of_row.pop("sure")
    return reached(
        {
            "smoothed nats": smoothed_nats(target, classes, SHARE),
            "nats": -target.log(),
            "zeros": (target == 0).double(),
            **of_row,
        },
        {"calibration": calibration(sure, of_row["top1"])},
        {"curve": [float(smoothed_nats(target, classes, share).mean()) for share in SHARES]},
    )


def smoothed_nats(p: Tensor, classes: int, share: float) -> Tensor:
    """−log((p + ε)/(1 + nε)), nε = share."""
    return -((p + share / classes) / (1 + share)).log()


def calibration(sure: Tensor, right: Tensor) -> float:
    """The expected calibration error, given max p and whether it is right."""
    bins = (sure.nan_to_num() * BINS).long().clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, right - sure)
    return float(gaps.abs().sum() / len(sure))


def text_task(text: Text, settings: Settings, heads: tuple[Head, ...]) -> NextWord:
    """The task of a text.

    Raises:
        InputError: where too few words occur twice.
    """
    words = [found[0] for found in WORD.finditer(text.content.decode())]
    cut = math.floor((1 - HELD_OUT) * len(words))
    found = Counter(words[:cut])
    kept = [(word, count) for word, count in found.most_common(settings.vocabulary) if count > 1]
    if len(kept) < LEAST_WORDS:
        raise InputError(
            f"--text: {text.name} has too few words that occur twice or more in its first nine tenths, {len(kept)}; give a longer "
            f"text, of at least {LEAST_WORDS} of them, with spaces between the words"
        )
    rest = cut - sum(count for _, count in kept)
    classes: list[tuple[str | None, int]] = sorted([*kept, (None, rest)], key=lambda each: -each[1])
    number = {word: place for place, (word, _) in enumerate(classes)}
    other = number[None]
    tokens = torch.tensor([number.get(word, other) for word in words])
    windows = tokens.unfold(0, CONTEXT + 1, 1)
    held = windows[cut - CONTEXT :]
    held = held[torch.linspace(0, len(held) - 1, min(len(held), settings.scored)).long()]
    all_kept = len(kept) < settings.vocabulary
    which = f"the {len(kept)} {'words that occur twice or more in' if all_kept else 'most frequent words of'} what is learnt"
    spelled = {word: place for place, word in enumerate(dict.fromkeys(words))}  # the rare ones too, which are one class
    spellings = torch.tensor([spelled[word] for word in words])
    known = float(torch.isin(runs(spellings[cut:]), runs(spellings[:cut])).double().mean())
    unknown = float((held[:, -1] == other).double().mean())
    return NextWord(
        title=text.name,
        candidates=heads,
        windows=windows[: cut - CONTEXT],
        held=held,
        counts=torch.tensor([float(count) for _, count in classes]),
        notes=(
            *text.notes,
            f"{len(words)} words and signs, of which the last tenth is held out, and {len(held)} of these are scored",
            f"{len(classes)} classes: {which}, and one for all others, which are {100 * unknown:.1f} % of what is scored",
            f"{100 * known:.0f} % of the runs of {RUN} words held out occur word for word in what is learnt",
        ),
        doubt=DOUBT.format(100 * known, RUN) if known > MUCH else "",
    )


def runs(tokens: Tensor) -> Tensor:
    """A number for each run of words; those of different runs are different, but for very few."""
    last = len(tokens) - RUN + 1
    found = torch.zeros(last, dtype=torch.int64)
    for place in range(RUN):
        found = found * 6364136223846793005 + tokens[place : last + place]
    return found
