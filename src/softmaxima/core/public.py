"""Public functions and modules say of an argument that they do not have what it is called here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from softmaxima.core.numbers import nearest

Public = TypeVar("Public", bound=Callable[..., Any])

# What one argument is called in torch, NumPy, SciPy, transformers and papers.
SYNONYMS = (
    ("dim", "axis", "dims", "axes"),
    ("keepdim", "keepdims", "keep_dims"),
    ("where", "mask", "attn_mask", "attention_mask", "key_padding_mask"),
    ("temperature", "tau", "temp", "T"),
    ("x", "input", "logits", "scores", "a"),
    ("target", "labels", "label", "y_true", "y"),
    ("weight", "weights", "class_weight", "b"),
    ("k", "top_k", "topk"),
    ("p", "top_p", "topp"),
    ("generator", "seed", "rng", "random_state"),
    ("label_smoothing", "smoothing"),
    ("is_causal", "causal"),
    ("first_query", "causal_offset", "query_offset"),
    ("window", "window_size", "sliding_window"),
    ("key_lengths", "cache_seqlens"),
    ("scale", "softmax_scale", "scaling"),
    ("bias", "attn_bias"),
    ("softcap", "logits_soft_cap"),
)
MEANINGS = {"where": ", whose True keeps a score"}
OF_LOSSES = ("alpha", "beta", "eps", "k", "p", "order", "map")  # what a function that takes `loss=` is told with it


def unknown_argument(name: str, got: str, known: Iterable[str], beside: Iterable[str] = (), of: str = "it") -> TypeError:
    """That `of`, which takes the arguments in `known`, has none called `got`; the function `name` has those in `beside` too."""
    takes = [each for each in known if not each.startswith("_")]
    every = [*beside, *takes]
    own = next((own for group in SYNONYMS if got in group for own in group if own in every), None)
    meant = f"; did you mean {own!r}{MEANINGS.get(own, '')}?" if own is not None else nearest(got, every)
    if own is None and "loss" in every and got in OF_LOSSES:
        meant = '; options of a loss go with its name, as in loss=("entmax", 1.3)'
    return TypeError(f"{name}: unknown argument {got!r}{meant}; {of} takes: {', '.join(takes) or 'none'}")


def public(what: Public) -> Public:
    """A function that tells such arguments, or a module whose constructor and `forward` do."""
    if not inspect.isclass(what):
        return telling(what, lambda first: what.__name__)
    for method in ("__init__", "forward"):
        if method in vars(what):
            setattr(what, method, telling(vars(what)[method], lambda module: type(module).__name__, skipped=1))
    return what  # type: ignore[return-value]


def telling(function: Any, name: Callable[[Any], str], skipped: int = 0) -> Any:
    """The function, of which errors tell the name that its first argument has, but nothing of so many `skipped` arguments.

    Arguments are passed on one by one, for a wrapper of *args and **kwargs takes several times as long. Where a function takes any
    keyword, it tells of those itself.
    """
    parameters = inspect.signature(function).parameters.values()
    places, named = ([p for p in parameters if p.kind is kind] for kind in (_PLACE, inspect.Parameter.KEYWORD_ONLY))
    options = [p.name for p in parameters if p.kind is p.VAR_KEYWORD]
    own, by_name = [p.name for p in places[skipped:]], [p.name for p in named]

    def error(first: Any, more: Sequence[Any], others: Iterable[str]) -> TypeError:
        if more:
            return _more_than(name(first), more[0], own, by_name)
        return unknown_argument(name(first), next(iter(others)), [*own, *by_name])

    optional = [[f"{p.name}=None" if p.default is not p.empty else p.name for p in each] for each in (places, named)]
    given = ", ".join([*optional[0], "*_more", *optional[1], f"**{options[0] if options else '_others'}"])
    passed = ", ".join([*(p.name for p in places), *(f"{p.name}={p.name}" for p in named), *(f"**{each}" for each in options)])
    source = f"""
def make(_function, _error):
    def {function.__name__}({given}):
        if _more{"" if options else " or _others"}:
            raise _error({places[0].name if places else None}, _more, {"()" if options else "_others"})
        return _function({passed})
    return {function.__name__}
"""
    made: dict[str, Any] = {}
    exec(compile(source, f"<arguments of {function.__qualname__}>", "exec"), function.__globals__, made)
    found: Any = functools.wraps(function)(made["make"](function, error))
    found.__defaults__ = tuple(p.default for p in places if p.default is not p.empty)
    found.__kwdefaults__ = {p.name: p.default for p in named if p.default is not p.empty}
    return found


_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _more_than(name: str, value: Any, own: Sequence[str], named: Sequence[str]) -> TypeError:
    """Of one argument too many, `value`, which came without a name."""
    shown = isinstance(value, (bool, int, float, str, type(None)))
    got, written = (repr(value), repr(value)) if shown else (getattr(value, "__name__", f"a {type(value).__name__}"), "…")
    named = [each for each in named if not each.startswith("_")]
    if not named:
        return TypeError(f"{name}: takes {len(own)} arguments, {', '.join(own)}; got {got} beyond them")
    after = f"what comes after {own[-1]}" if own else "every argument"
    others = f", or the name that is meant of {', '.join(named[1:])}" if named[1:] else ""
    return TypeError(f"{name}: {after} is given by name, got {got}; write {named[0]}={written}{others}")
