"""Layers that bounds are made of, checked: that a layer computes what its class says, of the weights that it has now."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

GLOBAL = ("_global_forward_hooks", "_global_forward_pre_hooks")  # of all modules
OWN = ("_forward_hooks", "_forward_pre_hooks")


def check_layer(name: str, layer: Any) -> None:
    """Refuses a layer with hooks or a forward pass of its own, and one with a weight or a slope that is no number.

    `torch.nn.utils.weight_norm` and `prune` make the weight in such a hook: that which is there is of the last call.
    """
    said = type(layer).__name__
    if not isinstance(layer, nn.Module):
        raise TypeError(f"{name}: model must be a torch.nn.Module, got {said}; give nn.Sequential of layers")
    if "forward" in vars(layer):
        raise TypeError(
            f"{name}: model must have the forward pass of its class, got {said} with one of its own; del layer.forward, or "
            "bound it otherwise"
        )
    hooked = any(getattr(layer, kind) for kind in OWN) or any(getattr(torch.nn.modules.module, kind) for kind in GLOBAL)
    if hooked or "weight" in vars(layer):
        raise TypeError(
            f"{name}: model must have no hooks, which may make another weight or another result, got {said} with some; remove them "
            "(torch.nn.utils.remove_weight_norm, remove_spectral_norm, prune.remove)"
        )
    if any(isinstance(number, float) and math.isnan(number) for number in vars(layer).values()):
        raise ValueError(f"{name}: numbers of a layer must not be NaN, got {layer}; mend it")
    held = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False), *vars(layer).items()]
    for what, values in held:
        if isinstance(values, Tensor) and not bool(values.isfinite().all()):
            count = int((~values.isfinite()).sum())
            raise ValueError(
                f"{name}: {what} of {said} must be finite, got {count} number{'s that are' if count > 1 else ' that is'} not; "
                "mend the model"
            )


def fall(layer: nn.Softplus) -> float:
    """By how much at most softplus falls where it becomes x, at its threshold t: log(1 + e^{−t})/β."""
    t = float(layer.threshold)
    return (1 + 1e-15) * (max(-t, 0.0) + math.log1p(math.exp(-abs(t)))) / float(layer.beta)
