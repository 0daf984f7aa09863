"""What `fit` chooses when it is not told."""

import functools
import math

from bures.engine import FEW_POINTS, LIGHT, MANY, default_draws
from bures.estimator import AbstractEstimator, Stein
from bures.family import AbstractApproximation, AbstractFamily, FullRank, LowRank, family_of
from bures.geometry import Whitened
from bures.loop import Method, Methods
from bures.objective import ELBO, IWELBO, VRIWAE, AbstractObjective
from bures.rows.stream import takes_batches
from bures.start import Start
from bures.target import Target

FULL_RANK_DIM = 400  # up to which full Gaussians are the default
_WITH_BATCHES = 0.01  # nats of tolerance, at the most
_DRAWS_PER_DIMENSION = 2  # at a step, in many dimensions
_FEW_DRAWS = 100  # at a step, from a start that is nearly exact
_LATE = 4  # times the draws, at a late step
_LATE_FROM, _LATE_FROM_HEAVY = 8, 64  # the first late step; the second where draws are what a step's time goes to
_K, _IW_DIM = 10, 10  # draws in a tuple by default, and the dimension up to which their weights are used as they are

# Parts that many fits ask for are made, and checked, once.
_made_once = functools.lru_cache(maxsize=64)
_elbo, _iwelbo, _vriwae, _stein = _made_once(ELBO), _made_once(IWELBO), _made_once(VRIWAE), _made_once(Stein)
default_geometry = _made_once(Whitened)


def default_family(
    target: Target, init: AbstractApproximation | None = None, start: Start | None = None
) -> AbstractFamily:
    """That of `init`; else full Gaussians up to 400 dimensions, and low-rank ones beyond.

    A step of a full Gaussian takes 2 d to 10 d draws, because it tells d × d numbers from noise, and work of order d³:
    about 0.05 seconds at d = 400. One of a low-rank Gaussian takes 100 to 200 draws in any dimension. So between 100
    and 400 dimensions a `start` that is nearly right already, and whose curvature says that a low-rank Gaussian would
    leave out less than the fit's tolerance, is followed by low-rank steps.

    >>> default_family(Target(lambda z: -z @ z, dim=3)), default_family(Target(lambda z: -z @ z, dim=1000))
    (FullRank(), LowRank())
    """
    if init is not None:
        return family_of(init)
    if target.dim > FULL_RANK_DIM:
        return LowRank()
    enough = start is not None and start.left_out < default_tolerance(target)
    return LowRank() if enough and target.dim > MANY else FullRank()


def default_objective(target: Target, family: AbstractFamily | None = None) -> AbstractObjective:
    """The IW-ELBO of ten draws; in d > 10 dimensions, where weights degenerate, tempered: 1 − α = (10 / d)^(4/3).

    The power is empirical: on the Census with d = 96, 10 / d leaves the ELBO half a nat lower. Beyond 100 dimensions,
    and for families that cannot follow all of the target's correlations, weights tell little, and the ELBO is the
    default.

    >>> default_objective(Target(lambda z: -z @ z, dim=3)), default_objective(Target(lambda z: -z @ z, dim=80))
    (IWELBO(K=10, alpha=0.0), VRIWAE(K=10, alpha=0.9375))
    """
    if target.dim > MANY or (family is not None and not isinstance(family, FullRank)):
        return _elbo()
    return _iwelbo(_K) if target.dim <= _IW_DIM else _vriwae(_K, 1 - (_IW_DIM / target.dim) ** (4 / 3))


def default_estimator(
    target: Target,
    objective: AbstractObjective,
    variance: float = math.inf,
    family: AbstractFamily | None = None,
    columns: int = 0,
) -> AbstractEstimator:
    """Gradients alone, from enough antithetic draws, in several blockings, to tell d × d numbers from noise.

    For mean field and low rank, which fit the field of an ELBO by least squares, 100 independent draws are enough, or
    three for each column.

    Where the log weights of the start have so small a `variance` that a gradient has hardly any noise, few draws do.

    Hessians did not pay in any trial: near a Gaussian both ways are free of noise at the optimum, and far from one the
    Hessians of a few draws, weighted, are noisier than Stein's lemma; see the page on choosing a method.
    """
    if family is not None and not isinstance(family, FullRank) and objective.K == 1:
        return _stein(M=max(FEW_POINTS, 3 * columns))
    if target.dim > MANY:
        return _stein(M=math.ceil(_DRAWS_PER_DIMENSION * target.dim / min(objective.K, _K)), draws="antithetic")
    # By Stein's lemma the noise of S is about d times the variance over the number of draws.
    draws = max(_FEW_DRAWS, 10 * target.dim) if target.dim * variance < 1 else default_draws(target.dim)
    M = math.ceil(draws / min(objective.K, _K))  # larger tuples are not fewer
    return _stein(M=M, draws="antithetic", permutations=min(8, M) if objective.K > 1 else 1)


def default_tolerance(target: Target) -> float:
    """0.005 nats; in more than ten dimensions, 0.001 for each of them, but 0.01 at the most with batches of rows.

    Their steps cost little beside the passes over all rows.
    """
    if target.dim <= _IW_DIM:
        return 0.005
    return min(0.001 * target.dim, _WITH_BATCHES if takes_batches(target) else math.inf)


def default_methods(method: Method, target: Target) -> Methods:
    """A method, and its late steps on the host: four times the tuples, up to 100 dimensions.

    By then it is noise that a fit is waiting to average away, and most of a short step's time is not the target's: few
    long steps do it sooner than many short ones.
    """
    if not isinstance(method.estimator, Stein) or target.dim > MANY:
        return Methods(method, method)
    early = method.estimator
    estimator = _stein(_LATE * early.M, early.indices, early.draws, early.permutations)
    late = Method(method.objective, estimator, method.geometry)
    return Methods(method, late, _LATE_FROM if target.width <= LIGHT else _LATE_FROM_HEAVY)
