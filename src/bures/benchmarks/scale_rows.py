"""The sections of `bench scale` that read rows: memory, reads and quality, noise, front-ends, cost by N."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import bures
from bures.benchmarks import scale_models as models
from bures.benchmarks.pages import Criterion, Grid, count, text
from bures.benchmarks.scale_sections import Section, Shown, found
from bures.engine import Evaluator
from bures.family import Gaussian, LowRankGaussian

_SMALL = 20_011  # rows at which streaming is compared with memory
_ELBO_DRAWS = 64
_GROUPS = 1000  # of data that have none: a part of their names
_CHECK_EVERY = 200  # steps of SVI between two looks at the clock


def _cells_of(sizes: str) -> Any:
    """One cell for each name in a setting, with the number of rows that it has there."""

    def cells(settings: dict[str, Any]) -> dict[str, Any]:
        return {name: dict(what=name, rows=n, columns=settings["columns"]) for name, n in settings[sizes].items()}

    return cells


# ---- Line 1: streaming ----------------------------------------------------------------------------------------------


def measure_streaming(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Streamed values, scores and Hessians beside those in memory; then a default fit in a process of its own."""
    source, columns = parameters["what"], parameters["columns"]
    data = models.memory_map(folder, "logistic", _SMALL, columns)
    stored = models.parquet(folder, "logistic", _SMALL, columns) if source == "parquet" else data
    stored = models.in_memory(data) if source == "arrays" else stored
    streamed = models.MODELS["logistic"].target(stored, columns, 1, subsample=True)
    memory = models.MODELS["logistic"].target(models.in_memory(data), columns, 1, subsample=False)
    z = 0.1 * np.random.default_rng(0).standard_normal((20, columns))
    ours, theirs = (Evaluator(target).value_and_score(z) for target in (streamed, memory))
    errors = [float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in zip(ours, theirs, strict=True)]
    weights = np.arange(20.0)
    density: Any = streamed.log_density
    hessian = np.asarray(memory.weighted_hessian(jax.numpy.asarray(weights), jax.numpy.asarray(z)))
    errors.append(
        float(np.max(np.abs(density.stream.weighted_hessian(weights, z) - hessian)) / np.max(np.abs(hessian)))
    )
    measured = {} if source == "arrays" else _alone(source, "logistic", parameters["rows"], columns, _GROUPS, folder)
    measured.pop("parts", None)
    return {"error": max(errors), **measured}


def _alone(source: str, model: str, n: int, columns: int, groups: int, folder: Path) -> dict[str, Any]:
    """What a fit measures in a process of its own."""
    arguments = [source, model, n, columns, groups, folder]
    command = [sys.executable, "-m", "bures.benchmarks.scale_alone", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def show_streaming(results: Any, settings: dict[str, Any]) -> Shown:
    criteria, rows = [], []
    for what, run in found(results, "streaming"):
        criteria.append(Criterion(f"streaming from {what}: relative error", run["error"], 1e-10))
        if "fit_gb" in run:
            criteria.append(Criterion(f"anonymous memory of a fit, {what}, GB", run["fit_gb"], 0.5))
            rows.append((what, text(run["pass_gb"]), text(run["fit_gb"]), text(run["reads"]), text(run["seconds"])))
    heads = ("source", "GB, a pass", "GB, a fit", "reads", "seconds")
    n = max(settings["streaming_rows"].values())
    return Shown(criteria, [Grid(f"Memory at N = {n:,}", heads, rows, "Growth of RssAnon over a process with JAX.")])


# ---- Line 2: few reads, as good a fit -------------------------------------------------------------------------------


def measure_reads(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The default on memory maps, exact steps from there on, and NumPyro's SVI given many times the seconds."""
    model, n, columns, groups = (parameters[name] for name in ("what", "rows", "columns", "groups"))
    run = _alone("memory-map", model, n, columns, groups, folder)
    parts = {name: np.asarray(part) for name, part in run.pop("parts").items()}
    q = _approximation(parts)
    data = models.in_memory(models.memory_map(folder, model, n, columns, groups))
    exact = models.MODELS[model].target(data, columns, groups, subsample=False)
    judged = models.MODELS[model].target(data, columns, groups, subsample=True)  # passes over all rows
    ours, error = models.elbo(judged, q, _ELBO_DRAWS)
    began = time.perf_counter()
    full = _full_fit(exact, q, parameters)
    seconds = time.perf_counter() - began
    theirs, _ = models.elbo(judged, full.approximation, _ELBO_DRAWS)
    run |= {"our_elbo": ours, "elbo_error": error, "full_elbo": theirs, "full_seconds": seconds, "dim": exact.dim}
    if parameters["svi_times"]:
        limit = min(parameters["svi_times"] * run["seconds"], parameters["svi_seconds"])
        run["svi"] = _svi(model, data, groups, judged, limit, max(ours, theirs), parameters["svi_batch"])
    return run


def _full_fit(exact: bures.Target, q: Any, parameters: dict[str, Any]) -> bures.Fit:
    """The default fit to all rows in memory; where that takes too long, exact steps from an approximation."""
    if parameters.get("whole"):
        return bures.fit(exact, key=jax.random.key(1), progress=False)
    estimator = bures.Stein(M=parameters["reference_draws"], draws="antithetic")
    options = {"objective": bures.ELBO(), "estimator": estimator, "num_steps": parameters["reference_steps"]}
    return bures.fit(exact, key=jax.random.key(1), init=q, progress=False, **options)


def _approximation(parts: dict[str, np.ndarray]) -> Any:
    kind = Gaussian if "chol" in parts else LowRankGaussian
    return kind(**{name: jax.numpy.asarray(part) for name, part in parts.items()})


def _svi(
    model: str, data: Any, groups: int, target: bures.Target, limit: float, best: float, batch: int
) -> dict[str, Any]:
    """NumPyro's AutoMultivariateNormal with minibatches, for so many seconds: how far its ELBO is from the best."""
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal
    from numpyro.optim import Adam

    program = models.MODELS[model].numpyro
    guide = AutoMultivariateNormal(program)
    inference = SVI(program, guide, Adam(0.01), Trace_ELBO())
    grouped = groups if "group" in data else None

    def arguments(data: Any) -> tuple[Any, ...]:
        return data["x"], data["y"], batch, *(() if grouped is None else (data["group"], grouped))

    state = inference.init(jax.random.key(0), *arguments(data))

    @jax.jit
    def many(state: Any, data: Any) -> Any:
        return jax.lax.fori_loop(0, _CHECK_EVERY, lambda _, s: inference.update(s, *arguments(data))[0], state)

    state = jax.block_until_ready(many(state, data))
    began, steps, course, looks = time.perf_counter(), _CHECK_EVERY, [], [limit / 20, limit / 4, limit]
    spent = 0.0
    while looks:
        state = jax.block_until_ready(many(state, data))
        steps += _CHECK_EVERY
        spent = time.perf_counter() - began
        if spent >= looks[0]:
            looks = [each for each in looks if each > spent]
            paused = time.perf_counter()
            course.append((spent, steps, best - _elbo_of_guide(guide, inference.get_params(state), target)))
            began += time.perf_counter() - paused
    return {"seconds": spent, "steps": steps, "gap": course[-1][2], "course": course}


def _elbo_of_guide(guide: Any, params: Any, target: bures.Target) -> float:
    posterior = guide.get_posterior(params)  # its variables are in the order of the model, as the target's are
    q = Gaussian(posterior.loc.astype(float), posterior.scale_tril.astype(float))
    return models.elbo(target, q, _ELBO_DRAWS)[0]


def reads_cells(settings: dict[str, Any]) -> dict[str, Any]:
    names = ("groups", "reference_draws", "reference_steps", "svi_times", "svi_seconds", "svi_batch")
    shared = {name: settings[name] for name in names} | {"columns": settings["columns"]}
    return {
        name: dict(what=name, rows=n, **shared, **({"whole": True} if name in settings["whole"] else {}))
        for name, n in settings["reads_rows"].items()
    }


def _full_name(what: str, settings: dict[str, Any]) -> str:
    return "the fit to all rows in memory" if what in settings["whole"] else "exact steps from there"


def show_reads(results: Any, settings: dict[str, Any]) -> Shown:
    criteria, rows = [], []
    for what, run in found(results, "reads"):
        n = settings["reads_rows"][what]
        behind = run["full_elbo"] - run["our_elbo"]
        criteria += [
            Criterion(f"{what}, N = {n:,}: times the data are read", run["reads"], 10),
            Criterion(f"{what}, N = {n:,}: nats below {_full_name(what, settings)}", behind, 0.05),
        ]
        svi = run.get("svi")
        if svi is not None:
            times = svi["seconds"] / run["seconds"]
            note = f"after {times:.1f} times our seconds, {svi['steps']:,} steps"
            criteria.append(Criterion(f"{what}: nats that SVI is behind", svi["gap"], 1.0, note, at_least=True))
        figures = (run["reads"], run["row_evaluations"], behind, 100 * run["ness"], run["khat"])
        shown = (run["seconds"], run["full_seconds"], svi and svi["gap"], svi and svi["seconds"])
        rows.append(
            (what, count(n), str(run["dim"]), run["objective"], run["verdict"].lower(), *map(text, figures + shown))
        )
    heads = ("model", "N", "d", "objective", "verdict", "reads", "row evaluations / N", "nats behind", "nESS, %", "k̂")
    heads += ("seconds", "of all rows in memory, or exact steps", "SVI, nats behind", "SVI, seconds")
    note = "Seconds are those of one busy machine: only their ratios within a row mean something."
    return Shown(criteria, [Grid("Reads and quality", heads, rows, note)])


# ---- Line 3: noise --------------------------------------------------------------------------------------------------


def noise_cells(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        f"N{n}-B{batch}-D{distance:g}": dict(
            what="noise", rows=n, columns=settings["columns"], batch=batch, distance=distance
        )
        for n in settings["noise_rows"]
        for batch in settings["noise_batches"]
        for distance in settings["noise_distances"]
    }


def measure_noise(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The variance over batches of (a, S) near the optimum, whitened, at fixed draws: plain and with the anchor."""
    from bures.estimator import Stein
    from bures.rows.subsampled import SubsampledEvaluator

    n, columns, batch = parameters["rows"], parameters["columns"], parameters["batch"]
    data = models.memory_map(folder, "logistic", n, columns)
    target = models.MODELS["logistic"].target(data, columns, 1, subsample=True)
    fit = bures.fit(target, key=jax.random.key(0), progress=False, num_steps=3)
    q = jax.tree.map(np.asarray, fit.approximation)
    evaluator = SubsampledEvaluator(target, np.random.default_rng(1))
    direction = np.random.default_rng(2).standard_normal(columns)
    direction *= parameters["distance"] / np.linalg.norm(direction) * np.sqrt(columns)
    estimator = Stein(M=100, draws="antithetic")
    noise = estimator.noise(np.random.default_rng(3), q, 1)
    evaluator.use.batch = batch
    spread = {}
    for way in ("plain", "anchored"):
        if way == "anchored":
            evaluator.anchor_at(q.mean + q.chol @ direction)
        seen = []
        for _ in range(16):
            evaluator.use.calls += 1
            one = estimator.estimate(noise, q, _Raw(evaluator), bures.ELBO())
            seen.append(np.concatenate([q.chol.T @ one.a, np.ravel(q.chol.T @ np.asarray(one.S) @ q.chol)]))
        both = np.array(seen).var(axis=0, ddof=1)
        spread[way] = {"a": float(both[:columns].sum()), "S": float(both[columns:].sum())}
    return {
        **spread,
        "cut_a": spread["plain"]["a"] / spread["anchored"]["a"],
        "cut_S": spread["plain"]["S"] / spread["anchored"]["S"],
    }


class _Raw:
    """An evaluator that neither measures noise nor moves its anchor: what one batch says."""

    def __init__(self, evaluator: Any):
        self.evaluator = evaluator

    def value_and_score(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return Evaluator.value_and_score(self.evaluator, z)


def show_noise(results: Any, settings: dict[str, Any]) -> Shown:
    rows, cuts = [], []
    for _, run, parameters in found(results, "noise", parameters=True):
        cut = min(run["cut_a"], run["cut_S"])
        if parameters["rows"] == max(settings["noise_rows"]) and parameters["distance"] == 0:
            cuts.append(cut)
        place = (count(parameters["rows"]), count(parameters["batch"]), text(parameters["distance"]))
        rows.append(
            (
                *place,
                *(text(run[way][part]) for way in ("plain", "anchored") for part in ("a", "S")),
                text(run["cut_a"]),
                text(run["cut_S"]),
            )
        )
    heads = (
        "N",
        "batch",
        "distance / √d",
        "a, plain",
        "S, plain",
        "a, anchored",
        "S, anchored",
        "cut of a",
        "cut of S",
    )
    largest = max(settings["noise_rows"])
    criterion = Criterion(
        f"row noise of (a, S) at N = {largest:,}, cut by", min(cuts, default=None), 100, at_least=True
    )
    note = "Variances over batches of the whitened gradient, summed; the distance is of the anchor from the mean."
    return Shown([criterion], [Grid("Noise of rows by N, batch and distance of the anchor", heads, rows, note)])


# ---- Line 6: front-ends ---------------------------------------------------------------------------------------------


def measure_frontends(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A model with minibatches beside the same with the full data: means in posterior standard deviations."""
    n, columns = parameters["rows"], parameters["columns"]
    data = {name: np.asarray(x, np.float64) for name, x in models.memory_map(folder, "logistic", n, columns).items()}
    make = _numpyro_target if parameters["what"] == "numpyro" else _pymc_target
    part, whole = (bures.fit(make(data, batch), key=jax.random.key(0), progress=False) for batch in (100, None))
    p, q = whole.approximation, part.approximation
    rows = part.record.rows
    return {
        "mean": float(np.max(np.abs((q.mean - p.mean) / p.standard_deviations))),
        "deviation": float(np.max(np.abs(q.standard_deviations / p.standard_deviations - 1))),
        "reads": None if rows is None else rows.total_reads,
    }


def _numpyro_target(data: Any, batch: int | None) -> bures.Target:
    from bures.frontends import from_numpyro

    return from_numpyro(models.MODELS["logistic"].numpyro, data["x"], data["y"], batch)


def _pymc_target(data: Any, batch: int | None) -> bures.Target:
    import pymc

    from bures.frontends import from_pymc

    with pymc.Model() as model:
        size = {} if batch is None else {"total_size": len(data["y"])}
        x, y = (data["x"], data["y"]) if batch is None else pymc.Minibatch(data["x"], data["y"], batch_size=batch)
        slope = pymc.Normal("z", 0, 10**0.5, shape=data["x"].shape[1])
        pymc.Bernoulli("y", logit_p=pymc.math.dot(x, slope), observed=y, **size)
    return from_pymc(model)


def show_frontends(results: Any, settings: dict[str, Any]) -> Shown:
    criteria = [
        Criterion(f"{what} by minibatches: largest shift of a mean, sd", run["mean"], 0.02)
        for what, run in found(results, "frontends")
    ]
    rows = [
        (what, text(run["mean"]), text(run["deviation"]), text(run["reads"]))
        for what, run in found(results, "frontends")
    ]
    n = max(settings["frontend_rows"].values())
    heads = ("", "means, sd", "deviations, relative", "reads")
    return Shown(criteria, [Grid(f"Minibatches of other libraries, N = {n:,}", heads, rows)])


# ---- Cost by N ------------------------------------------------------------------------------------------------------


def cost_cells(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{way}-{n}": dict(what=way, rows=n, columns=settings["cost_columns"])
        for way, sizes in settings["cost_rows"].items()
        for n in sizes
    }


def measure_cost(parameters: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a default fit evaluates and reads: all rows in memory, all rows streamed, batches of rows."""
    from bures.rows import ArraySource, Stream, StreamedDensity

    way, n, columns = parameters["what"], parameters["rows"], parameters["columns"]
    data = models.memory_map(folder, "logistic", n, columns)
    if way == "streamed":
        stream = Stream(models.normal_prior, models.logistic, ArraySource(data), start=np.zeros(columns))
        target = bures.Target(StreamedDensity(stream), columns)
    else:
        target = models.MODELS["logistic"].target(
            data if way == "subsampled" else models.in_memory(data), columns, 1, subsample=way == "subsampled"
        )
        stream = getattr(target.log_density, "stream", None)
    began = time.perf_counter()
    fit = bures.fit(target, key=jax.random.key(0), progress=False)
    evaluated = fit.num_log_density_evaluations if stream is None else stream.rows_evaluated / n
    reads = None if stream is None else stream.rows_read / n
    return {
        "evaluations": evaluated,
        "judged": fit.evaluations.judgement,
        "reads": reads,
        "seconds": time.perf_counter() - began,
        "elbo": fit.diagnostics.elbo,
    }


def show_cost(results: Any, settings: dict[str, Any]) -> Shown:
    from bures.benchmarks.scale_figure import draw_cost

    runs = [(parameters, run) for _, run, parameters in found(results, "cost", parameters=True)]
    rows = [
        (
            each["what"],
            count(each["rows"]),
            text(run["evaluations"] * each["rows"]),
            text(run["reads"]),
            text(run["seconds"]),
        )
        for each, run in runs
    ]
    heads = ("way", "N", "row evaluations", "reads", "seconds")
    caption = "Row evaluations and reads of a default fit by the number of rows"
    figures = {"cost": (caption, draw_cost(runs))} if runs else {}
    return Shown([], [Grid(f"Cost by N, d = {settings['cost_columns']}", heads, rows)], figures)


SECTIONS = {
    "streaming": Section(_cells_of("streaming_rows"), measure_streaming, show_streaming),
    "reads": Section(reads_cells, measure_reads, show_reads),
    "noise": Section(noise_cells, measure_noise, show_noise),
    "frontends": Section(_cells_of("frontend_rows"), measure_frontends, show_frontends),
    "cost": Section(cost_cells, measure_cost, show_cost),
}
MILLION = 10**6
SETTINGS: dict[str, Any] = {
    "columns": models.COLUMNS,
    "groups": 1000,
    "streaming_rows": {"arrays": _SMALL, "memory-map": 10 * MILLION, "parquet": 10 * MILLION},
    "reads_rows": {"logistic": 10 * MILLION, "poisson": 10 * MILLION, "hierarchical": MILLION},
    "whole": ["hierarchical"],  # fitted to all rows in memory
    "reference_draws": 32,
    "reference_steps": 10,
    "svi_times": 20,
    "svi_seconds": 3600,
    "svi_batch": 1000,
    "noise_rows": [10_000, 100_000, MILLION],
    "noise_batches": [100, 1000],
    "noise_distances": [0.0, 1.0, 10.0],
    "frontend_rows": {"numpyro": 300_000, "pymc": 300_000},
    "cost_columns": 5,
    "cost_rows": {
        "in memory": [10_000, 100_000, MILLION],
        "streamed": [10_000, 100_000],
        "subsampled": [10_000, 100_000, MILLION, 10 * MILLION],
    },
}
QUICK: dict[str, Any] = {
    "groups": 50,
    "streaming_rows": {"arrays": _SMALL, "memory-map": 300_000, "parquet": 300_000},
    "reads_rows": {"logistic": 300_000, "poisson": 300_000, "hierarchical": 200_000},
    "svi_times": 2,
    "svi_seconds": 20,
    "noise_rows": [10_000, 100_000],
    "noise_batches": [100, 1000],
    "noise_distances": [0.0, 10.0],
    "cost_rows": {"in memory": [10_000, 100_000], "streamed": [10_000], "subsampled": [10_000, 100_000]},
}
