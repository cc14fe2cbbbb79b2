r"""linear_loss: any loss of the scores x = c·tanh((W h + b)/c)/τ of a linear layer, which are never held for all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import (
    COMPUTE_DTYPE,
    Array,
    as_tensor,
    broadcasts,
    check_device,
    check_place,
    check_value,
    like_input,
    scale_domain,
)
from softmaxima.base.cosines import unit
from softmaxima.base.modules import OptionsModule, WithOptions, held_value
from softmaxima.base.numbers import (
    check_choice,
    check_count,
    check_number,
    described,
)
from softmaxima.base.public import public
from softmaxima.base.tracing import is_concrete, is_symbol, of_symbol, sizes
from softmaxima.heads.arguments import as_rows_of, check_bias, check_hidden, check_options, check_weight
from softmaxima.heads.exact import best_classes
from softmaxima.heads.fused import evaluate
from softmaxima.heads.labelled import as_rows
from softmaxima.heads.request import Request
from softmaxima.losses.arguments import check_class_weight
from softmaxima.losses.batch import prepare
from softmaxima.losses.contract import Loss
from softmaxima.losses.finding import find_loss

OUTPUTS = ("log_prob", "entropy", "z_loss")


class LinearOutputs(NamedTuple):
    """What `linear_loss` returns with `outputs`; None for what was not asked for.

    >>> import torch, softmaxima as sm
    >>> sm.linear_loss(torch.zeros(1, 2), torch.zeros(4, 2), torch.tensor([0]), outputs="entropy").entropy
    tensor([1.3863])
    """

    loss: Tensor
    log_prob: Tensor | None = None
    entropy: Tensor | None = None
    z_loss: Tensor | None = None


@public
def linear_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    loss: str | tuple[str, Any] = "cross_entropy",
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    class_weight: Tensor | None = None,
    reduction: str = "mean",
    empty: str = "nan",
    z_loss: float = 0.0,
    chunk: int | tuple[int, int] | str = "auto",
    outputs: str | Sequence[str] = (),
) -> Any:
    """A loss of the scores `x = c·tanh((W h + b)/c)/τ` of a linear layer, without ever holding them for all rows, in nats.

    Args:
        hidden: h (…, features), float64, float32, bfloat16 or float16.
        weight: W (classes, features), as `nn.Linear` and `nn.Embedding` have it.
        target: class indices (…), or probabilities (…, classes).
        loss: the name of a loss or of a map that has one ("cross_entropy", "sparsemax", "entmax15", "elastic"), or a tuple of it
            and its first option, ("entmax", 1.3), ("elastic", -1.0), ("sparse_softmax", 50), or a dict of its options. Options that
            are tensors may require grad.
        bias: b (classes). −∞ leaves out a class, though not below a softcap, under which its score is −c/τ.
        temperature: τ > 0, a number or a tensor that broadcasts to (…, 1); a tensor may require grad.
        softcap: c > 0; None leaves the scores as they are.
        ignore_index, label_smoothing, reduction, empty: as for `cross_entropy`; class_weight is its `weight`. A row counts
            Σ_c w_c y_c, y the smoothed target.
        z_loss: z ≥ 0 adds z·V(x)² to each row's loss, before the weight of the row, where ∂V/∂x = p: LSE(x) for cross-entropy, of
            whose targets those with the score −∞ count neither in it nor in the gradient.
        chunk: how many rows at a time; "auto" is as many as take 64 MiB, or 256 MiB on a GPU. (rows, classes) takes some classes at
            a time too, for a layer of which not even the scores of a few rows are to be held: about twelve arrays of that size in
            float64, with the scores computed anew for each pass over them, at ten times the time and more. It goes without
            `outputs` and what learns beside the layer.
        outputs: what to return beside the loss: "log_prob", log p_t of the map (…), "entropy", −Σ p log p (…), both in nats, and
            "z_loss", what z_loss added to the loss, reduced as it is: the loss less that is the one without.
            log p_t is −∞, without a gradient, where p_t is 0; below 1e-307 also, but of softmax and elastic softmax.

    Returns:
        The loss, as that of the scores would be, in the dtype of hidden, an array where that is one; with `outputs` a
        `LinearOutputs`. A row that is ignored has the log_prob and the entropy 0.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Scores and all sums are in float32, or in float64 where hidden is. Of bfloat16 hidden states and weights the gradient by the
    scores is rounded to bfloat16 before its products, as torch's is, where the processor multiplies such numbers. The gradient by a
    weight is rounded to its `grad_dtype`, which is its dtype unless it was set. Second derivatives, torch.func and forward mode
    hold all scores at once.

    Cost: for N rows, V classes and D features 2NVD operations for the scores and 4NVD for the gradients, next to nothing for those
    of a sparse loss once few p are not 0. With reduction="none" or `outputs` the backward pass computes the scores again. Memory:
    that of the gradients and `chunk`, and in half precision a copy of the weight's gradient in float32. Source: that of the loss.

    >>> import torch, softmaxima as sm
    >>> hidden, weight = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    >>> sm.linear_loss(hidden, weight, torch.tensor([0, 2]), loss="sparsemax")
    tensor(0.5000)
    """
    name = "linear_loss"
    found = find_loss(name, loss)
    states, layer, more = as_layer(name, hidden, weight, bias, temperature, softcap, z_loss)
    return ask(
        name,
        found,
        states,
        layer,
        target,
        given=hidden,
        dtype=states.dtype,
        class_weight=class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        empty=empty,
        chunk=chunk,
        outputs=outputs,
        **more,
    )


def as_layer(
    name: str, hidden: Any, weight: Any, bias: Any, temperature: Any, softcap: Any, z_loss: Any
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """(hidden, weight, what else `as_request` takes of the scores x), checked."""
    states = check_hidden(name, hidden)
    layer, domain = check_weight(name, weight, states), scale_domain(states.dtype)
    return (
        states,
        layer,
        {
            "bias": check_bias(name, bias, layer),
            "tau": check_value(name, "temperature", temperature, *domain),
            "softcap": None if softcap is None else check_number(name, "softcap", softcap, *domain),
            "z_loss": check_number(name, "z_loss", z_loss, lambda z: 0 <= z < math.inf, "a finite number of at least 0"),
        },
    )


def ask(
    name: str,
    loss: tuple[Loss, dict[str, Any]],
    hidden: Tensor,
    weight: Tensor,
    target: Any,
    *,
    given: Any,
    dtype: torch.dtype,
    reduction: str,
    **more: Any,
) -> Any:
    """The loss of checked tensors, in a dtype and of the kind that is given; `more` is what `as_request` takes."""
    request = as_request(name, loss, hidden, weight, target, reduction=reduction, **more)
    shape, some = hidden.shape[:-1], None
    if request.batch.ignored is not None and is_concrete(request.hidden):  # a row that is ignored costs nothing
        some = (~request.batch.ignored).nonzero().squeeze(-1)
        request = request.part(some)
    batch = request.batch
    if request.is_of_rows:  # whose backward pass reads them again
        kept = {
            key: None if x is None else x.clone() for key, x in (("labels", batch.labels), ("class_weight", batch.class_weight))
        }
        request = replace(request, batch=replace(batch, **kept))
    value = evaluate(request)
    result = lambda v: like_input(v.to(dtype), given)
    if not request.is_of_rows:
        return result(value)
    of_all = lambda v: v if some is None else v.new_zeros(math.prod(shape)).index_copy(0, some, v)
    reduced = lambda v: of_all(v).reshape(shape) if reduction == "none" else request.batch.reduce(v)
    loss_of = result(reduced(value[0]))
    if not request.outputs:
        return loss_of
    beside = zip(request.outputs, value[1:], strict=True)
    return LinearOutputs(loss_of, **{key: result(reduced(v) if key == "z_loss" else of_all(v).reshape(shape)) for key, v in beside})


def as_request(
    name: str,
    loss: tuple[Loss, dict[str, Any]],
    hidden: Tensor,
    weight: Tensor,
    target: Any,
    *,
    class_weight: Any,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    chunk: Any,
    empty: str = "nan",
    outputs: Any = (),
    bias: Tensor | None = None,
    tau: float | Tensor = 1.0,
    centres: int = 1,
    shared: bool = False,
    **more: Any,
) -> Request:
    """What is asked for, checked; `shared` where others have classes too, which labels count."""
    found, options = loss
    vectors = sizes(weight)[0]
    classes, rows = vectors // centres, as_rows_of(hidden)
    scores = rows.new_zeros((), dtype=COMPUTE_DTYPE[rows.dtype]).expand(rows.shape[0], classes)
    flat = _flat_target(name, target, hidden, classes)
    rows_at_once, classes_at_once = _check_chunk(name, chunk)
    if class_weight is not None:
        what = "class_weight"
        class_weight = check_device(name, what, check_class_weight(name, class_weight, classes, scores.dtype, what), hidden)
    batch = prepare(name, scores, flat, class_weight, ignore_index, reduction, label_smoothing, empty, shared=shared)
    if batch.ignored is not None:
        rows = rows.masked_fill(batch.ignored.unsqueeze(-1), 0.0)  # whatever they hold
    request = Request(
        loss=found,
        options={key: _one_a_row(name, key, value, hidden) for key, value in options.items()},
        batch=batch,
        hidden=rows.contiguous(),
        weight=weight.contiguous(),
        bias=None if bias is None else bias.contiguous(),
        tau=_number(_one_a_row(name, "temperature", tau, hidden)),
        outputs=_check_outputs(name, outputs),
        rows_at_once=rows_at_once,
        classes_at_once=classes_at_once,
        centres=centres,
        **more,
    )
    if request.unit:  # after rows that are ignored are 0
        request = replace(request, hidden=unit(request.hidden.to(request.dtype)))
    if not shared:
        _check(name, request)
    symbols = {key: _one_a_row(name, key, of_symbol(value), hidden) for key, value in options.items() if is_symbol(value)}
    return replace(request, options=request.options | symbols)


def _flat_target(name: str, target: Any, hidden: Tensor, classes: int) -> Tensor:
    """Labels [rows], or probabilities [rows, classes]."""
    given = check_device(name, "target", as_tensor(name, "target", target), hidden)
    shape, got = sizes(hidden)[:-1], sizes(given)
    if given.is_floating_point() and got == (*shape, classes):
        return as_rows_of(given)
    if given.is_floating_point() or given.dtype == torch.bool or given.is_complex() or got != shape:
        raise ValueError(
            f"{name}: target must hold class indices of shape {shape}, or probabilities of shape {(*shape, classes)}; got "
            f"{given.dtype} of shape {got}"
        )
    return given.flatten()


def _one_a_row(name: str, what: str, value: Any, hidden: Tensor) -> Any:
    """A tensor as [rows, 1], or [1, 1] where it is one of all; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    value, shape = check_device(name, what, value, hidden), (*sizes(hidden)[:-1], 1)
    if value.numel() == 1:
        return value.reshape(1, 1)
    if not broadcasts(value, shape):
        repair = f"; call {what}.unsqueeze(-1)" if broadcasts(value, shape[:-1]) else ""
        raise ValueError(f"{name}: {what} must be a number, or broadcast to {shape}, one a row, got shape {sizes(value)}{repair}")
    return value.expand(shape).reshape(-1, 1)


def _number(value: Any) -> Any:
    """A tensor of one number that does not learn as that number."""
    return (
        float(value)
        if isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad and is_concrete(value)
        else value
    )


def _check_outputs(name: str, outputs: Any) -> tuple[str, ...]:
    asked = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(check_choice(name, "outputs", output, OUTPUTS) for output in asked)


def _check_class_parts(name: str, request: Request) -> None:
    """What classes at a time do not have."""
    learns = [value for value in (request.tau, *request.options.values()) if isinstance(value, Tensor) and value.requires_grad]
    more = {"outputs": request.outputs, "a temperature or an option that learns": learns}
    whole = [what for what, asked in (more | {"cosines": request.unit}).items() if asked]
    if request.loss.row_form is None or whole:
        said = f"{whole[0]} takes whole rows" if whole else f"{request.loss.name} has no form in parts of rows"
        raise ValueError(f"{name}: {said}; give chunk as a number of rows")


def _check_chunk(name: str, chunk: Any) -> tuple[int | None, int | None]:
    """(rows at a time, classes at a time), None for as many as memory is for, and for all."""
    if isinstance(chunk, str) and chunk == "auto":
        return None, None
    if isinstance(chunk, (tuple, list)) and len(chunk) == 2:
        return check_count(name, "chunk[0]", chunk[0]), check_count(name, "chunk[1]", chunk[1])
    if isinstance(chunk, (str, tuple, list)) or chunk is None:
        raise TypeError(f'{name}: chunk must be "auto", a number of rows, or (rows, classes), got {chunk!r}')
    return check_count(name, "chunk", chunk), None


def _check(name: str, request: Request) -> None:
    """What only the loss itself can say of its options, and of what else is asked for."""
    _ = request.how
    if request.classes_at_once is not None:
        _check_class_parts(name, request)
    form = request.loss.row_form
    if request.outputs and (form is None or request.map[0].properties.logarithmic):
        raise ValueError(
            f"{name}: {request.loss.name} is of no map, so there is no {' and no '.join(request.outputs)}; leave out outputs"
        )
    if "log_prob" in request.outputs and request.batch.soft is not None:
        raise ValueError(f"{name}: log_prob is that of class indices, and target holds probabilities; leave out 'log_prob'")
    check_z_loss(name, request)


def check_z_loss(name: str, request: Request) -> None:
    """Only a loss that has V has V²."""
    form = request.loss.row_form
    if request.z_loss and (form is None or form.of_p is not None or request.map[0].regulariser is None):
        raise ValueError(f"{name}: z_loss needs a loss with ∂L/∂x = p − y of a map with a regulariser, got {request.loss.name}")


@public
class LinearLoss(WithOptions, nn.Module):
    """`linear_loss` as a module, the last layer of a network and its loss in one.

    Args:
        in_features, classes: of the layer, as of `nn.Linear(in_features, classes)`, whose parameters and initial values it has.
        loss: as for `linear_loss`; options that are `nn.Parameter` are parameters of the module.
        bias: whether the layer has one.
        tie_weight: the weight of an `nn.Embedding` (classes, in_features), to be that of the layer as well.
        The others: as for `linear_loss`.

    Shapes: `forward(hidden, target)` takes (…, in_features) and (…) or (…, classes).

    >>> import torch, softmaxima as sm
    >>> embedding = torch.nn.Embedding(10, 4)
    >>> head = sm.LinearLoss(4, 10, loss="entmax15", tie_weight=embedding.weight)
    >>> round(head(torch.zeros(2, 4), torch.tensor([3, 7])).item(), 4)  # of equal scores
    0.9117
    """

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        loss: str | tuple[str, Any] = "cross_entropy",
        bias: bool = False,
        tie_weight: Tensor | None = None,
        temperature: float | Tensor | nn.Module = 1.0,
        class_weight: Tensor | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_options(name, linear_loss, options)
        self.in_features = check_count(name, "in_features", in_features)
        self.classes = check_count(name, "classes", classes)
        if tie_weight is None:
            layer = nn.Linear(in_features, classes, bias=bias, **check_place(name, device, dtype))
            self.weight, self.bias = layer.weight, layer.bias
        else:
            if device is not None or dtype is not None:
                raise ValueError(f"{name}: tie_weight has a device and a dtype; leave out device and dtype")
            if not isinstance(tie_weight, Tensor):
                raise TypeError(f"{name}: tie_weight must be a tensor, got {described(tie_weight, 'embedding.weight')}")
            check_place(name, tie_weight.device, tie_weight.dtype)
            if sizes(tie_weight) != (classes, in_features):
                raise ValueError(f"{name}: tie_weight must be of shape {(classes, in_features)}, got {sizes(tie_weight)}")
            self.weight = tie_weight if isinstance(tie_weight, nn.Parameter) else nn.Parameter(tie_weight)
            self.bias = nn.Parameter(torch.zeros_like(self.weight[:, 0])) if bias else None
        self.loss, own = find_loss(name, loss)
        self.loss_options = OptionsModule(**own)
        tau = held_value(name, "temperature", temperature, *scale_domain(self.weight.dtype))
        self.hold(temperature=tau, class_weight=class_weight, **options)
        with torch.no_grad():  # which refuses what it would refuse
            self(self.weight.new_zeros((0, in_features)), torch.zeros(0, dtype=torch.long, device=self.weight.device))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.classes}, loss={self.loss.name}, bias={self.bias is not None}, {super().extra_repr()}"

    def forward(self, hidden: Tensor, target: Tensor) -> Any:
        loss = (self.loss.name, self.loss_options.options)
        hidden = as_tensor(type(self).__name__, "hidden", hidden)  # the layer learns from arrays too
        return linear_loss(hidden, self.weight, target, loss=loss, bias=self.bias, **self.options)

    def predict(self, hidden: Array, k: int = 1) -> Array:
        """The k classes of the largest scores, (…, k), the best first; no array of scores is larger than 64 MiB."""
        name = type(self).__name__
        return best_classes(name, as_rows(name, hidden, self.weight, self.bias, 1.0), k)
