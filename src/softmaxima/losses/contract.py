"""What a loss is: its record in the registry, and its module."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import as_tensor
from softmaxima.base.modules import OptionsModule, held_value
from softmaxima.base.numbers import TEMPERATURE
from softmaxima.base.public import public, unknown_argument
from softmaxima.base.tracing import sizes
from softmaxima.engine.blocks import Part, places
from softmaxima.engine.parts import again, as_given, in_parts
from softmaxima.losses.arguments import as_labels, check_class_weight, check_empty, check_shared, check_soft, check_sums
from softmaxima.losses.batch import mean_over
from softmaxima.losses.evaluation import Evaluation
from softmaxima.losses.parts import RowForm, all_rows, bind, some_rows

SHARED = ("weight", "ignore_index", "reduction", "label_smoothing", "empty")  # options of all losses
OF_SCORES = ("temperature", "dim", "where")  # and of those that are not of cosines


@public
class LossModule(OptionsModule):
    """A loss as a module. Subclasses name the function that they mirror.

    `weight` is a buffer; parameters of the loss may be numbers, tensors or modules such as `Positive`. Raises TypeError or
    ValueError at once for an option that the loss does not take, or a value that it would refuse.

    >>> import torch, softmaxima as sm
    >>> sm.SparsemaxLoss(weight=torch.ones(3), reduction="sum")
    SparsemaxLoss(weight=Tensor(3,), ignore_index=-100, reduction='sum', label_smoothing=0.0)
    """

    function: Callable[..., Tensor]

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        empty: str = "nan",
        **options: Any,
    ) -> None:
        name = type(self).__name__
        if check_empty(name, empty) != "nan":
            options["empty"] = empty
        self.check_names(options)
        if weight is not None:
            weight = check_class_weight(name, weight, None)
        ignore_index, reduction, label_smoothing = check_shared(name, ignore_index, reduction, label_smoothing)
        if "temperature" in options:
            options["temperature"] = held_value(name, "temperature", options["temperature"], *TEMPERATURE)
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing, **options)

    @classmethod
    def check_names(cls, options: Iterable[str]) -> None:
        """That the function has such options."""
        known = inspect.signature(cls.function).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        for unknown in () if takes_any else {*options} - known.keys():
            raise unknown_argument(cls.__name__, unknown, [*known][2:])

    def forward(self, input: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """The loss; `where` is that of this batch."""
        of_batch = {} if where is None else {"where": where}
        return type(self).function(input, target, **{**self.options, **of_batch})


@public
@dataclass(frozen=True, eq=False)
class Loss:
    """What a loss claims; the tests hold it to every claim.

    reference(z, y, **options): the literal definition: one value a row of scores z and target probabilities y, [rows, classes] in
        float64 each, differentiable by z; the options are all that the loss has of its own. Tests and benchmarks compare with it,
        and a loss without one is not timed.
    map: that with ∂L/∂x = map(x) − y, None where the gradient has another form.
    evaluation(batch, **options): how it is made of a batch.
    examples: the option sets that tests and benchmarks iterate.

    >>> import softmaxima as sm
    >>> sm.losses.REGISTRY["entmax15_loss"].map
    'entmax15'
    """

    name: str
    function: Callable[..., Any]
    module: type[LossModule]
    evaluation: Callable[..., Evaluation]
    reference: Callable[..., Tensor] | None = None
    map: str | None = None
    examples: tuple[dict[str, Any], ...] = ({},)
    nonnegative: bool = True
    zero_at_target: bool = False  # L = 0 where p = y
    row_form: RowForm | None = None  # how it is made of rows in parts, None where it is not
    on_cosines: bool = False
    own_options: dict[str, Any] = field(init=False, repr=False)  # with their defaults
    takes_any: bool = field(init=False, repr=False)  # whether it takes others too, which are a map's

    def __post_init__(self) -> None:
        known = inspect.signature(self.function).parameters.values()
        shared = SHARED if self.on_cosines else SHARED + OF_SCORES
        own = {p.name: p.default for p in known if p.kind is p.KEYWORD_ONLY and p.name not in shared}
        object.__setattr__(self, "own_options", own)
        object.__setattr__(self, "takes_any", any(p.kind is p.VAR_KEYWORD for p in known))

    def __reduce__(self) -> Any:
        if REGISTRY.get(self.name) is not self:
            raise pickle.PicklingError(
                f"{self.name}: only a registered loss can be pickled; call register(loss) where it is defined"
            )
        return _registered, (self.function.__module__, self.name)

    def __deepcopy__(self, memo: Any) -> Loss:
        return self

    @property
    def is_of_log(self) -> bool:
        """Whether it is −Σ_c y_c log p_c of its map."""
        form = self.row_form
        return self.map is not None and form is not None and not form.fenchel and form.of_p is None

    def in_parts(
        self,
        parts: Iterable[Any],
        target: Any,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        empty: str = "nan",
        temperature: float | Tensor = 1.0,
        **options: Any,
    ) -> tuple[Any, list[Any]]:
        """(the loss, its gradient by the scores of each part), of rows whose classes come in parts, the last axis.

        Args:
            parts: arrays [..., n], one after the other, or what `sm.in_parts(…).part(…)` makes; not an iterator, for they are read
                several times.
            target: labels [...], the places of classes in the rows; or a list of the target probabilities of each part.
            weight, ignore_index, reduction, label_smoothing, empty, options: as the loss has them. `temperature` divides scores.

        Raises ValueError for a loss that has no form in parts, and for labels that are no place in them. Cost: two reads of the
        parts more than the map's probabilities take, or three where the loss is no value whose gradient is the map; of rows that
        are ignored nothing.

        >>> import torch, softmaxima as sm
        >>> x = torch.tensor([[0.0, 1.0, 3.0]])
        >>> sm.losses.REGISTRY["sparsemax_loss"].in_parts([x[:, :2], x[:, 2:]], torch.tensor([1]))
        (tensor(2.), [tensor([[ 0., -1.]]), tensor([[1.]])])
        """
        name, empty = self.name, check_empty(self.name, empty)
        ignore_index, reduction, label_smoothing = check_shared(name, ignore_index, reduction, label_smoothing)
        options = self.complete(options)
        soft = isinstance(target, (list, tuple))
        again(parts, 2, name)
        plain = in_parts("softmax")
        n = sum(part.x.shape[-1] for part in plain.parts(parts))
        own = bind(name, self.row_form, n, soft, label_smoothing, ignore_index, temperature, options)
        rows, labels, shape = own.rows, None if soft else as_labels(name, target), ()
        first = next(iter(rows.parts(parts)))
        weights, some = None if weight is None else check_class_weight(name, weight, n), None
        if labels is not None:
            own.check_labels(first.x, labels)
            counts, shape = labels != ignore_index, sizes(labels)
            if not bool(counts.all()):  # rows that are ignored are left out
                some = counts.flatten().nonzero().squeeze(-1)
                own, labels = own.of_rows(shape, some), labels.flatten()[some]

        def chunks() -> Iterator[tuple[Part, Tensor, Tensor | None]]:
            targets = (as_tensor(name, "target", y) for y in target) if soft else itertools.repeat(labels)
            for part, y in zip(rows.parts(parts), targets, strict=soft):
                if soft:
                    check_soft(name, part.x, y, ignore_index)  # type: ignore[arg-type]
                if some is not None:
                    part = Part(some_rows(part.x, some, shape), own.rows.tau, some_rows(part.first, some, shape))
                yield part, y, None if weights is None else weights[places(part)]  # type: ignore[misc]

        targets = own.targets(chunks)
        counted = torch.ones_like(targets.mass)
        if labels is not None and not bool((targets.mass == counted).all()):
            wrong = labels[(targets.mass != counted).squeeze(-1)].flatten()[0]
            raise ValueError(
                f"{name}: each label must be the place of one score in the parts, whose `first` says where they begin; "
                f"got {int(wrong)}"
            )
        if soft and own.form.fenchel:
            check_sums(name, targets.mass.squeeze(-1))
        value, gradients = own.evaluate(chunks, targets)
        slopes = list(gradients)
        scale = value.new_ones(())
        if reduction == "mean":
            scale = mean_over(scale, (counted if soft or weights is None else targets.counted).sum(dtype=torch.float64), empty)
        value = value if reduction == "none" else value.sum() * scale
        slopes = [torch.where(v == 0, 0.0, v * scale) for v in slopes]  # also where no row counts
        if some is not None:
            value = all_rows(value, some, shape) if reduction == "none" else value
            slopes = [all_rows(v, some, shape) for v in slopes]
        return as_given(value, None, first), [as_given(v, None, part) for v, part in zip(slopes, rows.parts(parts), strict=True)]

    def complete(self, options: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
        """The options that the loss has of its own, defaults filled in; `name` is of what is called, if it is not the loss."""
        own = self.own_options
        for unknown in () if self.takes_any else options.keys() - own.keys():
            raise unknown_argument(name or self.name, unknown, own, f"loss {self.name!r}")
        return {**own, **options}


REGISTRY: dict[str, Loss] = {}


def _registered(module: str, name: str) -> Loss:
    """The loss that importing the module registers, as a pickled map."""
    importlib.import_module(module)
    return REGISTRY[name]


def register(loss: Loss) -> Loss:
    """Add a loss to `losses.REGISTRY`, which tests and benchmarks iterate."""
    if loss.name in REGISTRY:
        raise ValueError(f"register: a loss named {loss.name!r} exists already; choose another name")
    REGISTRY[loss.name] = loss
    return loss
