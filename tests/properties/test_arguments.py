"""Every numeric argument and every name, of every public function and module: wrong ones are refused by name before any work,
NumPy's numbers do what Python's do, and no tensor is read otherwise than it reads itself.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._pytree import tree_leaves

import softmaxima as sm
from conftest import Case, LossCase, normal
from softmaxima.kernels.kernel import Kernel
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.lse.matrix.lanczos import estimate_log_trace
from softmaxima.maps import REGISTRY as MAPS
from softmaxima.maps import Parameter

X = torch.tensor([[0.1, 0.4, 0.2], [-0.3, 0.7, 0.9]])
TARGET = torch.tensor([0, 2])

# What is passed for arguments without a default, of all functions or of one.
REQUIRED: dict[Any, Any] = {
    "x": X,
    "input": X,
    "y": X,
    "a": X.numpy(),
    "p": torch.ones(3),
    "target": TARGET,
    "q": torch.zeros(2, 3, dtype=torch.int8),
    "v": X,
    "scale": 0.5,
    "X": torch.eye(3),
    "blocks": [np.zeros(3)],
    "source": np.zeros(3),
    "W": X,
    "h": torch.ones(3),
    "map": "entmax",
    "proportion": 0.2,
    "corrupted": 1,
    "eps": 0.1,
    "loss": torch.sum,
    "scores": [X, X],
    "query": X,
    "key": X,
    "value": X,
    "outputs": [X],
    "lses": [X[:, 0]],
    "embed_dim": 6,
    "num_heads": 2,
    ("median_of_means_logsumexp", "blocks"): 2,
    "model": torch.nn.Identity(),
    "hidden": X,
    "weight": torch.ones(4, 3),
    "weights": torch.ones(4),
    "queries": X,
    "items": X,
    "in_features": 3,
    "classes": 4,
    "samples": 2,
    "buckets": 8,
    "logits": torch.zeros(4),
    "f": lambda draws: draws.sum(-1),
    "control": lambda z: z.softmax(-1)[..., 0],
    "solver": lambda scores: scores.argsort(-1),
    ("score_function", "log_prob"): X,
    ("score_function", "values"): X,
    ("logmatmulexp", "y"): X.T,
    ("gumbel_top_k", "k"): 1,
    ("relaxed_top_k", "k"): 1,
    "entropy": 0.5,
    "init": 1.0,
    "factor": 0.5,
    "ratio": 0.5,
    "layers": 2,
    "at": lambda step: 1.0,
    "last": 0.5,
    "total": 2,
    "module": torch.nn.Linear(3, 1),
    "labels": torch.tensor([0, 0, 1]),
    ("calibrate_temperature", "logits"): torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]),
    ("calibrate_scaling", "logits"): torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]),
    "probabilities": torch.full((3, 2), 0.5),
}
NO_GENERATOR = {"score_function", "second_moment"}
# What makes a call whole; an argument under test takes the place of what is beside it.
COMPLETED = {
    "sparse_softmax_loss": {"k": 1},
    "SparseSoftmaxLoss": {"k": 1},
    "sampled_softmax_loss": {"samples": 2, "sampler": "uniform"},
    "noise_contrastive_loss": {"samples": 2, "sampler": "uniform"},
    "adaptive_logsumexp": {"around": 1.0},
    "median_of_means_logsumexp": {"shuffle": True, "generator": 0},
    **{name: {"index": torch.tensor([0, 1])} for name in vars(sm)["_ROOMS"]["segments"].split() if name[0].islower()},
    **{name: {"generator": 0} for name in vars(sm)["_ROOMS"]["sampling"].split() if name[0].islower() and name not in NO_GENERATOR},
}
INSTEAD = {"p": "k", "between": "around"}
ELSEWHERE = {  # who says it
    "real_softmax": "logsumexp",
    "real_softmin": "logsumexp",
    "jacobian": "entmax",
    "streaming_logsumexp": "LogSumExpState.update",
}
# Values of arguments whose default is None.
EXAMPLES = {
    "between": (0.1, 0.2),
    "k": 1,
    "p": 0.5,
    "gap": 0.5,
    "maximum": 1.0,
    "budget": 200,
    "generator": 1,
    "axis": 0,
    "around": 1.0,
    "size": 3,
    "scale": 0.5,
    "sink": 0.5,
    "window": 1,
    "kdim": 6,
    "vdim": 6,
    "samples": 2,
    "minimum": 0.1,
    "num_segments": 3,
}
CALLED = {"temperatures": "temperature"}  # as what
NO_NUMBER = {
    "file_logsumexp",
    "inner_product_index",
    "find_map",
    "register",
    "second_moment",
}  # files and indices have tests of their own


def functions() -> Iterator[tuple[str, Any]]:
    names = getattr(sm, "__all__")  # noqa: B009 - what the package makes of its rooms
    for name in names:
        public = getattr(sm, name)
        is_module = inspect.isclass(public) and issubclass(public, torch.nn.Module) and not inspect.isabstract(public)
        if (inspect.isfunction(public) and name not in NO_NUMBER) or (is_module and name != "LossModule"):
            yield name, public
    yield "matrix_logsumexp", lambda **options: estimate_log_trace("matrix_logsumexp", **options)


def signature(name: str, function: Any) -> inspect.Signature:
    return inspect.signature(function if name != "matrix_logsumexp" or function is sm.matrix_logsumexp else estimate_log_trace)


def arguments(name: str, function: Any, tested: str) -> dict[str, Any]:
    """A call of the function that only the argument under test can spoil."""
    given = dict(COMPLETED.get(name, {}))
    given.pop(INSTEAD.get(tested, ""), None)
    for parameter in signature(name, function).parameters.values():
        required = parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if required and parameter.name not in given and not (function is not sm.matrix_logsumexp and parameter.name == "name"):
            key = {"operator": "X"}.get(parameter.name, parameter.name)
            given[parameter.name] = REQUIRED.get((name, key), REQUIRED.get(key))
    if signature(name, function).parameters.keys() >= {"operator", "size"}:
        given |= {"operator": lambda V: V, "size": 3}
    return given


def kinds(annotation: Any) -> tuple[bool, bool, bool]:
    """(whether a number, whether an int alone, whether a name)."""
    words = set(re.findall(r"\w+", str(annotation)))
    return (
        bool(words & {"float", "int"}),
        "int" in words and "float" not in words,
        bool(words & {"str", "Literal", "Precision", "AnyMap"}),
    )


def numeric() -> Iterator[Any]:
    for name, function in functions():
        for parameter in signature(name, function).parameters.values():
            number, whole, _ = kinds(parameter.annotation)
            if number and parameter.name != "name":
                yield pytest.param(name, function, parameter, whole, id=f"{name}-{parameter.name}")


def named() -> Iterator[Any]:
    for name, function in functions():
        for parameter in signature(name, function).parameters.values():
            number, _, is_name = kinds(parameter.annotation)
            if is_name and not number and parameter.name not in ("name", "device", "among"):
                yield pytest.param(name, function, parameter, id=f"{name}-{parameter.name}")


def refused(name: str, function: Any, what: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError, IndexError)) as caught:
        function(**arguments(name, function, what) | {what: value})
    said = str(caught.value)
    assert said.startswith((f"{name}: ", f"{ELSEWHERE.get(name, name)}: ")), said
    assert CALLED.get(what, what) in said, said
    assert repr(value) in said or str(value) in said or type(value).__name__ in said, said


@pytest.mark.parametrize(("name", "function", "parameter", "whole"), list(numeric()))
def test_what_is_no_number_is_refused_by_name(name: str, function: Any, parameter: inspect.Parameter, whole: bool):
    what = parameter.name
    default = EXAMPLES.get(what) if parameter.default is None else parameter.default
    function(**arguments(name, function, what) | ({} if default is parameter.empty else {what: default}))
    for value in ("0.5", True, np.True_, object(), 1j, *((0.5, np.float64(1.0), math.nan) if whole else ())):
        refused(name, function, what, value)


@pytest.mark.parametrize(("name", "function", "parameter"), list(named()))
def test_a_name_that_is_none_is_refused(name: str, function: Any, parameter: inspect.Parameter):
    for value in ("nonsense", 3):
        refused(name, function, parameter.name, value)


def beyond(name: str, what: str, whole: bool) -> tuple[float, ...]:
    """Numbers outside the domain of the argument."""
    if what in ("dim", "axis"):
        return () if name[0].isupper() else (7, -9)
    if what in ("beta",) and "lastic" in name:
        return math.inf, math.nan
    if (name, what) == ("calibrate_temperature", "maximum"):  # of ∞ all classes are alike
        return -math.inf, math.nan
    if what in ("sink", "baseline") or (what == "scale" and ("attention" in name or name in ("rebar", "Relax"))):
        return math.inf, math.nan
    return {
        "ignore_index": (),
        "threshold": (math.nan,),
        "zero_point": (math.inf, math.nan),
        "around": (math.inf, math.nan),
        "maximum": (math.inf, math.nan),
        "log_z": (math.inf, math.nan),
        "label_smoothing": (-0.1, 1.1, math.nan),
        "deflation": (-1,),
        "corrupted": (-1,),
        "generator": (-1,),
        "first_query": (2**30 + 1, -math.inf, math.nan),  # before the keys too
    }.get(
        what,
        (-1, 0)
        if whole and what in ("k", "blocks", "budget", "strata", "size", "order", "max_probes", "max_steps")
        else (-1, math.nan),
    )


@pytest.mark.parametrize(("name", "function", "parameter", "whole"), list(numeric()))
def test_numbers_outside_the_domain_are_refused(name: str, function: Any, parameter: inspect.Parameter, whole: bool):
    for value in beyond(name, parameter.name, whole):
        refused(name, function, parameter.name, value)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and a.dtype == torch.bfloat16:
        return equal(a.float(), b.float())
    if isinstance(a, Tensor):
        return equal(a.detach().numpy(), b.detach().numpy())
    if isinstance(a, torch.nn.Module):
        return repr(a) == repr(b)
    if isinstance(a, tuple):
        return all(equal(v, w) for v, w in zip(a, b, strict=True))
    if isinstance(a, (Tensor, np.ndarray, np.generic)):
        return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind == "f") and a.dtype == b.dtype
    return equal(tuple(vars(a).values()), tuple(vars(b).values())) if hasattr(a, "__dict__") else a == b


@pytest.mark.parametrize(("name", "function", "parameter", "whole"), list(numeric()))
def test_numpy_numbers_do_what_python_numbers_do(name: str, function: Any, parameter: inspect.Parameter, whole: bool):
    what = parameter.name
    value = EXAMPLES.get(what) if parameter.default is None else parameter.default
    if value is parameter.empty:
        value = arguments(name, function, what)[what]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        pytest.skip("not one number")
    given = arguments(name, function, what)
    if "generator" in signature(name, function).parameters:
        given |= {"generator": torch.Generator()}

    def result(number: Any) -> Any:
        if "generator" in given:
            given["generator"].manual_seed(0)
        return function(**given | {what: number})

    expected = result(value)
    for number in (
        (np.array(value), np.int64(value), torch.tensor(value)) if isinstance(value, int) else (np.array(value), np.float64(value))
    ):
        assert equal(result(number), expected)


OTHERS = {
    "a list": [1.0, 2.0],
    "a dict": {"a": 1},
    "an object": object(),
    "a large int": 2**70,
    "a larger int": -(10**400),
    "dates": np.array(["2020-01-01"] * 3, dtype="M8[D]"),
    "objects": np.array([1, "a", None], dtype=object),
    "words": np.array([["a", "b", "c"]] * 2),
    "complex numbers": torch.ones(2, 3, dtype=torch.complex64),
    "a sparse tensor": torch.ones(2, 3).to_sparse(),
    "nothing": (),
    "a dtype": torch.int32,
}


@pytest.mark.parametrize(("name", "function"), [pair for pair in functions() if pair[0] not in ("matrix_logsumexp", "jacobian")])
def test_whatever_is_passed_is_taken_or_refused_in_one_sentence(name: str, function: Any):
    said = []
    for what, parameter in signature(name, function).parameters.items():
        for kind, value in OTHERS.items() if parameter.kind is not parameter.VAR_KEYWORD and what[0] != "_" else ():
            try:
                function(**arguments(name, function, what) | {what: value})
            except (TypeError, ValueError, IndexError) as error:
                said.append((what, kind, str(error)))
    assert not [each for each in said if not re.match(r"^[\w.]+: [^\n]+$", each[-1])]


# Names of arguments --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "function"), [pair for pair in functions() if pair[0] != "matrix_logsumexp"])
def test_an_argument_by_another_name_is_told_its_own(name: str, function: Any):
    """Whether torch, NumPy, SciPy or a paper calls it so."""
    known = signature(name, function).parameters
    for foreign, own in (("axis", "dim"), ("keepdims", "keepdim"), ("mask", "where"), ("tau", "temperature"), ("nonsense_", "")):
        if foreign in known:
            continue
        with pytest.raises(TypeError, match=rf"^({name}|{ELSEWHERE.get(name)}): unknown argument '{foreign}'") as caught:
            function(**arguments(name, function, "") | {foreign: 1})
        assert own not in known or f"did you mean '{own}'" in str(caught.value)


@pytest.mark.parametrize(("name", "function"), [pair for pair in functions() if pair[0] != "matrix_logsumexp"])
def test_what_is_given_by_name_only_says_so(name: str, function: Any):
    parameters = signature(name, function).parameters.values()
    places = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    named = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    with pytest.raises(TypeError, match=rf"^{name}: .* got 1") as caught:
        function(*[None] * len(places), 1, **dict.fromkeys(named, 1))
    told = re.search(r"write (\w+)=(1|…)", str(caught.value))
    assert not named or (told is not None and told[1] in named)
    if told is not None and told[2] == "1":  # which that argument may be
        assert re.search(r"\b(int|float)\b", str(signature(name, function).parameters[told[1]].annotation))


# Axes and dtypes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(1, 2), (2, 0), [-1, 1], (0, 1, 2), (1,)], ids=str)
def test_several_axes_count_as_one(case: Case, dims: Any):
    x, where, g = normal(2, 3, 4), normal(2, 3, 1, seed=1) > -2, normal(2, 3, 4, seed=2)
    axes = tuple(d % 3 for d in dims)
    tau = torch.rand([1 if d in axes else n for d, n in enumerate(x.shape)], dtype=torch.float64) + 0.5
    last = tuple(range(3 - len(axes), 3))
    shape = x.movedim(axes, last).shape
    flat = lambda value: value.expand(2, 3, 4).movedim(axes, last).flatten(3 - len(axes))
    for options in ({}, {"where": where}, {"temperature": tau, "where": where}):
        z, y = x.clone().requires_grad_(), x.clone().requires_grad_()
        beside = {key: flat(value) if key == "where" else flat(value)[..., :1] for key, value in options.items()}
        expected = case(flat(y), **beside).reshape(shape).movedim(last, axes)
        found = case(z, dims, **options)
        torch.testing.assert_close(found, expected)
        np.testing.assert_array_equal(case(x.numpy(), dims, **{key: v.numpy() for key, v in options.items()}), found.detach())
        finite = expected > -math.inf
        found[finite].backward(g[finite])
        expected[finite].backward(g[finite])
        torch.testing.assert_close(z.grad, y.grad)
    module = sm.MapModule(case.map, dims, **case.params)
    torch.testing.assert_close(module(x), case(x, dims))


def test_scores_are_converted_to_a_dtype_first(case: Case, dtype: torch.dtype):
    scores = 4 * normal(3, 5)
    for x in (scores.half(), scores, scores.bfloat16(), scores.to(torch.int64), scores.int() > 0):
        found, expected = case(x, dtype=dtype), case(x.to(dtype))
        assert equal(found, expected)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert case(x, dtype=dtype).dtype == dtype
        if dtype == torch.bfloat16 or x.dtype == torch.bfloat16:
            continue
        for kind in (dtype, str(dtype).removeprefix("torch."), expected.numpy().dtype):
            assert equal(case(x.numpy(), dtype=kind), expected.numpy())
    plain = scores.float().requires_grad_()
    twin = plain.detach().clone().requires_grad_()
    case.probabilities(plain, dtype=dtype).sum().backward()
    case.probabilities(twin.to(dtype)).sum().backward()
    assert equal(plain.grad, twin.grad)


PROMOTING = [sm.softmin, sm.logsumexp, sm.log_mean_exp, sm.logcumsumexp, sm.real_softmax, sm.softplus, sm.inverse_softplus]


def test_integers_count_as_torch_s_default_dtype_or_float64_of_numpy(case: Case):
    for x in (torch.tensor([3, 1, 2]), torch.tensor([3, 1, 2], dtype=torch.uint8), torch.tensor([True, False, True])):
        for function in (case, *PROMOTING, lambda x: sm.logaddexp(x, x), lambda x: sm.logmatmulexp(x[None], x[:, None])):
            assert equal(function(x), function(x.float()))
            assert equal(function(x.numpy()), function(x.numpy().astype(float)))


# Tensors that are not what lies in memory ---------------------------------------------------------------------------------------


def of_scores() -> Iterator[Any]:
    """Functions whose first argument is scores, with the others."""
    for name, function in functions():
        parameters = list(signature(name, function).parameters.values())
        if (
            inspect.isfunction(function)
            and parameters[0].name in ("x", "input", "y", "q", "X", "W")
            and function is not sm.hessian_vector_product
        ):
            given = arguments(name, function, "")
            yield pytest.param(name, function, parameters[0].name, given, id=name)


def negated(x: Tensor) -> Tensor:
    """x, whose memory holds −x."""
    lazy = torch._neg_view(-x)
    assert lazy.is_neg()
    return lazy


def everywhere(given: dict[str, Any], change: Any) -> dict[str, Any]:
    return {key: change(v) if isinstance(v, Tensor) and v.is_floating_point() else v for key, v in given.items()}


@pytest.mark.parametrize(("name", "function", "first", "given"), list(of_scores()))
def test_a_sign_that_torch_has_put_off_is_read(name: str, function: Any, first: str, given: dict[str, Any]):
    assert equal(function(**everywhere(given, negated)), function(**given))


def test_maps_and_their_gradients_read_lazy_signs(case: Case, dtype: torch.dtype):
    x, g = normal(3, 8, dtype=dtype), normal(3, 8, seed=1, dtype=dtype)
    tau, where = torch.tensor([[0.5], [1.0], [2.0]], dtype=dtype), normal(3, 8, seed=2) > -2
    for options in ({}, {"dim": 0}, {"temperature": tau}, {"where": where}):
        lazy = everywhere(options, negated)
        assert equal(case(negated(x), **lazy), case(x, **options))
        plain, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        case(plain, **options).backward(g)
        case(negated(other), **lazy).backward(negated(g))
        assert equal(other.grad, plain.grad)


def test_losses_read_lazy_signs(loss: LossCase, dtype: torch.dtype):
    x, weight = loss.scores(4, 5, dtype=dtype), torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0])
    soft = torch.softmax(normal(4, 5, seed=1), 1).to(dtype if dtype == torch.float64 else torch.float32)
    for target in (torch.tensor([0, 1, 2, 4]), soft):
        lazy = negated(soft) if target is soft else target
        assert equal(loss(negated(x), lazy, weight=negated(weight)), loss(x, target, weight=weight))
        plain, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        g = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=dtype)
        loss(plain, target, reduction="none").backward(g)
        loss(negated(other), lazy, reduction="none").backward(negated(g))
        assert equal(other.grad, plain.grad)


def test_compiled_functions_read_lazy_signs():
    lazy = torch.complex(X, -X).conj().imag
    assert lazy.is_neg()
    assert equal(sm.softmax(lazy), sm.softmax(X))
    compiled = torch.compile(lambda x: (sm.sparsemax(x), sm.logsumexp(x)), backend="aot_eager", fullgraph=True)
    for x in (negated(X), lazy):
        assert equal(compiled(x), (sm.sparsemax(X), sm.logsumexp(X)))


def others(x: Tensor) -> dict[str, tuple[Any, str]]:
    """Tensors that are not dense, with the word that names them."""
    found = {
        "sparse": (x.to_sparse(), "layout torch.sparse_coo; call .to_dense"),
        "csr": (x.to_sparse_csr(), "layout torch.sparse_csr; call .to_dense"),
        "masked": (np.ma.masked_array(x.numpy(), x.numpy() > 0), "masked array"),
    }
    if x.is_floating_point():
        found["quantised"] = torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8), "quantised tensor"
        found["nested"] = torch.nested.nested_tensor(list(x)), "nested"
        found["jagged"] = torch.nested.nested_tensor(list(x), layout=torch.jagged), "nested"
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "function", "first", "given"), list(of_scores()))
def test_tensors_that_are_not_dense_are_refused_by_name(name: str, function: Any, first: str, given: dict[str, Any]):
    for kind, (x, part) in others(given[first] if given[first].ndim == 2 else X).items():
        if name == "matrix_logsumexp" and kind in ("sparse", "csr"):
            continue  # operators
        if name in ("logaddexp", "logmatmulexp"):
            given = given | {"y": x}
        with pytest.raises(TypeError, match=f"^{name}: .*{part}|^logsumexp: .*{part}"):
            function(**given | {first: x})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_losses_and_states_refuse_tensors_that_are_not_dense(loss: LossCase):
    x = loss.scores(2, 3)
    for bad, part in others(x).values():
        for call in (lambda bad=bad: loss(bad, TARGET), lambda bad=bad: loss(x, TARGET, weight=bad)):
            with pytest.raises(TypeError, match=part):
                call()
        with pytest.raises(TypeError, match=part):
            sm.LogSumExpState().update(bad)
        with pytest.raises(TypeError, match=part):
            sm.ScoreSummary().update(bad)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "function", "first", "given"), list(of_scores()))
def test_what_masked_scores_are_advised_is_taken(name: str, function: Any, first: str, given: dict[str, Any]):
    x = (given[first] if given[first].ndim == 2 else X).numpy()
    masked = np.ma.masked_array(x, np.eye(*x.shape, dtype=bool))
    both = {"y": masked} if name in ("logaddexp", "logmatmulexp") else {}
    with pytest.raises(TypeError) as raised:
        function(**given | both | {first: masked})
    advised = str(raised.value).partition("; ")[2]
    if "where=" in advised:
        function(**given | {first: torch.from_numpy(masked.data), "where": torch.from_numpy(~np.ma.getmaskarray(masked))})
    elif "-numpy.inf" in advised:
        function(**given | {first: masked.filled(-np.inf)})
    else:
        assert "with a value that counts" in advised


def test_masked_targets_weights_and_masks_are_advised_what_leaves_them_out():
    x, target = normal(3, 4).numpy(), np.ma.masked_array([0, 1, 2], [1, 0, 0])
    with pytest.raises(TypeError, match=r"call \.filled\(-100\), which ignore_index leaves out"):
        sm.cross_entropy(x, target)
    assert sm.cross_entropy(x, target.filled(-100)) == sm.cross_entropy(x[1:], target.data[1:])
    with pytest.raises(TypeError, match=r"weight must .*call \.filled\(…\) with a value that counts"):
        sm.cross_entropy(x, target.data, weight=np.ma.masked_array(np.ones(4), [1, 0, 0, 0]))
    with pytest.raises(TypeError, match=r"where must .*call \.filled\(False\), which leaves those scores out"):
        sm.softmax(x, where=np.ma.masked_array(x > 0, x > 1))


# One door ------------------------------------------------------------------------------------------------------------------------


def test_every_scores_pass_the_same_door(case: Case):
    """Plain scores, for which there is a shorter way, and others: what is refused of one is refused of both."""
    plain, other = normal(3, 3), normal(3, 3).mT
    for options in ({"dim": 1.0}, {"dim": True}, {"dim": "1"}, {"temperature": True}, {"temperature": "1"}, {"temperature": 0.0}):
        said = set()
        for x in (plain, other):
            with pytest.raises((TypeError, ValueError)) as caught:
                case(x, **options)
            said.add(str(caught.value))
        assert len(said) == 1


def test_wrong_parameters_of_maps_raise_the_same_way_everywhere(case: Case):
    for parameter in case.map.params:
        for value in ("1.5", True, object(), -math.inf if parameter.name != "beta" else math.inf):
            said = set()
            for x in (normal(3, 3), normal(3, 3).mT):
                with pytest.raises((TypeError, ValueError)) as caught:
                    case.map(x, **{parameter.name: value})
                said.add(str(caught.value))
            assert len(said) == 1
            assert f"{case.map.name}: {parameter.name} must be" in said.pop()
            with pytest.raises((TypeError, ValueError), match=f"^MapModule: {parameter.name} must be"):
                sm.MapModule(case.map, **{parameter.name: value})


def test_a_kernel_may_have_any_number_of_parameters():
    entmax = sm.find_map("entmax")
    offset = Parameter(name="offset", default=0.0, examples=(0.0,), valid=lambda offset: offset >= 0, domain="at least 0")
    shifted = replace(
        entmax,
        name="shifted",
        params=(*entmax.params, offset),
        forward=lambda z, alpha, offset: entmax.forward(z, alpha + offset),
        kernel=Kernel("entmax", "entmax_backward", theta=lambda alpha, offset: (alpha + offset,)),
    )
    assert equal(shifted(X, alpha=1.25, offset=0.25), sm.entmax15(X)) or torch.allclose(
        shifted(X, alpha=1.25, offset=0.25), sm.entmax15(X)
    )
    assert equal(shifted(X, offset=0.25, alpha=1.25), shifted(X, alpha=1.25, offset=0.25))
    for options in ({"alpha": 1.25, "offset": -1.0}, {"alpha": -0.5, "offset": 0.0}, {"offset": "0", "alpha": 1.25}):
        with pytest.raises((TypeError, ValueError), match=r"^shifted: (offset|alpha) must be"):
            shifted(X, **options)


def test_a_map_is_found_by_its_function(case: Case):
    function = case.map.function
    if function is None:
        pytest.skip("registered by a test")
    assert sm.find_map(function) is case.map
    x = normal(2, 4)
    assert equal(sm.jacobian(function, x, **case.params), sm.jacobian(case.map.name, x, **case.params))
    if not case.claims.logarithmic:
        target = torch.tensor([0, 3])
        assert equal(sm.surrogate_loss(x, target, map=function), sm.surrogate_loss(x, target, map=case.map))


def test_unknown_maps_name_the_nearest():
    for call in (
        lambda of: sm.jacobian(of, X),
        lambda of: sm.surrogate_loss(X, TARGET, map=of),
        sm.MapModule,
        sm.SurrogateLoss,
    ):
        with pytest.raises(ValueError, match=r"unknown map 'sparcemax'; did you mean 'sparsemax'\? Registered are: "):
            call("sparcemax")
        with pytest.raises(ValueError, match=r"unknown map function torch.*softmax; did you mean 'softmax'"):
            call(torch.nn.functional.softmax)
        with pytest.raises(TypeError, match="map must be the name or the function of a map, or a Map, got int"):
            call(3)


def test_class_weights_are_finite_and_not_negative(loss: LossCase):
    for wrong in (-1.0, math.nan, math.inf):
        weight = torch.tensor([1.0, 0.0, wrong])
        said = rf"weight must be finite and not negative, got {wrong} for class 2"
        with pytest.raises(ValueError, match=f"{loss.loss.name}: {said}"):
            loss(loss.scores(2, 3), TARGET, weight=weight)
        with pytest.raises(ValueError, match=f"{loss.loss.module.__name__}: {said}"):
            loss.loss.module(**loss.options, weight=weight)


def test_modules_take_tensors_and_parameters_as_options():
    for alpha in (torch.tensor([[1.5], [2.0]]), torch.nn.Parameter(torch.tensor(1.5)), np.array([[1.5], [2.0]])):
        module = sm.Entmax(alpha=alpha)
        assert module(X).shape == X.shape
    with pytest.raises(ValueError, match=r"Entmax: alpha must be positive and finite, got a tensor with -0\.5"):
        sm.Entmax(alpha=torch.tensor([[1.5], [-0.5]]))
    with torch.device("meta"):
        sm.Entmax(alpha=torch.nn.Parameter(torch.tensor(1.5)))


# Where tensors are ----------------------------------------------------------------------------------------------------------------


def elsewhere(value: Any) -> Any:
    """The same without memory, on the device meta."""
    return (
        [elsewhere(each) for each in value] if isinstance(value, list) else value.to("meta") if isinstance(value, Tensor) else value
    )


def of_tensors() -> Iterator[Any]:
    """Functions with a call of tensors."""
    for name, function in functions():
        given = arguments(name, function, "")
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(list(given.values()))):
            yield pytest.param(name, function, given, id=name)


SEGMENTS = {name for name in vars(sm)["_ROOMS"]["segments"].split() if name[0].islower()}
NEEDS_VALUES = {"bounds", "calibrate_scaling", "calibrate_temperature", "reliability"} | SEGMENTS


@pytest.mark.parametrize(("name", "function", "given"), list(of_tensors()))
def test_tensors_without_memory_have_shapes(name: str, function: Any, given: dict[str, Any]):
    without_memory = {what: elsewhere(value) for what, value in given.items()}
    if name in NEEDS_VALUES:
        with pytest.raises(ValueError, match=rf"^{name}: \w+ must hold values, got a meta tensor"):
            function(**without_memory)
        return
    results = (
        tree_leaves([vars(result) if hasattr(result, "__dict__") else result])
        for result in (function(**given), function(**without_memory))
    )
    for expected, found in zip(*results, strict=True):
        if isinstance(expected, Tensor):
            assert found.is_meta
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize(("name", "function", "parameter", "whole"), list(numeric()))
def test_a_number_may_be_a_tensor_of_no_axes_beside_scores_that_lie_elsewhere(
    name: str, function: Any, parameter: inspect.Parameter, whole: bool
):
    what = parameter.name
    value = EXAMPLES.get(what) if parameter.default is None else parameter.default
    given = arguments(name, function, what)
    value = given[what] if value is parameter.empty else value
    if not isinstance(value, (int, float)) or name in NEEDS_VALUES:
        pytest.skip("no number")
    given = {key: elsewhere(other) for key, other in given.items()}
    number = torch.tensor(value)
    said = None
    try:
        function(**given | {what: number})
    except TypeError as error:  # of what must be a number of Python's
        said = str(error)
    assert said is None or said.startswith(f"{name}: {CALLED.get(what, what)} must be")


@pytest.mark.parametrize(("name", "function"), list(functions()))
def test_the_default_device_is_that_of_nothing_inside(name: str, function: Any):
    given = arguments(name, function, "")
    if "generator" in signature(name, function).parameters:
        given["generator"] = 0
    expected = function(**given)
    with torch.device("meta"):
        found = function(**given)
    if not isinstance(expected, torch.nn.Module):  # which makes its parameters there, as torch's do
        assert equal(found, expected)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: sm.renyi_bounds(X, x), "p"),
        (lambda x: sm.lipschitz_bounds(X, x), "y"),
        (lambda x: sm.quantized_softmax(REQUIRED["q"], x[:, :1].abs()), "scale"),
        (lambda x: sm.linear_attention(X, X, X, state=x.new_ones(10, 4)), "state"),
    ],
)
def test_what_is_beside_scores_lies_where_they_do(call: Any, what: str):
    with pytest.raises(ValueError, match=rf": {what} must be on the device of the scores, cpu, got meta; call {what}.to\('cpu'\)"):
        call(elsewhere(X))


# Everything that draws, of a generator.
DRAWING = {
    "estimate": lambda generator: sm.estimate(np.linspace(0.0, 1.0, 50_000), 0.05, budget=20_000, generator=generator).value,
    "matrix_logsumexp": lambda generator: sm.matrix_logsumexp(lambda V: V, size=300, method="lanczos", generator=generator).value,
    "median_of_means_logsumexp": lambda generator: sm.median_of_means_logsumexp(normal(1000), 9, shuffle=True, generator=generator),
}


@pytest.mark.parametrize("draw", DRAWING.values(), ids=DRAWING)
@pytest.mark.parametrize(
    "make",
    [
        lambda: 7,
        lambda: 2**64 - 1,
        lambda: np.int64(7),
        lambda: torch.Generator().manual_seed(7),
        lambda: np.random.default_rng(7),
    ],
)
def test_seeds_and_generators_of_both_libraries_repeat(draw: Any, make: Any):
    assert float(draw(make())) == float(draw(make()))


@pytest.mark.parametrize("make", [lambda: torch.Generator().manual_seed(7), lambda: np.random.default_rng(7)])
def test_a_generator_goes_on(make: Any):
    generator = make()
    for name in ("estimate", "median_of_means_logsumexp"):
        assert float(DRAWING[name](generator)) != float(DRAWING[name](generator))


@pytest.mark.parametrize("draw", DRAWING.values(), ids=DRAWING)
@pytest.mark.parametrize("wrong", ["7", True, 7.0, -1, 2**64])
def test_other_than_generators_and_seeds_are_refused(draw: Any, wrong: Any):
    with pytest.raises((TypeError, ValueError), match=r"generator must be a torch.Generator, a numpy.random.Generator, or a seed"):
        draw(wrong)


def test_torch_s_own_seed_is_the_default():
    for name in DRAWING:
        torch.manual_seed(3)
        first = float(DRAWING[name](None))
        torch.manual_seed(3)
        assert first == float(DRAWING[name](None))


def test_what_goes_with_the_scores_must_lie_where_they_do(case: Case):
    x, elsewhere, map = normal(4, 5), {"device": "meta", "dtype": torch.float64}, case.map
    options = {"temperature": torch.ones(4, 1, **elsewhere), "where": torch.ones(4, 5, dtype=torch.bool, device="meta")}
    options |= {each.name: torch.ones(4, 1, **elsewhere) for each in map.params if each.gradient is not None}
    for name, value in options.items():
        with pytest.raises(
            ValueError, match=rf"{name} must be on the device of the scores, cpu, got meta; call {name}.to\('cpu'\)"
        ):
            map(x, **{name: value})


def test_the_default_device_is_not_that_of_the_arguments(case: Case):
    x = normal(3, 5)
    per_row = {
        each.name: torch.full((3, 1), float(case.params[each.name])) for each in case.map.params if each.gradient is not None
    }
    expected = case.map(x, **{**case.params, **per_row})
    with torch.device("meta"):
        assert torch.equal(case.map(x, **{**case.params, **per_row}), expected)


def test_targets_weights_and_second_operands_must_lie_where_the_scores_do(loss: LossCase):
    x, target, weight = loss.scores(4, 5), torch.zeros(4, dtype=torch.int64), torch.ones(5, dtype=torch.float64)
    soft = torch.ones(4, 5, dtype=torch.float64)
    for wrong in ({"target": target.to("meta")}, {"target": soft.to("meta")}, {"target": target, "weight": weight.to("meta")}):
        with pytest.raises(ValueError, match="must be on the device of the scores"):
            loss(x, **wrong)
    for call in (
        lambda: sm.logsumexp(x, weights=x.to("meta")),
        lambda: sm.logaddexp(x, x.to("meta")),
        lambda: sm.logmatmulexp(x, x.T.to("meta")),
        lambda: sm.arcface(x, target, x.to("meta")),
    ):
        with pytest.raises(ValueError, match="must be on the device of the scores"):
            call()


# DTensors -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lone_mesh() -> Iterator[Any]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def distributed(value: Any, mesh: Any) -> Any:
    if isinstance(value, list):
        return [distributed(each, mesh) for each in value]
    return DTensor.from_local(value, mesh, [Replicate()]) if isinstance(value, Tensor) else value


TAKES_DTENSORS = {*MAPS, *LOSSES, "softmin", "logsumexp", "score_function"}  # the last by torch's operations
REFUSED = r"^\w[\w.]*: [\w ]+ must be a plain tensor here, got a DTensor; call \.full_tensor\(\)"


@pytest.mark.parametrize(("name", "function", "given"), list(of_tensors()))
def test_dtensors_are_taken_or_refused_by_name(name: str, function: Any, given: dict[str, Any], lone_mesh: Any):
    spread = {what: distributed(value, lone_mesh) for what, value in given.items()}
    if name in TAKES_DTENSORS:
        assert torch.equal(function(**spread).to_local(), function(**given))
    else:
        with pytest.raises(TypeError, match=REFUSED):
            function(**spread)


def test_maps_and_losses_take_dtensors(lone_mesh: Any):
    x = distributed(X, lone_mesh)
    for call in (lambda x: sm.softmin(x), lambda x: sm.logsumexp(x), lambda x: sm.cross_entropy(x, TARGET)):
        assert torch.equal(call(x).to_local(), call(X))
    with pytest.raises(TypeError, match=r"^softmax: temperature must be a plain tensor here, got a DTensor"):
        sm.softmax(X, temperature=x[:, :1].exp())
