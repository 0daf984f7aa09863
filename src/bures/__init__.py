"""Gaussian variational inference on Bures–Wasserstein space, with importance-weighted objectives."""

import importlib
from typing import TYPE_CHECKING

# `import bures` loads nothing: each name is fetched from its module at first use (PEP 562). So no public function may
# be called like a module of the package, which Python would put in its place; a name that ends its path is the module.
_HOMES = {
    "Diagnostics": "diagnostics",
    "Estimate": "estimator",
    "Price": "estimator",
    "Reparameterised": "estimator",
    "Stein": "estimator",
    "bw_gradient": "estimator",
    "wasserstein_gradient": "estimator",
    "Fit": "fitting",
    "fit": "fitting",
    "Gaussian": "gaussian",
    "BuresWasserstein": "geometry",
    "Euclidean": "geometry",
    "ForwardBackward": "geometry",
    "Whitened": "geometry",
    "Info": "loop",
    "State": "loop",
    "init": "loop",
    "step": "loop",
    "laplace": "newton",
    "ELBO": "objective",
    "IWELBO": "objective",
    "VRIWAE": "objective",
    "Outcome": "outcome",
    "SNR": "signal_to_noise",
    "snr": "signal_to_noise",
    "snr_slope": "signal_to_noise",
    "load": "storage",
    "Target": "target",
    "datasets": "datasets",
    "diagnostics": "diagnostics",
    "estimator": "estimator",
    "export": "export",
    "frontends": "frontends",
    "geometry": "geometry",
    "models": "models",
    "objective": "objective",
    "plot": "plot",
    "posteriordb": "posteriordb",
    "reference": "reference",
    "support": "support",
    "target": "target",
    "numpyro": "frontends.numpyro",
    "pymc": "frontends.pymc",
    "stan": "frontends.stan",
}

if TYPE_CHECKING:  # the same table for type checkers and editors
    from bures import (
        datasets as datasets,
        diagnostics as diagnostics,
        estimator as estimator,
        export as export,
        frontends as frontends,
        geometry as geometry,
        models as models,
        objective as objective,
        plot as plot,
        posteriordb as posteriordb,
        reference as reference,
        support as support,
        target as target,
    )
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
    from bures.frontends import numpyro as numpyro, pymc as pymc, stan as stan
    from bures.gaussian import Gaussian as Gaussian
    from bures.geometry import (
        BuresWasserstein as BuresWasserstein,
        Euclidean as Euclidean,
        ForwardBackward as ForwardBackward,
        Whitened as Whitened,
    )
    from bures.loop import Info as Info, State as State, init as init, step as step
    from bures.newton import laplace as laplace
    from bures.objective import ELBO as ELBO, IWELBO as IWELBO, VRIWAE as VRIWAE
    from bures.outcome import Outcome as Outcome
    from bures.signal_to_noise import SNR as SNR, snr as snr, snr_slope as snr_slope
    from bures.storage import load as load
    from bures.target import Target as Target
else:  # a type checker that sees `__getattr__` takes every misspelt name for a public one
    __all__ = [name for name, home in _HOMES.items() if home.split(".")[-1] != name]

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'bures' has no attribute {name!r}")
        module = importlib.import_module(f"bures.{_HOMES[name]}")
        globals()[name] = value = getattr(module, name) if name in __all__ else module
        return value

    def __dir__():
        return sorted({*globals(), *_HOMES})
