"""The pictures of docs/families.md: `python scripts/draw_families.py [folder]`, or `make figures`.

Two are drawn, the others are those of `bures reproduce families` as it is kept in results/.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import bures
from bures.plot.style import COLOURS as _COLOURS, styled as _styled
from bures.reproduce import _png, load_experiment, read_experiment

ROOT = Path(__file__).resolve().parents[1]
BLUE, RED, GREEN = _COLOURS[:3]
STYLES = {"full rank": (BLUE, "-"), "mean field": (RED, "-"), "low rank": (GREEN, (0, (3, 3)))}


def regression(d: int, groups: int) -> bures.Target:
    """Logistic regression on 4 d rows; the covariates of a group share a factor, and are correlated by 0.8."""
    rng = np.random.default_rng(d)
    factors = np.repeat(rng.standard_normal((4 * d, groups)), d // groups, axis=1)
    X = np.sqrt(0.8) * factors + np.sqrt(0.2) * rng.standard_normal((4 * d, d))
    y = rng.random(4 * d) < 1 / (1 + np.exp(-X @ np.full(d, 1 / np.sqrt(d))))
    return bures.models.logistic_regression(X, y.astype(float), prior_variance=4.0)


def fit(target: bures.Target, family: Any) -> Any:
    objective = bures.ELBO()  # for all of them the same
    return bures.fit(target, key=jax.random.key(0), family=family, objective=objective, progress=False).approximation


def _fits(target: bures.Target, low_rank: bures.LowRank) -> dict[str, Any]:
    families = (bures.FullRank(), bures.MeanField(), low_rank)
    return {name: fit(target, family) for name, family in zip(STYLES, families, strict=True)}


def ellipse(q: Any, i: int, j: int) -> np.ndarray:
    """Where the marginal of two coordinates is two standard deviations away."""
    pair = q.marginal([i, j])
    angle = np.linspace(0, 2 * np.pi, 200)
    return np.asarray(pair.mean + 2 * np.column_stack([np.cos(angle), np.sin(angle)]) @ pair.chol.T)


def draw_plane() -> Figure:
    """Left: two coefficients, all of the posterior. Right: two coefficients out of thirty."""
    figure = Figure(figsize=(7.6, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    small, large = regression(2, 1), regression(30, 3)
    fits = [_fits(small, bures.LowRank(1)), _fits(large, bures.LowRank(3))]

    q = fits[0]["full rank"]
    low, high = (np.asarray(q.mean + 3.2 * side * q.standard_deviations) for side in (-1, 1))
    x, y = (np.linspace(low[i], high[i], 150) for i in range(2))
    grid = np.stack(np.meshgrid(x, y), axis=-1)
    density = np.exp(np.asarray(small.value(jnp.asarray(grid.reshape(-1, 2)))).reshape(150, 150))
    levels = np.exp(-np.array([8, 4.5, 2, 0.5, 0]))
    left.contourf(x, y, density / density.max(), levels=levels, cmap="Greys", alpha=0.55)
    left.set_title("two coefficients; low rank: 1 column")

    q = fits[1]["full rank"]
    key = jax.random.key(1)
    draws = q.sample(key, 20_000)
    weights = np.asarray(jax.nn.softmax(large.value(draws) - q.log_prob(draws)))
    shown = np.random.default_rng(0).choice(20_000, 1500, p=weights / weights.sum())
    right.plot(*np.asarray(draws)[shown][:, :2].T, ".", color="0.65", markersize=2)
    right.set_title("two of thirty; low rank: 3 columns")
    for ax, found in zip((left, right), fits, strict=True):
        for name, (colour, dash) in STYLES.items():
            ax.plot(*ellipse(found[name], 0, 1).T, color=colour, linestyle=dash)
        ax.set(xlabel="first coefficient", ylabel="second coefficient")
    handles: list[Any] = [
        Line2D([], [], color=colour, linestyle=dash, label=name) for name, (colour, dash) in STYLES.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def draw_matrices() -> Figure:
    """Covariances in units of the full fit's standard deviations."""
    target = regression(30, 3)
    families = {"full rank": bures.FullRank(), "mean field": bures.MeanField(), "low rank, 1 column": bures.LowRank(1)}
    families |= {"low rank, 3 columns": bures.LowRank(3), "low rank, by itself": bures.LowRank()}
    fits = {name: fit(target, family) for name, family in families.items()}
    unit = np.asarray(fits["full rank"].standard_deviations)
    figure = Figure(figsize=(9.4, 2.5), layout="constrained")
    axes = figure.subplots(1, len(fits))
    for ax, (name, q) in zip(axes, fits.items(), strict=True):
        ax.imshow(np.asarray(q.covariance) / np.outer(unit, unit), cmap="RdBu_r", vmin=-0.5, vmax=0.5)
        lost = float(q.kl(fits["full rank"])) if name != "full rank" else 0.0
        words = name.replace("by itself", f"by itself: {getattr(q, 'rank', 0)}")
        ax.set_title(f"{words}\n{lost:.2f} nats away" if lost else f"{words}\n")
        ax.set(xticks=[], yticks=[])
    figure.colorbar(axes[0].images[0], ax=axes, shrink=0.8)
    return figure


def main(folder: Path) -> None:
    jax.config.update("jax_enable_x64", True)
    for name, draw in {"families-plane": draw_plane, "families-matrices": draw_matrices}.items():
        (folder / f"{name}.png").write_bytes(_png(_styled(draw)()))
    shown = read_experiment("families", load_experiment("families"), "full", ROOT / "results")
    assert shown is not None
    for name in ("families-snr", "families-nats"):
        (folder / f"{name}.png").write_bytes(shown.figures[name])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "figures")
