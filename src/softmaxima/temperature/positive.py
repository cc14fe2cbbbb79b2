"""`Positive`: a positive number, or one for each head, channel or class, that is learnt and keeps to its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softmaxima.core.arguments import COMPUTE_DTYPE, broadcasts, check_value
from softmaxima.core.differentiable import differentiable
from softmaxima.core.numbers import check_choice, check_count, check_number, described
from softmaxima.lse.softplus import inverse_softplus, softplus


class Parametrization(NamedTuple):
    """v as a function of ρ, any real number, between limits a < b; ρ of v in float64."""

    value: Callable[[Tensor, float, float], Tensor]
    inverse: Callable[[Tensor, float, float], Tensor]
    reaches_minimum: bool  # or comes near it alone
    reaches_maximum: bool


PARAMETRIZATIONS = {
    "exp": Parametrization(lambda rho, a, b: rho.exp(), lambda v, a, b: v.log(), True, True),
    "softplus": Parametrization(lambda rho, a, b: a + softplus(rho), lambda v, a, b: inverse_softplus(v - a), False, True),
    # exp(log σ) has a slope also where σ is 1 to rounding.
    "sigmoid": Parametrization(
        lambda rho, a, b: a + (b - a) * torch.nn.functional.logsigmoid(rho).exp(),
        lambda v, a, b: (v - a).log() - (b - v).log(),
        False,
        False,
    ),
}


@dataclass(frozen=True)
class Range:
    """The numbers between two limits, and how they are functions of ρ."""

    minimum: float
    maximum: float
    parametrization: str
    low: float = field(init=False)  # ρ at the limits
    high: float = field(init=False)

    def __post_init__(self) -> None:
        for name, limit in (("low", self.minimum), ("high", self.maximum)):
            object.__setattr__(self, name, float(self.rho(torch.tensor(limit, dtype=torch.float64, device="cpu"))))

    @classmethod
    def of(cls, name: str, minimum: Any, maximum: Any, parametrization: Any) -> Range:
        """Checked; None is the limit that float32 has."""
        check_choice(name, "parametrization", parametrization, tuple(PARAMETRIZATIONS))
        if maximum is None and parametrization == "sigmoid":
            raise ValueError(f"{name}: maximum must be given for parametrization='sigmoid', got None; give 10.0 for instance")
        valid, domain = lambda limit: limit == 0 or SMALLEST <= limit <= LARGEST, f"0, or from {SMALLEST:.2g} to {LARGEST:.2g}"
        least = SMALLEST if minimum is None else max(SMALLEST, check_number(name, "minimum", minimum, valid, domain))
        most = LARGEST if maximum is None else check_number(name, "maximum", maximum, valid, domain)
        if not least < most:
            raise ValueError(f"{name}: minimum must be below maximum, got {least:.6g} and {most:.6g}")
        return cls(least, most, parametrization)

    def check(self, name: str, what: str, value: Any) -> Tensor:
        """Numbers within the limits, in float64."""
        how, (a, b) = PARAMETRIZATIONS[self.parametrization], (self.minimum, self.maximum)
        inside = lambda v: (v >= a if how.reaches_minimum else v > a) & (v <= b if how.reaches_maximum else v < b)
        words = (
            f"{'at least' if how.reaches_minimum else 'above'} {a:.6g} and {'at most' if how.reaches_maximum else 'below'} {b:.6g}"
        )
        checked = check_value(name, what, value, inside, f"{words} with parametrization={self.parametrization!r}")
        if isinstance(checked, Tensor):
            return checked.detach().double()
        return torch.tensor(checked, dtype=torch.float64, device="cpu")

    def rho(self, value: Tensor) -> Tensor:
        """ρ(v) in float64."""
        return PARAMETRIZATIONS[self.parametrization].inverse(value, self.minimum, self.maximum)

    def value(self, rho: Tensor) -> Tensor:
        """v(ρ) in ρ's dtype."""
        wide = rho.to(COMPUTE_DTYPE[rho.dtype])
        if self.parametrization != "sigmoid":
            wide = clamped(wide, self.low, self.high)
        value = PARAMETRIZATIONS[self.parametrization].value(wide, self.minimum, self.maximum).to(rho.dtype)
        limits = torch.finfo(rho.dtype)
        inside = value.detach().clamp(max(self.minimum, limits.tiny), min(self.maximum, limits.max))
        return value + (inside - value.detach())  # which moves it by rounding alone


SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, 1 / torch.finfo(torch.float32).tiny


class Positive(nn.Module):
    """A positive number v(ρ) between two limits, or a tensor of them, of which ρ is learnt.

    Args:
        init: v at first, a number or a tensor, whose shape is the default of `shape`. ρ is the exact inverse.
        minimum, maximum: the limits a < b; None for 1.2e-38 and 8.5e37, between which v and 1/v are numbers in float32.
        parametrization:
            "exp"       v = exp(ρ), held within the limits
            "softplus"  v = a + log(1 + exp(ρ)), held below b
            "sigmoid"   v = a + (b − a) σ(ρ), which needs a maximum
        shape: of v, one number for each head, (heads, 1, 1), or each class, (classes,).
        device, dtype: of ρ and v, floating point.

    `module()` is v, with a gradient by the parameter `rho`; every map, loss, head and attention takes the module itself where it
    takes v. A limit that v is held at lets through the gradients whose descent leads back inside, and no others: no value is ever
    stuck there. `set_(v)` sets v.

    Raises:
        TypeError or ValueError for anything else, also for an `init` outside of the limits, or at one that is never reached.

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
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in COMPUTE_DTYPE:
            raise TypeError(f"{name}: dtype must be float64, float32, bfloat16 or float16, got {dtype}; pass torch.float32")
        self.range = Range.of(name, minimum, maximum, parametrization)
        value = self.range.check(name, "init", init)
        shape = check_shape(name, value.shape if shape is None else shape)
        if value.numel() != 1 and value.shape != shape:
            raise ValueError(f"{name}: init must be a number or of the shape {tuple(shape)}, got {tuple(value.shape)}")
        self.rho = nn.Parameter(self.range.rho(value).expand(shape).to(device=device, dtype=dtype, copy=True))

    def forward(self) -> Tensor:
        return self.range.value(self.rho)

    @torch.no_grad()
    def set_(self, value: float | Tensor) -> Positive:
        """Makes v this number, or these numbers of a shape that broadcasts to v's; raises as `Positive` does."""
        name = f"{type(self).__name__}.set_"
        checked = self.range.check(name, "value", value)
        if not broadcasts(checked, tuple(self.rho.shape)):
            raise ValueError(f"{name}: value must broadcast to shape {tuple(self.rho.shape)}, got {tuple(checked.shape)}")
        self.rho.copy_(self.range.rho(checked))
        return self

    def extra_repr(self) -> str:
        own = f"{self().item():.4g}" if self.rho.numel() == 1 and not self.rho.is_meta else f"shape={tuple(self.rho.shape)}"
        limits = f"minimum={self.range.minimum:.4g}, maximum={self.range.maximum:.4g}"
        return f"{own}, {limits}, parametrization={self.range.parametrization!r}"


class _Clamped(torch.autograd.Function):
    """ρ between two limits, whose slope there is 1 where descent leads inside and 0 where it leads out."""

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
        return clamped(rho.movedim(in_dims[0], 0), low, high), 0


clamped = differentiable("clamped", _Clamped)


def check_shape(name: str, shape: Any) -> torch.Size:
    """A tuple of counts."""
    if isinstance(shape, (str, float)) or not hasattr(shape, "__iter__"):
        raise TypeError(f"{name}: shape must be a tuple of ints, got {described(shape, 'a tuple such as (8, 1, 1)')}")
    return torch.Size([check_count(name, f"shape[{axis}]", size, 0) for axis, size in enumerate(shape)])
