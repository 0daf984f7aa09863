"""The benchmark on posteriordb: peers that are what they claim to be, cells that are kept, failures that are told."""

import csv
import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from benchmarks import peers, posteriordb as benchmark

needs_draws = pytest.mark.skipif(
    not os.environ.get("BURES_POSTERIORDB"), reason="BURES_POSTERIORDB does not say where posteriordb is"
)
MEAN, PRECISION = np.array([3.0, -1.0]), np.array([4.0, 1.0])


@pytest.mark.parametrize("method", ["Euclidean ELBO", "Laplace", "Pathfinder", "AutoMultivariateNormal"])
def test_methods_find_a_gaussian(method):
    # FullRankADVI is left out: PyTensor compiles C for a minute before its first step.
    target = bures.Target(lambda z: -jnp.sum((z - MEAN) ** 2 * PRECISION) / 2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the other libraries' own
        answer = peers.METHODS[method](target, benchmark.SETTINGS)(0)
    q = answer.approximation
    np.testing.assert_allclose(q.mean, MEAN, atol=0.5 / np.sqrt(PRECISION.min()))
    np.testing.assert_allclose(q.standard_deviations, PRECISION**-0.5, rtol=0.25)


@needs_draws
def test_cells_are_kept_and_tables_written(tmp_path, monkeypatch):
    def failing(target, settings):
        raise RuntimeError("no such luck")

    monkeypatch.setitem(benchmark.METHODS, "Pathfinder", failing)
    monkeypatch.setitem(benchmark.METHODS, "bures.fit", peers.laplace)  # for speed: any method will do
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # other tests have use for them
    said = []
    options = dict(only=["kidiq-kidscore_momiq"], methods=["bures.fit", "Laplace", "Pathfinder"], out=tmp_path)
    folder = benchmark.run(None, **options, say=said.append)
    assert len(said) == 3
    with (folder / "tables.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert rows["Pathfinder"]["outcome"] == "FAILED" and "no such luck" in rows["Pathfinder"]["message"]
    for method in ("bures.fit", "Laplace"):
        assert float(rows[method]["ness"]) > 0.9
        assert rows[method]["solved"] == "True"
        assert float(rows[method]["log_evidence_error"]) < 0.05
    assert "1 of 1 reach 95% of it" in (folder / "tables.md").read_text()
    assert "data:image/png;base64," in (folder / "posteriordb.html").read_text()
    assert (folder / "ness.png").is_file()
    benchmark.run(None, **options, say=said.append)  # nothing is run again
    assert len(said) == 3


@needs_draws
@pytest.mark.parametrize(
    ("option", "message"), [("only", "--only must be one of"), ("methods", "--method must be one")]
)
def test_unknown_names_are_refused(tmp_path, option, message):
    with pytest.raises(ValueError, match=message):
        benchmark.run(None, **{option: ["nine_schools"]}, out=tmp_path)
