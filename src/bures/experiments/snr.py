"""SNR (Table 3, Figure 2): how does the signal-to-noise ratio of each gradient estimator grow with K and M?"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import bures
from bures.experiments.protocol import Results, Row, Table, mean_and_spread, number_plainly, select

TITLE = "Signal-to-noise ratio of gradient estimators"
QUESTION = "Does the SNR rise (Wasserstein), stay (BW) and fall (Euclidean) with K, and rise like √M with M?"

WASSERSTEIN, BW, EUCLIDEAN, BW_ALL = "Wasserstein", "BW", "Euclidean", "BW, all indices"
ESTIMATORS = (WASSERSTEIN, BW, EUCLIDEAN)
COLOURS = {WASSERSTEIN: "#009E73", BW: "#0072B2", EUCLIDEAN: "#D55E00", BW_ALL: "#CC79A7"}
MARKERS = {WASSERSTEIN: "o", BW: "s", EUCLIDEAN: "^", BW_ALL: "D"}
DASHES = ("-", "--", ":")
FIT_FROM = 200  # slopes in K are fitted over K ≥ 200

# Table 3: slope and jackknife error; and the effective sample size at K = 10,000, from the text.
PAPER = {
    ("K", 20): {WASSERSTEIN: (0.56, 0.01), BW: (-0.01, 0.03), EUCLIDEAN: (-0.32, 0.05)},
    ("K", 50): {WASSERSTEIN: (0.56, 0.01), BW: (-0.01, 0.03), EUCLIDEAN: (-0.35, 0.03)},
    ("K", 80): {WASSERSTEIN: (0.53, 0.01), BW: (-0.03, 0.05), EUCLIDEAN: (-0.32, 0.03)},
    ("M", 20): {WASSERSTEIN: (0.53, 0.03), BW: (0.50, 0.02), EUCLIDEAN: (0.48, 0.01)},
    ("M", 50): {WASSERSTEIN: (0.48, 0.03), BW: (0.50, 0.02), EUCLIDEAN: (0.51, 0.01)},
    ("M", 80): {WASSERSTEIN: (0.49, 0.01), BW: (0.48, 0.02), EUCLIDEAN: (0.50, 0.02)},
}
PAPER_ESS = {20: 229.6, 50: 210.0, 80: 158.9}
# What the theory (Theorem 1, Proposition 3; Rainforth et al., 2018) says of the slope in K: up, flat, down.
EXPECTED = {WASSERSTEIN: 1, BW: 0, EUCLIDEAN: -1}


def settings(quick: bool, seeds: int | None) -> dict:
    """`realisations` are of each seed; `many` of them, `data_sets` and `ess_data_sets` go beyond the paper."""
    frozen = {"n": 10, "c": 8.0, "data_seed": 2026, "seeds": seeds or 10, "M": [1, 2, 4, 8, 16], "K_of_M": 100}
    grid = [10, 100, 200, 500, 1000, 2000, 4000, 8000, 10_000]
    if quick:
        own = {"dims": [20], "K": [200, 500, 2000], "M": [1, 4, 8], "realisations": 200}
        more = {"realisations_M": 400, "many": 0, "many_K": [], "data_sets": 0, "ess_data_sets": 10, "ess_draws": 10}
        return frozen | own | more
    own = {"dims": [20, 50, 80], "K": grid, "realisations": 200, "realisations_M": 500}
    more = {"many": 2000, "many_K": grid[2:], "data_sets": 5, "ess_data_sets": 20, "ess_draws": 80}
    return frozen | own | more


def tiny() -> dict:
    """A few seconds, for tests."""
    few = {"dims": [5], "K": [200, 300], "M": [1, 2], "K_of_M": 10, "realisations": 20, "realisations_M": 20}
    return settings(quick=True, seeds=3) | few | {"ess_data_sets": 2, "ess_draws": 2}


def cells(settings: dict) -> dict[str, dict]:
    shared = {name: settings[name] for name in ("n", "c", "data_seed", "seeds")}
    made: dict[str, dict] = {}
    for d in settings["dims"]:
        made[f"ess-d{d}"] = dict(
            shared, kind="ess", d=d, K=10_000, draws=settings["ess_draws"], data_sets=settings["ess_data_sets"]
        )
        for K in settings["K"]:
            made[f"K{K}-d{d}"] = dict(shared, kind="K", d=d, K=K, M=1, realisations=settings["realisations"])
        for M in settings["M"]:
            made[f"M{M}-d{d}"] = dict(
                shared, kind="M", d=d, K=settings["K_of_M"], M=M, realisations=settings["realisations_M"]
            )
    first = settings["dims"][0]
    for offset in range(1, settings["data_sets"] + 1):
        other = shared | {"data_seed": settings["data_seed"] + offset}
        for K in [K for K in settings["K"] if K >= FIT_FROM]:
            made[f"data{offset}-K{K}-d{first}"] = dict(
                other, kind="data", d=first, K=K, M=1, realisations=settings["realisations"], data_set=offset
            )
    for K in settings["many_K"]:
        made[f"many-K{K}-d{first}"] = dict(shared, kind="many", d=first, K=K, M=1, realisations=settings["many"])
    return made


# ---- Cells ----------------------------------------------------------------------------------------------------------


def _target(parameters: dict, offset: int = 0) -> bures.Target:
    """Logistic regression with n = 10 rows scaled by √(c/d), labels from z* ~ N(0, I), and prior N(0, I)."""
    d, n = parameters["d"], parameters["n"]
    rng = np.random.default_rng([parameters["data_seed"] + offset, d])
    truth, X = rng.standard_normal(d), np.sqrt(parameters["c"] / d) * rng.standard_normal((n, d))
    y = rng.random(n) < 1 / (1 + np.exp(-X @ truth))
    return bures.models.logistic_regression(X, y.astype(float), prior_variance=1.0)


def _gradients(target: bures.Target, K: int, M: int):
    """key -> one realisation of each estimator, one after the other, and their sizes. They share their draws."""
    d, objective = target.dim, bures.IWELBO(K=K)
    q, origin = bures.Gaussian.standard(d), jnp.zeros(d)
    last, every, plain = bures.Price(M=M, indices="last"), bures.Price(M=M), bures.Reparameterised(M=M)

    def affine(estimate):
        return jnp.concatenate([estimate.a, jnp.diagonal(estimate.S)])

    def wasserstein(log_weights):
        """`bures.wasserstein_gradient` at the origin, where ∇log q = 0, among the first K − 1 draws of each tuple."""
        value, score = target.value_and_score(origin[None])
        own = jnp.broadcast_to(value - q.log_prob(origin), (M, 1))
        return jnp.mean(objective.coefficients(jnp.hstack([log_weights[:, :-1], own])).A[:, -1]) * score[0]

    def gradient(key):
        noise = jax.random.normal(key, (M, K, d))
        euclidean = plain.estimate(noise, q, target, objective)
        return jnp.concatenate([
            wasserstein(euclidean.log_weights),
            affine(last.estimate(noise, q, target, objective)),
            K * euclidean.a,
            affine(every.estimate(noise, q, target, objective)),
        ])  # fmt: skip

    return gradient, {WASSERSTEIN: d, BW: 2 * d, EUCLIDEAN: d, BW_ALL: 2 * d}


def run(parameters: dict) -> dict:
    if parameters["kind"] == "ess":
        return _effective_sample_sizes(parameters)
    K, M = parameters["K"], parameters["M"]
    target = _target(parameters)
    gradient, sizes = _gradients(target, K, M)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(parameters["data_seed"]), K), M)
    ratios = bures.snr(
        key,
        gradient,
        num_seeds=parameters["seeds"],
        num_realisations=parameters["realisations"],
        batch_size=math.gcd(
            parameters["seeds"] * parameters["realisations"], 2 ** int(np.log2(max(1, 20_000 // (K * M))))
        ),
    )
    out, at = {}, 0
    for name, size in sizes.items():
        part = bures.SNR(
            ratios.num_realisations, ratios.means[:, at : at + size], ratios.second_moments[:, at : at + size]
        )
        out[name] = {"snr": part.value, "without": part.leave_one_out.tolist()}
        at += size
    return out | {"floor": ratios.noise_floor}


def _effective_sample_sizes(parameters: dict) -> dict:
    """1 / Σ w̄² at K draws, averaged over draws: of the experiment's data set, then of others drawn like it."""
    K, d = parameters["K"], parameters["d"]

    def size(target, key):
        noise = jax.random.normal(key, (K, d))
        log_weights = target.value(noise) - bures.Gaussian.standard(d).log_prob_of_noise(noise)
        weights = jax.nn.softmax(log_weights)
        return 1 / jnp.sum(weights**2)

    keys = jax.random.split(jax.random.key(parameters["data_seed"]), parameters["draws"])
    sizes = jax.jit(lambda target: jax.lax.map(lambda key: size(target, key), keys))
    own = np.asarray(sizes(_target(parameters)))
    others = [float(np.mean(sizes(_target(parameters, offset)))) for offset in range(1, parameters["data_sets"] + 1)]
    return {"ess": float(np.mean(own)), "error": float(np.std(own, ddof=1) / np.sqrt(own.size)), "others": others}


# ---- Tables ---------------------------------------------------------------------------------------------------------


def _curve(results: Results, kind: str, d: int, name: str, **wanted) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (K, or M for the M-scaling), SNR, and SNR without each seed; in the order of x."""
    x = "M" if kind == "M" else "K"
    points = [
        (p[x], r[name]["snr"], r[name]["without"]) for p, r in select(results, kind=kind, d=d, **wanted) if name in r
    ]
    points.sort()
    return tuple(np.array([point[i] for point in points]) for i in range(3))  # pyright: ignore


def _slope(x: np.ndarray, ratios: np.ndarray, without: np.ndarray) -> tuple[float, float] | None:
    """The least-squares slope of log SNR on log x and its leave-one-seed-out jackknife error."""
    if x.size < 2:
        return None
    slopes = np.polyfit(np.log(x), np.log(np.column_stack([ratios, without])), 1)[0]
    seeds = slopes.size - 1
    return float(slopes[0]), float(np.sqrt((seeds - 1) / seeds * np.sum((slopes[1:] - slopes[1:].mean()) ** 2)))


def _fitted(results: Results, kind: str, d: int, name: str, **wanted) -> tuple[float, float] | None:
    x, ratios, without = _curve(results, kind, d, name, **wanted)
    window = x >= (1 if kind == "M" else FIT_FROM)
    return _slope(x[window], ratios[window], without[window])


def _signs_agree(name: str, slope: float, error: float) -> bool:
    """Rising, flat (nearer to 0 than to ±½, the rates of the others) or falling, as the theory says."""
    return abs(slope) < 0.25 if EXPECTED[name] == 0 else EXPECTED[name] * slope > 2 * error


def tables(results: Results, settings: dict) -> list[Table]:
    made = [_slope_table(results, settings), _ess_table(results, settings), _beyond_table(results, settings)]
    return [table for table in made if table.rows]


def _slope_table(results: Results, settings: dict) -> Table:
    rows = []
    for kind, words in (("K", f"log K slope, K ≥ {FIT_FROM}"), ("M", f"log M slope, K = {settings['K_of_M']}")):
        for d in settings["dims"]:
            for name in ESTIMATORS:
                fitted = _fitted(results, kind, d, name)
                if fitted is None:
                    continue
                slope, error = fitted
                paper = PAPER.get((kind, d), {}).get(name)
                agrees = _signs_agree(name, slope, error) if kind == "K" else abs(slope - 0.5) <= max(3 * error, 0.05)
                shown = "–" if paper is None else f"{paper[0]:+.2f} ± {paper[1]:.2f}"
                note = "" if agrees else _explain(name, kind, slope, error, settings)
                rows.append(Row(f"d = {d}, {name}: {words}", shown, f"{slope:+.2f} ± {error:.2f}", bool(agrees), note))
    note = (
        "Slope ± jackknife error over seeds. In K, agreement is that of the paper's claim, rising (by more than two "
        "errors), flat (less than ¼ either way) or falling: the paper's data set is not published. In M, a slope "
        "within three errors, or 0.05, of ½."
    )
    return Table(f"Table 3, {settings['seeds']} seeds × {settings['realisations']} realisations", tuple(rows), note)


def _explain(name: str, kind: str, slope: float, error: float, settings: dict) -> str:
    if kind == "M":
        return (
            "exactly ½ for an average of M independent tuples, whatever the data: the difference is the estimate's, "
            f"from {settings['realisations_M']} heavy-tailed realisations of each seed"
        )
    wanted = {1: "rising", 0: "flat", -1: "falling"}[EXPECTED[name]]
    sure = "within two errors of 0" if abs(slope) <= 2 * error else "beyond two errors of 0"
    return f"the claim is {wanted}; the slope is {sure}"


def _ess_table(results: Results, settings: dict) -> Table:
    rows = []
    for d in settings["dims"]:
        for _, result in select(results, kind="ess", d=d):
            others = np.array([result["ess"], *result["others"]])
            low, high = np.quantile(others, [0.025, 0.975])
            paper = PAPER_ESS.get(d)
            inside = None if paper is None else bool(others.min() <= paper <= others.max())
            note = f"other data sets: median {np.median(others):.0f}, 95% between {low:.0f} and {high:.0f}"
            measured = f"{result['ess']:.1f} ± {result['error']:.1f}"
            rows.append(Row(f"d = {d}: ESS at K = 10,000", str(paper or "–"), measured, inside, note))
    note = "Agreement: the paper's value lies within the range of data sets drawn as the paper says."
    return Table("Effective sample size", tuple(rows), note)


def _beyond_table(results: Results, settings: dict) -> Table:
    rows = []
    for d in settings["dims"]:
        for _, result in select(results, kind="K", d=d, K=max(settings["K"])):
            for name in (*ESTIMATORS, BW_ALL):
                ratio = result[name]["snr"]
                rows.append(Row(f"d = {d}, {name}: SNR at K = {max(settings['K']):,}", "–", f"{ratio:.4f}"))
            rows.append(Row(f"d = {d}: noise floor", "–", f"{result['floor']:.4f}"))
        fitted = _fitted(results, "K", d, BW_ALL)
        if fitted is not None:
            label = f"d = {d}, {BW_ALL}: log K slope"
            rows.append(Row(label, "–", f"{fitted[0]:+.2f} ± {fitted[1]:.2f}", None, "the paper's uses one index"))
    first = settings["dims"][0]
    for name in (BW, EUCLIDEAN, BW_ALL):
        fitted = _fitted(results, "many", first, name)
        if fitted is not None:
            count = settings["many"] * settings["seeds"]
            label = f"d = {first}, {name}: log K slope from {count:,} realisations"
            rows.append(Row(label, "–", f"{fitted[0]:+.2f} ± {fitted[1]:.2f}", None, "a lower noise floor"))
    for name in (*ESTIMATORS, BW_ALL):
        slopes = [_fitted(results, "data", first, name, data_set=i) for i in range(1, settings["data_sets"] + 1)]
        known = [slope[0] for slope in slopes if slope is not None]
        if known:
            label = f"d = {first}, {name}: log K slope over {len(known)} other data sets"
            rows.append(Row(label, "–", mean_and_spread(known), None, "mean ± standard deviation over data sets"))
    note = "With R realisations a gradient of mean zero shows an SNR of √(2/π)/√R: the noise floor."
    return Table("Beyond the paper", tuple(rows), note)


# ---- Figure ---------------------------------------------------------------------------------------------------------


def plot(results: Results, settings: dict) -> dict[str, Figure]:
    if not any(p["kind"] in ("K", "M") for p, _ in select(results)):
        return {}
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    axes = figure.subplots(1, 2, width_ratios=[1.25, 1])
    for kind, ax in zip("KM", axes, strict=True):
        floors = [r["floor"] for _, r in select(results, kind=kind)]
        for d, dash in zip(settings["dims"], DASHES, strict=False):
            for name in (*ESTIMATORS, BW_ALL):
                x, ratios, without = _curve(results, kind, d, name)
                if not x.size:
                    continue
                seeds = without.shape[1]
                error = np.sqrt((seeds - 1) / seeds * np.sum((without - without.mean(1, keepdims=True)) ** 2, axis=1))
                style = dict(color=COLOURS[name], linestyle=dash, marker=MARKERS[name], markersize=4, linewidth=1.2)
                ax.errorbar(x, ratios, yerr=error, elinewidth=0.8, **style)
        if floors:
            ax.axhline(floors[0], color="0.5", linewidth=1)
            ax.annotate("noise floor", (0.01, floors[0]), xycoords=("axes fraction", "data"), color="0.4", va="bottom")
        ax.set(xscale="log", yscale="log", xlabel=kind, ylabel="SNR, mean over coordinates" if kind == "K" else None)
        ax.spines[["top", "right"]].set_visible(False)
    first = settings["dims"][0]
    for name in (BW, EUCLIDEAN, BW_ALL):
        x, ratios, _ = _curve(results, "many", first, name)
        axes[0].plot(x, ratios, color=COLOURS[name], marker=MARKERS[name], markersize=7, fillstyle="none", linestyle="")
    axes[0].axvline(FIT_FROM, color="0.5", linestyle=":", linewidth=1)
    axes[0].set_title("K-scaling, M = 1 (dotted: slopes are fitted from here)", fontsize=9)
    axes[1].set_title(f"M-scaling, K = {settings['K_of_M']}", fontsize=9)
    axes[1].set_xticks(settings["M"], labels=settings["M"])
    axes[1].xaxis.minorticks_off()
    number_plainly(axes[0].xaxis)
    handles = [Line2D([], [], color=COLOURS[n], marker=MARKERS[n], markersize=4, label=n) for n in COLOURS]
    if len(settings["dims"]) > 1:
        pairs = zip(settings["dims"], DASHES, strict=False)
        handles += [Line2D([], [], color="0.3", linestyle=dash, label=f"d = {d}") for d, dash in pairs]
    if any(True for _ in select(results, kind="many")):
        label = f"{settings['many'] * settings['seeds']:,} realisations"
        handles.append(Line2D([], [], color="0.3", marker="o", fillstyle="none", linestyle="", label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return {"snr-scaling": figure}


def reading(results: Results, settings: dict) -> str:
    fitted = {
        (d, name): slope[0]
        for d in settings["dims"]
        for name in (*ESTIMATORS, BW_ALL)
        if (slope := _fitted(results, "K", d, name)) is not None
    }
    if not fitted:
        return "No slopes yet."

    def span(name: str) -> str:
        values = [slope for (_, n), slope in fitted.items() if n == name]
        low, high = f"{min(values):+.2f}", f"{max(values):+.2f}"
        return low if low == high else f"{low} to {high}"

    text = (
        f"With K the SNR of the Wasserstein estimator changes with slope {span(WASSERSTEIN)}, BW {span(BW)}, Euclidean "
        f"{span(EUCLIDEAN)} (paper: +0.53 to +0.56, -0.03 to -0.01, -0.35 to -0.32). BW with all indices, from the "
        f"same draws, has slope {span(BW_ALL)}"
    )
    all_rise, one_flat = (
        all(test(slope) for (_, n), slope in fitted.items() if n == name)
        for name, test in ((BW_ALL, lambda slope: slope > 0.25), (BW, lambda slope: abs(slope) < 0.25))
    )
    text += ": what stays flat is the use of one index of K, not the geometry." if all_rise and one_flat else "."
    low = [
        r[EUCLIDEAN]["snr"] / r["floor"]
        for d in settings["dims"]
        for _, r in select(results, kind="K", d=d, K=max(settings["K"]))
    ]
    if low:
        text += (
            f" At the largest K the Euclidean SNR is {min(low):.1f} times the noise floor of the realisations; an SNR "
            "near its floor makes a slope look flatter than it is."
        )
    first = settings["dims"][0]
    more = {name: _fitted(results, "many", first, name) for name in (BW, EUCLIDEAN, BW_ALL)}
    if all(slope is not None for slope in more.values()):
        slopes = ", ".join(f"{name} {slope[0]:+.2f} ± {slope[1]:.2f}" for name, slope in more.items())
        count = settings["many"] * settings["seeds"]
        text += f" With {count:,} realisations, and so a lower floor, the slopes at d = {first} are: {slopes}."
    return text
