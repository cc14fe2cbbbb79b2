r"""Margin losses on cosines c: the cross-entropy of c/τ, with the target's cosine first made smaller.

    AM-softmax, CosFace:  c_t − m                      ArcFace:  cos(θ_t + m), θ_t = arccos c_t

Past θ_t = π − m, where cos(θ + m) would rise again, ArcFace goes on as −2 − cos(θ_t + m): continuous with its derivative, and
decreasing in θ throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import (
    Array,
    as_scores,
    as_tensor,
    check_device,
    check_per_row,
    like_input,
    moved_back,
    moved_last,
    scale_domain,
)
from softmaxima.base.cosines import cosines, unit
from softmaxima.base.dtensors import is_dtensor
from softmaxima.base.modules import held_value
from softmaxima.base.numbers import check_int, check_number
from softmaxima.base.public import public
from softmaxima.base.tracing import is_concrete
from softmaxima.kernels import native
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import Loss, LossModule, register
from softmaxima.losses.cross_entropy import reference as cross_entropy_reference
from softmaxima.losses.evaluation import Evaluation, evaluated, reduced
from softmaxima.losses.row_losses import native_only
from softmaxima.maps.log_softmax import LOG_SOFTMAX
from softmaxima.maps.softmax import SOFTMAX

# A margin is below the largest difference of two cosines, or of two angles.
COSINES: tuple[Callable[[float], bool], str] = (lambda margin: 0 <= margin < 2, "a number in [0, 2)")
SCALE = scale_domain(torch.float64)  # the widest, for the scores of a module are not known yet
NEAR = 0.99  # up to such cosines a gradient across a vector loses three bits
ANGLES: tuple[Callable[[float], bool], str] = (lambda margin: 0 <= margin < math.pi, "a number in [0, π)")


def cosine_reference(z: Tensor, y: Tensor, margin: float, scale: float) -> Tensor:
    return cross_entropy_reference(scale * (z - margin * y), y)


def angle_reference(z: Tensor, y: Tensor, margin: float, scale: float) -> Tensor:
    angle = z.acos() + margin * y
    return cross_entropy_reference(scale * torch.where(angle <= math.pi, angle.cos(), -2 - angle.cos()), y)


def additive_cosine(cosine: Tensor, margin: Tensor) -> Tensor:
    return cosine - margin


def additive_angle(cosine: Tensor, margin: Tensor, eps: float, sine: Tensor | None = None) -> Tensor:
    """cos(arccos(c) + m), decreasing for every angle; `sine` is that of the angle, where more is known of it than c.

    Its derivative grows without bound towards |c| = 1; at ±1 it is that of the nearest cosine inside, whose sine is √eps.
    """
    cosine = cosine.clamp(-1.0, 1.0)
    if sine is None:
        squared_sine = (1 - cosine) * (1 + cosine)
        pad = torch.where(squared_sine > 0, 0.0, eps)
        sine = (squared_sine + pad).sqrt() - pad.sqrt()
    cos_margin, sin_margin = margin.cos(), margin.sin()
    moved = cosine * cos_margin - sine * sin_margin
    return torch.where(cosine >= -cos_margin, moved, -2 - moved)  # θ ≤ π − m iff cos θ ≥ −cos m


def margin_loss(
    name: str,
    angular: bool,
    margin: float,
    what: str,
    given: Any,
    input: Any,
    target: Any,
    class_vectors: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    empty: str,
) -> Any:
    """The cross-entropy of scale · cosines, the target's with its margin; what is given is a scale, or a temperature 1/scale."""
    shared = (target, weight, ignore_index, reduction, label_smoothing, empty)
    of_features = class_vectors is not None
    if is_dtensor(input):
        x = _cosines_of_dtensors(name, input, class_vectors, target, ignore_index) if of_features else input
        own = partial(_margin, name, angular=angular, margin=margin, what=what, of_features=of_features)
        of_rows = lambda batch, **given: evaluation(batch, own(batch.given, given[what]))
        return evaluated(name, of_rows, {what: given}, x, *shared).to(input.dtype)
    scores = x = as_scores(name, input)
    if of_features:
        vectors = check_device(name, "class_vectors", as_scores(name, class_vectors, "class_vectors"), scores)
        labels = as_tensor(name, "target", target)
        features = _features(name, scores, vectors, labels, ignore_index)
        x = _cosines(features, vectors)
        with_margin = _with_target_margin(x, features, vectors, labels, angular, margin)
        if with_margin is not None:
            x, angular, margin = with_margin, False, 0.0
    own = _margin(name, x, given, angular=angular, margin=margin, what=what, of_features=of_features)
    numbers = None if isinstance(own.scale, Tensor) else ()
    value = reduced(name, SOFTMAX, numbers, evaluation, {"own": own}, x, *shared, margin=own)
    return like_input(value.to(scores.dtype), input)


def _margin(name: str, x: Tensor, given: Any, *, angular: bool, margin: float, what: str, of_features: bool) -> native.Margin:
    """What the kernel takes of cosines; features have cosines that may be beyond ±1."""
    axis = min(1, max(0, x.ndim - 1))
    found: Any = moved_last(check_per_row(name, what, given, x, axis, *scale_domain(x.dtype)), axis)
    limit = math.inf if of_features else 1 + 4 * torch.finfo(x.dtype).eps
    return native.Margin(found if what == "scale" else 1 / found, margin, int(angular), limit)


def evaluation(batch: Batch, own: native.Margin) -> Evaluation:
    def composite(batch: Batch) -> Tensor:
        check_cosines(batch, own.limit)
        return batch.reduce(batch.cost(LOG_SOFTMAX(own.scale * _with_margin(batch, own))))

    def of_cosines(x: Tensor, target: Tensor, **account: Any) -> tuple[Tensor, Tensor | None]:
        values, slope = native.loss(SOFTMAX.kernel, x, target, theta=(), fenchel=False, margin=own, **account)  # type: ignore[arg-type]
        if bool((values == -math.inf).any()):  # so the kernel says it
            check_cosines(batch, own.limit)
        return values, slope

    losses = None if isinstance(own.scale, Tensor) else native_only(batch, of_cosines)
    return Evaluation(losses, composite, wide=True, of_map=True)


def check_cosines(batch: Batch, limit: float) -> None:
    """No cosine is beyond ±1 by more than its rounding."""
    if limit == math.inf or not is_concrete(batch.rows) or batch.rows.numel() == 0:
        return
    lowest, highest = batch.rows.detach().aminmax()  # NaN where one is
    if not (float(lowest) >= -limit and float(highest) <= limit):
        largest = float(batch.rows.detach().abs().nan_to_num(0.0).max())
        if largest > limit:
            raise ValueError(
                f"{batch.name}: cosines must lie in [−1, 1], got {largest:.4g}; for features, give class_vectors as well"
            )


def _features(name: str, features: Tensor, vectors: Tensor, target: Tensor, ignore_index: Any) -> Tensor:
    """Features (N, D, d…) or (D), checked, and 0 in rows that are ignored, whatever they hold."""
    axis = 0 if features.ndim == 1 else 1
    if features.ndim == 0 or vectors.ndim != 2 or features.shape[axis] != vectors.shape[1]:
        raise ValueError(
            f"{name}: class_vectors must be (classes, {features.shape[axis] if features.ndim else 'D'}) for features of shape "
            f"{tuple(features.shape)}, got {tuple(vectors.shape)}"
        )
    if 0 in vectors.shape:
        raise ValueError(f"{name}: class_vectors must be of at least one class and one feature, got {tuple(vectors.shape)}")
    if not _is_of_labels(features, target):
        return features
    ignored = target == check_int(name, "ignore_index", ignore_index)
    if is_concrete(ignored) and not bool(ignored.any()):
        return features
    return features.masked_fill(ignored.unsqueeze(axis), 0.0)


def _is_of_labels(features: Tensor, target: Tensor) -> bool:
    """Whether the target holds one label a row; what else there may be is refused later, or probabilities."""
    axis = min(1, features.ndim - 1)
    rows = (*features.shape[:axis], *features.shape[axis + 1 :])
    return not target.is_floating_point() and target.device == features.device and tuple(target.shape) == rows


def _cosines(features: Tensor, vectors: Tensor) -> Tensor:
    """Cosines (N, C, d…) of features (N, D, d…), or (C) of (D), with class vectors (C, D), in the dtype that computes them."""
    axis = min(1, features.ndim - 1)
    return moved_back(cosines(moved_last(features, axis), vectors), axis)


def _with_target_margin(
    x: Tensor, features: Tensor, vectors: Tensor, target: Tensor, angular: bool, margin: float
) -> Tensor | None:
    """The cosines x, those of labels with their margin, by the vectors' sum and difference; None without labels, and where x does.

    Of an angle near 0 or π a cosine has few digits, and its gradient, the part of u across v, is a difference of nearly equal ones.
    """
    if not _is_of_labels(features, target):
        return None
    axis = min(1, features.ndim - 1)
    labels = target.long().clamp(0, x.shape[axis] - 1)
    place = labels.unsqueeze(axis)
    if not angular and is_concrete(x) and not bool((x.detach().gather(axis, place).abs() > NEAR).any()):
        return None
    u, v = unit(moved_last(features, axis).double()), unit(vectors[labels].double())
    has_angle = (u.detach() != 0).any(-1) & (v.detach() != 0).any(-1)  # a vector of 0 has a cosine of 0
    product = (u * v).sum(-1)
    near = product.detach() >= 0
    across = torch.where(near.unsqueeze(-1), u - v, u + v)  # the shorter one
    of_across = across.square().sum(-1) / 2
    cosine = torch.where(has_angle, torch.where(near, 1 - of_across, of_across - 1), product)
    if angular:
        sine = torch.where(has_angle, _length(u - v) * _length(u + v) / 2, 1.0)
        moved = additive_angle(cosine, u.new_full((), margin), 0.0, sine)
    else:
        moved = cosine - margin
    return x.scatter(axis, place, moved.unsqueeze(axis).to(x.dtype))


def _length(x: Tensor) -> Tensor:
    """‖x‖ along the last axis, with no slope at 0."""
    nothing = (x.detach() == 0).all(-1)
    return torch.linalg.vector_norm(x.masked_fill(nothing.unsqueeze(-1), 1.0), dim=-1).masked_fill(nothing, 0.0)


def _cosines_of_dtensors(name: str, features: Any, vectors: Any, target: Any, ignore_index: Any) -> Any:
    """The same of DTensors, by torch's operations."""
    if not is_dtensor(vectors):
        raise ValueError(f"{name}: class_vectors must be a DTensor as the features are, got {type(vectors).__name__}")
    from torch.distributed.tensor import DTensor, Replicate  # which not every torch has

    labels = target if is_dtensor(target) else as_tensor(name, "target", target)
    if not is_dtensor(labels):
        mesh = features.device_mesh
        labels = DTensor.from_local(labels, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return _cosines(_features(name, features, vectors, labels, ignore_index), vectors)


def _with_margin(batch: Batch, own: native.Margin) -> Tensor:
    """The margin on the target's cosine; on each cosine in proportion to its probability for soft targets."""
    eps = (own.limit - 1) / 4 if own.limit < math.inf else torch.finfo(batch.scores.dtype).eps  # of cosines as they came
    with_margin = partial(additive_angle, eps=eps) if own.angular else additive_cosine
    if batch.soft is not None:
        return with_margin(batch.scores, own.size * batch.soft)
    index = batch.labels.unsqueeze(-1)  # type: ignore[union-attr]
    chosen = batch.scores.gather(-1, index)
    return batch.scores.scatter(-1, index, with_margin(chosen, chosen.new_full((), own.size)))


@public
def am_softmax_loss(
    input: Array,
    target: Any,
    class_vectors: Any = None,
    *,
    margin: float = 0.35,
    temperature: float | Array = 1 / 30,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
) -> Array:
    """AM-softmax, `−log(e^{(c_t−m)/τ} / (e^{(c_t−m)/τ} + Σ_{j≠t} e^{c_j/τ}))`: the target must win by a margin in cosine.

    Args:
        input: cosines (N, C, d…), in [−1, 1] up to rounding; or, with class_vectors, features (N, D, d…).
        class_vectors: (C, D), one vector a class (the last layer's weight); the cosines are then taken here.
        margin: m in [0, 2).
        temperature: τ > 0, as for `cross_entropy`; cosines alone span too little for a confident softmax.
        The others, errors: as for `cross_entropy`. For target probabilities y the margin of class c is m·y_c.

    Of features and labels the gradient by a class vector at the angle θ of its own row is made in float64, with a relative error of
    some 1e-16/θ; of target probabilities, and of other classes' rows, one next to 0 or π has an error of some ε/θ.

    Source: Wang et al. (2018), arXiv:1801.05599. Cost: as `cross_entropy`, and the product for features.

    >>> import torch, softmaxima as sm
    >>> sm.am_softmax_loss(torch.tensor([[0.9, 0.2]]), torch.tensor([0]), margin=0.5, temperature=0.1)
    tensor(0.1269)
    """
    name = "am_softmax_loss"
    margin = check_number(name, "margin", margin, *COSINES)
    shared = (input, target, class_vectors, weight, ignore_index, reduction, label_smoothing, empty)
    return margin_loss(name, False, margin, "temperature", temperature, *shared)


@public
def cosface(
    input: Array,
    target: Any,
    class_vectors: Any = None,
    *,
    margin: float = 0.35,
    scale: float | Array = 64.0,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
) -> Array:
    """CosFace: `am_softmax_loss` under its other name, with scale = 1/temperature.

    Source: Wang et al. (2018), arXiv:1801.09414. Arguments and errors as for `am_softmax_loss`.

    >>> import torch, softmaxima as sm
    >>> sm.cosface(torch.tensor([[0.9, 0.2]]), torch.tensor([0]), margin=0.5, scale=10.0)
    tensor(0.1269)
    """
    name = "cosface"
    margin = check_number(name, "margin", margin, *COSINES)
    shared = (input, target, class_vectors, weight, ignore_index, reduction, label_smoothing, empty)
    return margin_loss(name, False, margin, "scale", scale, *shared)


@public
def arcface(
    input: Array,
    target: Any,
    class_vectors: Any = None,
    *,
    margin: float = 0.5,
    scale: float | Array = 64.0,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    empty: str = "nan",
) -> Array:
    """ArcFace: the cross-entropy of scale · cosines, with the target's angle made larger by the margin, cos(θ_t + m).

    Args:
        margin: m in [0, π), in radians.
        scale: s > 0, as a temperature may be.
        The others, errors: as for `am_softmax_loss`. For target probabilities y the angle of class c grows by m·y_c.

    The gradient is the true one, finite also at cosines of ±1, where arccos has none. Past θ_t = π − m, where cos(θ + m) turns, the
    loss goes on as −2 − cos(θ_t + m) and so keeps falling as the target comes nearer. Cosines beyond ±1 by rounding count as ±1.
    Of features and labels the angle is taken from the vectors in float64; of cosines, and of target probabilities, one next to 0 or
    π has the digits of its cosine, a relative error of some ε/θ².

    Source: Deng et al. (2019), arXiv:1801.07698.

    >>> import torch, softmaxima as sm
    >>> sm.arcface(torch.tensor([[0.9, 0.2]]), torch.tensor([0]), margin=0.5, scale=10.0)
    tensor(0.0219)
    """
    name = "arcface"
    margin = check_number(name, "margin", margin, *ANGLES)
    shared = (input, target, class_vectors, weight, ignore_index, reduction, label_smoothing, empty)
    return margin_loss(name, True, margin, "scale", scale, *shared)


class _MarginModule(LossModule):
    """Shared by the margin modules: `forward` takes class vectors as well."""

    def forward(self, input: Tensor, target: Tensor, class_vectors: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return type(self).function(input, target, class_vectors, **self.options)


@public
class AMSoftmaxLoss(_MarginModule):
    """`am_softmax_loss` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.AMSoftmaxLoss(0.5, 0.1)(torch.tensor([[0.9, 0.2]]), torch.tensor([0]))
    tensor(0.1269)
    """

    function = am_softmax_loss

    def __init__(
        self, margin: float = 0.35, temperature: float | Tensor | nn.Module = 1 / 30, weight: Tensor | None = None, **options: Any
    ) -> None:
        name = type(self).__name__
        super().__init__(weight, margin=check_number(name, "margin", margin, *COSINES), temperature=temperature, **options)


@public
class CosFace(_MarginModule):
    """`cosface` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.CosFace(0.5, 10.0)(torch.tensor([[0.9, 0.2]]), torch.tensor([0]))
    tensor(0.1269)
    """

    function = cosface

    def __init__(
        self, margin: float = 0.35, scale: float | Tensor | nn.Module = 64.0, weight: Tensor | None = None, **options: Any
    ) -> None:
        name = type(self).__name__
        super().__init__(
            weight, margin=check_number(name, "margin", margin, *COSINES), scale=held_value(name, "scale", scale, *SCALE), **options
        )


@public
class ArcFace(_MarginModule):
    """`arcface` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.ArcFace(0.5, 10.0)(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.eye(2))
    tensor(0.0002)
    """

    function = arcface

    def __init__(
        self, margin: float = 0.5, scale: float | Tensor | nn.Module = 64.0, weight: Tensor | None = None, **options: Any
    ) -> None:
        name = type(self).__name__
        super().__init__(
            weight, margin=check_number(name, "margin", margin, *ANGLES), scale=held_value(name, "scale", scale, *SCALE), **options
        )


register(
    Loss(
        "am_softmax_loss",
        am_softmax_loss,
        AMSoftmaxLoss,
        lambda batch, margin, temperature: evaluation(batch, native.Margin(1 / temperature, margin)),
        lambda z, y, margin, temperature: cosine_reference(z, y, margin, 1 / temperature),
        examples=({"temperature": 0.2},),
        on_cosines=True,
    )
)
register(
    Loss(
        "cosface",
        cosface,
        CosFace,
        lambda batch, margin, scale: evaluation(batch, native.Margin(scale, margin)),
        cosine_reference,
        examples=({"scale": 5.0},),
        on_cosines=True,
    )
)
register(
    Loss(
        "arcface",
        arcface,
        ArcFace,
        lambda batch, margin, scale: evaluation(batch, native.Margin(scale, margin, 1)),
        angle_reference,
        examples=({"scale": 5.0}, {"scale": 5.0, "margin": 1.2}),
        on_cosines=True,
    )
)
