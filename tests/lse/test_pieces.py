"""Several files, patterns and URLs, and files cut into pieces: each gives the sum of one file, whoever reads which piece."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import softmaxima as sm
from score_files import FORMATS, named, of_all, scores
from softmaxima.base import places
from softmaxima.base.numbers import InputError
from softmaxima.base.places import Remote, found
from softmaxima.io import checkpoint, pieces
from softmaxima.io.files import Request
from softmaxima.io.formats import chunked, columns, plain, source
from softmaxima.io.pieces import Plan, cut

fsspec = pytest.importorskip("fsspec")
MemoryFileSystem = fsspec.get_filesystem_class("memory")

# What need not be read from its beginning.
IN_PARTS = ("npy", "fortran", "big-endian", "structured", "fields", "raw", "parquet", "vectors")
IN_PARTS += ("arrow", "feather", "hdf5", "hdf5 fields", "zarr")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and pieces of a few scores, so that small files have many."""
    monkeypatch.setattr(source, "CACHED", 400)
    monkeypatch.setattr(source, "PIECE", 100)
    monkeypatch.setattr(pieces, "LEAST", 1000)


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder of fsspec's, in memory."""
    yield "memory://scores"
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def request_of(options: tuple[str, ...]) -> Request:
    given = named(options)
    return Request.of("test", given.get("column"), given.get("dtype"), 1.0, None, 0.0, True, "trusted" in given)


def merged(plan: Plan) -> sm.LogSumExpState:
    return functools.reduce(sm.LogSumExpState.merge, [pickle.loads(pickle.dumps(piece)).state() for piece in plan.pieces])


def bits(state: sm.LogSumExpState) -> list:
    """All that a state holds."""
    return [state.maximum, state.count, *state.rest.scaled, *(state.squares.scaled if state.squares else ()), state.n]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_summed_by_pieces_here_and_elsewhere(kind: str, memory: str, tmp_path: Path) -> None:
    suffix, options, write = FORMATS[kind]
    x, path = scores(50, 61), tmp_path / f"file{suffix}"
    write(path, x)
    url = f"{memory}/file{suffix}"
    fsspec.filesystem("memory").put(str(path), url, recursive=True)
    request, truth = request_of(options), of_all(x)
    p = np.exp(x.astype(np.float64) - truth)
    for place in (path, Remote(url)):
        plan = Plan.of(place, request)
        state = merged(plan)
        assert (int(state.n), float(state.maximum), int(state.count)) == (x.size, float(x.max()), 1)
        assert float(state.value) == pytest.approx(truth, abs=1e-7)
        assert float(state.effective_size) == pytest.approx(1 / float((p**2).sum()), rel=1e-6)
        in_parts = kind in IN_PARTS and not (isinstance(place, Remote) and kind in ("arrow", "feather", "vectors"))
        assert (len(plan.pieces) > 5) == in_parts
        assert plan.pieces[0].start == 0
        assert [piece.start for piece in plan.pieces[1:]] == [piece.stop for piece in plan.pieces[:-1]]
        assert plan.pieces[-1].stop in (None, x.size)
        plan.check()
    whole = sm.file_logsumexp(url, **named(options))
    assert float(whole.value) == pytest.approx(truth, abs=1e-7)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", IN_PARTS)
def test_a_piece_reads_no_more_than_its_own(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suffix, options, write = FORMATS[kind]
    x, path = scores(50, 61), tmp_path / f"file{suffix}"
    write(path, x)
    plan, seen = Plan.of(path, request_of(options)), []
    for name, module in itertools.product(("first_scores", "skip_scores"), (chunked, columns, plain)):
        old = getattr(module, name)
        counted = lambda blocks, n, old=old: old((seen.append(len(block)) or block for block in blocks), n)
        monkeypatch.setattr(module, name, counted)
    piece = plan.pieces[-2]
    assert piece.stop is not None
    assert int(piece.state().n) == piece.stop - piece.start
    assert sum(seen) <= 2 * (piece.stop - piece.start)  # each is counted twice at most


def test_pieces_begin_where_parts_do_and_are_not_small() -> None:
    assert list(cut([0], 0, 10)) == [(0, 0)]
    assert list(cut(range(0, 100, 7), 100, 20)) == [(0, 21), (21, 42), (42, 63), (63, 84), (84, 100)]
    assert list(cut([0, 0, 50, 50], 60, 1)) == [(0, 50), (50, 60)]  # row groups of no rows
    assert list(cut([0, 10], 20, 100)) == [(0, 20)]


def test_empty_row_groups_and_files_of_no_scores(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    schema = pyarrow.schema([("x", pyarrow.float64())])
    for lengths in ((), (0,), (0, 3, 0, 2, 0)):
        with parquet.ParquetWriter(tmp_path / "x.parquet", schema) as writer:
            for n in lengths:
                writer.write_table(pyarrow.table({"x": np.zeros(n)}, schema))
        state = merged(Plan.of(tmp_path / "x.parquet", request_of(())))
        assert (int(state.n), float(np.exp(state.value))) == (sum(lengths), pytest.approx(sum(lengths)))
        assert int(sm.file_logsumexp(tmp_path / "x.parquet").n) == sum(lengths)
    np.save(tmp_path / "x.npy", np.zeros(0))
    assert merged(Plan.of(tmp_path / "x.npy", request_of(()))).value == -np.inf


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["parquet", "zarr", "raw"])
def test_a_piece_that_cannot_be_read_is_named(kind: str, tmp_path: Path) -> None:
    suffix, options, write = FORMATS[kind]
    x, path = scores(50, 61), tmp_path / f"file{suffix}"
    write(path, x)
    plan = Plan.of(path, request_of(options))
    spoilt = plan.pieces[2]
    if kind == "zarr":
        for chunk in path.glob("score/c/*/*"):
            chunk.write_bytes(b"nothing of the kind")
    elif kind == "raw":
        path.write_bytes(path.read_bytes()[: 4 * spoilt.start])
        path.write_bytes(path.read_bytes() + bytes(3))
    else:
        data = bytearray(path.read_bytes())
        data[1000 : len(data) - 3000] = bytes(len(data) - 4000)
        path.write_bytes(data)
    with pytest.raises(InputError) as raised:
        spoilt.state()
    named = f"{path}, scores {spoilt.start + 1} to {spoilt.stop} of 3050"
    assert str(raised.value).startswith((f"{named}, cannot be read (", f"{named}: "))
    assert "\n" not in str(raised.value)


def test_a_file_that_changed_since_it_was_cut_is_told(memory: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", scores(10))
    url = f"{memory}/x.npy"
    fsspec.filesystem("memory").put(str(tmp_path / "x.npy"), url)
    local, remote = (Plan.of(place, request_of(())) for place in (tmp_path / "x.npy", Remote(url)))
    np.save(tmp_path / "x.npy", scores(11))
    with pytest.raises(InputError, match=r"x.npy has grown from 168 to 172 bytes while it was read"):
        local.check()
    remote.check()
    fsspec.filesystem("memory").put(str(tmp_path / "x.npy"), url)
    with pytest.raises(InputError, match=r"memory://scores/x.npy has grown from 168 to 172 bytes while it was read"):
        remote.check()


class Servers(MemoryFileSystem):
    """Files of several servers under two names, as those of SFTP and of Google; the server is no part of a path."""

    protocol = ("fake", "false")
    told: ClassVar[dict[str, Any]] = {}

    def __init__(self, host: str = "", **options: Any) -> None:
        super().__init__(**options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.partition("://")[2].partition("/")[2] if "://" in path else path)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"host": path.partition("://")[2].partition("/")[0]}

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return super().info(path, **options) | {key: value() for key, value in self.told.items()}


@pytest.fixture
def servers(memory: str, monkeypatch: pytest.MonkeyPatch) -> type[Servers]:
    for protocol in Servers.protocol:
        fsspec.register_implementation(protocol, Servers, clobber=True)
    monkeypatch.setattr(Servers, "told", {})
    return Servers


def test_what_changes_beside_the_file_is_no_change(servers: type[Servers]) -> None:
    """As the address that a web server redirects to, which is signed anew each time, and when a file was last read."""
    fsspec.filesystem("memory").pipe("/x.npy", b"")
    count = itertools.count()
    beside = {"url": lambda: f"https://there/x?signature={next(count)}", "time": lambda: next(count), "atime": lambda: next(count)}
    servers.told = beside | {"ETag": lambda: "same"}
    before = Remote("fake://one/x.npy").version()
    assert Remote("fake://one/x.npy").version() == before
    for key in ("ETag", "last_modified", "LastModified", "Last-Modified", "mtime", "VersionId", "generation", "md5Hash"):
        servers.told = beside | {key: lambda: "one"}
        before = Remote("fake://one/x.npy").version()
        servers.told = beside | {key: lambda: "other"}
        assert Remote("fake://one/x.npy").version() != before
    servers.told = beside
    before = Remote("fake://one/x.npy").version()
    fsspec.filesystem("memory").pipe("/x.npy", b"")
    assert Remote("fake://one/x.npy").version() != before  # of another time, in memory


# Several files ------------------------------------------------------------------------------------------------------------


def test_a_server_that_does_not_answer_is_no_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def info(place: Remote, *causes: Exception) -> Any:
        raise FileNotFoundError("fake://one/x.npy") from (causes or [None])[0]

    monkeypatch.setattr(Remote, "_info", info)
    assert not Remote("fake://one/x.npy").exists()
    monkeypatch.setattr(Remote, "_info", lambda place: info(place, ConnectionError("refused")))
    with pytest.raises(OSError, match="refused"):
        Remote("fake://one/x.npy").exists()


def test_several_files_are_one_sum_in_the_order_of_their_names(softmaxima_lse: Callable, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = scores(4, 700)
    for i in (2, 0, 3, 1):
        np.save(f"part-{i}.npy", x[i])
    (tmp_path / "part-4.txt.gz").write_bytes(gzip.compress(b"1 2 3"))
    (tmp_path / "part-5.txt").write_text("4 5")
    np.save("part-6.npy", np.array([6, 7], np.int8))
    truth = of_all(np.concatenate([x.ravel(), np.arange(1.0, 8.0)]))
    told = []
    state = sm.file_logsumexp(
        "part-*", effective_size=True, progress=lambda done, s: told.append((done, s.bytes_read(done), s.name))
    )
    assert (int(state.n), float(state.value)) == (2807, pytest.approx(truth, abs=1e-7))
    assert told[0][0] == 0
    assert told == sorted(told)
    size = told[0][1][1]
    assert told[-1] == (2807, (size, size), "7 files")
    assert [str(place) for place in found("test", ["part-3.npy", "part-[01]*"])] == ["part-3.npy", "part-0.npy", "part-1.npy"]
    code, out, err = softmaxima_lse("part-*", "--json", "--bounds", "--effective-size")
    shown = json.loads(out)
    assert (code, err, shown["logsumexp"], shown["scores"]) == (0, "", float(state.value), 2807)
    assert shown["effective_size"] == float(state.effective_size)
    assert shown["files"] == [f"part-{i}.npy" for i in range(4)] + ["part-4.txt.gz", "part-5.txt", "part-6.npy"]
    assert shown["bounds"]["tightest"][0] <= truth <= shown["bounds"]["tightest"][1]
    assert softmaxima_lse("part-*")[1].startswith("part-* (7 files): 2807 scores\n")
    assert softmaxima_lse("part-0.npy", "part-1.npy")[1].startswith("part-0.npy and 1 more: 1400 scores\n")
    assert json.loads(softmaxima_lse("part-0*", "--json")[1])["file"] == "part-0.npy"


def test_a_name_with_brackets_is_a_file_and_a_pattern_may_go_deep(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("x[1].txt", "x1.txt", "a/b/y.txt"):
        (tmp_path / name).write_text("0")
    assert found("test", tmp_path / "x[1].txt") == [tmp_path / "x[1].txt"]
    assert found("test", f"{tmp_path}/x[0-9].txt") == [tmp_path / "x1.txt"]
    assert found("test", f"file://{tmp_path}/**/y.txt") == [tmp_path / "a/b/y.txt"]


def test_a_file_that_is_meant_twice_is_summed_once(
    softmaxima_lse: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = scores(3, 10)
    for i in range(3):
        np.save(f"part-{i}.npy", x[i])
    os.symlink("part-1.npy", "part-1-again.npy")
    os.symlink(".", "here")
    whole = of_all(x)
    for given in (
        ("part-*.npy",),
        ("part-*.npy", "part-[12].npy", "./part-0.npy"),
        ("part-0.npy", "part-1-again.npy", str(tmp_path / "part-2.npy"), "part-1.npy", "here/part-0.npy", "part-0.npy"),
    ):
        state = sm.file_logsumexp(given)
        assert int(state.n) == x.size
        assert float(state.value) == pytest.approx(whole, rel=1e-14)
        code, out, err = softmaxima_lse(*given)
        assert (code, err) == (0, "")
        assert "30 scores" in out.splitlines()[0]
    assert [str(place) for place in found("test", ["here/part-0.npy", "part-0.npy"])] == ["here/part-0.npy"]
    assert softmaxima_lse("part-0.npy", "./part-0.npy")[1].startswith("part-0.npy: 10 scores")


def test_a_url_that_is_meant_twice_is_summed_once(memory: str, servers: type[Servers], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = scores(2, 10)
    for i in range(2):
        np.save(f"p{i}.npy", x[i])
        fsspec.filesystem("memory").put(f"p{i}.npy", f"memory://b/p{i}.npy")
        fsspec.filesystem("memory").put(f"p{i}.npy", f"memory://d/p{i}.npy")
    os.symlink("p0.npy", "again.npy")
    with zipfile.ZipFile("one.zip", "w") as archive:
        for i in range(2):
            archive.write(f"p{i}.npy")
    shutil.copy("one.zip", "two.zip")
    for given, found_once in (
        (["memory://b/p*.npy", "memory://b/p0.npy"], ["memory://b/p0.npy", "memory://b/p1.npy"]),
        (["memory://b/p0.npy", "memory:///b/p0.npy", "memory:///b/p[1].npy"], ["memory://b/p0.npy", "memory:///b/p1.npy"]),
        (
            ["p0.npy", f"local://{tmp_path}/p0.npy", f"file://{tmp_path}/again.npy", "p1.npy", "local://p1.npy"],
            ["p0.npy", "p1.npy"],
        ),
        (["fake://one/d/p*.npy", "false://one/d/p0.npy"], ["fake://one/d/p0.npy", "fake://one/d/p1.npy"]),
        (["zip://p*.npy::one.zip", "zip://p1.npy::one.zip"], ["zip://p0.npy::one.zip", "zip://p1.npy::one.zip"]),
    ):
        assert [str(place) for place in found("test", given)] == found_once
        assert float(sm.file_logsumexp(given).value) == pytest.approx(of_all(x), rel=1e-14)
    for other in (["fake://one/d/p0.npy", "false://two/d/p0.npy"], ["zip://p0.npy::one.zip", "zip://p0.npy::two.zip"]):
        assert [str(place) for place in found("test", other)] == other  # the same path elsewhere


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("q-*.npy",), "no file matches q-*.npy; give another pattern, or a path to an existing file"),
        (("sub/no.npy", "x.npy"), "sub/no.npy cannot be read (the magic string is not correct"),
        (("sub/none.npy",), "there is no file sub/none.npy"),
        (("sub/empty.npy",), "sub/empty.npy is empty"),
        (("sub/cut.npy",), "sub/cut.npy is cut off"),
        (("x.npy", "-"), "standard input is one of several files; give it alone"),
        (("x.npy", "pipe"), "pipe cannot be one of several files, for it can be read once alone; give a file"),
        (("x.npy", "absent.npy"), "there is no file absent.npy"),
        (("x.npy", "no.npy"), "no.npy cannot be read (the magic string is not correct"),
        (("x.npy", ""), "a path is empty; name a file"),
        (("*.npy", "--checkpoint=c"), "--checkpoint is of one file, and these are 2; leave it out, or sum one file at a time"),
        (("*.npy", "--estimate=0.1"), "--estimate draws from one file of this machine, got *.npy (2 files); leave it out"),
        (("memory://x.npy", "--estimate=0.1"), "--estimate draws from one file of this machine, got memory://x.npy"),
        (("memory://none-*.npy",), "no file matches memory://none-*.npy"),
        (("memory://none.npy",), "there is no file memory://none.npy"),
        (("s3://bucket/x.npy",), "s3:// needs s3fs, which is not installed: pip install s3fs"),
        (("odd://bucket/x.npy",), "odd://bucket/x.npy cannot be reached (Protocol not known: odd)"),
        (("x.npy", "--workers=0"), "--workers must be an int of at least 1, got 0"),
        (("x.npy", "--workers=1", "--dask=tcp://h:1"), "--workers begins workers, and --dask takes those that there are"),
        (("x.npy", "--workers=1", "--bounds"), "--bounds is of scores that one process reads"),
        (("x.npy", "--workers=1", "--checkpoint=c"), "--checkpoint is of scores that one process reads"),
        (("x.npy", "--workers=1", "--estimate=0.1"), "--estimate draws from a file of this machine; leave out --workers"),
        (("-", "--workers=1"), "standard input cannot be read in pieces, for it can be read once alone; give a file"),
        (("pipe", "--workers=1"), "pipe cannot be read in pieces"),
        (("x.npy", "--dask=foo"), "no scheduler of Dask answers at 'foo' (missing port number"),
    ],
)
def test_what_cannot_be_summed_is_said_in_one_line(
    given: tuple[str, ...], message: str, softmaxima_lse: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    np.save("x.npy", scores(10))
    (tmp_path / "no.npy").write_bytes(b"nothing of the kind")
    os.mkfifo("pipe")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "no.npy").write_bytes(b"nothing of the kind")
    (tmp_path / "sub" / "empty.npy").touch()
    (tmp_path / "sub" / "cut.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-8])
    code, out, err = softmaxima_lse(*given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_paths_are_paths() -> None:
    for wrong in (3, ["x.npy", 3], [None]):
        with pytest.raises(TypeError, match=r"file_logsumexp: path must be a path, got (3|None); pass a str or a pathlib.Path"):
            sm.file_logsumexp(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="file_logsumexp: path holds no paths; name a file"):
        sm.file_logsumexp([])


def test_urls_need_their_library_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", scores(10))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert int(sm.file_logsumexp(f"file://{tmp_path}/x.npy").n) == 10
    with pytest.raises(InputError, match="memory:// needs fsspec, which is not installed: pip install fsspec"):
        sm.file_logsumexp("memory://x.npy")


def test_a_url_has_a_checkpoint_too(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CACHED", 400)
    np.save(tmp_path / "x.npy", scores(1000))
    fsspec.filesystem("memory").put(str(tmp_path / "x.npy"), url := f"{memory}/x.npy")
    place = tmp_path / "checkpoint"

    def stop(done: int, scores: source.Scores) -> None:
        if done > 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sm.file_logsumexp(url, checkpoint=place, progress=stop)
    kept = checkpoint.Checkpoint.load(place)
    assert (kept.file, 500 < kept.state.n < 1000) == (url, True)
    assert float(sm.file_logsumexp(url, checkpoint=place).value) == pytest.approx(of_all(scores(1000)), abs=1e-7)


def test_what_a_server_raises_is_one_line(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials\nwere found")

    np.save(tmp_path / "x.npy", scores(10))
    fsspec.filesystem("memory").put(str(tmp_path / "x.npy"), url := f"{memory}/x.npy")
    system = type(fsspec.filesystem("memory"))
    for name in ("open", "info"):
        with monkeypatch.context() as patch:
            patch.setattr(system, name, refused)
            with pytest.raises(InputError, match=r"cannot be read \(RuntimeError: no credentials\); check that it is whole"):
                sm.file_logsumexp(url)
    with monkeypatch.context() as patch:
        patch.setattr(system, "glob", refused)
        with pytest.raises(InputError, match=r"memory://\*.npy cannot be listed \(RuntimeError: no credentials"):
            places.found("test", "memory://*.npy")


def test_files_of_other_places_are_summed_without_torch_and_dask(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", scores(10))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
    code = (
        "import sys, softmaxima as sm\n"
        f"assert sm.file_logsumexp(['zip://*.npy::{tmp_path}/x.zip']).n == 10\n"
        "assert not {'torch', 'dask', 'distributed'} & {*sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_server_that_gives_no_parts_of_a_file_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library raises an error of its own, as that of HTTP does."""
    with fsspec.open("memory://parts/x.npy", "wb") as file:
        np.save(file, scores(5000))

    def wrong(done: int, of: object) -> None:
        raise ValueError("of who watches")

    with pytest.raises(ValueError, match=r"^of who watches$"):
        sm.file_logsumexp("memory://parts/x.npy", progress=wrong)

    def opened(path: Remote, mode: str = "rb", buffering: int = -1, old=Remote.open) -> Any:
        file = old(path, mode, buffering)
        file.readinto = failed
        return file

    def failed(data: Any) -> int:
        raise ValueError("The server does not support range requests.")

    monkeypatch.setattr(Remote, "open", opened)
    with pytest.raises(InputError, match=r"x.npy cannot be read \(The server does not .* requests\); .*, or download it first$"):
        sm.file_logsumexp("memory://parts/x.npy")
