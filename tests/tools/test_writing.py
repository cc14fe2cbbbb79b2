"""Files that are written: whole or not at all, through links, and into what is no regular file."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from softmaxima.base import writing
from softmaxima.base.writing import write_text
from softmaxima.io.checkpoint import Checkpoint, Fingerprint
from softmaxima.io.state import LogSumExpState


def save_checkpoint(path: Path) -> None:
    Checkpoint("x.npy", Fingerprint(0, 0, "", ""), {}, LogSumExpState()).save(path)


def write_benchmark(path: Path) -> None:
    from softmaxima_lab.bench.record import write
    from softmaxima_lab.bench.run import Settings, bench

    write(bench(Settings(cases=("softmax",), shapes=("4x8",), peers=(), threads=1, quick=True)), path)


WRITERS = [save_checkpoint, write_benchmark, lambda path: write_text(path, "scores")]


@pytest.mark.parametrize("write", WRITERS)
def test_a_link_stays_and_its_file_is_written(write: Callable, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "file", tmp_path / "link"
    link.symlink_to(file)
    for _ in range(2):  # of a file that is not there yet, and of one that is
        write(link)
        assert link.readlink() == file
        assert file.stat().st_size > 0
        assert not file.is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "link", "there"]


@pytest.mark.parametrize("write", WRITERS)
def test_what_is_no_regular_file_is_written_to_and_stays(write: Callable, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write(pipe)
    reader.join(10)
    assert len(read[0]) > 5
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("write", WRITERS)
def test_a_full_disk_leaves_what_was_there(write: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing.os, "fsync", full)
    (tmp_path / "file").write_text("before")
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "file")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize("write", WRITERS)
def test_what_is_written_goes_through_no_name_that_others_foresee(write: Callable, tmp_path: Path) -> None:
    opened: list[tuple[str, int]] = []
    audited = lambda event, found: opened.append((str(found[0]), found[2])) if event == "open" and watched else None
    watched = True
    sys.addaudithook(audited)
    for _ in range(2):
        write(tmp_path / "file")
    watched = False
    partial = [(path, flags) for path, flags in opened if path.startswith(str(tmp_path)) and flags & os.O_CREAT]
    assert len(dict(partial)) == len(partial) == 2
    assert all(flags & os.O_EXCL for _, flags in partial)  # with which no link is followed
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_others_may_not_read_stays_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o600)
    write_text(tmp_path / "file", "scores")
    write_text(tmp_path / ("n" * 255), "a name as long as names may be")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
