"""The house: nothing imports upwards."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import softmaxima

HOUSE = Path(softmaxima.__path__[0])

# From the ground up. A file may import what is below it, and inside its own room what makes no circle.
STOREYS = (
    "core.writing",
    "core.modules",
    "core.numbers",
    "core.error_free",
    "core.tracing",
    "core.onnx",
    "core.series",
    "core.arguments",
    "core.randomness",
    "core.rows",
    "core.temperature",
    "core.differentiable",
    "core.double_double",
    "core.monoid",
    "core.blocks",
    "core.jacobian",
    "kernels.interface",
    "kernels.native",
    "kernels.triton",
    "kernels.devices",
    "kernels.operations",
    "core.routing",
    "core.rowwise",
    "core.recorded",
    "core.autograd",
    "core.evaluation",
    "core.contract",
    "core.parts",
    "core.envelope",
    "core.fused",
    "streams",
    "maps",
    "derivatives",
    "lse",
    "losses",
    "compat",
    "bench",
    "experiments",
    "report",
    "cli",
    "__main__",
)
FILES = {
    ".".join(path.relative_to(HOUSE).with_suffix("").parts).removesuffix(".__init__"): path for path in sorted(HOUSE.rglob("*.py"))
}


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, but for what only a type checker reads."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [
                node.module if _inside(f"{node.module}.{a.name}") not in FILES else f"{node.module}.{a.name}" for a in node.names
            ]
    return {_inside(name) for name in names} & FILES.keys()


def _inside(name: str) -> str:
    return name.removeprefix("softmaxima.")


def storey(module: str) -> int:
    found = [i for i, name in enumerate(STOREYS) if module == name or module.startswith(name + ".")]
    assert len(found) == 1, f"{module} has no place in the house: give it one in STOREYS"
    return found[0]


@pytest.mark.parametrize("module", [name for name in FILES if name not in ("__init__", "core", "kernels")])
def test_nothing_imports_upwards(module: str):
    above = [other for other in imported(FILES[module]) if other not in ("core", "kernels") and storey(other) > storey(module)]
    assert not above, f"{module} imports {', '.join(sorted(above))}, which is above it"


def test_no_circles():
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a circle: {' → '.join((*path, module))}"
        if module not in done:
            for other in imported(FILES[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in FILES:
        if not FILES[module].name.startswith("__"):
            visit(module, ())
