"""The structures of csrc/kernels.h: fields of 8 bytes, an address as an int; and the bytes that a kernel is called with."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, get_type_hints

INTERFACE = 17  # the version that csrc/kernels.h states
DTYPES = {"float64": 0, "float32": 1, "bfloat16": 2, "float16": 3}


class Rows(NamedTuple):
    """How scores lie, [outer, n, inner], and what they are divided by and left out by."""

    dtype: int
    outer: int
    n: int
    inner: int
    threads: int
    x: int
    stride: int
    tau: float
    taus: int = 0
    theta: int = 0
    distance: int = 0
    mask: int = 0
    blocks: int = 0


class Forward(NamedTuple):
    out: int
    states: int = 0


class Backward(NamedTuple):
    p: int
    states: int
    g: int
    out: int
    labels: int = 0


class Loss(NamedTuple):
    labels: int
    soft: int
    class_weight: int
    smoothing: float
    scale: float
    fenchel: int
    square: float
    values: int
    out: int


class Margin(NamedTuple):
    """A margin on cosines, whose scale is 0 where there is none."""

    scale: float = 0.0
    size: float = 0.0
    angular: int = 0
    limit: float = math.inf


NO_MARGIN = Margin()


class GivenLoss(NamedTuple):
    p: int


class State(NamedTuple):
    rests: int
    maxima: int
    counts: int


class Weighted(NamedTuple):
    weights: int
    wide: int
    distance: int
    values: int
    signs: int
    states: int = 0
    g: int = 0
    out: int = 0


class Gaps(NamedTuple):
    width: float
    bins: int
    k: int
    summary: int
    largest: int
    counts: int


class Kept(NamedTuple):
    reach: float
    summary: int


class Quantized(NamedTuple):
    dtype: int
    is_signed: int
    outer: int
    n: int
    inner: int
    threads: int
    q: int
    scale: float
    zero: float
    scales: int
    zeros: int
    mask: int
    values: int
    out: int


class Matrices(NamedTuple):
    data: int
    distance: int
    offsets: int


class Attention(NamedTuple):
    dtype: int
    matrices: int
    queries: int
    keys: int
    size: int
    value_size: int
    threads: int
    parts: int
    lengths: int
    left: int
    right: int
    first: int
    firsts: int
    scale: float
    softcap: float
    slopes: int
    tau: float
    taus: int
    theta: int
    distance: int
    sinks: int
    sparse: int
    map: int
    out: int
    lse: int
    states: int


class AttentionBackward(NamedTuple):
    derivative: int
    uses_scores: int
    on_support: int
    g: int
    g_lse: int
    dq: int
    dk: int
    dv: int


class Linear(NamedTuple):
    dtype: int
    rows: int
    classes: int
    features: int
    threads: int
    hidden: int
    weight: int
    scales: int
    bias: int
    tau: float
    scores: int


class LinearBackward(NamedTuple):
    adds: int
    hidden_grad: int
    weight_grad: int
    bias_grad: int


class Segments(NamedTuple):
    dtype: int
    outer: int
    elements: int
    inner: int
    segments: int
    threads: int
    starts: int
    order: int
    x: int
    mask: int
    tau: float
    taus: int
    theta: int
    distance: int
    sums: int
    forward: int
    derivative: int
    p: int
    g: int
    out: int


class Index(NamedTuple):
    elements: int
    threads: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    found: int


class Partition(NamedTuple):
    elements: int
    windows: int
    shift: int
    threads: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    bounds: int
    places: int
    numbers: int


class Grouping(NamedTuple):
    elements: int
    segments: int
    windows: int
    shift: int
    threads: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    bounds: int
    numbers: int
    starts: int
    order: int


class Move(NamedTuple):
    size: int
    outer: int
    elements: int
    inner: int
    threads: int
    back: int
    places: int
    source: int
    to: int


class Indexed(NamedTuple):
    dtype: int
    outer: int
    elements: int
    inner: int
    segments: int
    threads: int
    starts: int
    numbers: int
    bounds: int
    windows: int
    shift: int
    x: int
    mask: int
    tau: float
    taus: int
    p: int
    g: int
    out: int


class Pairs(NamedTuple):
    dtype: int
    n: int
    threads: int
    x: int
    y: int
    g: int
    out: int
    other: int = 0


class Codes(NamedTuple):
    n: int
    codes: int
    counts: int


class Elementwise(NamedTuple):
    dtype: int
    n: int
    x: int
    y: int


def _packer(*structures: type[Any]) -> Callable[..., bytes]:
    """The bytes of structures, one after the other, of the values of their fields."""
    kinds = [kind for structure in structures for kind in get_type_hints(structure).values()]
    return struct.Struct("".join({int: "q", float: "d"}[kind] for kind in kinds)).pack


FORWARD, BACKWARD, STATE = _packer(Rows, Forward), _packer(Rows, Backward), _packer(Rows, State)
LOSS, GIVEN_LOSS = _packer(Rows, Loss, Margin), _packer(Rows, Loss, Margin, GivenLoss)
WEIGHTED, QUANTIZED, PAIRS, ELEMENTWISE = _packer(Rows, Weighted), _packer(Quantized), _packer(Pairs), _packer(Elementwise)
GAPS, KEPT = _packer(Rows, Gaps), _packer(Rows, Kept)
LINEAR, LINEAR_BACKWARD = _packer(Linear), _packer(Linear, LinearBackward)
SEGMENTS, INDEXED, INDEX, PARTITION = _packer(Segments), _packer(Indexed), _packer(Index), _packer(Partition)
GROUPING, MOVE, CODES = _packer(Grouping), _packer(Move), _packer(Codes)
ATTENTION, ATTENTION_BACKWARD = _packer(*[Matrices] * 5, Attention), _packer(*[Matrices] * 5, Attention, AttentionBackward)
