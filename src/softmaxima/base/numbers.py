"""Checks of numbers, flags and names at the public edge. They load neither NumPy nor torch, but may be told of their numbers.

A number is Python's, NumPy's, or an array of no axes; an int may be a tensor. A bool is none, and neither is a string.
"""

from __future__ import annotations

import difflib
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, NoReturn, Protocol, TypeVar


class Named(Protocol):
    """What can be chosen by its name or by that of its map."""

    @property
    def name(self) -> str: ...

    @property
    def map(self) -> str: ...


N = TypeVar("N", bound=Named)


class InputError(ValueError):
    """What a function or a command was given or asked for cannot be used, files among it.

    The message is one line: what was wrong, what arrived and what to do. It has the names of parameters in backticks, so that a
    command can tell of its options in their place. What a function was given has its name before it, which a command leaves out.
    """

    command: str | None = None  # what a command tells, where that is not the message
    problems: Sequence[str] = ()  # where they are several

    @staticmethod
    def of_argument(name: str, what: str, said: str) -> InputError:
        """Of the parameter `what` of the function `name`."""
        error = InputError(f"{name}: {what} {said}")
        error.command = f"`{what}` {said}"
        return error


def _told(error: InputError) -> Sequence[str]:
    return error.problems or [error.command or str(error)]


class Problems(list[str]):
    """What is wrong, all of which is told at once: of each block under `with` what it raised."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        if isinstance(error, InputError):
            self += _told(error)
        return isinstance(error, InputError)

    def tell(self) -> None:
        """Raise `InputError` with all of them, if there are any."""
        if self:
            self.fail()

    def fail(self, *more: str | InputError, of: str = "") -> NoReturn:
        """Raise `InputError` with all of them and more, of a file."""
        for each in more:
            self += [each] if isinstance(each, str) else _told(each)
        listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(self, 1))
        error = InputError(of + (f"{'has ' if of else ''}{len(self)} problems: {listed}" if len(self) > 1 else self[0]))
        error.problems = tuple(self)
        raise error


def _loaded(module: str, name: str) -> Any:
    """A type of a module, of which nothing is before it is loaded."""
    return getattr(sys.modules.get(module), name, ())


def is_bool(value: Any) -> bool:
    """Whether it is a bool of Python's or of NumPy's."""
    return isinstance(value, bool) or isinstance(value, _loaded("numpy", "bool_"))  # noqa: SIM101 - compilers see the first alone


def as_number(value: Any) -> float | None:
    """The number that a value is, or None."""
    if type(value) is float:
        return value
    if isinstance(value, _loaded("numpy", "ndarray")) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (bool, _loaded("numpy", "timedelta64") or bool)) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:  # an int beyond the range of float64
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def check_number(name: str, what: str, value: Any, valid: Callable[[float], Any], domain: str) -> float:
    """A number that is `valid`."""
    number = as_number(value)
    if number is None:
        raise TypeError(f"{name}: {what} must be {domain}, got {described(value)}")
    if not valid(number):
        raise InputError.of_argument(name, what, f"must be {domain}, got {number}")
    return number


def is_finite(number: Any) -> Any:
    """Whether it is a finite number, as `math.isfinite` says, which compilers do not ask of their symbols."""
    return -math.inf < number < math.inf


def check_positive(name: str, what: str, value: Any) -> float:
    """A positive finite number."""
    return check_number(name, what, value, lambda number: 0 < number < math.inf, "a positive finite number")


def check_confidence(name: str, value: Any) -> float:
    """A probability with which an interval is to hold."""
    return check_number(name, "confidence", value, lambda number: 0 < number < 1, "a number between 0 and 1")


def check_count(name: str, what: str, value: Any, least: int = 1) -> int:
    """An int that is at least `least`."""
    return check_int(name, what, value, lambda count: count >= least, f"an int of at least {least}")


def check_int(
    name: str, what: str, value: Any, valid: Callable[[int], Any] = lambda number: True, domain: str = "an int", most: int = 2**63
) -> int:
    """An int that is `valid` and below `most`."""
    if type(value) is int:
        number = operator.index(value)  # of a compiler's symbol, the number
    elif is_bool(value) or str(getattr(value, "dtype", None)) == "torch.bool" or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: {what} must be {domain}, got {described(value, 'an int')}")
    else:
        try:
            number = operator.index(value)
        except (TypeError, ValueError):  # an array or a tensor of floating point, or of more than one number
            raise TypeError(f"{name}: {what} must be {domain}, got {described(value, 'an int')}") from None
    if not -(2**63) <= number < most:  # beyond 4300 digits Python does not write them either
        raise InputError.of_argument(name, what, f"must be {domain}, got one of {number.bit_length()} bits; pass one of at most 63")
    if not valid(number):
        raise InputError.of_argument(name, what, f"must be {domain}, got {number}")
    return number


def check_choice(name: str, what: str, value: Any, choices: Sequence[str]) -> str:
    """One of several names."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: {what} must be one of {', '.join(choices)}, got {shown(value)}{nearest(value, choices)}")
    return value


def choose(option: str, offered: Sequence[N], names: Sequence[str], what: str, told: Sequence[N] | None = None) -> tuple[N, ...]:
    """Those of these names; a name that none has may be a map's, and stands for all of that map. No names: all.

    Case, spaces and punctuation do not count. An error tells the names of all that is offered, or of those in `told`.
    """
    wanted: set[str] = set()
    for name in names:
        found = [one for one in offered if _letters(one.name) == _letters(name)]
        found = found or [one for one in offered if _letters(one.map) == _letters(name)]
        if not found and (named := [one.name for one in told or offered if _begins((one.name, one.map), name)]):
            raise InputError(f"{option}: there is no {what} {name!r}; write the whole name: {' or '.join(named)}")
        if not found:
            known = ", ".join(one.name for one in told or offered)
            meant = nearest(name, [one.name for one in offered])
            raise InputError(f"{option}: there is no {what} {name!r}; choose among: {known}{meant}")
        wanted.update(one.name for one in found)
    return tuple(one for one in offered if one.name in wanted or not names)


def _begins(names: Iterable[str], begin: str) -> bool:
    return bool(_letters(begin)) and any(_letters(name).startswith(_letters(begin)) for name in names)


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def nearest(name: Any, choices: Iterable[str]) -> str:
    """The choice that was meant, as the end of a sentence; nothing where none is near, nor the only one that begins so."""
    spelled = {choice.lower(): choice for choice in choices}
    found = [low for low in spelled if isinstance(name, str) and sorted(low) == sorted(name.lower())]  # letters in another order
    found = found or (difflib.get_close_matches(name.lower(), spelled, 1) if isinstance(name, str) else [])
    if isinstance(name, str) and not found:
        begun = [low for low, choice in spelled.items() if _begins((choice,), name)]
        found = begun if len(begun) == 1 else []
    return f"; did you mean {spelled[found[0]]!r}?" if found else ""


def shown(value: Any) -> str:
    """What arrived, in a sentence: of what takes lines to write, the type."""
    try:
        written = "" if isinstance(value, _loaded("torch", "Tensor")) else repr(value)
    except ValueError:  # an int beyond 4300 digits, or what holds one
        written = ""
    return written if 0 < len(written) < 100 and "\n" not in written else f"a {type(value).__name__}"


def described(value: Any, wanted: str = "a number") -> str:
    """What arrived, where it is of the wrong kind, and what to pass."""
    if isinstance(value, str):
        return f"the string {value!r}; pass {wanted}"
    if is_bool(value):
        return f"the bool {value}; pass {wanted}"
    if isinstance(value, _loaded("torch", "Tensor")):
        if value.layout is not sys.modules["torch"].strided or value.is_nested:
            return f"a tensor of layout {value.layout}; pass {wanted}"
        one = ", such as .item() of it" * (value.numel() == 1 and not value.is_meta)
        return f"a tensor of shape {tuple(value.shape)}; pass {wanted}{one}"
    if isinstance(value, _loaded("numpy", "ndarray")):
        return f"an array of {value.dtype} of shape {value.shape}; pass {wanted}"
    number = float, int, type(None), _loaded("numpy", "number")
    return f"{shown(value) if isinstance(value, number) else type(value).__name__}; pass {wanted}"


def check_axis(name: str, dim: Any, what: str = "dim") -> int:
    """`dim`, an argument called `what`, as an int, whatever the number of axes."""
    if isinstance(dim, float) or callable(dim):
        given = dim if isinstance(dim, float) else f"the function {getattr(dim, '__name__', dim)}"
        raise TypeError(f"{name}: {what} must be an int, got {given}; pass an int, and other arguments by name")
    if isinstance(dim, (tuple, list)):
        raise TypeError(
            f"{name}: {what} must be an int here, got {type(dim).__name__} {dim}; make one axis of these, as x.flatten(1, 2) does"
        )
    return check_int(name, what, dim)


def check_axes(name: str, dim: Any) -> int | tuple[int, ...]:
    """`dim` as an int or several, whatever the number of axes."""
    return tuple(check_int(name, "dim", each) for each in dim) if isinstance(dim, (tuple, list)) else check_axis(name, dim)


# What is said besides where words are given for a flag.
WORDS_FOR_FLAGS = {"is_causal": "; the query that sees all keys is the last one with is_causal=True, first_query='bottom_right'"}


def check_flag(name: str, what: str, value: Any) -> bool:
    """A bool."""
    if not is_bool(value):
        more = WORDS_FOR_FLAGS.get(what, "") if isinstance(value, str) else ""
        raise TypeError(f"{name}: {what} must be True or False, got {described(value, 'one of them')}{more}")
    return bool(value)


MOST = 2**53  # that kernels count to, and more than there is of anything
SMALLEST_TEMPERATURE = sys.float_info.min  # below it 1/τ is beyond double
# (valid, domain) of a temperature.
TEMPERATURE: tuple[Callable[[Any], Any], str] = (
    lambda tau: (tau >= SMALLEST_TEMPERATURE) & (tau < math.inf),
    "positive and finite, at least 2.3e-308",
)


def check_one_temperature(name: str, value: Any) -> float:
    """A positive number."""
    return check_number(name, "temperature", value, *TEMPERATURE)
