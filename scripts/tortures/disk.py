"""A disk that is full at every write in turn: nothing lost, and the disk free again.

On a small file system of its own where one may be mounted; everywhere, each call that writes fails in turn.
"""

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_CALLS = ("open", "write", "fsync", "chmod", "replace")


def run(short: bool) -> dict[str, Any]:
    counts = {"failed calls": 0, "lost": 0, "left behind": 0}
    with tempfile.TemporaryDirectory() as folder:
        _fail_in_turn(Path(folder), counts)
    mounted = _on_small_disk(counts, 3 if short else 30)
    return {
        "counts": counts,
        "writes on a full file system": mounted,
        "holds": {"nothing lost": counts["lost"] == 0, "the disk free again": counts["left behind"] == 0},
    }


def _fail_in_turn(folder: Path, counts: dict[str, int]) -> None:
    """Each call of the operating system in a save, a checkpoint and a table fails once."""
    import jax

    import bures
    from bures import files

    target, key = bures.models.eggbox(), jax.random.key(0)
    fit = bures.fit(target, key=key, num_steps=3)
    path = folder / "a.fit"
    works = {
        "save": lambda: fit.save(path),
        "checkpoint": lambda: bures.fit(target, key=key, num_steps=3, checkpoint=path, every=0),
        "table": lambda: files.write_atomically(path, b"x" * 1000),
    }
    for work in works.values():
        for call in _CALLS:
            path.write_bytes(b"old")
            real = getattr(os, call)
            failed = []

            def fails(*arguments: Any, failed: list = failed, real: Any = real, call: str = call, **named: Any) -> Any:
                if not failed and (call != "open" or arguments[1] & os.O_CREAT):
                    failed.append(True)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return real(*arguments, **named)

            setattr(os, call, fails)
            try:
                work()
            except OSError:
                counts["lost"] += path.read_bytes() != b"old"
            finally:
                setattr(os, call, real)
            counts["failed calls"] += bool(failed)
            counts["left behind"] += len(list(folder.glob(".*")))


def _on_small_disk(counts: dict[str, int], writes: int) -> int | str:
    """A file system of two megabytes that each file would fill."""
    from bures.files import write_atomically

    folder = Path(tempfile.mkdtemp())
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        folder.rmdir()
        return "not mounted: no permission"
    try:
        path = folder / "a.fit"
        write_atomically(path, b"o" * 900_000)
        free = os.statvfs(folder).f_bavail
        for i in range(writes):
            try:
                write_atomically(path, bytes(1_500_000 + 10_000 * i))
                counts["lost"] += 1  # it cannot have worked
            except OSError:
                counts["lost"] += path.read_bytes() != b"o" * 900_000
            counts["left behind"] += len(list(folder.glob(".*"))) + (os.statvfs(folder).f_bavail != free)
        return writes
    finally:
        subprocess.run(["umount", str(folder)], check=False)
        folder.rmdir()
