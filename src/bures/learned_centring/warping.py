"""The numbers of a `Warp`: what skewness and tails of single coordinates are left, mostly those of scales.

Changing a number by δ is the same as moving q along a field v by δ, so that the gradient of a bound is E[A s v], with
the weighted scores A s that a step of q makes anyway.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from bures import linalg
from bures.centring import Warp
from bures.check import default_dtype
from bures.family import Gaussian
from bures.learned_centring.run import LONGEST, Place, Run, Step, double, gain

_STEPS = 8  # of q and of the warp together
_MOST_SKEWED, _TAILS = 1.5, (0.5, 2.0)
_LEAST_CURVATURE = 1e-3


class Warping(NamedTuple):
    """A warp whose numbers are being learned: `shape` has a row of skewness, and one of tails."""

    centre: Float[np.ndarray, " dim"]
    scale: Float[np.ndarray, " dim"]
    shape: Float[np.ndarray, "2 dim"]

    @classmethod
    def none(cls, q: Gaussian) -> "Warping":
        """No warp yet, about where q is."""
        return cls(double(q.mean), _widths(q), np.stack([np.zeros(q.dim), np.ones(q.dim)]))

    def change(self) -> Warp:
        numbers = (self.centre, self.scale, *self.shape)
        return Warp(*(jax.device_put(part.astype(default_dtype())) for part in numbers))

    def moved(self, step: Float[np.ndarray, "2 dim"]) -> "Warping":
        skewness, tail = self.shape + step
        return self._replace(shape=np.stack([np.clip(skewness, -_MOST_SKEWED, _MOST_SKEWED), np.clip(tail, *_TAILS)]))

    def shift(self, new: "Warping", z: np.ndarray) -> np.ndarray:
        """By how much points move when the numbers change and the model's own coordinates do not."""
        inner = self.shape[1] * np.arcsinh((z - self.centre) / self.scale) + self.shape[0]
        return self.centre + self.scale * np.sinh((inner - new.shape[0]) / new.shape[1]) - z

    def fields(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """v and its slope, (2, n, dim), of the skewness and of the tail: (∂x/∂e) / (∂x/∂z), and so for t."""
        u = (z - self.centre) / self.scale
        root, angle = np.sqrt(1 + u**2), np.arcsinh(u)
        v = np.stack([root, angle * root]) * self.scale / self.shape[1]
        return v, np.stack([u / root, 1 + angle * u / root]) / self.shape[1]

    def improve(self, step: Step, z: np.ndarray, share: float) -> "Warping":
        """A step along the gradient of the bound, divided by its curvature where q is exact.

        What of v is affine, q can do itself: the rest r counts. The curvature is the expected square of the change of
        log p̃, h = r' − r p with p = Σ⁻¹ (z − m), beyond quadratic terms. The part of p that is not of the coordinate
        itself is independent of r.
        """
        q, field, width = step.before, step.field, _widths(step.before)
        g = (z - q.mean) / width
        v, slope = self.fields(z)
        basis = np.stack([np.ones_like(g), g, g**2], axis=-1)
        affine = _coefficients(basis[..., :2], v)
        rest = v - np.einsum("nda,dak->knd", basis[..., :2], affine)
        gradient = np.einsum("n,knd,nd->dk", field.weight / field.mean_A, rest, field.score)
        change = slope - (affine[:, 1] / width[:, None]).T[:, None] - rest * g / width
        change -= np.einsum("nda,dak->knd", basis, _coefficients(basis, change))
        others = np.maximum(double(q.precision().diagonal()) - width**-2.0, 0)
        curvature = np.einsum("knd,lnd->dkl", change, change) + np.einsum("knd,lnd,d->dkl", rest, rest, others)
        curvature = curvature / len(z) + _LEAST_CURVATURE * np.eye(2)
        found = np.linalg.solve(curvature, gradient[..., None])[..., 0].T
        return self.moved(share * np.clip(np.nan_to_num(found), -LONGEST, LONGEST))


def learn_warp(run: Run, warping: Warping, q: Gaussian) -> tuple[Warping, Gaussian]:
    """Steps of q and of the warp together."""
    place = run.start(q)
    for number in range(_STEPS):
        step = run.step(place)
        if step is None:
            break
        z = double(step.before.push(step.field.noise))
        new = warping.improve(step, z, gain(number))
        place = Place(_push_apart(step.after.q, z, warping.shift(new, z)), step.after.memory)
        warping = new
        run.use(warping.change())
    return warping, place.q


def _widths(q: Gaussian) -> np.ndarray:
    return np.linalg.norm(double(q.chol), axis=1)


def _coefficients(basis: Float[np.ndarray, "n dim a"], values: Float[np.ndarray, "k n dim"]) -> np.ndarray:
    """Of least squares for each coordinate, (dim, a, k)."""
    gram = np.einsum("nda,ndb->dab", basis, basis)
    return np.linalg.solve(gram, np.einsum("nda,knd->dak", basis, values))


def _push_apart(q: Gaussian, z: np.ndarray, shift: np.ndarray) -> Gaussian:
    """q with each coordinate shifted by the nearest affine function of itself, as points near it tell."""
    centred = z - z.mean(axis=0)
    slope = np.mean(centred * shift, axis=0) / np.mean(centred**2, axis=0)
    mean = q.mean + shift.mean(axis=0) + slope * (q.mean - z.mean(axis=0))
    chol = linalg.cholesky_of_square((1 + slope)[:, None] * q.chol)
    return Gaussian.unchecked(mean.astype(q.mean.dtype), chol.astype(q.mean.dtype))
