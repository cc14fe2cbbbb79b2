"""Maps, losses and sums of Dask arrays in whatever chunks, beside the functions of whole arrays in float64."""

from __future__ import annotations

import importlib.util
import math
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import torch
from dask.callbacks import Callback
from shards import learnt_of

import softmaxima as sm
from conftest import Case, LossCase, exhaustively, some
from softmaxima.dask import chunks as chunk_room
from softmaxima.engine.blocks import thresholded
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS

SHAPE = (5, 9, 4)
# Chunks of SHAPE: along classes and others, with empty ones; along others alone; along all; of one class each.
CHUNKS = [
    ((2, 0, 3), (4, 5, 0), (4,)),
    ((5,), (9,), (1, 3)),
    exhaustively(((1,) * 5, (3, 0, 3, 1, 2), (2, 2))),
    exhaustively(((5,), (1,) * 9, (4,))),
]
OF_MAPS = [CHUNKS[0], exhaustively(CHUNKS[1]), *CHUNKS[2:]]
FORMED = [name for name, loss in LOSSES.items() if loss.row_form is not None]


@pytest.fixture(autouse=True)
def one_thread_at_a_time() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def normal(*shape: int, seed: int, scale: float = 3.0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(shape)


def hard() -> np.ndarray:
    """Scores [7, *SHAPE]: plain, masked, some rows all masked, with +∞, with NaN, with ties, far apart."""
    x = normal(7, *SHAPE, seed=1)
    x[1][np.random.default_rng(7).random(SHAPE) < 0.6] = -math.inf
    x[2, :, :, 1] = x[2, 2] = -math.inf
    x[3, 1, 3, 2] = x[3, 1, 8, 2] = math.inf
    x[4, 1, 3, 2] = math.nan
    x[3:5, 0] = -math.inf
    x[5] = x[5].round()
    x[6] *= 1e5
    return x


def within(found: Any, expected: Any, most: float) -> None:
    """Each of the hard ones is within so much of what is expected."""
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert apart(a, b) <= most, number


def apart(a: Any, b: Any) -> float:
    """The largest difference, in shares of the largest number; what is not finite is to be the same."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    finite = np.isfinite(b)
    np.testing.assert_array_equal(a[~finite], b[~finite])
    a, b = a[finite].astype(float), b[finite].astype(float)
    return float(np.abs(a - b).max(initial=0.0) / max(1.0, np.abs(b).max(initial=0.0)))


# Maps -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", OF_MAPS)
def test_every_map_is_that_of_the_whole_array(case: Case, chunks: Any) -> None:
    if case.map.blocks is None:
        with pytest.raises(ValueError, match="does not say how it works on parts"):
            sm.dask.chunked_map(case.map, da.zeros(3))
        return
    function, x, own = getattr(sm.dask, case.map.name), hard(), ((7,), *chunks)
    lazy = da.from_array(x, chunks=own)
    p = function(lazy, dim=2, **case.params)
    assert p.chunks == da.core.normalize_chunks(own, x.shape)
    within(p.compute(), case.map(x, dim=2, **case.params), 1e-13)
    where, tau = normal(5, 9, 1, seed=2) > -1.0, 0.5 + np.abs(normal(4, seed=3))
    numbers = {name: value.numpy() for name, value in learnt_of(case.map, (5, 1, 4)).items()}
    expected = case.map(x, dim=2, where=where, temperature=tau[None, None], **case.params | numbers)
    p = function(lazy, dim=2, where=where, temperature=tau, **case.params | numbers)
    within(p.compute(), expected, 1e-13)
    lazily = {name: da.from_array(value, chunks=(1, 1, 3)) for name, value in numbers.items()}
    options: Any = {"where": da.from_array(where, chunks=2), "temperature": da.from_array(tau, chunks=3), "split_every": 2}
    assert apart(function(lazy[0], dim=-2, **options, **case.params | lazily).compute(), expected[0]) <= 1e-13


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "elastic_softmax", "sparsemax", "topp_softmax"])
@pytest.mark.parametrize("narrow", [np.float32, np.float16])
def test_narrow_scores_are_as_right_as_those_of_whole_rows(name: str, narrow: Any) -> None:
    x = normal(40, 300, seed=1).astype(narrow)
    expected = getattr(sm, name)(x.astype(np.float64), dim=0)
    p = getattr(sm.dask, name)(da.from_array(x, chunks=(7, 100)), dim=0)
    assert p.dtype == narrow
    found = p.compute()
    assert found.dtype == narrow
    least = float(np.finfo(narrow).tiny)
    assert np.max(np.abs(found.astype(np.float64) - expected) / np.maximum(np.abs(expected), least)) <= 4 * np.finfo(narrow).eps


def test_softmin_is_that_of_the_whole_array() -> None:
    x, where, tau = -hard(), normal(5, 9, 1, seed=2) > -1.0, 0.5 + np.abs(normal(4, seed=3))
    lazy = da.from_array(x, chunks=((7,), *CHUNKS[0]))
    p = sm.dask.softmin(lazy, 2, where=where, temperature=tau, split_every=2)
    assert p.chunks == lazy.chunks
    z = np.where(where, -x / tau, -math.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(z - z.max(2, keepdims=True))
        expected = np.nan_to_num(e / e.sum(2, keepdims=True))  # a row of which all is masked has no mass
    for number in (0, 1, 2, 5, 6):
        assert apart(p[number].compute(), expected[number]) <= 1e-13
    within(p.compute(), sm.softmin(x, 2, where=where, temperature=tau), 1e-13)
    pickle.dumps(p.__dask_graph__())  # as a cluster has it sent
    assert p.name == sm.dask.softmin(lazy, 2, where=where, temperature=tau, split_every=2).name
    assert "softmin" in dir(sm.dask)


@pytest.mark.parametrize("chunks", [((1, 0), (3, 0, 2)), ((0, 1), (0, 5))])
def test_an_axis_of_one_score_may_have_an_empty_chunk(chunks: Any) -> None:
    x = normal(1, 5, seed=1)
    lazy, mask, tau = da.from_array(x, chunks=chunks), x < 1.0, np.array([[0.5]])
    for axis in (0, 1):
        for name in ("softmax", "sparsemax", "topk_softmax"):
            within(getattr(sm.dask, name)(lazy, dim=axis, where=mask).compute(), getattr(sm, name)(x, dim=axis, where=mask), 1e-15)
        within(sm.dask.logsumexp(lazy, axis, where=mask[:, :1]).compute(), sm.logsumexp(x, axis, where=mask[:, :1]), 1e-15)
        within(sm.dask.softmax(lazy, axis, temperature=tau).compute(), sm.softmax(x, axis, temperature=tau), 1e-15)
    empty_first = da.from_array(np.array([2.0]), chunks=((0, 1),))  # of fewer axes than x
    within(sm.dask.softmax(lazy, temperature=empty_first).compute(), sm.softmax(x, temperature=2.0), 1e-15)
    one = da.from_array(x[:, :1], chunks=(chunks[0], (0, 1)))
    assert sm.dask.cross_entropy(one, np.array([0]), np.array([2.0])).compute() == 0.0
    assert apart(sm.dask.sparsemax_loss(lazy, np.array([3])).compute(), sm.sparsemax_loss(x, np.array([3]))) <= 1e-15


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_scores_of_no_axes_and_of_none(name: str) -> None:
    assert getattr(sm.dask, name)(da.from_array(np.array(3.0))).compute() == 1.0
    assert getattr(sm.dask, name)(da.zeros((0, 3), chunks=1)).compute().shape == (0, 3)
    assert getattr(sm.dask, name)(da.zeros((3, 0), chunks=2)).compute().shape == (3, 0)


# Sums -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("dim", [1, (0, 2), (-1, 0, 1)])
def test_logsumexp_is_that_of_the_whole_array(dim: Any, chunks: Any) -> None:
    axes = [a % 3 for a in (dim if isinstance(dim, tuple) else (dim,))]
    per_row = [1 if axis in axes else size for axis, size in enumerate(SHAPE)]
    tau, where = 0.5 + np.abs(normal(*per_row, seed=2)), normal(5, 1, 4, seed=3) > 0.0
    x, dims = hard(), tuple(axis + 1 for axis in axes)
    lazy = da.from_array(x, chunks=((3, 4), *chunks))
    within(sm.dask.logsumexp(lazy, dims).compute(), sm.logsumexp(x, dims), 1e-15)
    options = {"temperature": tau, "where": where, "keepdim": True}
    lazily = {"temperature": da.from_array(tau, chunks=2), "where": da.from_array(where, chunks=2), "keepdim": True}
    expected = sm.logsumexp(x, dims, **options)
    within(sm.dask.logsumexp(lazy, dims, **options).compute(), expected, 4e-16)
    assert apart(sm.dask.logsumexp(lazy[1], dim, **lazily).compute(), expected[1]) <= 4e-16
    assert apart(sm.dask.logsumexp(lazy[1], dim, temperature=0.01).compute(), sm.logsumexp(x[1], dim, temperature=0.01)) <= 4e-16


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int16, bool])
def test_logsumexp_of_every_dtype(kind: Any) -> None:
    x = normal(3, 50, seed=1).astype(kind)
    value = sm.dask.logsumexp(da.from_array(x, chunks=(2, 8)))
    expected = sm.logsumexp(x)
    assert value.dtype == expected.dtype
    np.testing.assert_allclose(value.compute(), sm.logsumexp(x.astype(np.float64)), rtol=2 * float(np.finfo(expected.dtype).eps))


def test_digits_near_zero_are_kept() -> None:
    x = da.from_array(np.array([0.0, -40.0, -math.inf]), chunks=1)
    assert sm.dask.logsumexp(x).compute() == 4.248354255291589e-18
    assert sm.dask.logsumexp(da.zeros(0)).compute() == -math.inf
    assert sm.dask.logsumexp(da.from_array(np.array(3.0)), keepdim=True).compute() == 3.0


# Losses ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("name", FORMED)
def test_every_loss_is_that_of_the_whole_array(name: str, chunks: Any) -> None:
    labels = np.random.default_rng(1).integers(0, 9, (5, 4))
    labels[0, 1], weight = -100, np.abs(normal(9, seed=2)) + 0.1
    soft = np.exp(normal(*SHAPE, seed=3))
    soft /= soft.sum(1, keepdims=True)
    for options in some(LOSSES[name].examples, name):
        x = LossCase(LOSSES[name], options).scores(*SHAPE, seed=4).numpy()
        x[0, :, 1] = math.nan  # of the row that is left out
        lazy = da.from_array(x, chunks=chunks)
        calls: list[tuple[np.ndarray, dict[str, Any]]] = [(labels, {}), (labels, {"weight": weight, "reduction": "sum"})]
        calls += [(labels, {"reduction": "none", "temperature": 0.5})]
        calls += [(labels, {"label_smoothing": 0.1}), (labels, {"label_smoothing": 0.3, "weight": weight})]
        for target, more in calls:
            y = da.from_array(target, chunks=3) if more else target
            found = getattr(sm.dask, name)(lazy, y, **more, **options).compute()
            assert apart(found, getattr(sm, name)(x, target, **more, **options)) <= 1e-13
        x = np.nan_to_num(x)
        found = getattr(sm.dask, name)(da.from_array(x, chunks=chunks), soft, weight, **options).compute()
        assert apart(found, getattr(sm, name)(x, soft, weight, **options)) <= 1e-13


@pytest.mark.parametrize("name", ["cross_entropy", "entmax15_loss", "soft_accuracy_loss"])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, lambda weight: da.from_array(weight, chunks=2)])
def test_class_weights_may_be_any_array(name: str, kind: Any) -> None:
    x, labels, weight = normal(5, 9, seed=4), np.array([0, 8, 3, 3, 7]), np.abs(normal(9, seed=2)) + 0.1
    for narrow in (np.float64, np.float32):
        given = kind(weight.astype(narrow))
        found = getattr(sm.dask, name)(da.from_array(x, chunks=(2, 4)), labels, given).compute()
        assert apart(found, getattr(sm, name)(x, labels, weight.astype(narrow).astype(np.float64))) <= 1e-13


def test_the_label_of_one_row_may_be_an_array_of_no_axes() -> None:
    x = np.array([0.0, 1.0, 3.0])
    for label in (np.array(1), da.from_array(np.array(1))):
        for name in ("cross_entropy", "sparsemax_loss", "soft_accuracy_loss"):
            found = getattr(sm.dask, name)(da.from_array(x, chunks=2), label).compute()
            assert found == pytest.approx(getattr(sm, name)(x, np.array(1)))


def test_losses_without_a_form_in_parts_say_so() -> None:
    for name in LOSSES.keys() - set(FORMED):
        with pytest.raises((ValueError, TypeError), match=rf"dask\.({name}|chunked_loss): "):
            getattr(sm.dask, name)(da.zeros((2, 3)), np.array([0, 1]))


# What is computed, when and where -------------------------------------------------------------------------------------------------


def counted(x: np.ndarray, chunks: int, loaded: Counter) -> da.Array:
    """The array along its last axis in chunks of which each load is counted."""

    def load(start: int) -> np.ndarray:
        loaded[start] += 1
        return x[..., start : start + chunks]

    every = range(0, x.shape[-1], chunks)
    parts = [da.from_delayed(dask.delayed(load)(i), x[..., i : i + chunks].shape, x.dtype) for i in every]
    return da.concatenate(parts, -1)


def test_logsumexp_reads_each_chunk_once_and_only_when_it_is_computed() -> None:
    loaded: Counter = Counter()
    x = normal(3, 100, seed=1)
    value = sm.dask.logsumexp(counted(x, 7, loaded))
    p = sm.dask.entmax(counted(x, 7, loaded), alpha=1.3)
    loss = sm.dask.cross_entropy(counted(x, 7, loaded), np.zeros(3, np.int64))
    assert not loaded
    for lazy in (value, loss, p):
        loaded.clear()
        lazy.compute()
        assert set(loaded.values()) == {1}
        assert len(loaded) == 15


def kept(lazy: da.Array) -> tuple[Any, list[int]]:
    """(the value, bytes of what each task tells of its rows)."""
    found: list[int] = []

    def seen(key: Any, value: Any, *others: Any) -> None:
        if type(value).__name__ == "Known":
            found.append(len(pickle.dumps((value.state, value.targets and value.targets.sums))))

    with Callback(posttask=seen):
        return lazy.compute(), found


@pytest.mark.parametrize(("name", "most"), [("logsumexp", 2000), ("sparsemax", 3000)])
def test_what_is_kept_of_a_chunk_is_small(name: str, most: int) -> None:
    x = da.from_array(normal(2, 10_000, seed=1, scale=1.0), chunks=(2, 5000))
    _, sizes = kept(getattr(sm.dask, name)(x))
    assert len(sizes) >= 2
    assert max(sizes) <= most


@pytest.mark.parametrize("name", FORMED)
def test_a_row_that_is_ignored_is_not_kept(name: str) -> None:
    x, y, options = normal(40, 2000, seed=1, scale=1.0), 50 * np.arange(40), LOSSES[name].examples[0]
    of = lambda x, y: kept(getattr(sm.dask, name)(da.from_array(x, chunks=(40, 500)), y, **options))
    x[3:], y[3:] = math.nan, -100
    (value, padded), (_, sizes) = of(x, y), of(x[:3], y[:3])
    assert apart(value, getattr(sm, name)(x[:3], y[:3], **options)) <= 1e-14
    assert max(padded) <= max(sizes) + 500  # which rows count


def test_the_same_call_has_the_same_keys() -> None:
    x = da.from_array(normal(3, 10, seed=1), chunks=3)
    for name in ("logsumexp", "softmax", "entmax15"):
        assert getattr(sm.dask, name)(x).name == getattr(sm.dask, name)(x).name
    assert sm.dask.entmax(x, alpha=1.3).name != sm.dask.entmax(x, alpha=1.4).name
    assert sm.dask.softmax(x, 0).name != sm.dask.softmax(x, 1).name


def test_a_loss_or_map_of_a_registered_name_is_another() -> None:
    x, labels = da.from_array(normal(5, 9, seed=1), chunks=(5, 3)), np.arange(5)
    named = replace(LOSSES["cross_entropy"], row_form=LOSSES["sparsemax_loss"].row_form)
    both = dask.compute(sm.dask.chunked_loss(named, x, labels), sm.dask.cross_entropy(x, labels))
    alone = [lazy.compute() for lazy in (sm.dask.chunked_loss(named, x, labels), sm.dask.cross_entropy(x, labels))]
    assert list(both) == alone
    assert alone[0] == pytest.approx(sm.sparsemax_loss(x.compute(), labels))
    mapped = replace(MAPS["softmax"], blocks=MAPS["sparsemax"].blocks)
    assert sm.dask.chunked_map(mapped, x).name != sm.dask.softmax(x).name
    for own, what in ((named, "loss"), (mapped, "map")):
        with pytest.raises(pickle.PicklingError, match=f"only a registered {what} can be pickled"):
            pickle.dumps(own)


def test_a_chunk_takes_the_thread_that_dask_gave_it() -> None:
    seen: set[int] = set()

    def forward(z: torch.Tensor) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return z.softmax(-1)

    own = replace(MAPS["sparsemax"], name="counts_threads", forward=forward, blocks=thresholded(forward))
    outside: list[int] = []

    def work() -> None:
        before = torch.get_num_threads()
        sm.dask.chunked_map(own, da.zeros((2, 4), chunks=2)).compute(scheduler="synchronous")
        outside.extend((before, torch.get_num_threads()))

    torch.set_num_threads(before := torch.get_num_threads())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == {1}
    assert outside == [before, before]


def test_threads_processes_and_a_cluster_agree_to_the_last_bit() -> None:
    distributed = pytest.importorskip("distributed")
    x = da.from_array(normal(6, 500, seed=1), chunks=(3, 64))
    wanted = {name: getattr(sm.dask, name)(x) for name in ("logsumexp", "softmax", "sparsemax", "topk_softmax")}
    expected = dask.compute(wanted)[0]
    results = [dask.compute(wanted, scheduler="threads", num_workers=3)[0]]
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        results.append(client.compute(wanted, sync=True))
    for found in results:
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
            assert apart(value, getattr(sm, name)(x.compute())) <= 1e-13


@pytest.mark.exhaustive
def test_processes_agree_to_the_last_bit() -> None:
    x = da.from_array(normal(6, 500, seed=1), chunks=(3, 64))
    wanted = {name: getattr(sm.dask, name)(x) for name in ("logsumexp", "entmax15", "topk_softmax")}
    for found, expected in zip(
        dask.compute(wanted, scheduler="processes", num_workers=2)[0].values(), dask.compute(wanted)[0].values(), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


# What is refused -----------------------------------------------------------------------------------------------------------------

D = sm.dask
X = da.zeros((4, 6), chunks=(2, 3))
LABELS = np.array([0, 1, 2, 5])


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: D.softmax(np.zeros(3)), TypeError, "must be a dask.array.Array, got ndarray; call dask.array"),
        (lambda: D.softmax(X[X[:, 0] > 0]), ValueError, r"must be of known sizes, got shape \(nan, 6"),
        (lambda: D.softmax(X.astype(complex)), TypeError, r"softmax: scores must be float64, .* got torch.complex128"),
        (lambda: D.softmax(da.ma.masked_equal(X, 1)), TypeError, "the chunks of scores must be NumPy arrays, got MaskedArray"),
        (lambda: D.softmax(X, 2), IndexError, r"softmax: dim must be in \[-2, 1\]"),
        (lambda: D.softmax(X, temperature=-1.0), ValueError, "softmax: temperature must be positive"),
        (lambda: D.softmax(X, temperature=np.ones(6)), ValueError, "softmax: temperature must broadcast against scores"),
        (lambda: D.softmax(X, temperature=da.ones(6)), ValueError, "softmax: temperature must broadcast against scores"),
        (lambda: D.softmax(X, where=da.ones((4, 6))), TypeError, "softmax: where must be boolean"),
        (lambda: D.softmax(X, where=np.ones(6)), TypeError, r"where must be boolean, got float64; call where.astype\(bool\)"),
        (lambda: D.softmax(X, where=[True] * 6), TypeError, r"where must be .*, got a list; call numpy.asarray\(where\)"),
        (lambda: D.cross_entropy(X, [0, 1, 2, 3]), TypeError, r"target must be .* got a list; call numpy.asarray\(target\)"),
        (lambda: D.cross_entropy(X, LABELS > 1), TypeError, r"target must be .*, got bool; call target.astype\(int\)"),
        (lambda: D.arcface(X, LABELS), ValueError, "dask.arcface: a loss of cosines has no form in parts; take sm.arcface"),
        (lambda: D.perturb_max(X), ValueError, "perturb_max: .* on parts; take sm.perturb_max of whole rows, as of x.compute"),
        (lambda: D.softmax(X, where=torch.ones(6) > 0), TypeError, r"a NumPy or a Dask array, got a tensor"),
        (lambda: D.entmax(X, alpha=-0.5), ValueError, "entmax: alpha must be positive"),
        (lambda: D.entmax(X, beta=0.5), TypeError, "unknown argument 'beta'"),
        (lambda: D.topk_softmax(X, k=0), ValueError, "topk_softmax: k must be"),
        (lambda: D.softmax(X, split_every=1), ValueError, "softmax: split_every must be an int of at least 2, got 1"),
        (lambda: D.softmax(X, split_every={1: 1}), ValueError, r"softmax: split_every\[1\] must be an int of at least 2, got 1"),
        (lambda: D.logsumexp(X, split_every={1: 0}), ValueError, r"sumexp: split_every\[1\] must be an int of at least 2, got 0"),
        (lambda: D.softmax(X, split_every={1: 2.5}), TypeError, r"softmax: split_every\[1\] must be an int of at least 2, got 2.5"),
        (lambda: D.cross_entropy(X, LABELS, split_every={1: "a"}), TypeError, r"split_every\[1\] must be .*, got the string 'a'"),
        (lambda: D.softmax(X, split_every={2: 2}), ValueError, r"each key of split_every must be an axis .* \[-2, 1\], got 2"),
        (lambda: D.softmax(X, split_every={"a": 2}), TypeError, "each key of split_every must be an axis .*, got the string 'a'"),
        (lambda: D.softmax(X, split_every="a"), TypeError, "split_every must be an int of at least 2, got the string 'a'"),
        (lambda: D.softmin(np.zeros(3)), TypeError, "dask.softmin: scores must be a dask.array.Array, got ndarray"),
        (lambda: D.softmin(X.astype(complex)), TypeError, "dask.softmin: scores must be float64"),
        (lambda: D.cross_entropy(X, LABELS, weight=torch.ones(6, device="meta")), ValueError, "weight must hold values, got"),
        (lambda: D.softmin(X, 2), IndexError, r"dask.softmin: dim must be in \[-2, 1\]"),
        (lambda: D.softmox(X), AttributeError, "no attribute 'softmox'"),
        (lambda: D.logsumexp(X.astype(complex)), TypeError, "logsumexp: scores must be real"),
        (lambda: D.logsumexp(X, (0, 0)), ValueError, "logsumexp: dim must name each axis once"),
        (lambda: D.cross_entropy(X, LABELS[:3]), ValueError, r"target must hold class indices of shape \(4,\)"),
        (lambda: D.cross_entropy(X, LABELS, reduction="all"), ValueError, "cross_entropy: reduction must be one of mean"),
        (lambda: D.cross_entropy(X, LABELS, np.ones(5)), ValueError, "number for each of the 6 classes"),
        (lambda: D.cross_entropy(X, LABELS, da.ones(5)), ValueError, "number for each of the 6 classes"),
        (lambda: D.cross_entropy(X, LABELS, torch.ones(6, dtype=torch.int64)), ValueError, "floating-point number for each"),
        (lambda: D.chunked_loss("no", X, LABELS), ValueError, "dask.chunked_loss: unknown loss 'no'"),
        (lambda: D.entmax_loss(X, LABELS, alpha=-0.5), ValueError, "alpha must be positive"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_once(call: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize(
    ("lazy", "kind", "words"),
    [
        (lambda: D.softmax(X, temperature=da.zeros((4, 1))), ValueError, "dask.softmax: temperature must be positive"),
        (lambda: D.softmin(X, temperature=da.zeros((4, 1))), ValueError, "dask.softmin: temperature must be positive"),
        (lambda: D.logsumexp(X, temperature=da.zeros((4, 1))), ValueError, "dask.logsumexp: temperature must be positive"),
        (lambda: D.entmax(X, alpha=da.zeros((4, 1))), ValueError, "entmax: alpha must be positive"),
        (lambda: D.cross_entropy(X, LABELS + 1), IndexError, "cross_entropy: target 6 is out of range for 6 classes"),
        (lambda: D.cross_entropy(X, LABELS, da.arange(-1.0, 5.0, chunks=3)), ValueError, "got -1.0 for class 0"),
        (lambda: D.cross_entropy(X, LABELS, -da.arange(6.0, chunks=3) * (da.arange(6, chunks=3) > 3)), ValueError, "for class 4"),
        (lambda: D.sparsemax_loss(X, da.ones((4, 6))), ValueError, "each row of target probabilities must sum to 1"),
    ],
)  # fmt: skip
def test_values_that_are_refused_are_told_when_they_are_read(lazy: Any, kind: Any, words: str) -> None:
    array = lazy()
    with pytest.raises(kind, match=words):
        array.compute()


@pytest.mark.parametrize(
    ("setting", "kind", "words"),
    [
        ({1: 1}, ValueError, r"softmax: Dask's setting split_every\[1\] must be an int of at least 2, got 1"),
        (0, ValueError, "softmax: Dask's setting split_every must be an int of at least 2, got 0"),
        ("a", TypeError, "setting split_every must be an int of at least 2, got the string 'a'"),
    ],
)
def test_a_setting_of_dask_that_is_refused_is_told_at_once(setting: Any, kind: Any, words: str) -> None:
    with dask.config.set(split_every=setting), pytest.raises(kind, match=words):
        D.softmax(X)


def test_states_are_merged_as_many_at_a_time_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    x, merges = normal(3, 4, 27, seed=1), []
    lazy, flat = da.from_array(x, chunks=(3, 2, 1)), chunk_room._flat
    monkeypatch.setattr(chunk_room, "_flat", lambda summaries: merges.append(len(list(flat(summaries)))) or flat(summaries))
    for split_every, dim, most in ((3, 2, 3), ({2: 3}, 2, 3), ({-1: 3}, 2, 3), ({1: 2, -1: 9, 0: 5}, (1, 2), 18), (None, 2, 27)):
        merges.clear()
        assert apart(sm.dask.logsumexp(lazy, dim, split_every=split_every).compute(), sm.logsumexp(x, dim)) <= 4e-16
        assert max(merges) == most
        merges.clear()
        with dask.config.set(split_every=split_every):
            assert apart(sm.dask.logsumexp(lazy, dim).compute(), sm.logsumexp(x, dim)) <= 4e-16
        assert max(merges) == most
    rows = da.from_array(normal(27, 4, seed=2), chunks=(1, 4))
    few, many = (
        len(sm.dask.cross_entropy(rows, np.zeros(27, np.int64), reduction="sum", split_every=number).dask) for number in (27, 2)
    )
    assert few < many


def test_without_dask_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    room, found = sm.dask, importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "dask" else found(name, *of))
    with pytest.raises(ImportError, match=r'^sm.dask needs Dask, which is not installed: pip install "softmaxima\[dask\]"$'):
        importlib.reload(room)


def test_what_masked_arrays_are_advised_leaves_out_what_is_masked() -> None:
    x, y = np.random.default_rng(0).normal(size=(4, 6)), np.array([0, 1, 2, 3])
    mask, labels = x > 1, da.from_array(np.ma.masked_array(y, y == 2), chunks=2)
    scores = da.from_array(np.ma.masked_array(x, mask), chunks=(2, 3))
    known = {"dask": dask, "numpy": np, "scores": scores, "target": labels}
    of_scores: Callable[[Any], Any] = lambda scores: sm.dask.cross_entropy(scores, np.array([0, 1, 3, 3]))
    of_labels: Callable[[Any], Any] = lambda target: sm.dask.cross_entropy(da.from_array(x, chunks=(2, 3)), target)
    for call, given, right in (
        (sm.dask.softmax, scores, sm.softmax(np.where(mask, -np.inf, x))),
        (sm.dask.logsumexp, scores, sm.logsumexp(np.where(mask, -np.inf, x))),
        (of_scores, scores, sm.cross_entropy(np.where(mask, -np.inf, x), np.array([0, 1, 3, 3]))),
        (of_labels, labels, sm.cross_entropy(x, np.where(y == 2, -100, y))),
    ):
        with pytest.raises(TypeError, match=r"got MaskedArray; call dask\.array\.ma\.filled") as raised:
            call(given)
        advised = str(raised.value).partition("call ")[2].partition("), which")[0] + ")"
        np.testing.assert_allclose(call(eval(advised, known)), right, rtol=1e-14)
