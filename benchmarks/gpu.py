"""The kernels on a GPU: whether they are right, how much of the copy bandwidth they reach, beside other packages.

    python -m benchmarks.gpu --out build/gpu --wheels wheels

Everything in one call, on a machine without a network. Nothing is timed before its values and gradients agree with the float64
definition; kernels run in processes of their own, so that one that crashes or hangs is named and the rest goes on. DIR/gpu.json and
DIR/gpu.md are written as results come in. The exit status is 0 if everything was right and in time, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import softmaxima as sm
from benchmarks.checks import CheckTask, check, check_tasks
from benchmarks.peers import Package, installed, packages
from benchmarks.report import TARGETS, Report, as_json, as_markdown, outcome
from benchmarks.rows import OURS, QUICK_SECONDS, SECONDS, Place, Result, Row, RowTask, Verdict, check_row, planned, time_row
from benchmarks.timing import Measured, copy_bandwidth
from benchmarks.workers import LATE, Lost, Workers
from softmaxima.experiments.bench import commit, machine

CHECKING = 0.4  # of the budget at most, for rows of awkward lengths; the rest is for speed
WAVE = 48  # rows are checked by all processes, then timed by one, so many at a time
LIMIT = 90.0  # seconds of a task, compilers and tuners of peers included, before it counts as hanging
MEMORY = 14 << 30  # bytes of the device for a process that checks: sorts of 1 GiB of scores take 10 GiB
SAVED = 5.0  # seconds from one writing of the results to the next


@dataclass(frozen=True)
class Settings:
    """What was asked for. Without `processes`: as many as the machine has room for, on the CPU none but this one."""

    out: Path
    wheels: Path | None = None
    seconds: float = 450.0
    device: str = "cuda"
    quick: bool = False
    processes: int | None = None


@dataclass(frozen=True)
class Surroundings:
    """What only a process with the device open can tell."""

    machine: dict[str, Any]
    packages: list[Package]
    cache: int
    room: int  # for processes


def surroundings(device: str) -> Surroundings:
    if device == "cpu":
        return Surroundings(machine(), packages(device), 0, 1)
    found = torch.cuda.get_device_properties(0)
    driver, sm_clock, memory_clock = _nvidia_smi("driver_version", "clocks.max.sm", "clocks.max.memory")
    facts = {
        "device": found.name,
        "driver": driver,
        "memory": f"{found.total_memory / 2**30:.0f} GiB",
        "L2": f"{found.L2_cache_size / 2**20:.0f} MiB",
        "multiprocessors": found.multi_processor_count,
        "clock": sm_clock,
        "memory clock": memory_clock,
    }
    room = max(1, min((os.cpu_count() or 1) - 2, found.total_memory // MEMORY))
    return Surroundings(facts | machine(), packages(device), found.L2_cache_size, room)


def _nvidia_smi(*fields: str) -> tuple[str | None, ...]:
    try:
        asked = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
        return tuple(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().split(", "))
    except (OSError, subprocess.CalledProcessError):
        return (None,) * len(fields)


def versions(found: Sequence[Package]) -> dict[str, str]:
    """Of softmaxima, of what it runs on, and of the peers."""
    known = {"softmaxima": sm.__version__, "python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        known["CUDA"] = torch.version.cuda
    with suppress(metadata.PackageNotFoundError):
        known["triton"] = metadata.version("triton")
    return known | {package.name: package.version for package in found if package.version and package.name not in known}


# The run ----------------------------------------------------------------------------------------------------------------------


class Run:
    """Fills a report, writes it every few seconds, and tells on stderr how far it is."""

    def __init__(self, settings: Settings, report: Report, place: Place, started: float) -> None:
        self.settings, self.report, self.place, self.started = settings, report, place, started
        self.saved = -SAVED
        self.not_captured: dict[str, dict[str, str]] = {}  # title → label → why

    @property
    def ends(self) -> float:
        return self.started + self.settings.seconds

    def say(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self.started:4.0f} s] {text}\n")
        sys.stderr.flush()

    def save(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self.saved < SAVED:
            return
        self.saved, self.report.elapsed = now, now - self.started
        for name, text in (("gpu.json", json.dumps(as_json(self.report), indent=1)), ("gpu.md", as_markdown(self.report))):
            unfinished = self.settings.out / f"{name}.part"
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(self.settings.out / name)

    def check_lengths(self, workers: Workers, tasks: Sequence[CheckTask]) -> None:
        """Every kernel on rows of awkward lengths."""
        remaining = Counter(task.kernels for task in tasks)
        right: Counter[str] = Counter()
        done: Counter[str] = Counter()
        for task, result in workers.map(check, tasks, LIMIT, self.started + CHECKING * self.settings.seconds):
            if isinstance(result, Lost):
                result = [] if result.problem == LATE else [replace(check, problem=result.problem) for check in task.checks]
            self.report.checks += result
            right[task.kernels] += sum(check.right for check in result)
            done[task.kernels] += len(result)
            remaining[task.kernels] -= 1
            if not remaining[task.kernels]:
                self.say(f"{task.kernels}: {right[task.kernels]} of {done[task.kernels]} checks are right")
            self.save()

    def copy(self, timer: Workers) -> None:
        for _, found in timer.map(copy_bandwidth, [(self.place.device, self.settings.quick)], LIMIT, self.ends):
            if isinstance(found, Lost):
                self.say(f"copy: {found.problem}")
            else:
                self.report.copies.append(found)
                self.say(f"copy: {found / 1e9:.0f} GB/s")

    def measure_rows(self, checkers: Workers, timer: Workers, rows: Sequence[Row]) -> None:
        """Check the rows, in many processes, then time those that are right, in one."""
        results = self.report.results
        for task, result in checkers.map(check_row, [RowTask(row, self.place) for row in rows], LIMIT, self.ends):
            if not isinstance(result, Lost):
                results[task.row] = result
            elif result.problem != LATE:
                results[task.row] = Result(task.row, problem=result.problem)
            self.save()
        for row in rows:
            if row in results and results[row].problem:
                self.say(f"{row}: {results[row].problem}")
        for task, measured in timer.map(time_row, self._to_time(rows), LIMIT, self.ends):
            self._record(task.row, measured)
            self.save()

    def _to_time(self, rows: Sequence[Row]) -> Iterator[RowTask]:
        for row in rows:
            result = self.report.results.get(row)
            if result is not None and result.right:
                labels = tuple(label for label, verdict in result.verdicts.items() if not verdict.problem)
                yield RowTask(row, self.place, labels, dict(self.not_captured.get(row.title, {})))

    def _record(self, row: Row, measured: Measured | Lost) -> None:
        result = self.report.results[row]
        if isinstance(measured, Lost):
            if measured.problem != LATE:
                self.report.results[row] = replace(result, problem=measured.problem)
                self.say(f"{row}: {measured.problem}")
            return
        self.not_captured.setdefault(row.title, {}).update(measured.not_captured)
        failed = {label: Verdict(problem=why) for label, why in measured.failed.items()}
        result = replace(result, verdicts=result.verdicts | failed, times=measured.times, problem=measured.failed.get(OURS, ""))
        self.report.results[row] = result
        rate, share = result.bytes_a_second, self.report.share(result)
        self.say(
            f"{row}: {result.problem}"
            if rate is None
            else f"{row}: {rate / 1e9:.0f} GB/s" + ("" if share is None else f", {share:.0%} of the copy")
        )


def benchmark(settings: Settings) -> Report:
    """Everything, for as long as the budget lasts."""
    started = time.monotonic()
    here = settings.processes == 0 or (settings.processes is None and settings.device == "cpu")
    with installed(settings.wheels) as failed, Workers(0 if here else 1) as timer:
        ((_, around),) = timer.map(surroundings, [settings.device], LIMIT)
        if isinstance(around, Lost):
            raise SystemExit(f"benchmarks.gpu: the device could not be opened: {around.problem}")
        tasks = check_tasks(settings.device, settings.quick)
        rows = planned(settings.quick)
        report = Report(
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            commit=commit(),
            seconds=settings.seconds,
            device=settings.device,
            quick=settings.quick,
            machine=around.machine,
            versions=versions(around.packages),
            packages=[*failed, *around.packages],
            planned_checks=[check for task in tasks for check in task.checks],
            planned_rows=rows,
        )
        there = tuple(package.name for package in around.packages if not package.problem)
        place = Place(settings.device, around.cache, there, QUICK_SECONDS if settings.quick else SECONDS)
        run = Run(settings, report, place, started)
        try:
            with Workers(0 if here else settings.processes or around.room) as checkers:
                run.check_lengths(checkers, tasks)
                run.copy(timer)
                for first in range(0, len(rows), WAVE):
                    run.measure_rows(checkers, timer, rows[first : first + WAVE])
                run.copy(timer)
        finally:
            run.save(at_once=True)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    settings = parse(arguments)
    if settings.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("benchmarks.gpu: there is no CUDA device here; --device cpu runs the same on the CPU, for tests\n")
        return 1
    settings.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # there are many processes already
    report = benchmark(settings)
    for target in TARGETS:
        sys.stdout.write(f"{target.title}: {outcome(target, report)}\n")
    missing = len(report.checks_not_reached), len(report.rows_not_reached)
    sys.stdout.write(f"{len(report.wrong)} wrong or failed; not reached: {missing[0]} checks and {missing[1]} rows\n")
    return 0 if report.good else 1


def parse(arguments: Sequence[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where gpu.json and gpu.md are written")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels of the peers, installed into a temporary folder")
    parser.add_argument("--seconds", type=float, default=Settings.seconds, help="the budget (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default=Settings.device, help="cpu is for tests")
    parser.add_argument("--quick", action="store_true", help="small shapes and few repetitions")
    parser.add_argument("--processes", type=int, help="that check kernels at a time; 0: none but this one (default: what fits)")
    settings = Settings(**vars(parser.parse_args(arguments)))
    if settings.wheels is not None and not settings.wheels.is_dir():
        parser.error(f"--wheels: there is no folder {settings.wheels}")
    if settings.processes is not None and settings.processes < 0:
        parser.error(f"--processes must be at least 0, got {settings.processes}")
    return settings


if __name__ == "__main__":
    sys.exit(main())
