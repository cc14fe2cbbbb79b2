"""Every keyword of every public function and class: misspelt, or by the name that another library has, it is told its own."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import softmaxima as sm
from softmaxima.base.public import _OF_OTHERS, OF_LOSSES, public

ROOMS = [*vars(sm)["_ROOMS"], *vars(sm)["_APART"], "compat.entmax"]
# What functions return, and what only has subclasses: nobody calls these constructors.
RESULTS = {
    "AttentionInParts", "AttentionReplacement", "Audit", "Choice", "Detector", "Estimate", "InnerProduct", "InParts", "Interval",
    "LossModule", "Merged", "Opened", "Release", "Reliability", "Sampler", "ScalingCalibration", "SoftSolution", "Sparsified",
    "Summary", "TemperatureCalibration", "TraceEstimate",
}  # fmt: skip
# What torch, NumPy, SciPy, scikit-learn and transformers call an argument, by its name here.
ELSEWHERE = {
    "dim": ["axis"],
    "keepdim": ["keepdims"],
    "where": ["mask"],
    "temperature": ["tau"],
    "x": ["input", "logits", "X", "a"],
    "input": ["x", "logits"],
    "shard": ["x", "input"],
    "target": ["labels", "y_true", "y"],
    "weight": ["weights", "class_weight"],
    "labels": ["target", "y_true"],
    "logits": ["x", "input"],
    "generator": ["seed", "rng", "random_state"],
    "random_state": ["seed", "generator"],
    "query": ["q"],
    "key": ["k"],
    "value": ["v"],
    "radius": ["eps", "epsilon"],
    "norm": ["p", "ord"],
    "epsilon": ["eps"],
    "eps": ["epsilon"],
    "samples": ["num_samples"],
    "classes": ["num_classes"],
    "total": ["T_max"],
    "num_segments": ["num_nodes"],
    "learning_rate": ["lr"],
    "epochs": ["max_iter"],
    "margin": ["m"],
    "k": ["top_k"],
}


def callables() -> Iterator[tuple[str, Any]]:
    for room in ROOMS:
        module = importlib.import_module(f"softmaxima.{room}")
        for name in [*module.__all__, *(("entmax", "cross_entropy") if room in ("dask", "distributed") else ())]:
            value = getattr(module, name)
            if callable(value) and name not in RESULTS and not (inspect.isclass(value) and issubclass(value, (tuple, Exception))):
                yield f"{room}.{name}", value


CALLABLES = dict(callables())


def methods() -> Iterator[tuple[str, Any]]:
    """Public methods, what is called and constructors, of every class that people hold; inherited ones too."""
    for room in ROOMS:
        module = importlib.import_module(f"softmaxima.{room}")
        for made in [getattr(module, name) for name in module.__all__]:
            if not inspect.isclass(made) or issubclass(made, (tuple, Exception)):
                continue
            concrete = type(made.__name__, (made,), {})
            concrete.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
            bare = object.__new__(concrete)
            for owner in made.__mro__:
                for name, found in vars(owner).items() if owner.__module__.startswith("softmaxima.") else ():
                    if name in (
                        "propagate",
                        "collect",
                        "edge_updater",
                        "edge_collect",
                    ):  # which torch_geometric writes when a layer is made
                        continue
                    is_method = inspect.isfunction(found) or isinstance(found, (classmethod, staticmethod))
                    if is_method and (name[0] != "_" or (name in ("__init__", "__call__") and made.__name__ not in RESULTS)):
                        yield f"{room}.{made.__name__}.{name}", getattr(bare, name)


METHODS = dict(methods())


def slips(name: str) -> list[str]:
    """The name with two neighbours exchanged."""
    return [name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1) if name[i] != name[i + 1]]


def arguments(function: Any) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each for each in inspect.signature(function).parameters.values() if each.kind in kinds and each.name[0] != "_"]


@pytest.mark.parametrize("called", CALLABLES)
def test_a_slip_or_a_foreign_name_is_told_the_argument_s_own(called: str):
    known = [parameter.name for parameter in arguments(CALLABLES[called])]
    for own in known:
        for wrong in [*slips(own), *ELSEWHERE.get(own, [])]:
            if wrong not in known:
                with pytest.raises(TypeError, match=rf"^[\w.]+: unknown argument '{wrong}'; did you mean '{own}'"):
                    CALLABLES[called](**{wrong: 1})


def test_a_share_is_told_the_map_whose_it_is():
    for called, function in CALLABLES.items():
        if "p" in [parameter.name for parameter in arguments(function)]:
            own, other = ("min", "top") if "minp" in called.lower() else ("top", "min")
            with pytest.raises(TypeError, match=rf"^[\w.]+: unknown argument '{own}_p'; did you mean 'p'"):
                function(**{f"{own}_p": 0.1})
            with pytest.raises(TypeError, match=rf"^[\w.]+: unknown argument '{other}_p'; it is p of {other}p_softmax"):
                function(**{f"{other}_p": 0.1})


@pytest.mark.parametrize("called", CALLABLES)
def test_what_must_be_given_is_named(called: str):
    needed = [parameter.name for parameter in arguments(CALLABLES[called]) if parameter.default is parameter.empty]
    if needed:
        with pytest.raises(TypeError, match=rf"^[\w.]+: {' and '.join(needed)} must be given; it takes: "):
            CALLABLES[called]()


@pytest.mark.parametrize("made", sorted({name.rpartition(".")[0] for name in METHODS}))
def test_methods_name_unknown_missing_and_surplus_arguments(made: str):
    for called, method in METHODS.items():
        if called.rpartition(".")[0] == made:
            known = arguments(method)
            parameters = inspect.signature(method).parameters.values()
            places = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
            needed = [each.name for each in known if each.default is each.empty]
            if all(each.kind is not each.VAR_KEYWORD for each in parameters):  # which tell of them themselves
                with pytest.raises(TypeError, match=r"^[\w.]+: unknown argument '_nonsense'"):
                    method(**dict.fromkeys(needed, 0), _nonsense=1)
            with pytest.raises(TypeError, match=r"^[\w.]+: (takes .* got 7 beyond them|arguments .*must be named, got 7)"):
                method(*[0] * len(places), 7)
            for wrong, own in [(slip, each.name) for each in known for slip in slips(each.name)]:
                with pytest.raises(TypeError, match=rf"^[\w.]+: unknown argument '{wrong}'; did you mean '{own}'"):
                    method(**{wrong: 1})
            if needed:
                with pytest.raises(TypeError, match=rf"^[\w.]+: {' and '.join(needed)} must be given; it takes: "):
                    method()


def test_flags_of_all_functions_and_methods_are_refused_by_name_before_any_work():
    for function in {**CALLABLES, **METHODS}.values():
        if hasattr(getattr(function, "__self__", function), "get_params"):  # estimators of scikit-learn check when they fit
            continue
        known = arguments(function)
        needed = [each.name for each in known if each.default is each.empty]
        for flag in [each.name for each in known if each.annotation in (bool, "bool")]:
            for wrong in ("no", 1, None):
                with pytest.raises(TypeError, match=rf"^[\w.]+: {flag} must be True or False, got "):
                    function(**dict.fromkeys(needed, 0) | {flag: wrong})


def test_raw_errors_are_explained_by_annotations_and_by_what_was_called():
    @public
    def made(x: float, f: Callable[[float], float], size: Sequence[int] = ()) -> float:
        return f(x + 0) + len(size) / 1.0 + sum(size)

    assert made(1.0, lambda x: x) == 1.0
    for call, said in (
        (lambda: made("2", lambda x: x), r"^made: x must be a number, got the string '2'; pass a number$"),
        (lambda: made(2.0, 3), r"^made: f must be a function, got 3; pass a function$"),
        (lambda: made(2.0, lambda x: x, size="ab"), r"^made: size must be a tuple, got the string 'ab'; pass a tuple$"),
        (
            lambda: made(2.0, lambda: 1.0),
            r"^made: f cannot be called as it is here, .* takes 0 positional arguments but 1 was given",
        ),
    ):
        with pytest.raises(TypeError, match=said):
            call()
    with pytest.raises(ZeroDivisionError):  # what the arguments do not explain stays as it is
        made(2.0, lambda x: 1 / 0)


def test_what_a_function_that_is_given_raises_stays_as_it_is(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    q, x = torch.zeros(1, 2, 3), torch.zeros(2, 3)
    for error in (
        ValueError("mine"),
        OSError(28, "full", "my.log"),
        KeyError("mine"),
        AssertionError(),
        type("Own", (Exception,), {})(),
    ):

        def mine(*_: Any, error: Exception = error) -> Any:
            raise error

        for call in (
            lambda f: sm.attention(q, q, q, map="proportional", f=f, window=[1, 1]),
            lambda f: sm.robust.attack(f, x.sigmoid(), torch.tensor([0, 1]), 0.1, limits=[0, 1]),
            lambda f: sm.file_logsumexp(tmp_path / "x.npy", progress=f),
            lambda f: sm.file_logsumexp(tmp_path / "x.npy", observe=f),
            lambda f: sm.proportional(x, f=f),
        ):
            with pytest.raises(type(error)) as raised:
                call(mine)
            assert raised.value is error
    with pytest.raises(TypeError, match=r"^test_what.*<lambda>\(\) missing"):  # of what it calls
        sm.proportional(x, f=lambda z: (lambda a, b: a)(z))


def test_methods_of_other_libraries_on_ours_are_told_too():
    for made in (sm.Classifier, sm.TemperatureCalibrator, sm.policy.Policy, sm.graph.MapAggregation):
        for owner in made.__mro__:
            if f"{owner.__module__}.{owner.__qualname__}" in _OF_OTHERS:
                own = {
                    name
                    for name, found in vars(owner).items()
                    if inspect.isfunction(found) and (name[0] != "_" or name == "__call__")
                }
                assert own
                assert all("tells" in vars(getattr(made, name)) for name in own), own


# What stands in the place of an argument, whatever that is: no function has it wrong in silence, nor fails in words of another.
WRONG = {
    "string": "no such thing",
    "bytes": b"ab",
    "object": object(),
    "NaN": float("nan"),
    "of no entry": torch.zeros(0),
    "of another shape": torch.ones(7, 5),
    "float8": torch.ones(2, 3).to(torch.float8_e4m3fn),
    "without memory": torch.ones(2, 3, device="meta"),
    "objects": np.full((2, 3), None),
    "fields": np.zeros((2, 3), [("a", "f4")]),
    "of no axis": np.array(2.0),
    "strings": np.array(["a", "b"]),
    "module": torch.nn.Linear(3, 3),
}
SCORES, LABELS, FEATURES = torch.tensor([[0.1, -0.3, 0.5], [0.2, 0.0, -0.4]]), torch.tensor([0, 2]), torch.ones(2, 4)
HEADS = (torch.ones(1, 2, 5, 4),) * 3
GIVEN: dict[str, Any] = {
    "x": SCORES, "X": SCORES, "input": SCORES, "target": LABELS, "labels": LABELS, "logits": SCORES, "index": torch.tensor([0, 1]),
    "query": HEADS[0], "key": HEADS[0], "value": HEADS[0], "map": "softmax", "q": SCORES, "y": SCORES, "lower": SCORES,
    "upper": SCORES + 1, "radius": 0.1, "hidden": FEATURES, "weight": torch.ones(3, 4), "k": 2, "in_features": 4, "classes": 3,
    "samples": 2, "sampler": "uniform", "init": 2.0, "last": 1.0, "total": 3, "factor": 0.5, "ratio": 1.0, "layers": 2,
    "entropy": 0.5, "scores": SCORES, "f": lambda draws: draws.square().sum(-1), "solver": lambda z: z.argmax(-1),
    "in_channels": 4, "out_channels": 2, "embed_dim": 4, "num_heads": 2, "reward": SCORES, "discount": 0.5, "W": torch.ones(50, 4),
    "transition": torch.full((2, 3, 2), 0.5), "queries": FEATURES, "items": FEATURES, "level": 0.5, "proportion": 0.2,
}  # fmt: skip
GRAPH = {"x": torch.ones(3, 4), "edge_index": torch.tensor([[0, 1], [1, 2]])}
CALLED: dict[str, tuple[Any, dict[str, Any]]] = {
    "Policy.sample_n": (lambda **o: sm.policy.Policy(SCORES).sample_n(**o), {"n": 2}),
    "Policy.expand": (lambda **o: sm.policy.Policy(SCORES).expand(**o), {"batch_shape": (2,)}),
    "MapAggregation": (lambda **o: sm.graph.MapAggregation()(**o), {"x": FEATURES, "index": LABELS, "dim_size": 3, "dim": -2}),
    "MapGATConv": (lambda **o: sm.graph.MapGATConv(4, 2)(**o), {**GRAPH, "edge_attr": None}),
    "MapTransformerConv": (
        lambda **o: sm.graph.MapTransformerConv(4, 2, edge_dim=3)(**o),
        {**GRAPH, "edge_attr": torch.ones(2, 3)},
    ),
    "LayerwiseTemperature.of": (lambda **o: sm.LayerwiseTemperature(1.0, 1.0, 2).of(**o), {"layer": 1}),
    "TemperatureCalibration.scores": (
        lambda **o: sm.calibrate_temperature(torch.eye(3).repeat(3, 1), LABELS.repeat(5)[:9] * 0 + torch.arange(9) % 3).scores(**o),
        {"x": SCORES},
    ),
}


@pytest.mark.filterwarnings("ignore:.*sample_n")
def test_every_wrong_argument_is_told_by_the_name_of_the_function():
    """A raw error of torch, NumPy or another library is none that names what people called."""
    called = dict(CALLED)
    for name, function in CALLABLES.items():
        known = arguments(function)
        base = {each.name: GIVEN[each.name] for each in known if each.default is each.empty and each.name in GIVEN}
        whole = len(base) == sum(each.default is each.empty for each in known)
        if whole and not name.startswith(("dask", "distributed", "secure", "integrations", "compat", "losses.", "maps.")):
            called[name] = function, {each.name: each.default for each in known if each.default is not each.empty} | base
    raw = {}
    for name, (function, base) in called.items():
        fits = {what: value for what, value in base.items() if value is not None or what == "edge_attr"}
        for what in fits:
            for kind, wrong in WRONG.items():
                try:
                    function(**{**fits, what: wrong})
                except (TypeError, ValueError, IndexError, RuntimeError, OSError) as error:
                    if not re.match(r"[\w.]+: ", str(error)):
                        raw[name, what, kind] = repr(error)
    assert not raw


@pytest.mark.parametrize("blocks", [b"abc", "12", {1: 2}, np.array(1.0), np.ma.masked_array([1.0, 2.0], [False, True])], ids=str)
def test_blocks_that_iterate_over_other_than_their_scores_are_refused(blocks: Any):
    with pytest.raises(TypeError, match=r"^streaming_logsumexp: blocks must"):
        sm.streaming_logsumexp(blocks)


@pytest.mark.parametrize("option", OF_LOSSES)
def test_an_option_of_a_loss_is_told_a_form_that_holds(option: str):
    hidden, weight, target = torch.ones(2, 3), torch.ones(12, 3), torch.tensor([0, 1])
    with pytest.raises(
        TypeError, match=rf"^linear_loss: unknown argument '{option}'; options of a loss go with its name"
    ) as caught:
        sm.linear_loss(hidden, weight, target, **{option: 1})
    told = re.search(r"as in loss=(.*?); it takes", str(caught.value))
    assert told is not None
    assert sm.linear_loss(hidden, weight, target, loss=ast.literal_eval(told[1])).isfinite()


STRINGS, TABLE, MARKED = np.array(["10", "9.5", "x"]), torch.eye(4), [0, 2, 1, 1]
Y = torch.tensor(MARKED)
OF_FLASH = "None is a side without end, as FlashAttention's -1 is"
# (what is called, what its error says must be done, in the words of a regular expression).
ADVICE: list[tuple[Callable[[], Any], str]] = [
    (lambda: sm.softmax(STRINGS), r"scores .*; call \.astype\(float\)"),
    (lambda: sm.softmax(STRINGS.astype(object)), r"scores .*; call \.astype\(float\)"),
    (lambda: sm.cross_entropy(TABLE, Y, weight=STRINGS), r"weight .*; call \.astype\(float\)"),
    (lambda: sm.softmax(np.ones(3), where=STRINGS), r"where .*; .* as in where == 'True'$"),
    (lambda: sm.cross_entropy(TABLE, STRINGS), r"target .*; number what they name: numpy\.unique"),
    (lambda: sm.reliability(TABLE, STRINGS), r"labels .*; number what they name: numpy\.unique"),
    (lambda: sm.calibrate_temperature(TABLE, F.one_hot(Y, 4)), r"; call \.argmax\(-1\) of one-hot labels$"),
    (lambda: sm.reliability(TABLE, F.one_hot(Y, 4)), r"; call \.argmax\(-1\) of one-hot labels$"),
    (lambda: sm.reliability(TABLE, F.one_hot(Y, 4).float()), r"; call \.argmax\(-1\)"),
    (lambda: sm.reliability(TABLE, torch.ones(4, 4, dtype=torch.long)), r"; dim=None says"),
    (
        lambda: sm.fenchel_young_loss(TABLE, Y, map=sm.Entmax(alpha=1.3, temperature=2.0)),
        r"give map='entmax', alpha=module\.alpha, temperature=module\.temperature$",
    ),
    (lambda: sm.fenchel_young_loss(TABLE, Y, map=sm.Entmax(alpha=1.3)), r"give map='entmax', alpha=module\.alpha$"),
    (lambda: sm.attention(*HEADS, key_padding_mask=Y > 0), r"; give attn_mask=~key_padding_mask\[:, None, None\]"),
    (lambda: sm.linear_loss(TABLE, Y, TABLE), r"weight .*int64; exchange weight and target, of which weight comes first$"),
    (lambda: sm.margin_softmax_loss(TABLE, Y, TABLE), r"int64; exchange weight and target"),
    (lambda: sm.sampled_softmax_loss(TABLE, Y, TABLE, samples=2, sampler="uniform"), r"int64; exchange weight and target"),
    (lambda: sm.arcface(TABLE, TABLE, Y), r"int64; exchange target and class_vectors, of which target comes first$"),
    (lambda: sm.linear_loss(TABLE, Y[:, None], Y), r"weight .*; call weight\.float\(\) first$"),
    (lambda: sm.cross_entropy(Y, TABLE), r"; call x\.float\(\) first; or exchange input and target, of which input comes first$"),
    (lambda: sm.sparse_softmax_loss(TABLE, Y, 3), r"; the third place is weight's: write k=3$"),
    (lambda: sm.sparse_softmax_loss(TABLE, Y, 0.9), r"; the third place is weight's: write p=0\.9$"),
    (lambda: sm.softmax(MagicMock()), r"got MagicMock; call torch\.tensor\(\) or numpy\.array\(\)$"),
    (lambda: sm.softmax(TABLE, keepdim=True), r"'keepdim'; logsumexp has keepdim, and a map keeps every dimension"),
    (lambda: sm.logsumexp(TABLE, b=TABLE), r"'b'; did you mean 'weights'\?"),
    (lambda: sm.am_softmax_loss(TABLE, Y, scale=30.0), r"'scale'; give temperature=1/scale;"),
    (lambda: sm.am_softmax_loss(TABLE, Y, s=30.0), r"'s'; give temperature=1/s;"),
    (lambda: sm.cosface(TABLE, Y, s=30.0), r"'s'; did you mean 'scale'\?"),
    (lambda: sm.perturb_max(TABLE, sigma=1.0), r"'sigma'; did you mean 'scale'\?"),
    (lambda: sm.attention(*HEADS, window=(-1, 0)), rf"window must be .* got -1; {OF_FLASH}$"),
]


def test_what_an_error_advises_is_what_helps():
    for call, said in ADVICE:
        with pytest.raises((TypeError, ValueError), match=rf"^\w+: .*{said}"):
            call()


def test_names_of_other_libraries_are_told_ours():
    for wrong, own in {
        "entmax_bisect": "entmax", "EntmaxBisect": "Entmax", "EntmaxBisectLoss": "EntmaxLoss", "budget_bisect": "budget_sparsemax",
        "logsoftmax": "log_softmax", "Logsoftmax": "LogSoftmax", "log_sum_exp": "logsumexp", "nll_loss": "cross_entropy",
        "NLLLoss": "CrossEntropyLoss", "softmx": "softmax",
    }.items():  # fmt: skip
        with pytest.raises(AttributeError, match=rf"^module 'softmaxima' has no attribute '{wrong}'; did you mean '{own}'"):
            getattr(sm, wrong)
    for wrong in ("_softmax", "zzz"):
        with pytest.raises(AttributeError, match=rf"has no attribute '{wrong}'$"):
            getattr(sm, wrong)
