"""Parquet, Arrow and Feather, by pyarrow."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softmaxima.base.numbers import InputError
from softmaxima.base.places import Place, handed
from softmaxima.io.formats import source
from softmaxima.io.formats.items import check_real
from softmaxima.io.formats.source import (
    TRUST,
    Asked,
    Scores,
    beginnings,
    check_memory,
    check_stated,
    choose_column,
    first_scores,
    library,
    missing_values,
    of_parts,
    skip_scores,
)
from softmaxima.io.formats.stream import Stream

if TYPE_CHECKING:
    from softmaxima.io.formats.source import Block


def open_parquet(path: Place, asked: Asked) -> Scores:
    pyarrow, parquet = library("pyarrow", "Parquet"), library("pyarrow.parquet", "Parquet")
    file = parquet.ParquetFile(handed(path), page_checksum_verification=True)
    chosen, dtype, each = _column(str(path), file.schema_arrow, asked.column)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    lengths = [group.num_rows for group in groups]
    check_stated(str(path), "rows", sum(lengths), file.metadata.num_rows)
    if each is None:
        columns = [column for group in groups for column in map(group.column, range(group.num_columns))]
        held = sum(column.num_values for column in columns if column.path_in_schema.partition(".")[0] == chosen)
        check_memory(path, asked, held * dtype.itemsize)
        together = max(1, source.PIECE * sum(lengths) // max(held, 1))  # rows with about so many scores
        batches = lambda: (batch.column(0) for batch in file.iter_batches(together, columns=[chosen]))
        return _of_lists(str(path), dtype, lambda: decoded(str(path), batches(), pyarrow, stated=sum(lengths)))
    count, begins = sum(lengths) * each, beginnings(length * each for length in lengths)

    def part(start: int, stop: int) -> Iterator[Block]:
        held = of_parts(begins, start, stop)
        chunks = file.iter_batches(max(1, source.PIECE // each), row_groups=list(held), columns=[chosen]) if held else iter(())
        row = begins[held.start] // each if held else 0
        stated = row + sum(lengths[held.start : held.stop])
        found = decoded(str(path), (batch.column(0) for batch in chunks), pyarrow, row, stated)
        return first_scores(skip_scores(found, start - begins[held.start]), stop - start)

    return Scores(str(path), str(dtype), dtype.itemsize, count, lambda start: part(start, count), part, lambda: begins)


def open_arrow(path: Place, asked: Asked) -> Scores:
    """An Arrow file (which is Feather V2), an Arrow stream, or Feather V1, by its beginning."""
    pyarrow, ipc = library("pyarrow", "Arrow"), library("pyarrow.ipc", "Arrow")
    with path.open("rb") as start:
        magic = start.read(6)
    if magic[:4] == b"FEA1":
        if not asked.trusted:
            repair = f"pandas.read_feather(path).to_feather(path) writes version 2; {TRUST}"
            raise InputError(f"{path} is Feather of version 1, whose reader believes what is in it and may crash: {repair}")
        return _feather_v1(path, asked.column)
    if magic != b"ARROW1":
        return arrow_stream(Stream(path, asked))
    file = ipc.open_file(pyarrow.memory_map(str(path)) if isinstance(path, Path) else path.open())
    chosen, dtype, each = _column(str(path), file.schema, asked.column)
    system, place = (None, path) if isinstance(path, Path) else path.place
    count = library("pyarrow.dataset", "Arrow").dataset(place, format="ipc", filesystem=system).count_rows()
    if each is None:
        batches = lambda: (file.get_batch(i).column(chosen) for i in range(file.num_record_batches))
        return _of_lists(str(path), dtype, lambda: decoded(str(path), batches(), pyarrow))
    count *= each

    @functools.cache
    def begins() -> Sequence[int]:
        return beginnings(file.get_batch(i).num_rows * each for i in range(file.num_record_batches))

    def blocks(start: int) -> Iterator[Block]:
        chunks = (file.get_batch(i).column(chosen) for i in range(file.num_record_batches))
        return skip_scores(decoded(str(path), chunks, pyarrow), start)

    def part(start: int, stop: int) -> Iterator[Block]:
        held = of_parts(begins(), start, stop)
        chunks = (file.get_batch(i).column(chosen) for i in held)
        found = decoded(str(path), chunks, pyarrow, begins()[held.start] // max(each, 1))
        return first_scores(skip_scores(found, start - begins()[held.start]), stop - start)

    if not isinstance(path, Path):  # from elsewhere all batches would be fetched to be counted
        return Scores(str(path), str(dtype), dtype.itemsize, count, blocks)
    return Scores(str(path), str(dtype), dtype.itemsize, count, blocks, part, begins)


def arrow_stream(stream: Stream) -> Scores:
    pyarrow, ipc = library("pyarrow", "Arrow"), library("pyarrow.ipc", "Arrow")
    with stream.open() as file:
        chosen, dtype, _ = _column(stream.name, ipc.open_stream(file).schema, stream.asked.column)

    def blocks(file: Any) -> Iterator[Block]:
        file = _Watched(file)
        yield from decoded(stream.name, (batch.column(chosen) for batch in ipc.open_stream(file)), pyarrow)
        if file.ended and not stream.asked.unended:
            repair = "write it again and close its writer, or say that it is whole with `unended`"
            raise InputError(f"{stream.name} has no mark of its end after its last batch, as a stream that is cut off; {repair}")
        if file.read(1):  # at the end of what is compressed its checksum is asked
            raise InputError(f"{stream.name} goes on after the end of its stream; write it again, one stream a file")

    return replace(stream.scores(str(dtype), blocks), itemsize=dtype.itemsize)


class _Watched:
    """A file, and whether nothing came where something was asked for last: readers of streams stop there as at their mark."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file, self.ended = file, False

    def close(self) -> None:
        """What opened it does."""

    def read(self, size: int = -1) -> bytes:
        read = self._file.read(size)
        self.ended = size > 0 and not read
        return read


def _feather_v1(path: Place, column: str | None) -> Scores:
    """Columns of plain memory, one after the other."""
    pyarrow, feather = library("pyarrow", "Feather"), library("pyarrow.feather", "Feather")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pyarrow's, of a file that is there and can be read
        table = feather.read_table(handed(path), memory_map=isinstance(path, Path))
    chosen, dtype, _ = _column(str(path), table.schema, column)  # its format has no lists

    def blocks(start: int) -> Iterator[Block]:
        rest = table.column(chosen).slice(start)
        return decoded(
            str(path),
            (piece for i in range(0, len(rest), source.PIECE) for piece in rest.slice(i, source.PIECE).chunks),
            pyarrow,
            start,
        )

    return Scores(str(path), str(dtype), dtype.itemsize, table.num_rows, blocks)


def _column(name: str, schema: Any, column: str | None) -> tuple[str, np.dtype, int | None]:
    """(the column, the dtype of its scores, how many a row has: 1, those of lists of one length, or None for lists of any)."""
    types = library("pyarrow", "tables").types
    chosen = choose_column(name, "column", schema.names, column)
    kind, each = schema.field(chosen).type, 1
    while _is_list(kind, types):
        each = each * kind.list_size if types.is_fixed_size_list(kind) and each is not None else None
        kind = kind.value_type
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
        check_real(name, dtype)
    except (InputError, NotImplementedError, TypeError):
        kind = schema.field(chosen).type
        raise InputError(f"{name}: column {chosen!r} is of type {kind}; cast it to a number of at most 64 bits") from None
    return chosen, dtype, each


def _is_list(kind: Any, types: Any) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _of_lists(name: str, dtype: np.dtype, blocks: Callable[[], Iterator[Block]]) -> Scores:
    """Of lists of any lengths, whose scores are counted as they come."""
    return Scores(name, str(dtype), dtype.itemsize, None, lambda start: skip_scores(blocks(), start))


def decoded(name: str, columns: Iterator[Any], pyarrow: Any, row: int = 0, stated: int | None = None) -> Iterator[Block]:
    """The scores of columns, of which the first begins with that row, and the last ends with the one that is stated."""
    for rows in columns:
        rows.validate(full=True)  # or lists may begin and end outside their memory
        values = rows
        while values.null_count == 0 and _is_list(values.type, pyarrow.types):
            values = values.flatten()
        if count := values.null_count:
            first = row + 1 + next(i for i, held in enumerate(rows.to_pylist()) if _has_none(held))
            raise InputError(f"{name}: {missing_values(count, f'row {first}')}; fill them in, or remove those rows")
        row += len(rows)
        for start in range(0, len(values), source.PIECE):  # of lists there may be more than rows
            yield values.slice(start, source.PIECE).to_numpy(zero_copy_only=False)
    if stated is not None:
        check_stated(name, "rows", row, stated)


def _has_none(held: Any) -> bool:
    """Whether it is a missing value, or a list with one."""
    return any(map(_has_none, held)) if isinstance(held, list) else held is None
