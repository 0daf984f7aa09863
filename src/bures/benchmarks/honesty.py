"""Does the verdict tell the truth? Default fits of traps of known mass and of harmless targets, against exact draws.

Run by `bures bench honesty`. A fit that misses mass must not be called close or usable without naming the other modes,
and a fit that is right must not be warned about. One cell a target, kept by the protocol of the experiments.

**Missed mass.** With exact draws z ~ p and r = log p − log q, let A_t be where r > t. The judge has 10,000 draws of q;
the missed mass is p(A_t) for the smallest t at which they are 95% sure to have none in A_t, that is
10,000 q(A_t) ≤ 0.05. Both come from the exact draws: q(A_t) is the mean of exp(−r) over those in A_t. It is the mass
that no importance weight can be expected to show; of an exact fit it is 5e-6. Draws more than 50 deviations away, which
only heavy tails have, are left out. `beyond` is a coarser figure, the share of exact draws at which p is more than
10,000 e⁵ times q.

**Right** is a fit that misses less than 2%, and whose importance-resampled draws have every mean within 0.1 standard
deviations and every standard deviation within 10% of the exact draws'; of heavy tails, medians and quartiles.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bures
from bures.benchmarks import honesty_report
from bures.benchmarks.honesty_targets import CASES, Case, half
from bures.benchmarks.pages import number
from bures.check import check_positive_integer, fail
from bures.experiments.protocol import Store, run_cells

COMFORT = re.compile(r"close to the target|(?<!not )\busable\b", re.IGNORECASE)
NAMES_MODES = re.compile(r"several modes", re.IGNORECASE)
MISSED, MEAN_ERROR, DEVIATION_ERROR = 0.02, 0.1, 0.1
FAR = 50.0  # deviations
JUDGE = 2**31  # folded into a key: no step of a fit has this number
SETTINGS = {"num_draws": 20_000, "judge_draws": 10_000, "unseen": 0.05, "resampled": 10_000, "first_seed": 0}


class Benchmark:
    """The cells of the benchmark, as the protocol of the experiments takes them."""

    @staticmethod
    def cells(settings: dict[str, Any]) -> dict[str, Any]:
        shared = {name: settings[name] for name in ("seeds", *SETTINGS)}
        return {_short(name): dict(shared, case=name) for name in settings["chosen"]}

    @staticmethod
    def run(parameters: dict[str, Any]) -> list[dict[str, Any]]:
        """Every seed of one target."""
        case = CASES[parameters["case"]].make()
        exact, log_p = draw_exactly(case, parameters["num_draws"])
        first = parameters["first_seed"]
        return [fit_and_judge(case, exact, log_p, first + i, parameters) for i in range(parameters["seeds"])]


def _short(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name)


def draw_exactly(case: Case, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact draws and their normalised log density."""
    exact = case.draw(np.random.default_rng(2026), n)
    log_p = np.asarray(jax.jit(jax.vmap(as_arrays(case.density)))(jnp.asarray(exact)), np.float64) - case.log_z
    return exact, log_p


def plain_fit(target: bures.Target, key: jax.Array) -> bures.Fit:
    """A fit with nothing set."""
    return bures.fit(target, key=key, progress=False)


def as_arrays(density: Any) -> Any:
    """The density with JAX arrays, in the precision that is set."""
    return jax.tree.map(lambda x: jnp.asarray(x, float) if eqx.is_array_like(x) else x, density)


def fit_and_judge(
    case: Case,
    exact: np.ndarray,
    log_p: np.ndarray,
    seed: int,
    parameters: dict[str, Any],
    make: Callable[[bures.Target, jax.Array], bures.Fit] = plain_fit,
) -> dict[str, Any]:
    """One fit: what it says, and what is true. That a target is refused is a result too."""
    key = jax.random.key(seed)
    with jax.enable_x64(not case.single):
        target = bures.Target(as_arrays(case.density), case.dim)
        began = time.perf_counter()
        try:
            fit = make(target, key)
            said = str(fit)
        except Exception as error:
            outcome = "REFUSED" if isinstance(error, ValueError) else "FAILED"
            said = f"{type(error).__name__}: {error}"[:500]
            return {"seed": seed, "outcome": outcome, "said": said, "comfort": False, "right": False}
        seconds = time.perf_counter() - began
        judged = getattr(fit, "diagnostics", None)
        if judged is None:  # a fit that keeps no judgement is asked for one
            judged = fit.diagnose(jax.random.fold_in(key, JUDGE))
        try:
            resampled = np.asarray(fit.resample(jax.random.fold_in(key, JUDGE + 1), parameters["resampled"]))
        except ValueError:  # no draw of positive density
            resampled = None
    text = f"{said}\n{judged.message}"
    log_q = np.asarray(fit.approximation.log_prob(jnp.asarray(exact)), np.float64)
    near = np.all(np.abs(exact) <= FAR, axis=1) if case.heavy else slice(None)
    log_ratio = (log_p - log_q)[near]
    missed = missed_mass(log_ratio, parameters["unseen"] / parameters["judge_draws"])
    errors = moment_errors(exact, resampled, case.heavy)
    comfort, named = bool(COMFORT.search(text)), bool(NAMES_MODES.search(text))
    right = missed < MISSED and errors["mean"] < MEAN_ERROR and errors["deviation"] < DEVIATION_ERROR
    # Modes that are not there are a warning too; that there are several where there are is no more than the truth.
    several = case.modes != 1
    warned = fit.outcome.name != "CONVERGED" or (not several if named else not comfort)
    return {
        "seed": seed,
        "outcome": fit.outcome.name,
        "said": text[:1000],
        "comfort": comfort,
        "named": named,
        "missed": missed,
        "beyond": float(np.mean(log_ratio > np.log(parameters["judge_draws"]) + 5)),
        "right": bool(right),
        "warned": bool(warned),
        "false": comfort and missed > MISSED and not named,
        "mean_error": number(errors["mean"]),
        "deviation_error": number(errors["deviation"]),
        "forward_kl": number(np.mean(log_ratio)),
        "ness": number(judged.ness),
        "khat": number(judged.khat),
        "steps": int(fit.num_steps),
        "evaluations": getattr(fit, "num_log_density_evaluations", None),
        "start_seconds": dict(getattr(fit, "seconds", None) or {}).get("start"),
        "seconds": seconds,
    }


def missed_mass(log_ratio: np.ndarray, limit: float) -> float:
    """The share of exact draws in the largest set {p / q > t} of which q has at most `limit`.

    >>> missed_mass(np.zeros(10_000), 5e-6), missed_mass(np.r_[np.zeros(6000), np.full(4000, 40.0)], 5e-6)
    (0.0, 0.4)
    """
    descending = np.sort(np.nan_to_num(log_ratio, nan=np.inf))[::-1]
    inside = np.cumsum(np.exp(np.minimum(-descending, 700))) / descending.size  # q of each set
    return float(np.count_nonzero(inside <= limit) / descending.size)


def moment_errors(exact: np.ndarray, draws: np.ndarray | None, heavy: bool) -> dict[str, float]:
    """The largest error of a mean and of a standard deviation, in exact standard deviations."""
    if draws is None or not np.all(np.isfinite(draws)):
        return {"mean": np.inf, "deviation": np.inf}
    mean, scale = _location(exact, heavy)
    other, spread = _location(draws.astype(np.float64), heavy)
    return {"mean": np.max(np.abs(other - mean) / scale), "deviation": np.max(np.abs(spread - scale) / scale)}


def _location(z: np.ndarray, heavy: bool) -> tuple[np.ndarray, np.ndarray]:
    if not heavy:
        return z.mean(axis=0), z.std(axis=0)
    low, middle, high = np.quantile(z, [0.25, 0.5, 0.75], axis=0)
    return middle, (high - low) / 1.349


def choose(only: list[str] | None) -> list[str]:
    """Cases by their name, their family, or their half: `dev` to tune constants on, `judge` to judge by."""
    words = only or ["dev", "judge"]
    chosen = []
    for name, listed in CASES.items():
        if any(word in (name, listed.family, half(name)) for word in words):
            chosen.append(name)
    families = sorted({listed.family for listed in CASES.values()})
    unknown = [word for word in words if word not in ("dev", "judge", *families, *CASES)]
    if unknown:
        raise fail("--only", f"dev, judge, a family ({', '.join(families)}) or a case", unknown[0], "Check its name.")
    return chosen


def run(
    *,
    seeds: int = 3,
    only: list[str] | None = None,
    out: Path = Path("results"),
    say: Any = lambda message: None,
    **changes: Any,
) -> Path:
    """Run what is not kept yet, then write the tables, the figure and the page; return their folder.

    `changes` are other values of `SETTINGS`, for tests, or seeds that no constant was chosen with.
    """
    check_positive_integer("seeds", seeds, "It is the number of fits of each target.")
    settings = {**SETTINGS, **changes, "seeds": seeds, "chosen": choose(only)}
    store = Store(out, "honesty", "full")

    def report(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    results = run_cells(Benchmark, store, settings, report)
    for line in honesty_report.write(results, settings, store.folder):
        say(line)
    return store.folder
