"""Gaussian variational inference on Bures–Wasserstein space, with importance-weighted objectives."""

from bures.diagnostics import Diagnostics as Diagnostics
from bures.estimator import (
    Estimate as Estimate,
    Price as Price,
    Reparameterised as Reparameterised,
    Stein as Stein,
    bw_gradient as bw_gradient,
    wasserstein_gradient as wasserstein_gradient,
)
from bures.fitting import Fit as Fit, fit as fit
from bures.gaussian import Gaussian as Gaussian
from bures.geometry import (
    BuresWasserstein as BuresWasserstein,
    Euclidean as Euclidean,
    ForwardBackward as ForwardBackward,
    Whitened as Whitened,
)
from bures.newton import laplace as laplace
from bures.loop import Info as Info, State as State, init as init, step as step
from bures.objective import ELBO as ELBO, IWELBO as IWELBO, VRIWAE as VRIWAE
from bures.outcome import Outcome as Outcome
from bures.signal_to_noise import SNR as SNR, snr as snr, snr_slope as snr_slope
from bures.storage import load as load
from bures.target import Target as Target


def __getattr__(name: str):
    """`bures.models`, `bures.plot` and the like load when they are first used."""
    import importlib

    if name in ("datasets", "frontends", "models", "plot", "posteriordb", "reference", "support"):
        return importlib.import_module(f"bures.{name}")
    if name in ("numpyro", "pymc", "stan"):
        return importlib.import_module(f"bures.frontends.{name}")
    raise AttributeError(f"module 'bures' has no attribute {name!r}")
