"""Mixtures: ELBO, IW-ELBO and VR-IWAE by one Gaussian and by several; does the gradient's SNR survive the components?

Fits are the library's, with a fixed number of components, an explicit start and a number of steps. The gradients whose
noise is measured are written out here, draw by draw, from the derivation in `docs/mixtures.md`; a test holds them
against the library's.
"""

import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import bures
from bures.diagnostics.pareto import pareto_khat
from bures.diagnostics.weighted import WeightedDraws, log_evidence, ness
from bures.experiments.protocol import Results, Row, Table, mean_and_spread, number_plainly, select
from bures.objective import AbstractObjective

TITLE = "Mixtures on Bures–Wasserstein space"
QUESTION = (
    "What do importance-weighted bounds gain with mixtures, and does the SNR of the gradient of each component, and of "
    "the weights, stay away from zero as K grows?"
)

EGGBOX, BANANA, FUNNEL, CENSUS = "eggbox", "banana", "funnel", "census"
TARGETS = {EGGBOX: "eggbox", BANANA: "banana, d = 2", FUNNEL: "funnel, d = 3", CENSUS: "Census, d = 9"}
BOUNDS = ("ELBO", "IW-ELBO", "VR-IWAE")
PARTS = {
    "mean": "means a_c",
    "covariance": "covariances, diag S_c",
    "weights": "weights, with a baseline",
    "plain": "weights, without",
    "euclidean": "means, reparameterised",
}
EVERY = ("mean", "covariance", "weights")  # of which the average over all indices of a tuple is shown too
COLOURS = dict(zip(PARTS, ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#D55E00"), strict=True))
MARKERS = dict(zip(PARTS, "osDv^", strict=True))
FLAT = 0.1  # a slope of log SNR in log K above minus this does not vanish
FIT_FROM = 10  # slopes are fitted from this K on


def settings(quick: bool, seeds: int | None) -> dict:
    """`realisations` are of each jackknife seed; `draws` those of a step, `samples` of the judge."""
    frozen = {"K_fit": 10, "alpha": 0.5, "shift": 0.5, "widen": 1.2, "tilt": 0.3, "steps": 300, "draws": 1000}
    frozen |= {"bounds": list(BOUNDS)}
    if quick:
        few = {"samples": 4000, "jackknife": 5, "realisations": 40, "census_realisations": 10, "census_draws": 200}
        grid = {"components": {EGGBOX: [1, 4], BANANA: [1, 4]}, "K": [1, 10, 100], "census_K": [1, 10]}
        return frozen | few | grid | {"seeds": seeds or 1}
    many = {"samples": 20_000, "jackknife": 10, "realisations": 200, "census_realisations": 40, "census_draws": 400}
    toys = {name: [1, 2, 4, 8] for name in (EGGBOX, BANANA, FUNNEL)}
    grid = {"components": toys | {CENSUS: [1, 2, 4]}, "K": [1, 10, 30, 100, 300, 1000], "census_K": [1, 10, 30, 100]}
    return frozen | many | grid | {"seeds": seeds or 2}


def tiny() -> dict:
    """A few seconds, for tests."""
    few = {"steps": 10, "draws": 100, "samples": 200, "jackknife": 3, "realisations": 10}
    return settings(quick=True, seeds=1) | few | {"components": {EGGBOX: [2]}, "K": [1, 10, 20], "bounds": ["IW-ELBO"]}


def cells(settings: dict) -> dict[str, dict]:
    made: dict[str, dict] = {}
    shared = {name: settings[name] for name in ("K_fit", "alpha", "steps")}
    ratio = {name: settings[name] for name in ("shift", "widen", "tilt", "jackknife")}
    for target, components in settings["components"].items():
        census = target == CENSUS
        mine = shared | {"target": target, "draws": settings["census_draws" if census else "draws"]}
        for C in components:
            for bound in settings["bounds"]:
                for seed in range(settings["seeds"]):
                    made[f"fit-{target}-{C}-{bound}-{seed}"] = dict(
                        mine, kind="fit", components=C, bound=bound, seed=seed, samples=settings["samples"]
                    )
            made[f"snr-{target}-{C}"] = dict(
                mine,
                **ratio,
                kind="snr",
                components=C,
                K=settings["census_K" if census else "K"],
                realisations=settings["census_realisations" if census else "realisations"],
            )
    return made


@functools.cache
def make_target(name: str) -> bures.Target:
    made = {
        EGGBOX: bures.models.eggbox,
        BANANA: bures.models.banana,
        FUNNEL: functools.partial(bures.models.funnel, 3, 1.5),
        CENSUS: bures.models.census,
    }
    return made[name]()


def make_bound(name: str, K: int, alpha: float) -> AbstractObjective:
    return {"ELBO": bures.ELBO(), "IW-ELBO": bures.IWELBO(K), "VR-IWAE": bures.VRIWAE(K, alpha)}[name]


# ---- A mixture and its gradient -------------------------------------------------------------------------------------


class Mixture(eqx.Module):
    """q = Σ π_c N(m_c, L_c L_cᵀ), apart from the library's."""

    means: Float[Array, "C dim"]
    chols: Float[Array, "C dim dim"]
    log_weights: Float[Array, " C"]

    @classmethod
    def of(cls, q: bures.GaussianMixture) -> "Mixture":
        return cls(*map(jnp.asarray, (q.means, q.chols, q.log_shares)))

    @property
    def whiteners(self) -> Float[Array, "C dim dim"]:
        eye = jnp.eye(self.means.shape[1], dtype=self.means.dtype)
        return jax.lax.map(lambda chol: jax.scipy.linalg.solve_triangular(chol, eye, lower=True), self.chols)

    def sample(self, key: Key[Array, ""], n: int) -> tuple[Float[Array, "n dim"], Float[Array, " n"]]:
        """Draws and the numbers of their components."""
        key_component, key_noise = jax.random.split(key)
        c = jax.random.categorical(key_component, self.log_weights, shape=(n,))
        noise = jax.random.normal(key_noise, (n, self.means.shape[1]), self.means.dtype)
        return self.means[c] + jnp.einsum("nij,nj->ni", self.chols[c], noise), c


class Evaluated(NamedTuple):
    """What the gradient needs at draws: log weights, scores, and responsibilities by weight."""

    log_weights: Float[Array, " n"]  # ℓ = log p − log q
    score: Float[Array, "n dim"]  # s = ∇ℓ
    share: Float[Array, "n C"]  # r_c / π_c = q_c / q
    noise: Float[Array, "n C dim"]  # L_c⁻¹ (z − m_c)
    pull: Float[Array, "n C dim"]  # ∂ log q / ∂ m_c = r_c Σ_c⁻¹ (z − m_c)


def evaluate(q: Mixture, target: bures.Target, z: Float[Array, "n dim"]) -> Evaluated:
    dim, whiteners = z.shape[1], q.whiteners
    noise = jnp.einsum("cij,ncj->nci", whiteners, z[:, None] - q.means)
    log_dets = jnp.sum(jnp.log(jnp.diagonal(q.chols, axis1=1, axis2=2)), axis=1)
    parts = -jnp.sum(noise**2, axis=2) / 2 - log_dets - dim * math.log(2 * math.pi) / 2  # log q_c
    log_q = jax.nn.logsumexp(q.log_weights + parts, axis=1)
    share = jnp.exp(parts - log_q[:, None])
    pull = (share * jnp.exp(q.log_weights))[:, :, None] * jnp.einsum("cij,nci->ncj", whiteners, noise)
    log_p, score = target.value_and_score(z)
    return Evaluated(log_p - log_q, score + jnp.sum(pull, axis=1), share, noise, pull)  # ∇log q = −Σ pull


class Gradient(NamedTuple):
    """Of every draw, or their mean: in the coordinates where each component is standard normal."""

    a: Float[Array, "*n C dim"]  # q_c / q · A L_cᵀ s
    S: Float[Array, "*n C dim dim"]  # symmetrised
    A: Float[Array, "*n C"]
    weights: Float[Array, "*n C"]  # first variation of the weights, with a baseline
    plain: Float[Array, "*n C"]  # without


def gradient(q: Mixture, at: Evaluated, objective: AbstractObjective) -> Gradient:
    """Terms of every draw; their means over draws are a_c, S_c, E_{q_c}[A] and the first variation of the weights.

    a_c = E_{q_c}[A L_cᵀ s] and S_c = sym E_{q_c}[u (A L_cᵀ s)ᵀ], u = L_c⁻¹ (z − m_c), where E_{q_c} f = E_q[(q_c/q) f].
    The weights' is K E_{q_c}[F − g_k]; the baseline is F of the other K − 1 draws, and K E_q[(q_c / q) / K] = 1.
    """
    K = objective.K
    tuples = at.log_weights.reshape(-1, K)
    g, A, _ = (part.reshape(-1) for part in objective.coefficients(tuples))
    pushed = jnp.einsum("cji,nj->nci", q.chols, A[:, None] * at.score)
    S = at.noise[..., :, None] * pushed[..., None, :]
    bound = jnp.repeat(objective.bound(tuples), K)
    variation = K * (bound - g)
    lowered = K * (bound - others(tuples, objective) - g) + 1 if K > 1 else at.log_weights
    return Gradient(
        at.share[..., None] * pushed,
        at.share[..., None, None] * (S + jnp.swapaxes(S, -1, -2)) / 2,
        at.share * A[:, None],
        at.share * lowered[:, None],
        at.share * variation[:, None],
    )


def others(tuples: Float[Array, "M K"], objective: AbstractObjective) -> Float[Array, " n"]:
    """The bound of the other K − 1 draws of each tuple, for every draw: independent of it."""
    power = 1 - objective.alpha
    scaled = power * tuples
    top = jnp.max(scaled, axis=1, keepdims=True)
    weights = jnp.exp(scaled - top)
    total = jnp.sum(weights, axis=1, keepdims=True) - weights
    # Where one draw has all the weight, the difference is rounding: the others are summed by themselves.
    second = jnp.sort(scaled, axis=1)[:, -2:-1]
    total = jnp.maximum(total, jnp.exp(second - top))
    return ((jnp.log(total / (objective.K - 1)) + top) / power).reshape(-1)


def euclidean(q: Mixture, at: Evaluated, c: Array, objective: AbstractObjective) -> Float[Array, "M C dim"]:
    """The reparameterised gradient of the means, tuple by tuple: components as drawn, q differentiated too."""
    g = objective.coefficients(at.log_weights.reshape(-1, objective.K)).g.reshape(-1)
    drawn = jax.nn.one_hot(c, len(q.means), dtype=g.dtype)[:, :, None] * at.score[:, None]
    terms = g[:, None, None] * (drawn - at.pull)
    return jnp.sum(terms.reshape(-1, objective.K, *terms.shape[1:]), axis=1)


# ---- Fits -----------------------------------------------------------------------------------------------------------


def start(target: bures.Target, C: int, seed: int) -> bures.GaussianMixture:
    """Components about draws of the Gaussian of the target's mode and curvature, or of its moments where known."""
    if target.mean is not None:
        whole = bures.Gaussian.from_moments(target.mean, target.covariance)
    else:
        whole = bures.laplace(target)
    if C == 1:
        return bures.GaussianMixture(np.zeros(1), whole.mean[None], whole.chol[None])
    means = whole.sample(jax.random.key(seed), C)
    chols = np.broadcast_to(np.asarray(whole.chol) / C ** (1 / target.dim), (C, *whole.chol.shape))
    return bures.GaussianMixture(np.full(C, -math.log(C)), means, chols)


def fitted(parameters: dict, bound: str, seed: int) -> bures.GaussianMixture:
    """So many whitened steps from the start."""
    target = make_target(parameters["target"])
    objective = make_bound(bound, parameters["K_fit"], parameters["alpha"])
    fit = bures.fit(
        target,
        key=jax.random.fold_in(jax.random.key(seed), 1),
        objective=objective,
        estimator=bures.Stein(M=parameters["draws"] // objective.K),
        geometry=bures.Whitened(),
        init=start(target, parameters["components"], seed),
        num_steps=parameters["steps"],
        progress=False,
    )
    assert isinstance(fit.approximation, bures.GaussianMixture)
    return fit.approximation


def run(parameters: dict) -> dict:
    return _measure_fit(parameters) if parameters["kind"] == "fit" else _measure_snr(parameters)


def _measure_fit(parameters: dict) -> dict:
    q, target = fitted(parameters, parameters["bound"], parameters["seed"]), make_target(parameters["target"])
    key = jax.random.fold_in(jax.random.key(parameters["seed"]), 2)
    log_weights = WeightedDraws.draw(key, q, target, parameters["samples"]).log_weights
    tuples = log_weights[: log_weights.size // 10 * 10].reshape(-1, 10)
    return {
        "elbo": float(np.mean(log_weights)),
        "iw_elbo": float(np.mean(bures.IWELBO(10).bound(tuples))),
        "log_evidence": log_evidence(log_weights)[0],
        "ness": ness(log_weights),
        "khat": float(np.clip(pareto_khat(log_weights), -1, 10)),
        "weights": np.exp(np.asarray(q.log_shares)).round(4).tolist(),
    }


# ---- Signal-to-noise ratios -----------------------------------------------------------------------------------------


def displaced(q: Mixture, shift: float, widen: float, tilt: float) -> Mixture:
    """Away from the optimum: means by so many standard deviations in every coordinate, wider, weights tilted."""
    means = q.means + shift * jnp.einsum("cij->ci", q.chols)
    log_weights = jax.nn.log_softmax(q.log_weights + tilt * (-1.0) ** jnp.arange(len(q.means)))
    return Mixture(means, widen * q.chols, log_weights)


def realise(q: Mixture, target: bures.Target, K: int) -> tuple[Any, dict[str, int]]:
    """key -> one realisation of every estimator from one tuple, one after the other, and their sizes."""
    objective = bures.ELBO() if K == 1 else bures.IWELBO(K)
    C, dim = q.means.shape

    def flatten(terms: Gradient) -> list[Array]:
        log_pi = jnp.exp(q.log_weights)
        centred = [part - log_pi @ part for part in (terms.weights, terms.plain)]
        return [terms.a.ravel(), jnp.diagonal(terms.S, axis1=-2, axis2=-1).ravel(), *centred]

    def one(key: Key[Array, ""]) -> Array:
        z, c = q.sample(key, K)
        at = evaluate(q, target, z)
        terms = gradient(q, at, objective)
        last, every = (flatten(jax.tree.map(take, terms)) for take in (lambda x: x[-1], lambda x: jnp.mean(x, axis=0)))
        return jnp.concatenate([*last, euclidean(q, at, c, objective).ravel(), *every[:3]])

    sizes = {"mean": C * dim, "covariance": C * dim, "weights": C, "plain": C, "euclidean": C * dim}
    return one, sizes | {f"{part}, all": sizes[part] for part in EVERY}


def _measure_snr(parameters: dict) -> dict:
    """By K."""
    target = make_target(parameters["target"])
    q = Mixture.of(fitted(parameters, "IW-ELBO", 0))
    q = displaced(q, parameters["shift"], parameters["widen"], parameters["tilt"])
    return {str(K): _ratios_of(q, target, K, parameters) for K in parameters["K"]}


def _ratios_of(q: Mixture, target: bures.Target, K: int, parameters: dict) -> dict[str, Any]:
    one, sizes = realise(q, target, K)
    seeds, count = parameters["jackknife"], parameters["realisations"]
    batch = math.gcd(seeds * count, 2 ** max(0, int(np.log2(max(1, 20_000 // K)))))
    key = jax.random.fold_in(jax.random.key(7), K)
    found = bures.snr(key, one, num_seeds=seeds, num_realisations=count, batch_size=batch)
    out: dict[str, Any] = {"floor": found.noise_floor}
    at = 0
    for name, size in sizes.items():
        part = bures.SNR(count, found.means[:, at : at + size], found.second_moments[:, at : at + size])
        at += size
        if len(q.means) > 1 or not name.startswith(("weights", "plain")):
            out[name] = {"snr": part.value, "without": part.leave_one_out.tolist()}
    return out


# ---- Tables ---------------------------------------------------------------------------------------------------------


def _components(results: Results, target: str, kind: str) -> list[int]:
    return sorted({p["components"] for p, _ in select(results, kind=kind, target=target)})


def _ratios(results: Results, target: str, C: int, part: str) -> dict[int, dict]:
    """By K."""
    found = {int(K): r[K] for _, r in select(results, kind="snr", target=target, components=C) for K in r}
    return {K: found[K][part] for K in sorted(found) if part in found[K]}


def slope(found: dict[int, dict]) -> tuple[float, float] | None:
    """The slope of log SNR in log K from `FIT_FROM` on, with its jackknife error; None of fewer than two K."""
    chosen = {K: point for K, point in found.items() if K >= FIT_FROM}
    ratios = np.array([[point["snr"], *point["without"]] for point in chosen.values()])
    if len(chosen) < 2 or not np.all(ratios > 0):
        return None
    slopes = np.polyfit(np.log(list(chosen)), np.log(ratios), 1)[0]
    seeds = slopes.size - 1
    return float(slopes[0]), float(np.sqrt((seeds - 1) / seeds * np.sum((slopes[1:] - slopes[1:].mean()) ** 2)))


def tables(results: Results, settings: dict) -> list[Table]:
    made = [_fit_table(results, settings), _slope_table(results, settings), _every_table(results, settings)]
    return [table for table in made if table.rows]


def _fit_table(results: Results, settings: dict) -> Table:
    rows = []
    for target in settings["components"]:
        for C in _components(results, target, "fit"):
            parts = []
            for bound in BOUNDS:
                found = [r for _, r in select(results, kind="fit", target=target, components=C, bound=bound)]
                if found:
                    elbo, size = (mean_and_spread([r[name] for r in found]) for name in ("elbo", "ness"))
                    parts.append(f"{bound}: nESS {size}, ELBO {elbo}, k̂ {np.median([r['khat'] for r in found]):.2f}")
            label = f"{TARGETS[target]}, {C} component{'s' if C > 1 else ''}"
            rows.append(Row(label, "–", "; ".join(parts)))
    note = (
        f"Fitted with each bound (K = {settings['K_fit']}, α = {settings['alpha']:g}), {settings['steps']} whitened "
        f"steps of {settings['draws']} draws ({settings['census_draws']} on the Census), all indices, S by Stein's "
        f"lemma; mean ± spread over {settings['seeds']} starts, judged by {settings['samples']:,} fresh draws."
    )
    return Table("One Gaussian and mixtures, by bound", tuple(rows), note)


def is_clear(found: dict[int, dict], floor: float) -> bool:
    """Whether all ratios that a slope is fitted to are above twice the floor: else it is a slope of noise."""
    return all(point["snr"] > 2 * floor for K, point in found.items() if K >= FIT_FROM)


def _floor(results: Results, target: str) -> float:
    return max((r[K]["floor"] for _, r in select(results, kind="snr", target=target) for K in r), default=0.0)


def _slope_table(results: Results, settings: dict) -> Table:
    rows = []
    for target in settings["components"]:
        floor = _floor(results, target)
        for C in _components(results, target, "snr"):
            for part, words in PARTS.items():
                found = _ratios(results, target, C, part)
                fitted = slope(found)
                if fitted is None:
                    continue
                few, many = min(found), max(found)
                ends = (
                    f"SNR {found[few]['snr']:.3f} at K = {few}, {found[many]['snr']:.3f} at {many}, floor {floor:.3f}"
                )
                claim = {"mean": "flat", "covariance": "flat", "euclidean": "falls"}.get(part, "–")
                clear = is_clear(found, floor)
                measured = f"{fitted[0]:+.2f} ± {fitted[1]:.2f}" if clear else "at the floor"
                fell = (part == "euclidean" and found[few]["snr"] > 2 * floor) or None
                agrees = _agrees(part, fitted[0]) if clear else fell
                rows.append(Row(f"{TARGETS[target]}, C = {C}: {words}", claim, measured, agrees, ends))
    note = (
        f"Slopes of log SNR in log K from K = {FIT_FROM} on, one tuple, its last index, average over components and "
        f"coordinates; {settings['jackknife']} seeds × {settings['realisations']} realisations "
        f"({settings['census_realisations']} on the Census). Mixtures fitted to the IW-ELBO, then every mean off by "
        f"{settings['shift']:g} standard deviations in every coordinate, {settings['widen']:g} times as wide, weights "
        f"tilted by {settings['tilt']:g}. The paper's claims are of one Gaussian: the BW gradient's SNR is Ω(√M), flat "
        "in K; the reparameterised gradient's falls as K^-½. A slope "
        f"above −{FLAT} counts as flat. Where a ratio is below twice the floor, what noise alone would show, a slope "
        "says nothing."
    )
    return Table("Does the SNR vanish with K?", tuple(rows), note)


def _agrees(part: str, fitted: float) -> bool | None:
    if part in ("mean", "covariance"):
        return fitted > -FLAT
    return fitted < -FLAT if part == "euclidean" else None


def _every_table(results: Results, settings: dict) -> Table:
    rows = []
    for target in settings["components"]:
        for C in _components(results, target, "snr"):
            fitted = {part: slope(_ratios(results, target, C, f"{part}, all")) for part in EVERY}
            parts = [f"{part} {found[0]:+.2f} ± {found[1]:.2f}" for part, found in fitted.items() if found]
            if parts:
                rows.append(Row(f"{TARGETS[target]}, C = {C}", "–", "; ".join(parts)))
    note = "The average over all K indices of the tuple. +½ is what K independent draws would give."
    return Table("The same with all indices", tuple(rows), note)


# ---- Figures --------------------------------------------------------------------------------------------------------


def plot(results: Results, settings: dict) -> dict[str, Figure]:
    made = {}
    if any(True for _ in select(results, kind="fit")):
        made["mixtures-fits"] = _plot_fits(results, settings)
    if any(True for _ in select(results, kind="snr")):
        made["mixtures-snr"] = _plot_ratios(results, settings)
    return made


def _plot_fits(results: Results, settings: dict) -> Figure:
    """nESS by the number of components, a line a bound."""
    names = list(settings["components"])
    figure = Figure(figsize=(2.6 * len(names) + 0.6, 3.0), layout="constrained")
    axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    colours = dict(zip(BOUNDS, ("#D55E00", "#0072B2", "#009E73"), strict=True))
    for name, ax in zip(names, axes, strict=True):
        for bound, colour in colours.items():
            chosen = select(results, kind="fit", target=name, bound=bound)
            found = [(p["components"], r["ness"]) for p, r in chosen]
            ax.scatter(*np.array(found, float).reshape(-1, 2).T, color=colour, s=9, alpha=0.6, linewidths=0)
            counts = sorted({C for C, _ in found})
            ax.plot(counts, [np.mean([y for C, y in found if count == C]) for count in counts], color=colour)
        ax.set(title=TARGETS[name], xscale="log", xlabel="components", ylim=(0, 1.03))
        ax.set_xticks(settings["components"][name], labels=settings["components"][name])
        ax.xaxis.minorticks_off()
    axes[0].set_ylabel("nESS")
    handles = [Line2D([], [], color=colour, label=bound) for bound, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _plot_ratios(results: Results, settings: dict) -> Figure:
    """SNR by K: a row a target, a column a number of components."""
    names = list(settings["components"])
    most = max(len(counts) for counts in settings["components"].values())
    figure = Figure(figsize=(2.5 * most + 0.8, 2.1 * len(names) + 0.8), layout="constrained")
    axes = figure.subplots(len(names), most, sharex=True, sharey="row", squeeze=False)
    for name, row in zip(names, axes, strict=True):
        for ax in row[len(settings["components"][name]) :]:
            ax.set_axis_off()
        for C, ax in zip(settings["components"][name], row, strict=False):
            for part in PARTS:
                found = _ratios(results, name, C, part)
                style = dict(color=COLOURS[part], marker=MARKERS[part], markersize=3.5, linewidth=1.2)
                ax.plot(list(found), [point["snr"] for point in found.values()], **style)
            floors = [r[K]["floor"] for _, r in select(results, kind="snr", target=name, components=C) for K in r]
            ax.axhline(max(floors, default=0.01), color="0.6", linewidth=1)
            ax.set(xscale="log", yscale="log", title=f"{TARGETS[name]}, C = {C}")
            ax.grid(axis="y", color="0.92", linewidth=0.8)
        row[0].set_ylabel("SNR")
        number_plainly(row[0].yaxis)
    for ax in axes[-1]:
        ax.set_xlabel("K")
    handles = [
        Line2D([], [], color=COLOURS[part], marker=MARKERS[part], markersize=4, label=words)
        for part, words in PARTS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


# ---- Reading --------------------------------------------------------------------------------------------------------


def _clear_slopes(results: Results, settings: dict, part: str) -> tuple[list[float], int]:
    """Slopes of mixtures that are not of noise, and how many are."""
    slopes, lost = [], 0
    for target in settings["components"]:
        for C in [C for C in _components(results, target, "snr") if C > 1]:
            found = _ratios(results, target, C, part)
            fitted = slope(found)
            if fitted is None:
                continue
            if is_clear(found, _floor(results, target)):
                slopes.append(fitted[0])
            else:
                lost += 1
    return slopes, lost


def reading(results: Results, settings: dict) -> str:
    text = []
    for part, words in PARTS.items():
        slopes, lost = _clear_slopes(results, settings, part)
        if slopes or lost:
            flat = sum(each > -FLAT for each in slopes)
            middle = f", median slope {np.median(slopes):+.2f}" if slopes else ""
            text.append(f"{words}: flat or rising in {flat} of {len(slopes)}{middle}; at the floor in {lost}")
    return f"SNR of mixtures by K. {'. '.join(text)}." if text else "Too few cells to say."
