"""Signal-to-noise ratios on gradients whose ratio is known."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures


def known(signal):
    return lambda key: jnp.asarray(signal) + jax.random.normal(key, (len(signal),))


def test_coordinates_match_the_known_ratios(key):
    ratio = bures.snr(key, known([0.5, 1.0, 4.0]), num_realisations=2000, batch_size=500)
    error = np.sqrt((1 + np.array([0.5, 1.0, 4.0]) ** 2 / 2) / 20_000)
    np.testing.assert_array_less(np.abs(ratio.coordinates - [0.5, 1.0, 4.0]), 4 * error)
    assert ratio.value == pytest.approx(np.mean(ratio.coordinates))


def test_it_equals_the_direct_formula_on_pooled_draws(key):
    gradient = known([0.3, 2.0])
    ratio = bures.snr(key, gradient, num_seeds=4, num_realisations=50)
    keys = jax.vmap(lambda k: jax.random.split(k, 50))(jax.random.split(key, 4)).reshape(-1)
    draws = np.asarray(jax.vmap(gradient)(keys))
    np.testing.assert_allclose(ratio.coordinates, np.abs(draws.mean(0)) / draws.std(0, ddof=1), rtol=1e-10)
    without_first = draws[50:]
    expected = np.mean(np.abs(without_first.mean(0)) / without_first.std(0, ddof=1))
    np.testing.assert_allclose(ratio.leave_one_out[0], expected, rtol=1e-10)


def test_without_signal_it_sits_at_the_noise_floor(key):
    ratio = bures.snr(key, known([0.0] * 400), num_realisations=100, batch_size=100)
    assert ratio.noise_floor == pytest.approx(math.sqrt(2 / math.pi) / math.sqrt(1000))
    spread = ratio.noise_floor * math.sqrt(math.pi / 2 - 1) / math.sqrt(400)
    assert abs(ratio.value - ratio.noise_floor) < 4 * spread


def test_the_slope_in_m_is_one_half_and_its_error_is_honest(key):
    sizes = [1, 2, 4, 8, 16]

    def averaged(M):
        return lambda key: 0.5 + jnp.mean(jax.random.normal(key, (M, 5)), axis=0)

    keys = jax.random.split(key, len(sizes))
    ratios = [bures.snr(k, averaged(M), num_realisations=500, batch_size=500) for k, M in zip(keys, sizes, strict=True)]
    slope, error = bures.snr_slope(sizes, ratios)
    assert 0 < error < 0.02
    assert abs(slope - 0.5) < 4 * error


def test_bad_input(key, unchecked_types):
    with pytest.raises(ValueError, match="num_seeds"):
        bures.snr(key, known([1.0]), num_seeds=1)
    with pytest.raises(ValueError, match="key must be"):
        bures.snr(jax.random.PRNGKey(0), known([1.0]))
    ratio = bures.snr(key, known([1.0]), num_realisations=10)
    with pytest.raises(ValueError, match="x must be"):
        bures.snr_slope([1, 2, 3], [ratio, ratio])
