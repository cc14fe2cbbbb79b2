r"""topp_softmax: the softmax over Ω_p, the fewest highest scores that hold at least the share p of softmax's mass, and 0 elsewhere.

Of equal scores the lowest index counts as higher. The lowest score that is kept is found by bisection over the ordered bit
patterns of the floating-point numbers: exact, 32 or 64 sums of a row, and no sort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softmaxima.base.arguments import Array, DType
from softmaxima.base.monoid import LogSum, log_sum, merge
from softmaxima.base.public import public
from softmaxima.base.rows import FEW, divisor, normalise_exp, row_maximum
from softmaxima.base.tracing import is_exporting_to_onnx, is_recorded, is_traced
from softmaxima.engine.blocks import Blocks, Part, State, places
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps.softmax import sensitivity
from softmaxima.maps.topk_softmax import first_of_ties, selected


def reference(x: Tensor, p: float) -> Tensor:
    e = x.double().exp()
    order = x.double().sort(dim=-1, descending=True, stable=True).indices  # exp takes neighbouring scores for equal ones
    ordered = (e / e.sum(-1, keepdim=True)).gather(-1, order)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(x, dtype=torch.bool).scatter(-1, order, (before < p) | (p == 1.0))
    e = torch.where(kept, e, 0.0)
    return e / e.sum(-1, keepdim=True)


def ordered_bits(z: Tensor) -> Tensor:
    """int64 keys with the order of z; NaN aside, equal scores have equal keys."""
    bits = (z + 0.0).view(torch.int64 if z.dtype == torch.float64 else torch.int32)  # −0.0 + 0.0 is 0.0
    return torch.where(bits >= 0, bits, bits ^ torch.iinfo(bits.dtype).max).to(torch.int64)


def topp_mask(z: Tensor, p: float) -> Tensor:
    """True at the scores of each row that its nucleus keeps, and at NaN and +∞."""
    if is_exporting_to_onnx():
        return _by_sorting(z, p)
    return _topp_mask(z, float(p)) if is_recorded(z) or is_traced(z) else _select(z, p)


def _by_sorting(z: Tensor, p: float) -> Tensor:
    """Without a loop whose length depends on the data."""
    if p == 1.0:
        return torch.ones_like(z, dtype=torch.bool)
    order = z.sort(dim=-1, descending=True).indices  # ONNX's TopK, in which the lowest of equal scores comes first
    weights = (z - row_maximum(z)).double().exp().gather(-1, order)
    before = weights.cumsum(-1) - weights
    kept = before < p * weights.sum(-1, keepdim=True)
    return torch.zeros_like(z).scatter(-1, order, kept.to(z.dtype)) != 0


def _select(z: Tensor, p: float) -> Tensor:
    if p == 1.0:
        return torch.ones_like(z, dtype=torch.bool)
    weights = (z - row_maximum(z)).double().exp()
    target = p * weights.sum(-1, keepdim=True)
    keys = ordered_bits(z)
    low, high = keys.amin(-1, keepdim=True), keys.amax(-1, keepdim=True) + 1
    # Σ{key ≥ low} reaches the target and Σ{key ≥ high} does not; the average is rounded down, without overflow.
    while ((middle := (low & high) + ((low ^ high) >> 1)) > low).any():
        reaches = weights.masked_fill(keys < middle, 0.0).sum(-1, keepdim=True) >= target
        low, high = torch.where(reaches, middle, low), torch.where(reaches, high, middle)
    above, ties = keys > low, keys == low
    missing = target - weights.masked_fill(~above, 0.0).sum(-1, keepdim=True)
    each = weights.masked_fill(~ties, 0.0).amax(-1, keepdim=True)
    return above | first_of_ties(ties, (missing / each).ceil().clamp_min(1.0)) | z.isnan() | (z == math.inf)


@torch.library.custom_op("softmaxima::topp_mask", mutates_args=())
def _topp_mask(z: Tensor, p: float) -> Tensor:
    """The selection as one operation, for its number of steps depends on the data, which torch.compile and vmap cannot trace."""
    return _select(z, p)


@_topp_mask.register_fake
def _(z: Tensor, p: float) -> Tensor:
    return torch.empty_like(z, dtype=torch.bool)


@_topp_mask.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], z: Tensor, p: float) -> tuple[Tensor, int]:
    return topp_mask(z.movedim(in_dims[0], 0), p), 0


def forward(z: Tensor, p: float) -> Tensor:
    return normalise_exp(z.masked_fill(~topp_mask(z, p), -math.inf))


# On parts of a row: the sum over all scores, and the largest of them, which as a rule have the nucleus among them. Where they have
# not, the lowest that is kept is found, a byte of its key a pass, and then the places of its equals.
LARGEST = 64  # scores of a part that are told at once
MOST = 8 * LARGEST  # of several, and of a small part
_BYTES = 8
_LOWEST, _HIGHEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


class Largest(NamedTuple):
    """What the first pass has found: a sum, and the largest scores in order, of equal ones the first."""

    top: Tensor
    ties: Tensor
    rest: Tensor  # of the sum over all scores, as in `LogSum`
    passes: Tensor  # how many there were [..., 1]
    floor: Tensor  # the highest score that is not among the largest, −∞ where there is none [..., 1]
    floor_place: Tensor
    x: Tensor  # the largest [..., m], −∞ behind them
    places: Tensor

    @property
    def sum(self) -> LogSum:
        return LogSum(self.top, self.ties, self.rest)

    def cut(self, most: int) -> Largest:
        """With so many of the largest at most, all of which are above the floor."""
        x, places = selected(self.x, self.places, most + 1)
        floor, floor_place = _higher((x[..., most:], self.floor), (places[..., most:], self.floor_place))
        width = int((x[..., :most] > -math.inf).sum(-1).max()) if x.numel() else 0
        return self._replace(floor=floor, floor_place=floor_place, x=x[..., :width], places=places[..., :width])


def _higher(floors: tuple[Tensor, Tensor], floor_places: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The highest floor, of equal scores the first."""
    x, where = torch.cat(floors, -1), torch.cat(floor_places, -1)
    floor = x.amax(-1, keepdim=True)
    return floor, torch.where(x == floor, where, _HIGHEST).amin(-1, keepdim=True)


class Nucleus(NamedTuple):
    """What further passes have found."""

    top: Tensor
    ties: Tensor
    rest: Tensor
    passes: Tensor
    key: Tensor  # of the lowest score that is kept, the bytes that are known [..., 1]
    above: Tensor  # the weight of all scores that are higher, whatever the other bytes are
    bins: Tensor  # that of the scores with these bytes, by the next one [..., 256]; at the end that of each of them [..., 1]
    places: Tensor  # the first of those [..., m]; until then none [..., 1]

    @property
    def sum(self) -> LogSum:
        return LogSum(self.top, self.ties, self.rest)

    def wanted(self, p: float) -> Tensor:
        """How many scores that equal the lowest the share takes."""
        missing = p * self.sum.mass - self.above
        return (missing / self.bins).nan_to_num(1.0, posinf=1.0).ceil().clamp_min(1.0)

    def kept(self, p: float) -> Tensor:
        """How many of them are kept: by rounding the share may take more than there are."""
        return torch.minimum(self.wanted(p), (self.places < _HIGHEST).sum(-1, keepdim=True).clamp_min(1).double())

    def mass(self, p: float) -> Tensor:
        """Of the nucleus, by the largest score; NaN in a row with NaN or +∞."""
        return self.above + self.kept(p) * self.bins + 0.0 * self.sum.mass

    def with_byte(self, byte: int, p: float) -> Nucleus:
        """With one more byte of the key: the highest at which the weight reaches its share."""
        from_here = self.above + self.bins.flip(-1).cumsum(-1).flip(-1)
        digit = ((from_here >= p * self.sum.mass).sum(-1, keepdim=True) - 1).clamp_min(0)
        above = from_here.gather(-1, digit) - self.bins.gather(-1, digit)
        return self._replace(key=self.key | (digit << _shift(byte)), above=above)


def _shift(byte: int) -> int:
    return 8 * (_BYTES - 1 - byte)


def _begin(part: Part, known: State | None, p: float) -> State:
    x = part.x
    if p == 1.0:
        return log_sum(x, part.tau)
    if known is None:
        row = x.new_zeros((*x.shape[:-1], 1))
        floor, floor_place = torch.full_like(row, -math.inf), torch.full_like(row, _HIGHEST, dtype=torch.int64)
        found = Largest(*log_sum(x, part.tau), row.long() + 1, floor, floor_place, x, places(part))
        return found.cut(LARGEST if x.numel() > FEW else MOST)
    if (number := _pass(known)) == 1:
        top, ties, rest, passes, *_ = known
        nowhere = torch.full_like(passes, _HIGHEST)
        known = Nucleus(top, ties, rest, passes, torch.zeros_like(passes), torch.zeros_like(top), top, nowhere)
    known, byte = Nucleus(*known), number - 1
    passes = known.passes + 1
    if byte > 0:
        known = known.with_byte(byte - 1, p)
    keys = ordered_bits(x) ^ _LOWEST  # whose bytes are in the order of the scores
    equal = (keys & (-1 << 8 * (_BYTES - byte) if byte else 0)) == known.key
    weights = torch.where(equal, known.sum.weigh(x, part.tau), 0.0)
    if byte < _BYTES:
        bins = x.new_zeros((*x.shape[:-1], 256)).scatter_add(-1, (keys >> _shift(byte)) & 255, weights)
        return known._replace(passes=passes, bins=bins)
    each = weights.amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros((*x.shape[:-1], 1))
    here = known._replace(passes=passes, bins=each)
    return here._replace(places=_first(torch.where(equal, places(part), _HIGHEST), here, p))


def _pass(state: State) -> int:
    passes = state[3]
    return int(passes.flatten()[0]) if passes.numel() else 1


def _first(where: Tensor, state: Nucleus, p: float) -> Tensor:
    """Of the places of scores that equal the lowest as many as a row may keep."""
    most = int(state.wanted(p).max()) if state.bins.numel() else 0
    return where.sort(-1).values[..., :most]


def _merge(a: State, b: State, tau: float | Tensor, p: float) -> State:
    if p == 1.0:
        return merge(LogSum(*a), LogSum(*b), tau)
    if a[0].numel() == 0:  # no rows, which say in which pass they are
        return a
    if _pass(a) == 1:
        return _merge_largest(Largest(*a), Largest(*b), tau)
    a, b = Nucleus(*a), Nucleus(*b)
    if _pass(a) <= _BYTES + 1:
        return a._replace(bins=a.bins + b.bins)
    both = a._replace(bins=torch.maximum(a.bins, b.bins))
    return both._replace(places=_first(torch.cat((a.places, b.places), -1), both, p))


def _merge_largest(a: Largest, b: Largest, tau: float | Tensor) -> Largest:
    """Of both those above the higher floor: what is between the floors is not all known."""
    floor, floor_place = _higher((a.floor, b.floor), (a.floor_place, b.floor_place))
    x, places = torch.cat((a.x, b.x), -1), torch.cat((a.places, b.places), -1)
    above = (x > floor) | ((x == floor) & (places < floor_place))
    x, places = torch.where(above, x, -math.inf), torch.where(above, places, _HIGHEST)
    return Largest(*merge(a.sum, b.sum, tau), a.passes, floor, floor_place, x, places).cut(MOST)


def _settled(state: State, tau: float | Tensor, p: float) -> State | None:
    """The state of the last pass where the largest scores of every row have its nucleus among them."""
    if p == 1.0 or _pass(state) != 1:
        return None
    known = Largest(*state)
    mass = known.sum.mass
    x, places = pad(known.x, (0, 1), value=-math.inf), pad(known.places, (0, 1), value=_HIGHEST)
    weights = known.sum.weigh(x, tau)
    before = (weights.cumsum(-1) < p * mass).sum(-1, keepdim=True)
    if bool((before == x.shape[-1]).any()):
        return None
    lowest, each = x.gather(-1, before), weights.gather(-1, before)  # that is kept; any in a row of nothing, with NaN or +∞
    key, above = ordered_bits(lowest) ^ _LOWEST, torch.where(x > lowest, weights, 0.0).sum(-1, keepdim=True)
    found = Nucleus(*known.sum, torch.full_like(known.passes, _passes(p)), key, above, each, places)
    return found._replace(places=_first(torch.where(x == lowest, places, _HIGHEST), found, p))


def _finish(part: Part, state: State, p: float) -> Tensor:
    if p == 1.0:
        return LogSum(*state).shares(part.x, part.tau)
    known = Nucleus(*state)
    if part.x.numel() == 0:
        return part.x
    last = known.places.gather(-1, known.kept(p).long() - 1)
    keys, lowest = ordered_bits(part.x), known.key ^ _LOWEST
    kept = (keys > lowest) | ((keys == lowest) & (places(part) <= last))
    weights = torch.where(kept, known.sum.weigh(part.x, part.tau), 0.0)
    return weights / divisor(known.mass(p))


def _passes(p: float) -> int:
    return 1 if p == 1.0 else _BYTES + 2


def _conjugate(state: State, tau: float | Tensor, p: float) -> tuple[Tensor, Tensor]:
    if p == 1.0:
        return LogSum(*state).anchor, LogSum(*state).log_mass()
    known = Nucleus(*state)
    # Where there are no rows, which say in which pass they are, there are more bins.
    return known.sum.anchor, known.mass(p)[..., :1].log()


BLOCKS = Blocks(_begin, _merge, _finish, _passes, _conjugate, settled=_settled)

TOPP_SOFTMAX = register(
    Map(
        name="topp_softmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        params=(
            Parameter(
                name="p",
                default=0.9,
                examples=(0.9, 0.3, 1.0),
                valid=lambda p: 0 < p <= 1,
                domain="a number in (0, 1]",
            ),
        ),
        properties=Properties(sparse=True, monotone=False, continuous=False),
        cost=Cost(reads=3),
        kernel=Kernel("topp_softmax", "softmax_backward"),
        blocks=BLOCKS,
        formula="softmax over the nucleus",
        source="Holtzman et al. (2020), arXiv:1904.09751",
    )
)


@public
def topp_softmax(
    x: Array,
    *,
    p: float = 0.9,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Softmax over the nucleus: the fewest highest scores whose softmax mass is at least p; exactly zero for the others.

    Args:
        p: the share of the mass to keep, in (0, 1]; 1 keeps every score. Masses are compared in float64; of equal scores the
            lowest indices are kept.
        x, dim, temperature, where, dtype: as for `softmax`.

    It jumps where the nucleus changes. Errors as for `softmax`. Cost: a bisection (never a sort) and two reads.

    >>> import numpy as np, softmaxima as sm
    >>> sm.topp_softmax(np.log([0.5, 0.3, 0.15, 0.05]), p=0.75).round(4)
    array([0.625, 0.375, 0.   , 0.   ])
    """
    return evaluate(TOPP_SOFTMAX, x, dim, temperature, where, {"p": p}, dtype)


@public
class TopPSoftmax(MapModule):
    """`topp_softmax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.TopPSoftmax(p=0.4)(torch.tensor([1.0, 1.0]))
    tensor([1., 0.])
    """

    def __init__(self, p: float = 0.9, dim: int | Sequence[int] = -1, *, temperature: float | Tensor | nn.Module = 1.0) -> None:
        super().__init__(TOPP_SOFTMAX, dim, temperature=temperature, p=p)
