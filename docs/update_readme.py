"""Make the README's pictures and tables: `compare` is run by `make readme`, `bench` by `make bench`.

compare trains as `softmaxima compare` does, and writes docs/maps.png, docs/compare.json (the numbers, with machine, versions,
commit and date) and its table. bench takes what `softmaxima bench` left in benchmarks/cpu.json, and writes docs/bench.png and its
table. Each table goes between its markers in README.md. Needs a Chromium to draw the pictures.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import plotly.graph_objects as go
import torch

from softmaxima.experiments.bench import machine
from softmaxima.experiments.compare import Comparison, Settings, compare
from softmaxima.experiments.tables import read_table
from softmaxima.report import bench as bench_report
from softmaxima.report.compare import COLUMNS, as_json, simplex_figure

ROOT = Path(__file__).parent.parent
COLUMNS_OF_PICTURE = 7


def compare_block() -> str:
    """Train, write the numbers, draw the maps, and give the table."""
    comparison = compare(read_table(None, None), Settings())
    plot = simplex_figure(comparison).plot
    rows = -(-plot.layout.meta["panels"] // COLUMNS_OF_PICTURE)
    plot.update_layout(template="simple_white", grid={"rows": rows, "columns": COLUMNS_OF_PICTURE}, width=1000, height=160 * rows)
    draw(plot, ROOT / "docs" / "maps.png")
    facts = machine()
    made = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{facts['processor']}, {facts['threads']} threads",
        "commit": commit(),
    }
    (ROOT / "docs" / "compare.json").write_text(json.dumps(made | as_json(comparison), indent=1) + "\n")
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    caption = f"*`make readme`, {made['date']}, commit {made['commit']}, {made['machine']}, {versions}.*"
    return f"{markdown_table(comparison)}\n\n{caption}"


def markdown_table(comparison: Comparison) -> str:
    head = [column.heading for column in COLUMNS]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for result in comparison.results:
        cells = [column.cell(result) for column in COLUMNS]
        if result.pair == comparison.recommendation.pair:
            cells = [f"**{cell}**" for cell in cells]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bench_block() -> str:
    """Draw the ratios of the last benchmark, and give its table."""
    benchmark = bench_report.read(ROOT / "benchmarks" / "cpu.json")
    draw(bench_report.picture(benchmark), ROOT / "docs" / "bench.png")
    table, made_with = bench_report.markdown_table(benchmark), bench_report.made_with(benchmark)
    picture = "![Time of each peer divided by that of softmaxima, for every map and loss](docs/bench.png)"
    caption = f"*{bench_report.TABLE_CAPTION} All results: [cpu.json](benchmarks/cpu.json). `make bench`, {made_with}.*"
    return f"{table}\n\n{picture}\n\n{caption}"


BLOCKS = {
    "compare": (compare_block, "<!-- compare: written by make readme -->", "<!-- end of compare -->"),
    "bench": (bench_block, "<!-- bench: written by make bench -->", "<!-- end of bench -->"),
}


def commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def draw(plot: go.Figure, path: Path) -> None:
    """The figure, in its own size, as a PNG of twice as many pixels."""
    chromium = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit("the pictures are drawn with Chromium; install the package chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        page.write_text(plot.to_html(include_plotlyjs=True, config={"staticPlot": True}))
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2",
            f"--user-data-dir={folder}/profile", f"--window-size={plot.layout.width + 16},{plot.layout.height + 16}",
            "--virtual-time-budget=20000", f"--screenshot={path}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    if sys.argv[1:] not in ([name] for name in BLOCKS):
        raise SystemExit(f"usage: python docs/update_readme.py {'|'.join(BLOCKS)}")
    block, start, end = BLOCKS[sys.argv[1]]
    between = f"{start}\n{block()}\n{end}"
    readme = (ROOT / "README.md").read_text()
    (ROOT / "README.md").write_text(re.sub(f"{re.escape(start)}.*{re.escape(end)}", lambda _: between, readme, flags=re.DOTALL))


if __name__ == "__main__":
    main()
