r"""What a client sends of its scores: its k largest, and of the others their sum of exponentials, or only how many there are.

(M, m, r) of all scores, r as two floats times a power of 2: from these log Σ exp is exact whatever is merged.
The k largest and the count c of the others: each of these is in [floor, cap], the cap being the smallest that was sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from softmaxima.base.arguments import Array
from softmaxima.base.numbers import InputError, check_count, check_int, check_number, check_one_temperature
from softmaxima.base.public import public
from softmaxima.base.unquoted import kind_of, read_scores
from softmaxima.io import LogSumExpState
from softmaxima.io._scaled import NOTHING, WIDE, Product, Scaled, nothing

KIND = "softmaxima summary 1"
MOST = 2**53  # scores of a client
TINY = 2.0**-1060  # a term far below the maximum, whose low bits float64 has not


@public
@dataclass(frozen=True, eq=False)
class Summary:
    """What one client tells. It is sent by whatever sends: as JSON, or as a pickle to those who may run programs of its sender.

    top: the k largest x/τ in falling order, float64 [k], fewer where there are fewer; −∞ is left out.
    items: which they are: the client's names for them, or their places; all strings, all ints of 64 bits or all finite floats.
    n: how many scores above −∞ the client has.
    state: (M, m, r) of all of them, a `LogSumExpState` whose r has 106 bits, or None where only the largest are told.
    floor: below which none of those n is, −∞ where nothing is known.
    temperature: τ, which all clients must have alike.

    Raises:
        TypeError or ValueError for what no scores have: a top that is not in order or not finite, an n below the length of top, a
        floor above it, a state whose sum no n scores have of this top, none of them below the floor; and for items that JSON
        would change.

    >>> import numpy as np, softmaxima as sm
    >>> told = sm.federated.summarise(np.array([0.0, 3.0, 1.0, 2.0]), k=2)
    >>> told.top, told.items, told.left_out, told.cap, told.numbers
    (array([3., 2.]), array([1, 3]), 0, -inf, 13)
    """

    top: np.ndarray
    items: np.ndarray
    n: int
    state: LogSumExpState | None
    floor: float
    temperature: float

    def __post_init__(self) -> None:
        name = "Summary"
        object.__setattr__(self, "items", names_of(name, self.items))
        if isinstance(self.state, LogSumExpState):
            object.__setattr__(self, "state", _plain(self.state) or self.state)
        check_summary(name, self)
        for what, kind in (("n", int), ("floor", float), ("temperature", float)):
            object.__setattr__(self, what, kind(getattr(self, what)))

    def to_json(self) -> str:
        """The summary as JSON, which rounds nothing.

        >>> import numpy as np, softmaxima as sm
        >>> sm.federated.summarise(np.array([0.5, 2.0]), k=1, whole=False).to_json()
        '{"kind": "softmaxima summary 1", "top": [2.0], "items": [1], "n": 2, "state": null, "floor": null, "temperature": 1.0}'
        """
        state = None
        if self.state is not None:
            numbers = (float(number) for number in (self.state.maximum, *self.state.rest.scaled))
            state = [int(self.state.n), int(self.state.count), *(number if math.isfinite(number) else None for number in numbers)]
        content = {
            "kind": KIND,
            "top": self.top.tolist(),
            "items": self.items.tolist(),
            "n": self.n,
            "state": state,
            "floor": self.floor if self.floor > -math.inf else None,
            "temperature": self.temperature,
        }
        return json.dumps(content, allow_nan=False)

    @staticmethod
    def from_json(text: str | bytes) -> Summary:
        """The summary that was made JSON. Raises TypeError or ValueError for what is none.

        >>> import numpy as np, softmaxima as sm
        >>> told = sm.federated.summarise(np.array([0.5, 2.0]), k=1)
        >>> sm.federated.Summary.from_json(told.to_json()).top
        array([2.])
        """
        try:
            content = json.loads(text)
            if content["kind"] != KIND:
                raise ValueError
            top, items = np.array(content["top"], np.float64), names_of("from_json", content["items"])
            state = None if content["state"] is None else _state(*content["state"])
            floor = -math.inf if content["floor"] is None else content["floor"]
            n, temperature = content["n"], content["temperature"]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise InputError("from_json: text must be what to_json() of a Summary gave, and is not; have it sent again") from None
        return Summary(top, items, n, state, floor, temperature)

    @property
    def left_out(self) -> int:
        """How many scores are known by their number alone."""
        return 0 if self.state is not None else self.n - len(self.top)

    @property
    def cap(self) -> float:
        """What none of those exceeds: the smallest that was sent, +∞ where none was; −∞ where nothing is left out."""
        if not self.left_out:
            return -math.inf
        return float(self.top[-1]) if len(self.top) else math.inf

    @property
    def numbers(self) -> int:
        """How many numbers JSON has: two for each of the largest, n, floor and τ, and six for the state: n, M, m and three of r."""
        return 2 * len(self.top) + 3 + (6 if self.state is not None else 0)


@public
def summarise(
    x: Array, k: int = 0, *, items: Any = None, whole: bool = True, floor: float = -math.inf, temperature: float = 1.0
) -> Summary:
    """What a client sends of its scores x.

    Args:
        x: scores [n] of one client, NumPy's or torch's; n may be 0. −∞ counts for nothing.
        k: how many of the largest to send.
        items: [n] names of the scores, which no other client has, all strings or all numbers; their places without.
        whole: whether to send the sum of exponentials of all scores, (M, m, r). Without it only the k largest are told, and
            the number of the others, so that merging gives an interval.
        floor: a number that no x/τ above −∞ is below, which narrows that interval.
        temperature: τ > 0, the same for all clients.

    Raises:
        TypeError or ValueError before any work: also for NaN, +∞, an x/τ beyond float64, and scores below the floor.

    Cost: one read of x for the sum, and one for the largest.

    >>> import numpy as np, softmaxima as sm
    >>> told = sm.federated.summarise(np.array([0.0, 3.0, 1.0, 2.0]), k=2, whole=False, floor=-1.0)
    >>> told.left_out, told.cap, told.floor
    (2, 2.0, -1.0)
    """
    name = "summarise"
    scores = read_scores(name, x)
    k = check_count(name, "k", k, 0)
    tau = check_one_temperature(name, temperature)
    floor = check_number(name, "floor", floor, lambda number: number < math.inf, "a number below +inf")
    if np.isnan(scores).any() or (scores == math.inf).any():
        raise InputError.of_argument(name, "scores", "must be numbers below +inf, and some are not; nothing was sent")
    places = np.arange(len(scores)) if items is None else names_of(name, items)
    if places.shape != scores.shape:
        raise ValueError(f"{name}: items must name each of the {len(scores)} scores, got shape {places.shape}")
    with np.errstate(over="ignore"):
        z = scores / tau
    if (np.isinf(z) & np.isfinite(scores)).any():
        raise InputError.of_argument(
            name, "scores", f"over the temperature {tau} must be within float64, and some are not; nothing was sent"
        )
    if (z[z > -math.inf] < floor).any():
        raise ValueError(
            f"{name}: scores must be at least the floor {floor}, and some are not; declare a lower one. Nothing was sent"
        )
    state = LogSumExpState(squares=None).update(scores, temperature=tau) if whole else None
    order = np.argsort(-z, kind="stable")[:k]
    order = order[z[order] > -math.inf]
    return Summary(z[order], places[order], int((z > -math.inf).sum()), state, floor, tau)


def rounding(state: LogSumExpState) -> float:
    """What the value of a state may be off by rounding, that of x/τ among it: of float64 2 ulp of |M| + log n, and τ's half of one.

    x/τ is off by 2⁻⁵³ of itself, which moves the value by 2⁻⁵³ Σ p_i |x_i/τ| ≤ 2⁻⁵³ (|M| + log n).
    """
    maximum = abs(float(state.maximum))
    return 2.0**-50 * (maximum + math.log(max(int(state.n), 1)) + 1) if maximum < math.inf else 0.0


def check_summary(name: str, told: Summary) -> None:
    """Raise unless scores could have been told so."""
    if missing := [each.name for each in fields(Summary) if each.name not in vars(told)]:
        raise TypeError(f"{name}: a Summary must have {', '.join(missing)}, and this one has not; have it sent again")
    top, items, state = told.top, told.items, told.state
    if not isinstance(told.n, (int, np.integer)):
        raise TypeError(f"{name}: n must be an int from 0 to 2⁵³, got {kind_of(told.n)}; call summarise() for scores")
    n = check_int(name, "n", told.n, lambda number: 0 <= number <= MOST, "an int from 0 to 2⁵³")
    check_one_temperature(name, told.temperature)
    floor = check_number(name, "floor", told.floor, lambda number: number < math.inf, "a number below +inf")
    if type(top) is not np.ndarray or top.dtype != np.float64 or top.ndim != 1:
        raise TypeError(f"{name}: top must be a float64 array [k], got {kind_of(top)}; call summarise() for scores")
    if not np.isfinite(top).all() or (top[1:] > top[:-1]).any():
        raise InputError.of_argument(name, "top", "must be finite and in falling order, and is not; call summarise() for scores")
    if not _are_names(items) or items.shape != top.shape:
        said = f"must be an array of {len(top)} strings or numbers, one for each of top, got {kind_of(items)}; name them so"
        raise InputError.of_argument(name, "items", said)
    if n < len(top):
        raise InputError.of_argument(name, "n", f"must be at least {len(top)}, the number of top, got {n}")
    if len(top) and floor > top[-1]:
        raise InputError.of_argument(name, "floor", "must be at most the smallest of top, and is above it; declare a lower one")
    if state is not None and not isinstance(state, LogSumExpState):
        raise TypeError(f"{name}: state must be a LogSumExpState or None, got {kind_of(state)}; call summarise() for scores")
    if state is not None and not _can_be_of(state, top, n, floor):
        raise InputError.of_argument(
            name,
            "state",
            f"must be of {n} scores that have top as their largest and none below the floor, and is not; "
            "call summarise() for scores",
        )


def _can_be_of(state: LogSumExpState, top: np.ndarray, n: int, floor: float) -> bool:
    r"""Whether (M, m, r) may be of n scores above −∞ whose k largest are these and of which none is below the floor:

        Σ_top e^{x−M} + (n − k) e^{floor−M} ≤ m + r ≤ Σ_top e^{x−M} + (n − k) e^{cap−M}

    in logarithms, to a quarter of what merging says that its value may be off: sums of x/τ that are rounded before or after are
    off by 2⁻⁵³ (2 |M| + log n). Without a top M is the one known. How many are M is not looked at, for m + r alone is merged, and
    x that differ may be the same x/τ.
    """
    if not _is_plain(state) or not n <= int(state.n) <= MOST:
        return False
    maximum, count = float(state.maximum), int(state.count)
    with np.errstate(over="ignore"):  # of a sum that is not of this maximum
        rest = state.rest.relative_to(state.maximum)
    if not n:
        return (maximum, count, float(rest)) == (-math.inf, 0, 0.0)
    known = top if len(top) else np.array([maximum])
    if not (math.isfinite(maximum) and 1 <= count <= n and known[0] == maximum and floor <= known[-1]):
        return False
    below = np.exp(np.append(known, floor).astype(WIDE) - maximum)
    sent, others = below[:-1].sum(), n - len(known)
    least, total, most = np.log([sent + others * below[-1], count + rest, sent + others * below[-2]])
    slack = rounding(state) / 4
    return bool(least - slack <= total <= most + slack)


def _plain(state: LogSumExpState) -> LogSumExpState | None:
    """The state with r as one sum, and no sum of squares; None where it is of no single numbers."""
    parts: dict[str, Any] = vars(state)
    rest = parts.get("rest")
    if isinstance(rest, Product) and _are((rest.z, rest.factor), np.floating) and rest.power == 1:
        rest = rest.scaled
    if isinstance(rest, Scaled) and _are(rest, np.floating) and not rest.high:
        rest = nothing(())  # whatever the exponent of 0 is
    plain = LogSumExpState(**parts | {"rest": rest, "squares": None})
    return plain if _is_plain(plain) else None


def _is_plain(state: LogSumExpState) -> bool:
    """Whether every number is one, r is a sum in 106 bits, and its exponent a whole one that no term of r is above.

    Of another exponent merging would see another number than is looked at here: it moves sums by whole powers of 2, and to the
    largest exponent of all.
    """
    parts: dict[str, Any] = vars(state)
    rest = parts.get("rest")
    if (
        parts.get("squares", rest) is not None
        or not isinstance(rest, Scaled)
        or not _are((parts.get("maximum"), *rest), np.floating)
    ):
        return False
    if not _are((parts.get("count"), parts.get("n")), np.integer):
        return False
    high, low, exponent = map(float, rest)
    if not high:
        return low == 0 and exponent == NOTHING
    maximum = float(parts["maximum"])
    highest = maximum / math.log(2) + abs(maximum) * 2.0**-50 + 1  # both are rounded
    return (
        0 < high < math.inf
        and abs(low) <= high * 2.0**-52 + TINY
        and exponent.is_integer()
        and abs(exponent) <= 2**62
        and exponent <= highest
    )


def _are(numbers: Iterable[Any], kind: type) -> bool:
    """Whether each is one number, NumPy's, of at most 64 bits."""
    numbers = [each[()] if type(each) is np.ndarray and each.shape == () else each for each in numbers]
    return all(isinstance(each, kind) and each.itemsize <= 8 for each in numbers)


def names_of(name: str, items: Any) -> np.ndarray:
    """Names as an array whose JSON says the same."""
    try:
        names = None if isinstance(items, (list, tuple)) else np.asarray(items)
    except (TypeError, ValueError, RuntimeError):  # of a tensor that has no numbers, or whose are elsewhere
        raise _unnameable(name, kind_of(items)) from None
    if isinstance(items, np.ma.MaskedArray):
        raise _unnameable(name, kind_of(items))
    if names is None or names.dtype.kind not in "iufU":  # NumPy would make strings of numbers beside strings
        given = list(items) if names is None else np.atleast_1d(names).tolist()
        given = [each.item() if isinstance(each, np.generic) else each for each in given]
        kinds = sorted({type(each).__name__ for each in given})
        names = np.array(given) if kinds in (["int"], ["float"], ["str"]) else np.zeros(0, np.int64)
        if names.tolist() != given:
            raise _unnameable(name, " and ".join(kinds))
    if not _are_names(names):
        raise _unnameable(name, kind_of(names))
    return names if names.size else names.astype(np.int64)


def _unnameable(name: str, got: str) -> TypeError:
    return TypeError(f"{name}: items must be all strings, all ints of 64 bits or all finite floats, got {got}; name them so")


def _are_names(items: Any) -> bool:
    if type(items) is not np.ndarray or items.dtype.kind not in "iufU":
        return False
    return items.dtype.kind == "U" or (items.itemsize <= 8 and bool(np.isfinite(items).all()))


def _state(n: int, count: int, maximum: float | None, *rest: float) -> LogSumExpState:
    if not all(map(math.isfinite, rest)):
        raise ValueError
    high, low, exponent = (np.array(float(number)) for number in rest)
    n, count = (check_count("from_json", "state", number, 0) for number in (n, count))
    return LogSumExpState(
        np.array(-math.inf if maximum is None else float(maximum)),
        np.array(count),
        Scaled(high, low, exponent),
        None,
        np.array(n),
    )
