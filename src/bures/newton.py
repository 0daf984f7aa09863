"""The Laplace approximation: a mode by Newton's method with a line search, and the curvature there."""

from typing import Any

import numpy as np

from bures import linalg
from bures.arrays import to_device
from bures.check import check_floating, check_positive_integer, fail, is_traced
from bures.engine import Evaluator
from bures.family.gaussian import Gaussian
from bures.search import Summit, climb
from bures.target import as_target

_ARRIVED = 1e-14  # nats still to gain, in double precision
_DIFFERENCE = 1e-4  # standard deviations, for differences of scores
# Times so far out curvatures are compared, and by how much they may differ. A kink makes it 4, a fourth power 16.
_FURTHER, _ALIKE = 4, 3.0


def laplace(target: Any, *, init: Any = None, dim: int | None = None, max_iterations: int = 100) -> Gaussian:
    """The Gaussian N(mode, (−∇²log p(mode))⁻¹).

    Newton's method from `init` (a point, or a Gaussian whose mean is used; by default the target's initial point, or
    the origin). The curvature comes from differences of scores, so one derivative of the log density is enough; where
    it is not that of a maximum its sign is turned, so that every step goes uphill.

    Raises a ValueError that says why if no mode with negative definite curvature is found.

    >>> import jax.numpy as jnp
    >>> from bures import Target
    >>> target = Target(lambda z: -jnp.sum((z - 1) ** 2 * jnp.array([2.0, 0.5])), dim=2)
    >>> q = laplace(target)
    >>> q.mean.round(4).tolist(), q.covariance.round(4).tolist()
    ([1.0, 1.0], [[0.25, 0.0], [0.0, 1.0]])
    """
    target = as_target(target, dim)
    check_positive_integer("max_iterations", max_iterations, "It bounds the Newton steps, e.g. 100.")
    start = init.mean if isinstance(init, Gaussian) else target.start() if init is None else init
    start = check_floating("init", start, ndim=1)
    if start.size != target.dim:
        raise fail("init", f"a point of R^{target.dim}", start, "Match the target's dimension.")
    if is_traced(start, target):
        raise fail("laplace's arguments", "concrete", start, "It looks at values: call it outside jit and vmap.")
    evaluator = Evaluator(target, dtype=start.dtype)
    found = climb(
        evaluator.value_and_score,
        np.asarray(start)[None],
        rounds=max_iterations,
        arrived=_ARRIVED,
        difference=_DIFFERENCE,
    )
    if not found:
        raise fail("init", "a point of finite log density", start, "Start where the density is positive.")
    q = _as_mode(found[0], evaluator.dtype)
    _check_curvature(evaluator, q)
    return to_device(q)


def _check_curvature(evaluator: Evaluator, q: Gaussian) -> None:
    """The curvature is the same a little further out: at a kink it falls with the distance, on a flat top it rises."""
    shifts = _FURTHER * _DIFFERENCE * np.asarray(q.chol).T  # along each column of the factor, in its row
    _, scores = evaluator.value_and_score(np.concatenate([q.mean + shifts, q.mean - shifts]))
    falls = np.asarray(scores[q.dim :] - scores[: q.dim], np.float64) / (2 * _FURTHER * _DIFFERENCE)
    seen = np.sum(falls * np.asarray(q.chol).T, axis=1)  # in units of the curvature that was found
    if np.any((seen < 1 / _ALIKE) | (seen > _ALIKE)):
        raise ValueError(
            "laplace found a mode, but the curvature there is another at every distance at which it is looked at: the "
            "density has a kink or a flat top, and no Laplace approximation. Use bures.fit, or another init."
        )


def _as_mode(summit: Summit, dtype: Any) -> Gaussian:
    where = f"after {summit.rounds} Newton steps from init"
    if not summit.gain < 0.01:  # a line search may end earlier, at what rounding lets it see
        raise ValueError(
            f"laplace found no mode {where} (still {summit.gain:.3g} nats to gain). "
            "The density may have no maximum, or need another init."
        )
    if not summit.is_mode:
        raise ValueError(
            f"laplace reached a stationary point {where}, but the Hessian there is not negative definite: "
            "a flat direction, a saddle, or an improper density. Add a prior, or try another init."
        )
    chol = linalg.cholesky_of_square(summit.axes)
    return Gaussian.unchecked(summit.point.astype(dtype), chol.astype(dtype))
