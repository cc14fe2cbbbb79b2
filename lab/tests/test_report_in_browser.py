"""The reports in headless Chromium: every figure is drawn, nothing sticks out, and the console stays silent.

Chromium is driven over its DevTools protocol through a pipe: JSON messages that end in a zero byte, on its descriptors 3 and 4.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import exhaustively
from softmaxima_lab.compare import attention, estimators, heads
from softmaxima_lab.compare.attention_tasks import digits_task as attention_digits
from softmaxima_lab.compare.engine import compare as compare_with_seeds
from softmaxima_lab.compare.estimators import vae_task
from softmaxima_lab.compare.estimators_plan import planned
from softmaxima_lab.compare.heads_pictures import digits_task as heads_digits
from softmaxima_lab.compare.heads_plan import TASKS
from softmaxima_lab.compare.heads_plan import Settings as HeadsSettings
from softmaxima_lab.compare.heads_text import text_task
from softmaxima_lab.compare.pixels import digits
from softmaxima_lab.compare.settings import Settings as SeedSettings
from softmaxima_lab.compare.table import Settings, compare
from softmaxima_lab.pages import compare_attention, compare_estimators, compare_heads, comparison
from softmaxima_lab.pages.compare_table import page
from softmaxima_lab.tables.tables import Table, read_table
from softmaxima_lab.tables.texts import Text, read_text

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: chromium, chromium-browser or google-chrome on the PATH")

WIDE, NARROW = 1400, 400
WIDTHS = (WIDE, NARROW)
APART = 5  # pixels between names in a row
OPTIONS = 60  # of a command that takes several lines
FIGURES = {
    "report": ("gain", "cost", "classes", "reliability", "support", "curves", "simplex"),
    "attention_report": ("digits-quality", "digits-heads", "digits-weights", "digits-cost"),
    "heads_report": (
        *(f"text-{of}" for of in ("smoothed-nats", "score", "top1", "cost", "eps", "time", "memory")),
        *(f"digits-{of}" for of in ("recall", "accuracy", "cosines", "neighbours", "cost")),
    ),
    "estimators_report": tuple(f"digits-{of}" for of in ("elbo", "bound", "curves", "snr", "bias")),
}
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
# Moves the pipe to descriptors 3 and 4, by way of one that is neither, and becomes the command.
LAUNCH = """
import fcntl, os, sys
commands, answers = int(sys.argv[1]), fcntl.fcntl(int(sys.argv[2]), fcntl.F_DUPFD, 10)
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Browser:
    """One headless Chromium, with one page."""

    def __init__(self, profile: Path) -> None:
        command = [str(CHROMIUM), *QUIET, f"--user-data-dir={profile}", "about:blank"]
        (read_command, self.commands), (self.answers, write_answer) = os.pipe(), os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(read_command), str(write_answer), *command],
            pass_fds=(read_command, write_answer),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_command)
        os.close(write_answer)
        self.buffer, self.events, self.ids = b"", [], itertools.count(1)
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        os.close(self.commands)
        os.close(self.answers)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and wait for its answer. Events that come meanwhile are kept."""
        number = next(self.ids)
        session = {"sessionId": self.session} if self.session else {}
        os.write(self.commands, json.dumps({"id": number, "method": method, "params": params, **session}).encode() + b"\0")
        while True:
            message = self.receive()
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self.events.append(message)

    def receive(self, seconds: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self.answers, 1 << 20) if ready else b""
            assert part, "Chromium ended, or did not answer in time"
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, path: Path, width: int) -> None:
        """Load a page at that width, and wait until it has been painted twice."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions that nobody caught, and requests beyond the file itself."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            loud = params.get("type") in ("error", "warning", "assert") or params.get("entry", {}).get("level") in (
                "error",
                "warning",
            )
            if event.get("method") == "Runtime.exceptionThrown" or (event.get("method") in COMPLAINTS and loud):
                found.append(json.dumps(params))
            if event.get("method") == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
                ("file:", "data:", "blob:")
            ):
                found.append(f"request to {params['request']['url'][:200]}")
        return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = compare(read_table(), Settings(folds=2, epochs=1, rows=200))
    last = found.others[-1]  # which is moved far behind, beyond the axis of differences
    behind = replace(last, folds=tuple(replace(fold, accuracy=fold.accuracy - 9 + i) for i, fold in enumerate(last.folds)))
    results = tuple(behind if result is last else result for result in found.results)
    comparison = replace(found, results=results, command="softmaxima" + " --quick" * OPTIONS)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(comparison), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def attention_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = attention_digits(attention.compared(attention.offered()[:5]))
    study = compare_with_seeds(attention.COMPARISON, [task], SeedSettings(seeds=2, steps=2))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(comparison.page(compare_attention.REPORT, study), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def heads_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings, content = HeadsSettings(seeds=2, steps=2, vocabulary=150), read_text(None).content[:60_000]
    tasks = [text_task(Text("some help", content), settings, TASKS["text"]), heads_digits(TASKS["digits"])]
    with pytest.MonkeyPatch.context() as patch:  # memory is measured in processes, seconds each
        patch.setattr(heads, "peaks", lambda chosen, *_: {head.name: 2.0**20 * len(head.name) for head in chosen})
        study = compare_with_seeds(heads.COMPARISON, tasks, settings)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(comparison.page(compare_heads.REPORT, study), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def estimators_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = SeedSettings(seeds=2, steps=10, quick=True)
    task = vae_task(digits(), planned(["Gumbel-softmax 0.5", "ReinMax", "REBAR"]))
    study = compare_with_seeds(estimators.COMPARISON, [task], settings)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(comparison.page(compare_estimators.REPORT, study), encoding="utf-8")
    return path


FIRST, *OTHERS = FIGURES
every_report = pytest.mark.parametrize("which", [FIRST, *map(exhaustively, OTHERS)])


@pytest.mark.parametrize("width", WIDTHS)
@every_report
def test_every_figure_is_drawn_and_the_console_is_silent(
    browser: Browser, which: str, width: int, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(which), width)
    assert browser.complaints() == []
    drawn = "[...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.querySelector('.main-svg')).map(plot => plot.id)"
    assert browser.evaluate(drawn) == list(FIGURES[which])
    assert browser.evaluate("document.querySelectorAll('.figure').length") == len(FIGURES[which])
    # Something of the data in each: points, lines or bars, or one picture of a table.
    inked = (
        "[...document.querySelectorAll('.figure')].map(figure =>"
        "  figure.querySelectorAll('.point, .js-line').length + 9 * figure.querySelectorAll('.hm image').length)"
    )
    assert min(browser.evaluate(inked)) >= 5


@pytest.mark.parametrize("width", WIDTHS)
@every_report
def test_nothing_sticks_out_sideways(browser: Browser, which: str, width: int, request: pytest.FixtureRequest) -> None:
    browser.open(request.getfixturevalue(which), width)
    assert browser.evaluate("window.innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    beyond = (
        "[...document.querySelectorAll('section, h1, h2, p, .figure')].flatMap(box => {"
        "  const { left, right } = box.getBoundingClientRect(), inside = [...box.querySelectorAll('.main-svg text')];"
        "  const cut = inside.map(text => [text.getBoundingClientRect(), text.textContent])"
        "    .filter(([text]) => text.left < left - 1 || text.right > right + 1).map(([, words]) => words);"
        "  return right > document.documentElement.clientWidth ? [box.textContent.slice(0, 40), ...cut] : cut;"
        "})"
    )
    assert browser.evaluate(beyond) == []


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on many classes with long names that differ in the middle."""
    labels = np.arange(200) % 20
    features = np.random.default_rng(0).standard_normal((200, 2)) + labels[:, None]
    classes = tuple(f"Pseudotsuga menziesii var. glauca, stand {number:02d} of the north slope" for number in range(20))
    table = Table("forest_inventories_of_the_northern_slopes_final.csv", "species", False, features, labels, classes)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(compare(table, Settings(folds=2, repeats=1, epochs=1))), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", WIDTHS)
def test_names_of_many_classes_have_room(browser: Browser, long_names: Path, width: int) -> None:
    browser.open(long_names, width)
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    below = (
        "(() => {"
        "  const figure = document.getElementById('classes'), bottom = figure.getBoundingClientRect().bottom;"
        "  const ticks = [...figure.querySelectorAll('.xtick text')].map(text => text.getBoundingClientRect());"
        "  const apart = ticks.slice(1).map((tick, i) => tick.left - ticks[i].left);"
        "  return [ticks.length, Math.min(...apart), bottom - Math.max(...ticks.map(tick => tick.bottom))];"
        "})()"
    )
    count, apart, room = browser.evaluate(below)
    assert count >= 5
    assert apart >= 12  # pixels, the height of a line
    assert room >= 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("between", [" ", "_"])
def test_the_numbers_of_classes_with_long_names_are_seen(browser: Browser, long_names: Path, width: int, between: str) -> None:
    browser.open(long_names, width)
    table = (
        "document.querySelectorAll('#recall tbody th').forEach(name => {"
        f"  name.textContent = name.textContent.replace(/ /g, '{between}'); }});"
        "(() => { const table = document.getElementById('recall'), around = table.parentElement.getBoundingClientRect();"
        "  const cells = [...table.querySelectorAll('th, td')].map(cell => cell.getBoundingClientRect());"
        "  const [name] = table.querySelectorAll('tbody th');"
        "  return [Math.max(...cells.map(({ right }) => right)) - around.right, name.getBoundingClientRect().width]; })()"
    )
    beyond, name = browser.evaluate(table)
    assert beyond <= 0
    assert name >= 100


def test_figures_follow_the_width_of_the_window(browser: Browser, report: Path) -> None:
    columns = "document.getElementById('curves')._fullLayout.grid.columns"
    browser.open(report, WIDE)
    wide = browser.evaluate(columns)
    browser.call("Emulation.setDeviceMetricsOverride", width=NARROW, height=900, deviceScaleFactor=1, mobile=False)
    browser.evaluate("new Promise(done => setTimeout(() => done(true), 500))")
    assert browser.evaluate(columns) == 2 < wide
    assert browser.evaluate("document.documentElement.scrollWidth") <= NARROW
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("console.log('all is well')", None),
        ("console.error('a logged error')", "a logged error"),
        ("throw new Error('nobody caught this')", "nobody caught this"),
        ("Promise.reject(new Error('nor this'))", "nor this"),
        ("fetch('http://localhost:9/data.json').catch(() => 0)", "localhost:9"),
    ],
)
def test_the_check_of_the_console_sees_a_fault(browser: Browser, tmp_path: Path, fault: str, expected: str | None) -> None:
    faulty = tmp_path / "faulty.html"
    faulty.write_text(f"<!doctype html><title>faulty</title><script>{fault}</script>")
    browser.open(faulty, WIDE)
    if expected is None:
        assert browser.complaints() == []
    else:
        assert any(expected in complaint for complaint in browser.complaints())


# The table ------------------------------------------------------------------------------------------------------------------


SORTED = (
    "(column => {"
    "  const heading = document.querySelectorAll('#pairs thead th')[column];"
    "  heading.querySelector('button').click();"
    "  const cells = [...document.querySelectorAll('#pairs tbody tr')].map(row => row.children[column]);"
    "  const orders = [...document.querySelectorAll('#pairs thead th')].map(other => other.ariaSort);"
    "  return [heading.ariaSort, orders.filter(order => order !== 'none').length, cells.map(cell => cell.dataset.value)];"
    "})"
)


def test_a_heading_sorts_numbers_as_numbers_with_missing_ones_last(browser: Browser, report: Path) -> None:
    browser.open(report, WIDE)
    columns = browser.evaluate("document.querySelectorAll('th button').length")
    assert columns == browser.evaluate("document.querySelectorAll('#pairs thead th').length") > 5
    browser.evaluate(
        "[...document.querySelectorAll('#pairs tbody tr')].forEach((row, i) => { row.children[1].dataset.value = "
        "  [9, 10, -2, 'nan', 1e-5][i % 5]; })"
    )
    for column in range(columns):
        first = browser.evaluate(f"document.querySelectorAll('#pairs thead th')[{column}].dataset.first")
        if browser.evaluate(f"document.querySelectorAll('#pairs thead th')[{column}].ariaSort") == first:
            browser.evaluate(f"{SORTED}({column})")
        for order in (first, "ascending" if first == "descending" else "descending"):
            shown, marked, values = browser.evaluate(f"{SORTED}({column})")
            assert (shown, marked) == (order, 1)
            if column == 0:
                key = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in values]
                assert (key[0] < key[-1]) == (order == "ascending")
                assert set(values[:1] + values[-1:]) == {min(values), max(values)}
            else:
                numbers = [float(value) for value in values if value != "nan"]
                assert values[: len(numbers)] == [value for value in values if value != "nan"]
                assert numbers == sorted(numbers, reverse=order == "descending")


def test_the_best_comes_first_and_the_order_of_the_page_is_marked(browser: Browser, report: Path) -> None:
    browser.open(report, WIDE)
    headings = "[...document.querySelectorAll('#pairs thead th')].map(heading => [heading.innerText, heading.ariaSort])"
    marked = [(words.split(",")[0], order) for words, order in browser.evaluate(headings) if order != "none"]
    assert marked == [("accuracy", "descending")]
    for column, (words, _) in enumerate(browser.evaluate(headings)):
        if any(words.startswith(of) for of in ("log loss", "Brier", "calibration", "true class zero", "step")):
            shown, _, values = browser.evaluate(f"{SORTED}({column})")
            assert shown == "ascending"
            assert float(values[0]) == min(float(value) for value in values if value != "nan")


def test_the_time_of_what_takes_no_steps_is_missing(browser: Browser, report: Path) -> None:
    browser.open(report, WIDE)
    for _ in range(2):
        *_, values = browser.evaluate(f"{SORTED}(document.querySelectorAll('#pairs thead th').length - 1)")
        assert values[-1] == "nan"


def test_the_keyboard_reaches_and_sorts_by_a_heading(browser: Browser, report: Path) -> None:
    browser.open(report, NARROW)
    reached = []
    for _ in range(4):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(browser.evaluate("document.activeElement.closest('th') ? 'heading' : document.activeElement.className"))
    assert "scroll" in reached  # a table that is wider than the screen
    assert reached[-1] == "heading"
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert browser.evaluate("document.activeElement.closest('th').ariaSort") in ("ascending", "descending")


# Figures --------------------------------------------------------------------------------------------------------------------


# The boxes of what a selector finds in the figure of cost.
BOXES = (
    "selector => [...document.querySelectorAll('#cost ' + selector)].map(mark => {"
    "  const { left, right, top, bottom } = mark.getBoundingClientRect(); return [left, top, right, bottom]; })"
)


def overlaps(names: Sequence[Sequence[float]], points: Sequence[Sequence[float]]) -> list[tuple[Sequence[float], Sequence[float]]]:
    """The boxes of names that lie on a point or on another name, or that run into one in the same row."""
    apart = [(left - APART, top, right + APART, bottom) for left, top, right, bottom in names]
    return [
        (a, b)
        for i, a in enumerate(names)
        for b in (*apart[:i], *points)
        if all(a[k] + 1 < b[k + 2] and b[k] + 1 < a[k + 2] for k in (0, 1))
    ]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("which", ["report", "long_names"])
def test_names_on_the_front_lie_on_no_point_and_on_no_other_name(
    browser: Browser, which: str, width: int, request: pytest.FixtureRequest
) -> None:
    browser.open(request.getfixturevalue(which), width)
    names, points = browser.evaluate(f"['.annotation-text', '.point'].map({BOXES})")
    named = browser.evaluate("figures.cost.layout.meta.names.filter(({ text }) => text).length")
    assert len(names) == named > 0
    assert len(points) > named
    assert overlaps(names, points) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_names_have_room_wherever_the_points_are(browser: Browser, long_names: Path, width: int) -> None:
    """Points at random, most of them unnamed, as one crowd or in one column, and the boxes that their names get."""
    browser.open(long_names, width)
    texts = browser.evaluate("figures.cost.layout.meta.names.map(({ text }) => text).filter(text => text)")
    rng = np.random.default_rng(width)
    for _ in range(40):
        count, spread = int(rng.integers(2, 60)), rng.choice([0.0, 0.02, 0.3, 1.0], 2)
        points = 0.5 + spread * rng.uniform(-0.5, 0.5, (count, 2))
        names = [{"x": 10**x, "y": 10**y, "text": texts[i] if i < len(texts) else ""} for i, (x, y) in enumerate(points)]
        found = browser.evaluate(
            f"(names => {{ const {{ layout }} = figures.cost, {{ meta, margin, height, yaxis }} = layout, {{ row }} = meta;"
            "  const room = 10 + row * names.filter(({ text }) => text).length, share = room / (height - margin.t - margin.b);"
            "  const over = { ...layout, xaxis: { ...layout.xaxis, range: [0, 1] },"
            "    yaxis: { ...yaxis, range: [-share / (1 - share), 1] }, meta: { names, row } };"
            "  const div = document.getElementById('cost'), line = div.data.length - 1;"
            "  figures.cost = { data: [{ ...div.data[line], x: names.map(({ x }) => x), y: names.map(({ y }) => y) }],"
            "    layout: over };"
            f"  return draw(div).then(() => ['.annotation-text', '.point'].map({BOXES})); }})"
            f"({json.dumps(names)})"
        )
        assert overlaps(*found) == []
        assert [len(boxes) for boxes in found] == [min(count, len(texts)), count]


# Of each figure of differences, the boxes of its ticks, of its axis title and of the numbers that are written in it.
DIFFERENCES = (
    "['.xtick text', '.g-xtitle text', '.annotation .bg'].map(selector =>"
    "  [...document.querySelectorAll('#gain ' + selector)].map(mark => {"
    "    const { left, right, top, bottom } = mark.getBoundingClientRect(); return [left, top, right, bottom]; }))"
)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_axis_of_differences_has_room_for_its_ticks(browser: Browser, report: Path, width: int) -> None:
    """Also where they are long and on both sides of 0, as of differences in log loss."""
    browser.open(report, width)
    for low, high in ((-0.034, 0.014), (-45.0, 21.0), (-0.0012, 0.0003)):
        browser.evaluate(
            f"(() => {{ const {{ data, layout }} = figures.gain; layout.xaxis.range = [{low}, {high}];"
            "  return draw(document.getElementById('gain')).then(() => true); })()"
        )
        ticks, titles, _ = browser.evaluate(DIFFERENCES)
        assert len(ticks) >= 2
        assert max(bottom for *_, bottom in ticks) <= min(top for _, top, *_ in titles)


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_in_the_figure_of_differences_hide_the_lines_below_them(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width)
    *_, numbers = browser.evaluate(DIFFERENCES)
    assert numbers
    assert overlaps(numbers, []) == []
    fills = "[...document.querySelectorAll('#gain .annotation .bg')].map(box => getComputedStyle(box).fill)"
    card = "getComputedStyle(document.querySelector('section')).backgroundColor"
    assert set(browser.evaluate(fills)) == {browser.evaluate(card)}
    opaque = "[...document.querySelectorAll('#gain .annotation .bg')].every(box => getComputedStyle(box).fillOpacity === '1')"
    assert browser.evaluate(opaque)


CROWDS = {
    "two beside each other": [(0.36, 0.21), (0.37, 0.215), (0.36, 0.20)],
    "a column at the left": [(0.35, 0.05), (0.352, 0.048), (0.351, 0.046), (0.35, 0.045)],
    "a line between": [(0.35, 0.3), (0.36, 0.1), (0.6, 0.05)],
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("crowd", CROWDS)
def test_no_leader_and_no_line_runs_through_a_name(browser: Browser, report: Path, width: int, crowd: str) -> None:
    """Of names on a few points that are close to each other, with the dotted line through those of a front."""
    browser.open(report, width)
    words = ["entmax-1.25", "softmax · ArcFace", "sparsemax", "entmax-1.5"]
    names = [{"x": x, "y": y, "text": text} for (x, y), text in zip(CROWDS[crowd], words, strict=False)]
    others = [{"x": x, "y": y, "text": ""} for x, y in ((0.6, 0.2), (1.1, 0.3), (0.7, 0.08))]
    found = browser.evaluate(
        "(([names, line]) => { const { layout } = figures.cost, div = document.getElementById('cost');"
        "  const axis = (low, high) => ({ range: [Math.log10(low), Math.log10(high)] });"
        "  const { xaxis, yaxis, meta, margin } = layout, room = 270 + meta.row * names.filter(({ text }) => text).length;"
        "  const over = { ...layout, height: margin.t + room + margin.b, meta: { ...meta, names, line },"
        "    xaxis: { ...xaxis, ...axis(0.22, 1.8) }, yaxis: { ...yaxis, ...axis(0.01, 0.4) } };"
        "  const dots = { ...div.data.at(-1), x: names.map(({ x }) => x), y: names.map(({ y }) => y) };"
        "  figures.cost = { data: [{ ...div.data[0], x: line.map(({ x }) => x), y: line.map(({ y }) => y) }, dots], layout: over };"
        f"  return draw(div).then(() => ['.annotation-text', '.annotation-arrow-g path', '.js-line'].map({BOXES})); }})"
        f"({json.dumps([names + others, names])})"
    )
    texts, leaders, _ = found
    assert len(texts) == len(names)
    assert len(leaders) >= len(names)
    through = [
        (text, leader)
        for text in texts
        for leader in leaders
        if all(leader[k] < text[k + 2] - 1 and text[k] + 1 < leader[k + 2] for k in (0, 1))
    ]
    assert through == []


@pytest.mark.parametrize("width", WIDTHS)
def test_an_option_is_on_one_line(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width)
    lines = browser.evaluate("[...document.querySelectorAll('.option')].map(option => option.getClientRects().length)")
    assert len(lines) >= OPTIONS
    assert set(lines) == {1}


def test_every_figure_has_a_name_and_a_description(browser: Browser, report: Path) -> None:
    browser.open(report, WIDE)
    described = (
        "[...document.querySelectorAll('.figure')].map(figure => [figure.getAttribute('role'),"
        "  ...['labelledby', 'describedby'].map(by => document.getElementById(figure.getAttribute('aria-' + by))"
        "    ?.textContent.length ?? 0)])"
    )
    found = browser.evaluate(described)
    assert len(found) == len(FIGURES["report"])
    assert all(role == "img" and name > 5 and words > 40 for role, name, words in found)


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of red, green and blue up to 255, as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out_in_both_themes(browser: Browser, report: Path, theme: str) -> None:
    other = {"light": "dark", "dark": "light"}[theme]
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": other}])
    browser.open(report, WIDE)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])  # figures follow
    browser.evaluate("new Promise(done => setTimeout(() => done(true), 300))")
    pairs_of_colours = (
        "(() => { const numbers = colour => colour.match(/[0-9.]+/g).map(Number);"
        "  const behind = box => { for (; box; box = box.parentElement) {"
        "    const colour = numbers(getComputedStyle(box).backgroundColor); if (colour.length < 4 || colour[3]) return colour; } };"
        "  const texts = [...document.querySelectorAll('h1, h2, p, dt, dd, th, td, li, pre, .main-svg text')]"
        "    .filter(text => text.textContent.trim());"
        "  return texts.map(text => { const style = getComputedStyle(text);"
        "    return [numbers(text.tagName === 'text' ? style.fill : style.color), behind(text),"
        "      text.textContent.slice(0, 30)]; }); })()"
    )
    found = browser.evaluate(pairs_of_colours)
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert len(found) > 200
    assert (luminance(found[0][1]) < 0.1) == (theme == "dark")
    faint = {
        (words, round(ratio, 1))
        for text, behind, words in found
        for low, high in [sorted((luminance(text), luminance(behind)))]
        if (ratio := (high + 0.05) / (low + 0.05)) < 4.5
    }
    assert faint == set()
