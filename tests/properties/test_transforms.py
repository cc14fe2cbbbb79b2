"""torch.func, torch.compile, autocast, and the derivatives by name, over every map."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jacfwd, jacrev, jvp, vmap

import softmaxima as sm
from conftest import Case, LossCase, exhaustively, normal
from softmaxima.kernels import native
from softmaxima.maps import REGISTRY as MAPS


@pytest.mark.gpu
def test_vmap_equals_a_loop(case: Case):
    x = normal(3, 4, 5)
    looped = torch.stack([case(row) for row in x])
    torch.testing.assert_close(vmap(case)(x), looped)
    torch.testing.assert_close(vmap(vmap(case))(x), looped)
    torch.testing.assert_close(vmap(lambda row: case(row, dim=0), in_dims=2, out_dims=2)(x), torch.stack(
        [case(x[..., i], dim=0) for i in range(5)], -1
    ))  # fmt: skip


@pytest.mark.gpu
def test_derivatives_under_vmap_equal_a_loop(case: Case):
    x = normal(3, 5)
    each = torch.stack([sm.jacobian(case.map, row, **case.params) for row in x])
    close = partial(torch.testing.assert_close, atol=1e-12, rtol=1e-10)
    close(vmap(grad(lambda row: case(row)[0]))(x), each[:, 0])
    close(vmap(jacrev(case))(x), each)
    close(vmap(jacfwd(case))(x), each)
    close(jacrev(vmap(case))(x).diagonal(dim1=0, dim2=2).movedim(-1, 0), each)


@pytest.mark.gpu
def test_derivatives_by_parameters_under_vmap_equal_a_loop(case: Case):
    x = normal(3, 5)
    for parameter in case.map.params:
        if parameter.gradient is None:
            continue
        of = lambda row, value, name=parameter.name: case.map(row, **case.params | {name: value})[0]
        value = torch.tensor(case.params[parameter.name], dtype=torch.float64)
        each = torch.stack([grad(of, 1)(row, value) for row in x])
        torch.testing.assert_close(vmap(grad(of, 1), (0, None))(x, value), each)


@pytest.mark.parametrize("map", [name for name, map in MAPS.items() if not map.properties.logarithmic])
def test_attention_under_vmap_of_a_gradient_equals_a_loop(map: str):
    q, k, v = normal(3, 2, 4), normal(3, 5, 4, seed=1), normal(3, 5, 2, seed=2)
    slope = grad(lambda q, k, v: sm.attention(q, k, v, map=map).square().sum())
    torch.testing.assert_close(vmap(slope)(q, k, v), torch.stack([slope(*each) for each in zip(q, k, v, strict=True)]))


@pytest.mark.gpu
def test_vmap_over_temperature_and_mask(case: Case):
    x = normal(4, 5)
    tau = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    where = normal(4, 5, seed=3) > -1
    each = [case(x[i], temperature=tau[i], where=where[i]) for i in range(4)]
    batched = vmap(lambda row, t, w: case(row, temperature=t, where=w))(x, tau, where)
    torch.testing.assert_close(batched, torch.stack(each))
    one_row = vmap(lambda t: case(x[0], temperature=t))(tau)
    torch.testing.assert_close(one_row, torch.stack([case(x[0], temperature=t) for t in tau]))


@pytest.mark.gpu
def test_jacobians_agree_however_they_are_taken(case: Case):
    x = normal(6)
    named = sm.jacobian(case.map, x, **case.params)
    for take in (jacrev, jacfwd):
        torch.testing.assert_close(take(case)(x), named, atol=1e-12, rtol=1e-10)


@pytest.mark.gpu
def test_second_derivatives_agree_however_they_are_taken(case: Case):
    x = normal(5)
    expected = jacrev(jacrev(case))(x)
    for outer in (jacrev, jacfwd):
        for inner in (jacrev, jacfwd):
            torch.testing.assert_close(outer(inner(case))(x), expected, atol=1e-11, rtol=1e-9)


@pytest.mark.gpu
def test_second_derivatives_of_temperature_agree_however_they_are_taken(case: Case):
    x, tau = normal(5), torch.tensor(1.5, dtype=torch.float64)
    function = lambda tau: case(x, temperature=tau)
    expected = jacrev(jacrev(function))(tau)
    for outer in (jacrev, jacfwd):
        for inner in (jacrev, jacfwd):
            torch.testing.assert_close(outer(inner(function))(tau), expected, atol=1e-11, rtol=1e-9)


@pytest.mark.gpu
def test_named_jacobian_takes_dim_mask_and_temperature(case: Case):
    x, where = normal(4, 3), torch.tensor([[True], [True], [False], [True]])
    tau = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
    blocks = sm.jacobian(case.map, x, dim=0, temperature=tau, where=where, **case.params)
    assert blocks.shape == (3, 4, 4)
    for column in range(3):
        alone = jacrev(lambda v, c=column: case(v, where=where[:, 0], temperature=tau[0, c]).nan_to_num(neginf=0))(x[:, column])
        torch.testing.assert_close(blocks[column], alone, atol=1e-12, rtol=1e-10)


@pytest.mark.gpu
def test_half_the_jacobian_norm_of_softmax_is_one_minus_its_purity():
    x = normal(4, 6)
    norm = sm.jacobian("softmax", x).abs().sum((-2, -1)) / 2
    torch.testing.assert_close(norm, 1 - sm.softmax(x).square().sum(-1))


def test_compiled_loss_refuses_labels_out_of_range():
    torch._dynamo.reset()
    compiled = torch.compile(sm.cross_entropy, fullgraph=True, backend="aot_eager")
    for wrong in (5, -1):
        with pytest.raises(IndexError, match=f"cross_entropy: target {wrong} is out of range for 5 classes"):
            compiled(normal(2, 5), torch.tensor([0, wrong]))


@pytest.mark.skipif(not native.AVAILABLE, reason="there is no native library")
def test_compiled_functions_are_registered_operations():
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph.code)
        return graph

    x, labels = normal(4, 5, dtype=torch.float32), torch.tensor([0, 4, 1, 2])
    for function in (sm.logsumexp, lambda x: sm.cross_entropy(x, labels), lambda x: sm.sparsemax_loss(x, labels)):
        torch._dynamo.reset()
        torch.compile(function, fullgraph=True, backend=keep)(x)
    for graph, operation in zip(graphs, ("logsumexp", "loss", "loss"), strict=True):
        assert f"softmaxima.{operation}" in graph


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 2, 0), (0, 2, 3, 1)])
def test_recorders_are_told_how_results_lie(case: Case, axes: tuple[int, ...]):
    for x in (normal(2, 3, 4, 5).permute(axes), normal(2, 3, 4, 10)[..., ::2].permute(axes)):
        with FakeTensorMode() as mode:
            recorded = mode.from_tensor(x)
            found = [case(recorded, dim=dim).stride() for dim in range(x.ndim)]
        assert found == [case(x, dim=dim).stride() for dim in range(x.ndim)]


def test_a_compiled_map_of_another_axis_has_a_view():
    function = lambda x: sm.softmax(x, 1).view(2, -1)
    x = normal(2, 3, 4, dtype=torch.float32)
    torch.testing.assert_close(torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x), rtol=0, atol=0)


@pytest.mark.exhaustive
def test_compiled_by_the_default_backend_equals_eager():
    torch._dynamo.reset()
    x = normal(8, 16, dtype=torch.float32).requires_grad_()
    function = lambda x: sum(map(x).square().sum() for map in (sm.softmax, sm.entmax, sm.topp_softmax))
    compiled = torch.compile(function, fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(function(x), x))


@pytest.mark.parametrize(
    "function", [sm.entmax, *map(exhaustively, (sm.softmax, sm.logsumexp, lambda x: sm.cross_entropy(x, torch.tensor(2))))]
)
def test_transforms_inside_a_compiled_function_are_left_out_of_its_graph(function):
    x, v = normal(5), normal(5, seed=1)
    transforms = (lambda x: grad(lambda x: function(x).square().sum())(x), lambda x: jvp(function, (x,), (v,))[1])
    for transformed in transforms:
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(transformed, backend="aot_eager")(x), transformed(x))
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="is not compiled: leave out fullgraph=True"):
            torch.compile(transformed, backend="aot_eager", fullgraph=True)(x)


@pytest.mark.gpu
def test_under_autocast_half_scores_give_float32_as_torch_does_on_a_gpu(case: Case):
    x = normal(3, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert case(x).dtype == torch.float32
        torch.testing.assert_close(case(x), case(x.float()))
        assert case(x.double()).dtype == torch.float64
    assert case(x).dtype == torch.bfloat16


@pytest.mark.gpu
def test_hessian_vector_product_of_cross_entropy_is_the_covariance():
    x, v, target = normal(6), normal(6, seed=1), torch.tensor(2)
    p = sm.softmax(x)
    product = sm.hessian_vector_product(lambda x: sm.cross_entropy(x, target), x, v)
    torch.testing.assert_close(product, (torch.diag(p) - torch.outer(p, p)) @ v)
    assert isinstance(sm.hessian_vector_product(lambda x: sm.cross_entropy(x, target), x.numpy(), v.numpy()), type(x.numpy()))


@pytest.mark.gpu
def test_hessian_vector_products_agree_with_the_full_hessian(loss: LossCase):
    x, v, target = loss.scores(2, 5), normal(2, 5, seed=1), torch.tensor([3, 1])
    full = torch.autograd.functional.hessian(lambda x: loss(x, target), x)
    product = sm.hessian_vector_product(lambda x: loss(x, target), x, v)
    torch.testing.assert_close(product, torch.einsum("ijkl,kl->ij", full, v), atol=1e-10, rtol=1e-8)


@pytest.mark.gpu
def test_losses_under_vmap_grad_give_per_sample_gradients(loss: LossCase):
    x, target = loss.scores(4, 5), torch.tensor([0, 4, 1, 2])
    each = [grad(lambda row, t=t: loss(row, t))(row) for row, t in zip(x, target, strict=True)]
    torch.testing.assert_close(vmap(grad(lambda row, t: loss(row, t)))(x, target), torch.stack(each))
    forward = jvp(lambda x: loss(x, target), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(forward, grad(lambda x: loss(x, target))(x).sum(), atol=1e-12, rtol=1e-9)
