"""Low-rank and mean-field Gaussians against the dense Gaussian that they are, and what families make of others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from problems import FLOATS, low_rank_gaussian, mean_field_gaussian, random_gaussian

import bures
from bures.arrays import to_host
from bures.family import low_rank_moves as moves
from bures.target.blocks import largest_array

DIM = 7
MEMBERS = {
    "mean field": lambda dtype=jnp.float64: mean_field_gaussian(1, DIM, dtype),
    "wide and narrow": lambda dtype=jnp.float64: low_rank_gaussian(2, DIM, (5.0, 0.2), dtype),
    "a column not in use": lambda dtype=jnp.float64: low_rank_gaussian(3, DIM, (5.0, 1.0, 0.2), dtype),
}


def dense(q):
    """Σ = D (I + V (Λ − I) Vᵀ) D, written out."""
    D, V, variances = np.diag(np.asarray(q.scale)), np.asarray(q.basis), np.asarray(q.variances)
    return D @ (np.eye(q.dim) + V @ np.diag(variances - 1) @ V.T) @ D


# ---- Draws and densities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEMBERS)
def test_it_is_the_gaussian_it_stands_for(name, key):
    q = MEMBERS[name]()
    covariance = dense(q)
    np.testing.assert_allclose(q.covariance, covariance, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(q.standard_deviations, np.sqrt(np.diagonal(covariance)), rtol=1e-12)
    reference = scipy.stats.multivariate_normal(q.mean, covariance)
    z = np.asarray(q.mean) + 3 * np.asarray(jax.random.normal(key, (2, 5, DIM)))
    np.testing.assert_allclose(q.log_prob(z), reference.logpdf(z), rtol=1e-11)
    assert float(q.entropy()) == pytest.approx(reference.entropy(), rel=1e-12)
    np.testing.assert_allclose(q.as_gaussian().covariance, covariance, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(q.as_gaussian().mean, q.mean)


@pytest.mark.parametrize("name", MEMBERS)
def test_push_and_whiten_are_inverse_and_push_has_the_covariance(name, key):
    q = MEMBERS[name]()
    noise = jax.random.normal(key, (4, 2, DIM))
    np.testing.assert_allclose(q.whiten(q.push(noise)), noise, atol=1e-12)
    np.testing.assert_allclose(q.whiten_shift(q.push(noise) - q.mean), noise, atol=1e-12)
    np.testing.assert_allclose(q.log_prob_of_noise(noise), q.log_prob(q.push(noise)), rtol=1e-12)
    root = np.asarray(q.push(jnp.eye(DIM)) - q.mean)  # push is affine: its rows are those of a root
    np.testing.assert_allclose(root.T @ root, dense(q), rtol=1e-11, atol=1e-13)
    assert q.sample(key, 3).shape == (3, DIM)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_precision_is_an_operator(name, key):
    q = MEMBERS[name]()
    precision, operator = np.linalg.inv(dense(q)), q.precision()
    vectors = np.asarray(jax.random.normal(key, (DIM, 3)))
    np.testing.assert_allclose(operator.matrix(), precision, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(operator.diagonal(), np.diagonal(precision), rtol=1e-11)
    np.testing.assert_allclose(operator.times(vectors), precision @ vectors, rtol=1e-9, atol=1e-11)
    noise = jax.random.normal(key, (4, DIM))
    expected = np.asarray(q.push(noise) - q.mean) @ precision
    np.testing.assert_allclose(q.precision_times_noise(noise), expected, rtol=1e-9, atol=1e-11)
    assert float(q.min_eigenvalue()) <= np.linalg.eigvalsh(dense(q))[0] * (1 + 1e-12)


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("indices", [3, [0, 5], [6, 2, 4], -1], ids=str)
def test_marginals_are_those_of_the_dense_gaussian(name, indices):
    q = MEMBERS[name]()
    kept = np.atleast_1d(indices)
    marginal = q.marginal(indices)
    np.testing.assert_array_equal(marginal.mean, np.asarray(q.mean)[kept])
    np.testing.assert_allclose(marginal.covariance, dense(q)[np.ix_(kept, kept)], rtol=1e-11, atol=1e-13)


def test_all_of_it_is_the_same_in_numpy():
    q = MEMBERS["wide and narrow"]()
    host, noise = to_host(q), np.random.default_rng(0).standard_normal((3, DIM))
    for name in ("push", "whiten", "precision_times_noise", "log_prob_of_noise", "whiten_scores"):
        found = getattr(host, name)(noise)
        assert isinstance(found, np.ndarray), name
        np.testing.assert_allclose(found, getattr(q, name)(jnp.asarray(noise)), rtol=1e-12, atol=1e-13, err_msg=name)


# ---- Between families -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [*MEMBERS, "full rank"])
@pytest.mark.parametrize("second", [*MEMBERS, "full rank"])
def test_kl_and_distance_between_families(first, second):
    members = MEMBERS | {"full rank": lambda: random_gaussian(4, DIM)}
    p, q = members[first](), members[second]()
    if first == second:
        assert abs(float(p.kl(q))) < 1e-12
        return
    by_matrices = p.as_gaussian(), q.as_gaussian()
    assert float(p.kl(q)) == pytest.approx(float(by_matrices[0].kl(by_matrices[1])), rel=1e-11)
    assert float(p.bures_distance(q)) == pytest.approx(float(by_matrices[0].bures_distance(by_matrices[1])), rel=1e-9)
    ratio = np.linalg.solve(np.asarray(q.covariance), np.asarray(p.covariance))
    shift = np.asarray(q.mean - p.mean)
    distance = shift @ np.linalg.solve(np.asarray(q.covariance), shift)
    expected = (np.trace(ratio) + distance - DIM - np.linalg.slogdet(ratio)[1]) / 2
    assert float(p.kl(q)) == pytest.approx(expected, rel=1e-9)


def test_kl_in_factors_makes_no_matrix():
    p, q = low_rank_gaussian(1, 300), low_rank_gaussian(2, 300)
    assert largest_array(jax.make_jaxpr(lambda p, q: p.kl(q))(p, q)) <= 2 * 300


@pytest.mark.parametrize("family", [bures.MeanField(), bures.LowRank(rank=2), bures.LowRank()], ids=str)
def test_the_nearest_member_keeps_what_it_can(family):
    """Of a Gaussian that is a member, all; of another, the mean and the diagonal of the precision."""
    variances = {0: (), 2: (5.0, 0.2), 3: (5.0, 0.2)}[family.columns(DIM)]
    member = low_rank_gaussian(2, DIM, variances)
    other = random_gaussian(4, DIM)
    if not variances:
        np.testing.assert_allclose(family.of(member.as_gaussian()).covariance, member.covariance, rtol=1e-10)
    assert float(family.of(member).kl(member)) < 1e-12
    for q in (family.of(other), family.of(to_host(other))):
        assert isinstance(q, bures.LowRankGaussian)
        assert q.capacity == family.columns(DIM) and q.grows == (family == bures.LowRank())
        np.testing.assert_array_equal(q.mean, other.mean)
        np.testing.assert_allclose(q.scale**-2, np.diagonal(np.linalg.inv(other.covariance)), rtol=1e-10)
        np.testing.assert_allclose(q.basis.T @ q.basis, np.eye(q.capacity), atol=1e-12)
    assert float(bures.FullRank().of(member).kl(member)) < 1e-12
    assert float(family.of(other).kl(other)) <= float(bures.MeanField().of(other).kl(other)) + 1e-9


def test_labels_and_ranks():
    assert MEMBERS["mean field"]().label == "mean field"
    assert MEMBERS["a column not in use"]().label == "low rank 2"
    assert MEMBERS["a column not in use"]().capacity == 3
    assert random_gaussian(1, 2).label == "full rank"


# ---- What is refused ------------------------------------------------------------------------------------------------

REFUSED = {
    "scale of another length": (dict(scale=jnp.ones(2)), r"scale must be of shape \(3,\) to match mean"),
    "scale a matrix": (dict(scale=jnp.eye(3)), "scale must be an array with 1 axes"),
    "scale negative": (dict(scale=jnp.array([1.0, -1.0, 1.0])), "scale must be positive, but got -1.0"),
    "scale zero": (dict(scale=jnp.array([1.0, 0.0, 1.0])), "scale must be positive"),
    "scale NaN": (dict(scale=jnp.array([1.0, np.nan, 1.0])), "scale must be finite"),
    "basis of another shape": (dict(basis=jnp.eye(2)), r"basis must be of shape \(3, 1\)"),
    "more columns than variances": (dict(basis=jnp.eye(3)[:, :2]), r"basis must be of shape \(3, 1\)"),
    "basis without variances": (dict(variances=None), r"basis must be of shape \(3, 0\)"),
    "basis not orthonormal": (dict(basis=2 * jnp.eye(3)[:, :1]), r"orthonormal columns.*off by 3.*qr"),
    "basis skew": (
        dict(basis=jnp.array([[1.0, 0.6], [0.0, 0.8], [0.0, 0.0]]), variances=jnp.full(2, 2.0)),
        "orthonormal columns.*off by 0.6",
    ),
    "variance negative": (dict(variances=jnp.array([-0.5])), "variances must be positive, but got -0.5"),
    "variance zero": (dict(variances=jnp.array([0.0])), "variances must be positive"),
    "variances of integers": (dict(variances=jnp.array([2])), "variances must be a floating array"),
    "beyond float32": (
        dict(mean=jnp.zeros(3, jnp.float32), scale=np.full(3, 1e40)),
        "scale must be finite in float32, the dtype of mean",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_parts_are_refused_with_the_reason(name, unchecked_types):
    parts = dict(mean=jnp.zeros(3), scale=jnp.ones(3), basis=jnp.eye(3)[:, :1], variances=jnp.array([2.0]))
    changes, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        bures.LowRankGaussian(**(parts | changes))


@pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
def test_the_dtype_is_that_of_the_mean(dtype):
    q = bures.LowRankGaussian(jnp.zeros(3, dtype), np.ones(3), np.eye(3)[:, :1], np.array([2.0]))
    assert {part.dtype for part in q.parts().values()} == {jnp.dtype(dtype)}
    assert q.as_gaussian().chol.dtype == q.covariance.dtype == dtype
    assert bures.MeanField().standard(3, dtype).scale.dtype == dtype


def test_no_matrix_beyond_its_size(unchecked_types):
    q = bures.MeanField().standard(5000)
    for ask in (lambda: q.covariance, q.as_gaussian, lambda: q.bures_distance(q)):
        with pytest.raises(ValueError, match=r"at most 4000 dimensions, but got 5000\. Use standard_deviations"):
            ask()
    with pytest.raises(ValueError, match="at most 4000 coordinates"):
        q.marginal(np.arange(4500))
    assert q.marginal([4999]).covariance.tolist() == [[1.0]]
    with pytest.raises(ValueError, match="other must be a Gaussian on R"):
        q.kl(bures.MeanField().standard(3))
    with pytest.raises(ValueError, match="coordinates from 0 to 4999"):
        q.marginal(5000)


def test_the_dense_gaussian_is_the_same_by_either_library():
    q = MEMBERS["wide and narrow"]()
    on_host = to_host(q).as_gaussian()
    np.testing.assert_allclose(on_host.chol, q.as_gaussian().chol, rtol=1e-12, atol=1e-14)


# ---- What is seen of columns ----------------------------------------------------------------------------------------


def test_a_first_signal_is_believed_as_far_as_it_exceeds_its_noise():
    noise = np.array(8.0)
    assert moves._wiener(np.array(0.0), np.array(5.0), noise)[0] == pytest.approx(0.2 * 5)
    assert moves._wiener(np.array(0.0), np.array(500.0), noise)[0] == pytest.approx(492 + 0.2 * 8)
    signal, gain = moves._wiener(np.array(0.0), np.array(-5.0), noise)
    assert signal < 0 and gain == 0


def test_noise_of_columns_is_no_gap(key):
    """At the optimum of a target that is not Gaussian, with a column in use: the gap is far below what noise shows."""
    dim = 60
    target = bures.Target(lambda z: -jnp.sum(z**2 / 2 + 0.3 * z**4) + 0.01 * z.sum() ** 2, dim)
    fit = bures.fit(target, key=key, family=bures.LowRank())
    assert fit.outcome is bures.Outcome.CONVERGED
    assert fit.num_steps < 60, fit.num_steps
