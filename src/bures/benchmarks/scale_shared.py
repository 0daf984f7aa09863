"""The sections of `bench scale` on devices, processes and many fits: lines 4, 5 and 7 of what must hold."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bures
from bures.benchmarks import scale_killed as killed
from bures.benchmarks.pages import Criterion, Grid, count, text
from bures.benchmarks.scale_sections import Section, Shown, found
from bures.models.regression import softplus

_TWO_DEVICES = "--xla_force_host_platform_device_count=2"

# ---- Line 4: two devices, two processes -----------------------------------------------------------------------------


def together_cells(settings: dict[str, Any]) -> dict[str, Any]:
    return {what: dict(what=what, rows=killed.ROWS) for what in settings["together"]}


def measure_together(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A fit of one device or process, and of two: how far apart they are."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        one = killed.undisturbed(here, 1)
        if parameters["what"] == "two processes":
            two = killed.undisturbed(here, 2)
        else:
            two = _on_two_devices(parameters["what"].split()[0])
    apart = {part: float(np.max(np.abs(np.array(one[part]) - np.array(two[part])))) for part in ("mean", "chol")}
    return apart | {"steps": one["steps"], "same_outcome": one["outcome"] == two["outcome"]}


def _on_two_devices(axes: str) -> dict[str, Any]:
    """In a process of its own: the number of devices is set before JAX begins."""
    command = [sys.executable, "-m", "bures.benchmarks.scale_shared", axes]
    environment = os.environ | {"XLA_FLAGS": _TWO_DEVICES, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"two devices, {axes} axes, ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(axes: str) -> dict[str, Any]:
    """The fit on a mesh of all devices, whose axes are explicit or automatic; the number of rows is odd."""
    from jax.sharding import AxisType

    jax.config.update("jax_enable_x64", True)
    kind = AxisType.Explicit if axes == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(kind,))
    target = killed.make_target(lambda data: bures.shard_rows(data, mesh))
    fit = bures.fit(target, key=jax.random.key(0), tolerance=killed.TOLERANCE)
    q = fit.approximation
    parts = {"mean": np.asarray(q.mean).tolist(), "chol": np.asarray(q.chol).tolist()}
    return parts | {"outcome": fit.outcome.name, "devices": jax.device_count()}


def show_together(results: Any, settings: dict[str, Any]) -> Shown:
    criteria, rows = [], []
    for what, run in found(results, "together"):
        apart = max(run["mean"], run["chol"])
        note = "the same outcome" if run["same_outcome"] else "another outcome"
        criteria.append(Criterion(f"{what}: distance from the fit of one, N = {killed.ROWS:,}", apart, 1e-8, note))
        rows.append((what, text(run["mean"]), text(run["chol"]), str(run["steps"]), note))
    heads = ("", "mean", "Cholesky factor", "steps", "")
    return Shown(criteria, [Grid("Two devices and two processes beside one", heads, rows, "Largest differences.")])


# ---- Line 5: a process is killed ------------------------------------------------------------------------------------


def killed_cells(settings: dict[str, Any]) -> dict[str, Any]:
    return {f"kill-{i}": dict(what=f"kill {i}", seed=i) for i in range(settings["kills"])}


def measure_killed(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One process of two is killed at a random moment, each of the two in turn; then both start again."""
    return killed.measure(parameters["seed"])


def show_killed(results: Any, settings: dict[str, Any]) -> Shown:
    runs = [run for _, run in found(results, "killed")]
    if not runs:
        return Shown([], [])
    n = len(runs)
    slowest = max(run["seconds"] for run in runs)
    criteria = [
        Criterion(f"{n} kills: seconds until the survivor ended, the longest", slowest, killed.LIMIT),
        Criterion(f"{n} kills: survivors that said why", sum(run["clear"] for run in runs), n, at_least=True),
        Criterion(
            f"{n} kills: resumed fits that are the undisturbed one bit for bit",
            sum(run["same"] for run in runs),
            n,
            at_least=True,
        ),
    ]
    rows = [
        (
            str(run["victim"]),
            text(run["after"]),
            text(run["seconds"]),
            "ours" if run["ours"] else "JAX's" if run["clear"] else "none",
            text(run["had_checkpoint"]),
            str(run["resumed_steps"]),
            text(run["same"]),
        )
        for run in runs
    ]
    heads = ("killed", "after, s", "survivor ended after, s", "error", "checkpoint", "resumed from step", "same fit")
    return Shown(criteria, [Grid("A process is killed", heads, rows)])


# ---- Line 7: many fits ----------------------------------------------------------------------------------------------


def many_cells(settings: dict[str, Any]) -> dict[str, Any]:
    shared = {name: settings[name] for name in ("many_fits", "many_rows", "many_dim")}
    return {what: dict(what=what, **shared) for what in settings["many"]}


def log_density(z: Any, data: Any) -> Any:
    """A logistic regression as a user writes it."""
    linear = data["X"] @ z
    return jnp.sum(data["y"] * linear - softplus(linear)) - z @ z / 20


def regression(data: Any) -> bures.Target:
    return bures.models.logistic_regression(data["X"], data["y"])


def measure_many(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds of all fits in one call, beside those of the same number of evaluations by a plain program."""
    n, rows, dim = (parameters[name] for name in ("many_fits", "many_rows", "many_dim"))
    data = _regressions(n, rows, dim)
    model, size = (log_density, dim) if parameters["what"] == "a function" else (regression, None)
    some = jax.tree.map(lambda x: x[:50], data)
    bures.fit_many(model, some, jax.random.key(1), dim=size)  # compiles
    before = _seconds_of_a_point(some, dim)
    began, worked = time.perf_counter(), time.process_time()
    fits = bures.fit_many(model, data, jax.random.key(0), dim=size)
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    after = _seconds_of_a_point(some, dim)
    outcomes = [outcome.name for outcome in fits.outcomes]
    plain = fits.num_log_density_evaluations * (before + after) / 2
    return {
        "seconds": seconds,
        "ms_a_fit": 1e3 * seconds / n,
        "cpu_ms_a_fit": 1e3 * worked / n,  # of all threads: on an idle machine no call takes longer
        "evaluations": fits.num_log_density_evaluations / n,
        "over_own_densities": seconds / fits.density_seconds,
        "over_plain_densities": seconds / plain,
        "converged": outcomes.count("CONVERGED") / n,
        "trustworthy": float(fits.trustworthy.mean()),
        "khat_known": float(np.isfinite(fits.khat).mean()),
        "steps": float(fits.num_steps.mean()),
        "most_steps": int(fits.num_steps.max()),
        **_beside_single_fits(fits, data),
    }


def _regressions(count: int, rows: int, dim: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.concatenate([np.ones((count, rows, 1)), rng.standard_normal((count, rows, dim - 1))], axis=2)
    chance = 1 / (1 + np.exp(-(X @ rng.standard_normal((count, dim, 1)))[..., 0]))
    return {"X": X, "y": (rng.random((count, rows)) < chance).astype(float)}


def _seconds_of_a_point(data: Any, dim: int) -> float:
    """log p and its gradient at one point of one model, by `vmap` of the plain density over models and points."""
    models = len(data["y"])
    points = jnp.asarray(np.random.default_rng(0).standard_normal((models, 100, dim)))
    one = jax.value_and_grad(log_density)
    program = jax.jit(jax.vmap(jax.vmap(one, in_axes=(0, None))))
    jax.block_until_ready(program(points, data))
    began, repeats = time.perf_counter(), 20
    for _ in range(repeats):
        jax.block_until_ready(program(points, data))
    return (time.perf_counter() - began) / (repeats * models * 100)


def _beside_single_fits(fits: Any, data: Any, some: int = 20) -> dict[str, float]:
    """Means and deviations of some of them beside long fits of their own."""
    means, deviations = [], []
    for i in range(min(some, len(fits))):
        target = bures.models.logistic_regression(data["X"][i], data["y"][i])
        q = bures.fit(target, key=jax.random.key(i), tolerance=1e-4).approximation
        scale = np.asarray(q.standard_deviations)
        means.append(np.max(np.abs(fits.mean[i] - np.asarray(q.mean)) / scale))
        deviations.append(np.max(np.abs(fits.standard_deviations[i] / scale - 1)))
    return {"mean_error": float(np.median(means)), "deviation_error": float(np.median(deviations))}


def show_many(results: Any, settings: dict[str, Any]) -> Shown:
    criteria, rows = [], []
    for what, run, each in found(results, "many", parameters=True):
        label = f"{count(each['many_fits'])} fits, {what}"
        criteria += [
            Criterion(f"{label}: milliseconds a fit", run["ms_a_fit"], 5, f"{text(run['cpu_ms_a_fit'])} of processor"),
            Criterion(f"{label}: times the cost of its own evaluations", run["over_own_densities"], 3),
            Criterion(f"{label}: times that of as many evaluations by vmap", run["over_plain_densities"], 3),
            Criterion(f"{label}: share with an outcome and a k̂", run["khat_known"], 1.0, at_least=True),
        ]
        names = (
            "ms_a_fit",
            "cpu_ms_a_fit",
            "evaluations",
            "steps",
            "most_steps",
            "over_own_densities",
            "over_plain_densities",
        )
        names += ("converged", "trustworthy", "mean_error", "deviation_error")
        rows.append((what, *(text(run[name]) for name in names)))
    heads = (
        "model",
        "ms a fit",
        "ms of processor",
        "evaluations",
        "steps",
        "most steps",
        "over own densities",
        "over plain vmap",
    )
    heads += ("converged", "trustworthy", "mean error, sd", "sd error")
    note = "Errors are medians over 20 fits of the largest of a fit, beside single fits with a tolerance of 0.0001."
    return Shown(criteria, [Grid("Many fits in one call", heads, rows, note)])


SECTIONS = {
    "together": Section(together_cells, measure_together, show_together),
    "killed": Section(killed_cells, measure_killed, show_killed),
    "many": Section(many_cells, measure_many, show_many),
}
SETTINGS: dict[str, Any] = {
    "together": ["explicit axes, two devices", "automatic axes, two devices", "two processes"],
    "kills": 20,
    "many": ["a function", "a family of targets"],
    "many_fits": 10_000,
    "many_rows": 200,
    "many_dim": 5,
}
QUICK: dict[str, Any] = {"kills": 2, "many_fits": 500}

if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))  # noqa: T201
