"""Public functions and modules say of an argument that they do not have what it is called here."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from softmaxima.base.numbers import InputError, as_number, check_flag, described, is_bool, nearest

Public = TypeVar("Public", bound=Callable[..., Any])

# What one argument is called here and in torch, NumPy, SciPy, scikit-learn, transformers and papers.
SYNONYMS = (
    ("dim", "axis", "dims", "axes"),
    ("keepdim", "keepdims", "keep_dims"),
    ("where", "mask", "attn_mask", "attention_mask", "key_padding_mask"),
    ("temperature", "tau", "temp", "T"),
    ("x", "input", "logits", "scores", "a", "X", "shard", "inputs", "hidden", "features"),
    ("y", "other", "x2"),
    ("target", "labels", "label", "targets", "y_true", "y"),
    ("class_weight", "weight", "weights"),
    ("sample_weight", "class_weight", "weight", "weights"),
    ("k", "top_k", "topk"),
    ("p", "top_p", "topp", "min_p", "minp"),
    ("generator", "seed", "rng", "random_state"),
    ("label_smoothing", "smoothing"),
    ("ignore_index", "ignore_label", "padding_idx"),
    ("query", "q", "queries"),
    ("key", "k", "keys"),
    ("value", "v", "values"),
    ("is_causal", "causal"),
    ("first_query", "causal_offset", "query_offset"),
    ("window", "window_size", "sliding_window"),
    ("key_lengths", "cache_seqlens"),
    ("scale", "softmax_scale", "scaling", "s", "sigma"),
    ("weights", "b"),
    ("bias", "attn_bias", "b"),
    ("softcap", "logits_soft_cap"),
    ("dropout_p", "dropout"),
    ("return_weights", "need_weights", "output_attentions"),
    ("margin", "m"),
    ("classes", "num_classes", "n_classes", "out_features", "vocab_size"),
    ("samples", "num_samples", "n_samples", "num_sampled"),
    ("total", "T_max", "total_iters", "num_steps", "total_steps"),
    ("last", "eta_min"),
    ("minimum", "min", "min_val"),
    ("maximum", "max", "max_val"),
    ("index", "segment_ids", "batch"),
    ("num_segments", "num_nodes", "dim_size"),
    ("radius", "eps", "epsilon"),
    ("eps", "epsilon"),
    ("norm", "ord", "p"),
    ("learning_rate", "lr"),
    ("epochs", "max_iter", "n_epochs"),
    ("patience", "n_iter_no_change"),
    ("hidden", "hidden_layer_sizes"),
)
MEANINGS = {"where": ", whose True keeps a score", "sample_weight": ", one number for each row"}
# What an argument is here of which another library has the opposite: (its name there, here): how it is written.
OPPOSITES = {
    ("key_padding_mask", "attn_mask"): "~key_padding_mask[:, None, None], whose True lets a query see a key",
    ("scale", "temperature"): "1/scale",
    ("s", "temperature"): "1/s",
}
# Options of maps, as a function that takes `map=` has them.
OF_MAPS = {
    "alpha": "entmax",
    "beta": "elastic_softmax",
    "gamma": "fusedmax",
    "eps": "eps_softmax",
    "k": "topk_softmax",
    "p": "topp_softmax",
    "budget": "budget_sparsemax",
    "order": "taylor_softmax",
    "noise": "perturb_max",
}
# Two maps have a p, of two meanings.
SHARES = {"min_p": "minp_softmax", "minp": "minp_softmax", "top_p": "topp_softmax", "topp": "topp_softmax"}
# Options of losses, as a function that takes `loss=` has them.
OF_LOSSES = {
    "alpha": '("entmax", 1.3)',
    "beta": '("elastic_cross_entropy", 0.1)',
    "gamma": '("focal", 2.0)',
    "eps": '("eps_cross_entropy", 0.1)',
    "k": '("sparse_softmax_loss", 10)',
    "p": '("sparse_softmax_loss", {"p": 0.9})',
    "map": '("fenchel_young_loss", {"map": "normmax"})',
}


def unknown_argument(name: str, got: str, known: Iterable[str], of: str = "it", free: Sequence[str] | None = None) -> TypeError:
    """That `of`, which takes the arguments in `known`, has none called `got`; `free` are those that may be meant."""
    takes = [each for each in known if not each.startswith("_")]
    free = takes if free is None else free
    of_another = of == "map 'softmax'" and got in OF_MAPS  # softmax is what there is where no map is named
    hint = (
        f'; it goes with a map that has it, as in map="{OF_MAPS[got]}", {got}=…'
        if of_another
        else _share(got, f"{name} {of}", free) or meant(got, free)
    )
    taken = f"{of} takes: {', '.join(takes) or 'none'}"
    text = f"{name}: unknown argument {got!r}{hint}"
    error = TypeError(f"{text}; {taken}" if not hint.endswith("?") else f"{text} ({taken})" if takes else text)
    if not is_compiling():  # which cannot trace it
        vars(error)["unknown"] = name, got, takes, of, free
    return error


def _share(got: str, called: str, every: Sequence[str]) -> str:
    """That a share is the p of another map than that which is `called`; nothing of its own."""
    is_minp = "minp" in called.lower()
    return f"; it is p of {SHARES[got]}" if got in SHARES and "p" in every and (is_minp != ("min" in got)) else ""


def add_names(error: TypeError, options: Mapping[str, Any], own: Iterable[str]) -> None:
    """To an error of an argument that is one of a caller's options: the caller's `own` arguments, one of which may be meant."""
    name, got, takes, of, free = vars(error).get("unknown", ("", None, (), "", ()))
    if got in options:
        error.args = unknown_argument(name, got, takes, of, [*free, *own]).args


def meant(got: str, every: Sequence[str]) -> str:
    """The one of these arguments that `got` is another name of, a slip of, or goes with, as the end of a sentence."""
    if got == "sample_weight" and got not in every and "reduction" in every:
        return '; with reduction="none" there is one loss a row, for you to weigh'
    if got in ("keepdim", "keepdims", "keep_dims") and got not in every and "dim" in every and "keepdim" not in every:
        return "; logsumexp has keepdim, and a map keeps every dimension" if "reduction" not in every else ""
    own = next((own for own in every if any(got in group and own in group for group in SYNONYMS)), None)
    own = own or next((own for own in every if (got, own) in OPPOSITES), None)
    if own is not None and (got, own) in OPPOSITES:
        return f"; give {own}={OPPOSITES[got, own]}"
    if own is not None:
        return f"; did you mean {own!r}{MEANINGS.get(own, '')}?"
    if got in OF_LOSSES and "map_params" in every:
        return f'; options of a map and its loss go in map_params and loss_params, as in map_params={{"{got}": …}}'
    if got in OF_LOSSES and "loss" in every:
        return f"; options of a loss go with its name, as in loss={OF_LOSSES[got]}"
    return nearest(got, [each for each in every if not each.startswith("_")])


def is_compiling() -> bool:
    """Whether torch.compile looks on, which need not be loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def public(what: Public) -> Public:
    """A function that tells such arguments, or a class whose constructor, calls and public methods do, inherited ones too."""
    if not inspect.isclass(what):
        name = _name(what)
        return telling(what, lambda first: name)
    for owner in what.__mro__:
        inherited = f"{owner.__module__}.{owner.__qualname__}" in _OF_OTHERS
        for method, found in [*vars(owner).items()] if inherited or owner.__module__.startswith("softmaxima.") else ():
            if inherited and getattr(what, method) is not found:
                continue
            kind = type(found) if isinstance(found, (classmethod, staticmethod)) else None
            function = found.__func__ if kind else found
            if not inspect.isfunction(function) or "tells" in vars(function) or (method[0] == "_" and method not in _CALLS):
                continue
            after = "" if method in _CALLS or method == "forward" else f".{method}"
            named = functools.partial(_name_of, what if inherited else owner, kind, after)
            of_estimator = method == "__init__" and hasattr(owner, "get_params")  # they check when they fit
            told = telling(function, named, skipped=int(kind is not staticmethod), checks_flags=not of_estimator)
            setattr(what if inherited else owner, method, kind(told) if kind else told)
    return what  # type: ignore[return-value]


_CALLS = ("__init__", "__call__")
# Classes of other libraries whose methods people call on ours, where they are told as our own.
_OF_OTHERS = {
    "sklearn.base.ClassifierMixin",
    "torch.distributions.distribution.Distribution",
    "torch_geometric.nn.aggr.base.Aggregation",
}


def _name(what: Any) -> str:
    """What it is called: in some rooms the names are those of other rooms."""
    room = what.__module__.removeprefix("softmaxima.").partition(".")[0]
    return f"{room}." * (room in ("dask", "distributed")) + what.__name__


def _name_of(owner: type, kind: type | None, after: str, first: Any) -> str:
    """What a method is called that is given `first`: an object, its class, or of a static method an argument."""
    return _name(owner if kind is staticmethod else first if kind else type(first)) + after


def telling(function: Any, name: Callable[[Any], str], skipped: int = 0, checks_flags: bool = True) -> Any:
    """The function, whose unknown arguments raise `unknown_argument`; the first `skipped` are not told.

    Arguments are passed on one by one, for a wrapper of *args and **kwargs takes several times as long; those that must be given
    are … where they are not. Where a function takes any keyword, it tells of those itself, once it has what it must have.
    """
    parameters = inspect.signature(function).parameters.values()
    places, named = ([p for p in parameters if p.kind is kind] for kind in (_PLACE, inspect.Parameter.KEYWORD_ONLY))
    options = [p.name for p in parameters if p.kind is p.VAR_KEYWORD]
    own, by_name = [p.name for p in places[skipped:]], [p.name for p in named]
    needed = [p.name for p in (*places[skipped:], *named) if p.default is p.empty]
    optional = [each for each in (*own, *by_name) if each not in needed]

    def error(first: Any, more: Sequence[Any], others: Iterable[str], values: Sequence[Any]) -> TypeError:
        if more:
            return _more_than(name(first), more, own, {p.name: p.annotation for p in named})
        missing = [each for each, value in zip(needed, values, strict=True) if value is ...]
        free = [*missing, *optional]
        unknown = [each for each in others if not options or meant(each, free)]
        if unknown:
            return unknown_argument(name(first), unknown[0], [*own, *by_name], free=free)
        takes = ", ".join(each for each in (*own, *by_name) if not each.startswith("_"))
        return TypeError(f"{name(first)}: {' and '.join(missing)} must be given; it takes: {takes}")

    others = options[0] if options else "_others"
    given = ", ".join([*(f"{p.name}=None" for p in places), "*_more", *(f"{p.name}=None" for p in named), f"**{others}"])
    passed = ", ".join([*(p.name for p in places), *(f"{p.name}={p.name}" for p in named), *(f"**{each}" for each in options)])
    wrong = " or ".join(["_more", *(() if options else (others,)), *(f"{each} is ..." for each in needed)])
    first = places[0].name if places else None
    flags = "".join(
        f"""
        if {p.name} is not True and {p.name} is not False:
            {p.name} = _flag(_name({first}), {p.name!r}, {p.name})"""
        for p in (*places[skipped:], *named)
        if checks_flags and p.annotation in (bool, "bool")
    )
    asked = ", ".join(f"{each!r}: {each}" for each in (*own, *by_name))
    source = f"""
def make(_function, _error, _name, _flag, _explain, _add, _optional, _compiling):
    def {function.__name__}({given}):
        if {wrong}:
            raise _error({first}, _more, {others}, [{", ".join(needed)}])
        {flags}
        try:
            return _function({passed})
        except Exception as error:
            if not _compiling():
                {f"_add(error, {others}, _optional)" if options else ""}
                _explain(_function, _name({first}), error, {{{asked}}})
            raise
    return {function.__name__}
"""
    made: dict[str, Any] = {}
    exec(compile(source, f"<arguments of {function.__qualname__}>", "exec"), function.__globals__, made)
    found: Any = functools.wraps(function)(
        made["make"](function, error, name, check_flag, explain, add_names, optional, is_compiling)
    )
    found.__defaults__ = tuple(_default(p) for p in places[skipped:])
    found.__kwdefaults__ = {p.name: _default(p) for p in named}
    found.tells = True
    return found


_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _default(parameter: inspect.Parameter) -> Any:
    return ... if parameter.default is parameter.empty else parameter.default


def _more_than(name: str, values: Sequence[Any], own: Sequence[str], named: Mapping[str, Any]) -> TypeError:
    """Of arguments too many, `values`, which came without a name. A dtype among them is the one of torch's functions."""
    dtype = next((each for each in values if type(each).__name__ == "dtype" and "dtype" in named), None)
    value = values[0] if dtype is None else dtype
    shown = isinstance(value, (bool, int, float, str, type(None))) or value is dtype
    got = repr(value) if shown else getattr(value, "__name__", f"a {type(value).__name__}")
    free = [each for each in named if not each.startswith("_")]
    if not free:
        takes = f"{len(own)} arguments, {', '.join(own)}" if own else "no arguments"
        return TypeError(f"{name}: takes {takes}; got {got} beyond them")
    after = f"arguments after {own[-1]}" if own else "arguments"
    meant = [each for each in free if _may_be(value, str(named[each]), each)] if dtype is None else ["dtype"]
    is_whole = shown and meant and (not isinstance(value, (int, float)) or value > 0 or meant[0] == "dim" or value is False)
    write = [f"{meant[0]}={value!r}" if is_whole else f"{meant[0]}=…"] if meant else []
    write += [f"{each}=…" for each in free if each not in meant[:1]] if dtype is None else []
    more = f" or {', '.join(write[1:])}" if write[1:] else ""
    return TypeError(f"{name}: {after} must be named, got {got}; write {write[0]}{more}")


def _may_be(value: Any, annotation: str, what: str) -> bool:
    """Whether a value is of a kind that an annotation names; a negative int is an axis where there is one."""
    if isinstance(value, int) and value is not True and value is not False and value < 0:
        return what in ("dim", "ignore_index")
    kinds: dict[type, tuple[str, ...]] = {
        bool: ("bool",),
        int: ("int", "float"),
        float: ("float",),
        str: ("str", "Literal", "AnyMap", "NoiseLike"),
        type(None): ("None",),
    }
    words = kinds.get(type(value), ("Array", "Tensor") if hasattr(value, "shape") else ("Callable",) if callable(value) else ())
    return any(re.search(rf"\b{word}\b", annotation) for word in words)


def explain(function: Callable[..., Any], name: str, error: Exception, given: Mapping[str, Any]) -> None:
    """Say of an error that is not our own which argument its annotation does not allow, whose call failed, or what came.

    What other code than that of libraries raises, such as a function that was given, stays as it is.
    """
    if is_compiling() or isinstance(error, Warning):
        return
    if not _is_of_libraries(error, function):
        return
    raw = vars(error).get("raw")  # of a public function that this one calls, whose name nobody called
    if raw is None and re.match(r"[\w.]+: ", str(error)):
        _tell_of_order(error, given)
        return
    parameters = inspect.signature(function).parameters
    hints = {what: parameter.annotation for what, parameter in parameters.items()}
    for what, value in given.items():
        if hints[what] is inspect.Parameter.empty or value is parameters[what].default:
            continue
        hint = hints[what]
        try:
            hint = eval(hint, function.__globals__) if isinstance(hint, str) else hint
            wrong = not _fits(hint, value)
        except (NameError, AttributeError, TypeError):  # of types that only checkers import
            wrong = False
        if wrong and not hasattr(value, "forward"):  # a module may stand for what it gives
            raise TypeError(f"{name}: {what} must be {_words(hint)}, got {described(value, _words(hint))}") from error
        called = [getattr(value, "forward", value)] if isinstance(error, TypeError) and callable(value) else []
        if any(str(error).startswith(f"{getattr(each, '__qualname__', None)}() ") for each in called):
            raise TypeError(f"{name}: {what} cannot be called as it is here, {error}; give one with these arguments") from error
    if isinstance(error, InputError):
        return
    for what, value in given.items():
        dtype = str(getattr(value, "dtype", ""))
        if getattr(value, "is_meta", False):
            raise ValueError(
                f"{name}: {what} must hold values here, got a meta tensor, which has a shape alone; give one with memory"
            ) from error
        if dtype.startswith("torch.float8"):
            raise TypeError(f"{name}: {what} must not be of {dtype}, in which torch does not compute; call .float()") from error
        if "requires grad" in str(error) and getattr(value, "requires_grad", False):
            raise ValueError(f"{name}: {what} must not require a gradient here; call .detach()") from error
    came = ", ".join(f"{what} {brief}" for what, value in given.items() if (brief := _brief(value, hints[what])))
    first = "more memory was asked for than there is: " * bool(re.search("allocat|Storage size|MemoryError", repr(error)))
    raw = raw or str(error).rstrip(".") or type(error).__name__
    text = f"{name}: {first}{raw}{came and '; got '}{came}"
    if type(error) not in (AssertionError, AttributeError, KeyError) and error.args == (str(error),):
        error.args = (text,)  # of the type that it has
        vars(error)["raw"] = raw
    else:
        kinds = (TypeError, ValueError, IndexError, MemoryError, NotImplementedError, RuntimeError)
        told = next((kind for kind in kinds if isinstance(error, kind)), ValueError)(text)
        vars(told)["raw"] = raw
        raise told from error


def _tell_of_order(error: Exception, given: Mapping[str, Any]) -> None:
    """Asks of scores or weights that are refused whether they stand in the place of what they are compared with."""
    target = next((each for each in ("target", "labels") if each in given), None)
    if target is None or not isinstance(error, TypeError) or re.search(rf": {target}\b", str(error)):
        return
    refused = next((each for each in ("weight", "class_vectors") if re.match(rf"[\w.]+: {each} must be ", str(error))), "")
    refused = refused if refused in given else next(iter(given))
    kinds = {each: str(getattr(given[each], "dtype", "")).removeprefix("torch.") for each in (refused, target)}
    if kinds[refused].startswith(("int", "uint")) and kinds[target].startswith(("float", "bfloat")):
        first, second = (each for each in given if each in kinds)
        is_order = refused != next(iter(given))  # scores may be integers by mistake, and weights are none
        told = f"{str(error).partition(';')[0]}; exchange" if is_order else f"{error}; or exchange"
        error.args = (f"{told} {first} and {second}, of which {first} comes first",)


_LIBRARIES = {
    "softmaxima",
    "torch",
    "torch_geometric",
    "numpy",
    "sklearn",
    "scipy",
    "dask",
    "opendp",
    "faiss",
    "toolz",
    "typing_extensions",
}


def _is_of_libraries(error: Exception, function: Callable[..., Any]) -> bool:
    """Whether an error of ours, Python, NumPy or scikit-learn comes out of the function or code of libraries alone."""
    if type(error).__module__.partition(".")[0] not in ("softmaxima", "builtins", "numpy", "sklearn") or isinstance(error, OSError):
        return False
    rooms = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_globals is not function.__globals__]
    roots = {room.get("__name__", "softmaxima").partition(".")[0] for room in rooms}
    return roots <= _LIBRARIES | sys.stdlib_module_names - {"__main__"}


def _brief(value: Any, hint: Any) -> str:
    """Of what came the dtype and shape of arrays, and numbers where these are asked for; nothing else that it holds."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    words = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
    is_asked = re.fullmatch(r"((int|float|bool|None)( \| )?)+", words)
    return str(value) if is_asked and isinstance(value, (bool, int, float)) else ""


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value is of a type, NumPy's numbers and tensors of no axes being numbers."""
    kind = typing.get_origin(hint) or hint
    if kind in (typing.Union, types.UnionType):
        return any(_fits(each, value) for each in typing.get_args(hint))
    if kind is typing.Literal:
        return value in typing.get_args(hint)
    if kind in (None, type(None), bool):
        return value is None if kind is not bool else is_bool(value)
    if kind in (int, float):
        is_scalar = getattr(value, "ndim", None) == 0
        return not is_bool(value) and (is_scalar or (hasattr(value, "__index__") if kind is int else as_number(value) is not None))
    if kind is Callable:
        return callable(value)
    if kind is tuple and isinstance(value, list):
        return True  # which most functions take
    return not isinstance(kind, type) or (isinstance(value, kind) and not (kind is Sequence and isinstance(value, str)))


_WORDS = {None: "None", type(None): "None", bool: "True or False", int: "an int", float: "a number", str: "a string"}
_WORDS |= {Callable: "a function", Sequence: "a tuple"}


def _words(hint: Any) -> str:
    kind = typing.get_origin(hint) or hint
    if kind in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(each) for each in typing.get_args(hint)))
    if kind is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    return _WORDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"


def listing(room: Mapping[str, Any], more: Callable[[], Iterable[str]] = tuple) -> Callable[[], list[str]]:
    """The `__dir__` of a module with these globals: its public names, and `more` that it makes when they are asked for."""
    return lambda: sorted({*(name for name in room if name.startswith("__")), *room["__all__"], *more()})
