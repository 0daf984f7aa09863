"""The pictures of docs/mixtures.md: `python scripts/draw_ladder.py [folder]`, or `make figures`.

Two are drawn: every rung on a funnel in the plane, and on eight schools. The others are those of `bures reproduce
mixtures` as they are kept in results/.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from matplotlib.figure import Figure
from numpyro import distributions as dist

import bures
from bures.plot.style import COLOURS as _COLOURS, styled as _styled
from bures.reproduce import _png, load_experiment, read_experiment

ROOT = Path(__file__).resolve().parents[1]
SHOWN = 1200  # draws in a panel
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def funnel() -> None:
    """v ~ N(0, 1.5), x | v ~ N(0, exp(v / 2))."""
    v = numpyro.sample("v", dist.Normal(0, 1.5))
    numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)))


def schools(centred: bool = True) -> None:
    """Eight schools: θ ~ N(μ, τ), or μ + τ η with η ~ N(0, 1)."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", 8):
        if centred:
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        else:
            theta = mu + tau * numpyro.sample("eta", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(theta, SIGMA), obs=Y)


def rungs(target: bures.Target) -> dict[str, Any]:
    """Draws of every rung in the model's own variables, by what is said of it."""
    key = jax.random.key(0)
    fit: Any = bures.fit(target, key=key, progress=False)
    centred = fit.refine(jax.random.key(1))
    mixed = bures.fit(target, key=key, family=bures.Mixture(), progress=False)
    tree = bures.sample(target, key=jax.random.key(2), num_draws=SHOWN)
    found = {
        "one Gaussian": fit,
        "after centring": centred,
        f"{mixed.approximation.num_components} Gaussians": mixed,
    }
    made = {
        f"{name}\nnESS {each.diagnostics.ness:.2f}": each.to_arviz(jax.random.key(3), SHOWN, resample=False)
        for name, each in found.items()
    }
    return made | {f"bures.sample\nby the rung {tree.attrs['rung']}": tree}


def draws(tree: Any, name: str) -> np.ndarray:
    """All draws of a variable; of a vector, its first element."""
    values = np.asarray(tree["posterior"][name])
    return values.reshape(values.shape[0] * values.shape[1], -1)[:, 0]


def draw_panels(
    made: dict[str, Any], place: Callable[[Any], tuple[np.ndarray, np.ndarray]], background: Callable[[Any], None]
) -> Figure:
    figure = Figure(figsize=(10.4, 3.1), layout="constrained")
    axes = figure.subplots(1, len(made), sharex=True, sharey=True)
    for ax, (title, tree) in zip(axes, made.items(), strict=True):
        background(ax)
        x, y = place(tree)
        ax.plot(x[:SHOWN], y[:SHOWN], ".", color=_COLOURS[0], markersize=2.2, alpha=0.6)
        ax.set_title(title)
    return figure


def draw_plane() -> Figure:
    """Draws of each rung on the density of the funnel."""
    target = bures.frontends.from_numpyro(funnel)
    x, v = np.linspace(-9, 9, 181), np.linspace(-5, 5, 161)
    grid = np.stack(np.meshgrid(x, v), axis=-1)
    log_p = -(grid[..., 0] ** 2) * np.exp(-grid[..., 1]) / 2 - grid[..., 1] / 2 - grid[..., 1] ** 2 / 4.5

    def background(ax: Any) -> None:
        ax.contour(
            x, v, log_p - log_p.max(), levels=[-12, -8, -5, -3, -1.5], colors="0.6", linestyles="solid", linewidths=0.8
        )
        ax.set(xlim=(-9, 9), ylim=(-5, 5), xlabel="x")

    figure = draw_panels(rungs(target), lambda tree: (draws(tree, "x"), draws(tree, "v")), background)
    figure.axes[0].set_ylabel("v")
    return figure


def draw_schools() -> Figure:
    """Draws of each rung on a long run of NUTS: the first school's effect against log τ."""
    target = bures.frontends.from_numpyro(schools)
    other = bures.frontends.from_numpyro(schools, centred=False)  # which NUTS explores well
    chains = bures.reference.nuts(jax.random.key(9), other, num_samples=2000, target_acceptance=0.95)
    exact = {name: np.asarray(value) for name, value in jax.vmap(other.constrain)(jnp.asarray(chains.flat)).items()}
    first, log_tau = exact["mu"] + exact["tau"] * exact["eta"][:, 0], np.log(exact["tau"])

    def background(ax: Any) -> None:
        ax.plot(first[::4], log_tau[::4], ".", color="0.75", markersize=2)
        ax.set(xlim=(-20, 45), ylim=(-4, 4), xlabel="effect of the first school")

    figure = draw_panels(rungs(target), lambda tree: (draws(tree, "theta"), np.log(draws(tree, "tau"))), background)
    figure.axes[0].set_ylabel("log τ")
    return figure


def main(folder: Path) -> None:
    jax.config.update("jax_enable_x64", True)
    for name, draw in {"ladder-plane": draw_plane, "ladder-schools": draw_schools}.items():
        (folder / f"{name}.png").write_bytes(_png(_styled(draw)()))
    shown = read_experiment("mixtures", load_experiment("mixtures"), "full", ROOT / "results")
    assert shown is not None
    for name in ("mixtures-fits", "mixtures-snr"):
        (folder / f"{name}.png").write_bytes(shown.figures[name])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "figures")
