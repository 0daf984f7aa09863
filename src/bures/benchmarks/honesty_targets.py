"""The targets of `bench honesty`: traps of known mass, and harmless ones, each with exact draws.

A case is made when it is run. Names never change their meaning: `half` splits the list by them, into one half to tune
constants on and one to judge by.
"""

import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp

LOG_2PI = math.log(2 * math.pi)
Draw = Callable[[np.random.Generator, int], np.ndarray]


class Case(NamedTuple):
    """A target: its density, exact draws, and what a verdict about a fit of it may say."""

    density: Any  # an eqx.Module with NumPy arrays
    dim: int
    draw: Draw
    log_z: float = 0.0  # of the density
    modes: int = 1  # 0: a continuum, as of a ring
    heavy: bool = False  # no second moments, or hardly: medians and quartiles in their place
    single: bool = False  # run in float32


class Listed(NamedTuple):
    family: str
    harmless: bool
    make: Callable[[], Case]


def half(name: str) -> str:
    """`dev` or `judge`, by the name alone, so that a new case moves no other; float32 goes with its float64."""
    return ("dev", "judge")[zlib.crc32(name.removesuffix(", float32").encode()) % 2]


def _rng(*words: Any) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(words).encode()))


def _direction(dim: int, *words: Any) -> np.ndarray:
    vector = _rng("direction", dim, *words).standard_normal(dim)
    return vector / np.linalg.norm(vector)


# ---- Mixtures -------------------------------------------------------------------------------------------------------


class Mixture(eqx.Module):
    """Σ w_k N(mean_k, diag(deviation_k²))."""

    log_weights: Any
    means: Any
    deviations: Any

    def __call__(self, z):
        squares = jnp.sum(((z - self.means) / self.deviations) ** 2, axis=1)
        scales = jnp.sum(jnp.log(self.deviations), axis=1) + z.size * LOG_2PI / 2
        return jax.nn.logsumexp(self.log_weights - squares / 2 - scales)


def _mixture(weights: Any, means: Any, deviations: Any, modes: int | None = None) -> Case:
    weights, means = np.asarray(weights, float), np.asarray(means, float)
    weights = weights / weights.sum()
    deviations = np.broadcast_to(np.asarray(deviations, float), means.shape).copy()

    def draw(rng, n):
        k = rng.choice(weights.size, n, p=weights)
        return means[k] + deviations[k] * rng.standard_normal((n, means.shape[1]))

    density = Mixture(np.log(weights), means, deviations)
    return Case(density, means.shape[1], draw, modes=weights.size if modes is None else modes)


def _two(dim: int, apart: float, light: float, place: str, ratio: float = 1.0) -> Case:
    """Two modes `apart` standard deviations of the heavier one; the other has weight `light` and is `ratio` as wide."""
    along = _direction(dim, apart, light, place)
    across = _direction(dim, apart, light, place, "across")
    across -= along * (across @ along) if dim > 1 else 0
    means = np.stack([np.zeros(dim), apart * along])
    shift = {"heavy": 0, "light": means[1], "between": means[1] / 2, "elsewhere": apart * along / 3 + 7 * across}
    return _mixture([1 - light, light], means - shift[place], np.array([[1.0], [ratio]]))


def _several(dim: int, apart: float, weights: tuple[float, ...], origin: bool) -> Case:
    """Modes on a line or, from two dimensions on, about a sphere, neighbours at least `apart`."""
    count, rng = len(weights), _rng(dim, apart, weights)
    if dim == 1:
        means = apart * np.arange(count)[:, None] * 1.0
    else:
        angles = 2 * np.pi * np.arange(count) / count
        plane = np.linalg.qr(rng.standard_normal((dim, 2)))[0]
        means = apart / (2 * math.sin(math.pi / count)) * np.stack([np.cos(angles), np.sin(angles)], 1) @ plane.T
    return _mixture(weights, means - means[0] if origin else means, rng.uniform(0.5, 1.5, (count, 1)))


TWO = (  # dimension, distance, weight of the lighter one, where the origin is, width of the lighter one
    *((1, 5, 0.5, "heavy", 1), (1, 10, 0.1, "heavy", 1), (1, 20, 0.3, "between", 1), (1, 30, 0.1, "light", 1)),
    *((1, 50, 0.5, "elsewhere", 1), (1, 50, 0.03, "heavy", 1), (1, 12, 0.2, "heavy", 0.1), (1, 30, 0.4, "light", 3)),
    *((2, 5, 0.3, "light", 1), (2, 8, 0.1, "heavy", 1), (2, 15, 0.5, "between", 1), (2, 30, 0.1, "heavy", 1)),
    *((2, 30, 0.1, "light", 1), (2, 50, 0.5, "elsewhere", 1), (2, 10, 0.3, "heavy", 0.1), (2, 20, 0.5, "light", 4)),
    *((5, 6, 0.5, "heavy", 1), (5, 10, 0.05, "heavy", 1), (5, 20, 0.3, "light", 1), (5, 30, 0.1, "between", 1)),
    *((5, 50, 0.5, "heavy", 1), (5, 15, 0.4, "elsewhere", 0.3), (10, 7, 0.5, "between", 1), (10, 10, 0.1, "heavy", 1)),
    *((10, 20, 0.5, "light", 1), (10, 30, 0.03, "heavy", 1), (10, 50, 0.3, "elsewhere", 1), (20, 8, 0.5, "heavy", 1)),
    *((20, 15, 0.3, "between", 1), (20, 30, 0.5, "light", 1), (20, 50, 0.1, "heavy", 1), (20, 12, 0.01, "light", 1)),
)
SEVERAL = (  # dimension, distance, weights, whether the origin is at the first mode
    *((1, 10, (0.5, 0.3, 0.2), True), (1, 20, (0.01, 0.49, 0.3, 0.2), True), (2, 8, (1, 1, 1), False)),
    *((2, 15, (0.1, 0.3, 0.6), True), (2, 25, (1, 1, 1, 1, 1), False), (5, 10, (0.6, 0.2, 0.2), True)),
    *((5, 30, (0.5, 0.3, 0.1, 0.05, 0.05), False), (10, 12, (1, 1, 1, 1), False), (10, 25, (0.2, 0.8, 0.1), True)),
    *((20, 15, (1, 1, 1), False), (20, 30, (0.7, 0.1, 0.1, 0.1), True)),
)


def _modes(two: tuple = TWO, several: tuple = SEVERAL) -> dict[str, Listed]:
    listed = {}
    for dim, apart, light, place, ratio in two:
        wide = "" if ratio == 1 else f", width {ratio}"
        name = f"two modes, d = {dim}, {apart} sd apart, {light} light, origin {place}{wide}"
        listed[name] = Listed("modes", False, lambda a=(dim, apart, light, place, ratio): _two(*a))
    for dim, apart, weights, origin in several:
        name = f"{len(weights)} modes, d = {dim}, {apart} sd apart, weights {'/'.join(map(str, weights))}"
        listed[name] = Listed("modes", False, lambda a=(dim, apart, weights, origin): _several(*a))
    return listed


# ---- Spike and slab -------------------------------------------------------------------------------------------------

SPIKES = (  # dimension, deviation and weight of the spike, its place in deviations of the slab
    *((1, 0.01, 0.05, 0), (1, 0.01, 0.5, 0), (1, 0.1, 0.95, 0), (1, 0.03, 0.3, 2), (1, 0.01, 0.7, 3)),
    *((2, 0.01, 0.05, 0), (2, 0.03, 0.5, 0), (2, 0.1, 0.7, 0), (2, 0.01, 0.95, 1), (2, 0.03, 0.3, 3)),
    *((5, 0.01, 0.5, 0), (5, 0.1, 0.05, 0), (5, 0.1, 0.5, 0), (5, 0.03, 0.95, 0), (5, 0.1, 0.3, 2)),
)


def _spikes() -> dict[str, Listed]:
    def make(dim, deviation, weight, place):
        means = np.stack([np.zeros(dim), place * _direction(dim, deviation, weight)])
        return _mixture([1 - weight, weight], means, np.array([[1.0], [deviation]]), modes=2)

    return {
        f"spike, d = {dim}, sd {sd}, weight {weight}, at {place}": Listed(
            "spike and slab", False, lambda a=(dim, sd, weight, place): make(*a)
        )
        for dim, sd, weight, place in SPIKES
    }


# ---- Rings ----------------------------------------------------------------------------------------------------------


class Ring(eqx.Module):
    """exp(−(‖z − centre‖ − radius)² / 2 width²)."""

    centre: Any
    radius: Any
    width: Any

    def __call__(self, z):
        distance = jnp.sqrt(jnp.sum((z - self.centre) ** 2) + 1e-12)
        return -(((distance - self.radius) / self.width) ** 2) / 2


RINGS = (  # dimension, radius, width, whether the origin is on the ring
    *((2, 3, 0.3, False), (2, 5, 0.1, False), (2, 5, 0.5, True), (2, 10, 0.5, True), (2, 20, 0.2, False)),
    *((3, 3, 0.3, False), (3, 5, 0.1, True), (3, 10, 1.0, False), (3, 10, 0.5, True)),
)


def _ring(dim: int, radius: float, width: float, on: bool) -> Case:
    centre = radius * _direction(dim, radius, width) if on else np.zeros(dim)
    grid = np.linspace(max(0, radius - 10 * width), radius + 10 * width, 20_001)
    mass = grid ** (dim - 1) * np.exp(-(((grid - radius) / width) ** 2) / 2)
    total = mass.sum() * (grid[1] - grid[0]) * 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)

    def draw(rng, n):
        distance = np.interp(rng.random(n), np.cumsum(mass) / mass.sum(), grid)
        direction = rng.standard_normal((n, dim))
        return centre + distance[:, None] * direction / np.linalg.norm(direction, axis=1, keepdims=True)

    return Case(Ring(centre, np.array(radius, float), np.array(width)), dim, draw, math.log(total), modes=0)


def _rings() -> dict[str, Listed]:
    return {
        f"ring, d = {dim}, radius {radius}, width {width}, origin {'on it' if on else 'its centre'}": Listed(
            "rings", False, lambda a=(dim, radius, width, on): _ring(*a)
        )
        for dim, radius, width, on in RINGS
    }


# ---- Reference draws by importance sampling -------------------------------------------------------------------------


class Reference:
    """Draws of a density that has none: t-distributions about its modes, resampled by weights that are checked."""

    def __init__(self, log_prob: Callable[[np.ndarray], np.ndarray], starts: np.ndarray, num_draws: int = 100_000):
        rng, df, dim = np.random.default_rng(0), 7, starts.shape[1]
        centres = _maxima(log_prob, starts)
        chols = [np.linalg.cholesky(np.linalg.inv(_curvature(log_prob, centre)) * 1.1) for centre in centres]
        k = rng.integers(0, len(centres), num_draws)
        noise = rng.standard_normal((num_draws, dim)) / np.sqrt(rng.chisquare(df, (num_draws, 1)) / df)
        z = np.stack(centres)[k] + np.einsum("nij,nj->ni", np.stack(chols)[k], noise)
        logs = []
        for centre, chol in zip(centres, chols, strict=True):
            squares = np.sum(np.linalg.solve(chol, (z - centre).T) ** 2, axis=0)
            constant = gammaln((df + dim) / 2) - gammaln(df / 2) - dim * math.log(df * math.pi) / 2
            logs.append(constant - np.log(np.diagonal(chol)).sum() - (df + dim) / 2 * np.log1p(squares / df))
        weights = log_prob(z) - logsumexp(logs, axis=0) + math.log(len(centres))
        self.z, self.modes = z, len(centres)
        self.log_z = float(logsumexp(weights) - math.log(num_draws))
        self.shares = np.exp(weights - logsumexp(weights))
        self.ness = float(1 / (num_draws * np.sum(self.shares**2)))
        if self.ness < 0.1:
            raise RuntimeError(f"The reference draws are poor: nESS {self.ness:.3f}.")

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return self.z[rng.choice(len(self.z), n, p=self.shares)]


def _maxima(log_prob: Callable[[np.ndarray], np.ndarray], starts: np.ndarray) -> list[np.ndarray]:
    """The different local maxima from several starts, those of negligible mass left out by their height."""
    ends = [minimize(lambda x: -log_prob(x[None])[0], start, method="BFGS").x for start in starts]
    heights = log_prob(np.stack(ends))
    found: list[np.ndarray] = []
    for i in np.argsort(-heights):
        new = all(np.linalg.norm(ends[i] - other) > 1e-2 * (1 + np.linalg.norm(other)) for other in found)
        if new and heights[i] > heights.max() - 15 and np.linalg.eigvalsh(_curvature(log_prob, ends[i]))[0] > 0:
            found.append(ends[i])
    return found


def _curvature(log_prob: Callable[[np.ndarray], np.ndarray], z: np.ndarray, h: float = 1e-4) -> np.ndarray:
    """−∇² log p by central differences."""
    steps = h * np.eye(z.size)
    signs = ((1, 1), (1, -1), (-1, 1), (-1, -1))
    points = np.stack([z + s * a + t * b for a in steps for b in steps for s, t in signs])
    values = log_prob(points).reshape(z.size, z.size, 4) @ np.array([1, -1, -1, 1])
    return -values / (4 * h * h)


# ---- Label switching ------------------------------------------------------------------------------------------------


class Labels(eqx.Module):
    """y ~ w N(μ₁, σ₁) + (1 − w) N(μ₂, σ₂), μ ~ N(0, 5), logit w logistic, log σ ~ N(0, 0.5): nothing tells 1 from 2.

    `known` deviations are one in three dimensions, a common unknown one in four, two in five.
    """

    y: Any

    def __call__(self, z):
        first, second = z[0], z[1]
        log_sigma = z[3:] if z.size > 3 else jnp.zeros(1, z.dtype)
        deviations = jnp.broadcast_to(log_sigma, (2,))
        one = -jnp.logaddexp(0, -z[2]) - ((self.y - first) * jnp.exp(-deviations[0])) ** 2 / 2 - deviations[0]
        two = -jnp.logaddexp(0, z[2]) - ((self.y - second) * jnp.exp(-deviations[1])) ** 2 / 2 - deviations[1]
        prior = -(first**2 + second**2) / 50 - jnp.logaddexp(0, z[2]) - jnp.logaddexp(0, -z[2])
        return jnp.sum(jnp.logaddexp(one, two)) + prior - jnp.sum(log_sigma**2) * 2


def _labels_numpy(y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def log_prob(z):
        log_sigma = z[:, 3:] if z.shape[1] > 3 else np.zeros((len(z), 1))
        s = np.broadcast_to(log_sigma, (len(z), 2))[:, :, None]
        logit = z[:, 2, None]
        one = -np.logaddexp(0, -logit) - ((y - z[:, 0, None]) * np.exp(-s[:, 0])) ** 2 / 2 - s[:, 0]
        two = -np.logaddexp(0, logit) - ((y - z[:, 1, None]) * np.exp(-s[:, 1])) ** 2 / 2 - s[:, 1]
        prior = -(z[:, 0] ** 2 + z[:, 1] ** 2) / 50 - np.logaddexp(0, z[:, 2]) - np.logaddexp(0, -z[:, 2])
        return np.logaddexp(one, two).sum(1) + prior - 2 * np.sum(log_sigma**2, axis=1)

    return log_prob


def _label_case(dim: int, apart: float, n: int) -> Case:
    rng = _rng("labels", dim, apart, n)
    y = np.where(rng.random(n) < 0.6, 0.0, apart) - apart / 3 + rng.standard_normal(n)
    low, high = np.quantile(y, [0.2, 0.8])
    rest = np.zeros(dim - 2)
    starts = np.stack([[low, high, *rest], [high, low, *rest], *(rng.normal(0, 2, dim) for _ in range(10))])
    reference = Reference(_labels_numpy(y), starts)
    return Case(Labels(y), dim, reference.draw, reference.log_z, modes=reference.modes)


LABELS = ((3, 4, 60), (3, 6, 100), (3, 8, 40), (4, 5, 100), (4, 8, 60), (5, 5, 150), (5, 8, 80))


def _labels() -> dict[str, Listed]:
    return {
        f"label switching, d = {dim}, {apart} sd apart, n = {n}": Listed(
            "label switching", False, lambda a=(dim, apart, n): _label_case(*a)
        )
        for dim, apart, n in LABELS
    }


# ---- Tails ----------------------------------------------------------------------------------------------------------


class StudentT(eqx.Module):
    """A multivariate t, normalised."""

    df: Any
    log_constant: Any

    def __call__(self, z):
        return self.log_constant - (self.df + z.size) / 2 * jnp.log1p(jnp.sum(z**2) / self.df)


def _student(df: float, dim: int, single: bool = False) -> Case:
    constant = gammaln((df + dim) / 2) - gammaln(df / 2) - dim * math.log(df * math.pi) / 2

    def draw(rng, n):
        return rng.standard_normal((n, dim)) / np.sqrt(rng.chisquare(df, (n, 1)) / df)

    return Case(StudentT(np.array(df, float), np.array(constant)), dim, draw, heavy=df < 5, single=single)


class HalfNormal(eqx.Module):
    """N(0, I) cut at zero in the first coordinate."""

    log_constant: Any

    def __call__(self, z):
        inside = self.log_constant - jnp.sum(z**2) / 2
        return jnp.where(z[0] >= 0, inside, -jnp.inf)


def _half_normal(dim: int) -> Case:
    def draw(rng, n):
        z = rng.standard_normal((n, dim))
        z[:, 0] = np.abs(z[:, 0])
        return z

    return Case(HalfNormal(np.array(math.log(2) - dim * LOG_2PI / 2)), dim, draw)


def _tails() -> dict[str, Listed]:
    names = {1: "Cauchy", 2: "t, 2 df", 3: "t, 3 df"}
    heavy = {
        f"{names[df]}, d = {dim}": Listed("heavy tails", False, lambda a=(df, dim): _student(*a))
        for df in names
        for dim in (1, 2, 5)
    }
    cut = {f"half-normal, d = {dim}": Listed("cut", False, lambda dim=dim: _half_normal(dim)) for dim in (1, 2, 5)}
    return heavy | cut


# ---- Harmless -------------------------------------------------------------------------------------------------------


class Gaussian(eqx.Module):
    """N(mean, R diag(deviations²) Rᵀ), normalised."""

    mean: Any
    rotation: Any
    deviations: Any

    def __call__(self, z):
        noise = (self.rotation.T @ (z - self.mean)) / self.deviations
        return -jnp.sum(noise**2) / 2 - jnp.sum(jnp.log(self.deviations)) - z.size * LOG_2PI / 2


def _gaussian(dim: int, condition: float, scale: float, away: float, single: bool = False) -> Case:
    """Condition number of the covariance, largest deviation, and the distance of the mean from zero in those."""
    rng = _rng("gaussian", dim, condition, scale, away)
    rotation = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    deviations = scale * np.logspace(-np.log10(condition) / 2, 0, dim)
    mean = away * scale * _direction(dim, condition, scale)

    def draw(rng, n):
        return mean + (rng.standard_normal((n, dim)) * deviations) @ rotation.T

    return Case(Gaussian(mean, rotation, deviations), dim, draw, single=single)


GAUSSIANS = (
    *((1, 1, 1, 0), (1, 1, 1e-3, 0), (1, 1, 1e3, 5), (2, 1e2, 1, 3), (2, 1e4, 10, 0), (3, 10, 1, 10), (5, 1, 1, 0)),
    *((5, 1e2, 0.1, 5), (5, 1e4, 1, 1), (10, 1, 100, 2), (10, 1e2, 1, 0), (10, 1e4, 1, 3), (20, 1, 1, 5)),
    *((20, 1e2, 0.01, 0), (20, 1e3, 10, 1), (30, 10, 1, 2), (50, 1, 1, 0), (50, 1e2, 1, 1)),
)
SINGLE_GAUSSIANS = (
    *((1, 1, 1, 0), (2, 1e2, 1, 3), (3, 10, 1, 10), (5, 1, 1, 0), (5, 1e2, 0.1, 5), (10, 1e2, 1, 0), (20, 1, 1, 5)),
    *((20, 1e2, 0.01, 0), (50, 1, 1, 0)),
)


class Regression(eqx.Module):
    """A generalised linear model with z ~ N(0, 3² I): `poisson` counts, else labels of a logistic regression."""

    X: Any
    y: Any
    poisson: bool = eqx.field(static=True)

    def __call__(self, z):
        x = self.X @ z
        loss = jnp.exp(x) if self.poisson else jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))
        return jnp.sum(self.y * x - loss) - jnp.sum(z**2) / 18


def _regression(poisson: bool, n: int, dim: int, single: bool = False) -> Case:
    rng = _rng("regression", poisson, n, dim)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, dim - 1))])
    x = X @ rng.normal(0, 0.6 if not poisson else 0.4, dim)
    y = rng.poisson(np.exp(x)) if poisson else rng.random(n) < 1 / (1 + np.exp(-x))
    y = y.astype(float)

    def log_prob(z):
        out = np.empty(len(z))
        for i in range(0, len(z), 2000):  # blocks: rows times points would be a gigabyte
            x = z[i : i + 2000] @ X.T
            loss = np.exp(x) if poisson else np.logaddexp(0, x)
            out[i : i + 2000] = x @ y - loss.sum(1) - np.sum(z[i : i + 2000] ** 2, axis=1) / 18
        return out

    reference = Reference(log_prob, np.zeros((1, dim)), num_draws=100_000 if n < 2000 else 10_000)
    return Case(Regression(X, y, poisson), dim, reference.draw, reference.log_z, single=single)


LOGISTIC = ((50, 2), (100, 3), (200, 5), (300, 8), (500, 10), (1000, 4))
POISSON = ((30, 2), (100, 3), (200, 5), (300, 8), (5000, 3))


class LogGamma(eqx.Module):
    """Independent logarithms of Gamma(shape, 1) variables; with `sign` −1 and shape 1, Gumbel's distribution."""

    shape: Any
    sign: Any
    log_constant: Any

    def __call__(self, z):
        x = self.sign * z
        return jnp.sum(self.shape * x - jnp.exp(x)) + self.log_constant


def _log_gamma(shape: float, dim: int, sign: float = 1.0, single: bool = False) -> Case:
    density = LogGamma(np.array(shape, float), np.array(sign), np.array(-dim * gammaln(shape)))
    return Case(density, dim, lambda rng, n: sign * np.log(rng.gamma(shape, size=(n, dim))), single=single)


class Schools(eqx.Module):
    """y ~ N(μ + τ η, σ), η ~ N(0, 1), μ ~ N(0, 5), τ ~ N⁺(0, spread); z = (μ, log τ, η)."""

    y: Any
    sigma: Any
    spread: Any

    def __call__(self, z):
        mu, log_tau, eta = z[0], z[1], z[2:]
        tau = jnp.exp(log_tau)
        likelihood = -jnp.sum(((self.y - mu - tau * eta) / self.sigma) ** 2) / 2
        return likelihood - jnp.sum(eta**2) / 2 - mu**2 / 50 - (tau / self.spread) ** 2 / 2 + log_tau


def _schools(y: Any, sigma: Any, spread: float, single: bool = False) -> Case:
    """Exact draws: log τ from its marginal on a grid, then μ and η, Gaussian given it."""
    y, sigma = np.asarray(y, float), np.asarray(sigma, float)
    grid = np.linspace(-12, 5, 20_001)
    variance = sigma**2 + np.exp(2 * grid)[:, None]
    precision = np.sum(1 / variance, axis=1) + 1 / 25
    centre = np.sum(y / variance, axis=1) / precision
    # log ∫ N(y | μ, variance) N(μ | 0, 5) dμ, with the constants that the density leaves out put aside
    log_mass = -np.sum(np.log(variance) + y**2 / variance, axis=1) / 2 + precision * centre**2 / 2
    log_mass += -np.log(precision) / 2 - (np.exp(grid) / spread) ** 2 / 2 + grid
    log_total = logsumexp(log_mass) + math.log(grid[1] - grid[0])
    # The density leaves out −log σ and 2π in the likelihood and in η, and 2π in μ.
    log_z = log_total + np.sum(np.log(sigma)) + (y.size + 1) * LOG_2PI / 2
    mass = np.exp(log_mass - log_mass.max())

    def draw(rng, n):
        log_tau = np.interp(rng.random(n), np.cumsum(mass) / mass.sum(), grid)
        tau2 = np.exp(2 * log_tau)[:, None]
        total = np.sum(1 / (sigma**2 + tau2), axis=1) + 1 / 25
        mu = np.sum(y / (sigma**2 + tau2), axis=1) / total + rng.standard_normal(n) / np.sqrt(total)
        given = 1 + tau2 / sigma**2
        eta = np.sqrt(tau2) * (y - mu[:, None]) / sigma**2 / given + rng.standard_normal((n, y.size)) / np.sqrt(given)
        return np.column_stack([mu, log_tau, eta])

    return Case(Schools(y, sigma, np.array(spread)), y.size + 2, draw, float(log_z), single=single)


def _simulated_schools(groups: int, single: bool = False) -> Case:
    rng = _rng("schools", groups)
    return _schools(rng.normal(2, np.hypot(2, 1), groups), np.ones(groups), 3.0, single)


EIGHT = ([28, 8, -3, 7, -1, 1, 18, 12], [15, 10, 16, 11, 9, 11, 10, 18], 10.0)


def _harmless() -> dict[str, Callable[[bool], Case]]:
    """By name; each takes whether it is run in float32."""
    made: dict[str, Callable[[bool], Case]] = {}
    for a in GAUSSIANS:
        dim, condition, scale, away = a
        name = f"Gaussian, d = {dim}, condition {condition:g}, scale {scale:g}, {away} sd away"
        made[name] = lambda single, a=a: _gaussian(*a, single=single)
    for n, dim in LOGISTIC:
        made[f"logistic, n = {n}, d = {dim}"] = lambda single, a=(False, n, dim): _regression(*a, single=single)
    for n, dim in POISSON:
        made[f"Poisson, n = {n}, d = {dim}"] = lambda single, a=(True, n, dim): _regression(*a, single=single)
    for shape, dim in ((5, 1), (10, 1), (30, 1), (5, 2), (10, 2), (10, 5), (30, 5), (30, 10)):
        made[f"log gamma {shape}, d = {dim}"] = lambda single, a=(shape, dim): _log_gamma(*a, single=single)
    for dim in (1, 2):
        made[f"Gumbel, d = {dim}"] = lambda single, dim=dim: _log_gamma(1.0, dim, -1.0, single)
    made["eight schools, non-centred"] = lambda single: _schools(*EIGHT, single=single)
    for groups in (4, 6, 12):
        made[f"schools, non-centred, {groups} groups"] = lambda single, g=groups: _simulated_schools(g, single)
    for dim in (1, 2, 5, 10):
        made[f"t, 30 df, d = {dim}"] = lambda single, dim=dim: _student(30, dim, single)
    return made


SINGLE = (
    *(f"Gaussian, d = {d}, condition {c:g}, scale {s:g}, {a} sd away" for d, c, s, a in SINGLE_GAUSSIANS),
    *("logistic, n = 100, d = 3", "logistic, n = 1000, d = 4", "Poisson, n = 100, d = 3", "Poisson, n = 5000, d = 3"),
    *("log gamma 10, d = 2", "log gamma 30, d = 5", "eight schools, non-centred", "t, 30 df, d = 2"),
)


def _all() -> dict[str, Listed]:
    listed = {**_modes(), **_spikes(), **_rings(), **_labels(), **_tails()}
    harmless = _harmless()
    listed |= {name: Listed("harmless", True, lambda make=make: make(False)) for name, make in harmless.items()}
    listed |= {
        f"{name}, float32": Listed("harmless, float32", True, lambda make=harmless[name]: make(True)) for name in SINGLE
    }
    return listed


CASES = _all()


# ---- More, for the ladder -------------------------------------------------------------------------------------------


class Rosenbrock(eqx.Module):
    """Pairs x ~ N(1, 10), y | x ~ N(x², 0.1): exp(−Σ (5 (y − x²)² + (x − 1)² / 20)), normalised."""

    log_constant: Any

    def __call__(self, z):
        x, y = z[0::2], z[1::2]
        return self.log_constant - jnp.sum(5 * (y - x**2) ** 2 + (x - 1) ** 2 / 20)


def _rosenbrock(dim: int) -> Case:
    def draw(rng, n):
        z = np.empty((n, dim))
        z[:, 0::2] = rng.normal(1, math.sqrt(10), (n, dim // 2))
        z[:, 1::2] = z[:, 0::2] ** 2 + rng.normal(0, math.sqrt(0.1), (n, dim // 2))
        return z

    # Variances 10 and 0.1: a pair's constant is that of the plane's standard normal.
    return Case(Rosenbrock(np.array(-dim / 2 * LOG_2PI)), dim, draw)


MORE_TWO = (
    *((1, 5, 0.01, "heavy", 1), (1, 40, 0.02, "heavy", 1), (1, 25, 0.05, "elsewhere", 0.3)),
    *((2, 50, 0.01, "heavy", 1), (2, 35, 0.02, "light", 1), (2, 6, 0.03, "heavy", 1), (3, 20, 0.5, "between", 1)),
    *((3, 45, 0.1, "heavy", 0.5), (5, 8, 0.01, "heavy", 1), (5, 40, 0.05, "elsewhere", 1), (10, 5, 0.5, "heavy", 1)),
    *((10, 40, 0.5, "between", 2), (15, 25, 0.2, "light", 1), (20, 5, 0.3, "between", 1), (20, 40, 0.03, "heavy", 1)),
)
MORE_SEVERAL = (
    *((1, 50, (0.5, 0.25, 0.25), True), (2, 50, (0.4, 0.3, 0.2, 0.1), True), (3, 12, (1, 1, 1, 1, 1), False)),
    *((5, 50, (1, 1, 1, 1), False), (10, 40, (0.9, 0.02, 0.03, 0.05), True), (20, 10, (1, 1, 1, 1, 1), True)),
)


def _more() -> dict[str, Listed]:
    """Further traps: names as in `_modes` and `_tails`."""
    listed = {f"Rosenbrock, d = {d}": Listed("Rosenbrock", False, lambda d=d: _rosenbrock(d)) for d in (2, 4, 10)}
    for dim in (10, 20):
        for df, name in ((1, "Cauchy"), (2, "t, 2 df")):
            listed[f"{name}, d = {dim}"] = Listed("heavy tails", False, lambda a=(df, dim): _student(*a))
        listed[f"half-normal, d = {dim}"] = Listed("cut", False, lambda dim=dim: _half_normal(dim))
    return listed | _modes(MORE_TWO, MORE_SEVERAL)


TRAPS = {name: listed for name, listed in CASES.items() if not listed.harmless} | _more()
HARMLESS = {name: listed for name, listed in CASES.items() if listed.family == "harmless"}
