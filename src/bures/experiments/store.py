"""The cells of one experiment, kept in one table: JSON lines, one a cell, packed when a run ends.

A folder has `cells.jsonl.xz`, the table, and, while a run is at work or after it was killed, `cells.jsonl`, the lines
that came since. A cell is added by one write at the end of that file, made durable before the next cell begins; a last
line that was cut short is passed over and cut off by the next run. At the end of a run both become one table, written
beside the old one and renamed. Lines are

    {"settings": ...}                                            of the last run
    {"source": ID, "provenance": ...}                            code, commit, versions, machine
    {"cell": ..., "parameters": ..., "fingerprint": ..., "result": ..., "seconds": ..., "source": ID, "time": ...}

and of two lines for one cell the later counts.
"""

import contextlib
import hashlib
import json
import lzma
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bures.storage import write_atomically

TABLE, ADDED = "cells.jsonl.xz", "cells.jsonl"
UNKNOWN = "unknown"
_WHOLE = {"cell", "parameters", "fingerprint", "result", "seconds", "source", "time"}


def fingerprint(parameters: Any) -> str:
    """Identifies a cell's parameters: a cell of other settings is run again, never mistaken for this one."""
    return hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()[:16]


class Store:
    """The cells of one experiment in one mode, on disk.

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()), "squares", "full")
    >>> with store.alone():
    ...     store.put("n2", {"number": 2}, {"square": 4}, seconds=0.1, provenance={"commit": "abc", "time": "now"})
    >>> store.get("n2", {"number": 2}), store.get("n2", {"number": 3})
    ({'square': 4}, None)
    """

    def __init__(self, out: Path, experiment: str, mode: str):
        self.folder = Path(out) / experiment / mode
        self._read: _Lines | None = None
        self._depth = 0

    @classmethod
    def at(cls, folder: Path) -> "Store":
        """That of a folder OUT/EXPERIMENT/MODE."""
        return cls(folder.parents[1], folder.parent.name, folder.name)

    # ---- Reading ----------------------------------------------------------------------------------------------------

    @property
    def _lines(self) -> "_Lines":
        if self._read is None:
            self._read = _Lines(self.folder)
        return self._read

    @property
    def settings(self) -> Any | None:
        """Those of the last run that kept them."""
        return self._lines.settings

    def get(self, cell: str, parameters: Any) -> Any | None:
        """The kept result of a cell, or None if there is none with these parameters."""
        kept = self.entry(cell, parameters)
        return None if kept is None else kept["result"]

    def entry(self, cell: str, parameters: Any) -> dict[str, Any] | None:
        """All that was kept of a cell: its result, seconds and provenance."""
        kept = self._lines.cells.get(cell)
        if kept is None or kept["fingerprint"] != fingerprint(parameters):
            return None
        return kept | {"provenance": self._lines.sources.get(kept["source"], {}) | {"time": kept["time"]}}

    def names(self) -> list[str]:
        """All cells that are kept."""
        return list(self._lines.cells)

    def sources(self, cells: Iterable[str] | None = None) -> Counter[tuple[str, str]]:
        """How many cells, of these or of all, each version of the code made: (its fingerprint, its commit)."""
        kept = self._lines.cells
        found = (self._lines.sources.get(kept[cell]["source"], {}) for cell in (kept if cells is None else cells))
        return Counter((each.get("code", UNKNOWN), each.get("commit", UNKNOWN)) for each in found)

    def of_other_code(self, code: str) -> list[str]:
        """The cells that another version of the code made, or an unknown one."""
        lines = self._lines
        return [cell for cell, kept in lines.cells.items() if lines.sources.get(kept["source"], {}).get("code") != code]

    # ---- Writing ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder for this process, and at the end make one table of all that was added.

        The operating system releases the lock however the process ends. After a kill the lines that were added stay as
        they are, until another run has ended.
        """
        if self._depth:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder):
            self._clean()
            self._read = None  # another process may have added to it
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                self._pack()

    def keep_settings(self, settings: Any) -> None:
        """Keep the settings of a run, if they are not those that are kept."""
        if self._lines.settings != settings:
            self._add({"settings": settings})

    def put(self, cell: str, parameters: Any, result: Any, seconds: float, provenance: dict[str, Any]) -> None:
        """Keep the result of a cell; on return it is on disk."""
        made = {name: value for name, value in provenance.items() if name != "time"}
        source = fingerprint(made)
        if source not in self._lines.sources:
            self._add({"source": source, "provenance": made})
        kept = {"cell": cell, "parameters": parameters, "fingerprint": fingerprint(parameters), "result": result}
        self._add(kept | {"seconds": round(seconds, 3), "source": source, "time": provenance.get("time", "")})

    def _add(self, line: dict[str, Any]) -> None:
        """One write at the end of the file, flushed to the disk."""
        if not self._depth:
            raise RuntimeError("cells are added inside `with store.alone()`")
        handle = os.open(self.folder / ADDED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            content = _encode(line)
            while content:
                content = content[os.write(handle, content) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        self._lines.take(line)

    def _clean(self) -> None:
        """Cut off a last line that is not whole, and remove what a kill left while the table was written."""
        for leftover in self.folder.glob(f".{TABLE}.*"):
            leftover.unlink(missing_ok=True)
        path = self.folder / ADDED
        if path.is_file():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(path, whole)

    def _pack(self) -> None:
        """One table of all lines; until the file of added lines is gone, both say the same."""
        added = self.folder / ADDED
        if added.is_file():
            write_atomically(self.folder / TABLE, lzma.compress(self._lines.encode()))
            added.unlink()


class _Lines:
    """The lines of both files, the later ones in place of the earlier."""

    def __init__(self, folder: Path):
        self.settings: Any | None = None
        self.sources: dict[str, dict[str, Any]] = {}
        self.cells: dict[str, dict[str, Any]] = {}
        for content in (_unpacked(folder / TABLE), _whole_lines(folder / ADDED)):
            for text in content.splitlines():
                with contextlib.suppress(ValueError):  # cut short, or not JSON at all
                    self.take(json.loads(text))

    def take(self, line: Any) -> None:
        """What is none of the three kinds of lines is passed over."""
        if not isinstance(line, dict):
            return
        if "settings" in line:
            self.settings = line["settings"]
        elif set(line) >= _WHOLE:
            self.cells[line["cell"]] = line
        elif "provenance" in line and "source" in line:
            self.sources[line["source"]] = line["provenance"]

    def encode(self) -> bytes:
        used = {kept["source"] for kept in self.cells.values()}
        lines: list[dict[str, Any]] = [] if self.settings is None else [{"settings": self.settings}]
        lines += [{"source": name, "provenance": made} for name, made in self.sources.items() if name in used]
        return b"".join(map(_encode, [*lines, *self.cells.values()]))


def _encode(line: dict[str, Any]) -> bytes:
    return (json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def _unpacked(path: Path) -> bytes:
    if not path.is_file():
        return b""
    try:
        return lzma.decompress(path.read_bytes())
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ValueError(
            f"{str(path)!r} is damaged ({error}): restore it, or delete it to run it all again."
        ) from error


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once would only do some work twice
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ValueError(f"Another run is at work in {str(folder)!r}: wait for it, or choose another --out.") from error
    try:
        yield
    finally:
        os.close(handle)
