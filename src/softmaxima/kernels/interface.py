"""Native libraries on the CPU: the only file that loads them and knows their structures (csrc/kernels.h).

Nothing here needs torch, so that sums of files do without loading it. What the library does with tensors is in `native.py`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import os
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_type_hints

import numpy as np

INTERFACE = 17  # the version that csrc/kernels.h states
DTYPES = {"float64": 0, "float32": 1, "bfloat16": 2, "float16": 3}

# The structures of csrc/kernels.h: fields of 8 bytes, an address as an int.


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
    taus: int
    theta: int
    distance: int
    mask: int
    blocks: int


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


Function = Callable[[bytes], int]  # of the bytes of a structure


def find_library(folders: Iterable[str]) -> Path | None:
    """The library as it was installed beside the package."""
    return next((path for folder in folders if (path := Path(folder) / "libsoftmaxima.so").exists()), None)


def asked_backend() -> str:
    """Whose kernels SOFTMAXIMA_BACKEND asks for: native, reference or triton."""
    backend = os.environ.get("SOFTMAXIMA_BACKEND", "native")
    if backend not in ("native", "reference", "triton"):
        raise ValueError(f"SOFTMAXIMA_BACKEND must be native, reference or triton, got {backend!r}")
    return backend


def load() -> ctypes.CDLL | None:
    """The library, or None where torch has to do; says once how to get it if that was not wished for."""
    if asked_backend() != "native":
        return None
    import softmaxima

    _share_openmp()
    return open_library(find_library(softmaxima.__path__))


def _share_openmp() -> None:
    """Load the OpenMP runtime that torch brings along: whoever comes first, one pool of threads serves both."""
    found = importlib.util.find_spec("torch")  # which does not load it
    for folder in (found and found.submodule_search_locations) or ():
        runtime = Path(folder, "lib", "libgomp.so.1")
        if runtime.exists():
            ctypes.CDLL(str(runtime))


def open_library(path: Path | None) -> ctypes.CDLL | None:
    """A library of our interface; None, with one warning, where there is none."""
    problem = "it was not built"
    if path is not None and path.exists():
        try:
            library = ctypes.CDLL(str(path))
            if (interface := library.softmaxima_interface()) != INTERFACE:
                problem = f"it has interface {interface}, and this package needs {INTERFACE}"
            elif not _instruction_set(library):
                problem = "it was compiled for another processor, or SOFTMAXIMA_ISA asks for less than what it was compiled for"
            else:
                _listen(library)
                return library
        except (OSError, AttributeError) as error:
            problem = str(error)
    which = "its native library" if path is None else f"the native library {path}"
    warnings.warn(
        f"softmaxima runs without {which}, much slower on the CPU ({problem}): reinstall it where there is a C++ compiler, or set "
        "SOFTMAXIMA_BACKEND=reference",
        stacklevel=2,
    )
    return None


def _instruction_set(library: ctypes.CDLL) -> str:
    """Empty where what it was compiled for is more than this processor has, or SOFTMAXIMA_ISA asks for."""
    library.softmaxima_instruction_set.restype = ctypes.c_char_p
    return library.softmaxima_instruction_set().decode()


class Python(ctypes.Structure):
    """What the library asks for in the main thread, where handlers of signals run, while a call takes long (csrc/dispatch.cpp)."""

    FUNCTIONS = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch", "PyErr_Restore")
    _fields_ = [("thread", ctypes.c_ulong), *((name, ctypes.c_void_p) for name in FUNCTIONS)]


_RAISE: list[Callable[[], None]] = []  # of each library, what a handler raised meanwhile


def _listen(library: ctypes.CDLL) -> None:
    """Have long calls hear interrupts."""
    functions = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in Python.FUNCTIONS]

    def tell() -> None:
        library.softmaxima_listen(ctypes.byref(Python(threading.main_thread().ident, *functions)))

    tell()
    os.register_at_fork(after_in_child=tell)  # whose main thread is the one that forked
    _RAISE.append(ctypes.PyDLL(library._name, handle=library._handle).softmaxima_raise)


opened = functools.cache(open_library)  # so that its warning comes once
LIBRARY = load()
AVAILABLE = LIBRARY is not None


def instruction_set() -> str:
    """Which instructions the library runs: v4, v3 or baseline; "none" without a library."""
    return "none" if LIBRARY is None else _instruction_set(LIBRARY)


@functools.cache
def find_function(name: str, library: ctypes.CDLL | None = LIBRARY) -> Function:
    """The kernel `softmaxima_…` of a library."""
    try:
        function = getattr(library, "softmaxima_" + name)
    except AttributeError:
        raise AttributeError(
            f"the native library has no kernel {name!r}; end its file in csrc/ by SOFTMAXIMA_KERNEL({name}, …), and build it again"
        ) from None
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int
    return function


def find_checked(name: str, kind: str, library: ctypes.CDLL) -> Function:
    """The function, which must take the structure of this kind: of another it would read what is not there."""
    function, says = find_function(name, library), getattr(library, f"softmaxima_{name}_takes")
    says.restype = ctypes.c_char_p
    if (takes := says().decode()) != kind:
        raise ValueError(f"Kernel: {kind.lower()}= must name a kernel that takes {kind}, got {name!r}, which takes {takes}")
    return function


def prefer_large_pages(address: int, size: int) -> None:
    """Ask for large pages for so many bytes that nobody has written to yet, which are given out several times as fast."""
    LIBRARY.softmaxima_prefer_large_pages(ctypes.c_void_p(address), ctypes.c_size_t(size))  # type: ignore[union-attr]


def run(function: Function, structure: bytes) -> None:
    """Call a kernel. Raises MemoryError, or what a handler of signals does while it takes long."""
    if function(structure):
        fail(function.__name__)


def fail(name: str) -> NoReturn:
    """After a call that failed."""
    for raise_there in _RAISE:
        raise_there()
    raise MemoryError(f"{name}: no memory for what it works in")


_own = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it the calling thread runs by itself what is called here, and torch's operations where OpenMP shares them out, for
    work that is shared out among threads already.
    """
    before = threads(), getattr(_own, "threads", 0)  # torch tells each thread at its first call, which is this
    tell = getattr(LIBRARY, "omp_set_num_threads", lambda count: None)  # of the calling thread alone
    tell(1)
    _own.threads = 1
    try:
        yield
    finally:
        tell(before[0])
        _own.threads = before[1]


def threads() -> int:
    """As many as torch is told to take or, where it is not loaded, as OpenMP takes by itself."""
    told = getattr(sys.modules.get("torch"), "get_num_threads", _threads_of_openmp)
    return getattr(_own, "threads", 0) or told()


def _threads_of_openmp() -> int:
    ask = getattr(LIBRARY, "omp_get_max_threads", None)  # of the runtime that the library brings along
    return os.cpu_count() or 1 if ask is None else ask()


# Sums of NumPy arrays -------------------------------------------------------------------------------------------------------


def array_rows(x: np.ndarray, tau: float) -> Rows:
    """Rows [..., n] of scores, n > 0, contiguous and of a dtype in `DTYPES`."""
    n = x.shape[-1]
    return Rows(
        dtype=DTYPES[x.dtype.name],
        outer=x.size // n,
        n=n,
        inner=1,
        threads=threads(),
        x=x.ctypes.data,
        stride=n,
        tau=tau,
        taus=0,
        theta=0,
        distance=0,
        mask=0,
        blocks=0,
    )


def logsumexp_state(rows: Sequence[Any], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Σ exp((x − M)/τ) over the others, the largest x M, both in double, how many x are that) of `Rows` of this shape."""
    rest, maximum, count = np.empty(shape), np.empty(shape), np.empty(shape, np.int64)
    own = State(rests=rest.ctypes.data, maxima=maximum.ctypes.data, counts=count.ctypes.data)
    run(find_function("logsumexp_state"), STATE(*rows, *own))
    return rest, maximum, count


def count_codes(codes: np.ndarray, counts: np.ndarray) -> None:
    """Add how often each of contiguous codes, uint16, occurs: counts[code, 0] + counts[code, 1], uint32 [65536, 2]."""
    run(find_function("count_codes"), CODES(len(codes), codes.ctypes.data, counts.ctypes.data))
