"""Rows that several processes share: each reads its own part, and a pass ends in a sum over all processes."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from bures.check import fail
from bures.distributed import Own, count, gather, gather_rows, share, sum_over_processes
from bures.rows.sources import ArraySource, Parquet, Source, part_of
from bures.rows.stream import Stream


class SharedSource:
    """The rows of one process: `num_rows` of them, from number `first` on, of all processes' `total`."""

    def __init__(self, own: Source, first: int, total: int):
        self.own, self.first, self.total = own, first, total
        self.num_rows = own.num_rows

    def row(self) -> PyTree:
        return self.own.row()

    def blocks(self, size: int) -> Iterator[PyTree]:
        """The rows of this process."""
        return self.own.blocks(size)

    def take(self, numbers: np.ndarray) -> tuple[PyTree, int]:
        """Rows of all processes by their numbers: each process gets all of them."""
        here = numbers[(numbers >= self.first) & (numbers < self.first + self.num_rows)]
        rows, read = self.own.take(here - self.first)
        found = gather_rows(rows, here, numbers.size)
        return found, int(gather(np.array([float(read)])).sum())


class SharedStream(Stream):
    """Passes over the rows of all processes. `rows_read` counts those of all of them."""

    def __init__(self, log_prior: Any, log_likelihood: Any, source: SharedSource, row_width: int = 1, **options: Any):
        super().__init__(log_prior, log_likelihood, source, row_width, **options)
        self.num_rows = source.total

    def _blocks(self, points: int) -> Iterator[Any]:
        yield from super()._blocks(points)
        others = self.num_rows - self.source.num_rows
        self.rows_read += others
        self.rows_evaluated += others * points

    def _of_all(self, parts: list[np.ndarray], z: np.ndarray) -> list[np.ndarray]:
        return sum_over_processes(parts, z)


def shared(source: Source, own: bool) -> SharedSource:
    """The part of this process: of a source that all can read, or all of one that is its `own`."""
    if own:
        lengths = gather(np.array([float(source.num_rows)]))[:, 0].astype(int)
        before = int(lengths[: jax.process_index()].sum())
        return SharedSource(source, before, int(lengths.sum()))
    total = source.num_rows
    if total < count():
        raise fail("data", f"at least one row for each of the {count()} processes", total, "Start fewer processes.")
    rows = share(total)
    return SharedSource(_part(source, rows), rows.start, total)


def _part(source: Source, rows: slice) -> Source:
    """Some rows of a source, without a look at the others."""
    if isinstance(source, ArraySource):
        return ArraySource(part_of(source.arrays, rows))  # a view: of a memory map nothing is read yet
    if isinstance(source, Parquet):
        return source.part(rows)
    wanted = "arrays, or bures.Parquet, where several processes share the rows"
    raise fail("data", wanted, source, "Or give each process its own: bures.distributed.Own(data).")


def unpacked(data: Any) -> tuple[Any, bool]:
    """The data, and whether they are this process's own."""
    return (data.data, True) if isinstance(data, Own) else (data, False)
