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
from bures.centring import MOST_GROWTH, Conditioned, Parameters, free_coordinates
from bures.check import default_dtype
from bures.compiled import compiled
from bures.family import AbstractApproximation, Gaussian
from bures.learned_centring.run import LONGEST, Place, Run, Step, double, gain, push, regress
from bures.target import Target

_STEPS = 9  # of q and of the factors together
_MOST_CENTRED = 0.9999
_MOST_GROWN = 1.0  # of log λ, for a standard deviation of u
_LEAST_SHARE = 0.05  # of the precision of x, below which what λ does not matter


class Draws(NamedTuple):
    """Draws of q, and what the sites see there."""

    noise: Float[np.ndarray, "n dim"]
    x: Float[np.ndarray, "n elements"]  # the model's own
    moved: Float[np.ndarray, "n elements"]  # x̃
    free: Float[np.ndarray, "n free"]  # u, with its origin
    location: Float[np.ndarray, "n elements"]
    log_scale: Float[np.ndarray, "n elements"]


class Factors(NamedTuple):
    """λ, b, γ and β of each element of the sites of a model, whose coordinates are `elements`, about an `origin`."""

    model: Target
    elements: np.ndarray
    free: np.ndarray  # the other coordinates
    precision: Float[np.ndarray, " elements"]
    shift: Float[np.ndarray, " elements"]
    origin: Float[np.ndarray, " free"]
    growth: Float[np.ndarray, "elements free"]
    lean: Float[np.ndarray, "elements free"]

    @classmethod
    def none(cls, model: Target) -> "Factors":
        """None at all: non-centred."""
        elements = np.concatenate([np.arange(site.start, site.start + site.size) for site in model.sites])
        free = free_coordinates(model.sites, model.dim)
        some, slopes = np.zeros(elements.size), np.zeros((elements.size, free.size))
        return cls(model, elements, free, some, some, np.zeros(free.size), slopes, slopes)

    def change(self) -> Conditioned:
        numbers = (jax.device_put(part.astype(default_dtype())) for part in self[3:])
        return Conditioned(self.model.sites, *numbers)

    def degrees(self, log_scale: np.ndarray) -> np.ndarray:
        """Of centring: λ σ² / (1 + λ σ²)."""
        share = self.precision * np.exp(2 * log_scale)
        return share / (1 + share)

    def moments(self, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """m and s, as `Conditioned` has them."""
        u = draws.free - self.origin
        growth = np.exp(np.clip(u @ self.growth.T, -MOST_GROWTH, MOST_GROWTH))
        variance = growth * np.exp(2 * draws.log_scale)
        share = 1 + self.precision * variance
        shift = self.shift + u @ self.lean.T
        mean = draws.location + variance * (shift - self.precision * draws.location) / share
        return mean, np.exp(draws.log_scale) / np.sqrt(share)

    def look(self, q: AbstractApproximation, noise: np.ndarray) -> Draws:
        """Location and scale at draws, by a program of the sites alone."""
        z = q.push(noise)
        x, parameters = _restore(self.change(), z)
        moved, free = double(z)[:, self.elements], double(z)[:, self.free]
        return Draws(noise, double(x)[:, self.elements], moved, free, *map(double, parameters))

    def guess(self, q: AbstractApproximation, draws: Draws) -> "Factors":
        """From the precision of q in non-centred coordinates, of which the prior's share is 1, and its mean there."""
        scale, location = np.exp(draws.log_scale.mean(axis=0)), draws.location.mean(axis=0)
        precision = np.maximum(double(q.precision().diagonal())[self.elements] - 1, 0) / scale**2
        away = double(q.mean)[self.elements] * scale  # of x from its location
        shift = precision * location + away * (scale**-2 + precision)
        return self._replace(precision=precision, shift=shift, origin=draws.free.mean(axis=0))

    def improve(self, step: Step, draws: Draws, share: float) -> "Factors":
        """λ and b by a regression of g on all coordinates, λ in steps of some length; then how they depend on u."""
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
        better = self._replace(precision=precision, shift=self.shift + share * (shift - self.shift))
        return better.follow(draws, beyond, share)

    def follow(self, draws: Draws, beyond: np.ndarray, share: float) -> "Factors":
        """How g depends on u: γ from the products of u and x, β from u, in steps.

        g = exp(γᵀu) (b + βᵀu − λ x) = b − λ x + (β + γ b)ᵀu − λ γᵀu x + ..., with x and u about their means.
        """
        elements, free = self.growth.shape
        if 2 * (1 + elements + 2 * free) > len(draws.x) or not free:
            return self
        spread = draws.free.std(axis=0)
        u, x = (draws.free - draws.free.mean(axis=0)) / spread, draws.x - draws.x.mean(axis=0)
        curved = self._signal(*_products(u, x, beyond), x.std(axis=0))
        least = _LEAST_SHARE / np.mean(x**2, axis=0)
        growth = -curved * (self.precision / np.maximum(self.precision, least) ** 2)[:, None]
        along = _along(u, x, beyond) - growth * beyond.mean(axis=0)[:, None]
        growth = self.growth * spread + share * np.clip(growth - self.growth * spread, -LONGEST, LONGEST)
        lean = self.lean * spread + share * (along - self.lean * spread)
        origin = self.origin + share * (draws.free.mean(axis=0) - self.origin)
        growth = np.clip(growth, -_MOST_GROWN, _MOST_GROWN)
        return self._replace(growth=growth / spread, lean=lean / spread, origin=origin)

    def _signal(self, found: np.ndarray, noise: np.ndarray, widths: np.ndarray) -> np.ndarray:
        """What is found, less for each site and each of u the share of the squares that is noise."""
        sizes = [site.size for site in self.model.sites]
        starts = np.cumsum([0, *sizes[:-1]])
        whole, false = (np.add.reduceat(part * widths[:, None] ** 4, starts) for part in (found**2, noise))
        return found * np.repeat(np.clip(1 - false / np.maximum(whole, 1e-300), 0, 1), sizes, axis=0)

    def carry(self, q: Gaussian, moved: Gaussian, draws: Draws) -> Gaussian:
        """`moved` in the coordinates of these factors; the draws are of q, in others."""
        mean, width = self.moments(draws)
        return push(q, moved, self.elements, regress(draws.noise, (draws.x - mean) / width - draws.moved))


def _products(u: np.ndarray, x: np.ndarray, beyond: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes of g of each element along the products of its x and each of u, beyond all that is linear; their errors².

    **Arguments:** u in standard deviations, and x, both about their means; g.
    """
    (n, elements), free = x.shape, u.shape[1]
    linear = np.column_stack([np.ones(n), u, x / x.std(axis=0)])
    both = np.column_stack([beyond, (x[:, :, None] * u[:, None, :]).reshape(n, -1)])
    both = both - linear @ np.linalg.lstsq(linear, both, rcond=None)[0]
    rest, products = both[:, :elements], both[:, elements:].reshape(n, elements, free)
    inverse = np.linalg.pinv(np.einsum("nek,nel->ekl", products, products), rcond=1e-8, hermitian=True)
    found = np.einsum("ekl,nel,ne->ek", inverse, products, rest)
    rest = rest - np.einsum("nek,ek->ne", products, found)
    return found, np.einsum("ekk,e->ek", inverse, np.sum(rest**2, axis=0)) / (n - linear.shape[1] - free)


def _along(u: np.ndarray, x: np.ndarray, beyond: np.ndarray) -> np.ndarray:
    """Slopes of g of each element along u, its x as it is and all other elements as they then are."""
    linear = np.column_stack([np.ones(len(u)), u])
    both = np.column_stack([beyond, x])
    found = np.linalg.lstsq(linear, both, rcond=None)[0]
    rest_of_g, rest_of_x = np.split(both - linear @ found, 2, axis=1)
    slope = np.sum(rest_of_g * rest_of_x, axis=0) / np.sum(rest_of_x**2, axis=0)
    along = found[1:].T
    return along[: x.shape[1]] - slope[:, None] * along[x.shape[1] :]


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
