"""Where rows come from: arrays, anything that can be sliced (memory maps, HDF5, Zarr), Parquet files.

A source gives its rows in blocks, one after the other, and a few of them by their numbers. Blocks are read by a thread
of their own while the one before is computed with, so that memory is bounded by the block.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import PyTree

from bures.check import fail
from bures.files import check_path

_BLOCK_BYTES = 2**23  # of a block, in the types of the source: two of them are held, one being read
_MOST_ROWS = 2**16


@runtime_checkable
class Source(Protocol):
    """Rows, as pytrees of NumPy arrays whose first axis is the rows."""

    num_rows: int

    def row(self) -> PyTree:
        """The shape and dtype of each part of one row."""
        ...

    def blocks(self, size: int) -> Iterator[PyTree]:
        """All rows, in order, `size` of them at a time; the last block may have fewer."""
        ...

    def take(self, numbers: np.ndarray) -> tuple[PyTree, int]:
        """The rows of these numbers, which are sorted, and how many rows had to be read for them."""
        ...


class ArraySource:
    """A pytree of arrays, or of anything with a shape, a dtype and slices: NumPy memory maps, HDF5, Zarr."""

    def __init__(self, arrays: PyTree):
        self.arrays = arrays
        self.num_rows = jax.tree.leaves(arrays)[0].shape[0]

    def row(self) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], np.dtype(x.dtype)), self.arrays)

    def blocks(self, size: int) -> Iterator[PyTree]:
        for start in range(0, self.num_rows, size):
            stop = min(start + size, self.num_rows)
            # A copy, not a view: pages of a file are touched here, in the thread that reads.
            yield part_of(self.arrays, slice(start, stop), copy=True)

    def take(self, numbers: np.ndarray) -> tuple[PyTree, int]:
        if all(isinstance(x, np.ndarray) for x in jax.tree.leaves(self.arrays)):
            return jax.tree.map(lambda x: np.asarray(x[numbers]), self.arrays), numbers.size
        return take_from_blocks(self, numbers), self.num_rows


class Parquet:
    """Rows of Parquet files, for `Target.from_data` (needs the extra `bures[parquet]`).

    **Arguments:**

    - `paths`: a file, or several in order.
    - `columns`: what a row is: a name for each part, with the column it comes from, or a list of columns that make up a
        vector. By default every column is a part of its own name.

    With `Parquet("trips.parquet", {"x": ["distance", "hour"], "y": "paid"})`, `row["x"]` is a vector of length two and
    `row["y"]` a number. Columns hold numbers without nulls.
    """

    def __init__(self, paths: Any, columns: Mapping[str, str | Sequence[str]] | None = None):
        parquet, pool = _pyarrow("pyarrow.parquet"), _pyarrow("pyarrow").default_memory_pool()
        self._release = pool.release_unused  # what pyarrow keeps for later is not small
        several = paths if isinstance(paths, list | tuple) and paths else [paths]
        self._files = [
            parquet.ParquetFile(_file(path), pre_buffer=False) for path in several
        ]  # else it reads all ahead
        schema = self._files[0].schema_arrow
        self.columns = {name: name for name in schema.names} if columns is None else _checked(columns)
        for name, wanted in self.columns.items():
            for column in _listed(wanted):
                if column not in schema.names:
                    remedy = f"The file has {', '.join(schema.names[:10])}."
                    raise fail(f"columns[{name!r}]", "columns of the file", column, remedy)
        self._needed = sorted({column for wanted in self.columns.values() for column in _listed(wanted)})
        schemas = [file.schema_arrow for file in self._files]
        self._types = {column: _common_type(schemas, column) for column in self._needed}
        if bad := [column for column, kind in self._types.items() if kind.kind not in "fiub"]:
            raise fail("columns", "numbers", bad, "Encode text and dates as numbers first.")
        self.num_rows = sum(file.metadata.num_rows for file in self._files)
        self._range = 0, self.num_rows

    def part(self, rows: slice) -> "Parquet":
        """Some of the rows, those from one number up to another: other row groups are not read."""
        part = copy.copy(self)
        part._range, part.num_rows = (rows.start, rows.stop), rows.stop - rows.start
        return part

    def row(self) -> PyTree:
        return {name: self._shape_of(wanted) for name, wanted in self.columns.items()}

    def _shape_of(self, wanted: str | Sequence[str]) -> jax.ShapeDtypeStruct:
        kind = np.result_type(*(self._types[column] for column in _listed(wanted)))
        return jax.ShapeDtypeStruct(() if isinstance(wanted, str) else (len(wanted),), kind)

    def blocks(self, size: int) -> Iterator[PyTree]:
        return regrouped(self._batches(size), size)

    def _batches(self, size: int) -> Iterator[PyTree]:
        (first, last), at = self._range, 0
        for file in self._files:
            for group in range(file.num_row_groups):  # one after the other: pyarrow would else hold several of them
                begin, at = at, at + file.metadata.row_group(group).num_rows
                if begin >= last or at <= first:
                    continue
                options = dict(batch_size=size, row_groups=[group], columns=self._needed, use_threads=False)
                for batch in file.iter_batches(**options):
                    wanted = slice(max(first - begin, 0), min(last - begin, batch.num_rows))
                    begin += batch.num_rows
                    if wanted.start < wanted.stop:
                        yield part_of(self._rows_of(batch), wanted)
                self._release()

    def _rows_of(self, batch: Any) -> PyTree:
        rows = {}
        for name, wanted in self.columns.items():
            parts = [_numbers(batch, column) for column in _listed(wanted)]
            shape = self._shape_of(wanted)
            rows[name] = np.asarray(parts[0] if isinstance(wanted, str) else np.stack(parts, axis=1), shape.dtype)
        return rows

    def take(self, numbers: np.ndarray) -> tuple[PyTree, int]:
        return take_from_blocks(self, numbers), self.num_rows


def _pyarrow(module: str) -> Any:
    from bures.frontends.common import import_extra

    return import_extra(module, "parquet")


def _common_type(schemas: Sequence[Any], column: str) -> np.dtype:
    """The type that holds a column of all files: whole numbers in one may be fractions in another."""
    if any(column not in schema.names for schema in schemas):
        raise fail("paths", f"of files that all have the column {column!r}", "one without it", "Check the files.")
    return np.result_type(*(np.dtype(schema.field(column).type.to_pandas_dtype()) for schema in schemas))


def _file(path: Any) -> Path:
    path = check_path("paths", path)
    if not path.is_file():
        raise fail("paths", "a Parquet file, or a list of several", str(path), "Check the path: there is no such file.")
    return path


def _checked(columns: Any) -> dict[str, str | Sequence[str]]:
    """Parts of a row by name."""
    wanted = columns.values() if isinstance(columns, Mapping) else ()
    names = [name for each in wanted for name in (each if isinstance(each, list | tuple) else [each])]
    if not names or not all(isinstance(name, str) for name in (*columns, *names)):
        remedy = 'For example {"x": ["distance", "hour"], "y": "paid"}.'
        raise fail("columns", "a dict of names of columns, or of lists of them, by name", columns, remedy)
    return dict(columns)


def _listed(wanted: str | Sequence[str]) -> Sequence[str]:
    return [wanted] if isinstance(wanted, str) else wanted


def _numbers(batch: Any, column: str) -> np.ndarray:
    found = batch.column(column)
    if found.null_count:
        raise fail(f"column {column!r}", "without nulls", f"{found.null_count} of them", "Drop or fill them first.")
    return found.to_numpy(zero_copy_only=False)


def regrouped(batches: Iterator[PyTree], size: int) -> Iterator[PyTree]:
    """The same rows in blocks of one size, but for the last: batches of files end where their groups do."""
    held: list[PyTree] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += jax.tree.leaves(batch)[0].shape[0]
        while count >= size:
            whole = joined(held)
            yield part_of(whole, slice(size))
            held, count = [part_of(whole, slice(size, None))], count - size
    if count:
        yield joined(held)


def part_of(rows: PyTree, chosen: Any, *, copy: bool = False) -> PyTree:
    """Some of the rows, by a slice or by numbers."""
    return jax.tree.map(lambda x: np.array(x[chosen]) if copy else x[chosen], rows)


def joined(blocks: Sequence[PyTree]) -> PyTree:
    """Blocks of rows, one after the other."""
    return blocks[0] if len(blocks) == 1 else jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)


def padded(rows: PyTree, size: int) -> PyTree:
    """The last row again and again, up to `size` rows."""
    return jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[-1:], size - len(x), axis=0)]), rows)


def block_rows(source: Source) -> int:
    """Rows of a block: as many as its bytes allow."""
    row = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(source.row()))
    return max(1, min(source.num_rows, _MOST_ROWS, _BLOCK_BYTES // max(row, 1)))


def read_ahead(blocks: Iterator[PyTree]) -> Iterator[PyTree]:
    """The same blocks, the next one read by another thread while one is being used."""
    nothing = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="bures-rows") as pool:
        coming = pool.submit(next, blocks, nothing)
        while (block := coming.result()) is not nothing:
            coming = pool.submit(next, blocks, nothing)
            yield block


def take_from_blocks(source: Source, numbers: np.ndarray) -> PyTree:
    """The rows of sorted numbers, from one pass over all rows."""
    size, found, start = block_rows(source), [], 0
    for block in read_ahead(source.blocks(size)):
        end = start + jax.tree.leaves(block)[0].shape[0]
        inside = numbers[np.searchsorted(numbers, start) : np.searchsorted(numbers, end)] - start
        found.append(part_of(block, inside))
        start = end
    return joined(found)


def is_sliceable(leaf: Any) -> bool:
    """Whether rows of it can be read by slices, without holding all of them: memory maps, HDF5, Zarr."""
    if isinstance(leaf, np.memmap):
        return True
    known = isinstance(leaf, np.ndarray | np.generic | jax.Array | list | tuple | int | float)
    if known or not all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__")):
        return False
    try:
        np.dtype(leaf.dtype)
    except TypeError:  # of another library, whose arrays NumPy can take: pandas, polars, torch
        return False
    return True
