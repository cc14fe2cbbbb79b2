r"""Interval bound propagation: the least and the most that scores are where each input lies between two numbers, l ≤ x ≤ u.

    W x + b        W c + b ± |W| r,        c = (l + u)/2, r = (u − l)/2
    f that rises   f(l), f(u)

Ends are computed in float64 and widened by what a layer rounds and by what it loses below the least number of its dtype, so that
they hold of what the network computes in that dtype, and not only of real numbers. Where a sum may leave the dtype on its way, even
if it comes back, nothing is known of the result: its ends are −∞ and +∞.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, check_dim, like_input
from softmaxima.base.public import public
from softmaxima.robust.arguments import check_classes, check_ends, narrowed
from softmaxima.robust.layers import check_layer, fall

EXACT = (nn.Identity, nn.Flatten, nn.ReLU, nn.ReLU6, nn.Hardtanh)  # rise, also as they are rounded
ROUNDED = (nn.Tanh, nn.Sigmoid, nn.Softsign)  # rise but for their rounding
UNITS = 4  # in the last place, by which a function of `ROUNDED` may be off


@public
def interval_bound_propagation(model: nn.Module, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The scores that a network gives at least and at most for inputs with lower ≤ x ≤ upper, each input for itself.

    The bounds hold, and are as a rule far from tight: each layer is bounded as if its inputs had nothing to do with each other.

    Args:
        model: `nn.Linear`, functions that rise (ReLU, tanh, ELU, …), `nn.Dropout` in evaluation, and `nn.Sequential` of such; no
            subclasses, whose forward pass may be another.
        lower, upper: inputs [rows, …] of one shape and dtype. For a ball of ε under ℓ∞: x − ε and x + ε, within what inputs can be.

    Returns (lower, upper), scores [rows, classes], differentiable by both ends and by the weights: training on them is certified
    training (`interval` takes them through a map). They hold of the network as it computes in its dtype, matrices summed in that
    dtype (not in TF32) and with the subnormal numbers of it. They are −∞ and +∞ where a number may be beyond the dtype on the way,
    and where an end of the inputs is NaN.

    Raises:
        TypeError for a layer that is not known here, one with hooks, as those of `weight_norm` and `prune`, one with a forward pass
            of its own, and ends that are no tensors; ValueError for a lower end above its upper end or of another shape or dtype,
            for ends that a layer does not take, a weight that is not finite, and a slope that is NaN.

    Cost: three matrix products a layer, in float64.

    Source: Gowal et al. (2018), arXiv:1810.12715.

    >>> import torch, softmaxima as sm
    >>> layer = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
    >>> _ = layer.weight.data.copy_(torch.tensor([[1.0, -2.0]]))
    >>> x = torch.zeros(1, 2, dtype=torch.float64)
    >>> low, high = sm.robust.interval_bound_propagation(layer, x - 0.5, x + 0.5)
    >>> low.item(), high.item() # doctest: +ELLIPSIS
    (-1.5..., 1.5...)
    """
    name = "interval_bound_propagation"
    low, high = check_ends(name, lower, upper, tensors=True)
    return _through(name, model, low.clone(), high.clone())  # a layer may write over what it is given


@public
def is_certified(lower: Array, upper: Array, target: Any, dim: int = -1) -> Array:
    """Whether the target is the argmax whatever the scores are between the ends: lower_t > max_{j≠t} upper_j.

    Args:
        lower, upper: scores of one shape, tensors or arrays, as `interval_bound_propagation` gives them.
        target: the class t of each row, integers of the shape of scores without `dim`, or one for all.
        dim: the axis of classes.

    Returns one bool a row; False where a tie is possible, or any end of the row is NaN.

    Raises:
        TypeError, ValueError or IndexError for arguments that cannot be used, such as a lower end above its upper end, before any
            work.

    Cost: one read of both. Source: Gowal et al. (2018), arXiv:1810.12715.

    >>> import numpy as np, softmaxima as sm
    >>> sm.robust.is_certified(np.array([[1.0, 0.0], [0.5, 0.0]]), np.array([[2.0, 0.9], [2.0, 0.6]]), 0)
    array([ True, False])
    """
    name = "is_certified"
    low, high = check_ends(name, lower, upper, dtypes=False)
    axis = check_dim(name, dim, low.ndim)
    low, high = low.movedim(axis, -1), high.movedim(axis, -1)
    place = check_classes(name, target, low).unsqueeze(-1)
    rivals = high.scatter(-1, place, -math.inf).amax(-1)
    known = ~(low.isnan() | high.isnan()).any(-1)
    return like_input((low.gather(-1, place).squeeze(-1) > rivals) & known, lower)


def _through(name: str, model: nn.Module, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    check_layer(name, model)
    kind: type = type(model)  # a subclass may have a forward pass of its own
    if kind is nn.Sequential:
        for layer in model:  # type: ignore[attr-defined]
            low, high = _through(name, layer, low, high)
        return low, high
    if isinstance(model, nn.Linear) and kind is nn.Linear:
        return _linear(name, model, low, high)
    if kind is nn.Dropout and not model.training:
        return low, high
    if kind in EXACT or (isinstance(model, nn.LeakyReLU) and kind is nn.LeakyReLU and model.negative_slope >= 0):
        return _or_anything(model(low), model(high))
    if kind in ROUNDED or (isinstance(model, nn.ELU) and kind is nn.ELU and model.alpha >= 0):
        return _widened(model(low), model(high), 0.0)
    if isinstance(model, nn.Softplus) and kind is nn.Softplus and model.beta > 0:
        return _widened(model(low), model(high), fall(model))
    raise TypeError(
        f"{name}: model must be nn.Linear, functions that rise, or nn.Sequential of these, and no subclass, got {model}; "
        "bound what is before it and what is behind it, and that layer otherwise"
    )


def _linear(name: str, layer: nn.Linear, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    wanted = f"{name}: {layer} takes [rows, {layer.in_features}] of {layer.weight.dtype} on {layer.weight.device}, got "
    if low.ndim == 0 or low.shape[-1] != layer.in_features:
        raise ValueError(
            f"{wanted}ends of shape {tuple(low.shape)}; give ends as the network takes inputs, or put nn.Flatten before"
        )
    if low.dtype != layer.weight.dtype or low.device != layer.weight.device:
        raise ValueError(f"{wanted}ends of {low.dtype} on {low.device}; call lower.to(weight), upper.to(weight), or move the model")
    dtype, n = low.dtype, layer.in_features
    weight, wide_low, wide_high = layer.weight.double(), low.double(), high.double()
    bias = weight.new_zeros(()) if layer.bias is None else layer.bias.double()
    # A sum of n products is off by at most (n + 1) ε (|W| |x| + |b|)/2, here and in the network; so is what is made of c and r.
    slack, least = 2 * (n + 4) * torch.finfo(dtype).eps, _least(dtype)
    most, size = torch.maximum(wide_low.abs(), wide_high.abs()), weight.abs().T
    reach = (wide_high / 2 - wide_low / 2 + slack * most + least) @ size + slack * bias.abs() + 4 * (n + 4) * least
    centre = (wide_low / 2 + wide_high / 2) @ weight.T + bias
    inside = (most @ size + bias.abs()) * (1 + slack) <= torch.finfo(dtype).max  # false also of NaN
    inside = inside & (wide_low.isfinite() & wide_high.isfinite()).all(-1, keepdim=True)  # ∞ times 0 is none
    return (
        narrowed(torch.where(inside, centre - reach, -math.inf), dtype, -math.inf),
        narrowed(torch.where(inside, centre + reach, math.inf), dtype, math.inf),
    )


def _widened(low: Tensor, high: Tensor, by: float) -> tuple[Tensor, Tensor]:
    slack, dtype = UNITS * torch.finfo(low.dtype).eps, low.dtype
    by = by + UNITS * _least(dtype)
    wide_low, wide_high = low.double(), high.double()
    return _or_anything(
        narrowed(wide_low - slack * wide_low.abs() - by, dtype, -math.inf),
        narrowed(wide_high + slack * wide_high.abs() + by, dtype, math.inf),
    )


def _or_anything(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """−∞ and +∞ where an end is no number, as of functions that are none at infinity."""
    unknown = low.isnan() | high.isnan()
    return low.masked_fill(unknown, -math.inf), high.masked_fill(unknown, math.inf)


def _least(dtype: torch.dtype) -> float:
    """The least positive number, by which a product that is too small for the dtype may be off."""
    return torch.nextafter(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)).item()
