"""Everything that a benchmark finds, and its JSON: the same for all groups, a line a result."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from softmaxima.base.writing import finite, write_text
from softmaxima_lab.bench.case import Case, Peer, Result
from softmaxima_lab.bench.clock import Quotient
from softmaxima_lab.bench.machine import commit

DIGITS = 7  # of a number in the file


@dataclass
class Benchmark:
    """What was found, and on what. It grows while the run goes on."""

    device: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    peers: Sequence[str] = ()  # packages that took part
    left_out: Mapping[str, str] = field(default_factory=dict)  # others, and why
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    commit: str | None = field(default_factory=commit)
    elapsed: float = 0.0
    not_reached: Sequence[str] = ()  # before the time was over
    results: Sequence[Result] = ()

    @property
    def wrong(self) -> list[Result]:
        return [result for result in self.results if result.verdict == "wrong"]

    def of(self, group: str, *names: str) -> list[Result]:
        """The results of a group, of all names or these."""
        return [r for r in self.results if r.case.group == group and (not names or r.case.name in names)]


def as_json(benchmark: Benchmark) -> dict[str, Any]:
    """What is not empty; a number that is not finite becomes null."""
    record = asdict(benchmark, dict_factory=lambda pairs: {name: value for name, value in pairs if value not in (None, "", {})})
    record["results"] = [entry.pop("case") | entry for entry in record["results"]]
    return _rounded(finite(record))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def from_json(record: Mapping[str, Any]) -> Benchmark:
    """The benchmark that `as_json` made the record of."""
    return Benchmark(**{"commit": None, **record, "results": [_result(entry) for entry in record["results"]]})


def _result(entry: Mapping[str, Any]) -> Result:
    case = Case(**{name: entry[name] for name in Case.__dataclass_fields__})
    others = {name: value for name, value in entry.items() if name not in Case.__dataclass_fields__}
    return Result(case, **{**others, "peers": {name: _peer(each) for name, each in entry.get("peers", {}).items()}})


def _peer(entry: Mapping[str, Any]) -> Peer:
    return Peer(**{**entry, "ratio": Quotient(*entry["ratio"]) if "ratio" in entry else None})


def write(benchmark: Benchmark, path: Path) -> None:
    """Write the JSON. The file appears complete or not at all."""
    record = as_json(benchmark)
    lines = ",\n  ".join(json.dumps(entry, ensure_ascii=False, allow_nan=False) for entry in record.pop("results"))
    head = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    write_text(path, f'{head},\n "results": [\n  {lines}\n ]\n}}\n')


def read(path: Path) -> Benchmark:
    """The benchmark in a file."""
    return from_json(json.loads(path.read_text(encoding="utf-8")))
