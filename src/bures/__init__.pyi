# The public names, listed once: type checkers and editors read this file, and __init__.py finds each name by it.
# `from package import module` for modules, `from module import name` for the rest.

from bures import (
    centring as centring,
    datasets as datasets,
    diagnostics as diagnostics,
    distributed as distributed,
    estimator as estimator,
    export as export,
    frontends as frontends,
    geometry as geometry,
    looking as looking,
    models as models,
    objective as objective,
    plot as plot,
    posteriordb as posteriordb,
    reference as reference,
    support as support,
    target as target,
)
from bures.centring import recentre as recentre
from bures.diagnostics import Diagnostics as Diagnostics
from bures.estimator import (
    Price as Price,
    Reparameterised as Reparameterised,
    Stein as Stein,
    bw_gradient as bw_gradient,
    wasserstein_gradient as wasserstein_gradient,
)
from bures.family import (
    FullRank as FullRank,
    Gaussian as Gaussian,
    GaussianMixture as GaussianMixture,
    LowRank as LowRank,
    LowRankGaussian as LowRankGaussian,
    MeanField as MeanField,
    Mixture as Mixture,
)
from bures.field import Estimate as Estimate, Field as Field
from bures.fitting import Fit as Fit, fit as fit
from bures.frontends import numpyro as numpyro, pymc as pymc, stan as stan
from bures.geometry import (
    BuresWasserstein as BuresWasserstein,
    Euclidean as Euclidean,
    ForwardBackward as ForwardBackward,
    Whitened as Whitened,
)
from bures.ladder import sample as sample
from bures.learned_centring import Centring as Centring, learn_centring as learn_centring
from bures.loop import Info as Info, State as State, init as init, step as step
from bures.many import Fits as Fits, fit_many as fit_many
from bures.mesh import shard_rows as shard_rows
from bures.newton import laplace as laplace
from bures.objective import ELBO as ELBO, IWELBO as IWELBO, VRIWAE as VRIWAE
from bures.outcome import Outcome as Outcome
from bures.prediction import predict as predict
from bures.rows import Parquet as Parquet
from bures.signal_to_noise import SNR as SNR, snr as snr, snr_slope as snr_slope
from bures.storage import load as load
from bures.target import Target as Target

__version__: str
