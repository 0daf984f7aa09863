"""Writing files so that nothing is lost: whole or not at all, and nothing left behind.

A file is written beside its place under a name that carries host and process, and then renamed. What a process that
died has left is removed by the next one that writes into the folder.
"""

import contextlib
import itertools
import os
import re
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bures.check import fail
from bures.distributed import is_first

try:
    import fcntl
except ImportError:  # Windows has no such locks; there an open file cannot be removed
    fcntl = None

_NAME = re.compile(r"\.bures-(?P<host>[^/]*)-(?P<pid>\d+)-\d+\.[^/]*\.tmp")
_LONGEST = 100  # characters of a file's own name in that of its temporary: file systems allow some 255

_numbers = itertools.count()
_lock = threading.Lock()
_writing: set[str] = set()  # temporaries of this process
_cleaned: set[str] = set()  # folders that this process has looked through


def check_path(argument: str, path: Any) -> Path:
    """A path, as text or as an object that stands for one."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise fail(argument, "a path", path, "For example 'model.fit'.")
    text = os.fsdecode(path)
    if "\0" in text:
        raise fail(argument, "a path", text, "It holds a zero character.")
    return Path(text)


def write_atomically(path: Any, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it.

    A symbolic link stays one: the file it leads to is replaced. An existing file keeps its mode; one that is read-only
    is refused. A full disk, or an interrupt, leaves the old file as it was and nothing else.
    """
    if not is_first():  # of several processes that make one fit
        return
    with replacing(path) as descriptor:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def replacing(path: Any) -> Iterator[int]:
    """A new file, open for writing, that takes the place of `path` if nothing goes wrong."""
    path = check_path("path", path)
    try:
        place = path.resolve()
        mode = _mode_of(place)
        clean_once(place.parent)
        with _temporary(place, mode) as (temporary, descriptor):
            yield descriptor
            os.fsync(descriptor)
            os.replace(temporary, place)
        _sync_folder(place.parent)
    except (OSError, RuntimeError) as error:  # the second for links that lead in a circle
        raise _cannot_write(path, error) from error


def _mode_of(place: Path) -> int | None:
    """The mode of a file that may be replaced; None if there is none."""
    try:
        found = place.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is a folder, a device or the like, not a file")
    if not found.st_mode & 0o222 or not os.access(place, os.W_OK):  # root may write what is read-only
        raise OSError("it is read-only; remove it or allow writing first (chmod u+w)")
    return stat.S_IMODE(found.st_mode)


@contextlib.contextmanager
def _temporary(place: Path, mode: int | None) -> Iterator[tuple[str, int]]:
    """A new file beside a place, locked while it is written, and removed unless it was renamed."""
    name = f".bures-{_host()}-{os.getpid()}-{next(_numbers)}.{place.name[:_LONGEST]}.tmp"
    temporary = str(place.parent / name)
    with _lock:
        _writing.add(temporary)
    descriptor = None
    try:
        # Never readable by more people than the file that it replaces.
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else mode & 0o700)
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if mode is not None:
            os.chmod(temporary, mode)
        yield temporary, descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # gone if it was renamed
        with _lock:
            _writing.discard(temporary)


def clean_once(folder: Path) -> None:
    """Remove what dead processes of ours have left in a folder, once in the life of this process."""
    with _lock:
        seen = str(folder) in _cleaned
        _cleaned.add(str(folder))
    if not seen:
        remove_leftovers(folder)


def remove_leftovers(folder: Any) -> list[Path]:
    """Remove the temporaries in a folder whose processes, of this host, are dead; what was removed comes back."""
    removed = []
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            found = _NAME.fullmatch(entry.name)
            if found and found["host"] == _host() and entry.is_file(follow_symlinks=False):
                path = os.path.join(folder, entry.name)
                if not _is_alive(int(found["pid"]), path) and _remove_unlocked(path):
                    removed.append(Path(path))
    return removed


def _is_alive(pid: int, path: str) -> bool:
    """Whether a process may still be writing. A number may have been given to another: locks tell in the end."""
    if pid == os.getpid():
        with _lock:
            return path in _writing or os.path.realpath(path) in _writing
    if os.name == "nt":
        return False  # what is open cannot be removed there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def _remove_unlocked(path: str) -> bool:
    """Remove a file unless somebody holds its lock: processes of other containers have numbers of their own."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            return True
        finally:
            os.close(descriptor)
    return False


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())[:40]


def _sync_folder(folder: Path) -> None:
    """Have the rename on the disk, too, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _cannot_write(path: Path, error: Exception) -> OSError:
    reason = getattr(error, "strerror", None) or str(error)
    message = f"path must be a file that can be written, but {str(path)!r} cannot: {reason}. Choose another."
    if isinstance(error, OSError) and error.errno is not None:
        return type(error)(error.errno, message)
    return OSError(message)
