"""Designs: which scores are drawn, and the weight of each in the sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from softmaxima.lse.estimates.request import Estimate, Request, log_over
from softmaxima.lse.estimates.whole import bucket, log_sum

DEFENSIVE_SHARE = 0.2  # of importance draws that are uniform, so that no weight is more than 5n


@dataclass(frozen=True)
class Design:
    """A head that is read exactly, and draws from the tail in rounds of one draw a stratum.

    draw(rounds) gives (numbers, log weights), [rounds, strata] each; a finite `population` is drawn without replacement.
    `unread` bounds every x/τ outside the head, or is None. `spent` scores were evaluated to find the head.
    """

    draw: Callable[[int], tuple[np.ndarray, np.ndarray]]
    largest_log_weight: float
    population: float = math.inf
    strata: int = 1
    head: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    unread: float | None = None
    spent: int = 0


class _WithoutReplacement:
    """Numbers below n in random order, none twice, and none of those that are taken already.

    Independent draws, of which only first occurrences are kept, are such an order.
    """

    def __init__(self, n: int, taken: np.ndarray, rng: np.random.Generator) -> None:
        self.n, self.taken, self.rng = n, np.sort(taken), rng

    def draw(self, count: int) -> np.ndarray:
        parts, missing = [], min(count, self.n - len(self.taken))
        while missing > 0:
            drawn = self.rng.integers(self.n, size=math.ceil(1.1 * missing) + 16)
            drawn = drawn[np.sort(first_occurrences(drawn))]
            if len(self.taken):
                place = np.searchsorted(self.taken, drawn).clip(max=len(self.taken) - 1)
                drawn = drawn[self.taken[place] != drawn]
            drawn = drawn[:missing]
            self.taken = np.sort(np.concatenate([self.taken, np.sort(drawn)]), kind="stable")  # merges two sorted runs
            parts.append(drawn)
            missing -= len(drawn)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


def first_occurrences(numbers: np.ndarray) -> np.ndarray:
    """Where each number stands first, by the size of the number."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    return order[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(order) else order


def _uniform_over(ask: Request, head: np.ndarray, unread: float | None, spent: int) -> Design:
    rest = ask.units - len(head)
    order = _WithoutReplacement(ask.units, head, ask.rng)

    def draw(rounds: int) -> tuple[np.ndarray, np.ndarray]:
        indices = order.draw(rounds)[:, None]
        return indices, np.full(indices.shape, math.log(rest))

    return Design(draw, math.log(rest), population=rest, head=head, unread=unread, spent=spent)


def _uniform(ask: Request) -> Design:
    return _uniform_over(ask, np.empty(0, np.int64), ask.bound, 0)


def _stratified(ask: Request) -> Design:
    strata = min(ask.strata, ask.source.n, max(1, ask.budget // 16))
    edges = np.arange(strata + 1) * ask.source.n // strata
    log_weights = np.log(strata * np.diff(edges))

    def draw(rounds: int) -> tuple[np.ndarray, np.ndarray]:
        return ask.rng.integers(edges[:-1], edges[1:], size=(rounds, strata)), np.broadcast_to(log_weights, (rounds, strata))

    return Design(draw, float(log_weights.max()), strata=strata, unread=ask.cap)


def _topk_tail(ask: Request) -> Design:
    n = ask.source.n
    return _head_and_tail(ask, _largest(ask, min(_k(ask), n // 2, (ask.budget - n) // 2)), 0.0, n)


def _topk_tail_of_index(ask: Request) -> Design:
    source: Any = ask.source
    exact, spent = source.search_cost()
    if ask.budget < spent + 100:
        raise ValueError(
            f"estimate: the index computes {spent} scores in a search, too many for a budget of {ask.budget}; "
            "lower its nprobe, or choose uniform"
        )
    k = min(_k(ask), source.n // 2, (ask.budget - spent) // 2)
    head = source.search(k)
    return _head_and_tail(ask, head, source.rounding if exact and len(head) == k else None, spent)


def _k(ask: Request) -> int:
    return math.isqrt(ask.source.n) if ask.k is None else ask.k


def _head_and_tail(ask: Request, head: np.ndarray, slack: float | None, spent: int) -> Design:
    """The head, and draws from the rest, of which no score is above the smallest of the head by more than `slack`, if not None."""
    unread = ask.cap
    if slack is not None:
        smallest = float(np.nan_to_num(ask.read(head), nan=-math.inf).min()) + log_over(slack, ask.tau)
        unread = smallest if unread is None else min(unread, smallest)
    return _uniform_over(ask, head, unread, spent)


def _largest(ask: Request, k: int) -> np.ndarray:
    """The numbers of the k largest scores, in one pass."""
    values, numbers = (torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float64, torch.int64))
    start = 0
    with torch.no_grad():
        for block in ask.source.blocks():
            found = torch.topk(block, min(k, len(block)))
            values = torch.cat([values, found.values.cpu()])
            numbers = torch.cat([numbers, found.indices.cpu() + start])
            kept = torch.topk(values, min(k, len(values)))
            values, numbers, start = kept.values, numbers[kept.indices], start + len(block)
    return numbers.numpy()


def _importance(ask: Request) -> Design:
    """Cells in proportion to n_j exp(⟨c_j, h⟩/τ), mixed with the uniform distribution."""
    source: Any = ask.source
    cells = source.cells
    if ask.budget < len(cells.starts) + 100:
        raise ValueError(
            f"estimate: importance sampling computes {len(cells.starts) - 1} scores of cells before it draws, too many for "
            f"a budget of {ask.budget}; choose uniform or stratified"
        )
    sizes = np.diff(cells.starts)
    z = np.where(sizes > 0, cells.centroids @ source.query / ask.tau + np.log(np.maximum(sizes, 1)), -math.inf)
    proposal = (1.0 - DEFENSIVE_SHARE) * np.exp(z - log_sum(z)) + DEFENSIVE_SHARE * sizes / source.n
    proposal /= proposal.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weights = np.where(sizes > 0, np.log(sizes / proposal), -math.inf)

    def draw(rounds: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = ask.rng.choice(len(sizes), size=(rounds, 1), p=proposal)
        return cells.members[ask.rng.integers(cells.starts[drawn], cells.starts[drawn + 1])], log_weights[drawn]

    return Design(draw, float(log_weights.max()), unread=ask.cap, spent=len(sizes))


class Method(NamedTuple):
    """How an estimate begins: with a design, or with all that is needed."""

    begin: Callable[[Request], Design | Estimate]
    passes: bool = False  # over all scores, at the beginning
    draws: bool = True


METHODS = {
    "uniform": Method(_uniform),
    "stratified": Method(_stratified),
    "bucket": Method(bucket, passes=True, draws=False),
    "topk_tail": Method(_topk_tail, passes=True),
}

METHODS_OF_INDEX = METHODS | {"topk_tail": Method(_topk_tail_of_index), "importance": Method(_importance)}
