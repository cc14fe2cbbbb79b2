"""The house: nothing imports upwards."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import softmaxima

HOUSE = Path(softmaxima.__file__).parent

# From the ground up. A file may import what is below it, and inside its own room what makes no circle.
STOREYS = (
    "core.writing",
    "core.numbers",
    "core.public",
    "core.places",
    "core.error_free",
    "core.tracing",
    "core.dtensors",
    "core.onnx",
    "core.by_name",
    "core.series",
    "core.arguments",
    "core.cosines",
    "core.unquoted",
    "core.modules",
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
    "kernels.attention",
    "kernels.native_attention",
    "kernels.native_segments",
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
    "core.own_part",
    "core.envelope",
    "core.fused",
    *vars(softmaxima)["_ROOMS"],
    *vars(softmaxima)["_APART"],
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
    """The modules of the package that a file imports or reaches as `sm.name`, but for what only a type checker reads."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    package, names = set(), []  # what the package is called there
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
            package |= {alias.asname or alias.name for alias in node.names if alias.name == "softmaxima"}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            called, _, inside = ast.unparse(node).partition(".")
            names += [f"softmaxima.{inside}"] if called in package else []
    return {_module(name.removeprefix("softmaxima.")) for name in names if name.startswith("softmaxima.")} & FILES.keys()


def _module(name: str) -> str:
    """The file, or that of whose names it is one: of the package's own, which begin with a letter, the room."""
    above, _, last = name.rpartition(".")
    return name if name in FILES or last.startswith("_") else above or vars(softmaxima)["_NAMES"].get(last, "maps")


def storey(module: str) -> int:
    found = [i for i, name in enumerate(STOREYS) if module == name or module.startswith(name + ".")]
    assert len(found) == 1, f"{module} has no place in the house: give it one in STOREYS"
    return found[0]


@pytest.mark.parametrize("module", [name for name in FILES if name not in ("__init__", "core", "kernels")])
def test_nothing_imports_upwards(module: str):
    above = [other for other in imported(FILES[module]) if other not in ("core", "kernels") and storey(other) > storey(module)]
    assert not above, f"{module} imports {', '.join(sorted(above))}, which is above it"


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("import softmaxima as sm; sm.cross_entropy(x, y)", {"losses"}),
        (
            "import softmaxima; softmaxima.lse.log_mean_exp(x), softmaxima.core.rows.f(x)",
            {"lse", "lse.log_mean_exp", "core", "core.rows"},
        ),
        ("from softmaxima import sparsemax, losses", {"maps", "losses"}),
        ("from softmaxima.core.contract import Map", {"core.contract"}),
        ("import softmaxima.core.rows as rows", {"core.rows"}),
        ("import torch; torch.maps", set()),
    ],
)
def test_every_way_to_another_room_is_seen(line: str, modules: set[str], tmp_path: Path):
    path = tmp_path / "file.py"
    path.write_text(line)
    assert imported(path) == modules


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


def test_every_file_of_a_room_that_is_listed_by_files_is_on_the_page():
    """Of the ground floors and of attention; of other rooms the page has the room."""
    page = (HOUSE.parents[1] / "docs" / "architecture.md").read_text()
    for module, path in FILES.items():
        room, _, inside = module.partition(".")
        if path.name != "__init__.py" and room in ("core", "kernels", "attn", "integrations") and not inside.startswith("triton."):
            assert f" {path.name}" in page, f"{module} is not in the house of docs/architecture.md"
        elif path.name == "__init__.py" and room and room != "__init__":
            assert f"{room}/" in page, f"{room} is not in the house of docs/architecture.md"
