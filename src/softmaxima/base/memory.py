"""How much memory a process may take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def bounded(most: int) -> Iterator[None]:
    """MemoryError where the process takes so many bytes more, whatever of it does, as a library that unpacks; on Linux alone."""
    try:
        import resource

        status = Path("/proc/self/status").read_text(encoding="ascii")
    except (ImportError, OSError):
        yield
        return
    taken = 1024 * int(status.partition("VmData:")[2].split()[0])
    soft, hard = before = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (taken + most, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
