"""`Positive`: a positive number, or one for each head, channel or class, that is learnt and keeps to its limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import COMPUTE_DTYPE, broadcasts, check_place, check_value
from softmaxima.base.differentiable import differentiable
from softmaxima.base.numbers import check_choice, check_count, check_number, described
from softmaxima.base.public import public
from softmaxima.base.tracing import is_eager, is_exporting_to_onnx, may_differentiate, transforming
from softmaxima.lse.softplus import inverse_softplus, softplus


class Parametrization(NamedTuple):
    """v as a function of ρ between limits a < b; ρ of v in float64; and the ends of ρ, beyond which v is its limit."""

    value: Callable[[Tensor, float, float], Tensor]
    inverse: Callable[[Tensor, float, float], Tensor]
    ends: Callable[[float, float, torch.dtype], tuple[float, float]]
    reaches_minimum: bool  # or comes near it alone
    reaches_maximum: bool


def exp_ends(a: float, b: float, dtype: torch.dtype) -> tuple[float, float]:
    return math.log(a), math.log(b)


def softplus_ends(a: float, b: float, dtype: torch.dtype) -> tuple[float, float]:
    return math.log(nearest(a, a, b, dtype)), b - a + math.log(-math.expm1(a - b))


def sigmoid_ends(a: float, b: float, dtype: torch.dtype) -> tuple[float, float]:
    farthest = math.log(torch.finfo(COMPUTE_DTYPE[dtype]).tiny)  # where σ is a number
    low, high = (math.log(nearest(limit, a, b, dtype)) - math.log(b - a) for limit in (a, b))
    return max(low, farthest), -max(high, farthest)


def nearest(limit: float, a: float, b: float, dtype: torch.dtype) -> float:
    """How near v comes to a limit that it does not reach: to a unit in its last place, and dv/dρ is a number."""
    numbers = torch.finfo(dtype)
    return min(max(numbers.eps * limit, numbers.tiny), (b - a) / 4)


PARAMETRIZATIONS = {
    "exp": Parametrization(lambda rho, a, b: rho.exp(), lambda v, a, b: v.log(), exp_ends, True, True),
    "softplus": Parametrization(
        lambda rho, a, b: a + softplus(rho), lambda v, a, b: inverse_softplus(v - a), softplus_ends, False, True
    ),
    # exp(log σ) has a slope also where σ is 1 to rounding.
    "sigmoid": Parametrization(
        lambda rho, a, b: a + (b - a) * torch.nn.functional.logsigmoid(rho).exp(),
        lambda v, a, b: (v - a).log() - (b - v).log(),
        sigmoid_ends,
        False,
        False,
    ),
}


class Limits(NamedTuple):
    """Of v and of ρ."""

    a: float
    b: float
    low: float
    high: float


@dataclass(frozen=True)
class Range:
    """The numbers between two limits, and how they are functions of ρ."""

    minimum: float
    maximum: float
    parametrization: str

    @classmethod
    def of(cls, name: str, minimum: Any, maximum: Any, parametrization: Any, dtype: torch.dtype = torch.float64) -> Range:
        """Checked; None, and a minimum of 0, are the limits that ρ's dtype has."""
        check_choice(name, "parametrization", parametrization, tuple(PARAMETRIZATIONS))
        if maximum is None and parametrization == "sigmoid":
            raise ValueError(f"{name}: maximum must be given for parametrization='sigmoid', got None; give 10.0 for instance")
        least, most = torch.finfo(dtype).tiny, 1 / torch.finfo(dtype).tiny
        inside, domain = lambda limit: least <= limit <= most, f"from {least:.2g} to {most:.2g}, as {dtype} can hold it"
        low = 0.0 if minimum is None else check_number(name, "minimum", minimum, lambda v: v == 0 or inside(v), f"0, or {domain}")
        high = math.inf if maximum is None else check_number(name, "maximum", maximum, inside, domain)
        a, b = max(low, least), min(high, most)
        if not a < b:
            raise ValueError(f"{name}: minimum must be below maximum, got {a:.6g} and {b:.6g}")
        return cls(low, high, parametrization)

    def within(self, dtype: torch.dtype) -> Limits:
        """What v and ρ are held to in this dtype, where v, 1/v and dv/dρ are numbers."""
        numbers = torch.finfo(dtype)
        a, b = (min(max(limit, numbers.tiny), 1 / numbers.tiny) for limit in (self.minimum, self.maximum))
        if a >= b:  # beyond a dtype that a module was converted to
            a = b * (1 - numbers.eps)
        return Limits(a, b, *PARAMETRIZATIONS[self.parametrization].ends(a, b, dtype))

    def domain(self, dtype: torch.dtype) -> tuple[Callable[[Any], Any], str]:
        """(valid, domain) of v."""
        how, (a, b, *ends) = PARAMETRIZATIONS[self.parametrization], self.within(dtype)
        low, high = how.value(torch.tensor(ends, dtype=torch.float64, device="cpu"), a, b).tolist()
        above, low = ("at least", a) if how.reaches_minimum else ("above", max(a, low))
        below, high = ("at most", b) if how.reaches_maximum else ("below", min(b, high))
        inside = lambda v: (v >= low if how.reaches_minimum else v > low) & (v <= high if how.reaches_maximum else v < high)
        return inside, f"{above} {low:.6g} and {below} {high:.6g} with parametrization={self.parametrization!r} in {dtype}"

    def check(self, name: str, what: str, value: Any, dtype: torch.dtype) -> Tensor:
        """Numbers within the limits, in float64."""
        checked = check_value(name, what, value, *self.domain(dtype))
        if isinstance(checked, Tensor):
            return checked.detach().double()
        return torch.tensor(checked, dtype=torch.float64, device="cpu")

    def rho(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """ρ(v) in float64."""
        a, b, low, high = self.within(dtype)
        return PARAMETRIZATIONS[self.parametrization].inverse(value, a, b).clamp(low, high)

    def value(self, rho: Tensor) -> Tensor:
        """v(ρ) in ρ's dtype."""
        a, b, low, high = self.within(rho.dtype)
        wide = clamped(rho.to(COMPUTE_DTYPE[rho.dtype]), low, high)
        value = PARAMETRIZATIONS[self.parametrization].value(wide, a, b).to(rho.dtype)
        return value + (value.detach().clamp(a, b) - value.detach())  # which moves it by rounding alone

    def words(self, dtype: torch.dtype) -> str:
        a, b, *_ = self.within(dtype)
        return f"minimum={a:.4g}, maximum={b:.4g}, parametrization={self.parametrization!r}"


@public
class Positive(nn.Module):
    """A positive number v(ρ) between two limits, or a tensor of them, of which ρ is learnt.

    Args:
        init: v at first, a number or a tensor, whose shape is the default of `shape`.
        minimum, maximum: the limits a < b; None, or a minimum of 0, for those between which v and 1/v are numbers in the dtype:
            1.2e-38 and 8.5e37 in float32 and bfloat16, 6.1e-5 and 16384 in float16, 2.2e-308 and 4.5e307 in float64.
        parametrization:
            "exp"       v = exp(ρ), held within the limits
            "softplus"  v = a + log(1 + exp(ρ)), held below b
            "sigmoid"   v = a + (b − a) σ(ρ), which needs a maximum
        shape: of v, one number for each head, (heads, 1, 1), or each class, (classes,).
        device, dtype: of ρ and v, floating point.

    `module()` is v, with a gradient by the parameter `rho`; every map, loss, head and attention takes the module itself where it
    takes v. `set_(v)` sets v.

    ρ is held where v is its limit to a unit in the last place. An end lets through the gradients whose descent leads back inside,
    and no others: no value is ever stuck there, although at a limit that is not reached ∂log v/∂ρ is as small as that unit. A call
    that learns writes the end into a ρ that a step has taken over it, so that the way back is short. A compiled function,
    `torch.func` and a `rho` that is no parameter, of `torch.nn.utils.parametrize` for instance, are written nothing into: v and its
    gradient are the same there, but the way back is as long as the step was.

    What ρ is rounded by moves v, relative to v by (1 + |ρ| |∂log v/∂ρ|) half units in the last place or so. Measured of 0.07 and of
    numbers near it by "exp", as far as 2e-16 in float64, 1.5e-7 in float32, 1.4e-3 in float16 and 1.1e-2 in bfloat16; and of 6e4 by
    "sigmoid" with the maximum 8e37 in bfloat16, where ρ is −76, 20 %. A limit that is not reached is what v may round to.

    Raises:
        TypeError or ValueError for anything else, also for an `init` outside of the limits, or at one that is never reached.

    Cost: a few operations on ρ. Source: exp, with a limit, is how CLIP learns its temperature, Radford et al. (2021),
    arXiv:2103.00020.

    >>> import torch, softmaxima as sm
    >>> scale = sm.Positive(0.5, maximum=2.0, shape=(3,))
    >>> scale()
    tensor([0.5000, 0.5000, 0.5000], grad_fn=<AddBackward0>)
    >>> scale.set_(2.0)()
    tensor([2., 2., 2.], grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        init: float | Tensor = 1.0,
        minimum: float | None = None,
        maximum: float | None = None,
        parametrization: str = "exp",
        shape: Sequence[int] | None = None,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        place = check_place(name, device, dtype)
        kind: torch.dtype = place["dtype"]
        self.range = Range.of(name, minimum, maximum, parametrization, kind)
        value = self.range.check(name, "init", init, kind)
        shape = check_shape(name, value.shape if shape is None else shape)
        if value.numel() != 1 and value.shape != shape:
            raise ValueError(f"{name}: init must be a number or of the shape {tuple(shape)}, got {tuple(value.shape)}")
        self.rho = nn.Parameter(self.range.rho(value, kind).expand(shape).to(**place, copy=True))

    def forward(self) -> Tensor:
        rho = self.rho
        if isinstance(rho, nn.Parameter) and may_differentiate((rho,)) and is_eager(rho) and not transforming():
            _, _, low, high = self.range.within(rho.dtype)
            rho.data.clamp_(low, high)  # a second call changes nothing of what the first has saved
        return self.range.value(rho)

    @torch.no_grad()
    def set_(self, value: float | Tensor) -> Positive:
        """Makes v this number, or these numbers of a shape that broadcasts to v's; raises as `Positive` does."""
        name = f"{type(self).__name__}.set_"
        checked = self.range.check(name, "value", value, self.rho.dtype)
        if not broadcasts(checked, tuple(self.rho.shape)):
            raise ValueError(f"{name}: value must broadcast to shape {tuple(self.rho.shape)}, got {tuple(checked.shape)}")
        self.rho.copy_(self.range.rho(checked, self.rho.dtype))
        return self

    def extra_repr(self) -> str:
        rho = self.rho.detach()
        own = f"{self.range.value(rho).item():.4g}" if rho.numel() == 1 and not rho.is_meta else f"shape={tuple(rho.shape)}"
        return f"{own}, {self.range.words(rho.dtype)}"


def clamped(rho: Tensor, low: float, high: float) -> Tensor:
    """ρ between two limits, whose slope there is 1 where descent leads inside and 0 where it leads out."""
    return rho.clamp(low, high) if is_exporting_to_onnx() else _clamped(rho, low, high)


class _Clamped(torch.autograd.Function):
    @staticmethod
    def forward(rho: Tensor, low: float, high: float) -> Tensor:
        return rho.clamp(low, high)

    @staticmethod
    def fake(rho: Tensor, low: float, high: float) -> Tensor:
        return torch.empty_like(rho)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        rho, ctx.low, ctx.high = inputs
        ctx.save_for_backward(rho)
        ctx.save_for_forward(rho)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,), (rho,) = grad_outputs, ctx.saved_tensors
        out = ((rho <= ctx.low) & (g > 0)) | ((rho >= ctx.high) & (g < 0))
        return g.masked_fill(out, 0.0), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        t, (rho,) = tangents[0], ctx.saved_tensors
        return t.masked_fill(((rho <= ctx.low) & (t < 0)) | ((rho >= ctx.high) & (t > 0)), 0.0)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        rho, low, high = args
        return _clamped(rho.movedim(in_dims[0], 0), low, high), 0


_clamped = differentiable("clamped", _Clamped)


def check_shape(name: str, shape: Any) -> torch.Size:
    """A tuple of counts."""
    if isinstance(shape, (str, float)) or not hasattr(shape, "__iter__"):
        raise TypeError(f"{name}: shape must be a tuple of ints, got {described(shape, 'a tuple such as (8, 1, 1)')}")
    return torch.Size([check_count(name, f"shape[{axis}]", size, 0) for axis, size in enumerate(shape)])
