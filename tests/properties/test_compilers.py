"""Every public function and module before torch.compile, torch.export, torch.jit.trace and the exporters to ONNX."""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest
import torch
from test_arguments import EXAMPLES, INSTEAD, REQUIRED, arguments, functions, kinds, signature
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_leaves

import softmaxima as sm
from conftest import LossCase, cases, normal
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS

Call = tuple[Callable[..., Any], dict[str, Any], dict[str, float]]  # the function, what it is given, and the numbers that vary

# Functions that no graph holds.
READS_VALUES = {"bounds", "calibrate_scaling", "calibrate_temperature", "reliability"}
NO_VALUE = {"in_parts", "attention_in_parts", "replace_attention"}  # what they return is called later
BY_NUMPY = {"estimate", "scipy_logsumexp", "streaming_logsumexp"}
BY_GRADIENTS = {"rebar", "relax"}  # that they take inside, which compilers leave out of a graph
RANDOM = {
    *(name for name in vars(sm)["_ROOMS"]["sampling"].split() if name[0].islower() and "score" not in name),
    *("median_of_means_logsumexp", "noise_contrastive_loss", "sampled_softmax_loss"),
}


def calls() -> Iterator[tuple[str, Call]]:
    for name, function in functions():
        if not inspect.isfunction(function) or function.__name__ != name:
            continue
        given = arguments(name, function, "")
        if "generator" in given:
            given["generator"] = None
        if "num_segments" in signature(name, function).parameters:
            given["num_segments"] = 2
        numbers = {key: value for key, value in given.items() if isinstance(value, float)}
        for parameter in signature(name, function).parameters.values():
            number, whole, _ = kinds(parameter.annotation)
            value = EXAMPLES.get(parameter.name) if parameter.default is None else parameter.default
            if number and not whole and isinstance(value, float):
                numbers[parameter.name] = value
                given.pop(INSTEAD.get(parameter.name, ""), None)
        yield name, (function, {key: value for key, value in given.items() if key not in numbers}, numbers)
    q, hidden, weight, labels = normal(2, 2, 3, 4), normal(2, 4), normal(5, 4, seed=1), torch.tensor([0, 3])
    for map in MAPS.values():
        numbers = {parameter.name: parameter.default for parameter in map.params if parameter.kind is float}
        if numbers and not map.properties.logarithmic:
            given = {"query": q, "key": q, "value": q, "map": map.name}
            yield f"attention by {map.name}", (sm.attention, given, numbers)
            yield (
                f"segment_map of {map.name}",
                (sm.segment_map, {"map": map.name, "x": q.flatten(0, 1), "index": torch.tensor([0, 0, 1, 1])}, numbers),
            )
    of_layer = lambda alpha, **given: sm.linear_loss(**given, loss=("entmax", alpha))
    yield "linear_loss of entmax", (of_layer, {"hidden": hidden, "weight": weight, "target": labels}, {"alpha": 1.5})


CALLS = dict(calls())
# What each recorder is tried with in every run; an exhaustive one tries all.
DOORS = {
    *("softmax", "logsumexp", "cross_entropy", "attention", "attention by entmax", "attention by perturb_max", "linear_attention"),
    *("linear_loss of entmax", "segment_softmax", "adaptive_logsumexp", "basic_bounds"),
}


def tried(names: Any, always: set[str]) -> list[Any]:
    return [name if name in always else pytest.param(name, marks=pytest.mark.exhaustive) for name in names]


def leaves(result: Any) -> list[Tensor]:
    """The tensors of a result, those of its fields among them."""
    own = lambda leaf: [leaf] if isinstance(leaf, Tensor) else leaves(vars(leaf)) if is_dataclass(leaf) else []
    return [found for leaf in tree_leaves(result) for found in own(leaf)]


@pytest.mark.filterwarnings("ignore:Dynamo")
@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["twice", "dynamic"])
@pytest.mark.parametrize(
    "name", tried((name for name in CALLS if name not in READS_VALUES | BY_NUMPY | BY_GRADIENTS | NO_VALUE), DOORS)
)
def test_numbers_that_vary_break_no_graph(name: str, dynamic: bool | None):
    torch._dynamo.reset()
    function, given, numbers = CALLS[name]
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda numbers: function(**given, **numbers), fullgraph=True, backend=counter, dynamic=dynamic)
    for step in range(2):
        now = {key: value * (1 + step / 64) if value else step / 64 for key, value in numbers.items()}
        found, expected = leaves(compiled(now)), leaves(function(**given, **now))
        if name in RANDOM or now.get("dropout_p"):
            assert [tuple(x.shape) for x in found] == [tuple(x.shape) for x in expected]
        else:
            torch.testing.assert_close(found, expected, equal_nan=True)
    assert counter.frame_count <= 2


@pytest.mark.parametrize(
    ("name", "what", "value"),
    [
        ("softmax", "temperature", 0.0),
        ("attention by entmax", "alpha", -0.5),
        pytest.param("linear_loss of entmax", "alpha", -0.5, marks=pytest.mark.exhaustive),
    ],
)
def test_a_number_that_varies_stays_in_its_domain(name: str, what: str, value: float):
    torch._dynamo.reset()
    function, given, _ = CALLS[name]
    compiled = torch.compile(lambda number: function(**given, **{what: number}), backend="eager")
    for number in (1.5, 1.25):
        compiled(number)
    with pytest.raises(ValueError, match=f"{what} must be .*, got {value}"):
        compiled(value)


@pytest.mark.parametrize("name", ["softmax", "attention", "linear_loss of entmax", "cross_entropy", "entmax_loss"])
def test_one_graph_is_of_all_values_of_what_may_be_a_tensor(name: str):
    torch._dynamo.reset()
    function, given, _ = CALLS[name]
    what = "alpha" if "entmax" in name else "temperature"
    counter = CompileCounterWithBackend("aot_eager")  # a backend of torch's, before which it makes constants of some symbols
    compiled = torch.compile(lambda number: function(**given, **{what: number}), fullgraph=True, backend=counter)
    for number in (1.5, 1.25, 1.125, 1.0625):
        torch.testing.assert_close(compiled(number), function(**given, **{what: number}))
    assert counter.frame_count == 2


# ONNX ---------------------------------------------------------------------------------------------------------------------------

INTERVALS = {name for name in CALLS if name.endswith("_bounds")} | {"robust_interval", "sparsified_logsumexp"}
SEGMENTS = {name for name in CALLS if name.startswith("segment_")}
NOT_IN_ONNX = {
    **dict.fromkeys(INTERVALS, "an interval: cannot be exported to ONNX, which has no nextafter"),
    **dict.fromkeys(SEGMENTS, "segments have no place in ONNX; pad them to rows"),
    **dict.fromkeys(READS_VALUES, "cannot be exported to ONNX, which has no values before it runs"),
    **dict.fromkeys(BY_GRADIENTS, "cannot be exported to ONNX, which has no gradients inside a graph; call it in torch.no_grad"),
    **dict.fromkeys(("jacobian", "hessian_vector_product"), "cannot be exported to ONNX, which has no derivatives"),
    **dict.fromkeys(
        [name for name in CALLS if "fusedmax" in name or "oscarmax" in name], "cannot be exported to ONNX, which has no loop over"
    ),
    "perturb_max_loss": "cannot be exported to ONNX, which has no solver",
    "entropy_temperature": "cannot be exported to ONNX, which has no solver",
    "matrix_logsumexp": "cannot be exported to ONNX, which has no eigenvalues",
    "median_of_means_logsumexp": "cannot be exported to ONNX, which has no random order",
    "perturbed_argmax": "cannot be exported to ONNX, which has no quantiles of the normal distribution",
}
IN_ONNX = [name for name in CALLS if name not in BY_NUMPY | NO_VALUE]
BY_TRACE = {"attention", "attention by entmax", "logmatmulexp", "perturb_max", "linear_loss of entmax", "bounds", "adaptive_bounds"}


class Exported(nn.Module):
    """A function of tensors alone, with what else it is given."""

    def __init__(self, function: Callable[..., Any], names: list[str], others: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.names, self.others = function, names, others

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(leaves(self.function(**self.others, **dict(zip(self.names, tensors, strict=True)))))


def to_onnx(module: Exported, given: tuple[Tensor, ...], dynamo: bool, axes: dict[str, dict[int, str]] | None = None) -> bytes:
    """The model; `axes` are the names of the axes of each tensor that may have any size."""
    file, options = io.BytesIO(), {"input_names": module.names, "opset_version": 18}
    if not dynamo:
        torch.onnx.export(module, given, file, dynamo=False, dynamic_axes=axes, **options)
        return file.getvalue()
    if axes is not None:
        options["dynamic_shapes"] = (tuple(dict.fromkeys(axes[name], torch.export.Dim.AUTO) for name in module.names),)
    program = torch.onnx.export(module, given, dynamo=True, verbose=False, **options)
    return program.model_proto.SerializeToString()


def in_single(function: Callable[..., Any], given: dict[str, Any], numbers: dict[str, float]) -> tuple[Exported, dict[str, Tensor]]:
    """(a call as a module, its tensors) in float32."""
    single = lambda x: x.float() if isinstance(x, Tensor) and x.dtype == torch.float64 else x
    tensors = {key: single(value) for key, value in given.items() if isinstance(value, Tensor)}
    others = {key: value for key, value in (given | numbers).items() if key not in tensors}
    return Exported(function, list(tensors), others), tensors


def assert_found_by_onnx(name: str, model: bytes, module: Exported, tensors: dict[str, Tensor]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    read = {one.name for one in session.get_inputs()}
    wanted = module(*tensors.values())
    found = session.run(None, {key: value.numpy() for key, value in tensors.items() if key in read})
    for x, expected in zip(found, wanted, strict=True):
        assert x.shape == tuple(expected.shape)
        if name not in RANDOM:
            torch.testing.assert_close(torch.as_tensor(x), expected.detach(), atol=2e-6, rtol=2e-6, equal_nan=True)


@pytest.mark.filterwarnings("ignore")  # the exporters warn of themselves
@pytest.mark.parametrize(
    ("name", "dynamo"),
    [
        *(pytest.param(name, False, marks=[] if name in BY_TRACE else pytest.mark.exhaustive) for name in IN_ONNX),
        *(pytest.param(name, True, marks=[] if name == "attention" else pytest.mark.exhaustive) for name in IN_ONNX),
    ],
)
def test_onnx_has_a_function_or_a_sentence_says_why_not(name: str, dynamo: bool):
    onnx = pytest.importorskip("onnx")
    module, tensors = in_single(*CALLS[name])
    if name in NOT_IN_ONNX:
        with pytest.raises(Exception, match=NOT_IN_ONNX[name]):
            to_onnx(module, tuple(tensors.values()), dynamo)
        return
    model = to_onnx(module, tuple(tensors.values()), dynamo)
    assert {node.domain for node in onnx.load_from_string(model).graph.node} <= {""}  # standard operators
    assert_found_by_onnx(name, model, module, tensors)


def onnx_calls() -> Iterator[tuple[str, Call]]:
    """Those above, and each map, loss and attention with what is not their default."""
    for name, call in CALLS.items():
        tensors = [value for value in call[1].values() if isinstance(value, Tensor)]
        if name not in {*NOT_IN_ONNX, *BY_NUMPY, *NO_VALUE} and tensors:
            yield name, call
    x, labels = REQUIRED["x"], REQUIRED["target"]
    in_onnx = [map for map in MAPS.values() if map.name not in NOT_IN_ONNX]
    for map in in_onnx:
        for case in cases(map):
            yield str(case), (map, {"x": x, **case.params}, {})
        if not map.properties.logarithmic:
            given = {"query": x, "key": x, "value": x, "map": map.name}
            yield f"causal attention by {map.name}", (sm.attention, {**given, "is_causal": True, "sink": 0.5}, {})
    yield "perturb_max of Student's t", (sm.perturb_max, {"x": x, "noise": ("student_t", 3.0)}, {})
    yield "entmax of α < 1", (sm.entmax, {"x": x, "alpha": 0.5}, {})
    yield "logcumsumexp along 0", (sm.logcumsumexp, {"x": x, "dim": 0}, {})
    yield "causal linear_attention", (sm.linear_attention, {"query": x, "key": x, "value": x, "is_causal": True}, {})
    for loss in LOSSES.values():
        if loss.name not in NOT_IN_ONNX and not loss.on_cosines:
            for options in loss.examples:
                given = {"input": x, "target": labels, "label_smoothing": 0.1, **options}
                yield f"smoothed {LossCase(loss, options)}", (loss.function, given, {})
            given = {"input": torch.stack((x, x), -1), "target": labels[:, None] - torch.tensor([0, 0]), **options}
            yield f"{loss.name} of pixels", (loss.function, given, {})
        elif loss.on_cosines:
            given = {"input": x, "target": labels, "class_vectors": REQUIRED["weight"]}
            yield f"{loss.name} of features", (loss.function, given, {})


ONNX_CALLS = dict(onnx_calls())
KINDS_OF_MASK: dict[str, dict[str, Any]] = {
    "mask": {"attn_mask": torch.tensor([[True, False, False], [True, True, False]])},
    "causal": {"is_causal": True},
    "bias": {"bias": torch.tensor([[0.0, -math.inf, -math.inf], [0.5, 0.0, -math.inf]])},
    "lengths": {"key_lengths": torch.tensor([2])},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("map", "kind", "dynamo"),
    [
        *(("softmax", kind, False) for kind in KINDS_OF_MASK),
        *((map.name, "mask", False) for map in MAPS.values() if map.name not in NOT_IN_ONNX and not map.properties.logarithmic),
        ("sparsemax", "causal", True),
    ],
)
def test_onnx_reads_nothing_that_is_excluded(map: str, kind: str, dynamo: bool):
    onnxruntime = pytest.importorskip("onnxruntime")
    q, k, v = normal(1, 2, 4, dtype=torch.float32), *normal(2, 1, 3, 4, dtype=torch.float32)
    options: dict[str, Any] = {"map": map, **KINDS_OF_MASK[kind], "return_lse": map == "softmax"}
    module = Exported(sm.attention, ["query", "key", "value"], options)
    session = onnxruntime.InferenceSession(to_onnx(module, (q, k, v), dynamo), providers=["CPUExecutionProvider"])
    for wrong in (math.nan, math.inf):
        k[..., 2, 0] = v[..., 2, 1] = wrong
        found = session.run(None, {one.name: x.numpy() for one, x in zip(session.get_inputs(), (q, k, v), strict=True)})
        for x, expected in zip(found, module(q, k, v), strict=True):
            torch.testing.assert_close(torch.as_tensor(x), expected, atol=2e-6, rtol=2e-6)
            assert bool(expected.isfinite().all())


SPREAD = torch.tensor([[16.0, 0.0], [20.0, 0.0], [100.0, 0.0], [100.0, 0.0], [0.0, 0.0], [-80.0, 90.0], [1e4, -1e4]])


def of_spread_scores() -> Iterator[Any]:
    labels = torch.tensor([1, 1, 1, 0, 0, 1, 0])
    for loss in LOSSES.values():
        for options in loss.examples if loss.name not in NOT_IN_ONNX else ():

            def both(x: Tensor, loss: Any = loss, options: dict[str, Any] = options) -> tuple[Tensor, ...]:
                x = x / 1e4 if loss.on_cosines else x
                each = ({"label_smoothing": smoothing, "reduction": "none"} for smoothing in (0.0, 0.1))
                return tuple(loss.function(x, labels, **options, **own) for own in each)

            yield pytest.param(both, id=str(LossCase(loss, options)))
    yield from (sm.softplus, sm.logsumexp, sm.log_mean_exp, sm.logcumsumexp, lambda x: sm.logaddexp(x, -x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", list(of_spread_scores()))
def test_onnx_has_the_values_of_scores_far_apart(function: Callable[..., Any]):
    module = Exported(function, ["x"], {})
    assert_found_by_onnx("", to_onnx(module, (SPREAD,), False), module, {"x": SPREAD})


OF_A_MODEL = {"query", "key", "value", "hidden", "queries", "items", "h", "W", "X", "class_vectors"}  # sizes that one has once


def resized(x: Tensor, axes: dict[int, str], sizes: dict[str, int]) -> Tensor:
    """The tensor repeated along axes of other sizes; labels among so many classes."""
    for axis, name in axes.items():
        x = x.index_select(axis, torch.arange(sizes[name]) % x.shape[axis])
    return x if x.is_floating_point() else x % sizes["s3"]


OF_ANY_SIZE = {
    *("sparsemax()", "entmax(alpha=1.3)", "topk_softmax(k=10)", "perturb_max(noise=uniform,scale=1.0)", "logcumsumexp along 0"),
    *("causal attention by entmax15", "smoothed cross_entropy()", "cross_entropy of pixels", "arcface of features"),
}


@pytest.mark.filterwarnings("ignore")  # the exporters warn of themselves
@pytest.mark.parametrize(
    ("name", "dynamo"),
    [
        pytest.param(name, dynamo, marks=[] if name in always else pytest.mark.exhaustive)
        for dynamo, always in ((False, OF_ANY_SIZE), (True, {"sparsemax()"}))
        for name in ONNX_CALLS
    ],
)
def test_onnx_has_any_sizes(name: str, dynamo: bool):
    module, tensors = in_single(*ONNX_CALLS[name])
    axes: dict[str, dict[int, str]] = {}
    for key, x in tensors.items():
        free = 0 if key == "weight" and x.ndim > 1 else x.ndim - (key in OF_A_MODEL)
        axes[key] = {axis: f"s{x.shape[axis]}" for axis in range(free)}
    model = to_onnx(module, tuple(tensors.values()), dynamo, axes)
    for sizes in ({"s2": 5, "s3": 4, "s4": 6}, {"s2": 1, "s3": 33, "s4": 33}, {"s2": 4, "s3": 1, "s4": 1}):
        given = {key: resized(x, axes[key], sizes) for key, x in tensors.items()}
        try:
            module(*given.values())
        except ValueError:
            continue  # a call of these is refused
        assert_found_by_onnx(name, model, module, given)


@pytest.mark.filterwarnings("ignore")
def test_onnx_has_heads_of_any_sizes():
    module = Called(sm.MultiheadAttention(6, 2, batch_first=True, map="entmax15").eval(), lambda module, x: module(x, x, x)[0])
    file, axes = io.BytesIO(), {"x": {0: "batch", 1: "length"}}
    torch.onnx.export(module, (torch.zeros(2, 3, 6),), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
    session = pytest.importorskip("onnxruntime").InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    for sizes in ((1, 1), (3, 9)):
        x = normal(*sizes, 6, dtype=torch.float32)
        torch.testing.assert_close(torch.as_tensor(session.run(None, {"x": x.numpy()})[0]), module(x).detach())


# Modules ------------------------------------------------------------------------------------------------------------------------


class Called(nn.Module):
    """What is called of a module."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x: Tensor) -> Any:
        return self.call(self.module, x)


def learnt(*value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value if len(value) > 1 else value[0]))


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bias, self.options = learnt(0.1, 0.2, 0.3), options

    def forward(self, q: Tensor) -> Tensor:
        return sm.attention(q, q, q, bias=self.bias, **self.options)


def modules() -> Iterator[tuple[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]]]:
    """What makes a module, and what it is given, the batch first."""
    x, labels, sequence = normal(2, 3, dtype=torch.float32), torch.tensor([0, 2]), normal(2, 3, 6, dtype=torch.float32)
    for name, module in functions():
        if inspect.isfunction(module) or issubclass(module, sm.Sampler) or name in ("MapModule", "MultiheadAttention"):
            continue
        make = lambda module=module, name=name: module(**arguments(name, module, ""))
        given = [parameter.name for parameter in inspect.signature(module.forward).parameters.values()]
        if name != "Relax" and given[1:2] in (["x"], ["scores"]):
            yield name, (make, (x,))
        elif "class_vectors" in inspect.signature(module.forward).parameters:
            yield name, (make, (x.tanh(), labels))
        elif given[1:3] in (["input", "target"], ["hidden", "target"], ["x", "target"]):
            yield name, (make, (x, labels))
        elif given[1:3] == ["queries", "items"]:
            yield name, (make, (x, x))
    for case, options in {
        "": {},
        " of a learnt α": {"map": "entmax", "alpha": learnt(1.5)},
        " of an α that a module says": {"map": "entmax", "alpha": sm.Positive(1.5, minimum=1.0)},
        " of a learnt sink": {"map": "sparsemax", "sink": learnt(0.5, 0.1)},
        " with dropout": {"dropout": 0.5},
        " of a learnt τ": {"temperature": learnt(1.5)},
    }.items():
        call = lambda module, x: module(x, x, x, need_weights=False)[0]
        make = lambda options=options, call=call: Called(sm.MultiheadAttention(6, 2, batch_first=True, **options), call)
        yield f"MultiheadAttention{case}", (make, (sequence,))
    yield "CrossEntropyLoss of probabilities", (sm.CrossEntropyLoss, (x, x.softmax(-1)))
    yield "attention of a learnt bias", (lambda: Attention(map="sparsemax"), (sequence,))


MODULES = dict(modules())
RANDOM_MODULES = {"GumbelSoftmax", "NoiseContrastive", "SampledSoftmax", "MultiheadAttention with dropout"}
NOT_A_GRAPH = {"AdaptiveSoftmax", "HierarchicalSoftmax"}  # whose steps depend on the labels
EVERY_TIME = {name for name in MODULES if "ttention" in name} | {"Entmax", "EntmaxLoss", "LinearLoss"}


def assert_of_every_batch(name: str, recorded: Any, module: nn.Module, given: tuple[Tensor, ...]) -> None:
    for batch in (given, [torch.cat((x, x, x[:1])) for x in given]):
        found, expected = leaves(recorded(*batch)), leaves(module(*batch))
        if name in RANDOM_MODULES:
            assert [tuple(x.shape) for x in found] == [tuple(x.shape) for x in expected]
        else:
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", tried([name for name in MODULES if name not in NOT_A_GRAPH], EVERY_TIME))
def test_a_module_is_exported_for_every_batch(name: str):
    make, given = MODULES[name]
    module, batch = make(), torch.export.Dim("batch", min=2)
    exported = torch.export.export(module, given, dynamic_shapes=tuple({0: batch} for _ in given))
    assert_of_every_batch(name, exported.module(), module, given)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # sizes are compared, and these are of every batch
@pytest.mark.parametrize("name", tried([name for name in MODULES if name not in NOT_A_GRAPH], EVERY_TIME))
def test_a_module_is_traced_for_every_batch(name: str):
    make, given = MODULES[name]
    module = make()
    traced = torch.jit.trace(module, given, check_trace=name not in RANDOM_MODULES)
    assert_of_every_batch(name, traced, module, given)


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True, "sink": 0.5}, {"map": "sparsemax"}, {"map": "elastic_softmax"}], ids=str
)
def test_an_exported_attention_has_any_length(options: dict[str, Any]):
    module = Called(nn.Identity(), lambda _, x: sm.attention(x, x, x, **options))
    shapes = {"x": {2: torch.export.Dim("length")}}
    graph = torch.export.export(module, (normal(1, 2, 6, 4),), dynamic_shapes=shapes).module()
    for n in (3, 9000) if not options else (3, 70):
        x = normal(1, 1, n, 4, seed=n).expand(1, 2, n, 4)
        torch.testing.assert_close(graph(x), module(x))


@pytest.mark.parametrize("dynamic", [True, None])
def test_a_compiled_prefix_sum_has_any_length(dynamic: bool | None):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(sm.logcumsumexp, fullgraph=True, backend=counter, dynamic=dynamic)
    for n in (7, 8, 100, 33):
        ours, theirs = (normal(3, n).requires_grad_() for _ in range(2))
        found, expected = compiled(ours), torch.logcumsumexp(theirs, -1)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y, x in ((found, ours), (expected, theirs))))
    assert counter.frame_count <= 2
