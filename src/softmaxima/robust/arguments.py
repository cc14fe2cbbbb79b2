"""What functions of this room are asked for, checked: norms, radii, targets and rows; and what they give, rounded to the safe side.

All is computed in float64, of scores and radii that are at most `LARGEST` in size. Sums, products and quotients that a certificate
is made of are rounded to the side on which it holds, by what two numbers lost (`base/error_free.py`). So is what is given in a
narrower dtype: radii and lower ends down, upper ends up, perturbations towards 0, attacked inputs towards those that were given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import (
    as_scores,
    as_tensor,
    check_device,
    check_per_row,
    check_scores,
    check_tensor,
    like_input,
    rows_last,
)
from softmaxima.base.error_free import two_product, two_sum
from softmaxima.base.numbers import as_number, check_int
from softmaxima.base.temperature import quotient
from softmaxima.base.tracing import is_concrete, transforming

NORMS = (1.0, 2.0, math.inf)
LARGEST = 2.0**960  # of scores and radii, also over the temperature: what is summed or doubled of them stays finite
INSIDE = 1 - 1e-14  # of a radius, so that the rounding of a length does not leave the ball
LEAST_PRODUCT, LARGEST_FACTOR = 2.0**-960, 2.0**990  # between which a product's error is a number
RADIUS: tuple[Callable[[Any], Any], str] = (lambda r: (r >= 0) & (r < math.inf), "at least 0 and finite")


@dataclass(frozen=True)
class Rows:
    """Scores over the temperature with their axis last, in float64, and the radius over it."""

    z: Tensor  # [..., n], −∞ where masked
    radius: Tensor  # [..., 1], over the temperature
    given_radius: Tensor  # [..., 1] or of no axis
    tau: float | Tensor
    dim: int
    given: Any  # as the scores came

    def restored(self, value: Tensor, towards: float) -> Any:
        """What has the shape of the scores, where they were and of their dtype, rounded to one side."""
        scores = as_scores("", self.given)
        value = value.movedim(-1, self.dim) if value.ndim > 1 else value
        return like_input(narrowed(value.reshape(scores.shape), scores.dtype, towards), self.given)

    def perturbation(self, delta: Tensor, norm: float) -> Any:
        """δ over the temperature as what is added to scores, in the ball of the radius that was given, with its slope."""
        delta = delta * self.tau
        several = (delta.detach() != 0).sum(-1, keepdim=True) > 1
        shorter = torch.nextafter(INSIDE * delta.detach(), torch.zeros_like(delta, requires_grad=False))
        radius = self.given_radius.detach()
        within = torch.where(several & (norm != math.inf), shorter, delta.detach()).clamp(-radius, radius)
        within = torch.where(self.radius.detach() < torch.finfo(delta.dtype).tiny, 0.0, within)  # of no digits
        return self.restored(within + torch.where(delta.isfinite(), delta - delta.detach(), 0.0), 0.0)

    def reduced(self, value: Tensor, towards: float | None = None) -> Any:
        """One number a row, in the dtype of the scores, rounded to one side or to the nearest."""
        dtype = as_scores("", self.given).dtype
        return like_input(value.to(dtype) if towards is None else narrowed(value, dtype, towards), self.given)


def narrowed(value: Tensor, dtype: torch.dtype, towards: float) -> Tensor:
    """The nearest of a dtype that is not further from `towards` (0, ∞ or −∞) than a float64 value is; its slope is 1."""
    near = value.to(dtype)
    wide, goal = near.detach().double(), torch.full_like(near, towards, requires_grad=False)
    past = torch.where(goal.double() <= value, wide > value, wide < value)
    safe = torch.where(past, torch.nextafter(near.detach(), goal), near.detach())
    # near + 0 keeps the gradient; an overflow comes back to the largest number, and ∞ − ∞ is none
    return torch.where(near.isfinite(), near + (safe - near.detach()), safe)


def prepared(name: str, x: Any, radius: Any, dim: Any, temperature: Any, where: Any, level: Any = None) -> Rows:
    """The rows, with a radius ≥ 0, a number or one a row; less the largest of `level` along dim, where that is given.

    A map that does not move with a constant is taken of x − max x, which is nearly exact: beside 1e14, ε would be rounded away.
    """
    scores = as_scores(name, x)
    axis, rows, tau, mask = rows_last(name, scores, dim, temperature, where)
    radius = check_per_row(name, "radius", radius, scores if scores.ndim else rows, axis, *RADIUS)
    if isinstance(radius, Tensor) and radius.ndim:
        radius = radius.movedim(axis, -1)
    wide = rows.double() if mask is None else rows.double().masked_fill(~mask, -math.inf)
    tau = tau.double() if isinstance(tau, Tensor) else tau
    radius = torch.as_tensor(radius, dtype=torch.float64, device=wide.device)
    radius, wide = within_range(name, "radius", radius, tau), within_range(name, "scores", wide, tau)
    if level is not None and wide.shape[-1]:
        most = rows_last(name, as_scores(name, level), dim, 1.0, where)[1].detach().double()
        wide = wide - largest(most if mask is None else most.masked_fill(~mask, -math.inf))
    return Rows(quotient(wide, tau), (radius / tau).expand(*wide.shape[:-1], 1), radius, tau, axis, x)


def within_range(name: str, what: str, value: Tensor, tau: float | Tensor = 1.0) -> Tensor:
    """Numbers in size at most `LARGEST`, also over the temperature, or infinite; NaN for others, where these cannot be told."""
    size = value.detach().abs()
    most = LARGEST * (tau.detach().clamp_max(1.0) if isinstance(tau, Tensor) else min(tau, 1.0))
    beyond = (size > most) & size.isfinite()
    if not is_concrete(beyond):
        return torch.where(beyond, math.nan, value)
    if bool(beyond.any()):
        got, at = size.expand_as(beyond)[beyond].max(0)
        divisor = float(torch.as_tensor(tau, dtype=torch.float64).detach().expand_as(beyond)[beyond][at])
        raise ValueError(
            f"{name}: {what} must be at most 2^960 = {LARGEST:.2g} in size, also over the temperature, so that sums stay finite, "
            f"got {float(got)!r}{'' if got > LARGEST else f' over {divisor!r}'}; divide scores (or inputs), radius and "
            "temperature by the same number"
        )
    return value


def check_untransformed(name: str, what: str) -> None:
    """Of what is searched for, by values that are read."""
    if transforming():
        raise NotImplementedError(
            f"{name}: {what} reads values, which torch.func and forward mode hide; call it on all rows outside of them"
        )


def largest(z: Tensor) -> Tensor:
    """The largest score of each row [..., 1], without a gradient; 0 where it is not finite."""
    top = z.detach().amax(-1, keepdim=True)
    return torch.where(top.isfinite(), top, 0.0)


def moved(z: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    """(z − by, z + by), by ≥ 0, each rounded outward; their slopes are those of z − by and z + by."""
    return -sum_up(-z, by), sum_up(z, by)


def sum_up(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """a + b, or a + b + c, rounded up. The slopes of this and of what follows are those of what is rounded."""
    near, left = two_sum(a, b)
    if c is None:
        return _next(near, left > 0, math.inf)
    near, more = two_sum(near, c)
    return sum_up(near, torch.where(near.isfinite(), sum_up(more, left), 0.0))


def product_down(a: Tensor, b: float | Tensor) -> Tensor:
    """a·b ≥ 0, rounded down."""
    near, left = two_product(a, torch.as_tensor(b, dtype=a.dtype, device=a.device))
    return _next(near, (left < 0) | ~_is_split(a, b, near), -math.inf).clamp_min(0.0)


def quotient_down(a: Tensor, b: float) -> Tensor:
    """a/b, a ≥ 0 and b > 0, rounded down; ∞ where a is."""
    near = a / b
    product, left = two_product(near, torch.as_tensor(b, dtype=a.dtype, device=a.device))
    over = ((product - a) + left > 0) | ~_is_split(near, b, product)
    return torch.where(a == math.inf, a, _next(near, over, -math.inf)).clamp_min(0.0)


def _is_split(a: Tensor, b: float | Tensor, product: Tensor) -> Tensor:
    """Whether the error of a product is exact."""
    fits = torch.maximum(a.detach(), torch.as_tensor(b, dtype=a.dtype, device=a.device)) < LARGEST_FACTOR
    return fits & (product > LEAST_PRODUCT)


def _next(near: Tensor, which: Tensor, towards: float) -> Tensor:
    """The next number where it is asked for, with the slope of the nearest."""
    safe = torch.nextafter(near.detach(), torch.full_like(near, towards, requires_grad=False))
    return torch.where(which, safe + torch.where(near.isfinite(), near - near.detach(), 0.0), near)


def check_ends(name: str, lower: Any, upper: Any, dtypes: bool = True, tensors: bool = False) -> tuple[Tensor, Tensor]:
    """Both ends, of one shape and device and, unless `dtypes` is False, of one dtype, the lower nowhere above the upper."""
    if tensors:
        lower, upper = check_floating_tensor(name, "lower", lower), check_floating_tensor(name, "upper", upper)
    low, high = as_scores(name, lower, "lower"), as_scores(name, upper, "upper")
    if low.device != high.device:
        where = str(low.device)
        raise ValueError(f"{name}: upper must be on the device of lower, {where}, got {high.device}; call upper.to({where!r})")
    if low.shape != high.shape or (dtypes and low.dtype != high.dtype):
        kind = lambda end: f"{tuple(end.shape)}" + (f" of {end.dtype}" if dtypes else "")
        raise ValueError(
            f"{name}: lower and upper must be of one shape{' and dtype' if dtypes else ''}, got {kind(low)} and {kind(high)}; "
            f"broadcast {'or cast ' if dtypes else ''}one to the other"
        )
    if is_concrete(low) and is_concrete(high) and bool((low > high).any()):
        gap = float((low.double() - high.double()).nan_to_num(0.0).max())
        count = int((low > high).sum())
        raise ValueError(
            f"{name}: lower must be at most upper, got {count} that {'is' if count == 1 else 'are'} above it, by up to {gap:.6g}; "
            "exchange them"
        )
    return low, high


def check_floating_tensor(name: str, what: str, x: Any) -> Tensor:
    """Floating-point numbers of a torch tensor: what a network takes."""
    return check_scores(name, check_tensor(name, what, x), what)


def is_broken(*ends: Tensor) -> Tensor:
    """Rows [..., 1] that nothing is said of: with NaN or +∞."""
    return torch.stack([(end.isnan() | (end == math.inf)).any(-1, keepdim=True) for end in ends]).any(0)


def check_norm(name: str, norm: Any) -> float:
    """1, 2 or ∞."""
    number = as_number(norm)
    if number not in NORMS:
        raise ValueError(f"{name}: norm must be 1, 2 or math.inf, got {norm!r}; pass one of these")
    return number


def check_classes(name: str, target: Any, z: Tensor, what: str = "target") -> Tensor:
    """One class a row, int64 [...], each a place in its row."""
    if isinstance(target, int) and not isinstance(target, bool):
        target = torch.full(z.shape[:-1], check_int(name, what, target), device=z.device)
    classes = as_tensor(name, what, target)
    if classes.dtype in (torch.bool, torch.uint8) or classes.is_floating_point() or classes.is_complex():
        raise TypeError(f"{name}: {what} must be class numbers of an integer dtype, got {classes.dtype}; call .long()")
    classes = check_device(name, what, classes, z).long()
    if classes.shape != z.shape[:-1]:
        raise ValueError(
            f"{name}: {what} must be one class a row, of shape {tuple(z.shape[:-1])}, got {tuple(classes.shape)}; reshape it"
        )
    if z.shape[-1] == 0:
        raise ValueError(f"{name}: there must be a class for {what} to name, got scores without any; give at least one")
    if is_concrete(classes) and classes.numel() and not 0 <= int(classes.min()) <= int(classes.max()) < z.shape[-1]:
        wrong = classes[(classes < 0) | (classes >= z.shape[-1])]
        raise ValueError(f"{name}: {what} must be in [0, {z.shape[-1] - 1}], got {int(wrong[0])}; number the classes from 0")
    return classes
