"""The factors of `Conditioned` coordinates: what the data say about each element of the sites, as a Gaussian.

With g the score of an element x beyond its prior's, that of the data and of later sites, λ = −E[∂g/∂x] and
b = E[g] + λ E[x]. Both come from the scores that the steps of a Gaussian make anyway, by a regression on the draws.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures import linalg
from bures.centring import Conditioned, Parameters
from bures.check import default_dtype
from bures.compiled import compiled
from bures.family import AbstractApproximation, Gaussian
from bures.learned_centring.run import LONGEST, Place, Run, Step, double, gain, push, regress
from bures.target import Target

_STEPS = 9  # of q and of the factors together
_MOST_CENTRED = 0.9999


class Draws(NamedTuple):
    """Draws of q, and what the sites see there."""

    noise: Float[np.ndarray, "n dim"]
    x: Float[np.ndarray, "n elements"]  # the model's own
    moved: Float[np.ndarray, "n elements"]  # x̃
    location: Float[np.ndarray, "n elements"]
    log_scale: Float[np.ndarray, "n elements"]


class Factors(NamedTuple):
    """λ and b of each element of the sites of a model, whose coordinates are `elements`."""

    model: Target
    elements: np.ndarray
    precision: Float[np.ndarray, " elements"]
    shift: Float[np.ndarray, " elements"]

    @classmethod
    def none(cls, model: Target) -> "Factors":
        """None at all: non-centred."""
        elements = np.concatenate([np.arange(site.start, site.start + site.size) for site in model.sites])
        return cls(model, elements, np.zeros(elements.size), np.zeros(elements.size))

    def change(self) -> Conditioned:
        numbers = (jax.device_put(part.astype(default_dtype())) for part in (self.precision, self.shift))
        return Conditioned(self.model.sites, *numbers)

    def degrees(self, log_scale: np.ndarray) -> np.ndarray:
        """Of centring: λ σ² / (1 + λ σ²)."""
        share = self.precision * np.exp(2 * log_scale)
        return share / (1 + share)

    def moments(self, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """m and s, as `Conditioned` has them."""
        variance = np.exp(2 * draws.log_scale)
        share = 1 + self.precision * variance
        mean = draws.location + variance * (self.shift - self.precision * draws.location) / share
        return mean, np.sqrt(variance / share)

    def look(self, q: AbstractApproximation, noise: np.ndarray) -> Draws:
        """Location and scale at draws, by a program of the sites alone."""
        z = q.push(noise)
        x, parameters = _restore(self.change(), z)
        return Draws(noise, double(x)[:, self.elements], double(z)[:, self.elements], *map(double, parameters))

    def guess(self, q: AbstractApproximation, draws: Draws) -> "Factors":
        """From the precision of q in non-centred coordinates, of which the prior's share is 1, and its mean there."""
        scale, location = np.exp(draws.log_scale.mean(axis=0)), draws.location.mean(axis=0)
        precision = np.maximum(double(q.precision().diagonal())[self.elements] - 1, 0) / scale**2
        away = double(q.mean)[self.elements] * scale  # of x from its location
        return self._replace(precision=precision, shift=precision * location + away * (scale**-2 + precision))

    def improve(self, step: Step, draws: Draws, share: float) -> "Factors":
        """λ and b by a regression of g on all coordinates, λ in steps of some length."""
        q, field = step.before, step.field
        _, width = self.moments(draws)
        score = (field.score - q.precision_times_noise(field.noise))[:, self.elements]  # of log p̃, not of the weight
        beyond = score / width + (draws.x - draws.location) * np.exp(-2 * draws.log_scale)
        slopes = regress(draws.noise, beyond)[1:].T @ linalg.inverse_lower(q.chol)
        slope = slopes[np.arange(len(self.elements)), self.elements] / np.exp(np.log(width).mean(axis=0))
        log_scale = draws.log_scale.mean(axis=0)
        old, new = self.degrees(log_scale), self._replace(precision=np.maximum(-slope, 0)).degrees(log_scale)
        degrees = np.clip(old + share * np.clip(new - old, -LONGEST, LONGEST), 0, _MOST_CENTRED)
        precision = degrees / (1 - degrees) * np.exp(-2 * log_scale)
        shift = beyond.mean(axis=0) + precision * draws.x.mean(axis=0)
        return self._replace(precision=precision, shift=self.shift + share * (shift - self.shift))

    def carry(self, q: Gaussian, moved: Gaussian, draws: Draws) -> Gaussian:
        """`moved` in the coordinates of these factors; the draws are of q, in others."""
        mean, width = self.moments(draws)
        return push(q, moved, self.elements, regress(draws.noise, (draws.x - mean) / width - draws.moved))


@compiled
def _restore(change: Conditioned, z: Any) -> tuple[Array, Parameters]:
    x, _, parameters = jax.vmap(change.restore_with_parameters)(jnp.asarray(z))
    return x, parameters


@compiled
def _apply(change: Conditioned, x: Any) -> Array:
    return jax.vmap(change.apply)(jnp.asarray(x))


def learn_factors(run: Run, factors: Factors, q: Gaussian) -> tuple[Factors, Gaussian, Draws]:
    """Steps of q and of the factors together, after a first guess."""
    draws = factors.look(q, run.noise(q.dim))
    guessed = factors.guess(q, draws)
    place, factors = run.start(guessed.carry(q, q, draws)), guessed
    run.use(factors.change())
    for number in range(_STEPS):
        step = run.step(place)
        if step is None:
            break
        draws = factors.look(step.before, step.field.noise)
        factors = factors.improve(step, draws, gain(number))
        place = Place(factors.carry(step.before, step.after.q, draws), step.after.memory)
        run.use(factors.change())
    return factors, place.q, draws


def carry_start(run: Run, factors: Factors, start: Gaussian) -> Gaussian:
    """A Gaussian near the model's own density, in the coordinates of factors."""
    noise = run.noise(start.dim)
    z = start.push(noise)
    after = double(_apply(factors.change(), z))
    finite = np.all(np.isfinite(after), axis=1)
    q = push(start, start, np.arange(start.dim), regress(noise[finite], (after - z)[finite]))
    return jax.tree.map(lambda part: np.asarray(part, run.evaluator.dtype), q)
