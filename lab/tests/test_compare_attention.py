"""`compare-attention`: what it learns from, what it measures, what it recommends and what it writes."""

from __future__ import annotations

import csv
import html
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from conftest import exhaustively
from softmaxima.core.numbers import InputError
from softmaxima.core.writing import finite
from softmaxima.maps import REGISTRY
from softmaxima.maps.softmax import SOFTMAX
from softmaxima_lab.commands import main
from softmaxima_lab.compare import attention
from softmaxima_lab.compare.attention import (
    BASELINE,
    COST,
    Finding,
    Head,
    Result,
    Run,
    Settings,
    Study,
    Training,
    compare_attention,
    difference,
    heads,
    kept_bytes,
    offered,
    over_bars,
    summary,
    total_steps,
    trained,
)
from softmaxima_lab.compare.attention_plan import EVEN, LEFT_OUT, VARIANTS, Variant, check_names
from softmaxima_lab.compare.attention_saved import GAINS, as_json, read_trainings
from softmaxima_lab.compare.attention_tasks import CONTEXT, Task, digits_task, text_task
from softmaxima_lab.pages.columns import write_files
from softmaxima_lab.pages.compare_attention import FILES, columns, page, sentence
from softmaxima_lab.pages.compare_attention_figures import figures
from softmaxima_lab.tables.texts import LEAST, Text, read_text

SOFTMAX_ALONE = VARIANTS[:1]
SOME = tuple(variant for variant in VARIANTS if variant.name in ("softmax", "elastic softmax", "sparsemax", "entmax-α"))
TINY = Settings(seeds=2, steps=4)
NUMBERS = " ".join(str(number * number) for number in range(3000)).encode()


def text() -> Task:
    return text_task(Text("squares", NUMBERS))


@pytest.fixture(scope="module")
def digits() -> Task:
    return digits_task()


@pytest.fixture(scope="module")
def easy(digits: Task) -> Task:
    """Zeros and ones alone, which a few steps tell apart."""
    own, held = digits.y < 2, digits.held_y < 2
    two = {"x": digits.x[own], "y": digits.y[own], "held_x": digits.held_x[held], "held_y": digits.held_y[held]}
    return replace(digits, classes=2, counts=digits.counts[:2], batch=16, **two)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def study(digits: Task) -> Study:
    return compare_attention([text(), digits], TINY, SOME)


def found(study: Study, task: str) -> Finding:
    return next(finding for finding in study.findings if finding.task.name == task)


def measured(study: Study) -> Any:
    """Everything but the times."""
    return [
        [(result.name, [replace(run, step_seconds=0.0) for run in result.runs]) for result in finding.results]
        for finding in study.findings
    ]


# What is compared -----------------------------------------------------------------------------------------------------------


def test_every_map_is_compared_or_left_out_with_a_reason() -> None:
    assert {variant.map for variant in offered()} | LEFT_OUT.keys() == REGISTRY.keys()
    assert len({variant.name for variant in offered()}) == len(offered())
    assert not {variant.map for variant in VARIANTS} & LEFT_OUT.keys()


def test_a_newly_registered_map_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "another_map", replace(SOFTMAX, name="another_map", regulariser=None))
    assert offered()[-1] == Variant("another map", "another_map")


def test_names_are_known_without_torch() -> None:
    check_names(["Entmax α", "softmax", "normalised square", "proportional", "topk_softmax"])
    with pytest.raises(InputError, match="there is no map 'hardmax'; choose among: softmax, "):
        check_names(["hardmax"])
    with pytest.raises(InputError, match="is left out, for it gives"):
        check_names(["log_softmax"])


# What is learnt from --------------------------------------------------------------------------------------------------------


def test_nothing_of_what_is_held_out_of_a_text_is_trained_on() -> None:
    """The last tenth alone has a z, and nothing else."""
    task = text_task(Text("z", b"ab" * 9000 + b"z" * 2000))
    z = ord("z")
    assert not (task.x == z).any()
    assert not (task.y == z).any()
    assert (task.held_x == z).all()
    assert (task.held_y == z).all()
    assert torch.equal(task.x[5], torch.tensor(list((b"ba" * 40)[:CONTEXT])))
    assert torch.equal(task.y[5][:-1], task.x[5][1:])  # the class of a byte is the next one


def test_blocks_of_the_tail_are_scored_once() -> None:
    task = text_task(Text("letters", bytes(32 + (7 * i) % 90 for i in range(LEAST))))
    tail = list(bytes(32 + (7 * i) % 90 for i in range(LEAST)))[math.floor(0.9 * LEAST) :]
    scored = task.held_y.flatten().tolist()
    assert scored == tail[1 : len(scored) + 1]
    assert len(tail) - len(scored) <= CONTEXT


@pytest.mark.parametrize(("letter", "bytes_each"), [("a", 1), ("é", 2), ("€", 3)])
def test_bits_are_counted_by_character(letter: str, bytes_each: int) -> None:
    task = text_task(Text("t", (letter * LEAST).encode()))
    rows, nats = task.rows(torch.zeros(*task.held_y.shape, 256), task.held_y)
    assert nats.tolist() == pytest.approx([math.log(256)] * len(nats))
    assert rows.mean() == pytest.approx(8 * bytes_each, rel=0.01)  # a block may begin inside a character


def test_digits_are_cut_into_patches_and_none_is_on_both_sides(digits: Task) -> None:
    from sklearn.datasets import load_digits

    pictures = {tuple(picture) for picture in load_digits().data}
    for x in (digits.x, digits.held_x):
        whole = (16 * x).reshape(-1, 4, 4, 2, 2).transpose(2, 3).reshape(len(x), 64)
        assert {tuple(picture) for picture in whole.tolist()} <= pictures
    assert len(digits.x) + len(digits.held_x) == 1797
    assert not {tuple(x) for x in digits.x.flatten(1).tolist()} & {tuple(x) for x in digits.held_x.flatten(1).tolist()}
    assert digits.baseline().mean() == pytest.approx(0.1, abs=0.01)


def test_the_bundled_text_is_long() -> None:
    assert read_text(None).characters > 100_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"short", "has 5 characters, too few to learn from; give at least 10000"),
        (b"a" * LEAST + b"\xff", "is not UTF-8 at byte 10000"),
        (b"a" * LEAST + b"\0", "has zero bytes"),
    ],
)
def test_what_is_no_text_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_text(path)


# The experiment -------------------------------------------------------------------------------------------------------------


def test_all_maps_begin_with_the_same_weights_and_see_the_same_batches(digits: Task) -> None:
    first, *others = [Training(digits, variant, 3, 1) for variant in VARIANTS]
    state = first.model.state_dict()
    for other in others:
        assert torch.equal(first.batches, other.batches)
        for name, value in other.model.state_dict().items():
            if not name.rpartition(".")[2].startswith(("sink", "original")):
                assert torch.equal(value, state[name]), name
    assert not torch.equal(first.batches, Training(digits, VARIANTS[0], 4, 1).batches)


def test_seeds_give_one_result_whatever_the_callers_random_state(study: Study, digits: Task) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with torch.no_grad():
        again = compare_attention([text(), digits], TINY, SOME)
    assert torch.equal(torch.get_rng_state(), before)
    assert measured(again) == measured(study)


def test_the_steps_are_those_that_were_announced(digits: Task) -> None:
    taken: list[int] = []
    settings = Settings(seeds=2, steps=7)
    compare_attention([digits], settings, SOME[:2], taken.append)
    assert sum(taken) == total_steps([digits], settings, SOME[:2]) == 2 * 3 * 7


def test_what_learns_has_learnt(study: Study) -> None:
    for finding in study.findings:
        by_name = {result.name: result for result in finding.results}
        alphas, sinks = (
            [head.learnt for run in by_name[name].runs for layer in run.heads for head in layer]
            for name in ("entmax-α", "elastic softmax")
        )
        assert all(1 < alpha < 2 and alpha != 1.5 for alpha in alphas)
        assert all(sink != 0 for sink in sinks)
        for name, own in (("entmax-α", alphas), ("elastic softmax", sinks)):
            assert (min(own), max(own)) == (
                min(low for low, _ in by_name[name].learnt),
                max(high for _, high in by_name[name].learnt),
            )
        assert by_name["softmax"].runs[0].heads[0][0].learnt is None
        assert "which begin at 1.50 and learn, end at" in sentence(finding, by_name["entmax-α"])


def test_heads_are_counted_by_hand() -> None:
    p = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]).expand(1, 2, 1, 3, 3)
    ((head,),) = heads(p, True, None)
    assert (head.share, head.mass) == pytest.approx((3 / 6, 2 / 3))  # of 6 keys that are visible
    assert head.keys == pytest.approx((1 + 2 + 0) / 3)
    ((even,),) = heads(torch.full((1, 1, 1, 4, 4), 0.25), False, [[1.5]])
    assert (even.share, even.mass, even.learnt) == (1.0, 1.0, 1.5)
    assert even.keys == pytest.approx(4.0)


def test_of_the_last_layer_that_query_counts_which_is_read() -> None:
    alike = torch.full((4, 4), 0.25)
    first_alone = torch.cat((torch.eye(4)[:1], alike[1:]))
    (before,), (last,) = heads(torch.stack((first_alone, first_alone))[:, None, None], False, None)
    assert (before.share, last.share) == pytest.approx((13 / 16, 1 / 4))
    assert (before.keys, last.keys) == pytest.approx((13 / 4, 1.0))


def test_heads_of_seeds_are_put_in_order_before_their_mean(digits: Task) -> None:
    sharp, wide = (Head(keys / 8, float(keys), 1.0, learnt=float(keys)) for keys in (1, 8))
    runs = [replace(ran("a", [0.5]).runs[0], heads=((one, other),)) for one, other in ((sharp, wide), (wide, sharp))]
    result = Result("a", SOFTMAX_ALONE[0], tuple(runs))
    assert result.heads == (tuple(replace(head, learnt=None) for head in (sharp, wide)),)
    assert result.learnt == ((1.0, 8.0),)


def test_sparse_maps_look_at_fewer_keys(study: Study) -> None:
    for finding in study.findings:
        by_name = {result.name: result for result in finding.results}
        assert by_name["softmax"].mean("share") == 1.0 > by_name["sparsemax"].mean("share")
        assert by_name["elastic softmax"].mean("mass") < 0.99


def test_memory_is_what_the_backward_pass_needs(digits: Task) -> None:
    """Twice the rows take twice of it, and what has no kernel keeps its scores."""
    model = digits.model(VARIANTS[0])
    small, large = (kept_bytes(model, digits.x[:rows], digits.y[:rows]) for rows in (16, 32))
    assert large == pytest.approx(2 * small, rel=0.01)
    square = next(variant for variant in VARIANTS if variant.name == "normalised square")
    assert kept_bytes(digits.model(square), digits.x[:16], digits.y[:16]) > small


# What it says ---------------------------------------------------------------------------------------------------------------


def ran(name: str, qualities: Sequence[float], rows: Sequence[float] | None = None) -> Result:
    runs = [Run(quality, 1.0, tuple(rows or [quality] * 32), (), 0.01, 1) for quality in qualities]
    return Result(name, Variant(name, name), tuple(runs))


def of_rows(name: str, rows: np.ndarray) -> Result:
    """A map whose held-out rows [seeds, rows] are such; one with NaN diverged."""
    qualities = rows.mean(-1).tolist()
    runs = [
        Run(quality, quality, tuple(own.tolist()), (), 0.01, 1, diverged=None if math.isfinite(quality) else 3)
        for quality, own in zip(qualities, rows, strict=True)
    ]
    return Result(name, Variant(name, name), tuple(runs))


def said(task: Task, rows: dict[str, np.ndarray]) -> Finding:
    """What is found where the maps, "softmax" and "even attention" among them, add so much in each held-out row, [seeds, rows]."""
    chosen = [Variant(name, name) for name in rows if name not in ("softmax", EVEN.name)]
    runs = {name: of_rows(name, own).runs for name, own in rows.items()}
    seeds = len(next(iter(rows.values())))
    trainings = [(task.name, {name: runs[name][seed] for name in runs}) for seed in range(seeds)]
    return summary([task], Settings(seeds=seeds), chosen, trainings).findings[0]


def test_the_interval_has_the_variance_over_seeds_and_over_rows(digits: Task) -> None:
    ours, other = np.array([0.81, 0.85, 0.83, 0.9]), np.array([0.8, 0.8, 0.81, 0.83])
    batches = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.9]
    rows = np.repeat(batches, 16).tolist()
    gain = difference(ran("a", ours.tolist(), rows), ran("softmax", other.tolist(), [0.0] * len(rows)), digits.metric, 3)
    gains = ours - other
    over_seeds, over_rows = (stats.t.ppf(1 - 0.05 / 3 / 2, freedom) for freedom in (3, 8))
    half = math.sqrt(over_seeds**2 * gains.var(ddof=1) / 4 + over_rows**2 * np.var(batches, ddof=1) / 9)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((gains.mean(), gains.mean() - half, gains.mean() + half))


def test_rows_are_means_over_all_seeds(digits: Task) -> None:
    """Of two seeds the other has half of what the rows differ by."""
    rows = np.zeros((2, 64))
    rows[0, :16], rows[1, 16:32] = 0.25, 0.5
    gain = difference(of_rows("a", rows), of_rows("softmax", np.zeros((2, 64))), digits.metric, 1)
    over_seeds, over_rows = (stats.t.ppf(0.975, freedom) for freedom in (1, 3))
    by_seed, by_batch = rows.mean(1), [0.125, 0.25, 0.0, 0.0]
    half = math.sqrt(over_seeds**2 * np.var(by_seed, ddof=1) / 2 + over_rows**2 * np.var(by_batch, ddof=1) / 4)
    assert gain.reach == pytest.approx(half)


def test_intervals_over_both_bars_hold_at_once_for_all_maps(digits: Task) -> None:
    own, *bars = (ran(name, qualities) for name, qualities in (("a", [0.7, 0.8]), ("even", [0.5, 0.4]), ("none", [0.1, 0.2])))
    assert over_bars(own, bars, 5, digits.metric) == {bar.name: difference(own, bar, digits.metric, 10) for bar in bars}


@pytest.mark.parametrize("others", [1, 6])
def test_a_map_is_taken_where_the_interval_of_so_many_leaves_out_0(others: int, digits: Task) -> None:
    """All others are right where softmax is, and this one in so many rows more."""
    even, softmax = (np.repeat([own], 5, 0) for own in (np.zeros(HELD), np.tile([1.0, 0.0], HELD // 2)))
    with_more = lambda won: np.where(np.cumsum(1 - softmax, 1) <= won, 1.0, softmax)
    shown = lambda won: difference(of_rows("a", with_more(won)), of_rows("softmax", softmax), digits.metric, others).better
    enough = next(won for won in range(1, HELD // 2 + 1) if shown(won))
    for won, headline in ((enough - 1, "Stay with softmax"), (enough, "Take a")):
        rows = {"softmax": softmax, EVEN.name: even, "a": with_more(won), **{f"b{k}": softmax for k in range(1, others)}}
        assert said(digits, rows).headline == headline


@pytest.mark.parametrize(("rows", "batches"), [(512, 16), (256, 16), (255, 15), (40, 2), (15, 2)])
def test_rows_that_follow_one_another_count_together(rows: int, batches: int, digits: Task) -> None:
    own = np.random.default_rng(0).normal(size=rows)
    metric = replace(digits.metric, most_gain=math.inf)
    gain = difference(ran("a", [1.0, 1.0], own.tolist()), ran("softmax", [0.0, 0.0], [0.0] * rows), metric, 1)
    means = [part.mean() for part in np.array_split(own, batches)]
    half = stats.t.ppf(0.975, batches - 1) * math.sqrt(np.var(means, ddof=1) / batches)
    assert gain.high - gain.mean == pytest.approx(half)


@pytest.mark.parametrize("held", [15, 40, 128, 512])
@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_no_better_map_is_seldom_taken_for_one_though_held_out_rows_are_alike(correlation: float, held: int, digits: Task) -> None:
    """Twenty seeds and few maps, so that the rows are most of the variance, and correlated as much as those of a text."""
    random, taken, tries = np.random.default_rng(0), 0, 200
    task = replace(digits, metric=replace(digits.metric, most_gain=math.inf))
    for _ in range(tries):
        noise = random.normal(size=(3, held))
        for i in range(1, held):
            noise[:, i] += correlation * noise[:, i - 1]
        own = noise[:, None] + 0.1 * random.normal(size=(3, 20, held)) + 0.001 * random.normal(size=(3, 20, 1))
        gains = {
            name: difference(of_rows(name, rows), of_rows("softmax", own[0]), task.metric, 2)
            for name, rows in zip("ab", own[1:], strict=True)
        }
        taken += any(gain.better for gain in gains.values())
    assert taken <= stats.binom.isf(1e-4, tries, 0.05)


def test_a_map_twice_differs_by_nothing_and_is_not_recommended(digits: Task) -> None:
    study = compare_attention([digits], Settings(seeds=2, steps=8), [*SOFTMAX_ALONE, Variant("softmax again", "softmax")])
    finding = study.findings[0]
    gain = finding.gain(next(result for result in finding.results if result.name == "softmax again"))
    unseen = 1 - 0.05 ** (1 / len(digits.held_y))
    assert (gain.same, gain.mean, gain.low, gain.high) == (True, 0.0, pytest.approx(-unseen), pytest.approx(unseen))
    assert finding.taken in (None, finding.softmax)
    assert finding.headline in ("Stay with softmax", "Nothing to choose")


HELD = 540


@pytest.mark.parametrize(
    ("levels", "headline", "words"),
    [
        ({"softmax": 0.1, "even attention": 0.1, "a": 0.1}, "Nothing to choose", "accuracy than class frequencies"),
        ({"softmax": 0.5, "even attention": 0.5, "a": 0.5}, "Nothing to choose", "accuracy than even attention"),
        ({"softmax": 0.8, "even attention": 0.4, "a": 0.8}, "Stay with softmax", "The other map is not shown to be better"),
        ({"softmax": 0.7, "even attention": 0.4, "a": 0.9}, "Take a", "it is better by"),
        ({"softmax": 0.4, "even attention": 0.4, "a": 0.4, "b": 0.9}, "Take b", "it is better by"),
        ({"softmax": math.nan, "even attention": 0.4, "a": 0.8}, "Softmax diverged", "With 5 of 5 seeds"),
    ],
)
def test_nothing_is_compared_where_nothing_is_learnt(levels: dict[str, float], headline: str, words: str, digits: Task) -> None:
    random = np.random.default_rng(1)
    rows = {
        name: (random.random((5, HELD)) < level) * 1.0 if level == level else np.full((5, HELD), level)
        for name, level in levels.items()
    }
    finding = said(digits, rows)
    assert (finding.headline, finding.taken and f"Take {finding.taken.name}") == (
        headline,
        {"Stay with softmax": "Take softmax"}.get(headline, headline if headline.startswith("Take") else None),
    )
    assert words in finding.reason
    assert "nan" not in finding.reason
    assert "nan" not in " ".join(sentence(finding, result) for result in finding.results)


def test_softmax_stays_only_where_it_has_learnt_itself(digits: Task) -> None:
    """Another map has, and whether it is better than softmax cannot be told: with two seeds, of which softmax failed at one."""
    random = np.random.default_rng(2)
    levels = {"softmax": (0.9, 0.1), "even attention": (0.15, 0.15), "a": (0.9, 0.9)}
    rows = {name: (random.random((2, HELD)) < np.array(own)[:, None]) * 1.0 for name, own in levels.items()}
    finding = said(digits, rows)
    assert (finding.headline, finding.taken) == ("Too few seeds to tell", None)


def planted(monkeypatch: pytest.MonkeyPatch, name: str, forward: Any) -> Variant:
    """A map that is none, without a derivative."""
    map = replace(
        SOFTMAX, name=name, regulariser=None, kernel=None, forward=forward, sensitivity=lambda p, z: (torch.zeros_like(p),) * 2
    )
    monkeypatch.setitem(REGISTRY, name, map)
    return Variant(name, name)


@pytest.mark.exhaustive
def test_maps_made_worse_on_purpose_are_told_apart(monkeypatch: pytest.MonkeyPatch, easy: Task) -> None:
    """One looks at nothing, so that the token that decides has seen nothing; even attention at all: enough for two digits."""
    blind = planted(monkeypatch, "blind", torch.zeros_like)
    finding = compare_attention([easy], Settings(seeds=4, steps=60), [*SOFTMAX_ALONE, blind]).findings[0]
    by_name = {result.name: result for result in finding.results}
    assert finding.taken is None
    assert f"better accuracy than {EVEN.name}" in finding.reason
    assert finding.gain(by_name["blind"]).worse
    assert "worse than softmax in accuracy" in sentence(finding, by_name["blind"])
    assert "not known to be better than class frequencies or even attention" in sentence(finding, by_name["blind"]).lower()
    assert "learns nothing of where to look" in sentence(finding, by_name[EVEN.name])
    assert not finding.gain(by_name[EVEN.name]).better
    assert (by_name["blind"].mean("share"), by_name[EVEN.name].mean("keys")) == (0.0, pytest.approx(17.0))


def test_where_labels_are_shuffled_nothing_is_recommended(easy: Task) -> None:
    random = torch.Generator().manual_seed(0)
    y, held_y = (labels[torch.randperm(len(labels), generator=random)] for labels in (easy.y, easy.held_y))
    study = compare_attention([replace(easy, y=y, held_y=held_y)], Settings(seeds=3, steps=30), SOME[:3:2])
    finding = study.findings[0]
    assert all(abs(result.quality - 0.5) < 0.15 for result in finding.results)
    assert (finding.taken, finding.headline) == (None, "Nothing to choose")
    assert "Nothing to choose" in page(study)


def test_what_diverges_is_reported_and_comes_last(monkeypatch: pytest.MonkeyPatch, digits: Task) -> None:
    broken = planted(monkeypatch, "broken", lambda z: torch.full_like(z, math.nan))
    study = compare_attention([digits], TINY, [*SOFTMAX_ALONE, broken])
    finding = study.findings[0]
    result = finding.results[-1]
    assert (result.name, result.diverged) == ("broken", (0, 0))
    assert finding.taken in (None, finding.softmax)
    assert "diverged with 2 of 2 seeds, at step 0 and 0" in sentence(finding, result)
    assert "diverged" in [column.cell(result) for column in columns(finding)]
    record = as_json(study)["tasks"][0]["results"][-1]
    assert (record["quality"], record["diverged"]) == (None, [0, 0])
    assert "broken" in page(study)


def test_one_seed_tells_nothing(digits: Task) -> None:
    assert compare_attention([digits], Settings(seeds=1, steps=2), SOME[:2]).findings[0].headline == "Too few seeds to tell"


# The report -----------------------------------------------------------------------------------------------------------------


def test_the_page_has_every_map_of_every_task(study: Study) -> None:
    content = page(study)
    names = {*[variant.name for variant in SOME], EVEN.name, BASELINE}
    for finding in study.findings:
        table = re.search(f'<table id="{finding.task.name}-maps">.*?<tbody>(.*?)</tbody>', content, re.DOTALL)
        assert table is not None
        rows = re.findall(r"<th scope='row'[^>]*>(.*?)</th>", table[1])
        assert [html.unescape(name) for name in rows] == [result.name for result in finding.results]
        assert set(rows) == names
        assert {figure.id for figure in figures(finding)} == {
            f"{finding.task.name}-{what}" for what in ("gain", "heads", "weights", "cost")
        }
    assert all(f"id='{figure.id}'" in content for finding in study.findings for figure in figures(finding))
    assert all(name in content for name in LEFT_OUT)
    assert "<script src" not in content
    assert len(re.findall('<section class="choice">', content)) == 2


def test_blank_is_where_nothing_is_looked_at(study: Study) -> None:
    finding = found(study, "text")
    plot = next(figure.plot for figure in figures(finding) if figure.id == "text-weights")
    for result, drawn in zip(finding.maps, plot.data, strict=True):
        p = result.runs[0].weights
        blank = torch.tensor([[z is None for z in row] for row in drawn.z])
        assert torch.equal(blank, p == 0)
        assert blank.triu(1).sum() == CONTEXT * (CONTEXT - 1) // 2


def test_the_files_agree_with_the_study(study: Study, tmp_path: Path) -> None:
    paths = write_files(FILES, study, tmp_path)
    assert [path.name for path in paths] == ["results.json", "results.csv", "report.html"]
    record, rows = json.loads(paths[0].read_text()), list(csv.DictReader(paths[1].read_text().splitlines()))
    flat = [(finding, result) for finding in study.findings for result in finding.results]
    entries = [entry for task in record["tasks"] for entry in task["results"]]
    for (finding, result), entry, row in zip(flat, entries, rows, strict=True):
        assert entry["name"] == row["name"] == result.name
        assert entry["quality"] == float(row["quality"]) == result.quality
        gain, pace = finding.gain(result), finding.pace(result)
        gains = [gain.mean, gain.low, gain.high, *map(COST.in_unit, (pace.mean, pace.low, pace.high))]
        told = [float(row[name]) if row[name] else None for name in GAINS]
        assert told == (finite(gains) if result is not finding.softmax else [None] * len(gains))
    assert record["partial"] is False
    assert set(record["tasks"][0]["picture"]["weights"]) == {*[variant.name for variant in SOME], EVEN.name}


# The command ----------------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["compare-attention", *arguments])
    return int(end.value.code or 0)


def test_a_text_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "squares.txt"
    path.write_bytes(NUMBERS)
    options = ("--text", str(path), "--task=text", "--maps=sparsemax", "--steps=2", "--seeds=2")
    assert run(*options, f"--out={tmp_path / 'out'}") == 0
    shown = capsys.readouterr().out
    assert "squares.txt" in shown
    assert all(name in shown for name in ("softmax", "sparsemax", BASELINE, "Nothing to choose", "report.html"))
    assert all(len(line) <= 80 for line in shown.split("\nwritten")[0].splitlines()[3:])
    assert run(*options, "--json", "--quick", f"--out={tmp_path / 'quick'}") == 0
    assert json.loads(capsys.readouterr().out)["settings"]["quick"] is True
    assert "It is a first look" in (tmp_path / "quick" / "report.html").read_text()


def test_what_is_done_when_it_is_interrupted_is_kept_and_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def interrupted(*arguments: Any) -> Iterator[Any]:
        for number, one in enumerate(trained(*arguments)):
            if number == 3:
                raise KeyboardInterrupt
            yield one

    options = ("--maps=sparsemax", "--steps=1", "--seeds=3", f"--out={tmp_path}")
    with monkeypatch.context() as patch:
        patch.setattr(attention, "trained", interrupted)
        assert run(*options) == 130
    assert "interrupted after 3 of 6 trainings of all maps; --resume goes on from there" in capsys.readouterr().out
    record = json.loads((tmp_path / "results.json").read_text())
    assert record["partial"] is True
    assert [max(len(result["runs"]) for result in task["results"]) for task in record["tasks"]] == [2, 1]
    content = (tmp_path / "report.html").read_text()
    assert "Partial: interrupted after 2 of 3 seeds." in content
    assert "Partial: interrupted after 1 of 3 seeds." in content
    assert run(*options) == 2
    assert "holds a softmaxima compare-attention that was interrupted; go on with --resume" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["compare", f"--out={tmp_path}"])
    told = capsys.readouterr().err
    assert "holds a softmaxima compare-attention that was interrupted; choose another --out" in told
    with pytest.raises(SystemExit):
        main(["compare", f"--out={tmp_path}", "--resume"])
    assert "is of softmaxima compare-attention, not of softmaxima compare; begin anew" in capsys.readouterr().err
    assert run(*options, "--resume") == 0
    assert "3 of 6 done before" in capsys.readouterr().out
    record = json.loads((tmp_path / "results.json").read_text())
    assert (record["partial"], "--resume" in record["command"]) == (False, False)
    assert {len(result["runs"]) for task in record["tasks"] for result in task["results"] if "map" in result} == {3}


@pytest.mark.parametrize("done", [2, *map(exhaustively, (1, 3, 4))])
def test_what_was_interrupted_goes_on_to_the_same_result(study: Study, digits: Task, tmp_path: Path, done: int) -> None:
    tasks = [text(), digits]
    first = list(islice(trained(tasks, TINY, SOME), done))
    write_files(FILES, summary(tasks, TINY, SOME, first), tmp_path)
    assert read_trainings(tmp_path / "results.json", tasks, TINY, SOME) == first
    whole = summary(tasks, TINY, SOME, [*first, *trained(tasks, TINY, SOME, done)])
    assert measured(whole) == measured(study)
    for finding, other in zip(whole.findings, study.findings, strict=True):
        for result, same in zip(finding.results, other.results, strict=True):
            weights, expected = result.runs[0].weights, same.runs[0].weights
            assert (weights is None) == (expected is None)
            if weights is not None:
                assert torch.equal(weights == 0, expected == 0)
                torch.testing.assert_close(weights, expected, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda tasks: (tasks, replace(TINY, seed=1), SOME), "--seed 0, not 1"),
        (lambda tasks: (tasks, replace(TINY, steps=5), SOME), "--steps 4, not 5"),
        (lambda tasks: (tasks[:1], TINY, SOME), "another --text or --task"),
        (lambda tasks: ([text_task(Text("t", NUMBERS[::-1])), tasks[1]], TINY, SOME), "another --text or --task"),
        (lambda tasks: (tasks, TINY, SOME[:2]), "other --maps"),
    ],
)
def test_another_comparison_is_not_gone_on_with(change: Any, part: str, study: Study, digits: Task, tmp_path: Path) -> None:
    write_files(FILES, study, tmp_path)
    with pytest.raises(InputError, match=part):
        read_trainings(tmp_path / "results.json", *change([text(), digits]))


@pytest.mark.parametrize("content", [None, "", "{}", '{"tasks": [3]}', '{"tasks": []}', "[]", "\x00"])
def test_a_file_that_is_none_of_ours_is_not_gone_on_with(content: str | None, digits: Task, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match="--resume"):
        read_trainings(tmp_path / "results.json", [digits], TINY, SOME)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--text=absent.txt",), "there is no file absent.txt"),
        (("--text=.",), "is a directory"),
        (("--text=short.txt",), "has 5 characters, too few to learn from; give at least 10000"),
        (("--text=short.txt", "--task=digits"), "--text: no text is read with --task digits"),
        (("--maps=hardmax",), "--maps: there is no map 'hardmax'; choose among: softmax"),
        (("--maps=log_softmax",), "--maps: log_softmax is left out"),
        (("--maps=,",), "--maps: no name is given"),
        (("--seeds=0",), "--seeds must be at least 1, got 0"),
        (("--steps=0",), "--steps must be at least 1, got 0"),
        (("--task=images",), "--task"),
    ],
)
def test_errors_come_before_torch_is_loaded(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    code = (
        "import sys\nfrom softmaxima_lab.commands import main\n"
        f"try: main(['compare-attention', *{arguments!r}])\n"
        "finally: print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert ended.stdout.strip() == "False"
