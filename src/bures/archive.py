"""The bytes of a saved fit: a description and arrays, read without trusting them.

A file is a line that names the format and its version, a line with the SHA-256 of the rest, and a NumPy archive of
arrays with a JSON description. The digest tells accidents, not intent: whoever edits a file can renew it. So nothing
here is executed, and nothing is allocated that the file itself does not hold.
"""

import hashlib
import io
import json
import math
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "bures-fit"
_FIRST_LINES = 256  # bytes: more than the two lines take
_MOST_ARRAYS = 100_000
_NEVER_COMPRESSED, _UNPACKED = 4, 2**24  # the first such version, and bytes that an earlier file may unpack to
_KINDS = "fiub"  # of numbers: floats, integers and booleans


class FileError(ValueError):
    """A file that is not a saved fit, is damaged, or does not hold together. Nothing of it was used."""


class Arrays(dict[str, np.ndarray]):
    """Arrays by name that note which of them were asked for."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        super().__init__(arrays)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self:
            raise FileError(f"it does not hold {name}")
        self.used.add(name)
        return super().__getitem__(name)

    @property
    def unused(self) -> list[str]:
        return sorted(set(self) - self.used)


def pack(version: int, description: str, arrays: dict[str, Any]) -> bytes:
    """The content of a file."""
    named = {"description": np.frombuffer(description.encode(), np.uint8), **arrays}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.asarray(array) for name, array in named.items()})
    payload = buffer.getvalue()
    return f"{FORMAT} {version}\n{hashlib.sha256(payload).hexdigest()}\n".encode() + payload


def unpack(path: Path, readable: tuple[str, ...]) -> tuple[int, dict[str, Any], dict[str, np.ndarray]]:
    """Version, description and arrays of a file whose every byte has been checked."""
    version, payload = _payload(path, readable)
    arrays = _read_arrays(version, payload)
    if "description" not in arrays:
        raise FileError("it does not hold a description")
    try:
        description = json.loads(arrays.pop("description").tobytes())
    except (ValueError, RecursionError) as error:
        raise FileError(f"its description cannot be read: {error}") from error
    if not isinstance(description, dict):
        raise FileError("its description is not one")
    return version, description, arrays


def _payload(path: Path, readable: tuple[str, ...]) -> tuple[int, memoryview]:
    with open(path, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileError("is not a file but a device or the like")
        head = file.read(_FIRST_LINES)
        first, _, rest = head.partition(b"\n")
        digest, separator, _ = rest.partition(b"\n")
        name, _, number = first.partition(b" ")
        if name != FORMAT.encode() or not separator:
            raise FileError("is not a saved fit of bures, or its beginning is lost")
        version = number.decode(errors="replace")
        if version not in readable:
            raise FileError(
                f"has format version {version!r}, but this bures reads {' and '.join(readable)}. "
                "Load it with the bures it was saved with"
            )
        content = memoryview(head + file.read())[len(first) + len(digest) + 2 :]
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise FileError("was cut short or changed since it was saved; nothing of it was read")
    return int(version), content


def _read_arrays(version: int, payload: memoryview) -> dict[str, np.ndarray]:
    """The arrays of an archive. What its entries declare must be what they hold, and all within the file."""
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        entries = archive.infolist()
        if len(entries) > _MOST_ARRAYS or len({entry.filename for entry in entries}) < len(entries):
            raise FileError("it holds too many arrays, or two of one name")
        known = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) if version < _NEVER_COMPRESSED else (zipfile.ZIP_STORED,)
        if any(entry.compress_type not in known or entry.flag_bits & 1 for entry in entries):
            raise FileError("its arrays are compressed or encrypted, which those of a saved fit are not")
        most = max(len(payload), _UNPACKED if version < _NEVER_COMPRESSED else 0)
        if sum(entry.file_size for entry in entries) > most:
            raise FileError("its arrays are declared larger than the file")
        return {entry.filename.removesuffix(".npy"): _array(archive.read(entry)) for entry in entries}


def _array(content: bytes) -> np.ndarray:
    """An array of numbers in NumPy's own format, exactly as long as it says."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise FileError("an array is of another version of NumPy's format")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in _KINDS or dtype.itemsize > 8 or dtype.hasobject or dtype.names is not None:
        raise FileError(f"an array is of {dtype}, not of numbers")
    rest = len(content) - stream.tell()
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != rest:
        raise FileError("an array is not of the size that it declares")
    flat = np.frombuffer(content, dtype, offset=stream.tell()).copy()
    array = flat.reshape(shape, order="F" if by_columns else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)
