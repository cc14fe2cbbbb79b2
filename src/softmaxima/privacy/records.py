r"""What one record can do to scores, which is declared and not looked up: the data would tell of itself.

    Scores:  every x_i moves by at most c           |LSE(x/τ) − LSE(x′/τ)| ≤ min(c, b − a)/τ
    Entries: one x_i of n is replaced in [a, b]     |LSE(x/τ) − LSE(x′/τ)| ≤ log1p((e^{(b−a)/τ} − 1)/n)
             one x_i is added to at least n, or taken away to leave so many          ≤ log1p(e^{(b−a)/τ}/n)

The first is that ∇LSE sums to 1. For the second, S = R + e^{u/τ} becomes R + e^{v/τ}: the ratio falls in R, which is at least
(n − 1) e^{a/τ}, and is largest from u = a to v = b. For the third it is 1 + e^{v/τ}/S with S ≥ n e^{a/τ}. All three are attained.

To these comes what two sums in float64 may be off, of which the bounds [a, b] tell, so that both kinds have them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from softmaxima.base.numbers import (
    InputError,
    as_number,
    check_choice,
    check_count,
    check_one_temperature,
    check_positive,
)
from softmaxima.base.public import public
from softmaxima.base.unquoted import kind_of, read_scores
from softmaxima.privacy.library import dp

if TYPE_CHECKING:
    from opendp.mod import Domain, Metric

RELATIONS = ("replace", "add-remove")
LONGEST = 40.0  # more than log n of any row that fits into a memory
MOST = 2**57  # entries: of more than e^LONGEST the sensitivity of so many is a bound
UNITS = 2.0**-49  # of what a sum in float64 is off, relative to the largest of its terms


def _check_bounds(name: str, bounds: Any) -> tuple[float, float]:
    """(a, b), finite and in order."""
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise TypeError(f"{name}: bounds must be a pair (a, b) of numbers, got {kind_of(bounds)}; pass bounds=(a, b)")
    low, high = (as_number(end) for end in bounds)
    if low is None or high is None:
        raise TypeError(
            f"{name}: bounds must be a pair (a, b) of numbers, got {kind_of(bounds[0])} and {kind_of(bounds[1])}; pass numbers"
        )
    if not -math.inf < low < high < math.inf:
        raise InputError.of_argument(
            name, "bounds", f"must be finite with a < b, got ({low}, {high}); without a bound no noise is enough"
        )
    return low, high


@public
@dataclass(frozen=True)
class Scores:
    """Scores that are functions of all records: one record moves each of them by at most `change`.

    Counts of votes, sums of clipped terms, qualities of candidates are of this kind. That they keep to it is for whoever makes them
    to see to: it cannot be checked on the scores.

    Args:
        bounds: (a, b), which hold every score whatever the records are.
        change: c > 0, the most that a score moves by one record.
        monotone: whether one record moves all scores the same way, as it does with counts when records are added or taken away.
            Then an index costs half as much.
        clip: moves scores into the bounds, which moves none by more than before. Without it a score beyond them is refused,
            and nothing is released; but that it was refused says of the data that such a score was there. With it −∞ is a, so
            that a masked score is one like others, and may be chosen; which are masked is to be public, and they left out.

    Raises:
        TypeError or ValueError for bounds that are not finite and in order, and a change that is not positive.

    >>> import softmaxima as sm
    >>> round(sm.privacy.Scores(bounds=(0, 100), change=1).sensitivity(temperature=2.0), 9)
    0.5
    """

    bounds: tuple[float, float]
    change: float
    monotone: bool = False
    clip: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", _check_bounds("Scores", self.bounds))
        object.__setattr__(self, "change", check_positive("Scores", "change", self.change))

    def sensitivity(self, temperature: float = 1.0) -> float:
        """The most that LSE(x/τ), as it is computed, moves by one record: min(c, b − a)/τ nats, and what rounding adds.

        Raises:
            TypeError or ValueError for τ that is not positive and finite, and ValueError where the sensitivity is beyond float64.
        """
        return sensitivity_of("sensitivity", self, 1, check_one_temperature("sensitivity", temperature))

    def moves(self, n: int, temperature: float) -> float:
        """The most that LSE(x/τ) of n real numbers moves, in nats: `sensitivity` without what rounding adds."""
        return min(self.change, self.bounds[1] - self.bounds[0]) / temperature

    def space(self, n: int) -> tuple[Domain, Metric]:
        """OpenDP's domain of such scores, and its distance of them."""
        return _domain(self.bounds, n), dp.linf_distance(T=float, monotonic=self.monotone)

    @property
    def distance(self) -> float:
        """That between neighbours."""
        return self.change

    @property
    def apart(self) -> float:
        """How much nearer one score may come to another, or get further from it, by one record."""
        return self.change if self.monotone else 2 * self.change

    @property
    def fewest(self) -> int:
        """How many scores there are at least."""
        return 1

    @property
    def declared(self) -> str:
        """What one record can do, in words."""
        return f"scores in {list(self.bounds)}, by {self.change} each"


@public
@dataclass(frozen=True)
class Entries:
    """Scores that are records themselves, each of one person.

    Args:
        bounds: (a, b), which hold every score.
        relation: what neighbours are: of "replace" one score is another, and their number is public; of "add-remove" one is there
            or not, and their number is private.
        least: for "add-remove" a public number which that of the scores is never below: of few scores one may be all.
        clip: as of `Scores`.

    Raises:
        TypeError or ValueError for bounds that are not finite and in order, and for "add-remove" without `least`.

    >>> import softmaxima as sm
    >>> round(sm.privacy.Entries(bounds=(0, 1)).sensitivity(1000), 6)  # log1p((e − 1)/1000)
    0.001717
    """

    bounds: tuple[float, float]
    relation: Literal["replace", "add-remove"] = "replace"
    least: int | None = None
    clip: bool = False

    def __post_init__(self) -> None:
        name = "Entries"
        object.__setattr__(self, "bounds", _check_bounds(name, self.bounds))
        check_choice(name, "relation", self.relation, RELATIONS)
        if self.relation == "add-remove":
            if self.least is None:
                raise ValueError(f"{name}: one more or less of few scores may be all; pass least=, a public number that they reach")
            object.__setattr__(self, "least", check_count(name, "least", self.least))
        elif self.least is not None:
            raise ValueError(f'{name}: of "replace" the number of scores is public, and there is no least one; leave least= out')

    def sensitivity(self, n: int, temperature: float = 1.0) -> float:
        """The most that LSE(x/τ), as it is computed, of n scores moves by one record, in nats.

        That is log1p((e^{(b−a)/τ} − 1)/n) of "replace", log1p(e^{(b−a)/τ}/least) of "add-remove", and what rounding adds.

        Raises:
            TypeError or ValueError for n below 1 and τ that is not positive and finite, and ValueError where the sensitivity is
            beyond float64.
        """
        name = "sensitivity"
        return sensitivity_of(name, self, check_count(name, "n", n), check_one_temperature(name, temperature))

    def moves(self, n: int, temperature: float) -> float:
        """The most that LSE(x/τ) of n real numbers moves, in nats: `sensitivity` without what rounding adds."""
        width = (self.bounds[1] - self.bounds[0]) / temperature
        n = min(n if self.least is None else self.least, MOST)
        if self.least is not None:
            return float(np.logaddexp(0.0, width - math.log(n)))
        if width > 30:  # exp(width) alone may be beyond float64
            return width - math.log(n) + math.log1p((n - 1) * math.exp(-width))
        return math.log1p(math.expm1(width) / n)

    def space(self, n: int) -> tuple[Domain, Metric]:
        """OpenDP's domain of such scores, and its distance of them."""
        if self.least is not None:
            return _domain(self.bounds, None), dp.symmetric_distance()
        return _domain(self.bounds, n), dp.change_one_distance()

    @property
    def distance(self) -> int:
        """That between neighbours."""
        return 1

    @property
    def fewest(self) -> int:
        """How many scores there are at least."""
        return self.least or 1

    @property
    def declared(self) -> str:
        """What one record can do, in words."""
        return f"scores in {list(self.bounds)}"


Records = Scores | Entries


def _domain(bounds: tuple[float, float], n: int | None) -> Any:
    return dp.vector_domain(dp.atom_domain(bounds=bounds, nan=False, T=float), size=n)


def sensitivity_of(name: str, records: Records, n: int, temperature: float) -> float:
    """That of either kind, with what it and two sums may lose to rounding."""
    largest = max(abs(end) for end in records.bounds) / temperature
    sensitivity = records.moves(n, temperature) * (1 + UNITS) + 2 * UNITS * (largest + LONGEST)
    if not sensitivity < math.inf:
        low, high = records.bounds
        said = f"must be finite when divided by the temperature, got ({low}, {high}) and {temperature}; take narrower ones"
        raise InputError.of_argument(name, "bounds", said)
    return sensitivity


def check_records(name: str, records: Any) -> Records:
    """What is declared."""
    if not isinstance(records, (Scores, Entries)):
        raise TypeError(
            f"{name}: say what one record can do, by records=sm.privacy.Scores(bounds=…, change=…) or "
            f"sm.privacy.Entries(bounds=…), got {kind_of(records)}"
        )
    return records


def read_row(name: str, x: Any, records: Records) -> list[float]:
    """The scores [n] as OpenDP takes them, within the declared bounds."""
    scores = read_scores(name, x)
    if not len(scores):
        raise ValueError(f"{name}: scores must be one row [n] of at least one, got none; nothing was released")
    if np.isnan(scores).any():
        raise ValueError(f"{name}: scores must be numbers, got NaN; nothing was released, but that it was refused tells of the NaN")
    low, high = records.bounds
    beyond = ((scores < low) | (scores > high)).any()
    if beyond and not records.clip:
        raise ValueError(
            f"{name}: scores must lie in the declared bounds [{low}, {high}], and some do not; pass clip=True with the bounds to "
            "move them there. Nothing was released, but that it was refused tells that such a score exists"
        )
    if len(scores) < records.fewest:
        raise ValueError(
            f"{name}: scores must be at least the declared {records.fewest}, and are fewer; nothing was released, but that it was "
            "refused tells of their number"
        )
    return scores.clip(low, high).tolist()
