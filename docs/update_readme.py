"""Make the README's picture and table: run by `make readme`, from the results of `make compare`'s own experiment.

Writes docs/maps.png, docs/compare.json (the numbers, with machine, versions, commit and date) and the table between the markers
of README.md. Needs a Chromium to draw the picture.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from softmaxima.experiments.compare import Comparison, Settings, compare
from softmaxima.experiments.tables import read_table
from softmaxima.report.compare import COLUMNS, as_json, simplex_figure

ROOT = Path(__file__).parent.parent
COLUMNS_OF_PICTURE = 7
MARKERS = ("<!-- compare: written by make readme -->", "<!-- end of compare -->")


def markdown_table(comparison: Comparison) -> str:
    head = [column.heading for column in COLUMNS]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for result in comparison.results:
        cells = [column.cell(result) for column in COLUMNS]
        if result.pair == comparison.recommendation.pair:
            cells = [f"**{cell}**" for cell in cells]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def processor() -> str:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else []
    return f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads"


def commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def draw(comparison: Comparison, path: Path) -> None:
    chromium = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit("make readme draws its picture with Chromium; install the package chromium")
    plot = simplex_figure(comparison).plot
    rows = -(-plot.layout.meta["panels"] // COLUMNS_OF_PICTURE)
    height = 160 * rows
    plot.update_layout(template="simple_white", grid={"rows": rows, "columns": COLUMNS_OF_PICTURE}, width=1000, height=height)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        page.write_text(plot.to_html(include_plotlyjs=True, config={"staticPlot": True}))
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2",
            f"--user-data-dir={folder}/profile", f"--window-size=1016,{height + 16}", "--virtual-time-budget=20000",
            f"--screenshot={path}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    comparison = compare(read_table(None, None), Settings())
    draw(comparison, ROOT / "docs" / "maps.png")
    made = {"date": datetime.date.today().isoformat(), "machine": processor(), "commit": commit()}
    (ROOT / "docs" / "compare.json").write_text(json.dumps(made | as_json(comparison), indent=1) + "\n")
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    caption = f"*`make readme`, {made['date']}, commit {made['commit']}, {made['machine']}, {versions}.*"
    readme = (ROOT / "README.md").read_text()
    start, end = MARKERS
    between = f"{start}\n{markdown_table(comparison)}\n\n{caption}\n{end}"
    (ROOT / "README.md").write_text(re.sub(f"{re.escape(start)}.*{re.escape(end)}", lambda _: between, readme, flags=re.DOTALL))


if __name__ == "__main__":
    main()
