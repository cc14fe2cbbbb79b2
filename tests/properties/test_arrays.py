"""NumPy in gives NumPy out: the same numbers as torch, no copy on the way in, scalars for 0-d."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import softmaxima as sm
from conftest import Case, LossCase, normal
from softmaxima.base.arguments import as_tensor


@pytest.mark.parametrize("kind", ["float64", "float32", "float16"])
def test_numpy_equals_torch(case: Case, kind: str):
    x = normal(3, 5).numpy().astype(kind)
    where, tau = x > -1, np.array([[0.5], [1.0], [2.0]])
    for options in ({}, {"dim": 0}, {"where": where}, {"temperature": tau}):
        out = case(x, **options)
        tensors = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        assert isinstance(out, np.ndarray)
        assert out.dtype == x.dtype
        np.testing.assert_array_equal(out, case(torch.from_numpy(x), **tensors).numpy())


def test_numpy_layouts_give_the_same(case: Case):
    x = normal(3, 4).numpy()
    expected = case(x)
    np.testing.assert_allclose(case(np.asfortranarray(x)), expected, rtol=1e-14)  # vector and scalar code round differently
    np.testing.assert_allclose(case(x[::-1])[::-1], expected, rtol=1e-14)
    np.testing.assert_array_equal(case(x.astype(">f8")), expected)
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(case(frozen), expected)


def test_learnable_parameter_may_be_numpy(learnable):
    case, parameter = learnable
    x = normal(3, 4).numpy()
    value = np.full((3, 1), float(case.params[parameter.name]))
    np.testing.assert_allclose(case.map(x, **case.params | {parameter.name: value}), case(x), atol=1e-14)


def test_numpy_memory_is_shared_not_copied():
    x = np.zeros((2, 3))
    assert as_tensor("test", "x", x).data_ptr() == x.ctypes.data
    x.flags.writeable = False
    assert as_tensor("test", "x", x).data_ptr() == x.ctypes.data


def test_numpy_scalars_come_out_as_numpy_scalars(loss: LossCase):
    x, target = loss.scores(3, 4).numpy(), np.array([0, 1, 2], dtype=np.int32)
    value = loss(x, target)
    assert isinstance(value, np.float64)
    assert value == float(loss(torch.from_numpy(x), torch.from_numpy(target)))
    rows = loss(x, target, reduction="none")
    assert isinstance(rows, np.ndarray)
    assert isinstance(sm.logsumexp(np.zeros(3)), np.float64)
    assert sm.logsumexp(np.zeros((2, 3), dtype=np.float32)).dtype == np.float32


def test_numpy_numbers_serve_as_parameters():
    x = normal(3, 5)
    torch.testing.assert_close(sm.topk_softmax(x, k=np.int64(2)), sm.topk_softmax(x, k=2))
    torch.testing.assert_close(sm.topp_softmax(x, p=np.float32(0.5)), sm.topp_softmax(x, p=0.5))
    torch.testing.assert_close(sm.taylor_softmax(x, order=np.int32(4)), sm.taylor_softmax(x, order=4))
    torch.testing.assert_close(sm.entmax(x, alpha=np.float32(1.5), temperature=np.int64(2)), sm.entmax15(x, temperature=2))
