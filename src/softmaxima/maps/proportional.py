r"""proportional: p_i = f(x_i) / Σ_j f(x_j), for any elementwise f ≥ 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.monoid import LogSum, merge
from softmaxima.base.monoid import log_sum as sum_of_exponentials
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum, without_mask
from softmaxima.base.tracing import is_concrete, is_exporting_to_onnx, sizes
from softmaxima.engine.blocks import Blocks, Part, State, growth
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.engine.routing import is_plain
from softmaxima.kernels.kernel import Kernel, Theta
from softmaxima.maps._module import MapModule


def reference(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    y = torch.where(x > -math.inf, f(without_mask(x.double())), 0.0)
    mass = y.sum(-1, keepdim=True)
    return torch.where(mass == 0, 0.0, y / mass)


FAST = (torch.sigmoid, torch.square, torch.nn.functional.softplus, torch.exp, torch.relu)  # that the kernel knows, in its order


def theta(f: Callable[[Tensor], Tensor]) -> Theta | None:
    return next(((float(i),) for i, known in enumerate(FAST) if f is known), None)


EXPONENTIAL = (torch.sigmoid, torch.nn.functional.softplus, torch.exp)  # e^z far below 0
MODERATE = 40.0  # exp(2 · 40) is a number in float32
VANISHING = 2.0**-24  # of Σ f: above, what vanished in float32 has a probability of less than 1e-30


def careful(z: Tensor, f: Callable[[Tensor], Tensor], evaluate: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """(f, …) = evaluate(z), 0 at a mask, and Σ f of each row, but for a factor that they share; in float64 where f may overflow or
    vanish in a narrower dtype. What follows f is its slope.

    Two looks at the scores cost less than masking them where there is nothing to mask.
    """
    if is_concrete(z) and z.numel() > 0:
        looked_at = z.detach()
        if float(looked_at.amin()) >= -MODERATE and float(looked_at.amax()) <= MODERATE:  # sooner than `aminmax`
            values = evaluate(z)
            mass = values[0].sum(-1, keepdim=True)
            lowest, highest = mass.detach().aminmax()
            if float(lowest) >= VANISHING and float(highest) < math.inf:
                return (*values, mass)
    masked, infinite = z == -math.inf, z == math.inf
    wide = without_mask(z.float() if is_exporting_to_onnx() else z.double())
    if _is_exponential(f):  # e^z = e^top e^{z − top}
        top = row_maximum(wide.masked_fill(masked, -math.inf)).detach()
        remote = is_remote(f, top)
        relative = (wide - top.masked_fill(top.isinf(), 0.0)).exp()
        values = tuple(torch.where(remote, relative, v) for v in evaluate(wide.masked_fill(remote, 0.0)))
    else:
        values = evaluate(wide)
    values = tuple(v.masked_fill(masked, 0.0) for v in values)
    y = values[0].masked_fill(infinite, math.nan)  # as every map, also where f is bounded
    return y, *values[1:], y.sum(-1, keepdim=True)


def divide(y: Tensor, mass: Tensor) -> Tensor:
    """y/mass, and zero for a row without mass."""
    return y / mass.masked_fill(mass == 0, 1.0)


def checked(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """f(z), in z's dtype."""
    y: Any = f(z)
    if not isinstance(y, Tensor) or not y.is_floating_point():
        kind = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"proportional: f must return a floating-point tensor, as torch.sigmoid does, got {kind}")
    if sizes(y) != sizes(z):
        raise ValueError(
            f"proportional: f must work elementwise: for scores of shape {tuple(z.shape)} it returned {tuple(y.shape)}"
        )
    return y.to(z.dtype)


def forward(z: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    y, mass = careful(z, f, lambda scores: (checked(f, scores),))
    return divide(not_negative(y), mass).to(z.dtype)


def not_negative(y: Tensor) -> Tensor:
    if is_concrete(y) and y.numel() > 0 and float(lowest := y.detach().amin()) < 0:
        raise ValueError(f"proportional: f must not be negative, got {float(lowest)}; take relu, sigmoid, softplus or a square")
    return y


def _with_slope(f: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    """(f(z), f′(z)); of torch's sigmoid s(z) s(−z), whose own s(1 − s) has no digits for large z."""
    y, pull_back = torch.func.vjp(lambda z: checked(f, z), z)[:2]
    return y, y * torch.sigmoid(-z) if f is torch.sigmoid else pull_back(torch.ones_like(y))[0]


def sensitivity(p: Tensor, z: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    def evaluate(scores: Tensor) -> tuple[Tensor, Tensor]:
        return _with_slope(f, scores)

    _, slope, mass = careful(z, f, evaluate)
    return divide(slope, mass).to(z.dtype), p


class Mass(NamedTuple):
    """Σ f over a part of each row [..., 1] in ways of which one neither overflows nor vanishes."""

    top: Tensor  # the `LogSum` of x/τ, for an f that is e^z
    ties: Tensor
    rest: Tensor
    scale: Tensor  # a power of 2: the row's size for an f with f(c z) = c^d f(z), else 1
    total: Tensor  # Σ f(z/scale)

    @property
    def sum(self) -> LogSum:
        return LogSum(self.top, self.ties, self.rest)

    def remote(self, f: Callable[[Tensor], Tensor], tau: float | Tensor) -> Tensor:
        """Where f is e^z in all of the row."""
        return is_remote(f, self.sum.anchor / tau) & (self.top < math.inf)


def _homogeneous(f: Callable[[Tensor], Tensor]) -> tuple[int, Callable[[Tensor], Tensor]] | None:
    """(d, how large a score is to f) of an f that has f(c z) = c^d f(z)."""
    return (2, torch.abs) if f is torch.square else (1, torch.relu) if f is torch.relu else None


def _scaled(part: Part, scale: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """f(z/scale), 0 at a mask."""
    y = not_negative(checked(f, without_mask(part.z) / scale)).masked_fill(part.x == -math.inf, 0.0)
    return y.masked_fill(part.x.isnan() | (part.x == math.inf), math.nan)


def _grown(state: Mass, scale: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """The total relative to another scale."""
    homogeneous = _homogeneous(f)
    return state.total if homogeneous is None else state.total * (state.scale / scale) ** homogeneous[0]


def _begin(part: Part, known: State | None, f: Callable[[Tensor], Tensor]) -> State:
    log_sum = sum_of_exponentials(part.x, part.tau)
    scale = torch.ones_like(log_sum.ties)
    if (homogeneous := _homogeneous(f)) is not None:
        size = homogeneous[1](torch.nn.functional.pad(without_mask(part.z), (0, 1))).amax(-1, keepdim=True)
        scale = torch.where((size > 0) & size.isfinite(), torch.ldexp(scale, torch.frexp(size).exponent - 1), 2.0**-1000)
    return Mass(*log_sum, scale, _scaled(part, scale, f).sum(-1, keepdim=True))


def _merge(a: State, b: State, tau: float | Tensor, f: Callable[[Tensor], Tensor]) -> State:
    a, b = Mass(*a), Mass(*b)
    scale = torch.maximum(a.scale, b.scale)
    return Mass(*merge(a.sum, b.sum, tau), scale, _grown(a, scale, f) + _grown(b, scale, f))


def _finish(part: Part, state: State, f: Callable[[Tensor], Tensor]) -> Tensor:
    known = Mass(*state)
    p = divide(_scaled(part, known.scale, f), known.total)
    return torch.where(known.remote(f, part.tau), known.sum.shares(part.x, part.tau), p) if _is_exponential(f) else p


def _factor(a: State, b: State, tau: float | Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    a, b = Mass(*a), Mass(*b)
    share = divide(_grown(a, b.scale, f), b.total)
    if not _is_exponential(f):
        return share
    return torch.where(b.remote(f, tau), growth((a.sum.anchor, a.sum.log_mass()), (b.sum.anchor, b.sum.log_mass()), tau), share)


def _derivative(part: Part, state: State, p: Tensor, of: Any, /, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """(f′(z)/Σf, p): where f is e^z, (p, p)."""
    known = Mass(*state)
    z = without_mask(part.z) / known.scale
    slope = _with_slope(f, z)[1].masked_fill(part.x == -math.inf, 0.0)
    s = divide(slope, known.total) / known.scale
    return torch.where(known.remote(f, part.tau), p, s), p


def _is_exponential(f: Callable[[Tensor], Tensor]) -> bool:
    return any(f is known for known in EXPONENTIAL)


def is_remote(f: Callable[[Tensor], Tensor], top: Tensor) -> Tensor:
    """Whether f is e^z to all digits at scores up to `top`, and so is its slope."""
    return top < (math.inf if f is torch.exp else -MODERATE if _is_exponential(f) else -math.inf)


BLOCKS = Blocks(_begin, _merge, _finish, factor=_factor, derivative=_derivative)

PROPORTIONAL = register(
    Map(
        name="proportional",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        params=(
            Parameter(
                name="f",
                default=torch.sigmoid,
                examples=FAST[:3],
                valid=callable,
                domain="a function from a tensor to a non-negative tensor of its shape, elementwise, such as torch.sigmoid, "
                "torch.square or torch.nn.functional.softplus",
                kind=object,
            ),
        ),
        properties=Properties(mass="zero or one", shift_invariant=False, order_preserving=False, monotone=False),
        cost=Cost(reads=2),
        kernel=Kernel("proportional", "proportional_backward", theta=theta),
        blocks=BLOCKS,
        formula="f(x_i) / Σ f(x_j)",
        source="Su (2024), kexue.fm/archives/10145",
        uses_scores=True,
    )
)


@public
def proportional(
    x: Array,
    *,
    f: Callable[[Tensor], Tensor] = torch.sigmoid,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Probabilities proportional to f, `p_i = f(x_i/τ) / Σ_j f(x_j/τ)`.

    Args:
        f: an elementwise function of a tensor, differentiable by torch and nowhere negative: torch.sigmoid, torch.square,
            torch.nn.functional.softplus, … It gets float64, or x as it is (half precision as float32) where no
            value can overflow or vanish, and where τ is not 1 x/τ rounded to float64. Another shape raises ValueError, and anything
            but a floating-point tensor TypeError; a negative value raises ValueError (on the CPU, outside torch.compile).
        x, dim, temperature, where, dtype: as for `softmax`.

    A row where f is zero throughout gives zeros. Order is kept if f increases. Errors as for `softmax`. Of torch.sigmoid,
    torch.square, torch.nn.functional.softplus, torch.exp and torch.relu p is within 6 ulp on the CPU, whatever τ is (and above
    1e-30), also where f of a whole row is below or above all numbers. Cost: of these five two reads and one write; of others four
    reads and one write, and f.

    >>> import numpy as np, torch, softmaxima as sm
    >>> sm.proportional(np.array([3.0, 1.0, 0.0]), f=torch.square)
    array([0.9, 0.1, 0. ])
    """
    if (
        theta(f) is None
        and is_plain(x, dim, temperature, where)
        and temperature == 1.0
        and x.dtype in (torch.float32, torch.float64)
        and callable(f)
    ):
        return forward(x, f)  # type: ignore[arg-type,return-value]  # which torch differentiates without evaluating f again
    return evaluate(PROPORTIONAL, x, dim, temperature, where, {"f": f}, dtype)


@public
class Proportional(MapModule):
    """`proportional` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.Proportional(torch.nn.functional.softplus)
    Proportional(dim=-1, temperature=1.0, f=softplus)
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor] = torch.sigmoid,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(PROPORTIONAL, dim, temperature=temperature, f=f)
