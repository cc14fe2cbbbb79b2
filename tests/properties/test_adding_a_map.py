"""Adding a map is one file, and one for each kernel: the examples of CONTRIBUTING.md, taken as they stand, pass the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import exhaustively
from softmaxima.kernels import native

ROOT = Path(__file__).parents[2]
SUITE = ["reference", "claims", "gradients", "transforms", "hard_inputs", "arrays"]


def example(path: str = "src/softmaxima/maps/sigmax.py") -> str:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(rf"```\w+\n(?:#|//) {re.escape(path)}\n(.*?)```", page, re.DOTALL)
    return code


def run_python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """With the modules in the folder."""
    variables = {"PYTHONPATH": os.pathsep.join((str(folder), *filter(None, sys.path))), "PATH": "", **environment}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def run_tests(folder: Path, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Those of the map that importing `contributed_map` registers."""
    options = ["-m", "pytest", "-p", "contributed_map", f"--maps={name}", "-p", "no:cacheprovider"]
    return run_python(folder, *options, *arguments, **environment)


def passed(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (count,) = re.findall(r"(\d+) passed", done.stdout)
    return int(count)


def run_suite(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "contributed_map.py").write_text(code)
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in SUITE]
    (name,) = re.findall(r'name="(\w+)"', code)
    return run_tests(folder, name, "-k", name, *files)


def test_the_example_of_the_contributing_page_passes_the_suite(tmp_path: Path):
    code = example()
    assert len([line for line in code.splitlines() if line and not line.startswith(("import", "from", "#"))]) <= 15
    assert passed(run_suite(tmp_path, code)) > 60


@pytest.mark.parametrize(
    ("claim", "lie"),
    [
        ("a wrong derivative", lambda code: code.replace("return p, p", "return 1.1 * p, p")),
        exhaustively("a wrong property", lambda code: code.replace("shift_invariant=False", "shift_invariant=True")),
    ],
)
def test_the_suite_catches(tmp_path: Path, claim: str, lie):
    assert lie(example()) != example()
    assert run_suite(tmp_path, lie(example())).returncode == 1


# With kernels ----------------------------------------------------------------------------------------------------------------

KERNELS = ROOT / "tests" / "kernels"
TOOLS = """
import contributed_map, dataclasses, torch
from softmaxima_lab.commands import main
from softmaxima.maps import REGISTRY
map, x = REGISTRY["background"], torch.randn(3, 5)
kernel = dataclasses.replace(map.kernel, theta=lambda weight, power: (power, weight))
swapped = dataclasses.replace(map, name="swapped", kernel=kernel)
assert torch.equal(swapped(x, weight=0.5, power=2.0), map(x, weight=2.0, power=0.5))
for command in (
    ("bench", "background", "--shapes=8x16", "--peers=torch", "--quick"),
    ("compare", "--maps=background", "--quick", "--folds=2", "--epochs=1", "--out={out}"),
):
    try:
        main(command)
    except SystemExit as end:
        assert not end.code, end.code

from docs.update import maps_blocks
assert "`background(weight, power)`" in maps_blocks()["maps"]
"""


@pytest.fixture(scope="module")
def contributed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the map, its library and its Triton functions, as a package of its own has them."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None or not native.AVAILABLE:
        pytest.skip("needs a C++ compiler and the native library")
    folder = tmp_path_factory.mktemp("contributed")
    (folder / "background.cpp").write_text(example("csrc/background.cpp"))
    (folder / "contributed_triton.py").write_text(example("src/softmaxima/kernels/triton/background.py"))
    code, kernel = example("src/softmaxima/maps/background.py"), 'Kernel("background", "background_backward"'
    assert kernel in code
    own = f'{kernel}, library=Path(__file__).with_name("libbackground.so"), triton="contributed_triton"'
    (folder / "contributed_map.py").write_text("from pathlib import Path\n" + code.replace(kernel, own))
    csrc, flags = ROOT / "csrc", ("-std=gnu++17", "-O1", "-fopenmp", "-fPIC", "-shared", "-Wall", "-Werror")
    sources = (folder / "background.cpp", csrc / "dispatch.cpp")
    options = ("-DSOFTMAXIMA_ISA=baseline", f"-I{csrc}", "-o", folder / "libbackground.so")
    subprocess.run([compiler, *flags, *options, *sources], check=True)
    return folder


@pytest.mark.exhaustive
def test_a_map_with_two_parameters_and_kernels_passes_the_suite_and_the_tests_of_kernels(contributed: Path):
    files = (Path(__file__).with_name("test_reference.py"), KERNELS / "test_kernels.py")
    chosen = "background and (reference or random_calls)"  # the whole suite takes two minutes
    assert passed(run_tests(contributed, "background", "-k", chosen, *map(str, files))) > 10


@pytest.mark.exhaustive
def test_its_triton_kernel_passes_the_tests_of_those(contributed: Path):
    pytest.importorskip("triton")
    interpreted = {"TRITON_INTERPRET": "1", "SOFTMAXIMA_BACKEND": "triton", "HOME": str(contributed)}
    chosen = ("-m", "gpu", "-k", "background and (17 or 33)", str(KERNELS / "test_triton.py"))
    assert passed(run_tests(contributed, "background", *chosen, **interpreted)) == 8


@pytest.mark.exhaustive
def test_its_kernel_is_given_its_parameters_and_the_tools_find_it(contributed: Path):
    done = run_python(contributed, "-c", TOOLS.replace("{out}", str(contributed / "compare")))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"^background +\d", done.stdout, re.MULTILINE), done.stdout
    assert "background" in (contributed / "compare" / "results.csv").read_text()
