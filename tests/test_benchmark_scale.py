"""`bench scale`: small, every section once; data that are the same however they are kept."""

import jax
import numpy as np
import pytest

from bures.benchmarks import scale, scale_models as models

TINY = dict(
    columns=4,
    groups=6,
    streaming_rows={"arrays": 1},
    reads_rows={"logistic": 2000},
    reference_draws=16,
    reference_steps=2,
    svi_times=1,
    svi_seconds=0.2,
    svi_batch=50,
    noise_rows=[3000],
    noise_batches=[50],
    noise_distances=[0.0],
    frontend_rows={"numpyro": 500},
    cost_columns=3,
    cost_rows={"in memory": [500], "streamed": [500], "subsampled": [500]},
    together=[],  # those of several processes are tested on their own
    kills=0,
    many=["a function"],
    many_fits=20,
    many_rows=50,
    many_dim=3,
)


@pytest.mark.parametrize("model", list(models.MODELS))
def test_blocks_are_the_same_rows_whatever_the_size(model, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "_BLOCK", 64)
    few, many = (models.memory_map(tmp_path, model, n, 4, 6) for n in (70, 200))
    for name in few:
        np.testing.assert_array_equal(few[name], many[name][:70])
    assert len(many["y"]) == 200


def test_the_hierarchical_model_by_hand(tmp_path):
    data = models.memory_map(tmp_path, "hierarchical", 100, 4, 6)
    target = models.MODELS["hierarchical"].target(data, 4, 6)
    assert target.dim == 2 + 6 + 5
    z = jax.random.normal(jax.random.key(0), (target.dim,)) / 3
    mu, tau, level, slope = z[0], np.exp(z[1]), z[2:8], z[8:]
    eta = np.asarray(level)[data["group"]] + data["x"] @ np.asarray(slope)
    prior = (
        -np.sum((level - mu) ** 2) / (2 * tau**2) - 6 * z[1] - mu**2 / 50 - tau**2 / 2 - np.sum(slope**2) / 20 + z[1]
    )
    wanted = prior + np.sum(data["y"] * eta - np.logaddexp(0, eta))
    np.testing.assert_allclose(target.log_density(z), wanted, rtol=1e-6)  # of a softplus in float32 sums


def test_every_section_once(tmp_path):
    said = []
    folder = scale.run(tmp_path / "data", out=tmp_path / "out", say=said.append, **TINY)
    tables = (folder / "tables.md").read_text()
    for part in (
        "Memory at N",
        "Reads and quality",
        "Noise of rows",
        "Minibatches of other libraries",
        "Cost by N",
        "Many fits",
    ):
        assert part in tables
    held = {line.split(":")[0]: line for line in said if "yes" in line or " no" in line}
    assert "yes" in held["streaming from arrays"]
    assert (folder / "scale.html").exists()
    again: list[str] = []
    scale.run(tmp_path / "data", out=tmp_path / "out", say=again.append, **TINY)
    assert not any("/" in line and "--" in line for line in again), "what is kept is not run again"
