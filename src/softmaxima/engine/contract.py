"""The contract: what a map is, and which there are.

A map sends scores x to probabilities p along one axis. Its Jacobian has the form

    J = ∂p/∂z = diag(s) − q rᵀ,        z = x/τ, −∞ where masked        (r = s for maps onto probabilities)
    vjp(g) = s ⊙ g − r ⟨q, g⟩          jvp(t) = s ⊙ t − q ⟨r, t⟩

or another of `jacobian.py`, so a map states `forward` and `sensitivity`, from which the reverse, forward and double derivatives,
vmap, torch.func, what recorders such as torch.compile and torch.export see, masks, temperature and axes follow.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType, check_value
from softmaxima.base.jacobian import Jacobian, jacobian_of
from softmaxima.base.numbers import MOST, check_int, check_number, nearest, shown
from softmaxima.base.public import public, unknown_argument
from softmaxima.base.tracing import constant
from softmaxima.engine.blocks import Blocks, RegulariserInParts
from softmaxima.engine.evaluation import evaluate
from softmaxima.engine.recorded import remember
from softmaxima.kernels.kernel import Kernel


@public
@dataclass(frozen=True)
class Parameter:
    """A parameter of a map.

    `kind` is what its values are: float, int, str, or object for anything. Only such values, NumPy's numbers converted, come to
    `valid`, which works on a number and, elementwise, on a tensor. A parameter that has a `gradient(p, z, **params) = ∂p/∂θ` may be
    a tensor that broadcasts against the rows, and learns. `regulariser_gradient(p, **params) = ∂Ω/∂θ` at fixed p completes
    the derivative of the map's Fenchel–Young loss. Tests and benchmarks iterate `examples`. Where values are not numbers,
    torch.compile and other recorders know these and `others`.

    >>> import softmaxima as sm
    >>> [(parameter.name, parameter.default, parameter.domain) for parameter in sm.find_map("entmax").params]
    [('alpha', 1.5, 'positive and finite')]
    """

    name: str
    default: Any
    examples: tuple[Any, ...]
    valid: Callable[[Any], Any]
    domain: str
    kind: type = float
    gradient: Callable[..., Tensor] | None = None
    regulariser_gradient: Callable[..., Tensor] | None = None
    others: tuple[Any, ...] = ()

    def check(self, name: str, value: Any) -> Any:
        """The value, a number as Python's, if it is in the domain."""
        if self.gradient is not None:
            return check_value(name, self.name, value, self.valid, self.domain)
        if self.kind is float:
            return constant(check_number(name, self.name, value, self.valid, self.domain))  # as kernels have it
        if self.kind is int:
            if type(value) is int and value > MOST:
                value = MOST
            return check_int(name, self.name, value, self.valid, self.domain)
        if not isinstance(value, self.kind) or not self.valid(value):
            raise ValueError(f"{name}: {self.name} must be {self.domain}, got {shown(value)}")
        return value

    def held(self, name: str, value: Any) -> Any:
        """What a module holds of a value: a number, a tensor, or a module that says it."""
        checked = self.check(name, value)
        return value if isinstance(value, nn.Module) else checked


@public
@dataclass(frozen=True)
class Properties:
    """What a map claims. The tests hold it to every claim.

    >>> import softmaxima as sm
    >>> [name for name, map in sm.maps.REGISTRY.items() if map.properties.sparse and map.properties.continuous]
    ['budget_sparsemax', 'entmax', 'entmax15', 'sparsemax', 'fusedmax', 'normmax', 'oscarmax', 'perturb_max']
    """

    # What Σp is on a row with an allowed score: "one" | "at most one" | "zero or one", or, where it depends on parameters,
    # a function (how many scores are allowed, **params) → Σp.
    mass: str | Callable[..., Tensor] = "one"
    shift_invariant: bool = True  # map(x + c) = map(x)
    locally_shift_invariant: bool = False  # so for a small c, where it is not so for every c
    order_preserving: bool = True  # x_i > x_j ⇒ p_i ≥ p_j
    monotone: bool = True  # p_i does not fall as x_i rises, nor rise as any other score does
    sparse: bool = False  # finite scores can get exactly zero
    continuous: bool = True  # p moves continuously with x
    logarithmic: bool = False  # returns log p, so that the claims hold for its exponential
    neighbours: bool = False  # which scores stand beside each other counts, and masked ones do not: Ω is told `allowed` as well
    additive_regulariser: bool = True  # Ω(p) is a sum over scores, which is 0 where p is 0 or 1

    @property
    def constant_mass(self) -> bool:
        """Whether Σp does not move with the scores."""
        return self.mass == "one" or callable(self.mass)

    @property
    def of_one_class(self) -> bool:
        """Whether p are the probabilities of events of which at most one happens: Σp ≤ 1, whatever the parameters."""
        return not callable(self.mass)

    def largest_mass(self, allowed: Tensor, **params: Any) -> Tensor:
        """The most that Σp is on rows with so many allowed scores."""
        return self.mass(allowed, **params) if callable(self.mass) else (allowed > 0).double()


@public
@dataclass(frozen=True)
class Cost:
    """Passes over a row that an ideal kernel needs when the row does not fit in cache.

    >>> import softmaxima as sm
    >>> sm.find_map("softmax").cost
    Cost(reads=2, writes=1)
    """

    reads: int
    writes: int = 1


@public
@dataclass(frozen=True, eq=False)
class Map:
    """One map from scores to probabilities; see `docs/architecture.md` for the contract and CONTRIBUTING.md for an example.

    Every callable works along the last axis, on scores that are already divided by the temperature and −∞ where masked.

    reference(x, **params): the literal definition, in float64; tests compare with it.
    forward(z, **params): the same, stable and fast.
    sensitivity(p, z, **params): (s, q) or (s, q, r), or another form of `jacobian.py`. `z` is None unless `uses_scores`.
    formula: p_i in a line, for tables.
    regulariser(p, **params): Ω(p), where the map is the gradient of Ω*; None where there is none.
    conjugate(z, p, slope, **params): Ω*(z), with the derivative `slope` by z and its own by the parameters, where it costs less
        than ⟨p, z⟩ − Ω(p), by which None takes it; slope is p, or p − y in a loss.
    kernel: what does the same as `forward` and the derivative on each device; None where there is nothing.
    blocks: how it works on parts of a row (`blocks.py`), in float64.
    regulariser_in_parts: how Ω is made of parts of p, where it is not a sum over scores.
    shifted(c, **params): (a map, parameters) that make of z − c [rows, n] what this makes of z, c [rows, 1]; None where there are
        none, or all are as they were.
    with_sink: of softmax, and of what has its divisor with one score more: (the name of the map with that score, its parameter that
        is this score); None for other maps.

    >>> import numpy as np, softmaxima as sm
    >>> sm.find_map("entmax")(np.array([2.0, 0.0]), alpha=2.0)
    array([1., 0.])
    """

    name: str
    reference: Callable[..., Tensor]
    forward: Callable[..., Tensor]
    sensitivity: Callable[..., tuple[Tensor, ...] | Jacobian]
    source: str
    formula: str = ""
    regulariser: Callable[..., Tensor] | None = None
    conjugate: Callable[..., Tensor] | None = None
    params: tuple[Parameter, ...] = ()
    properties: Properties = field(default_factory=Properties)
    cost: Cost = Cost(reads=2)
    uses_scores: bool = False
    kernel: Kernel | None = None
    blocks: Blocks | None = None
    regulariser_in_parts: RegulariserInParts | None = None
    shifted: Callable[..., tuple[Map, dict[str, Any]]] | None = None
    with_sink: tuple[str, str] | None = None
    key: str = field(init=False, repr=False, default="")  # by which the registered operations know the map

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", remember(self))

    def __call__(
        self,
        x: Array,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Array = 1.0,
        where: Array | None = None,
        dtype: DType = None,
        **params: Any,
    ) -> Array:
        """Evaluate the map of `x / temperature` along `dim`, over the scores that `where` allows, in `dtype` if that is given."""
        return evaluate(self, x, dim, temperature, where, params, dtype)

    def jacobian_of(self, sensitivity: tuple[Tensor, ...] | Jacobian) -> Jacobian:
        """∂p/∂z of what `sensitivity` states."""
        return jacobian_of(sensitivity, whole=self.properties.mass != "at most one")

    @property
    def function(self) -> Callable[..., Any] | None:
        """The public function, which has the map's name, in the map's file."""
        return getattr(sys.modules.get(self.reference.__module__), self.name, None)

    def complete(self, params: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
        """The parameters in the map's order, defaults filled in; `name` is of what is called, if it is not the map."""
        known = [parameter.name for parameter in self.params]
        for unknown in params.keys() - {*known}:
            raise unknown_argument(name or self.name, unknown, known, f"map {self.name!r}")
        return {parameter.name: params.get(parameter.name, parameter.default) for parameter in self.params}

    def named(self, params: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The parameters by their own names, of which each may be called `map_…`, as one must be that `name` has an option of."""
        own = {parameter.name for parameter in self.params}
        named = {key if key in own else key.removeprefix("map_"): value for key, value in params.items()}
        if len(named) < len(params):
            raise TypeError(f"{name}: a parameter of {self.name} was given twice, got {', '.join(params)}")
        return named

    def __reduce__(self) -> Any:
        if REGISTRY.get(self.name) is not self:
            raise pickle.PicklingError(f"{self.name}: only a registered map can be pickled; call register(map) where it is defined")
        return _restore, (self.reference.__module__, self.name)

    def __deepcopy__(self, memo: Any) -> Map:
        return self


def _restore(module: str, name: str) -> Map:
    """The map that importing the module registers: a pickled map is its name and place."""
    importlib.import_module(module)
    return REGISTRY[name]


REGISTRY: dict[str, Map] = {}


@public
def register(map: Map) -> Map:
    """Add a map to `REGISTRY`, which tests, benchmarks, docs and the command line iterate.

    Raises TypeError for anything else, and ValueError if the name is taken.

    >>> import softmaxima as sm
    >>> sm.register(sm.find_map("softmax"))
    Traceback (most recent call last):
    ValueError: register: a map named 'softmax' exists already; choose another name
    """
    if not isinstance(map, Map):
        raise TypeError(f"register: map must be a Map, got {type(map).__name__}; see CONTRIBUTING.md for an example")
    if map.name in REGISTRY:
        raise ValueError(f"register: a map named {map.name!r} exists already; choose another name")
    REGISTRY[map.name] = map
    return map


AnyMap = str | Map | Callable[..., Any]  # a registered name, a Map, or the function of one


@public
def find_map(map: AnyMap, name: str = "find_map") -> Map:
    """The map of that name or of that function (`sm.sparsemax`), or the map itself.

    Raises ValueError for an unknown name or function, TypeError for anything else; `name` is the caller's, for the message.

    >>> import softmaxima as sm
    >>> sm.find_map("sparsemax").source
    'Martins & Astudillo (2016), arXiv:1602.02068'
    >>> sm.find_map(sm.sparsemax) is sm.find_map("sparsemax")
    True
    """
    if isinstance(map, Map):
        return map
    if not isinstance(map, str) and not callable(map):
        raise TypeError(f"{name}: map must be the name or the function of a map, or a Map, got {type(map).__name__}")
    called = map if isinstance(map, str) else getattr(map, "__name__", type(map).__name__)
    found = REGISTRY.get(called)
    if found is None or not (isinstance(map, str) or found.function is map):
        if isinstance(own := getattr(map, "map", None), Map):  # a module, which has parameters of its own
            temperature = getattr(map, "temperature", 1.0)
            held = [parameter.name for parameter in own.params]
            held += ["temperature"] * (not isinstance(temperature, float) or temperature != 1)
            params = "".join(f", {each}=module.{each}" for each in held)
            raise TypeError(
                f"{name}: map must be the name or the function of a map, or a Map, got the module {type(map).__name__}; give "
                f"map={own.name!r}{params}"
            )
        known = ", ".join(REGISTRY)
        what = repr(map) if isinstance(map, str) else f"function {getattr(map, '__module__', '')}.{called}"
        meant = nearest(called, REGISTRY)
        raise ValueError(f"{name}: unknown map {what}{f'{meant} Registered' if meant else '; registered'} are: {known}")
    return found
