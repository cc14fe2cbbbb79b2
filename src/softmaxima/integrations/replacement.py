"""replace_attention: any map in the attention of a model that exists, whose code and weights stay as they are."""

from __future__ import annotations

import contextlib
import functools
import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from inspect import getattr_static
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from softmaxima.attn import MultiheadAttention
from softmaxima.attn.arguments import check_request, with_params
from softmaxima.attn.multihead import give_map
from softmaxima.base.public import public
from softmaxima.engine.contract import AnyMap, find_map
from softmaxima.integrations.calls import attend

NAME = "replace_attention"
FUNCTION = "scaled_dot_product_attention"
OPERATION = torch.ops.aten.scaled_dot_product_attention
ATTENTIONS = (functional.scaled_dot_product_attention, OPERATION, OPERATION.default)
SOFTMAXES = ("softmax", "multi_head_attention_forward")  # the names of what computes one where it is called
OTHERS = (
    *("flex_attention", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "memory_efficient_attention"),
    "varlen_attn",
)
CALLED = re.compile("attention|attn", re.IGNORECASE)
DEPTH = 4  # of functions that call functions, in which these names are looked for


@public
@dataclass(frozen=True)
class AttentionReplacement:
    """What `replace_attention` did, by the names of modules.

    Attributes:
        map: the name of the map.
        replaced: what of each module is computed with it now.
        kept: why others that may be attention are as they were.

    `str` of it has a line for each module, and `undo()` makes the model what it was.

    >>> import torch, softmaxima as sm
    >>> report = sm.replace_attention(torch.nn.Linear(2, 2), "sparsemax")
    >>> report.replaced, report.kept
    ({}, {})
    """

    map: str
    replaced: dict[str, str]
    kept: dict[str, str]
    _steps: tuple[Callable[[], None], ...] = field(default=(), repr=False, compare=False)

    def undo(self) -> None:
        """Give every module back what it had, its weights as they are now."""
        for step in self._steps:
            step()

    def __str__(self) -> str:
        lines = [f"{name or '(the model)'}: {what}" for name, what in self.replaced.items()]
        lines += [f"{name or '(the model)'}: not replaced; {why}" for name, why in self.kept.items()]
        return "\n".join(lines) or "no module with attention was found"


@public
def replace_attention(
    model: nn.Module, map: AnyMap, *, temperature: float = 1.0, sink: float | None = None, **params: Any
) -> AttentionReplacement:
    r"""Give the attention of a model another map, in place, with the weights that it has.

    o_i = Σ_j p_ij v_j,    p_i = map(x_i/τ)    in the place of softmax

    - An `nn.MultiheadAttention` becomes an `sm.MultiheadAttention`. It is the same object, with the same Parameters, names, hooks,
      flags and state dict, so optimisers and checkpoints go on. torch's layers around it no longer take their fused path.
    - A module whose forward calls `F.scaled_dot_product_attention`, as those of timm, calls `sm.attention` with the same arguments.
      This is so for its own calls and those of the modules in it, and for no other caller of torch's function. Copies and pickles
      of the model have it too.
    - A module that computes a softmax itself stays as it is, and is named with the reason. Which is which is read from the code
      that its forward reaches by names, in attributes, dictionaries, lists and `functools.partial` too. A module that can do
      either raises a RuntimeError if it calls its own softmax after all.
    - A module whose class is called attention, in which neither is found, stays as it is, and is named.

    Models of transformers ask a registry: `softmaxima.integrations.transformers.register()` is for them.

    Args:
        model: Any module.
        map: The name or the function of a registered map, whose parameters are `params`.
        temperature: τ > 0, a number.
        sink: The score of one more key whose value is 0, a number.

    Returns:
        What was replaced and what was not, and why; its `undo()` takes all back.

    Raises:
        TypeError, ValueError: Before anything is changed, as `sm.attention` does, and for every tensor: what learns belongs to one
            module, `model.layer.self_attn.alpha = sm.Positive(1.5, minimum=1.0)` of an `sm.MultiheadAttention` that was given
            `alpha`.

    Cost: that of `sm.attention` for each call.

    Source: Vaswani et al. (2017), arXiv:1706.03762; with sparse maps Correia et al. (2019), arXiv:1909.00015.

    >>> import torch, softmaxima as sm
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> print(sm.replace_attention(model, "entmax", alpha=1.3))
    self_attn: MultiheadAttention, with entmax
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{NAME}: model must be a torch.nn.Module, got {type(model).__name__}")
    found = find_map(map, NAME)
    options = {"temperature": temperature, **({} if sink is None else {"sink": sink}), **params}
    for name, value in options.items():
        if isinstance(value, Tensor):
            raise TypeError(
                f"{NAME}: {name} must be one number for all modules, got a tensor of shape {tuple(value.shape)}; replace with a "
                "number, and set the module's own afterwards"
            )
        options[name] = value.item() if isinstance(value, np.ndarray) and not value.ndim else value
    row = torch.zeros(1, 1, device="cpu")
    check_request(NAME, row, row, row, map=found, **with_params(options))  # says what is wrong with them
    return _replace(model, found.name, options)


def _replace(model: nn.Module, map: str, options: dict[str, Any]) -> AttentionReplacement:
    replaced: dict[str, str] = {}
    kept: dict[str, str] = {}
    steps = []
    changed: set[nn.Module] = set()
    for name, module in reversed(list(model.named_modules())):  # what is inside comes first
        if type(module) is nn.MultiheadAttention:
            steps.append(_become(module, map, options))
            replaced[name] = f"MultiheadAttention, with {map}"
        elif isinstance(module, nn.TransformerEncoder) and module.use_nested_tensor and not changed.isdisjoint(module.modules()):
            module.use_nested_tensor = False
            steps.append(partial(setattr, module, "use_nested_tensor", True))
            replaced[name] = "use_nested_tensor=False, for attention with a map takes no nested tensors"
        elif type(module).__name__ == "OptimizedModule":
            continue  # torch.compile's, around the model itself
        elif why := _reason(module):
            kept[name] = why
            continue
        elif FUNCTION in (names := _names(module)):
            steps.append(_call(module, map, options, alone=changed.isdisjoint(module.modules())))
            either = "; an error where it computes a softmax itself" if names.intersection(SOFTMAXES) else ""
            replaced[name] = f"{FUNCTION}, with {map}{either}"
        elif CALLED.search(type(module).__name__) and changed.isdisjoint(module.modules()) and not _inside(name, kept):
            kept[name] = f"it is called {type(module).__name__}, and its code reaches neither {FUNCTION} nor a softmax by name"
            continue
        else:
            continue
        changed.add(module)
    in_order, left = (dict(reversed(found.items())) for found in (replaced, kept))
    return AttentionReplacement(map, in_order, left, tuple(steps))


def _inside(name: str, kept: dict[str, str]) -> bool:
    """Whether a module in this one is named already."""
    return any(other.startswith(f"{name}." if name else "") for other in kept)


def _reason(module: nn.Module) -> str | None:
    """Why a module stays as it is, if it may be attention."""
    there: Any = module if isinstance(module, MultiheadAttention) else getattr(module, "_asked", None)
    if there is not None:
        return f"it has {there.map} already; undo that replacement first"
    if isinstance(module, nn.MultiheadAttention):
        return f"{type(module).__name__} is made of MultiheadAttention with a forward of its own"
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by TorchScript"
    names = _names(module)
    if "ALL_ATTENTION_FUNCTIONS" in names:
        return "it asks transformers' registry; softmaxima.integrations.transformers.register() adds the map there"
    if FUNCTION in names and "forward" in vars(module):
        return "its forward was set on the object, around which no other can be put"
    if FUNCTION in names:
        return "it checkpoints itself, and would be another in the second pass" if "checkpoint" in names else None
    if found := [name for name in OTHERS if name in names]:
        return f"it calls {found[0]}"
    if found := [name for name in SOFTMAXES if name in names]:
        return f"it calls {found[0]} itself, which may be attention"
    if any(type(part) is nn.Softmax for part in module.children()):
        return "it has an nn.Softmax, which may be attention"
    return None


# An nn.MultiheadAttention --------------------------------------------------------------------------------------------------------


def _become(module: nn.MultiheadAttention, map: str, options: dict[str, Any]) -> Callable[[], None]:
    """Make it an `sm.MultiheadAttention`, which is one; the way back."""
    before = {*vars(module), *module._parameters}
    of_one_size = module._qkv_same_embed_dim
    module.__class__ = MultiheadAttention
    give_map(module, NAME, map, **options)  # type: ignore[arg-type]

    def back() -> None:
        for name in {*vars(module), *module._parameters} - before:  # what was given to learn is among these
            delattr(module, name)
        module._qkv_same_embed_dim = of_one_size
        module.__class__ = nn.MultiheadAttention

    return back


# A caller of scaled_dot_product_attention ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """What a caller gets in the place of torch's function."""

    map: str
    options: dict[str, Any]
    alone: bool  # no module inside was replaced, so that each softmax that is seen is one of its own


class _Mode(TorchFunctionMode):
    """Gives each call of `scaled_dot_product_attention` attention with a map, and notes what computed a softmax."""

    def __init__(self, asked: _Asked, seen: list[str]) -> None:
        super().__init__()
        self.asked, self.seen = asked, seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ATTENTIONS:
            self.seen.append(FUNCTION)
            given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | (kwargs or {})
            return attend(**given, map=self.asked.map, **self.asked.options)[0]
        if getattr(func, "__name__", None) in SOFTMAXES:
            self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def _call(module: nn.Module, map: str, options: dict[str, Any], alone: bool) -> Callable[[], None]:
    """Let its forward call attention with a map; the way back."""
    base = type(module)
    module._asked = _Asked(map, options, alone)  # type: ignore[assignment]
    module.__class__ = _calling(base)

    def back() -> None:
        module.__class__ = base
        del module._asked

    return back


@functools.cache
def _calling(base: type[nn.Module]) -> type[nn.Module]:
    """The class of a module whose calls of torch's function go to attention with a map; of a pickle it is made again."""

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen: list[str] = []
        with _Mode(self._asked, seen):
            output = base.forward(self, *args, **kwargs)
        if seen and FUNCTION not in seen and self._asked.alone:
            raise RuntimeError(
                f"{base.__name__}: it computed a softmax itself, not by {FUNCTION}, so there is no {self._asked.map} in it; let it "
                "call that function (timm: fused_attn = True), or undo the replacement"
            )
        return output

    def reduce(self: Any, protocol: Any) -> Any:
        return _made_again, (base,), self.__getstate__()

    own = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    return types.new_class(base.__name__, (base,), exec_body=lambda names: names.update(own, forward=forward, __reduce_ex__=reduce))


def _made_again(base: type[nn.Module]) -> nn.Module:
    return object.__new__(_calling(base))


# What a forward reaches ----------------------------------------------------------------------------------------------------------


def _names(module: nn.Module) -> frozenset[str]:
    """The names in the code of a module's forward, and of what it calls by name or holds."""
    held = {name: value for name, value in vars(module).items() if not name.startswith("_") and any(map(callable, _members(value)))}
    return _reached(type(module), held) if held else _reached_by_class(type(module))


@functools.cache
def _reached_by_class(owner: type[nn.Module]) -> frozenset[str]:
    return _reached(owner, {})


def _reached(owner: type[nn.Module], own: dict[str, Any]) -> frozenset[str]:
    names: set[str] = set()
    seen: set[types.CodeType] = set()

    def visit(target: Any, depth: int) -> None:
        target = getattr(target, "__func__", getattr(target, "fget", getattr(target, "func", target)))
        while hasattr(target, "__wrapped__"):
            target = target.__wrapped__
        if not isinstance(target, types.FunctionType) or target.__code__ in seen or depth > DEPTH:
            return
        if (target.__module__ or "").partition(".")[0] in ("torch", "softmaxima"):
            return
        seen.add(target.__code__)
        found = set(_named(target.__code__))
        names.update(found)
        there = {**target.__globals__, **_closed_over(target)}
        files = [there[name] for name in found if isinstance(there.get(name), types.ModuleType)]
        for name in found:
            held = own.get(name), getattr_static(owner, name, None), there.get(name), *(vars(file).get(name) for file in files)
            for callee in (callee for value in held for callee in _members(value)):
                if callable(callee):
                    names.add(getattr(callee, "__name__", name))  # by another name too
                visit(callee, depth + 1)

    visit(owner.forward, 0)
    return frozenset(names)


def _members(value: Any) -> Iterable[Any]:
    """What is in a dictionary or a list, or the value itself."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)


def _named(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _named(constant)


def _closed_over(function: types.FunctionType) -> dict[str, Any]:
    """The values of the names of functions around it, but for those that have none yet."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found
