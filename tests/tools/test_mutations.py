"""The planted faults, which `make mutations` sees found."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "mutations"))

import run


def test_each_planted_fault_stands_in_one_place() -> None:
    for fault in run.faults():
        assert fault.path.exists()
        assert fault.new != fault.old
        assert all((run.ROOT / folder).is_dir() for folder in fault.tests)
