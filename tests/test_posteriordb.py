"""The posteriors of posteriordb: the right densities, by the score over reference draws, and clear errors."""

import functools
import shutil
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bures import posteriordb
from tests.problems import needs_posteriordb

load = functools.cache(posteriordb.load)


@needs_posteriordb
@pytest.mark.parametrize("name", posteriordb.names())
def test_mean_score_over_the_reference_draws_is_zero(name):
    posterior = load(name)
    z = posterior.reference.unconstrained
    assert z.shape == (10_000, posterior.target.dim)
    _, score = jax.jit(lambda z: posterior.target.value_and_score(z))(z)
    # Means of stretches of 100 draws are as good as independent, whatever the correlation inside them.
    batches = np.asarray(score).reshape(100, 100, -1).mean(axis=1)
    mean, covariance = batches.mean(axis=0), np.cov(batches.T) / len(batches)
    assert np.all(np.abs(mean) < 4 * np.sqrt(np.diagonal(covariance)))
    # And all coordinates together, by Hotelling's test.
    count, dim = batches.shape
    statistic = mean @ np.linalg.solve(covariance, mean) * (count - dim) / (dim * (count - 1))
    assert stats.f.sf(statistic, dim, count - dim) > 1e-4


@needs_posteriordb
@pytest.mark.parametrize("name", posteriordb.names())
def test_the_way_to_the_unconstrained_scale_and_back(name):
    posterior = load(name)
    assert len(posterior.target.names) == posterior.target.dim
    assert posterior.names() == tuple(posterior.reference.draws)
    back = posterior.constrain(posterior.reference.unconstrained)
    for each, draws in posterior.reference.draws.items():
        # The Gaussian process is recovered through a Cholesky factor of condition 1e6.
        np.testing.assert_allclose(back[each], draws.ravel(), rtol=1e-6, atol=1e-7)


@needs_posteriordb
@pytest.mark.parametrize("name", posteriordb.names())
def test_curvature_is_finite_where_the_draws_are(name):
    posterior = load(name)
    z = posterior.reference.unconstrained[::500]
    hessian = jax.jit(lambda z: posterior.target.weighted_hessian(jnp.ones(len(z)) / len(z), z))(z)
    assert np.all(np.isfinite(hessian))
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-6, atol=1e-6 * np.abs(hessian).max())


@needs_posteriordb
def test_an_altered_file_is_refused(tmp_path):
    name = "kidiq-kidscore_momiq"
    copy = Path(shutil.copytree(posteriordb.find_path(), tmp_path / "copy", copy_function=shutil.copyfile))
    for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    data = copy / "posterior_database" / "data" / "data" / "kidiq.json.zip"
    with zipfile.ZipFile(data) as archive:
        content = archive.read("kidiq.json")
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("kidiq.json", content.replace(b"65", b"66", 1))
    with pytest.raises(ValueError, match=f"data or the draws of {name} .* SHA-256"):
        posteriordb.load(name, copy)
    data.write_bytes(b"cut short")
    with pytest.raises(ValueError, match=r"kidiq.json.zip' is not a whole archive"):
        posteriordb.load(name, copy)
    data.unlink()
    with pytest.raises(FileNotFoundError, match=r"no file .*kidiq.json.zip"):
        posteriordb.load(name, copy)


def test_an_unknown_posterior_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of .*arK-arK.*, but got 'nine_schools'"):
        posteriordb.load("nine_schools", tmp_path)


def test_a_missing_path_is_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"path must be a folder with posterior_database in it, but got"):
        posteriordb.load("arK-arK", tmp_path)
    monkeypatch.delenv("BURES_POSTERIORDB", raising=False)
    with pytest.raises(ValueError, match="BURES_POSTERIORDB"):
        posteriordb.load("arK-arK")
