"""Families: what does each projection keep of the field, in signal-to-noise ratio and in nats?"""

import functools
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import bures
from bures.experiments.protocol import Results, Row, Table, mean_and_spread, number_plainly, select
from bures.family.low_rank_moves import _least_squares, _solve

TITLE = "Families: what a projection keeps of the field"
QUESTION = "What does each projection keep of the field, in signal-to-noise ratio and in nats?"
FOLDER = "families-experiment"  # the benchmark of the same name has results/families

FULL, DEFAULT, MEAN_FIELD = "full rank", "full rank, default bound", "mean field"
RANKS = (1, 2, 5)
LOW_RANK = {rank: f"low rank, {rank} column{'s' if rank > 1 else ''}" for rank in RANKS}
BY_ITSELF = "low rank, by itself"
PROJECTED = (FULL, MEAN_FIELD, *LOW_RANK.values())
FITTED = (FULL, DEFAULT, MEAN_FIELD, *LOW_RANK.values(), BY_ITSELF)
BANANA, FACTORS, CHAIN = "banana", "factors", "chain"
TARGETS = {BANANA: "banana, b = 0.03", FACTORS: "regression, three factors", CHAIN: "regression, chain"}
PARTS = {"mean": "mean, by coordinate", "covariance": "covariance, by coordinate", "whole": "whole, in norm"}
COLOURS = dict(zip(FITTED, ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#000000"), strict=True))
MARKERS = dict(zip(FITTED, "sd^v<>o", strict=True))


def settings(quick: bool, seeds: int | None) -> dict:
    """`realisations` and `groups` are of each jackknife seed; `samples` are the draws of an ELBO.

    A fit that has not stopped by itself is stopped after `most_steps`.
    """
    frozen = {"shift": 0.5, "widen": 1.2, "K": [1, 5, 20], "draws": 100, "data_seed": 2026, "ranks": list(RANKS)}
    if quick:
        few = {
            "jackknife": 5,
            "realisations": 100,
            "groups": 10,
            "samples": 10_000,
            "share_draws": 500,
            "most_steps": 200,
        }
        return frozen | few | {"seeds": seeds or 1, "dims": {BANANA: [2, 10], FACTORS: [10]}, "ranks": [1, 2]}
    many = {
        "jackknife": 10,
        "realisations": 400,
        "groups": 40,
        "samples": 100_000,
        "share_draws": 4000,
        "most_steps": 2000,
    }
    dims = {BANANA: [2, 5, 10, 20, 50], FACTORS: [10, 50, 200], CHAIN: [10, 50, 200]}
    return frozen | many | {"seeds": seeds or 5, "dims": dims}


def tiny() -> dict:
    """A few seconds, for tests."""
    few = {
        "jackknife": 3,
        "realisations": 20,
        "groups": 3,
        "samples": 1000,
        "share_draws": 50,
        "draws": 20,
        "K": [1, 2],
    }
    return settings(quick=True, seeds=1) | few | {"dims": {FACTORS: [2, 4]}, "ranks": [1]}


def cells(settings: dict) -> dict[str, dict]:
    made: dict[str, dict] = {}
    columns = {FULL: 0, DEFAULT: 0, MEAN_FIELD: 0, BY_ITSELF: 0} | {LOW_RANK[rank]: rank for rank in settings["ranks"]}
    snr = ("shift", "widen", "K", "draws", "jackknife", "realisations", "groups", "most_steps")
    for kind, dims in settings["dims"].items():
        for d in dims:
            shared = {"target": kind, "d": d, "data_seed": settings["data_seed"]}
            made[f"share-{kind}-d{d}"] = dict(
                shared, kind="share", draws=settings["share_draws"], ranks=[r for r in settings["ranks"] if 2 * r <= d]
            )
            for family in [name for name in FITTED if name in columns and 2 * columns[name] <= d]:
                cell = f"{kind}-d{d}-{family.replace(',', '').replace(' ', '-')}"
                fits = {name: settings[name] for name in ("seeds", "samples", "most_steps")}
                made[f"nats-{cell}"] = dict(shared, kind="nats", family=family, **fits)
                if family in PROJECTED:
                    made[f"snr-{cell}"] = dict(shared, kind="snr", family=family, **{n: settings[n] for n in snr})
    return made


# ---- Targets and fits -----------------------------------------------------------------------------------------------


def make_target(kind: str, d: int, data_seed: int) -> bures.Target:
    """The banana, or logistic regression on 2 d rows of correlated covariates, with prior N(0, I).

    Either three factors explain 70% of each covariate's variance, or each is correlated by 0.9 with the one before.
    """
    if kind == BANANA:
        return bures.models.banana(b=0.03, dim=d)
    rng = np.random.default_rng([data_seed, d, kind == CHAIN])
    n = 2 * d
    X = rng.standard_normal((n, d))
    if kind == CHAIN:
        for j in range(1, d):
            X[:, j] = 0.9 * X[:, j - 1] + np.sqrt(1 - 0.81) * X[:, j]
    else:
        X = np.sqrt(0.7 / 3) * rng.standard_normal((n, 3)) @ rng.standard_normal((3, d)) + np.sqrt(0.3) * X
    y = rng.random(n) < 1 / (1 + np.exp(-X @ rng.standard_normal(d) * 2 / np.sqrt(d)))
    return bures.models.logistic_regression(X, y.astype(float), prior_variance=1.0)


def _fit(target: bures.Target, family: str, seed: int, most_steps: int) -> bures.Fit:
    """The default fit of a family; of full Gaussians also for the ELBO, which is the others' default."""
    made: Any = {MEAN_FIELD: bures.MeanField(), BY_ITSELF: bures.LowRank()}
    made |= {LOW_RANK[rank]: bures.LowRank(rank) for rank in RANKS}
    objective = bures.ELBO() if family == FULL else None
    return bures.fit(
        target,
        key=jax.random.key(seed),
        family=made.get(family, bures.FullRank()),
        objective=objective,
        callback=lambda step, q, info: step >= most_steps,
        progress=False,
    )


def run(parameters: dict) -> dict:
    target = make_target(parameters["target"], parameters["d"], parameters["data_seed"])
    return {"nats": _nats, "share": _shares, "snr": _ratios}[parameters["kind"]](parameters, target)


def _nats(parameters: dict, target: bures.Target) -> dict:
    """The ELBO of fits, by fresh draws."""
    out: dict[str, list] = {
        name: [] for name in ("elbo", "error", "outcome", "steps", "evaluations", "columns", "seconds")
    }
    for seed in range(parameters["seeds"]):
        began = time.perf_counter()
        fit = _fit(target, parameters["family"], seed, parameters["most_steps"])
        out["seconds"].append(round(time.perf_counter() - began, 2))
        mean, error = _elbo(fit.approximation, target, parameters["samples"], seed)
        out["elbo"].append(mean)
        out["error"].append(error)
        out["outcome"].append(fit.outcome.name)
        out["steps"].append(fit.num_steps)
        out["evaluations"].append(fit.num_log_density_evaluations)
        out["columns"].append(getattr(fit.approximation, "rank", None))
    return out


def _elbo(q: Any, target: bures.Target, samples: int, seed: int) -> tuple[float, float]:
    key = jax.random.fold_in(jax.random.key(seed), 2**31 - 1)  # a constant of its own: no key of the steps
    blocks = max(samples * q.dim // 1_000_000, 1)
    weights = [_log_weights(each, q, target, samples // blocks) for each in jax.random.split(key, blocks)]
    values = np.concatenate(weights)
    return float(np.mean(values)), float(np.std(values) / np.sqrt(values.size))


@eqx.filter_jit
def _log_weights(key: Any, q: Any, target: bures.Target, n: int) -> Any:
    noise = jax.random.normal(key, (n, q.dim))
    return target.value(q.push(noise)) - q.log_prob_of_noise(noise)


# ---- Projections ----------------------------------------------------------------------------------------------------
# All in the coordinates where q is standard normal. There the squared norm of an affine field, in nats, is
# ½ ‖a‖² + ¼ ‖S‖², and a projection is orthogonal for it.


def projection(q: Any) -> Any:
    """From a symmetric matrix to its projection onto the covariance part of the tangent space at q."""
    if isinstance(q, bures.Gaussian):
        return lambda S: S
    V = q.basis
    if not V.shape[1]:
        return lambda S: jnp.diag(jnp.diagonal(S))
    return low_rank_projection(V)


def low_rank_projection(V: Any) -> Any:
    """Onto diagonals and V Yᵀ + Y Vᵀ: a δ with ((I − H) ∘ (I − H)) δ = diag((I − H) S (I − H)), and S beside it."""
    H = V @ V.T
    beside = jnp.eye(V.shape[0]) - H
    inverse = jnp.linalg.pinv(beside**2, hermitian=True)

    def project(S):
        delta = inverse @ jnp.diagonal(beside @ S @ beside)
        return (beside * delta) @ beside + H @ S + S @ H - H @ S @ H

    return project


def _displaced(q: Any, shift: float, widen: float) -> Any:
    """q with its mean off by so many standard deviations in each coordinate where it is standard normal, and wider."""
    signs = np.random.default_rng(q.dim).choice([-1.0, 1.0], q.dim)
    mean = q.push(jnp.asarray(shift * signs))
    if isinstance(q, bures.Gaussian):
        return bures.Gaussian(mean, widen * q.chol)
    return bures.LowRankGaussian(mean, widen * q.scale, q.basis, q.variances)


def _whiten_scores(q: Any, scores: Any) -> Any:
    return scores @ q.chol if isinstance(q, bures.Gaussian) else q.whiten_scores(scores)


def _by_moments(q: Any, target: bures.Target, K: int) -> Any:
    """key -> (a, S) of one tuple, S by Stein's lemma and projected."""
    objective = bures.IWELBO(K=K) if K > 1 else bures.ELBO()
    estimator, project = bures.Stein(M=1), projection(q)

    def gradient(key):
        field = estimator.field(estimator.noise(key, q, K), q, target, objective)
        scores = field.weight[:, None] * _whiten_scores(q, field.score)
        S = field.noise.T @ scores
        return jnp.sum(scores, axis=0), project((S + S.T) / 2)

    return gradient


def _by_least_squares(q: Any, target: bures.Target, draws: int) -> Any:
    """key -> (a, S) of several draws of the ELBO's field, as `Whitened` fits them for these families."""
    estimator, H = bures.Stein(M=draws), q.basis @ q.basis.T
    beside = jnp.eye(q.dim) - H

    def gradient(key):
        seen = _least_squares(q, estimator.field(estimator.noise(key, q, 1), q, target, bures.ELBO()))
        along = seen.along @ q.basis.T
        inside = H @ along
        S = (beside * _solve(q.basis, seen.own)) @ beside + along + along.T - (inside + inside.T) / 2
        return seen.a, S

    return gradient


# ---- Signal and noise -----------------------------------------------------------------------------------------------


@eqx.filter_jit
def _moments(gradient: Any, keys: Any, dim: int, batch: int) -> tuple[Any, Any]:
    """Means and mean squares over the keys of each seed, a few keys at a time; never all realisations at once."""

    def add(sums, some):
        a, S = jax.vmap(gradient)(some)
        flat = jnp.concatenate([a, S.reshape(batch, -1)], axis=1)
        return (sums[0] + jnp.sum(flat, axis=0), sums[1] + jnp.sum(flat**2, axis=0)), None

    def of_seed(own):
        zero = jnp.zeros(dim + dim**2)
        sums, _ = jax.lax.scan(add, (zero, zero), own.reshape(-1, batch))
        return sums[0] / own.size, sums[1] / own.size

    return jax.lax.map(of_seed, keys)


def _measure(key: Any, gradient: Any, dim: int, seeds: int, realisations: int) -> dict:
    """SNR of each part, and without each seed."""
    keys = jax.vmap(lambda k: jax.random.split(k, realisations))(jax.random.split(key, seeds))
    batch = max(n for n in range(1, realisations + 1) if realisations % n == 0 and n * dim**2 <= max(4e5, dim**2))
    means, squares = (np.asarray(part) for part in _moments(gradient, keys, dim, batch))
    centre = np.mean(means, axis=0)
    about = squares - 2 * centre * means + centre**2
    diagonal = dim + np.arange(dim) * (dim + 1)
    out = {}
    for part, chosen in (("mean", np.arange(dim)), ("covariance", diagonal)):
        ratio = bures.SNR(realisations, means[:, chosen], about[:, chosen])
        with np.errstate(divide="ignore", invalid="ignore"):
            out[part] = {"snr": ratio.value, "without": ratio.leave_one_out.tolist()}
        floor = ratio.noise_floor
    whole = functools.partial(_in_norm, means, squares, np.r_[np.full(dim, 0.5), np.full(dim**2, 0.25)], realisations)
    everyone = np.ones(seeds, bool)
    without = [whole(kept) for kept in ~np.eye(seeds, dtype=bool)]
    return out | {"whole": {"snr": whole(everyone), "without": without}, "floor": floor}


def _in_norm(means: Any, squares: Any, metric: Any, realisations: int, kept: Any) -> float:
    """‖E g‖ / (E ‖g − E g‖²)^½ in the Fisher metric, the noise of the mean itself taken off; 0 if nothing is left."""
    count = realisations * int(kept.sum())
    mean = np.mean(means[kept], axis=0)
    noise = metric @ (np.mean(squares[kept], axis=0) - mean**2) * count / (count - 1)
    signal = metric @ mean**2 - noise / count
    return float(np.sqrt(max(signal, 0) / noise)) if noise > 0 else float("inf")


def _ratios(parameters: dict, target: bures.Target) -> dict:
    fit = _fit(target, parameters["family"], 0, parameters["most_steps"])
    q = _displaced(fit.approximation, parameters["shift"], parameters["widen"])
    key, seeds = jax.random.key(parameters["data_seed"]), parameters["jackknife"]
    out: dict[str, Any] = {"outcome": fit.outcome.name, "columns": getattr(fit.approximation, "rank", None), "K": {}}
    for K in parameters["K"]:
        gradient = _by_moments(q, target, K)
        out["K"][str(K)] = _measure(jax.random.fold_in(key, K), gradient, q.dim, seeds, parameters["realisations"])
    if not isinstance(q, bures.Gaussian):
        gradient = _by_least_squares(q, target, parameters["draws"])
        # By coordinate it may be infinite: least squares are exact where the target is Gaussian.
        found = _measure(jax.random.fold_in(key, 0), gradient, q.dim, seeds, parameters["groups"])
        out["least squares"] = {"whole": found["whole"]}
    return out


# ---- Shares ---------------------------------------------------------------------------------------------------------


def _shares(parameters: dict, target: bures.Target) -> dict:
    """How much of the squared norm of the field's affine part each tangent space holds, where the full fit starts.

    The start keeps its diagonal alone, and is so a member of every family; columns there are the eigenvectors of what
    the diagonal leaves of S with the largest eigenvalues. Products of two halves of the draws: noise does not count.
    """
    start = _fit(target, FULL, 0, most_steps=0).path[0][1]
    q = bures.MeanField().of(start)
    halves = [_affine(key, q, target, parameters["draws"]) for key in jax.random.split(jax.random.key(1))]
    (a, S), (b, T) = halves
    off = (S + T) / 2
    values, vectors = jnp.linalg.eigh(off - jnp.diag(jnp.diagonal(off)))
    order = jnp.argsort(-jnp.abs(values))
    projections = {FULL: lambda x: x, MEAN_FIELD: projection(q)}
    projections |= {LOW_RANK[r]: low_rank_projection(vectors[:, order[:r]]) for r in parameters["ranks"]}

    def size(project):
        return float(a @ b / 2 + jnp.sum(project(S) * project(T)) / 4)

    nats = {name: size(project) for name, project in projections.items()}
    return {"nats": nats, "mean": float(a @ b / 2), "share": {name: x / nats[FULL] for name, x in nats.items()}}


@eqx.filter_jit
def _affine(key: Any, q: Any, target: bures.Target, draws: int) -> tuple[Any, Any]:
    """The affine part of the ELBO's field, with Hessians, where q is standard normal."""
    estimate = bures.Price(M=draws)
    field = estimate.field(estimate.noise(key, q, 1), q, target, bures.ELBO())
    return q.scale * field.a, q.scale[:, None] * field.slope.matrix() * q.scale


# ---- Tables ---------------------------------------------------------------------------------------------------------


def _slope(x: list[int], points: list[dict]) -> str:
    """The least-squares slope of log SNR on log x and its leave-one-seed-out jackknife error."""
    ratios = np.array([[point["snr"], *point["without"]] for point in points])
    if len(x) < 2 or not np.all(np.isfinite(ratios) & (ratios > 0)):
        return "–"
    slopes = np.polyfit(np.log(x), np.log(ratios), 1)[0]
    seeds = slopes.size - 1
    error = np.sqrt((seeds - 1) / seeds * np.sum((slopes[1:] - slopes[1:].mean()) ** 2))
    return f"{slopes[0]:+.2f} ± {error:.2f}"


def _families(results: Results, **wanted: Any) -> list[str]:
    present = {p["family"] for p, _ in select(results, **wanted)}
    return [name for name in FITTED if name in present]


def tables(results: Results, settings: dict) -> list[Table]:
    made = [
        _ratio_table(results, settings),
        _slope_in_dimensions(results, settings),
        _slope_in_tuples(results, settings),
        _least_squares_table(results, settings),
        _nats_table(results, settings),
        _share_table(results, settings),
    ]
    return [table for table in made if table.rows]


def _ratio_table(results: Results, settings: dict) -> Table:
    rows = []
    for p, r in select(results, kind="snr"):
        parts = [
            f"K = {K}: " + ", ".join(f"{r['K'][str(K)][part]['snr']:.3f}" for part in PARTS) for K in settings["K"]
        ]
        note = "" if r["outcome"] == "CONVERGED" else f"its fit ended {r['outcome']}"
        rows.append(Row(f"{TARGETS[p['target']]}, d = {p['d']}, {p['family']}", "–", "; ".join(parts), None, note))
    count = settings["jackknife"] * settings["realisations"]
    floor = np.sqrt(2 / np.pi / count)
    note = (
        f"Of one tuple of K draws, all indices, S by Stein's lemma; {settings['jackknife']} seeds × "
        f"{settings['realisations']} realisations. Each family at its own optimum, the mean off by {settings['shift']} "
        f"standard deviations in every coordinate where q is standard normal and standard deviations × "
        f"{settings['widen']}. Three numbers for each K: coordinatewise SNR of the mean part, of the diagonal of the "
        f"covariance part (floor {floor:.3f}), and of the whole gradient in norm, ‖E g‖ / (E ‖g − E g‖²)^½ in the "
        "Fisher metric, without a floor."
    )
    return Table("SNR of the projected gradient", tuple(rows), note)


def _slope_in_dimensions(results: Results, settings: dict) -> Table:
    rows = []
    for kind in settings["dims"]:
        for family in _families(results, kind="snr", target=kind):
            found = _by_dimension(results, target=kind, family=family)
            if len(found) < 2:
                continue
            dims = list(found)
            for part, words in PARTS.items():
                slopes = [_slope(dims, [r["K"][str(K)][part] for r in found.values()]) for K in settings["K"]]
                measured = "; ".join(f"K = {K}: {slope}" for K, slope in zip(settings["K"], slopes, strict=True))
                label = f"{TARGETS[kind]}, {family}: {words}"
                rows.append(Row(label, "–", measured, None, f"d = {', '.join(map(str, dims))}"))
    note = "± jackknife error over seeds. Places where a fit broke off, NON_FINITE, are left out."
    return Table("Slopes of log SNR in log d", tuple(rows), note)


def _by_dimension(results: Results, **wanted: Any) -> dict[int, Any]:
    """The SNR cells in the order of d, but for those whose fit broke off: they are at no optimum."""
    found = {p["d"]: r for p, r in select(results, kind="snr", **wanted) if r["outcome"] != "NON_FINITE"}
    return {d: found[d] for d in sorted(found)}


def _slope_in_tuples(results: Results, settings: dict) -> Table:
    rows = []
    for p, r in select(results, kind="snr"):
        slopes = [_slope(settings["K"], [r["K"][str(K)][part] for K in settings["K"]]) for part in PARTS]
        measured = "; ".join(f"{part} {slope}" for part, slope in zip(PARTS, slopes, strict=True))
        rows.append(Row(f"{TARGETS[p['target']]}, d = {p['d']}, {p['family']}", "–", measured))
    note = "± jackknife error over seeds. +½ is what K independent draws would give."
    return Table("Slopes of log SNR in log K", tuple(rows), note)


def _least_squares_table(results: Results, settings: dict) -> Table:
    rows = []
    for p, r in select(results, kind="snr"):
        if "least squares" in r:
            moments = r["K"]["1"]["whole"]["snr"] * np.sqrt(settings["draws"])
            fitted = r["least squares"]["whole"]["snr"]
            measured = f"{moments:.2f} by moments, {fitted:.2f} by least squares: × {fitted / moments:.1f}"
            rows.append(Row(f"{TARGETS[p['target']]}, d = {p['d']}, {p['family']}", "–", measured))
    note = (
        f"SNR in norm of the ELBO's projected gradient from {settings['draws']} draws: by Stein's lemma "
        "(√draws times that of one draw) and by the least squares of `Whitened`."
    )
    return Table("Least squares instead of moments", tuple(rows), note)


def _reference(results: Results, kind: str, d: int) -> float | None:
    """The mean ELBO of full Gaussians fitted to the ELBO."""
    found = [r for _, r in select(results, kind="nats", target=kind, d=d, family=FULL)]
    return float(np.mean(found[0]["elbo"])) if found else None


def _nats_table(results: Results, settings: dict) -> Table:
    rows = []
    for p, r in select(results, kind="nats"):
        best = _reference(results, p["target"], p["d"])
        gap = "" if best is None or p["family"] == FULL else f"; gap {best - np.mean(r['elbo']):.2f}"
        bad = [outcome for outcome in r["outcome"] if outcome != "CONVERGED"]
        note = f"{np.median(r['evaluations']):,.0f} evaluations, {np.median(r['steps']):.0f} steps"
        if p["family"] not in (FULL, DEFAULT, MEAN_FIELD):
            note += f", {np.median(r['columns']):.0f} columns in use"
        note += f"; {len(bad)} of {len(r['outcome'])} ended {', '.join(sorted(set(bad)))}" if bad else ""
        label = f"{TARGETS[p['target']]}, d = {p['d']}, {p['family']}"
        rows.append(Row(label, "–", f"{mean_and_spread(r['elbo'])} (error {np.mean(r['error']):.3f}){gap}", None, note))
    note = (
        f"ELBO of default fits, mean ± spread over {settings['seeds']} seeds, each by {settings['samples']:,} fresh "
        f"draws (error: of one of them); gap: to {FULL}. `{FULL}` is fitted to the ELBO, as mean field and low rank "
        f"are by default; `{DEFAULT}` to an importance-weighted bound, its own default. Medians of costs. "
        f"Fits that do not stop by themselves are stopped after {settings['most_steps']:,} steps."
    )
    return Table("Nats", tuple(rows), note)


def _share_table(results: Results, settings: dict) -> Table:
    rows = []
    for p, r in select(results, kind="share"):
        shares = ", ".join(f"{name} {100 * share:.1f}%" for name, share in r["share"].items() if name != FULL)
        note = f"squared norm {r['nats'][FULL]:.3g}, of which the mean's {100 * r['mean'] / r['nats'][FULL]:.1f}%"
        rows.append(Row(f"{TARGETS[p['target']]}, d = {p['d']}", "–", shares, None, note))
    note = (
        "At the start of the full fit, its diagonal alone, which is a member of every family: the share of the squared "
        "norm of the full gradient, ½ ‖a‖² + ¼ ‖S‖² where q is standard normal, that lies in the tangent space. The "
        "columns of low rank are the best for S there."
    )
    return Table("Share of the gradient that the projection keeps", tuple(rows), note)


# ---- Figures --------------------------------------------------------------------------------------------------------


def plot(results: Results, settings: dict) -> dict[str, Figure]:
    made = {}
    if any(True for _ in select(results, kind="snr")):
        made["families-snr"] = _plot_ratios(results, settings)
    if any(True for _ in select(results, kind="nats")):
        made["families-nats"] = _plot_nats(results, settings)
    return made


def _legend(figure: Figure, names: list[str]) -> None:
    handles = [Line2D([], [], color=COLOURS[n], marker=MARKERS[n], markersize=4, label=n) for n in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def _plot_ratios(results: Results, settings: dict) -> Figure:
    """Rows: coordinatewise SNR of both parts and SNR in norm of one draw, and in norm at the largest K."""
    kinds, largest = list(settings["dims"]), max(settings["K"])
    panels = [(part, 1) for part in PARTS] + [("whole", largest)]
    figure = Figure(figsize=(9.5, 9.0), layout="constrained")
    axes = figure.subplots(len(panels), len(kinds), sharey="row", sharex="col", squeeze=False)
    for row, (part, K) in zip(axes, panels, strict=True):
        for kind, ax in zip(kinds, row, strict=True):
            for family in _families(results, kind="snr", target=kind):
                found = _by_dimension(results, target=kind, family=family)
                ratios = [r["K"][str(K)][part]["snr"] for r in found.values()]
                style = dict(color=COLOURS[family], marker=MARKERS[family], markersize=4, linewidth=1.2)
                ax.plot(list(found), ratios, **style)
            floors = [r["K"][str(K)]["floor"] for _, r in select(results, kind="snr", target=kind)]
            if part != "whole" and floors:
                ax.axhline(floors[0], color="0.6", linewidth=1)
            ax.set(xscale="log", yscale="log")
            ax.grid(axis="y", color="0.92", linewidth=0.8)
            dims = settings["dims"][kind]
            ax.set_xticks(dims, labels=dims)
            ax.xaxis.minorticks_off()
        row[0].set_ylabel(f"SNR, {PARTS[part]}\nK = {K}")
    for kind, top, bottom in zip(kinds, axes[0], axes[-1], strict=True):
        top.set_title(TARGETS[kind])
        bottom.set_xlabel("d")
    for row in axes:
        number_plainly(row[0].yaxis)
    _legend(figure, _families(results, kind="snr"))
    return figure


def _plot_nats(results: Results, settings: dict) -> Figure:
    """The gap to full rank, and the share of the gradient kept at the start."""
    kinds = list(settings["dims"])
    figure = Figure(figsize=(9.5, 6.2), layout="constrained")
    gaps, shares = figure.subplots(2, len(kinds), sharey="row", sharex="col", squeeze=False)
    for kind, ax, below in zip(kinds, gaps, shares, strict=True):
        dims = settings["dims"][kind]
        for family in _families(results, kind="nats", target=kind):
            style = dict(color=COLOURS[family], marker=MARKERS[family], markersize=4, linewidth=1.2)
            if family != FULL:
                found = [
                    (p["d"], best - np.array(r["elbo"]))
                    for p, r in select(results, kind="nats", target=kind, family=family)
                    if (best := _reference(results, kind, p["d"])) is not None
                ]
                for d, gap in found:
                    ax.plot(np.full(gap.size, d), gap, ".", color=COLOURS[family], markersize=3, alpha=0.6)
                ax.plot([d for d, _ in found], [np.mean(gap) for _, gap in found], **style)
            kept = {p["d"]: r["share"].get(family) for p, r in select(results, kind="share", target=kind)}
            kept = {d: share for d, share in kept.items() if share is not None}
            below.plot(list(kept), list(kept.values()), **style)
        ax.set_title(TARGETS[kind])
        ax.set_xscale("log")
        ax.set_yscale("symlog", linthresh=0.1)
        ax.axhline(0, color="0.6", linewidth=1)
        below.set(xlabel="d", ylim=(0, 1.03))
        below.set_xticks(dims, labels=dims)
        below.xaxis.minorticks_off()
    for ax in gaps:
        ax.yaxis.set_major_formatter("{x:g}")
    gaps[0].set_ylabel("nats below full rank")
    shares[0].set_ylabel("share of the gradient kept")
    _legend(figure, _families(results, kind="nats"))
    return figure


# ---- Reading --------------------------------------------------------------------------------------------------------


def reading(results: Results, settings: dict) -> str:
    text = []
    for kind, dims in settings["dims"].items():
        d = max(dims)
        ratios = {p["family"]: r for p, r in select(results, kind="snr", target=kind, d=d)}
        best = _reference(results, kind, d)
        gaps = {p["family"]: r for p, r in select(results, kind="nats", target=kind, d=d)}
        if FULL not in ratios or MEAN_FIELD not in ratios or best is None:
            continue
        one, other = (ratios[name]["K"]["1"]["whole"]["snr"] for name in (FULL, MEAN_FIELD))
        lost = ", ".join(
            f"{name} {best - np.mean(r['elbo']):.2f}" for name, r in gaps.items() if name not in (FULL, DEFAULT)
        )
        text.append(
            f"{TARGETS[kind][0].upper()}{TARGETS[kind][1:]}, d = {d}: one draw's gradient has an SNR in norm of "
            f"{one:.3f} for full rank and {other:.3f} for mean field; nats below full rank: {lost}."
        )
    ended = sum(o != "CONVERGED" for _, r in select(results, kind="nats") for o in r["outcome"])
    total = sum(len(r["outcome"]) for _, r in select(results, kind="nats"))
    return " ".join([*text, f"{ended} of {total} fits did not end converged."])
