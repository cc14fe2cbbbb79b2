r"""topp_softmax: the softmax over Ω_p, the fewest highest scores that hold at least the share p of softmax's mass, and 0 elsewhere.

Of equal scores the lowest index counts as higher. The lowest score that is kept is found by bisection over the ordered bit
patterns of the floating-point numbers: exact, 32 or 64 sums of a row, and no sort.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.core.arguments import Array
from softmaxima.core.blocks import Blocks, Part, State, places
from softmaxima.core.contract import Cost, Map, Parameter, Properties, register
from softmaxima.core.monoid import LogSum, log_sum, merge
from softmaxima.core.rows import divisor, normalise_exp, row_maximum
from softmaxima.core.tracing import is_exporting_to_onnx, is_recorded, is_traced
from softmaxima.kernels.native import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps.softmax import sensitivity
from softmaxima.maps.topk_softmax import first_of_ties


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


# On parts of a row: the sum over all scores, then the lowest that is kept, a byte of its key a pass, then the places of its equals.
_BYTES = 8
_LOWEST, _HIGHEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


class Nucleus(NamedTuple):
    """What some passes have found."""

    top: Tensor
    ties: Tensor
    rest: Tensor  # of the sum over all scores, as in `LogSum`
    passes: Tensor  # how many there were [..., 1]
    key: Tensor  # of the lowest score that is kept, the bytes that are known [..., 1]
    above: Tensor  # the weight of all scores that are higher, whatever the other bytes are
    bins: Tensor  # that of the scores with these bytes, by the next one [..., 256]; at the end that of each of them [..., 1]
    places: Tensor  # the first of those [..., m]

    @property
    def sum(self) -> LogSum:
        return LogSum(self.top, self.ties, self.rest)

    def wanted(self, p: float) -> Tensor:
        """How many of the scores that equal the lowest are kept."""
        missing = p * self.sum.mass - self.above
        return (missing / self.bins).nan_to_num(1.0, posinf=1.0).ceil().clamp_min(1.0)

    def mass(self, p: float) -> Tensor:
        """Of the nucleus, by the largest score; NaN in a row with NaN or +∞."""
        return self.above + self.wanted(p) * self.bins + 0.0 * self.sum.mass

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
    if known is None:
        row, none = x.new_zeros((*x.shape[:-1], 1)), x.new_zeros((*x.shape[:-1], 0))
        return Nucleus(*log_sum(x, part.tau), row.long() + 1, row.long(), row, none, none.long())
    known = Nucleus(*known)
    byte = _pass(known) - 1
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
    most = int(here.wanted(p).max()) if each.numel() else 0
    return here._replace(places=torch.where(equal, places(part), _HIGHEST).sort(-1).values[..., :most])


def _pass(state: Nucleus) -> int:
    return int(state.passes.flatten()[0]) if state.passes.numel() else 1


def _merge(a: State, b: State, tau: float | Tensor, p: float) -> State:
    a, b = Nucleus(*a), Nucleus(*b)
    if _pass(a) == 1:
        return a._replace(**merge(a.sum, b.sum, tau)._asdict())
    if _pass(a) <= _BYTES + 1:
        return a._replace(bins=a.bins + b.bins)
    both = a._replace(bins=torch.maximum(a.bins, b.bins))
    most = int(both.wanted(p).max()) if both.bins.numel() else 0
    return both._replace(places=torch.cat((a.places, b.places), -1).sort(-1).values[..., :most])


def _finish(part: Part, state: State, p: float) -> Tensor:
    known = Nucleus(*state)
    if p == 1.0 or part.x.numel() == 0 or known.places.shape[-1] == 0:
        return known.sum.shares(part.x, part.tau)
    last = known.places.gather(-1, (known.wanted(p).long() - 1).clamp_max(known.places.shape[-1] - 1))
    keys, lowest = ordered_bits(part.x), known.key ^ _LOWEST
    kept = (keys > lowest) | ((keys == lowest) & (places(part) <= last))
    weights = torch.where(kept, known.sum.weigh(part.x, part.tau), 0.0)
    return weights / divisor(known.mass(p))


def _passes(p: float) -> int:
    return 1 if p == 1.0 else _BYTES + 2


def _conjugate(state: State, tau: float | Tensor, p: float) -> tuple[Tensor, Tensor]:
    known = Nucleus(*state)
    # Where there are no rows, which say in which pass they are, there are more bins.
    return known.sum.anchor, known.sum.log_mass() if p == 1.0 else known.mass(p)[..., :1].log()


BLOCKS = Blocks(_begin, _merge, _finish, _passes, _conjugate)

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
        properties=Properties(sparse=True, continuous=False),
        cost=Cost(reads=3),
        kernel=Kernel("topp_softmax", "softmax_backward"),
        blocks=BLOCKS,
        formula="softmax over the nucleus",
        source="Holtzman et al. (2020), arXiv:1904.09751",
    )
)


def topp_softmax(x: Array, dim: int = -1, *, p: float = 0.9, temperature: float | Array = 1.0, where: Array | None = None) -> Array:
    """Softmax over the nucleus: the fewest highest scores whose softmax mass is at least p; exactly zero for the others.

    Args:
        p: the share of the mass to keep, in (0, 1]; 1 keeps every score. Masses are compared in float64; of equal scores the
            lowest indices are kept.
        x, dim, temperature, where: as for `softmax`.

    It jumps where the nucleus changes. Errors as for `softmax`. Cost: a bisection (never a sort) and two reads.

    >>> import numpy as np, softmaxima as sm
    >>> sm.topp_softmax(np.log([0.5, 0.3, 0.15, 0.05]), p=0.75).round(4)
    array([0.625, 0.375, 0.   , 0.   ])
    """
    return TOPP_SOFTMAX(x, dim, p=p, temperature=temperature, where=where)


class TopPSoftmax(MapModule):
    """`topp_softmax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.TopPSoftmax(p=0.4)(torch.tensor([1.0, 1.0]))
    tensor([1., 0.])
    """

    def __init__(self, p: float = 0.9, dim: int = -1, *, temperature: float | Tensor = 1.0) -> None:
        super().__init__(TOPP_SOFTMAX, dim, temperature=temperature, p=p)
