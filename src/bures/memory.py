"""Memory that is free in this process, given back to the system.

To compile a program takes some ten megabytes for a moment, and a target's data come and go. The allocator of C keeps
such memory for the process; small things that live on lie between its pieces, so that the next data may fit into none
of them and the process grows. Where the C library is glibc, it can be told to give free pages back.
"""

import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None where there is none, as on macOS and Windows."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


def give_back_memory() -> bool:
    """Give free pages back to the system; whether that could be asked for. It takes a few milliseconds."""
    trim = _trim()
    if trim is not None:
        trim(0)
    return trim is not None
