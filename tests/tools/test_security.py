"""What SECURITY.md promises of files that strangers wrote: of each what must happen, and that nothing else does."""

from __future__ import annotations

import contextlib
import copy
import csv
import functools
import gzip
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softmaxima as sm
from score_files import FORMATS, bare_csv_bytes, csv_bytes, named, npy_bytes, scores, stream_bytes, text_bytes, write_feather_v1
from softmaxima.base.numbers import InputError
from softmaxima.io import checkpoint
from softmaxima.io.formats import chunked, opening, rows, source, stream
from softmaxima_lab.tables import reading

# Damage --------------------------------------------------------------------------------------------------------------------------


def _parquet(path: Path, x: np.ndarray) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"score": x, "y": x > 0})
    parquet.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)


def _fletcher32(path: Path, x: np.ndarray) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("score", data=x, chunks=(500,), fletcher32=True)


def _zarr(path: Path, x: np.ndarray) -> None:
    zarr, codecs = pytest.importorskip("zarr"), pytest.importorskip("zarr.codecs")
    zarr.create_array(path, data=x, chunks=(3000,), compressors=[codecs.Crc32cCodec()])


def _zarr2(path: Path, x: np.ndarray) -> None:
    zarr, numcodecs = pytest.importorskip("zarr"), pytest.importorskip("numcodecs")
    array = zarr.create_array(
        path, shape=x.shape, dtype=x.dtype, chunks=(3000,), zarr_format=2, compressors=None, filters=[numcodecs.CRC32()]
    )
    array[:] = x


def _zip(path: Path, x: np.ndarray) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy_bytes(x))


def _zstandard(path: Path, x: np.ndarray) -> None:
    path.write_bytes(pytest.importorskip("numcodecs").Zstd(checksum=True).encode(npy_bytes(x)))


# Of each format with a checksum of its own: its suffix, and what writes it.
CHECKED: dict[str, tuple[str, Callable[[Path, np.ndarray], Any]]] = {
    "pages of Parquet": (".parquet", _parquet),
    "HDF5's fletcher32": (".h5", _fletcher32),
    "Zarr's crc32c": (".zarr", _zarr),
    "crc32 of Zarr 2": (".zarr", _zarr2),
    "zip": (".npy.zip", _zip),
    "NPZ": (".npz", lambda path, x: np.savez(path, score=x)),
    "gzip": (".npy.gz", lambda path, x: path.write_bytes(gzip.compress(npy_bytes(x), 0))),
    "text in gzip": (".txt.gz", lambda path, x: path.write_bytes(gzip.compress(text_bytes(x), 0))),
    "Zstandard": (".npy.zst", _zstandard),
}


def _spoilt(path: Path, at: float) -> None:
    """One bit turned at that share of the largest file."""
    path = max((file for file in [path, *path.rglob("*")] if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", CHECKED)
def test_a_checksum_that_a_file_has_is_asked(kind: str, tmp_path: Path):
    suffix, write = CHECKED[kind]
    for at in (0.3, 0.4, 0.5):
        path = tmp_path / f"{at}{suffix}"
        write(path, scores(3000))
        asked: dict[str, Any] = {"column": "score"} if kind.startswith("pages") else {}
        assert sm.file_logsumexp(path, **asked).n == 3000
        _spoilt(path, at)
        with pytest.raises(InputError, match=r"cannot be (read|unpacked)"):
            sm.file_logsumexp(path, **asked)


def test_a_table_to_train_on_has_its_pages_checked(tmp_path: Path):
    from softmaxima_lab.tables.reading import read_frame

    _parquet(tmp_path / "table.parquet", scores(3000))
    assert read_frame(tmp_path / "table.parquet").frame.height == 3000
    _spoilt(tmp_path / "table.parquet", 0.5)
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_frame(tmp_path / "table.parquet")


@pytest.mark.parametrize("kind", [kind for kind, (_, options, _) in FORMATS.items() if "--trusted" not in options])
def test_damage_anywhere_is_a_sentence_or_another_sum(kind: str, tmp_path: Path):
    suffix, options, write = FORMATS[kind]
    path, chance = tmp_path / f"file{suffix}", np.random.default_rng(0)
    write(path, scores(20, 11))
    files = sorted(file for file in [path, *path.rglob("*")] if file.is_file())
    for _ in range(60):
        file = files[chance.integers(len(files))]
        whole = file.read_bytes()
        spoilt, at = bytearray(whole), chance.integers(len(whole))
        spoilt[at : at + 4] = chance.bytes(4)
        file.write_bytes(spoilt[: len(spoilt) if chance.random() < 0.8 else at])
        with contextlib.suppress(InputError):
            sm.file_logsumexp(path, **named(options))
        file.write_bytes(whole)


def _page_headers(path: Path) -> Iterator[bytes]:
    """A Parquet file with one bit turned in the header of a page, which no checksum covers."""
    whole, about = path.read_bytes(), pytest.importorskip("pyarrow.parquet").read_metadata(path)
    for group in range(about.num_row_groups):
        first = about.row_group(group).column(0).data_page_offset
        for bit in range(0, 8 * 24, 5):
            spoilt = bytearray(whole)
            spoilt[first + bit // 8] ^= 1 << bit % 8
            yield bytes(spoilt)


@pytest.mark.parametrize("held", [{"s": np.arange(3000.0)}, {"s": np.arange(3000.0)[:, None].tolist()}], ids=["numbers", "lists"])
def test_as_many_rows_come_as_are_stated(held: dict[str, Any], softmaxima_lse: Callable, tmp_path: Path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(held)
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=1000, use_dictionary=False, compression="none")
    said: list[str] = []
    for spoilt in _page_headers(tmp_path / "x.parquet"):
        (path := tmp_path / "spoilt.parquet").write_bytes(spoilt)
        code, out, err = softmaxima_lse(str(path))
        assert (code, out) == (2, "") or (code, err, ": 3000 scores" in out) == (0, "", True)
        said.append(err)
        with contextlib.suppress(InputError):
            assert reading.read_frame(path).frame.height == 3000
    assert any(re.search("is damaged: 2000 (rows|scores) came where 3000 are stated; copy it again", err) for err in said)


@pytest.mark.parametrize("kind", FORMATS)
def test_no_reader_is_believed_that_gives_fewer_than_a_file_states(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    suffix, options, write = FORMATS[kind]
    write(path := tmp_path / f"file{suffix}", x := scores(20, 11))
    given = opening._from_file

    def stating(*arguments: Any) -> source.Scores:
        found = given(*arguments)
        return found if found.count is None else replace(found, count=found.count + 1)

    monkeypatch.setattr(opening, "_from_file", stating)
    held = opening.open_scores(path, **named(options))
    parts = [functools.partial(held.part, stop=held.count)] if held.part else []
    for blocks in () if held.count is None else (held.blocks, *parts):
        with pytest.raises(InputError, match=rf"{x.size} scores came where {x.size + 1} are stated|was cut off while it was read"):
            list(blocks(0))


# What files name outside them ----------------------------------------------------------------------------------------------------


def _external(path: Path, elsewhere: Path) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("x", (8,), "u1", external=[(str(elsewhere), 0, 8)])


def _virtual(path: Path, elsewhere: Path) -> None:
    with pytest.importorskip("h5py").File(elsewhere, "w") as file:
        file["x"] = np.zeros(8, "f4")
    _virtual_of(path, str(elsewhere))


def _virtual_of(path: Path, elsewhere: str) -> None:
    h5py = pytest.importorskip("h5py")
    layout = h5py.VirtualLayout((8,), "f4")
    layout[:] = h5py.VirtualSource(elsewhere, "x", (8,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)


def _circle(path: Path, elsewhere: Path) -> None:
    _virtual_of(path, ".")


def _virtual_pipe(path: Path, elsewhere: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    _virtual_of(path, "pipe")


def _link(path: Path, elsewhere: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_group("group")["x"] = h5py.ExternalLink(elsewhere, "/x")


def _linked_chunk(path: Path, elsewhere: Path) -> None:
    pytest.importorskip("zarr").create_array(path, data=np.ones(8, np.float32), compressors=None)
    (path / "c" / "0").unlink()
    (path / "c" / "0").symlink_to(elsewhere)


def _pipe(path: Path, elsewhere: Path) -> None:
    pytest.importorskip("zarr").create_array(path, data=np.ones(8, np.float32))
    (path / "c" / "0").unlink()
    os.mkfifo(path / "c" / "0")


def _pipe_of_zarr_2(path: Path, elsewhere: Path) -> None:
    pytest.importorskip("zarr").create_array(path, data=np.ones(8, np.float32), zarr_format=2)
    (path / "0").unlink()
    os.mkfifo(path / "0")


def _linked_pipe(path: Path, elsewhere: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    _linked_chunk(path, path.with_name("pipe"))


def _linked_folder_pipe(path: Path, elsewhere: Path) -> None:
    _pipe(path, elsewhere)
    (path / "c").rename(path.with_name("folder"))
    (path / "c").symlink_to(path.with_name("folder"))


def _virtual_link_pipe(path: Path, elsewhere: Path) -> None:
    h5py = pytest.importorskip("h5py")
    os.mkfifo(path.with_name("pipe"))
    with h5py.File(elsewhere, "w") as file:
        file["link"] = h5py.ExternalLink("pipe", "/")
        file["x"] = h5py.SoftLink("/link/x")
    _virtual_of(path, str(elsewhere))


def _virtual_gone(path: Path, elsewhere: Path) -> None:
    _virtual_of(path, "gone.h5")


def _external_cut(path: Path, elsewhere: Path) -> None:
    elsewhere.write_bytes(bytes(7))
    _external(path, elsewhere)


def _external_pipe(path: Path, elsewhere: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    _external(path, path.with_name("pipe"))


def _first_feather(path: Path, elsewhere: Path) -> None:
    write_feather_v1(path, np.zeros(3))


# Of each: what is said of it.
OUTSIDE: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "external.h5": (_external, "the scores of 'x' are in other files that it names"),
    "virtual.h5": (_virtual, "the scores of 'x' are in other files that it names"),
    "link.h5": (_link, "'group/x' is a link to '/x' in another file, .*secret'; give that file"),
    "pipe.h5": (_external_pipe, "the scores of 'x' are in other files that it names"),
    "link.zarr": (_linked_chunk, "c/0 is a link out of .*link.zarr"),
    "pipe.zarr": (_pipe, "c/0 is a pipe, a device or a socket; take it out"),
    "two_pipe.zarr": (_pipe_of_zarr_2, "0 is a pipe, a device or a socket; take it out"),
    "linked_pipe.zarr": (_linked_pipe, "c/0 is a link out of .*linked_pipe.zarr"),
    "folder_pipe.zarr": (_linked_folder_pipe, "c is a link out of .*folder_pipe.zarr"),
    "virtual_link_pipe.h5": (_virtual_link_pipe, "the scores of 'x' are in other files that it names"),
    "gone.h5": (_virtual_gone, "the scores of 'x' are in other files that it names"),
    "cut.h5": (_external_cut, "the scores of 'x' are in other files that it names"),
    "circle.h5": (_circle, "the scores of 'x' are in other files that it names"),
    "virtual_pipe.h5": (_virtual_pipe, "the scores of 'x' are in other files that it names"),
    "one.feather": (_first_feather, "is Feather of version 1, whose reader believes what is in it"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_a_file_names_outside_it_is_not_read_unless_asked_for(name: str, softmaxima_lse: Callable, tmp_path: Path):
    write, said = OUTSIDE[name]
    (elsewhere := tmp_path / "secret").write_bytes(bytes(32))
    write(tmp_path / name, elsewhere)
    code, out, err = softmaxima_lse(str(tmp_path / name))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(said, err)
    if "--trusted" in err:
        code, out, err = softmaxima_lse(str(tmp_path / name), *(("--column=id",) if name == "one.feather" else ()), "--trusted")
        if name in ("circle.h5", "gone.h5", "cut.h5") or "pipe" in name:  # which HDF5 crashes on, takes for zeros or waits for
            assert (code, out, err.count("\n")) == (2, "", 1)
            return
        assert (code, err) == (0, "")
        assert f": {3 if name == 'one.feather' else 8} scores" in out


# Checkpoints ---------------------------------------------------------------------------------------------------------------------

# Of each value in a checkpoint: what it must not be.
NO_VALUES = (
    None,
    -1,
    2**70,
    1.5,
    "",
    "nan",
    "-0x1p+3",
    [],
    {},
    True,
    ["0x0p+0"],
    ["-0x1p+0", "0x0p+0", "0x0p+0"],
    ["0x0p+0"] * 2 + ["inf"],
)


def _stopped(*_: Any) -> None:
    raise KeyboardInterrupt


def _places(content: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield before
    for name in content if isinstance(content, dict) else ():
        yield from _places(content[name], (*before, name))


@pytest.mark.parametrize("with_checksum", [False, True])
def test_no_value_of_a_checkpoint_is_believed(with_checksum: bool, softmaxima_lse: Callable, tmp_path: Path):
    np.save(tmp_path / "x.npy", scores(1000))
    place, asked = tmp_path / "checkpoint", (str(tmp_path / "x.npy"), f"--checkpoint={tmp_path / 'checkpoint'}", "--json")
    with pytest.raises(KeyboardInterrupt):
        sm.file_logsumexp(tmp_path / "x.npy", checkpoint=place, progress=_stopped)
    whole, sums = json.loads(place.read_text()), softmaxima_lse(*asked)[1]
    for path in _places(whole):
        for value in NO_VALUES:
            content = copy.deepcopy(whole)
            if path:
                functools.reduce(dict.__getitem__, path[:-1], content)[path[-1]] = value
            else:
                content = value
            if content == whole and repr(content) == repr(whole):
                continue
            if with_checksum and isinstance(content, dict):
                content.pop("sha256", None)
                content["sha256"] = checkpoint._checksum(content)
            place.write_text(json.dumps(content))
            code, out, err = softmaxima_lse(*asked)
            assert (code, out, err.count("\n")) == (2, "", 1) or (with_checksum and out == sums), (path, value, out, err)
            assert code == 0 or place.exists()


# Texts that are cut off -----------------------------------------------------------------------------------------------------------

TEXTS: dict[str, Callable[[np.ndarray], bytes]] = {
    "x.txt": text_bytes,
    "x.csv": csv_bytes,
    "bare.csv": lambda x: bare_csv_bytes(x),
    "utf-16.txt": lambda x: "\n".join(map(repr, [*x.ravel().tolist(), 0])).encode("utf-16"),
    "utf-16.csv": lambda x: csv_bytes(x).decode().encode("utf-16"),
}


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_cut_off_within_a_line_is_told(name: str, packed: str, softmaxima_lse: Callable, tmp_path: Path):
    path, whole = tmp_path / f"{name}{packed}", TEXTS[name](scores(20, 61))
    pack = {"": lambda content: content, ".gz": gzip.compress, ".zst": pytest.importorskip("numcodecs").Zstd().encode}[packed]
    column = ("--column=score",) if name in ("x.csv", "utf-16.csv") else ()
    for at in (*range(-30, -1), -1000, -2000, -3001):
        content = whole[: at - at % 2 if "utf" in name else at]
        if content.endswith((b"\n", b"\r", b"\n\0", b"\r\0")):
            continue  # of whole lines, of which none shows that others followed
        path.write_bytes(pack(content))
        code, out, err = softmaxima_lse(str(path), *column)
        assert (code, out, err.count("\n")) == (2, "", 1), at
        assert "has no line end after its last line, as a file that is cut off; copy it again, or say that it is whole" in err


def test_a_text_without_a_last_line_end_is_whole_where_that_is_said(softmaxima_lse: Callable, tmp_path: Path):
    for name, content in (("x.txt", "1\n2.5"), ("x.csv", "a\n1\n2.5")):
        (tmp_path / name).write_text(content)
        assert softmaxima_lse(str(tmp_path / name), "--json")[0] == 2
        code, out, err = softmaxima_lse(str(tmp_path / name), "--json", "--unended")
        assert (code, err, json.loads(out)["maximum"]) == (0, "", 2.5)
    (tmp_path / "x.txt").write_text("1 2 3")  # as printf writes it
    assert json.loads(softmaxima_lse(str(tmp_path / "x.txt"), "--json")[1])["maximum"] == 3


def _streams() -> Iterator[tuple[bytes, str]]:
    """Arrow streams that are cut off between batches, or go on after their end."""
    whole = stream_bytes(scores(200))
    mark = b"\xff\xff\xff\xff"
    for found in list(re.finditer(mark, whole))[1:]:
        yield whole[: found.start()], "has no mark of its end after its last batch, as a stream that is cut off; write it again"
    yield whole + whole, "goes on after the end of its stream; write it again, one stream a file"
    yield whole + b"\0", "goes on after the end of its stream; write it again, one stream a file"


@pytest.mark.parametrize("trusted", [(), ("--trusted",)])
@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_a_stream_ends_at_its_mark(packed: str, trusted: tuple[str, ...], softmaxima_lse: Callable, tmp_path: Path):
    path, pack = tmp_path / f"x.arrows{packed}", {"": bytes, ".gz": gzip.compress, ".zst": _zstd}[packed]
    for content, said in _streams():
        path.write_bytes(pack(content))
        code, out, err = softmaxima_lse(str(path), "--column=score", *trusted)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err
        assert softmaxima_lse(str(path), "--column=score", "--unended")[0] == (0 if "mark" in said else 2)
    for spoilt in (slice(-6), slice(-1)) if packed == ".gz" else ():
        path.write_bytes(gzip.compress(stream_bytes(scores(200)))[spoilt])
        assert softmaxima_lse(str(path), "--column=score", *trusted)[0] == 2


def _zstd(content: bytes) -> bytes:
    return pytest.importorskip("numcodecs").Zstd(checksum=True).encode(content)


# Of tables whose later rows would be lost: what is said, where anything is.
QUOTED: dict[str, str | None] = {
    's,t\n1,"a\n2,b\n3,c\n': "the row of line 2 has a quote that is never closed; close it",
    's,t\n1,5" x\n2,"a\n3,c\n': "the row of line 3 has a quote that is never closed",
    's,t\n1,a\n\n3,"c\n': "the row of line 4 has a quote that is never closed",
    's,t\n1,a\nx,b\n3,"c\n': "the row of line 4 has a quote that is never closed",
    's;t\n1;a\n"3\n4;5\n': "the row of line 3 has a quote that is never closed",
    '"s","t"\n1,"a ""b"" \n c"\n2,5" x\n': None,
    's\n"1"\n2\n\n': None,
    "s": "is empty: no row came after its header, as of a file that is cut off; write it again",
    "s,t\n": "is empty: no row came after its header",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("text", QUOTED)
def test_no_quote_swallows_rows(text: str, encoding: str, softmaxima_lse: Callable, tmp_path: Path):
    (tmp_path / "x.csv").write_bytes(text.encode(encoding))
    code, out, err = softmaxima_lse(str(tmp_path / "x.csv"), "--column=s")
    said = QUOTED[text]
    assert (code, err.count("\n")) == ((0, 0) if said is None else (2, 1))
    assert ": 2 scores" in out if said is None else said in err
    if said is not None and "is empty" in said:
        assert softmaxima_lse(str(tmp_path / "x.csv"), "--column=s", "--unended")[0] == 0


# What is shown -------------------------------------------------------------------------------------------------------------------

HOSTILE = "a\x1b[2J\x9b\u202eb\u2066"  # clears a terminal, and turns letters round


def test_names_do_nothing_on_a_terminal(softmaxima_lse: Callable, tmp_path: Path):
    (path := tmp_path / f"{HOSTILE}.txt").write_text("1 2 3\n")
    (tmp_path / "x.txt").write_text("1 2 three\n")
    arrays: dict[str, Any] = {HOSTILE: np.zeros(3), "b": np.zeros(3)}
    np.savez(tmp_path / "x.npz", **arrays)
    (tmp_path / "x.csv").write_text("a\x1b[2J,b\n1,2\n", encoding="utf-8")
    code, out, err = softmaxima_lse(str(path))
    assert (code, err) == (0, "")
    assert out.startswith(str(tmp_path))
    assert "a�[2J��b�.txt: 3 scores" in out
    asked = ((str(path), "--json"), (str(path), "--dtype=int8"), (str(tmp_path / "x.npz"),), (str(tmp_path / "x.csv"),))
    for told in [out, *("".join(softmaxima_lse(*arguments)[1:]) for arguments in asked)]:
        assert told.count("\n") >= 1
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", told)
    assert json.loads(softmaxima_lse(str(path), "--json")[1])["file"] == str(path)
    assert "its first line holds a control character, '\\x1b'; take it out" in softmaxima_lse(str(tmp_path / "x.csv"))[2]


FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(1)", "\t=1", " =1", "x;=1", "x\n=1", "＝1")


def test_classes_are_no_formulas_and_stay_what_they_are_elsewhere(tmp_path: Path):
    from softmaxima_lab.compare.model import Predictions

    classes = (*FORMULAS, HOSTILE, "-1", "+2.5", "plain", "a-b")
    p = np.eye(len(classes))
    found = Predictions("y", classes, p, np.arange(1, len(p) + 1), (), None, 0)
    found.write(tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    cells = [row[1] for row in rows[1:]]
    assert cells[-4:] == ["-1", "+2.5", "plain", "a-b"]
    assert rows[0][-1] == "probability of a-b"
    for cell in [*rows[0], *cells[:-4]]:
        assert not any(part.lstrip().startswith(tuple("=+-@＝＋－＠")) for part in re.split("[;,|\t\n]", cell)), cell
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", cell)
    assert found.frame["predicted"].to_list() == list(classes)


@pytest.mark.parametrize("places", [3, 1])
def test_classes_that_are_different_are_so_in_a_table_and_on_a_terminal(places: int, tmp_path: Path):
    """Of all texts of so many of these letters, and those that the numbers of classes could make."""
    from softmaxima.base.writing import visible_lines
    from softmaxima_lab.compare.model import Predictions

    letters = ("'", "=", "-", "1", ";", "\t", "\x00", "\x01", " ", "\N{REPLACEMENT CHARACTER}")
    classes = tuple(dict.fromkeys(map("".join, itertools.product(letters, repeat=places))))
    classes += tuple(f"\N{REPLACEMENT CHARACTER} (class {number})" for number in range(12))
    found = Predictions("y", classes, np.eye(len(classes)), np.arange(1, len(classes) + 1), (), None, 0)
    found.write(tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(newline="") as file:
        heading, *rows = csv.reader(file)
    assert len(set(heading)) == len(heading)
    assert heading[2:] == [f"probability of {row[1]}" for row in rows]
    assert found.shown(visible_lines)["predicted"].n_unique() == len(classes)


def test_a_table_on_a_terminal_has_room_for_what_it_shows(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    from softmaxima_lab.commands.predict import show
    from softmaxima_lab.compare.model import Predictions

    monkeypatch.setenv("COLUMNS", "200")
    classes = ("\x1b[2Jred", "\x00\x01\x02blue", "\u202egreen")
    show(Predictions("y", classes, np.eye(3), np.arange(1, 4), (), None, 0))
    out = capsys.readouterr().out
    for name in ("�[2Jred", "���blue", "�green"):
        assert re.search(rf"^ *\d +{re.escape(name)} ", out, re.MULTILINE), out


def test_a_page_shows_what_would_turn_its_letters_round():
    from softmaxima_lab.pages.page import document, facts

    page = document(HOSTILE, HOSTILE, HOSTILE, [facts(HOSTILE, {"table": HOSTILE}, [HOSTILE])], [])
    before = page[: page.index("plotly")]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", before)
    assert "a�[2J��b�" in before


# Bombs ---------------------------------------------------------------------------------------------------------------------------

# With 1 GB as if it were 1 MB. Of each: what writes it, and what is said of it.
BOMBS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "zeros.csv.gz": (lambda path: path.write_bytes(gzip.compress(b"x\n" + b"0\n" * 2**20)), "is unpacked to more than"),
    "zeros.txt.zip": (lambda path: _packed(path, "zeros.txt", b"0 " * 2**20 + b"\n"), "is unpacked to more than"),
    "zeros.npy.gz": (lambda path: path.write_bytes(gzip.compress(npy_bytes(np.zeros(2**18)))), "is unpacked to more than"),
    "zeros.npz": (lambda path: np.savez_compressed(path, x=np.zeros(2**18)), "is unpacked to more than"),
    "line.csv": (
        lambda path: path.write_bytes(b"x,y\n" + b"1,2\n" * 2**16 + b"1" * 2**20 + b"\n"),
        "a row has 262144 letters or more",
    ),
    "row.csv": (
        lambda path: path.write_bytes(b"x,y\n" + b"1,2\n" * 2**16 + b'"\n",' * 2**17 + b"1\n"),
        "a row has 262144 letters or more",
    ),
    "word.txt": (
        lambda path: path.write_bytes(b"1 " * 1000 + b"1" * 2**20 + b"\n"),
        "'1{40}' in line 1 is no number; give numbers",
    ),
    "chunk.zarr": (lambda path: _chunk(path), "is unpacked to more than .* in one chunk"),
}


def _packed(path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)


def _chunk(path: Path) -> None:
    """An array of two scores in a chunk of 8 TB."""
    pytest.importorskip("zarr").create_array(path, data=np.ones(2), chunks=(2,))
    about = json.loads((path / "zarr.json").read_text())
    about["shape"] = about["chunk_grid"]["configuration"]["chunk_shape"] = [10**12]
    (path / "zarr.json").write_text(json.dumps(about))


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_made_to_fill_a_memory_is_told(
    name: str, softmaxima_lse: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for module in (source, stream, reading):
        monkeypatch.setattr(module, "most_unpacked", lambda packed: max(2**20, 100 * packed))
    monkeypatch.setattr(rows, "ROW", 2**18)
    write, said = BOMBS[name]
    write(tmp_path / name)
    tracemalloc.start()
    code, out, err = softmaxima_lse(str(tmp_path / name), *(("--column=x",) if ".csv" in name else ()))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(said, err)
    assert most < 3e8
    if name.startswith("zeros"):
        assert softmaxima_lse(str(tmp_path / name), "--trusted")[0] == 0
    if name.endswith((".csv.gz", ".npz")):
        with pytest.raises(InputError, match="is unpacked to more than"):
            reading.read_frame(tmp_path / name)


UNPACKED = 2**29  # zeros


def _zeros(wbits: int) -> bytes:
    packer = zlib.compressobj(1, wbits=wbits)
    return b"".join([*(packer.compress(bytes(2**24)) for _ in range(UNPACKED >> 24)), packer.flush()])


def _gzip_chunk(path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    zarr.create_array(path, data=np.ones(9), compressors=[zarr.codecs.GzipCodec()])
    (path / "c" / "0").write_bytes(_zeros(31))


def _zstandard_chunk(path: Path) -> None:
    pytest.importorskip("zarr").create_array(path, data=np.ones(9))
    (path / "c" / "0").write_bytes(pytest.importorskip("numcodecs").Zstd().encode(bytes(UNPACKED)))


def _deflated_chunk(path: Path) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("x", (9,), "f8", chunks=(9,), compression="gzip").id.write_direct_chunk((0,), _zeros(15))


def _buffer(path: Path) -> None:
    table = pytest.importorskip("pyarrow").table({"x": np.zeros(UNPACKED >> 3)})
    pytest.importorskip("pyarrow.feather").write_feather(table, path, compression="zstd", chunksize=UNPACKED)


def _stated(path: Path) -> None:
    pytest.importorskip("zarr").create_array(path, shape=(2**60,), chunks=(2**10,), dtype="f4")


def _holes(path: Path) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("x", (2**40,), "f4")[0] = 1


def _deep_groups(path: Path) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_group("/".join("g" * 3000))["x"] = np.ones(3)


def _deep_folders(path: Path) -> None:
    pytest.importorskip("zarr").create_group(path)
    for _ in range(1500):
        path = path / "g"
        path.mkdir()


# Of what libraries unpack, or walk through, in one call: what is said.
UNSEEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "gzip.zarr": (_gzip_chunk, "memory ran out"),
    "zstandard.zarr": (_zstandard_chunk, "memory ran out"),
    "deflated.h5": (_deflated_chunk, "takes more memory than a file may that nobody trusts"),
    "buffer.feather": (_buffer, "memory ran out"),
    "stated.zarr": (_stated, "is unpacked to more than"),
    "holes.h5": (_holes, "is unpacked to more than"),
    "deep.h5": (_deep_groups, "more than 200 deep"),
    "deep.zarr": (_deep_folders, "too many deep"),
}


# In a process of its own, for what one has taken before counts too.
BOUNDED = """
import sys
from softmaxima_lab.commands import main
from softmaxima_lab.tables import reading
sys.modules["softmaxima_lab.commands.lse"].UNTRUSTED = 2**28
reading.most_unpacked = lambda packed: 2**27
main(sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="which alone bounds the memory of a process")
@pytest.mark.parametrize("name", UNSEEN)
def test_what_a_library_unpacks_in_one_call_is_bounded(name: str, tmp_path: Path, request: pytest.FixtureRequest):
    write, said = UNSEEN[name]
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", str(tmp_path / name)], check=True))  # pytest cannot, so deep
    write(tmp_path / name)
    for command in ("lse", "compare") if name == "buffer.feather" else ("lse",):
        asked = [sys.executable, "-c", BOUNDED, command, str(tmp_path / name)]
        ended = subprocess.run(asked, capture_output=True, text=True, timeout=20, cwd=tmp_path)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert said in ended.stderr


def test_parts_of_an_array_are_found_before_they_are_made():
    many = chunked._Regions((2**30, 2**30), (1, 2**10), 1)
    assert many[len(many) - 1] + source.PIECE >= 2**60
    small, taken = chunked._Regions((5, 7, 3), (2, 3, 2), source.PIECE), 0
    for number in range(len(small)):
        assert small[number] == taken
        taken += source.PIECE * np.empty((5, 7, 3))[small.region(number)].size
    assert (len(small), taken) == (18, source.PIECE * 5 * 7 * 3)


@pytest.mark.parametrize("blank", [b"\n\n", b" ,\n", b"\xef\xbb\xbf\n", b" " * 5000 + b"\n"])
def test_blanks_are_as_empty_as_nothing(blank: bytes, softmaxima_lse: Callable, tmp_path: Path):
    (tmp_path / "x.txt").write_bytes(blank)
    code, out, err = softmaxima_lse(str(tmp_path / "x.txt"))
    assert (code, out) == (2, "")
    assert "is empty: nothing but blanks came" in err


@pytest.mark.parametrize("digits", [1001, 2**17 + 1, 2**23 + 1])
def test_a_number_that_is_too_long_is_no_infinity(digits: int, softmaxima_lse: Callable, tmp_path: Path):
    (tmp_path / "x.csv").write_bytes(b"x,y\n1,2\n" + b"1" * digits + b",2\n3,4\n")
    code, out, err = softmaxima_lse(str(tmp_path / "x.csv"), "--column=x")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.filterwarnings("default")
def test_a_silent_pipe_is_told(softmaxima_lse: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "SILENCE", 0.1)
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Timer(0.5, (tmp_path / "pipe").write_text, ["1 2 3\n"])
    writer.start()
    code, out, err = softmaxima_lse(str(tmp_path / "pipe"))
    writer.join()
    assert (code, ": 3 scores" in out, err.count("\n")) == (0, True, 1)
    assert "is a pipe, and nothing has come of it in 0.1 s; waiting for what writes to it" in err


def test_a_table_of_very_many_columns_is_told(tmp_path: Path):
    (tmp_path / "wide.csv").write_text(f"{','.join(f'c{i}' for i in range(200_000))}\n{'1,' * 199_999}1\n")
    with pytest.raises(InputError, match="has 200000 columns, and a table to train on has at most 100000"):
        reading.read_frame(tmp_path / "wide.csv")
