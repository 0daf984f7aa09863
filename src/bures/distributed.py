"""Several processes, on one machine or many: JAX's own distributed runtime, and sums over what each process holds.

All processes run the same program, and every one of them makes the same fit: what differs is the rows that it reads. A
pass over the rows ends in one sum over the processes, in the same order everywhere, so that the fits stay equal bit for
bit. Process 0 alone prints and writes.
"""

import atexit
import os
import re
import signal
import sys
import threading
import zlib
from typing import Any, NamedTuple

import jax
import numpy as np

from bures.check import check_positive_integer, fail

_HEARTBEAT = 20  # seconds without a sign of life after which a process counts as dead
_CONNECT = 45  # seconds in which all processes have to come: where one has died before, the others must not wait long
_SHUTDOWN = 20  # seconds that a process which has finished waits for the others
_GIVEN = "Give --coordinator, --num-processes and --process-id, or none of them under Slurm, Open MPI or on TPU pods."


class LostProcessError(RuntimeError):
    """Another process of this run has ended, so that its rows are missing."""


class Own(NamedTuple):
    """Rows that only this process has, for `Target.from_data`: others have others."""

    data: Any


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_seconds: int = _HEARTBEAT,
    connect_seconds: int = _CONNECT,
) -> None:
    """Start JAX's distributed runtime in this process: before anything else of JAX, in all processes alike.

    **Arguments**, none of which is needed under Slurm, Open MPI or on TPU pods, where JAX finds out by itself:

    - `coordinator`: host and port of process 0, e.g. `"10.0.0.1:1234"`, the same for all.
    - `num_processes`: how many there are.
    - `process_id`: the number of this one, from 0.
    - `heartbeat_seconds`: when a process has died, the others end with an error after at most about this long; most
        often at once, when they next need its rows.
    - `connect_seconds`: all processes have to have come within this time, else those that have end with an error. More
        where a cluster starts them minutes apart.

    Ctrl-C ends this process without ceremony, and so the others: a fit goes on from its checkpoint.
    """
    given = coordinator is not None, num_processes is not None, process_id is not None
    if any(given) and not all(given):
        raise fail("coordinator, num_processes and process_id", "given together", given, _GIVEN)
    if coordinator is not None:
        _check_place(coordinator, num_processes, process_id)
    check_positive_integer("heartbeat_seconds", heartbeat_seconds, "For example 20.")
    check_positive_integer("connect_seconds", connect_seconds, "For example 300.")
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=connect_seconds,
            heartbeat_timeout_seconds=heartbeat_seconds,
            shutdown_timeout_seconds=_SHUTDOWN,
        )
    except (ValueError, RuntimeError) as error:
        late = f"All have to come within connect_seconds={connect_seconds}."
        raise ConnectionError(f"The processes could not find each other: {error} {_GIVEN} {late}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    atexit.register(_end_alone)  # it runs before JAX's own end, which would wait for a process that is lost


def _check_place(coordinator: Any, num_processes: Any, process_id: Any) -> None:
    """Where process 0 is, and which of how many this one is."""
    if not isinstance(coordinator, str) or not re.fullmatch(r".+:\d+", coordinator):
        raise fail("coordinator", "host:port of process 0", coordinator, "For example 10.0.0.1:1234.")
    check_positive_integer("num_processes", num_processes, "It is how many processes there are.")
    if isinstance(process_id, bool) or not isinstance(process_id, int) or not 0 <= process_id < num_processes:
        raise fail("process_id", f"a whole number from 0 to {num_processes - 1}", process_id, "Each has its own.")


def count() -> int:
    """The number of processes."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def number() -> int:
    """The number of this process, from 0."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_first() -> bool:
    """Whether this process prints and writes: the only one there is, or process 0."""
    return number() == 0


def share(num_rows: int) -> slice:
    """The rows of this process, of rows that all can read: equal parts, in order.

    >>> share(10)
    slice(0, 10, None)
    """
    here, all_of_them = number(), count()
    return slice(num_rows * here // all_of_them, num_rows * (here + 1) // all_of_them)


def gather(values: np.ndarray) -> np.ndarray:
    """A vector of doubles of each process, all of one length: (processes, length), the same in every process."""
    from jax.experimental import multihost_utils

    flat = np.zeros(_rounded(values.size))
    flat[: values.size] = values
    words = flat.view(np.uint32)  # as they are: without x64, JAX would round doubles
    try:
        found = np.asarray(multihost_utils.process_allgather(words))
    except (ValueError, RuntimeError) as error:
        raise _lost(error) from error
    return np.ascontiguousarray(found).reshape(count(), -1).view(np.float64)[:, : values.size]


def sum_over_processes(parts: list[np.ndarray], same: np.ndarray | None = None) -> list[np.ndarray]:
    """The sums of arrays over all processes, the same in each; `same` is what must not differ between them."""
    if count() == 1:
        return parts
    mark = float(zlib.crc32(np.ascontiguousarray(same).tobytes())) if same is not None else 0.0
    found = gather(np.concatenate([[mark], *(np.ravel(part) for part in parts)]))
    if np.any(found[:, 0] != mark):
        raise RuntimeError(
            "The processes have come apart: they evaluate different points. All must run the same program, with the "
            "same key, on machines of one kind."
        )
    total, sums, at = found.sum(axis=0), [], 1
    for part in parts:
        sums.append(total[at : at + part.size].reshape(part.shape))
        at += part.size
    return sums


def gather_rows(rows: Any, numbers: np.ndarray, count_of_all: int) -> Any:
    """Rows of all processes in the order of their `numbers`: each gives a tree of arrays, some of the rows."""
    lengths = gather(np.array([float(numbers.size)]))[:, 0].astype(int)
    longest = int(lengths.max())

    def whole(x: np.ndarray) -> np.ndarray:
        width = int(np.prod(x.shape[1:], dtype=int)) * x.dtype.itemsize
        words = np.zeros(-(-longest * width // 8) * 8, np.uint8)
        words[: x.size * x.dtype.itemsize] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        found = gather(words.view(np.float64)).view(np.uint8)
        parts = [found[i, : n * width].copy().view(x.dtype).reshape(n, *x.shape[1:]) for i, n in enumerate(lengths)]
        return np.concatenate(parts)

    order = np.argsort(whole(numbers.astype(np.int64)), kind="stable")
    assert order.size == count_of_all
    return jax.tree.map(lambda x: whole(np.asarray(x))[order], rows)


_LOST = False


def _lost(error: Exception) -> LostProcessError:
    global _LOST
    _LOST = True
    return LostProcessError(
        f"Another process of this run has ended, and its rows with it (this is process {number()} of {count()}). "
        "Its own output says why. Start all processes again; a fit with a checkpoint goes on from there. "
        f"What this process saw: {str(error).splitlines()[0][:200]}"
    )


def _end_alone() -> None:
    """End at once if another process is lost: JAX's own end would wait for it, and then abort."""
    if _LOST:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)


def _rounded(size: int) -> int:
    """The next power of two: few lengths, so that few programs are made."""
    return 1 << max(size - 1, 0).bit_length()
