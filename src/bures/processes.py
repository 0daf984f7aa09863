"""A process that was forked after JAX had run: its threads are gone, and the next computation would wait for ever."""

import os
import sys

_REMEDY = (
    "bures must be run in a process of its own, but this one was forked (os.fork, or multiprocessing by 'fork') after "
    "JAX had run in its parent: computations would never end. Use multiprocessing.get_context('spawn'), or fork before "
    "the first computation."
)
_forked: list[bool] = []  # in this process, after JAX had run


def _note_fork() -> None:
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and getattr(bridge, "_backends", None):
        _forked.append(True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def refuse_fork() -> None:
    """Say so early, in the place of waiting for ever."""
    if _forked:
        raise RuntimeError(_REMEDY)
