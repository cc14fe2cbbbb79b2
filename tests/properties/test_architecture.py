"""The page of the house has what stands in it; that nothing imports upwards `lint-imports` holds."""

from __future__ import annotations

from pathlib import Path

import softmaxima

HOUSE = Path(softmaxima.__file__).parent
FILES = {
    ".".join(path.relative_to(HOUSE).with_suffix("").parts).removesuffix(".__init__"): path for path in sorted(HOUSE.rglob("*.py"))
}


def test_every_file_of_a_room_that_is_listed_by_files_is_on_the_page():
    """Of the ground floors and of attention; of other rooms the page has the room."""
    page = (HOUSE.parents[1] / "docs" / "architecture.md").read_text()
    for module, path in FILES.items():
        room, _, inside = module.partition(".")
        if path.name != "__init__.py" and room in ("core", "kernels", "attn", "integrations") and not inside.startswith("triton."):
            assert f" {path.name}" in page, f"{module} is not in the house of docs/architecture.md"
        elif path.name == "__init__.py" and room and room != "__init__":
            assert f"{room}/" in page, f"{room} is not in the house of docs/architecture.md"
