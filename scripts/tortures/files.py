"""Corrupted and hostile files, with a valid digest or not: refused whole, by one kind of error, in little memory."""

import contextlib
import copy
import hashlib
import io
import json
import os
import pickle
import random
import resource
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

_MEGABYTE = 2**20
_BOMB = 2**28  # bytes that a small file would unpack to


def run(short: bool) -> dict[str, Any]:
    """Honest files of every family, each edited in many ways."""
    import bures

    target = bures.models.eggbox()
    rng = random.Random(0)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        honest = _honest(folder, target, short)
        before = _begin_peak()
        for path in honest:
            bures.load(path, target=target)
        allowed = 2 * (_peak() - before) + 50 * _MEGABYTE
        before = _begin_peak()
        marker = folder / "executed"
        for path in honest:
            content = path.read_bytes()
            for label, edited in _edits(content, rng, 0.06 if short else 1.0, marker):
                what = _try(folder / "edited.fit", edited, content, target)
                counts[what] += 1
                if what not in ("refused", "the same", "whole, as edited"):
                    wrong.append(f"{path.name}: {label}: {what}")
        for label, odd in _odd_files(folder):
            what = _try_path(odd, target)
            counts[what] += 1
            if what != "refused":
                wrong.append(f"{label}: {what}")
        grown = _peak() - before
        executed = marker.exists()
    total = sum(counts.values())
    holds = {
        "1,000 files": short or total >= 1000,
        "0 executions": not executed,
        "0 half-reads": counts["half-read"] == 0,
        "one kind of error": not wrong,
        "memory": grown <= allowed,
    }
    return {
        "files": total,
        "counts": dict(counts),
        "wrong": wrong[:10],
        "peak growth, MB": round(grown / _MEGABYTE, 1),
        "allowed, MB": round(allowed / _MEGABYTE, 1),
        "holds": holds,
    }


def _begin_peak() -> int:
    """Have the peak of memory begin at what is used now, where the system can do that; it, in bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """The most memory that this process has used, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _honest(folder: Path, target: Any, short: bool) -> list[Path]:
    """Fits on the host and in the compiled loop, of every family, judged and not."""
    import bures

    key = jax.random.key(0)
    fits = {
        "default": lambda: bures.fit(target, key=key),
        "adam": lambda: bures.fit(target, key=key, geometry=bures.Euclidean(0.05), num_steps=20),
        "low-rank": lambda: bures.fit(target, key=key, family=bures.LowRank()),
        "mixture": lambda: bures.fit(target, key=key, family=bures.Mixture()),
    }
    paths = []
    for name, make in fits.items():
        if short and name in ("adam", "low-rank"):
            continue
        make().save(folder / f"{name}.fit")
        paths.append(folder / f"{name}.fit")
    if not short:
        bures.fit(target, key=key, checkpoint=folder / "checkpoint.fit", max_evaluations=6000)
        stop = lambda step, q, info: step == 2  # noqa: E731
        bures.fit(target, key=key, family=bures.Mixture(), checkpoint=folder / "rounds.fit", callback=stop)
        paths += [folder / "checkpoint.fit", folder / "rounds.fit"]
    return paths


def _try(path: Path, edited: bytes, original: bytes, target: Any) -> str:
    path.write_bytes(edited)
    return _try_path(path, target, edited, original)


def _try_path(path: Path, target: Any, edited: bytes = b"", original: bytes = b"") -> str:
    """What loading a file leads to."""
    import bures
    from bures.storage import FileError, save

    try:
        fit = bures.load(path, target=target)
    except FileError as error:
        return "refused" if str(path) in str(error) or "must be" in str(error) else "refused without a name"
    except OSError:
        return "refused" if not path.is_file() else "OSError"
    except BaseException as error:
        return type(error).__name__
    again = path.with_suffix(".again")
    save(fit, again, judged=False)
    if _content(again.read_bytes()) == _content(original):
        return "the same"
    return "whole, as edited" if _content(again.read_bytes()) == _content(edited) else "half-read"


def _content(file: bytes) -> Any:
    """What a file says, to compare."""
    payload = file.split(b"\n", 2)[2]
    with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    description = json.loads(arrays.pop("description").tobytes())
    return description, {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()}


def sealed(payload: bytes, version: int = 6) -> bytes:
    """A payload with a digest of its own."""
    return f"bures-fit {version}\n{hashlib.sha256(payload).hexdigest()}\n".encode() + payload


def _packed(arrays: dict[str, Any], description: Any = None, **options: Any) -> bytes:
    """A file of these arrays; a description that is given takes the place of theirs."""
    if description is not None:
        arrays = arrays | {"description": np.frombuffer(json.dumps(description).encode(), np.uint8)}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **arrays)
    return sealed(buffer.getvalue(), **options)


def _edits(content: bytes, rng: random.Random, share: float, marker: Path) -> Iterator[tuple[str, bytes]]:
    """Some of all edits, each with a name."""
    for label, edited in _all_edits(content, rng, marker):
        if share == 1.0 or rng.random() < (0.2 if label.startswith("must") else share):
            yield label, edited


def _all_edits(content: bytes, rng: random.Random, marker: Path) -> Iterator[tuple[str, bytes]]:
    payload = content.split(b"\n", 2)[2]
    with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    description = json.loads(arrays["description"].tobytes())
    for i in range(30):
        yield f"cut {i}", content[: rng.randrange(len(content))]
        yield f"a byte {i}", _flipped(content, rng, 1)
        yield f"bytes, sealed {i}", sealed(_flipped(payload, rng, 1 + i // 10))
        yield f"cut, sealed {i}", sealed(payload[: rng.randrange(len(payload))])
    yield from _edited_descriptions(arrays, description)
    yield from _edited_arrays(arrays, rng, marker)
    yield from _edited_archives(payload, arrays)
    for version in ("0", "1", "2", "3", "4", "5", "7", "99", "-1", "6.0", "", "٦", "6" * 300):
        yield f"version {version}", content.replace(b"bures-fit 6", f"bures-fit {version}".encode(), 1)


def _flipped(content: bytes, rng: random.Random, count: int) -> bytes:
    changed = bytearray(content)
    for _ in range(count):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


_VALUES = (None, -1, 10**18, 1e400, float("nan"), "x", [], {}, True, [[[]]], "__import__('os').system('true')")
_NAMES = ("load", "fit", "Target", "Gaussian", "Outcome", "plot", "storage", "__builtins__", "os", "GaussianMixture")


def _edited_descriptions(arrays: dict[str, Any], description: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    for field in description:
        without = {name: value for name, value in description.items() if name != field}
        yield f"without {field}", _packed(arrays, without)
        for value in _VALUES:
            yield f"{field} = {value!r}", _packed(arrays, description | {field: value})
    for part in ("objective", "estimator", "geometry"):
        for name in _NAMES:
            changed = copy.deepcopy(description)
            changed["method"][part] = {"type": name, "arguments": {}}
            yield f"must not call {name}", _packed(arrays, changed)
        changed = copy.deepcopy(description)
        for argument in changed["method"][part]["arguments"]:
            for value in (-1, "x", 10**30, [1, 2], {"a": 1}, None):
                again = copy.deepcopy(description)
                again["method"][part]["arguments"][argument] = value
                yield f"{part}.{argument} = {value!r}", _packed(arrays, again)
    yield "unknown field", _packed(arrays, description | {"more": 1})
    yield "a list", _packed(arrays, [1, 2])
    deep = np.frombuffer(b"[" * 200_000 + b"]" * 200_000, np.uint8)
    yield "must not recurse", _packed(arrays | {"description": deep})
    yield "not JSON", _packed(arrays | {"description": np.frombuffer(b"{'a': 1}", np.uint8)})


class _Malice:
    """What a pickle would run."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def _edited_arrays(arrays: dict[str, Any], rng: random.Random, marker: Path) -> Iterator[tuple[str, bytes]]:
    malicious = np.empty(1, object)
    malicious[0] = _Malice(marker)
    names = [name for name in arrays if name != "description"]
    for name in rng.sample(names, min(12, len(names))):
        yield f"without {name}", _packed({other: array for other, array in arrays.items() if other != name})
        yield f"must not run {name}", _packed(arrays | {name: malicious})
        array = arrays[name]
        for label, changed in _changed(array):
            yield f"{name} {label}", _packed(arrays | {name: changed})
        yield f"must not allocate {name}", _sealed_with(arrays, name, _declared(array, (10**12,)))
        yield f"must not overflow {name}", _sealed_with(arrays, name, _declared(array, (2**62, 2**62)))
        yield f"longer {name}", _sealed_with(arrays, name, _declared(array, (*array.shape, 2)))
    yield "one more", _packed(arrays | {"more": np.zeros(3)})
    yield "must not be a pickle", sealed(pickle.dumps(_Malice(marker)))


def _changed(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield "empty", np.zeros(0, array.dtype)
    yield "of more axes", array[None]
    yield "flat", array.reshape(-1)[:-1] if array.size > 1 else np.zeros((2, 2), array.dtype)
    yield "complex", array.astype(complex)
    yield "text", np.array(["x"] * 3)
    yield "structured", np.zeros(2, [("a", "f8"), ("b", "i4")])
    if array.dtype.kind == "f" and array.size:
        yield "NaN", np.full_like(array, np.nan)
        yield "shifted", array + 1
        yield "integers", np.zeros(array.shape, np.int64)


def _declared(array: np.ndarray, shape: tuple[int, ...]) -> bytes:
    """An array in NumPy's format that declares another shape than it has."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": array.dtype.str, "fortran_order": False, "shape": shape})
    return header.getvalue() + array.tobytes()


def _sealed_with(arrays: dict[str, Any], name: str, content: bytes) -> bytes:
    """The archive with one entry of other bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for each, array in arrays.items():
            entry = io.BytesIO()
            np.save(entry, array)
            archive.writestr(f"{each}.npy", content if each == name else entry.getvalue())
    return sealed(buffer.getvalue())


def _edited_archives(payload: bytes, arrays: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    zeros = io.BytesIO()
    np.save(zeros, np.zeros(8, np.float64))
    head = _declared(np.zeros(0), (_BOMB // 8,))
    for version in (3, 6):
        buffer = io.BytesIO()
        with (
            zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("trace_bound.npy", "w", force_zip64=True) as entry,
        ):
            entry.write(head)
            for _ in range(_BOMB // (16 * _MEGABYTE)):
                entry.write(bytes(16 * _MEGABYTE))
        yield f"must not explode {version}", sealed(buffer.getvalue(), version)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            entry = io.BytesIO()
            np.save(entry, array)
            archive.writestr(f"{name}.npy", entry.getvalue())
    yield "compressed", sealed(buffer.getvalue())
    buffer = io.BytesIO(payload)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("../../escape.npy", zeros.getvalue())
    yield "must not escape", sealed(buffer.getvalue())
    yield "nothing", sealed(b"")
    yield "an empty archive", sealed(b"PK\x05\x06" + bytes(18))
    yield "trailing bytes", sealed(payload + b"\0" * 1000)


def _odd_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """What is not a file with a fit at all."""
    empty, sparse, fifo = folder / "empty", folder / "sparse", folder / "folder"
    empty.write_bytes(b"")
    fifo.mkdir()
    with open(sparse, "wb") as file:
        file.write(b"no fit\n")
        file.truncate(2**40)
    yield "empty", empty
    yield "a terabyte of nothing", sparse
    yield "a folder", fifo
    yield "missing", folder / "missing"
    yield "endless", Path("/dev/zero")
