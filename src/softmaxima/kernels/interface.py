"""Native libraries on the CPU: the only file that loads them and calls what they have.

Nothing here needs torch, so that sums of files do without loading it. What the library does with tensors is in `native.py`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from softmaxima.kernels.structures import CODES, DTYPES, INTERFACE, STATE, Rows, State

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


def array_rows(x: np.ndarray, tau: float) -> Rows:
    """Rows [..., n] of scores, n > 0, contiguous and of a dtype in `DTYPES`."""
    n = x.shape[-1]
    return Rows(DTYPES[x.dtype.name], x.size // n, n, 1, threads(), x.ctypes.data, stride=n, tau=tau)


def logsumexp_state(rows: Sequence[Any], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Σ exp((x − M)/τ) over the others, the largest x M, both in double, how many x are that) of `Rows` of this shape."""
    rest, maximum, count = np.empty(shape), np.empty(shape), np.empty(shape, np.int64)
    own = State(rests=rest.ctypes.data, maxima=maximum.ctypes.data, counts=count.ctypes.data)
    run(find_function("logsumexp_state"), STATE(*rows, *own))
    return rest, maximum, count


def count_codes(codes: np.ndarray, counts: np.ndarray) -> None:
    """Add how often each of contiguous codes, uint16, occurs: counts[code, 0] + counts[code, 1], uint32 [65536, 2]."""
    run(find_function("count_codes"), CODES(len(codes), codes.ctypes.data, counts.ctypes.data))
