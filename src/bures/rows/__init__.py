"""Targets that are a prior and a sum over rows: in memory, on disk, all of them or a batch at a time."""

from bures.rows.density import RowDensity as RowDensity
from bures.rows.sources import ArraySource as ArraySource, Parquet as Parquet, Source as Source
from bures.rows.stream import Stream as Stream, StreamedDensity as StreamedDensity
