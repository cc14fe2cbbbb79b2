"""logsumexp of files: every format gives one sum, memory stays small, an interruption loses nothing, errors are one line."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import math
import os
import pty
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import softmaxima as sm
from score_files import FORMATS, gzipped, named, npy_bytes, of_all, scores, text_bytes, write_arrow_stream, write_parquet, zstandard
from softmaxima.base import writing
from softmaxima.base.numbers import InputError
from softmaxima.io import files
from softmaxima.io.checkpoint import Checkpoint, Fingerprint
from softmaxima.io.formats import opening, plain, source
from softmaxima.io.formats.opening import open_scores

# Python as a shell starts it, with Ctrl-C heeded even where the tests run in the background.
SOFTMAXIMA = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from softmaxima_lab.commands import main; main()"
)
BILLION = 10**9


@pytest.fixture
def small_pieces(monkeypatch) -> None:
    """Blocks of a few scores, so that small files have many."""
    monkeypatch.setattr(files, "WINDOW", 3)
    monkeypatch.setattr(source, "CACHED", 400)
    monkeypatch.setattr(source, "PIECE", 100)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_sum(kind: str, softmaxima_lse: Callable, tmp_path: Path):
    suffix, options, write = FORMATS[kind]
    x, path = scores(50, 61), tmp_path / f"file{suffix}"
    write(path, x)
    code, out, err = softmaxima_lse(str(path), *options, "--json", "--effective-size")
    assert (code, err) == (0, "")
    found = json.loads(out)
    p = np.exp(x.astype(np.float64) - of_all(x))
    assert found["logsumexp"] == pytest.approx(of_all(x), abs=1e-7)
    assert (found["scores"], found["maximum"], found["maxima"]) == (x.size, float(x.max()), 1)
    assert found["effective_size"] == pytest.approx(1 / float((p**2).sum()), rel=1e-6)


def test_files_of_every_format_are_summed_without_torch(tmp_path: Path):
    x, commands = scores(50, 61), []
    for kind, (suffix, options, write) in FORMATS.items():
        path = tmp_path / f"{kind}{suffix}"
        write(path, x)
        commands.append((str(path), *options, "--json", "--effective-size"))
    for dtype in ("int8", "uint8", "int64", "float16"):
        (path := tmp_path / dtype).write_bytes(x.astype(dtype).tobytes())
        commands.append((str(path), f"--dtype={dtype}", f"--checkpoint={tmp_path / 'checkpoint'}"))
    code = """
import json, sys
import softmaxima as sm
from softmaxima_lab.commands import main
commands = json.loads(sys.argv[1])
for arguments in (*commands, ["-"]):
    try:
        main(["lse", *arguments])
    except SystemExit as end:
        assert not end.code, arguments
    assert "torch" not in sys.modules, arguments
part = sm.file_logsumexp(commands[0][0])
assert (sm.LogSumExpState().merge(part).n, "torch" in sys.modules) == (part.n, False)
"""
    ended = subprocess.run([sys.executable, "-c", code, json.dumps(commands)], input="1 2 3", capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    sums = [json.loads(line)["logsumexp"] for line in ended.stdout.splitlines()[: len(FORMATS)]]
    assert sums == pytest.approx([of_all(x)] * len(FORMATS), abs=1e-7)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_can_be_read_from_any_score_on(kind: str, tmp_path: Path):
    suffix, options, write = FORMATS[kind]
    x, path = scores(50, 61), tmp_path / f"file{suffix}"
    write(path, x)
    source = open_scores(path, **named(options))
    whole = np.concatenate([np.array(block) for block in source.blocks(0)])
    np.testing.assert_array_equal(np.sort(whole), np.sort(x.ravel()))
    for start in (1, 69, 70, 71, 100, 1024, 3049, 3050):
        rest = [np.array(block) for block in source.blocks(start)]
        np.testing.assert_array_equal(np.concatenate([np.zeros(0), *rest]), whole[start:])


@pytest.mark.usefixtures("small_pieces")
def test_the_sum_does_not_depend_on_the_number_of_threads(tmp_path: Path):
    np.save(tmp_path / "x.npy", scores(50_001))
    before, values = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            values.append(sm.file_logsumexp(tmp_path / "x.npy").value)
    finally:
        torch.set_num_threads(before)
    assert values == [values[0]] * 3


@pytest.mark.parametrize("name", plain.RAW_DTYPES)
def test_raw_memory_of_every_dtype(name: str, tmp_path: Path):
    x = torch.arange(0, 90).to(getattr(torch, name))
    path = tmp_path / "raw"
    path.write_bytes(x.view(torch.uint8).numpy().tobytes())
    state = sm.file_logsumexp(path, dtype=name)
    assert state.n == 90
    assert float(state.value) == pytest.approx(float(torch.logsumexp(x.double(), 0)), rel=1e-15)


def test_two_bytes_without_a_kind_are_bfloat16(tmp_path: Path):
    x = torch.from_numpy(scores(1000)).bfloat16()
    np.save(tmp_path / "x.npy", x.view(torch.int16).numpy().view("V2"))
    state = sm.file_logsumexp(tmp_path / "x.npy")
    assert (state.n, float(state.value)) == (1000, pytest.approx(float(x.double().logsumexp(0)), rel=1e-14))
    np.save(tmp_path / "x.npy", np.zeros(3, "V3"))
    with pytest.raises(InputError, match=r"holds \|V3; .*two bytes without a kind are read as bfloat16"):
        sm.file_logsumexp(tmp_path / "x.npy")


def test_a_dataset_of_nothing_sums_to_nothing(tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["null"], file["none"], file["one"] = h5py.Empty("f4"), np.zeros((0, 3)), 3.5
    sums = {name: sm.file_logsumexp(tmp_path / "x.h5", column=name) for name in ("null", "none", "one")}
    assert {name: (state.n, float(state.value)) for name, state in sums.items()} == {
        "null": (0, -math.inf),
        "none": (0, -math.inf),
        "one": (1, 3.5),
    }


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "int64", "uint16", "int8", "bool"])
@pytest.mark.parametrize("n", [0, 1, 2, 65_537])
def test_arrays_of_every_dtype_and_length(n: int, name: str, tmp_path: Path):
    x = (np.arange(n) % 1000).astype(name)
    np.save(tmp_path / "x.npy", x)
    state = sm.file_logsumexp(tmp_path / "x.npy", temperature=3.0)
    expected = torch.logsumexp(torch.from_numpy(x.astype(np.float64)) / 3, 0)
    assert float(state.value) == pytest.approx(float(expected), rel=1e-7 if name in ("float32", "float16") else 1e-14)
    assert state.n == n


def test_hard_scores_are_told_as_they_are(softmaxima_lse: Callable, tmp_path: Path):
    path = tmp_path / "x.npy"
    for x, value in (([-math.inf] * 2, "-inf"), ([math.inf, 0], "inf"), ([math.nan, 0], "nan"), ([], "-inf")):
        np.save(path, np.array(x))
        assert json.loads(softmaxima_lse(str(path), "--json")[1])["logsumexp"] == value
        assert f"logsumexp       {value} nats" in (out := softmaxima_lse(str(path))[1])
        assert ("of which at least one is NaN" in out) == (value == "nan")
    np.save(path, np.array([0.0, -40.0]))
    assert json.loads(softmaxima_lse(str(path), "--json")[1])["logsumexp"] == 4.248354255291589e-18
    np.save(path, np.array([2.0, 2.0]))
    code, out, _ = softmaxima_lse(str(path), "--temperature=2", "--effective-size")
    assert code == 0
    assert out.splitlines() == [
        f"{path}: 2 scores",
        "logsumexp       1.6931471805599454 nats of x/2.0",
        "maximum         1.0 of x/2.0, 2 of them",
        "effective size  2.0",
    ]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("content", "options"),
    [
        (lambda x: npy_bytes(x), ()),
        (lambda x: x.tobytes(), ("--dtype=float64",)),
        (text_bytes, ()),
        (lambda x: ",\n".join(map(repr, x.tolist())).encode() + b"\n", ()),
    ],
)
def test_standard_input_is_npy_raw_or_text(content: Callable, options: tuple[str, ...], softmaxima_lse: Callable, monkeypatch):
    x = scores(3000, dtype=np.float64)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content(x))))
    code, out, err = softmaxima_lse("-", "--json", *options)
    assert (code, err) == (0, "")
    assert json.loads(out)["logsumexp"] == pytest.approx(of_all(x), rel=1e-14)
    assert json.loads(out)["scores"] == 3000


@pytest.mark.parametrize("name", ["pipe", "pipe.npy", "pipe.csv", "pipe.gz"])
def test_a_named_pipe_is_read_as_standard_input_is(name: str, softmaxima_lse: Callable, tmp_path: Path):
    pipe, x = tmp_path / name, scores(3000, dtype=np.float64)
    os.mkfifo(pipe)
    for content, options in ((npy_bytes(x), ()), (x.tobytes(), ("--dtype=float64",)), (text_bytes(x), ())):
        threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True).start()
        code, out, err = softmaxima_lse(str(pipe), "--json", *options)
        assert (code, err) == (0, "")
        assert json.loads(out)["logsumexp"] == pytest.approx(of_all(x), rel=1e-14)
    threading.Thread(target=pipe.write_bytes, args=(b"one two",), daemon=True).start()
    assert f"{name}: 'one' in line 1 is no number" in softmaxima_lse(str(pipe))[2]
    code, _, err = softmaxima_lse(str(pipe), f"--checkpoint={tmp_path / 'here'}")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{pipe} cannot be read again from where it stopped; give a file" in err


def test_what_the_system_does_not_let_us_read_is_told(softmaxima_lse: Callable, tmp_path: Path, monkeypatch):
    place, options = tmp_path / "here", {"raw": ("--dtype=float32",)}
    for kind in (".npy", ".npz", ".txt", ".gz", ".npy.zst", ".csv", ".parquet", ".arrow", ".feather", ".h5", "raw"):
        (tmp_path / f"x{kind}").write_bytes(b"some")
    np.save(tmp_path / "x.npy", scores(10))
    with pytest.raises(Stop):
        sm.file_logsumexp(tmp_path / "x.npy", checkpoint=place, progress=stop_after(0))

    def denied(self: Path, *_: Any, **__: Any) -> Any:
        if self.name.startswith(secret):
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *_, **__)

    opened, secret = Path.open, "x"
    monkeypatch.setattr(Path, "open", denied)
    for module, name in (("pyarrow", "memory_map"), ("pyarrow.parquet", "ParquetFile"), ("h5py", "File"), ("zipfile", "ZipFile")):
        monkeypatch.setattr(importlib.import_module(module), name, lambda *_, **__: denied(Path("x")))
    monkeypatch.setattr(np, "memmap", lambda *_, **__: denied(Path("x")))
    for path in sorted(tmp_path.glob("x*")):
        for asked in ((), ("--estimate=0.1",))[: 2 if path.name in ("x.npy", "xraw") else 1]:
            code, out, err = softmaxima_lse(str(path), *options.get(path.name[1:], ()), *asked)
            assert (code, out, err.count("\n")) == (2, "", 1), path
            assert f"{path.name} cannot be read (Permission denied); permit it to this user" in err
    secret = "here"
    code, _, err = softmaxima_lse(str(tmp_path / "x.npy"), f"--checkpoint={place}")
    assert (code, err.count("\n")) == (2, 1)
    assert f"--checkpoint: cannot read {place} (Permission denied); give another path, or permit it" in err
    assert place.stat().st_size > 0


def test_a_device_is_no_file(softmaxima_lse: Callable, tmp_path: Path):
    for name in ("device", "device.npy", "device.gz"):
        (tmp_path / name).symlink_to("/dev/zero")
        for options in ((), ("--dtype=float32",), ("--estimate=0.1",)):
            code, out, err = softmaxima_lse(str(tmp_path / name), *options)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert f"{tmp_path / name} is a device or a socket; give a file" in err


def test_a_stream_of_half_precision_and_short_texts(softmaxima_lse: Callable, monkeypatch):
    half = torch.ones(10, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
    for content, options, value in (
        (half, ("--dtype=bfloat16",), 1 + math.log(10)),
        (b"7", (), 7.0),
        ("\ufeff7".encode(), (), 7.0),
        ("\ufeff7\n-inf\n".encode(), (), 7.0),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert json.loads(softmaxima_lse("-", "--json", *options)[1])["logsumexp"] == value


def broken(path: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    """Files that cannot be used, with what is said of them."""
    np.save(path / "whole.npy", scores(100))
    (path / "cut.npy").write_bytes((path / "whole.npy").read_bytes()[:-8])
    (path / "no.npy").write_bytes(b"nothing of the kind")
    (path / "no.npz").write_bytes(b"nothing of the kind")
    (path / "odd.raw").write_bytes(b"12345")
    (path / "words.txt").write_text("1 2 three")
    np.save(path / "complex.npy", np.zeros(3, complex))
    np.save(path / "wide.npy", np.zeros(3, np.longdouble))
    np.save(path / "object.npy", np.array([None]), allow_pickle=True)
    np.save(path / "dates.npy", np.array(["2020-01-01"], "M8[D]"))
    np.save(path / "texts.npy", np.array(["1"]))
    np.savez(path / "none.npz")
    (path / "long.npy").write_bytes((path / "whole.npy").read_bytes() + bytes(8))
    (path / "long.npy.gz").write_bytes(gzip.compress((path / "long.npy").read_bytes()))
    (path / "plain.npy.gz").write_bytes((path / "whole.npy").read_bytes())
    (path / "packed.txt").write_bytes(gzip.compress(b"1 2 3"))
    (path / "binary.txt").write_bytes((path / "whole.npy").read_bytes())
    with zipfile.ZipFile(path / "long.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(scores(100)) + bytes(8))
    np.savez(path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    with zipfile.ZipFile(path / "cut.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(scores(100))[:-8])
    np.savez_compressed(path / "spoilt.npz", x=scores(1000))
    spoilt = bytearray((path / "spoilt.npz").read_bytes())
    spoilt[1000:1100] = bytes(100)
    (path / "spoilt.npz").write_bytes(spoilt)
    return {
        "spoilt.npz": ((), "spoilt.npz cannot be read ("),
        "absent.npy": ((), "there is no file"),
        "": (("--dtype=float32",), "is a directory; give a file"),
        "odd.raw": ((), "unknown suffix '.raw'; give --dtype"),
        "odd.raw ": (("--dtype=float32",), "5 bytes are no whole number of float32"),
        "odd.raw  ": (("--dtype=complex64",), "raw memory is of float64, float32, bfloat16"),
        "odd.raw   ": (("--dtype=int8", "--column=a"), "has no columns; leave --column out, got 'a'"),
        "whole.npy": (("--dtype=float32",), "states its own dtype; leave --dtype out"),
        "whole.npy ": (("--column=a",), "has no columns"),
        "whole.npy  ": (("--temperature=0",), "--temperature must be positive and finite, at least 2.3e-308, got 0.0"),
        "cut.npy": ((), "is cut off: its header states 100 scores, and it holds 98"),
        "cut.npz": ((), "is cut off: it ends in the middle of its data"),
        "no.npy": ((), "no.npy cannot be read (the magic string is not correct"),
        "no.npz": ((), "no.npz cannot be read (File is not a zip file)"),
        "words.txt": ((), "words.txt: 'three' in line 1 is no number; give numbers between spaces"),
        "long.npy": ((), "goes on after the 100 scores that its header states; write it again"),
        "long.npy.gz": ((), "goes on after the 100 scores"),
        "long.npz": ((), "goes on after the 100 scores"),
        "plain.npy.gz": ((), "is not compressed by gzip, as its suffix says; take .gz from its name"),
        "packed.txt": ((), "packed.txt is compressed; decompress it first"),
        "binary.txt": ((), "binary.txt: it is no text; give numbers between spaces"),
        "none.npz": ((), "none.npz has no arrays, and so no scores"),
        "complex.npy": ((), "holds complex128; scores are real numbers of at most 64 bits: save x.real, or sum the array itself"),
        "wide.npy": ((), "scores are real numbers of at most 64 bits: save it with .astype(numpy.float64)"),
        "object.npy": ((), "holds object; scores are real numbers of at most 64 bits: save numpy.hstack(list(x)).astype(float)"),
        "dates.npy": ((), "dates have no exponential"),
        "texts.npy": ((), "save it with .astype(numpy.float64), if all of it is numbers"),
        "two.npz": ((), "name one of its arrays with --column: 'a', 'b'"),
        "two.npz ": (("--column=c",), "there is no array 'c'; choose --column among: 'a', 'b'"),
    }


def test_what_cannot_be_used_is_said_in_one_line(softmaxima_lse: Callable, tmp_path: Path):
    for name, (options, part) in broken(tmp_path).items():
        code, out, err = softmaxima_lse(str(tmp_path / name.strip()), *options)
        assert (code, out, err.count("\n")) == (2, "", 1), name
        assert err.startswith("softmaxima: ")
        assert part in err, name


@pytest.mark.parametrize(
    ("suffix", "module"), [*((s, "pyarrow") for s in (".parquet", ".arrow", ".csv", ".zst")), (".h5", "h5py"), (".zarr", "zarr")]
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    suffix: str, module: str, softmaxima_lse: Callable, tmp_path: Path, monkeypatch
):
    (tmp_path / f"x{suffix}").write_bytes(b"something")
    monkeypatch.setitem(sys.modules, module, None)
    code, out, err = softmaxima_lse(str(tmp_path / f"x{suffix}"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"needs {module}, which is not installed: pip install {module}\n" in err


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather", ".h5", ".zarr", ".gz", ".npy.zst"])
def test_a_file_of_another_kind_is_told(suffix: str, softmaxima_lse: Callable, tmp_path: Path):
    pytest.importorskip({".h5": "h5py", ".zarr": "zarr", ".gz": "gzip"}.get(suffix, "pyarrow"))
    path = tmp_path / f"x{suffix}"
    path.mkdir() if suffix == ".zarr" else path.write_bytes(b"nothing of the kind" * 100)
    code, out, err = softmaxima_lse(str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert ("x.gz is not compressed by gzip" if suffix == ".gz" else f"x{suffix} cannot be read (") in err


def test_missing_values_and_texts_in_a_table_are_refused(softmaxima_lse: Callable, tmp_path: Path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"a": [1.0, None], "b": ["x", "y"]}), path)
    assert "1 value is missing, in row 2; fill them in" in softmaxima_lse(str(path), "--column=a")[2]
    assert "column 'b' is of type string; cast it" in softmaxima_lse(str(path), "--column=b")[2]
    assert "there is no column 'c'" in softmaxima_lse(str(path), "--column=c")[2]


def test_a_table_of_text_is_read_as_it_says(softmaxima_lse: Callable, tmp_path: Path):
    path = tmp_path / "x.csv"
    for content, options, part in (
        ("a,b\n1,2\n3,\n", ("--column=b",), "1 value is missing, in line 3; fill them in"),
        ("a\n1,5\n2,5\n", (), "line 2 has 2 fields (and 1 more), where the first line has 1; give every row as many, or quote"),
        ('a,b\n"1,234",2\n', ("--column=a",), "'1,234'; write its decimals after a point and its thousands without commas"),
        ("a,b\n1,2\n3,NA\n1,\n", ("--column=b",), "2 values are missing, the first in line 3"),
        ("1,2\n3,\n", ("--column=f1",), "1 value is missing, in line 2"),
        ("a,cls\n1,a\n", ("--column=cls",), "column 'cls' is not numeric: line 2 holds 'a'; repair it, or name another column"),
        ("a,b\n" + "1,2\n" * 999 + "1,\x01\n", ("--column=b",), "column 'b' is not numeric: line 1001 holds '\\x01'"),
        ("1\nx\n", (), "column 'f0' is not numeric: line 2 holds 'x'; repair it\n"),
        (
            "a,b\n1,2\n3\n",
            ("--column=b",),
            "line 3 has 1 field, where the first line has 2; give every row as many, or quote",
        ),
        ("a;b\n1;2\n", (), "name one of its columns with --column: 'a', 'b'"),
        ("1\t2\n", ("--column=f2",), "there is no column 'f2'; choose --column among: 'f0', 'f1'"),
        ("1,x\n2,y\n", (), "with --column: '1', 'x'; its first line was taken for the header"),
        ("1,2\n3,4\n", (), "name one of its columns with --column: 'f0', 'f1'"),
        ("a,a\n1,2\n", ("--column=a",), "2 columns are called 'a'; rename all but one"),
        ("a\x1b,b\n1,2\n", (), "its first line holds a control character, '\\x1b'; take it out"),
        ("a,b\n1,2\n", (), "name one of its columns with --column: 'a', 'b'"),
        ("a,b\n1,2\n", ("--column=c",), "there is no column 'c'; choose --column among: 'a', 'b'"),
    ):
        path.write_text(content)
        code, out, err = softmaxima_lse(str(path), *options)
        assert (code, out, err.count("\n")) == (2, "", 1), content
        assert part in err
    for encoding in ("utf-16-le", "utf-16-be"):  # without a mark
        path.write_text("a,b\n1,2\n", encoding=encoding)
        assert "x.csv: its first line is no text in UTF-8, UTF-16 or Windows-1252; save it" in softmaxima_lse(str(path))[2]
    for content, options, written in (
        ("a\n1\n2.5\n-inf\n", (), [1, 2.5]),
        ("\ufeffa,b\n1,2\n3,4\n", ("--column=a",), [1, 3]),
        ('"a","b"\n1,"4"\n', ("--column=b",), [4]),
        ("1,2\n3,nan\n", ("--column=f1",), [math.nan]),
        ("\n\n7\n", (), [7]),
        ("a\xa0b,c\n1,2\n", ("--column=a\xa0b",), [1]),
        ("1,2.5\n3,4\n", ("--column=f1",), [2.5, 4]),
    ):
        path.write_text(content, encoding="utf-8")
        assert json.loads(softmaxima_lse(str(path), *options, "--json")[1])["logsumexp"] == pytest.approx(
            float(torch.logsumexp(torch.tensor(written, dtype=torch.float64), 0)) if not math.isnan(written[0]) else "nan"
        )


@pytest.mark.parametrize("options", [(), ("--dtype=float32",)])
@pytest.mark.parametrize(
    "name", [*(f"x{suffix}" for suffix in (*sorted(opening.READERS), ".gz", ".zst", ".csv.gz", ".gz.gz")), "-"]
)
def test_nothing_is_told_in_a_sentence(
    name: str, options: tuple[str, ...], softmaxima_lse: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    suffix = Path(name).suffix
    if options and name not in ("-", "x.gz.gz"):
        name = "x.bin" if suffix in opening.READERS else f"x.bin{suffix}"
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(gzip.compress(b"", mtime=0) if name.count(".") > 1 and suffix == ".gz" else b"")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    code, out, err = softmaxima_lse(name, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{'standard input' if name == '-' else name} is empty: 0 bytes came" in err


@pytest.mark.parametrize("name", ["x.npy", "x.npy.gz", "-"])
def test_the_sum_of_an_array_of_no_scores_is_told(name: str, softmaxima_lse: Callable, tmp_path: Path, monkeypatch):
    content = npy_bytes(np.zeros((0, 3)))
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    code, out, err = softmaxima_lse(name)
    assert (code, err) == (0, "")
    assert ": 0 scores, and the sum of nothing is −∞\n" in out


@pytest.mark.parametrize("kind", [".npy.gz", ".npy.zst", ".txt.gz", ".arrow"])
def test_a_compressed_file_that_is_cut_off_is_told(kind: str, softmaxima_lse: Callable, tmp_path: Path):
    write = {
        ".npy.gz": lambda path, x: path.write_bytes(gzip.compress(npy_bytes(x))),
        ".npy.zst": zstandard(npy_bytes),
        ".txt.gz": lambda path, x: path.write_bytes(gzip.compress(text_bytes(x))),
        ".arrow": write_arrow_stream,
    }[kind]
    path = tmp_path / f"x{kind}"
    write(path, scores(3000))
    path.write_bytes(path.read_bytes()[:-100])
    code, out, err = softmaxima_lse(str(path), *(("--column=score",) if kind == ".arrow" else ()))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "cannot be read (" in err or "is cut off" in err


def test_what_cannot_be_compressed_is_told(softmaxima_lse: Callable, tmp_path: Path):
    for name, options, part in (
        ("x.parquet.gz", (), "a file with the suffix .parquet is read from several places; decompress it first"),
        ("x.npy.gz", ("--dtype=int8",), "a file with the suffix .npy states its own dtype; leave --dtype out"),
        ("x.npy.gz", (), "x.npy.gz cannot be read (the magic string is not correct"),
        ("x.txt.gz", ("--column=a",), "has no columns"),
    ):
        (tmp_path / name).write_bytes(gzip.compress(b"1 2 3 4 5"))
        assert part in softmaxima_lse(str(tmp_path / name), *options)[2]


# Eight bits ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("suffix", [".npy", ".bin", ".npz", ".npy.gz", ".parquet"])
def test_eight_bits_are_counted_with_their_scale(kind: type, suffix: str, softmaxima_lse: Callable, tmp_path: Path):
    q, path = (
        np.random.default_rng(0).integers(*((-128, 128) if kind is np.int8 else (0, 256)), 5000).astype(kind),
        tmp_path / f"q{suffix}",
    )
    {
        ".npy": np.save,
        ".bin": lambda path, q: q.tofile(path),
        ".npz": lambda path, q: np.savez(path, score=q),
        ".npy.gz": gzipped(npy_bytes),
        ".parquet": write_parquet,
    }[suffix](path, q)
    options = {".bin": (f"--dtype={np.dtype(kind)}",), ".parquet": ("--column=score",)}.get(suffix, ())
    for scale, zero_point, tau in ((0.1, 3, 1.0), (0.02, -7.5, 0.5), (1.0, 0, 1.0)):
        x = scale * (q.astype(np.float64) - zero_point) / tau
        arguments = (str(path), *options, f"--scale={scale}", f"--zero-point={zero_point}", f"--temperature={tau}", "--json")
        found = json.loads(softmaxima_lse(*arguments, "--effective-size")[1])
        p = np.exp(x - of_all(x))
        assert found["logsumexp"] == pytest.approx(of_all(x), rel=1e-14)
        assert found["logsumexp"] == pytest.approx(float(sm.quantized_logsumexp(q, scale / tau, zero_point)), rel=1e-14)
        assert (found["scores"], found["maxima"]) == (q.size, int((q == q.max()).sum()))
        assert found["maximum"] == pytest.approx(x.max(), rel=1e-15)
        assert found["effective_size"] == pytest.approx(1 / float((p**2).sum()), rel=1e-10)
        for lower, upper in json.loads(softmaxima_lse(*arguments, "--bounds")[1])["bounds"].values():
            assert float(lower) <= found["logsumexp"] <= float(upper)


def test_a_scale_is_of_eight_bits_and_belongs_to_the_checkpoint(softmaxima_lse: Callable, tmp_path: Path, monkeypatch):
    np.save(tmp_path / "x.npy", scores(10))
    path, place = tmp_path / "q.npy", tmp_path / "checkpoint"
    np.save(path, np.arange(100, dtype=np.int8))
    for options, part in (
        (("--scale=0",), "--scale must be a positive finite number, got 0.0"),
        (("--zero-point=nan",), "--zero-point must be a finite number, got nan"),
        (("--scale=1", "--estimate=0.1"), "--scale needs all scores; leave out --estimate, or --scale"),
    ):
        assert part in softmaxima_lse(str(path), *options)[2]
    assert (
        f"--scale and --zero-point are of int8 and uint8, and {tmp_path / 'x.npy'} holds float32"
        in softmaxima_lse(str(tmp_path / "x.npy"), "--scale=2")[2]
    )
    monkeypatch.setattr(source, "CACHED", 40)
    monkeypatch.setattr(files, "WINDOW", 1)
    with pytest.raises(Stop):
        sm.file_logsumexp(path, scale=0.1, checkpoint=place, progress=stop_after(40))
    kept = place.read_bytes()
    for wrong in ({}, {"scale": 0.2}, {"scale": 0.1, "zero_point": 1}):
        with pytest.raises(InputError, match=r"`checkpoint` was made with (scale|zero point)"):
            sm.file_logsumexp(path, checkpoint=place, **wrong)
    assert place.read_bytes() == kept
    assert sm.file_logsumexp(path, scale=0.1, checkpoint=place).value == sm.file_logsumexp(path, scale=0.1).value


def test_a_path_is_one_and_errors_name_parameters(tmp_path: Path):
    for path in (None, 3):
        with pytest.raises(TypeError, match=rf"file_logsumexp: path must be a path, got {path}; pass a str or a pathlib.Path"):
            sm.file_logsumexp(path)
    with pytest.raises(ValueError, match="file_logsumexp: path must be a path, got the empty string; name a file"):
        sm.file_logsumexp("")
    (tmp_path / "x").touch()
    with pytest.raises(InputError, match="unknown suffix ''; give `dtype` for raw memory"):
        sm.file_logsumexp(tmp_path / "x", dtype=None)


def test_a_closed_standard_input_is_told(softmaxima_lse: Callable, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert softmaxima_lse("-")[::2] == (2, "softmaxima: standard input is closed; give a file, or the output of another command\n")


@pytest.mark.parametrize("wrong", [{"scale": "1"}, {"scale": True}, {"scale": -1.0}, {"zero_point": "0"}, {"temperature": "1"}])
def test_numbers_of_a_file_sum_are_numbers(wrong: dict[str, Any], tmp_path: Path):
    np.save(tmp_path / "q.npy", np.arange(3, dtype=np.int8))
    with pytest.raises((TypeError, ValueError), match=f"file_logsumexp: {next(iter(wrong))} must be "):
        sm.file_logsumexp(tmp_path / "q.npy", **wrong)


@pytest.mark.usefixtures("small_pieces")
def test_a_checkpoint_of_another_file_says_so_before_any_work(softmaxima_lse: Callable, tmp_path: Path):
    first, second, place = tmp_path / "first.npy", tmp_path / "second.npy", tmp_path / "checkpoint"
    np.save(first, scores(2000))
    with pytest.raises(Stop):
        sm.file_logsumexp(first, checkpoint=place, progress=stop_after(500))
    kept, done = place.read_bytes(), int(Checkpoint.load(place).state.n)
    for other in (scores(2000) + 1, scores(100), scores(2000)):
        np.save(second, other)
        code, out, err = softmaxima_lse(str(second), f"--checkpoint={place}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"--checkpoint: {place} is of another file, {first}, and not of {second}; the {done} scores" in err
        assert place.read_bytes() == kept
    moved = tmp_path / "moved.npy"
    first.rename(moved)
    assert sm.file_logsumexp(moved, checkpoint=place).n == 2000


# Interruption and resumption ------------------------------------------------------------------------------------------------


class Stop(Exception):
    """What ends a sum in the middle."""


def stop_after(n: int) -> Callable:
    def progress(done: int, scores: Any) -> None:
        if done >= n:
            raise Stop

    return progress


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", FORMATS)
def test_a_sum_continues_where_it_was_interrupted(kind: str, tmp_path: Path):
    suffix, options, write = FORMATS[kind]
    path, place = tmp_path / f"file{suffix}", tmp_path / "checkpoint"
    write(path, scores(50, 61))
    asked = named(options) | {"temperature": 0.7, "effective_size": True}
    whole = sm.file_logsumexp(path, **asked)
    with pytest.raises(Stop):
        sm.file_logsumexp(path, **asked, checkpoint=place, progress=stop_after(500))
    begun = int(Checkpoint.load(place).state.n)
    assert 500 <= begun < 3050
    with pytest.raises(Stop):
        sm.file_logsumexp(path, **asked, checkpoint=place, progress=stop_after(2000))
    seen: list[int] = []
    state = sm.file_logsumexp(path, **asked, checkpoint=place, progress=lambda done, scores: seen.append(done))
    assert seen[0] >= 2000
    assert (state.n, state.maximum, state.count) == (whole.n, whole.maximum, whole.count)
    assert float(state.value) == pytest.approx(float(whole.value), rel=1e-15)
    assert float(state.effective_size) == pytest.approx(float(whole.effective_size), rel=1e-12)
    assert not place.exists()


@pytest.mark.usefixtures("small_pieces")
def test_a_checkpoint_of_a_file_that_changed_is_refused_and_kept(softmaxima_lse: Callable, tmp_path: Path):
    path, place = tmp_path / "x.npy", tmp_path / "checkpoint"
    x = scores(100_000)
    np.save(path, x)
    with pytest.raises(Stop):
        sm.file_logsumexp(path, checkpoint=place, progress=stop_after(5000))
    kept, whole, times = place.read_bytes(), path.read_bytes(), path.stat()

    def refused(*options: str) -> str:
        code, out, err = softmaxima_lse(str(path), f"--checkpoint={place}", *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert place.read_bytes() == kept
        assert "scores summed so far are in the checkpoint" in err
        return err

    def write(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    np.save(path, x[:-1])
    assert f"{path} was cut off from 400128 to 400124 bytes" in refused()
    np.save(path, np.append(x, x))
    assert "has grown from 400128 to 800128 bytes" in refused()
    write(whole[:200] + b"\0" + whole[201:])
    assert "has other contents since" in refused()
    write(whole[:-1] + b"\0")
    assert "has other contents at its end" in refused()
    path.write_bytes(whole)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert "was written to since" in refused()
    write(whole)
    assert "temperature 1.0, got 2.0" in refused("--temperature=2")
    assert "effective size False, got True" in refused("--effective-size")
    code, out, _ = softmaxima_lse(str(path), f"--checkpoint={place}", "--json")
    assert code == 0
    assert json.loads(out)["logsumexp"] == pytest.approx(of_all(x), abs=1e-7)


@pytest.mark.usefixtures("small_pieces")
def test_a_file_that_shrinks_or_changes_while_it_is_read_is_named(tmp_path: Path):
    path, place = tmp_path / "x.npy", tmp_path / "checkpoint"

    def then(change: Callable[[], None]) -> Callable:
        def progress(done: int, scores: Any) -> None:
            if 5000 <= done < 7000:
                change()

        return progress

    np.save(path, scores(100_000))
    with pytest.raises(InputError, match=r"x\.npy was cut off while it was read"):
        sm.file_logsumexp(path, checkpoint=place, progress=then(lambda: os.truncate(path, 100_000)))
    assert Checkpoint.load(place).state.n >= 5000
    place.unlink()
    np.save(path, scores(100_000))
    with pytest.raises(InputError, match="was written to while it was read"):
        sm.file_logsumexp(path, progress=then(lambda: os.utime(path, ns=(0, 0))))


def test_a_misspelt_option_is_not_taken_for_a_file(softmaxima_lse: Callable, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("-x.npy", np.zeros(2))
    for arguments in (("--colum=a",), ("--colum", "a", "x.npy"), ("x.npy", "--colum", "a")):
        code, out, err = softmaxima_lse(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "Unknown option: --colum" in err
        assert err.endswith(". Did you mean --column?; see softmaxima lse --help\n")
    assert softmaxima_lse("./-x.npy")[0] == softmaxima_lse("--", "-x.npy")[0] == 0


def test_an_error_of_the_system_is_one_line(softmaxima_lse: Callable, tmp_path: Path, monkeypatch):
    np.save(tmp_path / "x.npy", scores(10))

    def fail(start: int, stop: int = 0) -> Any:
        yield np.zeros(1)
        raise OSError(5, "Input/output error")

    read = opening._from_file
    monkeypatch.setattr(opening, "_from_file", lambda *asked: replace(read(*asked), blocks=fail, part=fail))
    code, out, err = softmaxima_lse(str(tmp_path / "x.npy"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "x.npy cannot be read (Input/output error)" in err


def test_a_directory_has_a_fingerprint_too(tmp_path: Path):
    (tmp_path / "a").write_text("1")
    before = Fingerprint.of(tmp_path)
    assert before.difference(Fingerprint.of(tmp_path)) is None
    (tmp_path / "b").touch()
    assert before.difference(Fingerprint.of(tmp_path)) == "has other contents"


@pytest.mark.parametrize("content", ["", "{}", '{"kind": "other"}', "[]", "\xff"])
def test_what_is_no_checkpoint_is_neither_used_nor_lost(content: str, softmaxima_lse: Callable, tmp_path: Path):
    np.save(tmp_path / "x.npy", scores(10))
    place = tmp_path / "precious"
    place.write_text(content, encoding="latin-1")
    code, _, err = softmaxima_lse(str(tmp_path / "x.npy"), f"--checkpoint={place}")
    assert (code, err.count("\n")) == (2, 1)
    assert "is no checkpoint of this command" in err
    assert place.read_text(encoding="latin-1") == content


def test_a_checkpoint_is_a_regular_file_of_a_few_bytes(softmaxima_lse: Callable, tmp_path: Path):
    np.save(tmp_path / "x.npy", scores(10))
    (tmp_path / "endless").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("endless", "pipe", "folder"):
        code, out, err = softmaxima_lse(str(tmp_path / "x.npy"), f"--checkpoint={tmp_path / name}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{tmp_path / name} is no regular file; give another path" in err
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**40)  # holes, more than any memory
    assert "is no checkpoint of this command" in softmaxima_lse(str(tmp_path / "x.npy"), f"--checkpoint={tmp_path / 'huge'}")[2]
    (tmp_path / "link").symlink_to(tmp_path / "new")
    assert softmaxima_lse(str(tmp_path / "x.npy"), f"--checkpoint={tmp_path / 'link'}")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_needs_a_place_and_a_file(softmaxima_lse: Callable, tmp_path: Path):
    np.save(tmp_path / "x.npy", scores(10))
    assert "cannot write" in softmaxima_lse(str(tmp_path / "x.npy"), f"--checkpoint={tmp_path / 'none' / 'here'}")[2]
    assert "standard input cannot be read again" in softmaxima_lse("-", f"--checkpoint={tmp_path / 'here'}")[2]
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_checkpoints_are_written_as_the_sum_goes_on_and_never_by_half(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(source, "CACHED", 4096)
    monkeypatch.setattr(files, "WINDOW", 1)
    monkeypatch.setattr(files, "CHECKPOINT_SECONDS", 0.0)
    np.save(tmp_path / "x.npy", scores(10_000))
    place, seen = tmp_path / "checkpoint", []
    sm.file_logsumexp(tmp_path / "x.npy", checkpoint=place, progress=lambda *_: seen.append(int(Checkpoint.load(place).state.n)))
    assert seen == sorted(seen)
    assert seen[-1] > 5000
    with pytest.raises(Stop):
        sm.file_logsumexp(tmp_path / "x.npy", checkpoint=place, progress=stop_after(5000))
    kept = place.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writing.os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        Checkpoint.load(place).save(place)
    assert place.read_bytes() == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "x.npy"]


@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")])
def test_signals_leave_a_checkpoint_that_the_same_command_continues(number: int, code: int, word: str, tmp_path: Path):
    # A pipe would do, but is no file: the sum is held up in a window instead.
    slow = (
        "import os, time\n"
        "from softmaxima.io import files\n"
        "from softmaxima.io.formats import source\n"
        "old = files.of_pieces\n"
        "def slowly(*arguments):\n    os.write(1, b'window\\n')\n    time.sleep(0.05)\n    return old(*arguments)\n"
        "files.of_pieces, files.WINDOW, source.CACHED = slowly, 1, 40_000\n"
    )
    x, path, place = scores(1_000_000), tmp_path / "x.npy", tmp_path / "checkpoint"
    np.save(path, x)
    arguments = ["lse", str(path), f"--checkpoint={place}"]
    process = subprocess.Popen(
        [sys.executable, "-c", slow + SOFTMAXIMA, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(8):
        assert process.stdout.readline() == "window\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    done = int(Checkpoint.load(place).state.n)
    assert 20_000 <= done < 1_000_000
    assert (process.returncode, err) == (
        code,
        f"softmaxima: {word}; {done} scores are in {place}: the same command continues from there\n",
    )
    state = sm.file_logsumexp(path, checkpoint=place)
    assert state.n == 1_000_000
    assert float(state.value) == pytest.approx(of_all(x), abs=1e-7)


# Memory and terminals -------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_billion_scores_are_summed_in_a_few_hundred_megabytes(tmp_path: Path):
    """torch's own libraries take more than 512 MiB of addresses: the limit is on what is added to them once they are loaded."""
    path = tmp_path / "scores.bin"
    with path.open("wb") as file:
        file.truncate(4 * BILLION)
        for position in (0, BILLION // 2):
            file.seek(4 * position)
            file.write(np.full(500, 3.0, np.float32).tobytes())
    code = (
        "import resource, sys\n"
        "import softmaxima.io.files\n"
        "from softmaxima_lab.commands import main\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, size + 2**28))\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**29, 2**29))\n"
        "try:\n    main(sys.argv[1:])\n"
        # Not ru_maxrss, which begins at that of the process that started this one.
        "finally:\n    print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    arguments = ["lse", str(path), "--dtype=float32", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # every thread has a stack of its own
    ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    found, peak = ended.stdout.splitlines()
    assert json.loads(found)["logsumexp"] == pytest.approx(math.log(BILLION - 1000 + 1000 * math.exp(3)), rel=1e-12)
    assert (json.loads(found)["scores"], json.loads(found)["maxima"]) == (BILLION, 1000)
    assert int(peak) * 1024 < 2**29


def test_a_terminal_sees_the_rate_and_a_pipe_does_not(tmp_path: Path):
    np.save(tmp_path / "scores.npy", scores(1000))
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-c", SOFTMAXIMA, "lse", str(tmp_path / "scores.npy")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env=environment, check=True)
    os.close(stderr)
    seen = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "scores.npy" in seen
    assert "1.0e+03 scores" in seen
    assert b"\x1b" not in ended.stdout
    assert ended.stdout.count(b"\n") == 3


def test_help_answers_without_torch():
    code = (
        "import sys\nfrom softmaxima_lab.commands import main\n"
        "try:\n    main(['lse', '--help'])\nfinally:\n    print({'torch', 'numpy'} & {*sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.rstrip().endswith("set()")
    for option in ("FILE", "--column", "--dtype", "--temperature", "--effective-size", "--checkpoint", "--json"):
        (line,) = [line for line in ended.stdout.splitlines() if line.strip("│* ").startswith(option)]
        assert len(line.strip("│* ").split()) > 2, line


@pytest.mark.parametrize("how", ["link", "file", "gone", "directory"])
@pytest.mark.parametrize("again", [False, True])
def test_what_is_put_in_the_place_of_a_checkpoint_is_not_followed_and_stays(how: str, again: bool, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(files, "CHECKPOINT_SECONDS", 0.0 if again else 1e9)  # written again after that, or not
    np.save(tmp_path / "x.npy", scores := np.zeros(1000, np.float32))
    (tmp_path / "precious").write_text("kept")
    place = tmp_path / "c"

    def swapped(done: int, _: object) -> None:
        if place.is_file() and done == 0:
            place.unlink()
            if how == "link":
                place.symlink_to("precious")
            elif how == "file":
                place.write_text("another")
            elif how == "directory":
                place.mkdir()

    call = lambda: sm.file_logsumexp(tmp_path / "x.npy", checkpoint=place, progress=swapped)
    if how == "directory" and again:
        with pytest.raises(InputError, match="cannot write"):
            call()
    else:
        assert call().value == np.log(scores.size)
        assert os.path.lexists(place) == (how != "gone" and not again)
    assert (tmp_path / "precious").read_text() == "kept"
