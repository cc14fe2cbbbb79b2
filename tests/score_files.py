"""Scores in files of every format, for tests."""

from __future__ import annotations

import gzip
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


def scores(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (3 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)


def of_all(x: np.ndarray) -> float:
    return float(torch.logsumexp(torch.from_numpy(x.astype(np.float64)).flatten(), 0))


def npy_bytes(x: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


def write_parquet(path: Path, x: np.ndarray) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"id": np.arange(x.size), "score": x.ravel()}), path, row_group_size=70)


def write_arrow(path: Path, x: np.ndarray) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"id": np.arange(x.size), "score": x.ravel()})
    with pyarrow.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=70)


def write_arrow_stream(path: Any, x: np.ndarray) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"id": np.arange(x.size), "score": x.ravel()})
    with pyarrow.ipc.new_stream(path if hasattr(path, "write") else str(path), table.schema) as file:
        file.write_table(table, max_chunksize=70)


def write_feather_v1(path: Path, x: np.ndarray) -> None:
    pyarrow, feather = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        feather.write_feather(pyarrow.table({"id": np.arange(x.size), "score": x.ravel()}), path, version=1)


def write_lists(path: Path, x: np.ndarray) -> None:
    """Of no scores, one, two and so on."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cuts = np.cumsum(np.arange(x.size))
    lists = [part.tolist() for part in np.split(x.ravel(), cuts[cuts < x.size])]
    parquet.write_table(pyarrow.table({"score": pyarrow.array(lists, pyarrow.list_(pyarrow.float32()))}), path, row_group_size=7)


def write_vectors(path: Path, x: np.ndarray) -> None:
    pyarrow, feather = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), x.shape[-1])
    feather.write_feather(pyarrow.table({"id": np.arange(len(vectors)), "score": vectors}), path, chunksize=7)


def separated(mark: str, point: str) -> Callable[[Path, np.ndarray], None]:
    def write(path: Path, x: np.ndarray) -> None:
        pytest.importorskip("pyarrow")
        rows = (f"{i}{mark}name{mark}{score!r}".replace(".", point) for i, score in enumerate(x.ravel().tolist()))
        path.write_text("".join(f"{row}\n" for row in (mark.join(("id", "name", "score")), *rows)))

    return write


def csv_bytes(x: np.ndarray) -> bytes:
    pytest.importorskip("pyarrow")
    rows = (f"{i},name {i},{score!r}" for i, score in enumerate(x.ravel().tolist()))
    return "".join(f"{row}\r\n" for row in ("id,name,score", *rows)).encode()


def bare_csv_bytes(x: np.ndarray) -> bytes:
    pytest.importorskip("pyarrow")
    return b"".join(b"%r\n" % score for score in x.ravel().tolist())


def text_bytes(x: np.ndarray) -> bytes:
    return " ".join(map(repr, x.ravel().tolist())).encode() + b"\n"


def stream_bytes(x: np.ndarray) -> bytes:
    file = io.BytesIO()
    write_arrow_stream(file, x)
    return file.getvalue()


def gzipped(content: Callable[[np.ndarray], bytes]) -> Callable[[Path, np.ndarray], None]:
    """In two members, as `cat a.gz b.gz` makes them."""

    def write(path: Path, x: np.ndarray) -> None:
        whole = content(x)
        path.write_bytes(gzip.compress(whole[:1000]) + gzip.compress(whole[1000:]))

    return write


def zstandard(content: Callable[[np.ndarray], bytes]) -> Callable[[Path, np.ndarray], None]:
    def write(path: Path, x: np.ndarray) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        path.write_bytes(pyarrow.compress(content(x), "zstd", asbytes=True))

    return write


def write_hdf5(path: Path, x: np.ndarray) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("model/score", data=x, chunks=(7, 5))
        file["id"] = np.arange(3)


def fields(x: np.ndarray) -> np.ndarray:
    """The scores as rows in a field within a field."""
    table = np.zeros(len(x), [("id", "i2"), ("held", [("score", "f4", x.shape[1:])])])
    table["held"]["score"] = x
    return table


def write_hdf5_fields(path: Path, x: np.ndarray) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("model", data=fields(x), chunks=(7,))


def write_zarr(path: Path, x: np.ndarray) -> None:
    group = pytest.importorskip("zarr").open_group(path, mode="w")
    group.create_array("score", data=x, chunks=(7, 5))
    group.create_array("id", data=np.arange(3))


def write_structured(path: Path, x: np.ndarray) -> None:
    table = np.zeros(x.size, [("id", "i2"), ("score", "f4")])
    table["score"] = x.ravel()
    np.save(path, table)


def write_fortran(path: Path, x: np.ndarray) -> None:
    np.save(path, np.asfortranarray(x))


def named(options: tuple[str, ...]) -> dict[str, Any]:
    """What the command's options are called by functions."""
    given = (option.removeprefix("--").partition("=") for option in options)
    return {name: value if equals else True for name, equals, value in given}


FORMATS: dict[str, tuple[str, tuple[str, ...], Callable[[Path, np.ndarray], None]]] = {
    "npy": (".npy", (), np.save),
    "fortran": (".npy", (), write_fortran),
    "big-endian": (".npy", (), lambda path, x: np.save(path, x.astype(">f4"))),
    "structured": (".npy", ("--column=score",), write_structured),
    "fields": (".npy", ("--column=held.score",), lambda path, x: np.save(path, fields(x))),
    "npz": (".npz", ("--column=score",), lambda path, x: np.savez(path, score=x, id=np.arange(3))),
    "compressed": (".npz", (), lambda path, x: np.savez_compressed(path, score=x)),
    "raw": (".bin", ("--dtype=float32",), lambda path, x: x.tofile(path)),
    "text": (".txt", (), lambda path, x: np.savetxt(path, x, delimiter=",")),
    "parquet": (".parquet", ("--column=score",), write_parquet),
    "lists": (".parquet", (), write_lists),
    "vectors": (".feather", ("--column=score",), write_vectors),
    "arrow": (".arrow", ("--column=score",), write_arrow),
    "feather": (".feather", ("--column=score",), write_arrow),
    "arrow stream": (".arrow", ("--column=score",), write_arrow_stream),
    "feather 1": (".feather", ("--column=score", "--trusted"), write_feather_v1),
    "csv": (".csv", ("--column=score",), lambda path, x: path.write_bytes(csv_bytes(x))),
    "semicolons": (".csv", ("--column=score",), separated(";", ",")),
    "tabs": (".tsv", ("--column=score",), separated("\t", ".")),
    "bare csv": (".csv", (), lambda path, x: path.write_bytes(bare_csv_bytes(x))),
    "npy.gz": (".npy.gz", (), gzipped(npy_bytes)),
    "csv.gz": (".csv.gz", ("--column=score",), gzipped(csv_bytes)),
    "text.gz": (".gz", (), gzipped(text_bytes)),
    "raw.gz": (".bin.gz", ("--dtype=float32",), gzipped(lambda x: x.tobytes())),
    "npy.zst": (".zst", (), zstandard(npy_bytes)),
    "text.zst": (".txt.zst", (), zstandard(text_bytes)),
    "csv.zst": (".csv.zst", ("--column=score",), zstandard(csv_bytes)),
    "arrow stream.zst": (".arrows.zst", ("--column=score",), zstandard(stream_bytes)),
    "hdf5": (".h5", ("--column=/model/score",), write_hdf5),
    "hdf5 fields": (".h5", ("--column=model/held/score",), write_hdf5_fields),
    "zarr": (".zarr", ("--column=score",), write_zarr),
}
