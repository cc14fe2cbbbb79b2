"""The functions of a room that has a form of every map and loss, under the names of these, and their types for type checkers."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from softmaxima.base.public import telling

OF_WHOLE_ROWS = ("dim", "where")  # which a room takes where it names them itself


@functools.cache
def by_name(module: str, function: Callable[..., Any], name: str, whole: Callable[..., Any] | None) -> Callable[..., Any]:
    """The room's function with a map's or loss's name as its first argument, and called so.

    whole: that of whole rows, whose options and first words it has; None where a user's map has none.
    """

    def named(*args: Any, **options: Any) -> Any:
        return function(name, *args, **options)

    named.__module__, named.__name__, named.__qualname__ = module, name, name
    named.__signature__ = _signature(function, whole)  # type: ignore[attr-defined]
    named.__doc__ = _documentation(function, name, whole)
    called = f"{module.removeprefix('softmaxima.')}.{name}"
    return telling(named, lambda first: called)


def in_parts(maps: Mapping[str, Any], losses: Mapping[str, Any]) -> list[str]:
    """The names of those that have a form in parts, of which such a room has one as well."""
    return [
        *(name for name, map in maps.items() if map.blocks is not None),
        *(name for name, loss in losses.items() if loss.row_form is not None),
    ]


def _signature(function: Callable[..., Any], whole: Callable[..., Any] | None) -> inspect.Signature:
    known = inspect.signature(function)
    own = list(known.parameters.values())[1:]
    if whole is None:
        return known.replace(parameters=own)
    by_name = {p.name for p in inspect.signature(whole).parameters.values() if p.kind is p.KEYWORD_ONLY}
    own = [
        parameter.replace(kind=parameter.KEYWORD_ONLY) if parameter.name in by_name else parameter
        for parameter in own
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    parameters = [*own, *_options(function, whole)]
    return known.replace(parameters=sorted(parameters, key=lambda parameter: parameter.kind))


def _options(function: Callable[..., Any], whole: Callable[..., Any]) -> list[inspect.Parameter]:
    """What the function of whole rows takes beside what all take; where an array may stand, whatever the room takes."""
    known = inspect.signature(function).parameters
    return [
        parameter.replace(annotation="Any") if "Array" in str(parameter.annotation) else parameter
        for parameter in inspect.signature(whole).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
        and (parameter.name not in (*known, *OF_WHOLE_ROWS) or parameter.kind is parameter.VAR_KEYWORD)
        and not parameter.name.startswith("_")
    ]


def _documentation(function: Callable[..., Any], name: str, whole: Callable[..., Any] | None) -> str:
    """What the room says of all of its functions, without what is not there: their first argument, and an example of another."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    first = next(iter(inspect.signature(function).parameters))
    kept = [each for each in paragraphs if not each.startswith((">>>", "`sm."))]
    of_all = re.sub(rf"(Args:\n)    {first}: .*\n(?:     .*\n)*", r"\1", "\n\n".join(kept))
    if whole is None:
        return of_all
    options = ", ".join(parameter.name for parameter in _options(function, whole))
    of_all = re.sub(r", (?:params|options): as", f", {options}: as" if options else ": as", of_all)
    return f"`sm.{name}` in parts. {(inspect.getdoc(whole) or '').split(chr(10) * 2)[0]}\n\n{of_all}"


def stub(room: ModuleType, imports: Iterable[str], names: Iterable[str]) -> str:
    """The types of a room, its functions by these names among them, as its `__init__.pyi` has them."""
    public = [f"from {getattr(room, name).__module__} import {name} as {name}" for name in room.__all__]
    of = [f"def {name}(\n{_parameters(getattr(room, name))}\n) -> {_result(getattr(room, name))}: ..." for name in names]
    head = "# Written by `softmaxima docs types`: what type checkers know of the functions that the room makes by name."
    every = "\n".join(f"    {name!r}," for name in room.__all__)
    own = sorted([*imports, *public])
    others = ["from collections.abc import Callable", "from typing import Any, Literal", "", "from torch import Tensor"]
    return "\n".join([head, "", *others, "", *own, "", f"__all__ = [\n{every}\n]", "", *of, ""]).replace("'", '"')


def _result(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function).return_annotation)


def _parameters(function: Callable[..., Any]) -> str:
    lines, seen = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not seen:
            lines, seen = [*lines, "*"], True
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        told = isinstance(parameter.default, int | float | str | None)
        value = f"{parameter.default!r}" if told else "..."
        default = "" if parameter.default is parameter.empty else f" = {value}"
        lines.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")
    return "\n".join(f"    {line}," for line in lines)
