"""`compare attention`: its maps, what it learns from, and what it measures of heads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from softmaxima.base.numbers import InputError
from softmaxima.maps import REGISTRY
from softmaxima.maps.softmax import SOFTMAX
from softmaxima_lab.compare.attention import COMPARISON, Head, Result, Study, compared, heads, heads_of, kept_bytes, offered
from softmaxima_lab.compare.attention_plan import EVEN, LEFT_OUT, VARIANTS, Variant, check_names
from softmaxima_lab.compare.attention_tasks import CONTEXT, Task, digits_task, text_task
from softmaxima_lab.compare.engine import Reached, Run, compare
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.pages.compare_attention import REPORT
from softmaxima_lab.pages.compare_attention_figures import figures
from softmaxima_lab.pages.comparison import sentence
from softmaxima_lab.tables.texts import LEAST, Text, read_text

SOFTMAX_ALONE = VARIANTS[:1]
SOME = compared([variant for variant in VARIANTS if variant.name in ("elastic softmax", "sparsemax", "entmax-α")])
TINY = Settings(seeds=2, steps=4)
NUMBERS = " ".join(str(number * number) for number in range(3000)).encode()


def text() -> Task:
    return text_task(Text("squares", NUMBERS), SOME)


@pytest.fixture(scope="module")
def digits() -> Task:
    return digits_task(SOME)


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
    return compare(COMPARISON, [text(), digits], TINY)


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
    task = text_task(Text("z", b"ab" * 9000 + b"z" * 2000), SOME)
    z = ord("z")
    assert not (task.x == z).any()
    assert not (task.y == z).any()
    assert (task.held_x == z).all()
    assert (task.held_y == z).all()
    assert torch.equal(task.x[5], torch.tensor(list((b"ba" * 40)[:CONTEXT])))
    assert torch.equal(task.y[5][:-1], task.x[5][1:])  # the class of a byte is the next one


def test_blocks_of_the_tail_are_scored_once() -> None:
    task = text_task(Text("letters", bytes(32 + (7 * i) % 90 for i in range(LEAST))), SOME)
    tail = list(bytes(32 + (7 * i) % 90 for i in range(LEAST)))[math.floor(0.9 * LEAST) :]
    scored = task.held_y.flatten().tolist()
    assert scored == tail[1 : len(scored) + 1]
    assert len(tail) - len(scored) <= CONTEXT


@pytest.mark.parametrize(("letter", "bytes_each"), [("a", 1), ("é", 2), ("€", 3)])
def test_bits_are_counted_by_character(letter: str, bytes_each: int) -> None:
    task = text_task(Text("t", (letter * LEAST).encode()), SOME)
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


def test_what_learns_has_learnt(study: Study) -> None:
    for finding in study.findings:
        by_name = {result.name: result for result in finding.results}
        alphas, sinks = (
            [head.learnt for run in by_name[name].runs for head in heads_of(run)] for name in ("entmax-α", "elastic softmax")
        )
        assert all(1 < alpha < 2 and alpha != 1.5 for alpha in alphas)
        assert all(sink != 0 for sink in sinks)
        for name, own in (("entmax-α", alphas), ("elastic softmax", sinks)):
            assert (min(own), max(own)) == (
                min(low for low, _ in by_name[name].learnt),
                max(high for _, high in by_name[name].learnt),
            )
        assert heads_of(by_name["softmax"].runs[0])[0].learnt is None
        assert "which begin at 1.50 and learn, end at" in sentence(REPORT, finding, by_name["entmax-α"])


def test_heads_are_counted_by_hand() -> None:
    p = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]).expand(1, 2, 1, 3, 3)
    (head,) = heads(p, True, None)
    assert (head.share, head.mass) == pytest.approx((3 / 6, 2 / 3))  # of 6 keys that are visible
    assert head.keys == pytest.approx((1 + 2 + 0) / 3)
    (even,) = heads(torch.full((1, 1, 1, 4, 4), 0.25), False, [[1.5]])
    assert (even.share, even.mass, even.learnt) == (1.0, 1.0, 1.5)
    assert even.keys == pytest.approx(4.0)


def test_of_the_last_layer_that_query_counts_which_is_read() -> None:
    alike = torch.full((4, 4), 0.25)
    first_alone = torch.cat((torch.eye(4)[:1], alike[1:]))
    before, last = heads(torch.stack((first_alone, first_alone))[:, None, None], False, None)
    assert (before.share, last.share) == pytest.approx((13 / 16, 1 / 4))
    assert (before.keys, last.keys) == pytest.approx((13 / 4, 1.0))


def test_heads_of_seeds_are_put_in_order_before_their_mean() -> None:
    sharp, wide = (Head(0, keys / 8, float(keys), 1.0, learnt=float(keys)) for keys in (1, 8))
    names = ("layer", "share", "keys", "mass", "learnt")
    drawn = [{name: tuple(getattr(head, name) for head in both) for name in names} for both in ((sharp, wide), (wide, sharp))]
    result = Result("a", SOFTMAX_ALONE[0], tuple(Run(Reached({}, {}, {}, each)) for each in drawn))
    assert result.heads == tuple(replace(head, learnt=None) for head in (sharp, wide))
    assert result.learnt == ((1.0, 8.0),)


def test_sparse_maps_look_at_fewer_keys(study: Study) -> None:
    for finding in study.findings:
        by_name = {result.name: result for result in finding.results}
        assert by_name["softmax"].mean("share") == 1.0 > by_name["sparsemax"].mean("share")
        assert by_name["elastic softmax"].mean("mass") < 0.99


def test_memory_is_what_the_backward_pass_needs(digits: Task) -> None:
    """Twice the rows take twice of it, and what has no kernel keeps its scores."""
    model = digits.network(VARIANTS[0])
    small, large = (kept_bytes(model, digits.x[:rows], digits.y[:rows]) for rows in (16, 32))
    assert large == pytest.approx(2 * small, rel=0.01)
    square = next(variant for variant in VARIANTS if variant.name == "normalised square")
    assert kept_bytes(digits.network(square), digits.x[:16], digits.y[:16]) > small


# What it says ---------------------------------------------------------------------------------------------------------------


def test_a_map_twice_differs_by_nothing_and_is_not_recommended(digits: Task) -> None:
    task = replace(digits, candidates=compared([Variant("softmax again", "softmax")]))
    finding = compare(COMPARISON, [task], Settings(seeds=2, steps=8)).findings[0]
    gain = finding.gain(finding.of("softmax again"), task.questions[0])
    unseen = 1 - 0.05 ** (1 / len(digits.held_y))
    assert (gain.same, gain.mean, gain.low, gain.high) == (True, 0.0, pytest.approx(-unseen), pytest.approx(unseen))
    assert finding.taken in (None, finding.softmax)
    assert finding.verdicts[0].headline in ("Stay with softmax", "Nothing to choose")


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
    task = replace(easy, candidates=compared([blind]))
    finding = compare(COMPARISON, [task], Settings(seeds=4, steps=60)).findings[0]
    gain = lambda name: finding.gain(finding.of(name), task.questions[0])
    said = lambda name: sentence(REPORT, finding, finding.of(name))
    by_name = {result.name: result for result in finding.results}
    assert finding.taken is None
    assert f"better accuracy than {EVEN.name}" in finding.verdicts[0].reason
    assert gain("blind").worse
    assert "worse than softmax in accuracy" in said("blind")
    assert "not known to have a better accuracy than class frequencies or even attention" in said("blind").lower()
    assert "learns nothing of where to look" in said(EVEN.name)
    assert not gain(EVEN.name).better
    assert (by_name["blind"].mean("share"), by_name[EVEN.name].mean("keys")) == (0.0, pytest.approx(17.0))


# The report -----------------------------------------------------------------------------------------------------------------


def test_blank_is_where_nothing_is_looked_at(study: Study) -> None:
    finding = study.findings[0]
    plot = next(figure.plot for figure in figures(finding) if figure is not None and figure.id == "text-weights")
    for result, drawn in zip(finding.trained, plot.data, strict=True):
        p = torch.tensor(result.drawn("weights")).reshape(CONTEXT, CONTEXT)
        blank = torch.tensor([[z is None for z in row] for row in drawn.z])
        assert torch.equal(blank, p == 0)
        assert blank.triu(1).sum() == CONTEXT * (CONTEXT - 1) // 2
