"""The rounds of a mixture's fit between two of them, as arrays of a saved fit: what is written, and what must hold."""

import itertools
import math
from typing import Any

import numpy as np

from bures.archive import Arrays, FileError
from bures.draws import host_generator
from bures.family import Gaussian, GaussianMixture
from bures.fitting.result import Fit
from bures.mixing import Pause, Round
from bures.mixing.pool import Batch
from bures.recognition import NUM_PROBES, check_same_density
from bures.stored import check_approximation

_PREFIX = "pause/"
_COUNTS = ("left", "idle", "drawn", "checking", "max_components", "further", "by_elbo", "polishing")
_LARGEST = 2**53
_PARTS = {GaussianMixture: ("log_shares", "means", "chols", "tail"), Gaussian: ("mean", "chol")}
_WORDS = 11  # of the generator: its counter, its buffer, where it is in that, and half a word


def arrays_of(pause: Pause | None) -> dict[str, Any]:
    """The arrays of a pause, by name; none of none."""
    if pause is None:
        return {}
    doubtful = () if pause.doubtful is None else (pause.doubtful,)
    sizes = [len(batch.z) for batch in pause.batches]
    lists = {
        "q": (pause.q,),
        "doubtful": doubtful,
        "kept": pause.kept,
        "place": pause.places,
        "proposal": [batch.proposal for batch in pause.batches],
    }
    dim = pause.q.dim
    found = {
        "counts": np.array([int(getattr(pause, name)) for name in _COUNTS], np.int64),
        "lengths": np.array([len(each) for each in lists.values()], np.int64),
        "expected": np.float64(pause.expected),
        "generator": _words(pause.generator),
        "rounds": np.array(pause.rounds, np.float64).reshape(-1, len(Round._fields)),
        "sizes": np.array(sizes, np.int64),
        "z": np.concatenate([np.zeros((0, dim)), *(batch.z for batch in pause.batches)]),
        "log_p": np.concatenate([np.zeros(0), *(batch.log_p for batch in pause.batches)]),
        "score": np.concatenate([np.zeros((0, dim)), *(batch.score for batch in pause.batches)]),
    }
    for name, several in lists.items():
        for i, each in enumerate(several):
            found |= {f"{name}_{i}.{part}": getattr(each, part) for part in _PARTS[type(each)]}
    return {f"{_PREFIX}{name}": array for name, array in found.items()}


def pause_of(fit: Fit, arrays: Arrays) -> Pause | None:
    """The pause of a fit that a file holds; None where it holds none."""
    if f"{_PREFIX}counts" not in arrays:
        return None
    given = _Reader(arrays, fit.target.dim)
    counts, lengths = given.integers("counts", len(_COUNTS)), given.integers("lengths", 5)
    if sum(lengths) > len(arrays) or lengths[0] != 1 or lengths[1] > 1:
        raise FileError("it declares mixtures that it does not hold")
    q, doubtful, kept, proposals = (
        given.several(name, GaussianMixture, lengths[i])
        for i, name in ((0, "q"), (1, "doubtful"), (2, "kept"), (4, "proposal"))
    )
    rounds = given.rounds()
    numbers: dict[str, Any] = dict(zip(_COUNTS, counts, strict=True)) | {"checking": bool(counts[3])}
    expected = float(given.floats("expected", ()))
    if len(rounds) != fit.num_steps or sum(each.draws for each in rounds) != numbers["drawn"] or math.isnan(expected):
        raise FileError("its rounds are not those of its trace")
    if max(numbers["by_elbo"], numbers["polishing"]) > len(rounds):
        raise FileError("it declares rounds that it does not hold")
    batches = given.batches(proposals)
    _check_density(fit, batches)
    return Pause(
        q=q[0],
        doubtful=doubtful[0] if doubtful else None,
        kept=kept,
        places=given.several("place", Gaussian, lengths[3]),
        batches=batches,
        rounds=rounds,
        expected=expected,
        generator=_state(given.words(), fit),
        **numbers,
    )


class _Reader:
    """Arrays of the kinds and shapes that they must have."""

    def __init__(self, arrays: Arrays, dim: int):
        self.arrays, self.dim = arrays, dim

    def _read(self, name: str, kind: Any, shape: tuple[int, ...]) -> np.ndarray:
        array = self.arrays[f"{_PREFIX}{name}"]
        if array.dtype != kind or array.shape != shape:
            raise FileError(f"{_PREFIX}{name} is not of the kind or the shape that it should be")
        return array

    def _length(self, name: str) -> int:
        return len(np.atleast_1d(self.arrays[f"{_PREFIX}{name}"]))

    def integers(self, name: str, length: int) -> list[int]:
        found = self._read(name, np.int64, (length,)).tolist()
        if any(not 0 <= each < _LARGEST for each in found):
            raise FileError(f"{_PREFIX}{name} are not counts")
        return found

    def floats(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return self._read(name, np.float64, shape)

    def words(self) -> np.ndarray:
        return self._read("generator", np.uint64, (_WORDS,))

    def rounds(self) -> tuple[Round, ...]:
        rows = self.floats("rounds", (self._length("rounds"), len(Round._fields)))
        made = [Round(*row)._replace(draws=int(row[Round._fields.index("draws")])) for row in rows.tolist()]
        if any(not 0 < each.draws < _LARGEST for each in made):
            raise FileError("its rounds have no draws")
        return tuple(made)

    def several(self, name: str, kind: type, count: int) -> tuple[Any, ...]:
        made = []
        for i in range(count):
            q = kind.unchecked(*(self.arrays[f"{_PREFIX}{name}_{i}.{part}"] for part in _PARTS[kind]))
            if any(part.dtype != np.float64 for part in q.parts().values()):
                raise FileError(f"{_PREFIX}{name}_{i} is not in double precision")
            check_approximation(f"{_PREFIX}{name}_{i}", q, self.dim)
            made.append(q)
        return tuple(made)

    def batches(self, proposals: tuple[GaussianMixture, ...]) -> tuple[Batch, ...]:
        sizes = self.integers("sizes", len(proposals))
        n, dim = sum(sizes), self.dim
        z, log_p, score = self.floats("z", (n, dim)), self.floats("log_p", (n,)), self.floats("score", (n, dim))
        if not np.all(np.isfinite(z)) or np.any(np.isnan(log_p) | (log_p == np.inf)) or not np.all(np.isfinite(score)):
            raise FileError("the draws of its rounds are not finite")
        if 0 in sizes:
            raise FileError("its rounds have no draws")
        ends = np.cumsum([0, *sizes]).tolist()
        parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
        return tuple(Batch(q, z[at], log_p[at], score[at]) for q, at in zip(proposals, parts, strict=True))


def _check_density(fit: Fit, batches: tuple[Batch, ...]) -> None:
    """The latest draws have the density of the target."""
    if not batches:
        return
    some = np.flatnonzero(np.isfinite(batches[-1].log_p))[:NUM_PROBES]
    if some.size:
        z = batches[-1].z[some].astype(fit.approximation.mean.dtype)
        check_same_density(fit.target, z, batches[-1].log_p[some])


def _words(state: dict[str, Any]) -> np.ndarray:
    """The state of a Philox generator without its key, which is that of the fit."""
    single = [state["buffer_pos"], state["has_uint32"], state["uinteger"]]
    return np.array([*state["state"]["counter"], *state["buffer"], *single], np.uint64)


def _state(words: np.ndarray, fit: Fit) -> dict[str, Any]:
    position, has_half, half = (int(word) for word in words[8:])
    if position > 4 or has_half > 1 or half >= 2**32:
        raise FileError("the generator of its rounds is not one")
    state = dict(host_generator(fit.key).bit_generator.state)
    state["state"] = {"counter": words[:4].copy(), "key": state["state"]["key"]}
    return state | {"buffer": words[4:8].copy(), "buffer_pos": position, "has_uint32": has_half, "uinteger": half}
