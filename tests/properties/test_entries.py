"""Every map, loss and sum through every way in: they give the values and gradients of a plain eager call."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import softmaxima as sm
from conftest import LossCase, cases, normal
from softmaxima.kernels import devices, native, operations
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY

ROWS, CLASSES = 4, 5
LABELS = torch.tensor([0, 4, -100, 2])
Function = Callable[[Tensor, Tensor], Tensor]


def finite(p: Tensor) -> Tensor:
    """log p with 0 for −∞, where no gradient flows."""
    return p.masked_fill(p == -torch.inf, 0.0)


def functions() -> dict[str, Function]:
    """Functions of scores [ROWS, CLASSES] and labels [ROWS]."""
    found: dict[str, Function] = {}
    allowed = torch.tensor([[True], [False], [True], [True]])
    for map in REGISTRY.values():
        for case in cases(map):
            found[str(case)] = lambda x, _, case=case: case(x)
        found[f"{map.name} at its scores' temperature"] = lambda x, _, case=case: case(x, temperature=x[:, :1].exp())
        found[f"{map.name} along 0, masked"] = lambda x, _, case=case: finite(case(x, 0, where=allowed))
        for name, value in ((parameter.name, case.params[parameter.name]) for parameter in map.params if parameter.gradient):
            found[f"{map.name} of its scores' {name}"] = lambda x, _, case=case, name=name, value=value: case.map(
                x, **{name: value + 0.01 * x[:, :1].square()}
            )
    weight = torch.linspace(0.5, 2.0, CLASSES, dtype=torch.float64)
    weighed = {"weight": weight, "label_smoothing": 0.1}
    soft = torch.softmax(normal(ROWS, CLASSES, seed=4), -1)
    for loss in LOSSES.values():
        bounded = torch.tanh if loss.on_cosines else lambda x: x
        for options in loss.examples:
            of = lambda x, target, loss=loss, options=options, bounded=bounded, **more: loss.function(
                bounded(x), target, **options, **more
            )
            found[str(LossCase(loss, options))] = of
        found[f"{loss.name} with every option"] = partial(of, **weighed, reduction="none")
        if loss.map in ("softmax", "entmax"):  # losses by a kernel take other ways
            found[f"{loss.name} with weights"] = partial(of, **weighed)
            found[f"{loss.name}, summed"] = partial(of, reduction="sum")
            found[f"{loss.name}, but of class 4"] = lambda x, labels, of=of: of(x, labels.clamp_min(0), ignore_index=4)
            found[f"{loss.name} of nothing"] = lambda x, labels, of=of: of(x, labels.clamp(-100, -100), reduction="sum")
            found[f"{loss.name} of probabilities"] = lambda x, _, of=of: of(x, soft, weight=weight)
            found[f"{loss.name} of pixels"] = lambda x, labels, of=of: of(x.T.unsqueeze(0), labels.unsqueeze(0), weight=weight)
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    sums: dict[str, Callable[[Tensor], Tensor]] = {
        "logsumexp": sm.logsumexp,
        "logsumexp along 0": partial(sm.logsumexp, dim=0),
        "logsumexp along both": partial(sm.logsumexp, dim=(0, 1), temperature=0.7, where=allowed),
        "logsumexp at its scores' temperature": lambda x: sm.logsumexp(x, temperature=x[:, :1].exp()),
        "weighted logsumexp": partial(sm.logsumexp, weights=weights),
        "compensated logsumexp": partial(sm.logsumexp, precision="compensated"),
        "complex logsumexp": lambda x: sm.logsumexp(torch.complex(x, x)).real,
        "logcumsumexp": partial(sm.logcumsumexp, dim=0),
        "complex logcumsumexp": lambda x: sm.logcumsumexp(torch.complex(x, x)).real,
        "log_mean_exp": sm.log_mean_exp,
        "logaddexp": lambda x: sm.logaddexp(x, x.flip(-1)),
        "logmatmulexp": lambda x: sm.logmatmulexp(x, x.T),
        "log1mexp": lambda x: sm.log1mexp(-x.abs()),
        "real_softmax": sm.real_softmax,
        "real_softmin": sm.real_softmin,
        "softplus": sm.softplus,
        "softmin": sm.softmin,
        "matrix_logsumexp": lambda x: sm.matrix_logsumexp(x.T @ x),
        "sequence_logsumexp": lambda x: sm.sequence_logsumexp(x[0]),
    }
    return found | {name: lambda x, _, function=function: function(x) for name, function in sums.items()}


FUNCTIONS = functions()
FEW = {name: function for name, function in FUNCTIONS.items() if "(" not in name}  # every map, loss and sum, with its options
FEWER = {
    name: FEW[name]
    for name in (
        "softmax at its scores' temperature",
        "entmax of its scores' alpha",
        "proportional along 0, masked",
        "cross_entropy of pixels",
        "entmax_loss with every option",
        "surrogate_loss with every option",
        "arcface with every option",
        "logsumexp along both",
        "log_mean_exp",
        "logaddexp",
    )
}
SCORES = normal(len(FUNCTIONS), ROWS, CLASSES, seed=1, scale=1.5)
OTHER_SCORES = normal(len(FUNCTIONS), ROWS, CLASSES, seed=2, scale=1.5)


def every(scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Each function of scores of its own, so that a gradient tells whose it is."""
    return Every(FUNCTIONS)(scores, labels)


class Every(torch.nn.Module):
    def __init__(self, functions: dict[str, Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(x, labels) for function, x in zip(self.functions.values(), scores.unbind(), strict=True))


def through_export(way: Any, *example: Tensor) -> Callable[..., Any]:
    file = io.BytesIO()
    torch.export.save(torch.export.export(way, example), file)
    file.seek(0)
    return torch.export.load(file).module()


def through_trace(way: Any, *example: Tensor) -> Callable[..., Any]:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(way, example, check_trace=False), file)
    file.seek(0)
    return torch.jit.load(file)


def in_thread(way: Any, *_: Tensor) -> Callable[..., Any]:
    def call(*arguments: Tensor) -> Any:
        results: list[Any] = []
        threads = [threading.Thread(target=lambda: results.append(way(*arguments))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results[1]

    return call


def batched(way: Any, *_: Tensor) -> Callable[..., Any]:
    each = torch.func.vmap(way)
    return lambda *arguments: tuple(y[1] for y in each(*(torch.stack((a.flip(0), a)) for a in arguments)))


def as_graph(mode: str, way: Any, *example: Tensor) -> Callable[..., Any]:
    return make_fx(lambda scores, labels: way(scores, labels), tracing_mode=mode, _allow_non_fake_inputs=True)(*example)


compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")
# From a function and examples of its arguments.
WAYS: dict[str, Callable[..., Callable[..., Any]]] = {
    "compiled": lambda way, *_: compiled(way),
    "compiled for every size": lambda way, *_: compiled(way, dynamic=True),
    "exported, saved and loaded": through_export,
    "traced, saved and loaded": through_trace,
    "as a graph": partial(as_graph, "real"),
    "as a symbolic graph": partial(as_graph, "symbolic"),
    "checkpointed": lambda way, *_: partial(checkpoint, way, use_reentrant=False),
    "checkpointed by reentry": lambda way, *_: partial(checkpoint, way, use_reentrant=True),
    "batched": batched,
    "in a thread": in_thread,
}
# What each way is tried with in every run, and in an exhaustive one.
SLOW = {
    "compiled": (FEWER, FUNCTIONS),
    "compiled for every size": ({}, FEW),
    "as a graph": (FEW, FUNCTIONS),
    "as a symbolic graph": (FEWER, FEW),
    "exported, saved and loaded": (FEWER, FEW),
}
TRIES = [pytest.param(way, some, id=way) for way in WAYS if (some := SLOW.get(way, [FUNCTIONS])[0])] + [
    pytest.param(way, functions, id=f"{way}, all", marks=pytest.mark.exhaustive) for way, (_, functions) in SLOW.items()
]


def assert_equal_to_eager(way: Callable[..., Any], functions: dict[str, Function] = FUNCTIONS) -> None:
    scores, expected_scores = (OTHER_SCORES[: len(functions)].clone().requires_grad_() for _ in range(2))
    actual, expected = way(scores, LABELS), Every(functions)(expected_scores, LABELS)
    upstream = [normal(1, *y.shape, seed=3)[0] for y in expected]
    torch.autograd.backward(actual, upstream)
    torch.autograd.backward(expected, upstream)
    for name, a, e, g, h in zip(functions, actual, expected, scores.grad, expected_scores.grad, strict=True):
        torch.testing.assert_close(a, e, msg=lambda text, name=name: f"{name}: {text}")
        torch.testing.assert_close(g, h, msg=lambda text, name=name: f"the gradient of {name}: {text}")


@pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning")
@pytest.mark.parametrize(("way", "functions"), TRIES)
def test_every_way_gives_what_an_eager_call_does(way: str, functions: dict[str, Function]):
    torch._dynamo.reset()
    assert_equal_to_eager(WAYS[way](Every(functions), SCORES[: len(functions)], LABELS), functions)


def test_the_general_path_gives_what_the_fast_path_does():
    assert_equal_to_eager(lambda scores, labels: every(scores.unsqueeze(-1).expand(*scores.shape, 2)[..., 0], labels))


def test_torch_alone_gives_what_the_kernels_do(monkeypatch: pytest.MonkeyPatch):
    scores = SCORES.clone().requires_grad_()
    with_kernels = every(scores, LABELS)
    upstream = [normal(1, *y.shape, seed=3)[0] for y in with_kernels]
    expected = torch.autograd.grad(with_kernels, scores, upstream)[0]
    for module in (devices, operations):
        monkeypatch.setattr(module, "library", lambda device_type: None)
    monkeypatch.setattr(native, "AVAILABLE", False)
    without = every(scores, LABELS)
    for name, a, e in zip(FUNCTIONS, without, with_kernels, strict=True):
        torch.testing.assert_close(a, e, msg=lambda text, name=name: f"{name}: {text}")
    for name, g, h in zip(FUNCTIONS, torch.autograd.grad(without, scores, upstream)[0], expected, strict=True):
        torch.testing.assert_close(g, h, msg=lambda text, name=name: f"the gradient of {name}: {text}")


def test_slopes_whose_sign_torch_has_put_off_are_read_with_it():
    scores = SCORES.clone().requires_grad_()
    values = every(scores, LABELS)
    upstream = [normal(1, *y.shape, seed=3)[0] for y in values]
    expected = torch.autograd.grad(values, scores, upstream, retain_graph=True)[0]
    actual = torch.autograd.grad(values, scores, [torch._neg_view(-g) for g in upstream])[0]
    for name, g, h in zip(FUNCTIONS, actual, expected, strict=True):
        torch.testing.assert_close(g, h, rtol=0, atol=0, msg=lambda text, name=name: f"the gradient of {name}: {text}")


def test_tensors_without_memory_have_a_shape_and_a_dtype(dtype: torch.dtype):
    x, labels = torch.zeros(2, 3, dtype=dtype, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta")
    for y in (
        sm.softmax(x),
        sm.sparsemax(x),
        sm.logsumexp(x, -1, keepdim=True).expand(2, 3),
        sm.cross_entropy(x, labels).expand(2, 3),
    ):
        assert (y.shape, y.dtype, y.device) == (x.shape, dtype, x.device)


def test_under_autocast_half_precision_gives_what_float32_does():
    for name, function in FUNCTIONS.items():
        if re.search("scores'|softmax_loss|cosface|arcface|complex|matrix", name):
            continue  # which compute something of the scores beforehand
        half = SCORES[0].bfloat16().requires_grad_()
        single = half.detach().float().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = function(half, LABELS)
        expected = function(single, LABELS)
        assert actual.dtype == expected.dtype, name
        torch.testing.assert_close(actual, expected, msg=lambda text, name=name: f"{name}: {text}")
        gradients = (torch.autograd.grad(y.sum(), x)[0] for y, x in ((actual, half), (expected, single)))
        torch.testing.assert_close(*gradients, check_dtype=False, rtol=1e-2, atol=1e-2)


LOADING = """
import sys, torch, softmaxima.losses, softmaxima.lse
scores, labels = torch.load(sys.argv[2])
torch.save(torch.export.load(sys.argv[1]).module()(scores, labels), sys.argv[2])
"""


@pytest.mark.exhaustive
def test_another_process_loads_what_was_saved(tmp_path):
    graph, values = tmp_path / "graph.pt2", tmp_path / "values.pt"
    way, scores = Every(FEWER), SCORES[: len(FEWER)]
    torch.export.save(torch.export.export(way, (scores, LABELS)), graph)
    torch.save((scores, LABELS), values)
    subprocess.run([sys.executable, "-c", LOADING, graph, values], check=True, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    for name, a, e in zip(FEWER, torch.load(values), way(scores, LABELS), strict=True):
        torch.testing.assert_close(a, e, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("function", [sm.sparsemax, sm.logsumexp, lambda x: sm.cross_entropy(x, LABELS), sm.log_mean_exp])
def test_a_graph_refuses_forward_mode_rather_than_drop_tangents(function: Callable[[Tensor], Tensor]):
    graph = make_fx(lambda x: function(x))(SCORES[0])
    with pytest.raises(NotImplementedError, match="an operation in a recorded graph has no forward mode"):
        torch.func.jvp(graph, (SCORES[0],), (OTHER_SCORES[0],))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward mode"):
        graph(torch.autograd.forward_ad.make_dual(SCORES[0], OTHER_SCORES[0]))


def test_forward_mode_gives_the_product_with_the_gradient():
    tangents = normal(*SCORES.shape, seed=4)
    scores = SCORES.clone().requires_grad_()
    values = every(scores, LABELS)
    upstream = [normal(1, *y.shape, seed=3)[0] for y in values]
    gradients = torch.autograd.grad(values, scores, upstream)[0]
    primals, pushed = torch.func.jvp(lambda scores: every(scores, LABELS), (SCORES,), (tangents,))
    for name, primal, value, p, u, g, t in zip(FUNCTIONS, primals, values, pushed, upstream, gradients, tangents, strict=True):
        torch.testing.assert_close(primal, value, msg=lambda text, name=name: f"{name}: {text}")
        torch.testing.assert_close((p * u).sum(), (g * t).sum(), msg=lambda text, name=name: f"the tangent of {name}: {text}")


def test_meta_and_fake_tensors_have_the_shapes_of_results():
    for name, function in FUNCTIONS.items():
        if any(word in name for word in ("masked", "both", "weight", "option", "probabilities", "pixels")):
            continue  # tensors with memory of their own
        expected, actual = function(SCORES[0], LABELS), function(SCORES[0].to("meta"), LABELS.to("meta"))
        assert (actual.shape, actual.dtype, actual.is_meta) == (expected.shape, expected.dtype, True), name
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        results = every(mode.from_tensor(SCORES), mode.from_tensor(LABELS))
    assert [y.shape for y in results] == [y.shape for y in every(SCORES, LABELS)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gives_the_same():
    expected = torch.cat([y.flatten() for y in every(SCORES, LABELS)]).numpy()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            signal.alarm(60)  # rather than to wait for ever
            torch.set_num_threads(1)  # as torch's own workers do: no thread lives on in a forked process
            os.write(write, torch.cat([y.flatten() for y in every(SCORES, LABELS)]).numpy().tobytes())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        actual = np.frombuffer(pipe.read())
    os.waitpid(child, 0)
    np.testing.assert_array_equal(actual, expected)


def test_data_parallel_training_gives_the_same(tmp_path):
    class Learning(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = torch.nn.Parameter(OTHER_SCORES.clone())

        def forward(self, labels: Tensor) -> tuple[Tensor, ...]:
            return every(self.scores, labels)

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(Learning())
        sum(y.sum() for y in model(LABELS)).backward()
        alone = OTHER_SCORES.clone().requires_grad_()
        sum(y.sum() for y in every(alone, LABELS)).backward()
        torch.testing.assert_close(model.module.scores.grad, alone.grad)
    finally:
        torch.distributed.destroy_process_group()


NOT_IN_ONNX = {
    "complex logsumexp": "complex numbers",
    "complex logcumsumexp": "complex numbers",
    "compensated logsumexp": "compensated sums; take precision='native'",
    "matrix_logsumexp": "eigenvalues",
    **{name: "solver of its regulariser" for name in FUNCTIONS if name.startswith("perturb_max_loss")},
}
IN_ONNX = {name: function for name, function in FUNCTIONS.items() if name not in NOT_IN_ONNX}


ONE_OF_EACH = re.compile("masked$|every option$|^[^( ]*$|^weighted|both$")  # map, loss and sum
MOST_IN_ONNX = {name: f for name, f in IN_ONNX.items() if ONE_OF_EACH.search(name)}  # by export each takes a second


def to_onnx(functions: dict[str, Function], scores: Tensor, *, dynamo: bool) -> bytes:
    file = io.BytesIO()
    options = {"input_names": ["scores", "labels"], "opset_version": 18}
    if not dynamo:
        torch.onnx.export(Every(functions), (scores, LABELS), file, dynamo=False, **options)
    else:
        program = torch.onnx.export(Every(functions), (scores, LABELS), dynamo=True, verbose=False, **options)
        file.write(program.model_proto.SerializeToString())
    return file.getvalue()


@pytest.mark.filterwarnings("ignore")  # the exporters warn of themselves
@pytest.mark.parametrize(
    ("dynamo", "functions"),
    [
        pytest.param(False, FEWER, id="by trace"),
        pytest.param(True, {name: FEWER[name] for name in ("logsumexp along both", "cross_entropy of pixels")}, id="by export"),
        pytest.param(False, IN_ONNX, id="by trace, all", marks=pytest.mark.exhaustive),
        pytest.param(True, MOST_IN_ONNX, id="by export, all", marks=pytest.mark.exhaustive),
    ],
)
def test_exported_to_onnx_it_gives_what_an_eager_call_does(dynamo: bool, functions: dict[str, Function]):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    scores = OTHER_SCORES[: len(functions)].float()
    model = to_onnx(functions, scores, dynamo=dynamo)
    assert {node.domain for node in onnx.load_from_string(model).graph.node} <= {""}  # standard operators
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    actual = session.run(None, {"scores": scores.numpy(), "labels": LABELS.numpy()})
    for (name, function), x, y in zip(functions.items(), scores, actual, strict=True):
        expected = function(x, LABELS)
        torch.testing.assert_close(
            torch.from_numpy(y), expected, atol=1e-6, rtol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.filterwarnings("ignore")  # the exporters warn of themselves
@pytest.mark.parametrize("dynamo", [False, True], ids=["by trace", "by export"])
@pytest.mark.parametrize(("name", "lacking"), NOT_IN_ONNX.items())
def test_what_onnx_cannot_express_is_refused(name: str, lacking: str, dynamo: bool):
    with pytest.raises(Exception, match=f"cannot be exported to ONNX, which has no {lacking}"):
        to_onnx({name: FUNCTIONS[name]}, SCORES[:1], dynamo=dynamo)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_traced_map_takes_another_batch_and_differentiates_twice(name: str):
    map = REGISTRY[name]
    traced = torch.jit.trace(lambda x: map(x), normal(2, CLASSES), check_trace=False)
    x = normal(7, CLASSES, seed=5)
    torch.testing.assert_close(traced(x), map(x))
    row = normal(CLASSES, seed=6)
    second = lambda f: torch.autograd.functional.hessian(lambda x: finite(f(x.unsqueeze(0))).square().sum(), row)
    torch.testing.assert_close(second(traced), second(map))
