"""Writing files: whole or not at all, nothing left behind, links and modes kept."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bures import files
from bures.files import remove_leftovers, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "real.fit", tmp_path / "link.fit"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_atomically(link, b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"
    assert names(tmp_path) == ["link.fit", "there"] and names(tmp_path / "there") == ["real.fit"]
    dangling = tmp_path / "dangling.fit"
    dangling.symlink_to(tmp_path / "there" / "not-yet.fit")
    write_atomically(dangling, b"first")
    assert dangling.is_symlink() and (tmp_path / "there" / "not-yet.fit").read_bytes() == b"first"
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(OSError, match="path must be a file that can be written"):
        write_atomically(circle, b"never")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_the_mode_of_a_file_is_kept(tmp_path, mode):
    path = tmp_path / "a.fit"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_atomically(path, b"new")
    assert path.stat().st_mode & 0o777 == mode


def test_a_new_file_has_the_mode_that_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a.fit", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "a.fit").stat().st_mode & 0o777 == 0o640


def test_read_only_files_folders_and_devices_are_refused(tmp_path):
    path = tmp_path / "a.fit"
    path.write_bytes(b"old")
    path.chmod(0o444)
    with pytest.raises(OSError, match="read-only"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    for other in (tmp_path, Path("/dev/null"), tmp_path / "no" / "folder"):
        with pytest.raises(OSError, match="path must be a file that can be written"):
            write_atomically(other, b"new")
    assert names(tmp_path) == ["a.fit"]
    for wrong in (None, 3, "", b"", "a\0b"):
        with pytest.raises(ValueError, match="path must be a path"):
            write_atomically(wrong, b"new")


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "a.fit"
    path.write_bytes(b"old")

    def fails(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, call, fails)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old" and names(tmp_path) == ["a.fit"]


def test_an_interrupt_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    (tmp_path / "a.fit").write_bytes(b"old")
    monkeypatch.setattr(files.os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a.fit", b"new")
    assert names(tmp_path) == ["a.fit"] and (tmp_path / "a.fit").read_bytes() == b"old"


KILLED = """
import os, sys
from bures import files
files.os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
files.write_atomically(sys.argv[1], bytes(1000))
"""


def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path, monkeypatch):
    path = tmp_path / "a.fit"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".bures-") and not path.exists()
    others = [".a.fit.x1y2z3", ".bures-elsewhere-1-0.a.fit.tmp", f".bures-{files._host()}-1-0.a.fit.tmp"]
    for name in others:  # not ours, of another host, of a process that is alive
        (tmp_path / name).write_bytes(b"kept")
    monkeypatch.setattr(files, "_cleaned", set())
    write_atomically(path, b"whole")
    assert names(tmp_path) == sorted([*others, "a.fit"])


def test_what_is_being_written_is_not_removed(tmp_path):
    path = tmp_path / "a.fit"
    with files.replacing(path) as descriptor:
        assert remove_leftovers(tmp_path) == []
        # A process elsewhere with a number that is free here: its lock says that it is alive.
        (ours,) = tmp_path.iterdir()
        other = tmp_path / ours.name.replace(f"-{os.getpid()}-", "-999999999-")
        ours.rename(other)
        assert remove_leftovers(tmp_path) == []
        other.rename(ours)
        os.write(descriptor, b"whole")
    assert path.read_bytes() == b"whole" and names(tmp_path) == ["a.fit"]


def test_threads_may_write_one_file(tmp_path):
    path = tmp_path / "a.fit"
    contents = [bytes([i]) * 10_000 for i in range(8)]
    threads = [threading.Thread(target=write_atomically, args=(path, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents and names(tmp_path) == ["a.fit"]
