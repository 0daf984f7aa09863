"""The measurements of `bures.benchmarks.speed`, a function a section: parameters of a cell in, figures out."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bures
from bures.benchmarks import peers
from bures.benchmarks.speed_alone import alone
from bures.diagnostics import diagnose, forward_kl
from bures.experiments import convergence
from bures.experiments.protocol import BW_IW, EUCLIDEAN_IW, make_method
from bures.fitting import default_estimator

JUDGE = 2**31  # folded into a key for the diagnostics: no step has this number


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = run()
    return result, time.perf_counter() - began


# ---- The paper's regression -----------------------------------------------------------------------------------------

SAME_M = "bures.fit, same M"  # as Euclidean's
OWN_RATE = "Euclidean IW-ELBO, own rate"  # the one that the paper's rule chooses on these data
_RATES = {EUCLIDEAN_IW: convergence.PAPER_STEP_SIZES[EUCLIDEAN_IW], OWN_RATE: convergence.STEP_SIZES[EUCLIDEAN_IW]}


def regression_methods(K: int) -> list[str]:
    """Euclidean with the paper's tuned rate and, where that does not settle on these data, with its own."""
    own = [OWN_RATE] if _RATES[OWN_RATE][K] != _RATES[EUCLIDEAN_IW][K] else []
    return [peers.DEFAULT, SAME_M, EUCLIDEAN_IW, *own]


def _regression_method(name: str, target: bures.Target, M: int, K: int) -> dict[str, Any]:
    if name in _RATES:
        return make_method(EUCLIDEAN_IW, _RATES[name][K], M=M, K=K)
    objective = bures.IWELBO(K)
    estimator = default_estimator(target, objective)
    if name == SAME_M:
        estimator = dataclasses.replace(estimator, M=M)
    return dict(objective=objective, estimator=estimator, geometry=bures.Whitened())


def regression(parameters: dict[str, Any]) -> dict[str, Any]:
    """Iterations of one seed to the paper's threshold; or, with no seed, seconds an iteration of all methods."""
    dtype, K, M = jnp.dtype(parameters["dtype"]), parameters["K"], parameters["M"]
    target, start = convergence.regression(parameters["n"], 2026, dtype), convergence.start(3, dtype)
    noise = jax.random.normal(jax.random.key(2**31 - 1), (500, 1, 3), dtype)

    def track(name: str, seed: int, num_steps: int, evaluated: bool) -> convergence.Run:
        method = _regression_method(name, target, M, K)
        options = dict(measure=bures.ELBO(), noise=noise, evaluated=evaluated)
        return convergence.track(jax.random.key(seed), target, start, method, num_steps, **options)

    if parameters["seed"] is None:
        runs = {name: lambda count, name=name: track(name, 0, count, False) for name in regression_methods(K)}
        return {"seconds": convergence.seconds_per_step(runs, parameters["rounds"], max(5, 500 // K))}
    best = bures.fit(target, key=jax.random.key(0), init=start, objective=bures.ELBO(), progress=False).approximation
    elbo = jnp.mean(target.value(best.push(noise[:, 0])) - best.log_prob_of_noise(noise[:, 0]))
    run = track(parameters["method"], parameters["seed"], parameters["num_steps"], True)
    limit = float(elbo) - convergence.BELOW
    return {"iterations": convergence.reached(np.asarray(run.progress), limit), "threshold": limit}


# ---- Overhead -------------------------------------------------------------------------------------------------------


def overhead(parameters: dict[str, Any]) -> dict[str, Any]:
    """Seconds of an iteration of the paper's algorithm, and of evaluations alone at as many points, in turn.

    Alone are the log density, mapped over the points by JAX, and the target's own, faster evaluation of it.
    """
    dtype, K, M = jnp.dtype(parameters["dtype"]), parameters["K"], parameters["M"]
    target, start = convergence.regression(parameters["n"], 2026, dtype), convergence.start(3, dtype)
    method = make_method(BW_IW, convergence.STEP_SIZES[BW_IW][K], M=M, K=K)
    count, noise = max(5, parameters["points"] // (M * K)), jnp.zeros((1, 1, 3), dtype)
    z = start.push(jax.random.normal(jax.random.key(0), (M * K, 3), dtype))

    @functools.partial(jax.jit, static_argnums=0)
    def evaluations(evaluate, target, z, count):
        # Points that differ from turn to turn: else the compiler would evaluate them once.
        def turn(t, total):
            return total + jnp.sum(evaluate(target, z + t.astype(dtype) / 1000)).astype(dtype)

        return jax.lax.fori_loop(0, count, turn, jnp.zeros((), dtype))

    def mapped(target, z):
        return jax.vmap(target.log_density)(z)

    def iterations():
        run = convergence.track(
            jax.random.key(0), target, start, method, count, measure=bures.ELBO(), noise=noise, evaluated=False
        )
        assert int(run.taken) == count

    contestants = {
        BW_IW: iterations,
        "log density": lambda: jax.block_until_ready(evaluations(mapped, target, z, count)),
        "Target.value": lambda: jax.block_until_ready(evaluations(bures.Target.value, target, z, count)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(parameters["rounds"] + 1):
        for name, run in contestants.items():
            _, elapsed = _timed(run)
            seconds[name] += [elapsed / count] if turn else []  # the first compiles
    return {"seconds": seconds}


# ---- Census ---------------------------------------------------------------------------------------------------------

OWN = "NumPyro, its own model"


def _own_model(target: bures.Target, settings: dict[str, Any]) -> peers.Run:
    """The regression as a user of NumPyro writes it, with its distributions; the others are given our fast density."""
    import numpyro
    from numpyro import distributions
    from numpyro.infer import Trace_ELBO

    X, y, _ = bures.datasets.census(settings["design"])

    def model():
        z = numpyro.sample("z", distributions.Normal(0, np.sqrt(10.0)).expand([X.shape[1]]).to_event(1))
        numpyro.sample("y", distributions.Bernoulli(logits=jnp.asarray(X) @ z), obs=jnp.asarray(y))

    return peers.numpyro_model(model, settings, Trace_ELBO())


PEERS = {
    peers.DEFAULT: peers.default,
    "Laplace": peers.laplace,
    "Pathfinder": peers.pathfinder,
    OWN: _own_model,
    "NumPyro, Trace_ELBO": peers.numpyro,
    "NumPyro, RenyiELBO": peers.numpyro_renyi,
    "BlackJAX, fullrank_vi": peers.blackjax,
    "PyMC, FullRankADVI": peers.pymc,
    "PyMC, Pathfinder": peers.pymc_pathfinder,
}
QUICK = tuple(PEERS)[:3]  # seconds; the others take minutes
RUN_TWICE = (*QUICK, "PyMC, Pathfinder")  # the first run compiles


def census(parameters: dict[str, Any]) -> dict[str, Any]:
    """Every contestant in turn: warm seconds, and the quality of its Gaussian by fresh draws."""
    target, seed = bures.models.census(parameters["design"]), parameters["seed"]
    found: dict[str, Any] = {}
    for name in parameters["contestants"]:
        try:
            with peers.quiet():
                run = PEERS[name](target, parameters)
                if name == peers.DEFAULT:  # compiles all there is, without the cost of a fit
                    bures.fit(target, key=jax.random.key(seed), num_steps=1, progress=False)
                elif name in RUN_TWICE:
                    run(seed)
                began = time.perf_counter()
                answer = run(seed)
                jax.block_until_ready(answer.approximation)
                seconds = time.perf_counter() - began
        except ImportError:
            raise
        except Exception as error:  # whatever a library raises on a posterior it cannot do is a result too
            found[name] = {"outcome": "FAILED", "message": f"{type(error).__name__}: {error}"[:300]}
            continue
        key = jax.random.fold_in(jax.random.key(seed), JUDGE)
        judged = diagnose(key, answer.approximation, target, num_samples=parameters["num_samples"])
        names = ("ness", "khat", "elbo", "log_evidence", "log_evidence_mcse")
        figures = {each: _number(getattr(judged, each)) for each in names}
        found[name] = {"outcome": answer.outcome, "steps": answer.num_steps, "seconds": seconds, **figures}
    return found


def _number(value: float) -> float | None:
    """JSON has no infinities."""
    return float(value) if np.isfinite(value) else None


# ---- Targets --------------------------------------------------------------------------------------------------------


def _eggbox_from_paper() -> tuple[bures.Target, bures.Gaussian]:
    return bures.models.eggbox(), bures.Gaussian.from_moments(jnp.array([6.0, 12.0]), 5 * jnp.eye(2))


def _eggbox_from_mode() -> tuple[bures.Target, bures.Gaussian]:
    return bures.models.eggbox(), bures.laplace(bures.models.eggbox())


def _gaussian(dim: int, condition_number: float = 1e2, scale: float = 1.0) -> Callable[[], tuple[bures.Target, None]]:
    return lambda: (bures.models.gaussian(dim, condition_number=condition_number, scale=scale), None)


TARGETS: dict[str, Callable[[], tuple[bures.Target, bures.Gaussian | None]]] = {
    "eggbox, the paper's start": _eggbox_from_paper,
    "eggbox, Laplace's mode": _eggbox_from_mode,
    "eggbox": lambda: (bures.models.eggbox(), None),
    "banana": lambda: (bures.models.banana(), None),
    "funnel, d = 10": lambda: (bures.models.funnel(), None),
    "Student-t, d = 2": lambda: (bures.models.student_t(), None),
    "Student-t, d = 20": lambda: (bures.models.student_t(20), None),
    **{f"Gaussian, d = 10, condition {c:.0e}": _gaussian(10, c) for c in (1.0, 1e4, 1e8)},
    **{f"Gaussian, d = 10, scale {s:.0e}": _gaussian(10, scale=s) for s in (1e-6, 1e-3, 1e3, 1e6)},
    **{f"Gaussian, d = {dim}": _gaussian(dim) for dim in (1, 2, 50, 100, 200, 500)},
}


def targets(parameters: dict[str, Any]) -> dict[str, Any]:
    """The default fit of one target by every seed: how it ended, what it cost, how far it is from the truth."""
    target, init = TARGETS[parameters["target"]]()
    bures.fit(target, key=jax.random.key(0), init=init, num_steps=1, progress=False)
    rows = []
    for seed in range(parameters["seeds"]):
        key = jax.random.key(seed)
        fit, seconds = _timed(lambda key=key: bures.fit(target, key=key, init=init, progress=False))
        judge = jax.random.split(jax.random.fold_in(key, JUDGE))
        q = fit.approximation
        if parameters["target"].startswith("Gaussian"):
            distance = float(bures.Gaussian.from_moments(target.mean, target.covariance).kl(q))
        else:
            distance = forward_kl(judge[0], target, q, num_samples=parameters["num_samples"])[0]
        # Of constant weights k̂ is −∞, of useless ones ∞.
        khat = np.clip(diagnose(judge[1], q, target, num_samples=parameters["num_samples"]).khat, -10, 10)
        figures = {"khat": _number(khat), "KL(p‖q)": _number(distance), "seconds": seconds}
        rows.append({"outcome": fit.outcome.name, "steps": fit.num_steps, **figures})
    return {"dim": target.dim, "fits": rows}


# ---- Growth and cold start ------------------------------------------------------------------------------------------


def growth(parameters: dict[str, Any]) -> dict[str, Any]:
    """One size: seconds of a step and peak memory."""
    names = ("kind", "N", "dim", "M", "K", "num_steps")
    return alone("growth", **{name: parameters[name] for name in names})


def cold(parameters: dict[str, Any]) -> dict[str, Any]:
    """First waits, library by library in turn."""
    options = dict(num_steps=parameters["cold_steps"], step_size=parameters["numpyro_step_size"])
    rounds = range(parameters["repeats"])
    return {
        "imports": [alone("imports") for _ in rounds],
        "first": [{"bures": alone("first_bures"), "NumPyro": alone("first_numpyro", **options)} for _ in rounds],
    }


SECTIONS = {
    "cold": cold,
    "overhead": overhead,
    "targets": targets,
    "regression": regression,
    "growth": growth,
    "census9": census,
    "census96": census,
}
