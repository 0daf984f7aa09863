"""Figures of reference chains."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from bures.check import check_positive_integer
from bures.plot.style import check_axes, new_axes, new_grid, styled
from bures.reference import Chains


@styled
def chain_traces(chains: Chains, max_coordinates: int = 6, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Each coordinate along each chain (a thousand points of it), one colour a chain."""
    count = min(check_positive_integer("max_coordinates", max_coordinates, "For example 6."), chains.dim)
    axes = check_axes(axes, count) or new_axes(count, (7, 1.1 * count + 0.5), sharex=True)
    every = -(-chains.num_samples // 1000)
    for i, ax in enumerate(axes):
        for chain in chains.draws:
            ax.plot(np.arange(0, chains.num_samples, every), chain[::every, i], linewidth=0.4, alpha=0.8)
        ax.set_ylabel(chains.names[i])
        ax.margins(x=0.01)
        ax.set_title(f"R̂ = {chains.rhat[i]:.4f}, ESS = {chains.ess[i]:.0f}", fontsize=8, pad=2)
    axes[-1].set_xlabel("draw")
    return axes


@styled
def autocorrelations(
    chains: Chains, max_lag: int = 100, max_coordinates: int = 16, axes: Sequence[Axes] | None = None
) -> list[Axes]:
    """Autocorrelation of each coordinate by lag, one curve a chain."""
    count = min(check_positive_integer("max_coordinates", max_coordinates, "For example 16."), chains.dim)
    axes = check_axes(axes, count) or new_grid(count, (2.3, 1.7), sharey=True)
    values = np.nan_to_num(chains.autocorrelation(min(max_lag, chains.num_samples - 1)), nan=1)  # NaN: never moved
    for i, ax in enumerate(axes):
        ax.axhline(0, color="0.6", linewidth=0.8)
        ax.plot(values[:, :, i].T, linewidth=1)
        ax.set(ylim=(min(-0.15, float(np.min(values))), 1.02), xlabel="lag")
        ax.set_title(f"{chains.names[i]}, ESS = {chains.ess[i]:.0f}")
    axes[0].set_ylabel("autocorrelation")
    return axes
