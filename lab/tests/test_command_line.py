"""The command line: help at once, one line for what went wrong, and output that a pipe can take."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import pty
import re
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from rich.console import Console

import softmaxima
from conftest import Run, exhaustively
from softmaxima.base import writing
from softmaxima.base.numbers import InputError
from softmaxima.kernels import interface
from softmaxima_lab.bench.machine import machine
from softmaxima_lab.commands import main
from softmaxima_lab.commands.compare_table import show
from softmaxima_lab.commands.terminal import about
from softmaxima_lab.compare.record import written as as_text

# Python as a shell starts it, with Ctrl-C heeded even where the tests run in the background.
SOFTMAXIMA = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    "from softmaxima_lab.commands import main; main()",
)
FAST = ("--folds=2", "--epochs=1", "--maps=softmax,sparsemax")


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "flowers.csv"
    rows = [f"{i % 2}.{i:02},{'red' if i % 3 else 'blue'},{'ab'[i % 2]}" for i in range(12)]
    path.write_text("\n".join(["length,colour,species", *rows]))
    return str(path)


def test_the_package_runs_as_a_module() -> None:
    ended = subprocess.run([sys.executable, "-m", "softmaxima_lab", "--help"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("Usage: softmaxima")


def test_version_says_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMAXIMA_ISA", "v3")
    monkeypatch.setenv("COLUMNS", "40")
    with contextlib.suppress(SystemExit):
        main(["--version"])
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["place"] == str(Path(softmaxima.__file__).parent)
    assert "SOFTMAXIMA_ISA=v3" in lines["asked"]
    assert lines["CPU"].startswith(machine()["processor"])
    assert lines["softmaxima"] == softmaxima.__version__
    assert lines["python"].startswith(platform.python_version())
    assert f"torch {torch.__version__}" in lines["packages"]
    kernels = f"native, {interface.instruction_set()}" if interface.AVAILABLE else "none"
    assert f"kernels: {kernels}" in lines["CPU"]
    assert f"threads: {torch.get_num_threads()}" in lines["CPU"]
    assert ("none" in lines["GPU"]) == (not torch.cuda.is_available())


@pytest.mark.parametrize("arguments", [("--help",), ("compare", "--help"), ("lse", "--help")])
def test_help_answers_without_torch(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from softmaxima_lab.commands import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print('heavy:', {'torch', 'sklearn', 'polars', 'plotly', 'numpy'} & sys.modules.keys())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert ended.stdout.rstrip().endswith("heavy: set()")
    assert "Usage: softmaxima" in ended.stdout


def test_every_option_has_a_help_text(run: Run) -> None:
    _, help, _ = run("compare", "--help")
    for option in ("TABLE", "--target", "--maps", "--model", "--folds", "--epochs", "--seed", "--out", "--quick"):
        (line,) = [line for line in help.splitlines() if line.strip("│ ").startswith(option)]
        assert len(line.strip("│ ").split()) > 2, line


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("nonsense",), "there is no command 'nonsense'; choose among: compare, "),
        (("calibate",), "bench, lse, docs; did you mean 'calibrate'?; see softmaxima --help"),
        (("compare", "--nonsense"), "--nonsense"),
        (("compare", "--folds", "many"), "--folds"),
        (("compare", "--folds"), "--folds"),
        (("compare", "--folds", "1"), "--folds must be at least 2, got 1"),
        (("compare", "--epochs", "0"), "--epochs must be at least 1, got 0"),
        (("compare", "--seed", "-1"), "--seed must be at least 0, got -1"),
        (("compare", "--model", "forest"), "forest"),
        (("compare", "--maps", "hardmax"), "'hardmax'; choose among: softmax"),
        (("compare", "--target", "age"), "'age'"),
        (("compare", "--folds", "2.5"), "--folds: must be an int, got 2.5; see softmaxima compare --help"),
        (("bench", "--threads", "1.9"), "--threads: must be an int, got 1.9; see softmaxima bench --help"),
        (("compare", "--targt", "a", "one.csv"), "--targt. Did you mean --target?; see softmaxima compare --help"),
        (("compare", "one.csv", "two.csv"), "compare takes TABLE alone, got 'two.csv' besides; see softmaxima compare --help"),
        (("predict", "one.pt", "two.csv", "three.csv"), "predict takes MODEL and TABLE alone, got 'three.csv' besides"),
        (("bench", "one.npy"), "CASES: there is no group, map, loss or sum 'one.npy'; choose among: "),
        (("lse", ""), "a path is empty; name a file"),
    ],
)
def test_wrong_use_exits_2_with_one_line(arguments: tuple[str, ...], part: str, run: Run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("softmaxima: ")
    assert part in err
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_refused_before_training(run: Run, table: str) -> None:
    code, out, err = run("compare", table, f"--out={table}", *FAST)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--out: cannot write to" in err
    assert "choose another directory" in err


class Unwritable(io.RawIOBase):
    """Takes so many writes, and then no more."""

    def __init__(self, writes: int, error: OSError) -> None:
        self.writes, self.error = writes, error

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.writes -= 1
        if self.writes < 0:
            raise self.error
        return len(data)


COMMANDS = {  # what they say before their work is done, and the files that are written
    "--help": (0, ()),
    "--version": (0, ()),
    "lse x.txt": (0, ()),
    "lse x.txt --json": (0, ()),
    f"compare flowers.csv --out=out {' '.join(FAST)}": (3, ("out/report.html", "out/results.csv", "out/results.json")),
    "bench softmax --shapes=4x8 --threads=1 --peers=torch --quick --json=b.json": (0, ("b.json",)),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_cannot_be_written_is_one_line_and_loses_no_file(
    command: str, run: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("1 2 3")
    writes, files = COMMANDS[command]
    full, unread = OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")
    for stdout, ended, told in (
        (io.TextIOWrapper(Unwritable(writes, full)), 1, "cannot be written (No space left on device)"),
        (io.TextIOWrapper(Unwritable(writes, unread)), 141, ""),
        (None, 1, "cannot be written (it is closed)"),
    ):
        if stdout is None and command.startswith("compare"):
            continue  # which says something before its work
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            code, _, err = run(*command.split())
        assert (code, err.count("\n")) == (ended, int(ended == 1))
        assert told in err
        for file in files:
            assert (tmp_path / file).stat().st_size > 0
            (tmp_path / file).unlink()


@pytest.mark.parametrize("command", [command for command, (_, files) in COMMANDS.items() if files])
def test_a_disk_that_is_full_at_the_end_leaves_the_table(
    command: str, run: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writing.os, "fsync", full)
    code, out, err = run(*command.split())
    assert (code, err.count("\n")) == (1, 1)
    assert "(No space left on device); what was measured is in the table alone" in err
    assert "softmax" in out
    assert not [path for path in tmp_path.rglob("*") if path.name not in ("out", "flowers.csv")]


@pytest.mark.parametrize("room", range(6))
def test_a_disk_that_is_full_after_some_folds_names_what_is_kept(
    room: int, run: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(range(room))

    def fsync(_: int) -> None:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")

    command = ["compare", table, f"--out={tmp_path / 'out'}", *FAST]
    with monkeypatch.context() as patch:
        patch.setattr(writing.os, "fsync", fsync)
        code, _, err = run(*command)
    assert (code, err.count("\n")) == (1, 1)
    path = tmp_path / "out" / "results.json"
    if not room:
        assert "what was measured is in the table alone" in err
        assert not path.exists()
        return
    then = "goes on from there" if room < 4 else "writes the rest"
    assert f"{path} has {min(room, 4)} of 4 folds, and --resume {then} where there is room\n" in err
    assert len(json.loads(path.read_text())["folds"]) == min(room, 4)
    assert run(*command, "--resume")[0] == 0
    assert (tmp_path / "out" / "report.html").exists()


SIGNALS = [
    (signal.SIGINT, "interrupted", 130),
    (signal.SIGTERM, "terminated", 143),
    (signal.SIGHUP, "its terminal was closed", 129),
]


@pytest.mark.parametrize(("number", "said", "status"), SIGNALS)
@pytest.mark.parametrize("module", ["cyclopts", "softmaxima_lab.commands.bench", "numpy", "torch", "sklearn"])
def test_a_signal_while_a_module_is_loaded_ends_with_one_line_and_its_status(
    module: str, number: int, said: str, status: int
) -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # which nohup ignores
        "sys.meta_path.insert(0, Interrupt())\n"
        "from softmaxima_lab.__main__ import main\n"
        "sys.argv[1:] = ['compare']\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", f"softmaxima: {said}\n")


@pytest.mark.parametrize(("number", "said", "status"), SIGNALS)
@pytest.mark.parametrize("then", ["goes on", "blames the file", "ends"])
def test_a_signal_that_something_swallows_ends_the_command_all_the_same(
    then: str, number: int, said: str, status: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swallowing(*_: object, **__: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        if then == "blames the file":
            raise InputError("x.txt cannot be read; check that it is whole")
        if then == "goes on":
            time.sleep(60)
        raise SystemExit

    (tmp_path / "x.txt").touch()
    monkeypatch.setattr("softmaxima.io.files.file_logsumexp", swallowing)
    before = signal.getsignal(number), signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)  # also where the tests run in the background
    assert run("lse", str(tmp_path / "x.txt")) == (status, "", f"softmaxima: {said}\n")
    monkeypatch.undo()
    assert (signal.getsignal(number), signal.getsignal(signal.SIGALRM)) == before


def test_the_command_that_is_installed_is_the_one_that_heeds_ctrl_c_from_its_first_import_on() -> None:
    text = Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["project"]["scripts"] == {"softmaxima": "softmaxima_lab.__main__:main"}


def test_the_output_tells_the_facts_the_table_the_choice_and_the_files(run: Run, table: str, tmp_path: Path) -> None:
    code, out, err = run("compare", table, f"--out={tmp_path / 'out'}", *FAST)
    assert (code, err) == (0, "")
    assert "12 rows, 3 features, 2 classes; target 'species' (the last column; --target names another)" in out
    assert re.search("(about \\d+|less than 1) s: 4 folds of less than 1 s", out)
    assert "Too little to tell. No pair is shown to have a better accuracy than class frequencies" in " ".join(out.split())
    assert "exact zero counts 13.8 nats" in " ".join(out.split())
    for name in ("report.html", "results.json", "results.csv"):
        assert (tmp_path / "out" / name).stat().st_size > 0
        assert str(tmp_path / "out" / name) in out


def test_the_same_seed_prints_the_same_table_up_to_the_time(run: Run, table: str, tmp_path: Path) -> None:
    def lines(out: str) -> list[list[str]]:
        _, out, _ = run("compare", table, f"--out={tmp_path / out}", *FAST)
        return [line.split()[:-1] for line in out.splitlines() if "±" in line]

    first = lines("one")
    assert len(first) >= 2
    assert lines("other") == first


def test_quick_says_what_it_leaves_out(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("compare", "--quick", "--epochs=1", "--maps=softmax", f"--out={tmp_path}")
    assert code == 0
    assert "digits: 1797 rows" in out
    assert re.search(r"--quick: a sample of (99\d|1000) rows, 5 folds, 1 epochs", out)


@pytest.mark.parametrize("metric", ["accuracy", "brier", "macro-f1"])
@pytest.mark.parametrize("width", [45, 60, 80, 100, 120, 140])
def test_the_table_fits_the_terminal(width: int, metric: str, tmp_path: Path) -> None:
    from softmaxima.integrations.pairs import choose, pairs
    from softmaxima_lab.compare.table import Settings, compare
    from softmaxima_lab.pages.compare_table import columns
    from softmaxima_lab.tables.tables import read_table

    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    some = choose(pairs(10), ["softmax", "top-p softmax", "sparsemax"])
    comparison = compare(read_table(), Settings(folds=2, epochs=1, rows=100, metric=metric), some)
    show(comparison, console)
    console.file.close()
    lines = console.export_text().splitlines()
    rows = [line for line in lines if re.search(r"[−+][\d.]+ ± [\d.]+", line)]
    assert len(rows) == len(comparison.results) - 1  # a row each, but for softmax: no cell is wrapped
    assert all(any(line.startswith(result.name) for line in lines) for result in comparison.results)
    headings = " ".join(lines[: lines.index(rows[0])])
    offered = columns(comparison)
    shown = [column for column in offered if column.short.split()[0] in headings]
    assert any(column.orders for column in shown)
    assert (len(shown) < len(offered)) == any(line.startswith("Left out, for a terminal of") for line in lines)
    assert len(shown) == len(offered) or width <= 100
    assert [column for column in offered if not column.spare] == [column for column in shown if not column.spare]
    code = [line for line in lines if line.startswith("    ")]
    assert all(len(line) <= width for line in lines if line not in code)


def test_a_terminal_sees_progress_and_a_pipe_does_not(table: str, tmp_path: Path) -> None:
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-c", *SOFTMAXIMA, "compare", table, f"--out={tmp_path / 'out'}", *FAST]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env=environment, check=True)
    os.close(stderr)
    seen = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "of 4" in seen  # which folds are seen depends on their speed
    assert b"\x1b" not in ended.stdout
    assert b"\r" not in ended.stdout
    assert b"fold 2 of" not in ended.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["lse", "absent.npy"],
        ["compare", "absent.csv"],
        ["lse", "-", "--temperature", "0"],
        ["lse", "--unknown"],
        ["lse", "-", "besides"],
        ["lse", "-", "--estimate", "0"],
        ["lse", "-", "--estimate", "0.1", "--confidence", "95"],
        ["bench", "--unknown"],
        ["unknown"],
        ["--help"],
        ["compare", "--help"],
    ],
)
def test_what_is_plainly_wrong_is_told_before_anything_large_is_loaded(arguments: list[str]):
    code = "import sys; from softmaxima_lab.commands import main; main(sys.argv[1:])"
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert told.returncode == (0 if "--help" in arguments else 2)
    assert not re.search(r"\| +(torch|numpy)$", told.stderr, re.MULTILINE)


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_on_the_command_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(path: Path, *_: object, **__: object) -> NoReturn:
        warnings.warn("softmaxima runs without something", stacklevel=1)
        raise SystemExit(0)

    (tmp_path / "x.txt").touch()
    monkeypatch.setattr("softmaxima.io.files.file_logsumexp", warned)
    assert run("lse", str(tmp_path / "x.txt")) == (0, "", "softmaxima: runs without something\n")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("command", "text", "told"),
    [
        ("lse", "`zero_point` must be a number, as `scale` is", "--zero-point must be a number, as --scale is"),
        ("lse", "the least populated class in `y` has 1 member", "the least populated class in `y` has 1 member"),
        ("lse", "`maps` and `n_splits` are no options here", "`maps` and `n_splits` are no options here"),
        ("lse", "`file` is given by its place", "`file` is given by its place"),
        ("bench", "`shapes` is one here", "--shapes is one here"),
    ],
)
def test_a_name_in_backticks_is_an_option_only_where_the_command_has_it(
    command: str, text: str, told: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In errors and in warnings, also those of other packages."""

    def wrong(*_: object, **__: object) -> NoReturn:
        warnings.warn(text, stacklevel=1)
        raise InputError(text)

    (tmp_path / "x.txt").touch()
    monkeypatch.setattr("softmaxima.io.files.file_logsumexp", wrong)
    monkeypatch.setattr("softmaxima_lab.bench.run.Settings", wrong)
    code, _, err = run(*{"lse": ("lse", str(tmp_path / "x.txt")), "bench": ("bench",)}[command])
    assert (code, err) == (2, 2 * f"softmaxima: {told}\n")


def test_each_fold_is_written_before_the_next_is_trained(
    run: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what ends at once, as by kill -9, loses the fold under way alone."""
    from softmaxima_lab.compare import table as compare

    trained_folds = compare.trained_folds

    def watched(*arguments: Any) -> Iterator[dict]:
        for done, fold in enumerate(trained_folds(*arguments)):
            path = tmp_path / "out" / "results.json"
            assert (len(json.loads(path.read_text())["folds"]) if done else path.exists()) == done
            yield fold

    monkeypatch.setattr(compare, "trained_folds", watched)
    assert run("compare", table, f"--out={tmp_path / 'out'}", *FAST)[0] == 0


@pytest.mark.parametrize(
    ("number", "code"), [exhaustively(signal.SIGINT, 130), exhaustively(signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_what_is_done_when_compare_is_interrupted_is_kept_and_gone_on_with(
    number: int, code: int, table: str, tmp_path: Path, run: Run
) -> None:
    tmp_path = tmp_path / "out"
    options = ["compare", table, "--maps=softmax,sparsemax", "--epochs=200", f"--out={tmp_path}"]
    process = subprocess.Popen(
        [sys.executable, "-c", *SOFTMAXIMA, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "results.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    done = len(json.loads((tmp_path / "results.json").read_text())["folds"])
    assert 0 < done < 10
    if number != signal.SIGKILL:
        assert f"interrupted after {done} of 10 folds; --resume goes on from there" in out
        assert "Partial" in (tmp_path / "report.html").read_text()
    code, _, err = run(*options)
    assert (code, "go on with --resume" in err) == (2, True)
    code, out, _ = run(*options, "--resume")
    assert (code, len(json.loads((tmp_path / "results.json").read_text())["folds"])) == (0, 10)
    assert f"{done} of 10 done before" in out


@pytest.mark.parametrize("command", ["compare table", "compare attention", "compare heads", "compare estimators"])
def test_what_a_directory_holds_is_not_overwritten(command: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for content, words in (
        (
            as_text({"experiment": command, "partial": True}),
            f"{command} that was interrupted; go on with --resume, or choose",
        ),
        (as_text({"experiment": command, "partial": False}), f"{command} that is done; show it with --resume, or choose"),
        (as_text({"experiment": "other", "partial": False}), "softmaxima other that is done; choose another --out"),
        (as_text({"experiment": "calibrate"}), "softmaxima calibrate that is done; choose another --out"),
        ("[]", "holds a results.json of something else; choose another --out"),
        ("[" * 200_000, "holds a results.json of something else; choose another --out"),
    ):
        path.write_text(content)
        code, out, err = run(*command.split(), f"--out={tmp_path}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err
        assert [file.read_text() for file in tmp_path.iterdir()] == [content]


def test_what_goes_on_by_another_metric_names_the_command_that_makes_the_same(
    run: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(*options: str) -> str:
        command = ["compare", table, f"--out={tmp_path / 'out'}", *FAST, *options]
        monkeypatch.setattr(sys, "argv", ["softmaxima", *command])
        assert run(*command)[0] == 0
        return json.loads((tmp_path / "out" / "results.json").read_text())["command"]

    first = given()
    assert given("--metric=brier", "--resume") == f"{first} --metric=brier"


@pytest.mark.skipif(sys.platform == "win32", reason="which has no such locks")
@pytest.mark.parametrize("comparison", [(), ("attention",), ("heads",), ("estimators",)], ids=str)
def test_two_commands_do_not_write_to_one_directory(comparison: tuple[str, ...], run: Run, table: Path, tmp_path: Path) -> None:
    import fcntl

    (out := tmp_path / "out").mkdir()
    other = os.open(out, os.O_RDONLY)  # as another process has it
    fcntl.flock(other, fcntl.LOCK_EX)
    given = comparison or (table, *FAST)
    code, _, said = run("compare", *given, f"--out={out}")
    os.close(other)
    assert (code, f"--out: another softmaxima command is writing to {out}; wait for its end, or choose" in said) == (2, True)
    assert not list(out.iterdir())
    if not comparison:
        assert [run("compare", *given, f"--out={out}", *more)[0] for more in ((), ("--resume",))] == [0, 0]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.3, "less than 1 s"), (1.4, "about 1 s"), (150, "about 2 min"), (9000, "about 2.5 h")]
)
def test_a_duration_is_told_in_the_unit_that_people_would_say(seconds: float, words: str) -> None:
    assert about(seconds) == words


@pytest.mark.parametrize(("number", "said", "status"), [SIGNALS[0], exhaustively(*SIGNALS[1]), SIGNALS[2]])
def test_a_signal_before_a_fold_is_done_ends_with_one_line_that_says_which(
    number: int, said: str, status: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", *SOFTMAXIMA, "compare", "--epochs=100000", f"--out={tmp_path}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("digits")
    assert process.stdout.readline().startswith("about ")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, f"softmaxima: {said} before a fold was done; nothing is kept\n")
    assert not list(tmp_path.iterdir())
