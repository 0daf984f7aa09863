"""One side of `before_after`: a process that holds one version of the code and fits when told to.

Run by its path; it reads a command a line and answers a line, both JSON. Only what both versions have is used of bures,
and nothing of this version but this file.
"""

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bures

BLOCK = 1024


def _gaussian(dim: int, condition_number: float = 1e2, scale: float = 1.0) -> Callable[[], Any]:
    return lambda: bures.models.gaussian(dim, condition_number=condition_number, scale=scale)


TARGETS: dict[str, Callable[[], Any]] = {
    "eggbox": lambda: bures.models.eggbox(),
    "banana": lambda: bures.models.banana(),
    "funnel, d = 10": lambda: bures.models.funnel(),
    "Student-t, d = 2": lambda: bures.models.student_t(),
    "Student-t, d = 20": lambda: bures.models.student_t(20),
    **{f"Gaussian, d = 10, condition {c:.0e}": _gaussian(10, c) for c in (1.0, 1e4, 1e8)},
    **{f"Gaussian, d = 10, scale {s:.0e}": _gaussian(10, scale=s) for s in (1e-6, 1e-3, 1e3, 1e6)},
    **{f"Gaussian, d = {dim}": _gaussian(dim) for dim in (1, 2, 50, 100, 200, 500)},
    "Census, d = 9": lambda: bures.models.census(),
    "Census, d = 96": lambda: bures.models.census("full"),
}
SLOW = ("Gaussian, d = 500", "Census, d = 96")


def posterior(name: str, path: str) -> Any:
    from bures import posteriordb

    return posteriordb.load(name, path).target


class Side:
    """A target and the fits of it."""

    def __init__(self) -> None:
        self.target: Any = None
        self.fit: Any = None
        self.start_seconds = 0.0
        self._time_the_start()

    def _time_the_start(self) -> None:
        """Fits that keep no clock of their own: what their start takes is measured around it."""
        from bures import fitting

        found = getattr(fitting, "_default_start", None)
        if found is None:
            return

        @functools.wraps(found)
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            start = jax.block_until_ready(found(*arguments, **options))
            self.start_seconds = time.perf_counter() - began
            return start

        fitting._default_start = timed

    def load(self, target: str, path: str | None) -> dict[str, Any]:
        self.target = TARGETS[target]() if target in TARGETS else posterior(target, str(path))
        return {"dim": self.target.dim}

    def run(self, seed: int) -> dict[str, Any]:
        """A fit and its print, with nothing set."""
        self.start_seconds = 0.0
        began = time.perf_counter()
        fit = bures.fit(self.target, key=jax.random.key(seed), progress=False)
        jax.block_until_ready((fit.approximation.mean, fit.approximation.chol))
        fitted = time.perf_counter() - began
        said = str(fit)
        seconds = time.perf_counter() - began
        own = dict(getattr(fit, "seconds", None) or {})
        self.fit = fit
        return {
            "fit_and_print": seconds,
            "fit": fitted,
            "steps_alone": float(own.get("steps", fitted - self.start_seconds)),
            "phases": {name: float(value) for name, value in own.items()},
            "outcome": fit.outcome.name,
            "steps": int(fit.num_steps),
            "evaluations": int(fit.num_log_density_evaluations),
            "said": said[-300:],
        }

    def judge(self, seed: int, num_samples: int) -> dict[str, Any]:
        """ELBO and nESS of the last fit, by noise that is the same for both sides."""
        q = self.fit.approximation
        mean, chol = np.asarray(q.mean, np.float64), np.asarray(q.chol, np.float64)
        noise = np.random.default_rng([2026, seed]).standard_normal((num_samples, mean.size))
        log_p = _values(self.target, jnp.asarray(mean + noise @ chol.T))
        log_q = -np.sum(noise**2, axis=1) / 2 - np.sum(np.log(np.diagonal(chol))) - mean.size * np.log(2 * np.pi) / 2
        log_w = np.asarray(log_p, np.float64) - log_q
        weights = np.exp(log_w - np.max(log_w))
        ness = np.sum(weights) ** 2 / (weights.size * np.sum(weights**2))
        elbo = np.mean(log_w)
        return {name: float(x) if np.isfinite(x) else None for name, x in (("elbo", elbo), ("ness", ness))}


def _values(target: Any, z: Any) -> Any:
    # Jitted anew for each target; the time does not count.
    return jax.jit(lambda z: jax.lax.map(target.log_density, z, batch_size=BLOCK))(z)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    side = Side()
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(side, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
