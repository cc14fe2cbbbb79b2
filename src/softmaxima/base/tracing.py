"""Who looks on while a function runs: compilers, tracers and transforms, before whom values cannot be read.

A recorder (torch.compile, torch.export, torch.jit.trace, make_fx, an ONNX exporter, a fake or meta tensor) sees the operations of
torch alone. What a kernel does to memory it must see as a registered operation, with the derivative registered too.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_compiling, is_exporting

PLAIN = (Tensor, torch.nn.Parameter)


def is_recording() -> bool:
    """Whether somebody writes down the operations of torch that are called now."""
    return is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None


def is_keeping() -> bool:
    """Whether the recording outlives its guards: it will run at other sizes, and with gradients on or off."""
    return is_exporting() or (is_recording() and not is_compiling())


def constant_when_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compiler.assume_constant_result`, without its import of the whole compiler, 1.5 s."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class cached:  # noqa: N801 - a decorator
    """`functools.cached_property` without the lock of Python 3.11, which compilers do not enter."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.function(instance)  # which hides this
        return value


def is_recorded(x: Tensor) -> bool:
    """Whether what is done to the tensor must be a registered operation."""
    return is_recording() or x.is_meta or isinstance(x, FakeTensor)


@constant_when_compiled
def is_exporting_to_onnx() -> bool:
    """Whether only operations that ONNX has may be used."""
    return "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export()


def sizes(x: Tensor) -> tuple[int, ...]:
    """x's shape in numbers: `torch.jit.trace` makes tensors of them otherwise, and warns where they are compared."""
    if is_compiling() or (state := torch._C._get_tracing_state()) is None:
        return tuple(x.shape)
    torch._C._set_tracing_state(None)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return tuple(x.shape)
    finally:
        torch._C._set_tracing_state(state)  # pyright: ignore[reportAttributeAccessIssue]


def is_symbol(number: Any) -> bool:
    """Whether a compiler has a symbol for the number, so that its graph is of more values than the one now."""
    if not is_compiling() or type(number) not in (int, float):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(number)


def of_symbol(number: float) -> Tensor:
    """A tensor of what `is_symbol`: an operation has no other argument that a graph may vary.

    By a product, of which torch makes one of two tensors; of what else it is in it is taken for a constant before it is compiled.
    """
    return torch.ones((), dtype=torch.float64) * number


def constant(number: float) -> float:
    """The number; a symbol is replaced by its value now, on which the graph is guarded."""
    if not is_symbol(number):
        return number
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(number)  # type: ignore[return-value]


def is_traced(x: Tensor) -> bool:
    """Whether a recorder or a transform stands between us and the values."""
    return is_recording() or is_functorch_wrapped_tensor(x) or is_legacy_batchedtensor(x)


def is_eager(x: Tensor) -> bool:
    """Whether the tensor has memory now, and nobody records what is done to it."""
    return type(x) in PLAIN and not x.is_meta and not is_traced(x)


def is_concrete(x: Tensor) -> bool:
    """Whether the values can be read now, without waiting for a device."""
    return x.is_cpu and is_eager(x)


def transforming() -> bool:
    """Whether torch.func or forward mode is at work."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def outside_compilers(function: Callable[..., Any], what: str = "torch.func over softmaxima") -> Callable[..., Any]:
    """The function, which torch.compile calls and does not look into, as it cannot into an autograd function inside torch.func."""
    if not is_compiling():
        return function
    torch._dynamo.graph_break(msg=f"{what} is not compiled: leave out fullgraph=True")  # is what a compiler of one graph shows
    return torch.compiler.disable(function)


def operation(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Registers a function of tensors as the operation `softmaxima::name`.

    Its first argument may be a NamedTuple, whose fields are arguments of the operation, for a schema has no structures.
    torch has no place for forward mode in such an operation, and would drop the tangents in silence: they are refused.
    """

    def register(function: Callable[..., Any]) -> Any:
        function = _field_by_field(function)

        @functools.wraps(function)
        def evaluate(*arguments: Any, **named: Any) -> Any:
            if torch.autograd.forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled():
                raise NotImplementedError(
                    f"softmaxima::{name}: an operation in a recorded graph has no forward mode; use reverse mode"
                )
            return function(*arguments, **named)

        schema = torch.library.infer_schema(function, mutates_args=())
        return torch.library.custom_op(f"softmaxima::{name}", evaluate, mutates_args=(), schema=schema)

    return register


def _field_by_field(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the fields of the NamedTuple, if its first argument is one, in the place of that."""
    signature = inspect.signature(function)
    first, *others = signature.parameters.values()
    kind, *kinds = (hints := get_type_hints(function)).pop(first.name), *(hints[other.name] for other in others)
    if not hasattr(kind, "_fields"):
        return function

    @functools.wraps(function)
    def flat(*arguments: Any) -> Any:
        count = len(kind._fields)
        return function(kind(*arguments[:count]), *arguments[count:])

    fields = [first.replace(name=name, annotation=each) for name, each in get_type_hints(kind).items()]
    rest = [other.replace(annotation=each) for other, each in zip(others, kinds, strict=True)]
    flat.__signature__ = inspect.Signature([*fields, *rest], return_annotation=hints["return"])  # type: ignore[attr-defined]
    return flat


def may_differentiate(arguments: Iterable[Any]) -> bool:
    """Whether reverse mode can ask for a derivative; if not, an autograd function would only cost its overhead."""
    return torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in arguments)
