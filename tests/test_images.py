"""Images of a mode: mirrored where signs are free, exchanged where labels are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.engine import Evaluator
from bures.family import Gaussian
from bures.images import exchanges, fourth_corners, mirror_image
from bures.modes import Mode, add_images, look
from bures.search import Budget

DIM = 12


def products(z):
    """Twelve loadings of one factor whose sign is free, in thirteen dimensions, and a level whose sign is not."""
    scores = jnp.linspace(0.5, 2, DIM)
    return -50 * jnp.sum((jnp.outer(z[:DIM], z[:DIM]) - jnp.outer(scores, scores)) ** 2) - (z[DIM] - 5) ** 2


def labels(z):
    """Two means and their log scales, nothing of which tells the first from the second."""
    y = jnp.asarray(np.concatenate([np.linspace(-6, -4, 30), np.linspace(2, 8, 30)]))
    parts = -0.5 * ((y[:, None] - z[:2]) * jnp.exp(-z[2:])) ** 2 - z[2:]
    return jnp.sum(jax.nn.logsumexp(parts, axis=1)) - jnp.sum(z**2) / 200


def mode_of(density, point):
    """The Gaussian with the curvature at a mode, by Newton's method."""
    z = jnp.asarray(point)
    for _ in range(30):
        z = z - jnp.linalg.solve(jax.hessian(density)(z), jax.grad(density)(z))
    return Gaussian.unchecked(np.asarray(z), np.linalg.cholesky(np.linalg.inv(-np.asarray(jax.hessian(density)(z)))))


@pytest.fixture
def factor():
    return mode_of(products, jnp.append(jnp.linspace(0.5, 2, DIM), 5.0))


def test_signs_that_are_free_are_turned_and_no_others(factor):
    image = mirror_image(Budget(Evaluator(bures.Target(products, DIM + 1)), 1000), factor)
    assert image is not None
    assert image.is_exact
    image = image.gaussian
    np.testing.assert_allclose(image.mean, np.append(-factor.mean[:DIM], factor.mean[DIM]))
    turned = np.append(-np.ones(DIM), 1.0)
    np.testing.assert_allclose(
        image.chol @ image.chol.T, turned[:, None] * (factor.chol @ factor.chol.T) * turned, rtol=1e-12
    )
    assert np.all(np.diagonal(image.chol) > 0)


def test_no_image_where_no_sign_is_free():
    shifted = bures.Target(lambda z: -jnp.sum((z - 4) ** 2), 5)
    q = Gaussian.unchecked(np.full(5, 4.0), np.eye(5) / np.sqrt(2))
    assert mirror_image(Budget(Evaluator(shifted), 1000), q) is None


def test_an_image_where_log_p_is_another_is_none_of_the_mode():
    target = bures.Target(lambda z: jnp.logaddexp(-jnp.sum((z - 4) ** 2), 1 - 2 * jnp.sum((z + 4) ** 2)), 3)
    image = mirror_image(Budget(Evaluator(target), 1000), Gaussian.unchecked(np.full(3, 4.0), np.eye(3) / np.sqrt(2)))
    assert image is not None
    assert not image.is_exact


def test_a_mode_whose_mirror_image_is_itself_has_none():
    q = Gaussian.unchecked(np.full(5, 0.1), np.eye(5))
    assert mirror_image(Budget(Evaluator(bures.models.gaussian(5)), 1000), q) is None


def test_images_keep_to_their_evaluations(factor):
    evaluator = Evaluator(bures.Target(products, DIM + 1))
    assert mirror_image(Budget(evaluator, 10), factor) is None
    assert exchanges(Budget(evaluator, 10), factor)[0].shape == (0, DIM + 1)
    assert evaluator.count == 0


def test_exchanged_labels_lead_to_the_other_mode():
    q = mode_of(labels, [-5.0, 5.0, -0.5, 0.5])
    evaluator = Evaluator(bures.Target(labels, 4))
    [view] = look(np.random.default_rng(0), Budget(evaluator, 64), [(q, 1, 64)])
    found, _ = add_images(np.random.default_rng(0), Budget(evaluator, 1000), [Mode(q, view)])
    assert len(found) == 2
    np.testing.assert_allclose(found[1].gaussian.mean, q.mean[[1, 0, 3, 2]], atol=0.01)
    np.testing.assert_allclose(found[1].log_mass, view.log_mass, atol=0.3)  # 64 draws know each to 0.06


def test_a_fit_of_a_factor_names_the_other_sign():
    fit = bures.fit(bures.Target(products, DIM + 1), key=jax.random.key(1))
    assert "several modes" in str(fit)
    assert fit.diagnostics.coverage.missed_share == pytest.approx(0.5, abs=0.1)


def test_three_modes_of_two_free_choices_tell_the_fourth():
    dim, apart = 20, np.zeros((2, 20))
    apart[0, :10], apart[1, 10:] = 8.0, -8.0
    widths = np.array([[1.0, 1.0], [1.0, 0.6]])  # the last is so narrow that no scattered point comes near

    def density(z):
        parts = []
        for i in range(2):
            for j in range(2):
                u = (z - i * apart[0] - j * apart[1]) / widths[i, j]
                parts.append(-0.5 * jnp.sum(u**2) - dim * jnp.log(widths[i, j]))
        return jax.nn.logsumexp(jnp.stack(parts))

    evaluator = Evaluator(bures.Target(density, dim))
    rng, budget = np.random.default_rng(0), Budget(evaluator, 3000)
    known = [Gaussian.unchecked(mean, np.eye(dim)) for mean in (np.zeros(dim), *apart)]
    views = look(rng, budget, [(q, 1, 64) for q in known])
    found, _ = add_images(rng, budget, [Mode(q, view) for q, view in zip(known, views, strict=True)])
    assert len(found) == 4
    np.testing.assert_allclose(found[-1].gaussian.mean, apart.sum(axis=0), atol=1e-3)
    assert found[-1].log_mass == pytest.approx(found[0].log_mass, abs=0.05)


def test_two_modes_have_no_fourth():
    budget = Budget(Evaluator(bures.models.gaussian(3)), 100)
    places, values = fourth_corners(budget, np.eye(3)[:2])
    assert places.shape == (0, 3) and values.size == 0 and budget.left == 100


def test_classes_with_several_numbers_each_change_places():
    counts = np.array([[30, 2, 1], [25, 3, 2], [1, 4, 28]])  # words of three texts about two subjects

    def texts(z):
        shares = jax.nn.sigmoid(z[:3])[:, None]
        words = jax.nn.softmax(jnp.concatenate([z[3:].reshape(2, 2), jnp.zeros((2, 1))], axis=1))
        return jnp.sum(counts * jnp.log(shares * words[0] + (1 - shares) * words[1])) - jnp.sum(z**2) / 8

    q = mode_of(texts, jnp.array([2.0, 2.0, -2.0, 2.0, 0.0, -2.0, -1.0]))
    other = np.concatenate([-q.mean[:3], q.mean[5:], q.mean[3:5]])
    assert texts(jnp.asarray(other)) == pytest.approx(float(texts(jnp.asarray(q.mean))))
    ends, values = exchanges(Budget(Evaluator(bures.Target(texts, 7)), 1000), q)
    assert np.min(np.linalg.norm(ends - other, axis=1)) < 0.5
    assert np.max(values) == pytest.approx(float(texts(jnp.asarray(q.mean))), abs=0.1)
