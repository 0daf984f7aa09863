"""Figures of a fit, of its importance weights and of reference chains: results in, matplotlib axes out.

Each function draws on the axes it is given, or on those of a new figure of pyplot: a notebook shows it, in a script
`plt.show()` does, and `axes.figure.savefig(path)` or `plt.savefig(path)` saves it.
"""

try:
    import matplotlib as _matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError("Figures need matplotlib: pip install 'bures[plot]'.") from error

from bures.plot.chains import autocorrelations as autocorrelations, chain_traces as chain_traces
from bures.plot.comparison import marginals as marginals, pairs as pairs
from bures.plot.fits import (
    bound_trace as bound_trace,
    evolution as evolution,
    path as path,
    summary as summary,
    weights_tail as weights_tail,
)
