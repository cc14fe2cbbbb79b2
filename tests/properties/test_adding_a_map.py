"""Adding a map is one file: the example of CONTRIBUTING.md, taken as it stands, passes the whole property suite."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = ["reference", "claims", "gradients", "transforms", "hard_inputs", "arrays"]


def example() -> str:
    (code,) = re.findall(r"```python\n# src/softmaxima/maps/.*?\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    return code


def run_suite(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "contributed_map.py").write_text(code)
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in SUITE]
    (name,) = re.findall(r'name="(\w+)"', code)
    command = [sys.executable, "-m", "pytest", "-p", "contributed_map", f"--maps={name}", "-k", name, "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *files], cwd=ROOT, env={"PYTHONPATH": str(folder), "PATH": ""}, capture_output=True, text=True, check=False
    )


def test_the_example_of_the_contributing_page_passes_the_suite(tmp_path: Path):
    code = example()
    assert len([line for line in code.splitlines() if line and not line.startswith(("import", "from", "#"))]) <= 15
    done = run_suite(tmp_path, code)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 60


@pytest.mark.parametrize(
    ("claim", "lie"),
    [
        ("a wrong derivative", lambda code: code.replace("return p, p", "return 1.1 * p, p")),
        ("a wrong property", lambda code: code.replace("shift_invariant=False", "shift_invariant=True")),
    ],
)
def test_the_suite_catches(tmp_path: Path, claim: str, lie):
    assert lie(example()) != example()
    assert run_suite(tmp_path, lie(example())).returncode == 1
