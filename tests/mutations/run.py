"""Plants each fault of faults.toml alone, and sees whether the tests of its folders fail: `make mutations`."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = [
    path
    for folder in ("src", "lab/src", "csrc")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".cpp", ".h")
]


@dataclass(frozen=True)
class Fault:
    name: str
    old: str
    new: str
    tests: Sequence[str]

    @property
    def path(self) -> Path:
        """The one file in which `old` stands, once."""
        found = [path for path in SOURCES for _ in range(path.read_text().count(self.old))]
        if len(found) != 1:
            raise ValueError(f"{self.name}: {self.old!r} must stand once in the sources, found {len(found)} times; say more of it")
        return found[0]

    @property
    def is_native(self) -> bool:
        return self.path.suffix != ".py"


def faults() -> list[Fault]:
    return [Fault(**each) for each in tomllib.loads((HERE / "faults.toml").read_text())["fault"]]


def is_found(fault: Fault) -> bool:
    """Whether tests fail with the fault in place."""
    plant = _native(fault) if fault.is_native else (fault.path, fault.old, fault.new)
    names = ("PLANTED_PATH", "PLANTED_OLD", "PLANTED_NEW")
    paths = os.pathsep.join(filter(None, (str(HERE / "planted"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, **dict(zip(names, map(str, plant), strict=True))}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--numprocesses", "auto", "-p", "no:cacheprovider", *fault.tests]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    found = any(line.startswith(("FAILED ", "ERROR ")) for line in ended.stdout.splitlines())
    if not found and ended.returncode != 0:
        raise RuntimeError(f"{fault.name}: the tests did not run\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return found


def _native(fault: Fault) -> tuple[Path, str, str]:
    """Builds the kernels with the fault, beside those of the faults before; what lets the library load them."""
    folder = ROOT / "build" / "mutations"
    for path in (ROOT / "CMakeLists.txt", *sorted((ROOT / "csrc").rglob("*.*"))):
        text = path.read_text()
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        planted = text.replace(fault.old, fault.new) if path == fault.path else text
        if not copy.exists() or copy.read_text() != planted:
            copy.write_text(planted)
    for command in (
        ["cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"],
        ["cmake", "--build", folder / "build"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    library = folder / "build" / "libsoftmaxima.so"
    return ROOT / "src/softmaxima/kernels/interface.py", 'Path(folder) / "libsoftmaxima.so"', f"Path({str(library)!r})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="words of the names of faults; all, if none are given")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many, others on each day, of those in Python")
    asked = parser.parse_args()
    chosen = [fault for fault in faults() if not asked.names or any(word in fault.name for word in asked.names)]
    if asked.sample:
        python = [fault for fault in chosen if not fault.is_native]
        chosen = random.Random(time.strftime("%Y-%m-%d")).sample(python, min(asked.sample, len(python)))
    left = []
    for number, fault in enumerate(chosen, 1):
        begun = time.monotonic()
        found = is_found(fault)
        left += [] if found else [fault.name]
        print(
            f"{number}/{len(chosen)} {'found' if found else 'NOT FOUND'} in {time.monotonic() - begun:.0f} s: {fault.name}",
            flush=True,
        )
    print(f"{len(chosen) - len(left)} of {len(chosen)} faults were found{': not ' + '; '.join(left) if left else ''}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
