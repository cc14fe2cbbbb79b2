r"""Attacks on scores: projected gradient ascent, x ← Π(x + step · direction), of a loss of the logits within a ball around each
input.

The losses are of logits and not of probabilities: a softmax that saturates, as over a low test-time temperature, has a gradient of
0 that stops an attack on it, while the argmax, and so the attack on scores, does not depend on a temperature.

    margin          max_{j≠t} x_j − x_t, above 0 where the model is misled; that of Carlini & Wagner
    dlr             the margin over x₍₁₎ − x₍₃₎, whatever the scale of scores
    cross_entropy   LSE(x) − x_t

Π is onto the ball, and then onto the limits of inputs, in float64, and what a narrower dtype rounds is rounded towards the inputs
that were given, so that it stays in the ball. Onto that of ℓ1 it is sparsemax: ε sparsemax(|δ|/ε) with the signs of δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.base.arguments import check_device
from softmaxima.base.numbers import as_number, check_choice, check_count, check_number, check_positive
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.lse import logsumexp
from softmaxima.maps import sparsemax
from softmaxima.robust.arguments import INSIDE, RADIUS, check_classes, check_floating_tensor, check_norm, sum_up, within_range
from softmaxima.robust.margins import margins
from softmaxima.robust.stationary import length

Loss = Callable[[Tensor, Tensor], Tensor]
SPARSITY = 20  # an ascent under ℓ1 moves one in so many inputs


def _margin(scores: Tensor, target: Tensor) -> Tensor:
    return -margins(scores, target)


def _dlr(scores: Tensor, target: Tensor) -> Tensor:
    if scores.shape[-1] < 3:
        raise ValueError(f"attack: the loss dlr needs at least 3 classes, got {scores.shape[-1]}; take loss='margin'")
    top = scores.topk(3, -1).values
    return -margins(scores, target) / (top[..., 0] - top[..., 2]).clamp_min(torch.finfo(scores.dtype).tiny)


def _cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    return logsumexp(scores) - scores.gather(-1, target.unsqueeze(-1)).squeeze(-1)


ATTACK_LOSSES: dict[str, Loss] = {"margin": _margin, "dlr": _dlr, "cross_entropy": _cross_entropy}


class Attacked(NamedTuple):
    """The inputs that an attack ended with, and whether the model is misled by them."""

    inputs: Tensor  # as those given
    misled: Tensor  # bool [rows]


@public
@torch.inference_mode(False)
@torch.enable_grad()
def attack(
    model: Callable[[Tensor], Tensor],
    inputs: Tensor,
    target: Tensor,
    radius: float,
    norm: float = math.inf,
    *,
    loss: str | Loss = "margin",
    steps: int = 40,
    restarts: int = 1,
    step_size: float | None = None,
    limits: tuple[float, float] | None = (0.0, 1.0),
    stop: bool = False,
    generator: Randomness = None,
    advanced: Callable[[], None] = lambda: None,
) -> Attacked:
    """Inputs within ε of those given at which the model's scores are as wrong as can be found, by projected gradient ascent.

    A model that withstands it is not thereby shown to be robust: another attack may succeed (`certified_radius` and `interval`
    certify).

    Args:
        model: from inputs [rows, …] to scores [rows, classes], of which gradients can be taken; in the mode that it is in. It is
            given copies, which it may write over.
        inputs: [rows, …], a floating-point tensor, within the limits.
        target: the right class of each row.
        radius: ε ≥ 0, under `norm` (1, 2 or `math.inf`) of all inputs of a row together.
        loss: "margin" (Carlini & Wagner's), "dlr", "cross_entropy", or a function from (scores, target) to one number a row to
            raise: an attack that knows of a defence puts that into it.
        steps, restarts: so many steps from the inputs themselves, and from restarts − 1 random points of the ball.
        step_size: length of a step; 2.5 ε/steps by default.
        limits: the least and the greatest that an input may be; None for any.
        stop: leaves a row as soon as it is misled, instead of going on to where the loss is greatest.
        generator: of the random points, as everywhere.
        advanced: called after each step, of which there are steps · restarts, for a progress bar.

    Returns (inputs, misled): of each row the point that misled the model with the greatest loss, or else that of the greatest loss.

    A row is misled where the right score is not above all others: a tie misleads, and so do scores that become NaN. It is found
    under `torch.no_grad` and `torch.inference_mode` as elsewhere.

    Raises:
        TypeError or ValueError for arguments that cannot be used, before any step; ValueError for a model that gives NaN for the
        inputs as they are, has no gradient by them or gives scores of another shape at a later call, for a gradient that is NaN
        where the scores are not, and for a loss that is NaN or +∞ where the model is right, for such a model would seem to
        withstand.

    Cost: a forward and a backward pass a step.

    Source: Madry et al. (2018), arXiv:1706.06083; Carlini & Wagner (2017), arXiv:1608.04644; Croce & Hein (2020),
    arXiv:2003.01690; under ℓ1 Tramèr & Boneh (2019), arXiv:1904.13000.

    >>> import torch, softmaxima as sm
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> sm.robust.attack(model, torch.tensor([[0.6, 0.5], [0.9, 0.1]]), torch.tensor([0, 0]), 0.1).misled
    tensor([ True, False])
    """
    name = "attack"
    x = check_floating_tensor(name, "inputs", inputs).detach().clone()
    norm, radius = check_norm(name, norm), check_number(name, "radius", radius, *RADIUS)
    if x.ndim < 2:
        raise ValueError(f"{name}: inputs must be [rows, …], got shape {tuple(x.shape)}; call .unsqueeze(0) for a single row")
    if x[:1].numel() == 0 and len(x):
        raise ValueError(f"{name}: inputs must have numbers to move, got shape {tuple(x.shape)}; give rows with some")
    if not callable(model):
        raise TypeError(f"{name}: model must be a function from inputs to scores, got {type(model).__name__}; pass a network")
    if not callable(advanced):
        raise TypeError(f"{name}: advanced must be a function that takes nothing, got {advanced!r}; leave it out for none")
    if not bool(x.isfinite().all()):
        raise ValueError(f"{name}: inputs must be finite, got {int((~x.isfinite()).sum())} that are not; leave those rows out")
    within_range(name, "inputs", torch.tensor([float(x.min()), float(x.max())] if x.numel() else [], dtype=torch.float64))
    within_range(name, "radius", torch.tensor(radius, dtype=torch.float64))
    of = loss if callable(loss) else ATTACK_LOSSES[check_choice(name, "loss", loss, tuple(ATTACK_LOSSES))]
    steps, restarts = check_count(name, "steps", steps), check_count(name, "restarts", restarts)
    step = 2.5 * radius / steps if step_size is None else check_positive(name, "step_size", step_size)
    rng = as_torch_generator(name, generator)
    low, high = _limits(name, limits, x)
    with torch.no_grad():
        first = _scores(name, model, x)
    if broken := int(first.isnan().any(-1).sum()):
        raise ValueError(
            f"{name}: model gives NaN for {broken} of {len(x)} inputs as they are, of which nothing can be said; mend it, or leave "
            "those rows out"
        )
    classes = check_device(name, "target", check_classes(name, target, first), x).clone()

    best, best_loss = x.clone(), torch.full(x.shape[:1], -math.inf, dtype=first.dtype, device=x.device)
    misled = torch.zeros(x.shape[:1], dtype=torch.bool, device=x.device)
    for restart in range(restarts):
        at = x if restart == 0 else _project(x, _drawn(x, radius, norm, rng), radius, norm, low, high)
        for number in range(steps + 1):
            at = at.detach().requires_grad_(number < steps)
            scores = _scores(name, model, at, first)
            value = of(scores, classes)
            if not isinstance(value, Tensor) or value.shape != classes.shape:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"{name}: loss must give one number a row, {tuple(classes.shape)}, got {got}; do not reduce it")
            wrong = ~(margins(scores.detach(), classes) > 0)  # a tie, or what is no number, is no decision for the class
            better = (wrong & ~misled) | ((wrong == misled) & (value.detach() > best_loss))
            better = better & ~misled if stop else better
            best = torch.where(_like(better, x), at.detach(), best)
            best_loss, misled = torch.where(better, value.detach().to(best_loss), best_loss), misled | wrong
            blind = (value.detach().isnan() | (value.detach() == math.inf)) & ~wrong
            if bool(blind.any()):
                what = "NaN" if bool(value.detach()[blind].isnan().any()) else "+∞"
                raise ValueError(f"{name}: loss is {what} where the model is right, so that the attack is blind; give another loss")
            if number < steps:
                slope = _slope(name, value, at, wrong)
                delta = at.detach().double() - x.double() + step * _direction(slope, norm)
                at = _project(x, delta, radius, norm, low, high)
                advanced()
    return Attacked(best, misled)


def _scores(name: str, model: Callable[[Tensor], Tensor], x: Tensor, first: Tensor | None = None) -> Tensor:
    """What the model gives, of one shape and dtype at each call; `first` is what it gave at the first, without gradients."""
    try:
        scores = model(x.clone())
    except RuntimeError as error:
        if not x.requires_grad or isinstance(error, torch.OutOfMemoryError):
            raise
        with torch.no_grad():
            model(x.clone())  # whose error, where there is one, is the model's own
        said = str(error).partition(". ")[0]
        raise ValueError(
            f"{name}: model must be one whose gradients can be taken, got an error that it does not give without them, “{said}”; "
            "keep its numbers in torch tensors (no .numpy()), and make it outside torch.inference_mode"
        ) from error
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"{name}: model must give scores in a floating-point tensor, got {got}; an attack needs their gradients")
    if first is None and (scores.ndim != 2 or len(scores) != len(x)):
        raise ValueError(f"{name}: model must give scores [{len(x)}, classes], got shape {tuple(scores.shape)}; reshape them")
    if first is not None and (scores.shape, scores.dtype, scores.device) != (first.shape, first.dtype, first.device):
        kind, other = (f"{tuple(each.shape)} of {each.dtype} on {each.device}" for each in (first, scores))
        raise ValueError(
            f"{name}: model must give scores of one kind at each call, got {kind} and then {other}; keep no state between calls"
        )
    return scores


def _slope(name: str, value: Tensor, at: Tensor, wrong: Tensor) -> Tensor:
    """The gradient in float64; 0 where it is NaN in rows that are misled."""
    slope = torch.autograd.grad(value.sum(), at, allow_unused=True)[0] if value.requires_grad else None
    if slope is None:
        raise ValueError(f"{name}: model must give scores with a gradient by its inputs, got none; do not detach them")
    if bool((slope.isnan().flatten(1).any(1) & ~wrong).any()):
        raise ValueError(f"{name}: the gradient is NaN where the scores are not, so that the attack is blind; mend it")
    return slope.nan_to_num(0.0).double()


def _limits(name: str, limits: Any, x: Tensor) -> tuple[float, float]:
    if limits is None:
        return -math.inf, math.inf
    numbers = tuple(as_number(end) for end in limits) if isinstance(limits, (tuple, list)) and len(limits) == 2 else (None, None)
    low, high = numbers
    if low is None or high is None or not low < high:
        raise ValueError(f"{name}: limits must be two numbers, the least first, or None, got {limits!r}")
    if x.numel() and not (low <= float(x.min()) and float(x.max()) <= high):
        raise ValueError(
            f"{name}: inputs must be within limits, {low} to {high}, got {float(x.min())} to {float(x.max())}; give others"
        )
    return low, high


def _like(rows: Tensor, x: Tensor) -> Tensor:
    return rows.reshape(-1, *(1,) * (x.ndim - 1))


def _direction(slope: Tensor, norm: float) -> Tensor:
    """Of length 1, in which a loss rises most; 0 where its slope is."""
    if norm == math.inf:
        return slope.sign()
    flat = slope.flatten(1)
    if norm == 2.0:
        flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)  # squares of it are in range
        return (flat / flat.norm(dim=1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)).reshape(slope.shape)
    few = max(1, flat.shape[1] // SPARSITY)
    places = flat.abs().topk(few, 1).indices
    return torch.zeros_like(flat).scatter(1, places, flat.gather(1, places).sign() / few).reshape(slope.shape)


def _project(x: Tensor, delta: Tensor, radius: float, norm: float, low: float, high: float) -> Tensor:
    """x + δ in the ball and the limits, δ of float64. Limits only shorten δ, for x is within them, and so does rounding."""
    if radius < torch.finfo(torch.float64).tiny:
        return x
    if norm == math.inf:
        delta = delta.clamp(-radius, radius)
    else:
        flat = delta.flatten(1)
        if norm == 2.0:
            flat = flat * (INSIDE * radius / length(flat.abs()).clamp_min(radius))
        else:
            radius = INSIDE * radius
            outside = flat.abs().sum(1, keepdim=True) > radius
            flat = torch.where(outside, flat.sign() * radius * sparsemax(flat.abs(), temperature=radius), flat)
        delta = flat.reshape(x.shape)
    wide = x.double()
    moved = (wide + delta).clamp(low, high)
    near = moved.to(x)
    most = torch.minimum(delta.abs(), (moved - wide).abs())  # of both: neither the ball nor the limits are left by rounding
    far = torch.maximum(sum_up(near.double(), -wide), sum_up(wide, -near.double()))
    return torch.where(far > most, torch.nextafter(near, x), near)


def _drawn(x: Tensor, radius: float, norm: float, rng: torch.Generator | None) -> Tensor:
    """Points of the ball: uniform under ℓ∞; under the others in a random direction, at a random distance."""
    if norm == math.inf:
        return (radius * (2 * torch.rand(x.shape, generator=rng, dtype=torch.float64) - 1)).to(x.device)
    flat = torch.randn(x.shape, generator=rng, dtype=torch.float64).flatten(1)
    length = radius * torch.rand(len(x), 1, generator=rng, dtype=torch.float64)
    return (flat * length / flat.norm(p=norm, dim=1, keepdim=True)).reshape(x.shape).to(x.device)
