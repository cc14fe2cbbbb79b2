"""What SECURITY.md promises of files that strangers wrote: of each what must happen, and that nothing else does."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import softmaxima as sm
from score_files import FORMATS, npy_bytes, scores, text_bytes
from softmaxima.core.numbers import InputError

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
CHECKED: dict[str, tuple[str, Callable[[Path, np.ndarray], None]]] = {
    "pages of Parquet": (".parquet", _parquet),
    "HDF5's fletcher32": (".h5", _fletcher32),
    "Zarr's crc32c": (".zarr", _zarr),
    "crc32 of Zarr 2": (".zarr", _zarr2),
    "zip": (".npy.zip", _zip),
    "NPZ": (".npz", lambda path, x: np.savez(path, score=x)),
    "gzip": (".npy.gz", lambda path, x: path.write_bytes(gzip.compress(npy_bytes(x), 0))),
    "text in gzip": (".txt.gz", lambda path, x: path.write_bytes(gzip.compress(text_bytes(x) + b"\n", 0))),
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
        asked = {"column": "score"} if kind.startswith("pages") else {}
        assert sm.file_logsumexp(path, **asked).n == 3000
        _spoilt(path, at)
        with pytest.raises(InputError, match="cannot be read"):
            sm.file_logsumexp(path, **asked)


def test_a_table_to_train_on_has_its_pages_checked(tmp_path: Path):
    from softmaxima.experiments.reading import read_frame

    _parquet(tmp_path / "table.parquet", scores(3000))
    assert read_frame(tmp_path / "table.parquet").frame.height == 3000
    _spoilt(tmp_path / "table.parquet", 0.5)
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_frame(tmp_path / "table.parquet")


@pytest.mark.parametrize("kind", FORMATS)
def test_damage_anywhere_is_a_sentence_or_another_sum(kind: str, tmp_path: Path):
    suffix, options, write = FORMATS[kind]
    path, chance = tmp_path / f"file{suffix}", np.random.default_rng(0)
    asked: dict[str, str] = dict(option.removeprefix("--").split("=") for option in options)  # type: ignore[misc]
    write(path, scores(20, 11))
    files = sorted(file for file in [path, *path.rglob("*")] if file.is_file())
    for _ in range(60):
        file = files[chance.integers(len(files))]
        whole = file.read_bytes()
        spoilt, at = bytearray(whole), chance.integers(len(whole))
        spoilt[at : at + 4] = chance.bytes(4)
        file.write_bytes(spoilt[: len(spoilt) if chance.random() < 0.8 else at])
        try:
            sm.file_logsumexp(path, **asked)  # type: ignore[arg-type]
        except InputError as error:
            assert "\n" not in str(error)
        file.write_bytes(whole)
