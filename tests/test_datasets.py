"""The Census data and the two designs made from them."""

import jax
import numpy as np
import pytest

import bures
from bures import datasets


def test_the_rows_are_the_complete_ones_of_uci_adult():
    table = datasets.adult()
    assert {len(column) for name, column in table.items() if not name.endswith("_categories")} == {45_222}
    assert int(table["income"].sum()) == 11_208  # of these, above $50,000
    assert table["income_categories"].tolist() == ["<=50K", ">50K"]


def test_screened_design():
    X, y, names = datasets.census()
    assert X.shape == (45_222, 9)
    assert set(np.unique(y)) == {0.0, 1.0}
    assert names[0] == "intercept"
    np.testing.assert_allclose(X[:, 1:].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(X[:, 1:].std(axis=0), 1, atol=1e-12)
    correlation = np.abs(np.corrcoef(X[:, 1:].T) - np.eye(8))
    assert correlation.max() < 0.75


def test_the_screened_posterior_is_the_papers():
    target = bures.models.census()
    q = bures.laplace(target)
    smallest = np.linalg.eigvalsh(q.covariance)[0]
    assert smallest == pytest.approx(7.50e-5, rel=0.01)  # appendix: "approximately 7.50e-5"
    evidence = float(target.log_density(q.mean) + 4.5 * np.log(2 * np.pi) + q.log_det_root())
    assert evidence == pytest.approx(-15753.98, abs=2)  # Table 5


def test_full_design_has_full_rank():
    X, _, names = datasets.census("full")
    assert X.shape == (45_222, 96) and len(names) == 96
    np.testing.assert_array_equal(X[:, 0], 1)
    assert np.linalg.cond(X) < 100


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="design must be one of"):
        datasets.census("half")
    with pytest.raises(FileNotFoundError, match="not at"):
        datasets.adult(tmp_path / "none.npz")
    altered = tmp_path / "adult.npz"
    altered.write_bytes(b"something else")
    with pytest.raises(ValueError, match="SHA-256"):
        datasets.adult(altered)


def test_float32_data_stay_float32():
    X, y, _ = datasets.census()
    target = bures.models.logistic_regression(X[:100].astype(np.float32), y[:100])
    value = target.value(jax.numpy.zeros((2, 9), np.float32))
    assert value.dtype == np.float32
