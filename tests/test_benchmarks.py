"""The benchmarks: peers that are what they claim to be, cells that are kept, failures that are told."""

import csv
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from benchmarks import peers, posteriordb as benchmark, speed, speed_alone, speed_cells, speed_page, speed_report
from tests.problems import needs_posteriordb

MEAN, PRECISION = np.array([3.0, -1.0]), np.array([4.0, 1.0])


GAUSSIAN_METHODS = ["Euclidean ELBO", "Laplace", "Pathfinder", "AutoMultivariateNormal", "PyMC Pathfinder"]


@pytest.mark.parametrize("method", GAUSSIAN_METHODS)
def test_methods_find_a_gaussian(method, monkeypatch):
    # FullRankADVI is left out: PyTensor compiles C for a minute before its first step; Pathfinder's few do without.
    monkeypatch.setitem(peers.C_MACHINE, "mode", "FAST_COMPILE")
    target = bures.Target(lambda z: -jnp.sum((z - MEAN) ** 2 * PRECISION) / 2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the other libraries' own
        answer = peers.METHODS[method](target, benchmark.SETTINGS)(0)
    q = answer.approximation
    np.testing.assert_allclose(q.mean, MEAN, atol=0.5 / np.sqrt(PRECISION.min()))
    np.testing.assert_allclose(q.standard_deviations, PRECISION**-0.5, rtol=0.25)


SMALL = {"numpyro_steps": 3000, "numpyro_step_size": 0.01, "blackjax_steps": 2000, "blackjax_step_size": 0.01}


@pytest.mark.parametrize("prepare", [peers.numpyro_renyi, peers.blackjax])
def test_variational_peers_find_a_gaussian(prepare):
    target = bures.Target(lambda z: -((z[0] - 1) ** 2) - (z[1] - z[0]) ** 2, 2)
    with peers.quiet():
        q = prepare(target, SMALL)(0).approximation
    np.testing.assert_allclose(q.mean, [1, 1], atol=0.3)
    np.testing.assert_allclose(q.covariance, [[0.5, 0.5], [0.5, 1.0]], atol=0.25)


@needs_posteriordb
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


@needs_posteriordb
@pytest.mark.parametrize(
    ("option", "message"), [("only", "--only must be one of"), ("methods", "--method must be one")]
)
def test_unknown_names_are_refused(tmp_path, option, message):
    with pytest.raises(ValueError, match=message):
        benchmark.run(None, **{option: ["nine_schools"]}, out=tmp_path)


# ---- speed ----------------------------------------------------------------------------------------------------------

TINY = {
    "n": 50,
    "K": [10],
    "rounds": 1,
    "default_steps": 120,
    "euclidean_steps": {"10": 120},
    "overhead_dtypes": ["float64"],
    "overhead_rounds": 2,
    "overhead_points": 1000,
    "num_samples": 200,
}


def test_speed_is_measured_told_and_kept(tmp_path, monkeypatch):
    chosen = {name: speed_cells.TARGETS[name] for name in ("eggbox, the paper's start", "Gaussian, d = 2")}
    monkeypatch.setattr(speed, "TARGETS", chosen)
    said = []
    options = dict(seeds=1, only=["overhead", "targets", "regression"], out=tmp_path, say=said.append, **TINY)
    folder = speed.run(**options)
    assert len(said) == 8
    with (folder / "tables.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    assert rows["K = 10: iterations to the threshold"]["criterion"] == "≤ 10"
    assert float(rows["iteration / log density, float64, K = 10"]["measured"]) > 0
    assert rows["eggbox, the paper's start: KL(p‖q)"]["holds"] == "yes"
    assert "1 of 1 CONVERGED" in rows["Gaussian, d = 2"]["measured"]
    assert "criteria hold" in (folder / "tables.md").read_text()
    assert "data:image/png;base64," in (folder / "speed.html").read_text()
    speed.run(**options)  # nothing is run again
    assert len(said) == 8


def test_speed_tables_of_costly_sections(tmp_path):
    # Figures made up: what is tested is what the tables make of them.
    growth = {
        f"{ladder}{size}": {
            "parameters": dict(section="growth", ladder=ladder, N=size, M=size, K=1, dim=size),
            "result": {"seconds": size**power / 1e6, "bytes": 2**20, "total": 2**30, "points": 1000},
        }
        for ladder, power in {"N": 1, "MK": 1.5, "d": 3}.items()
        for size in (10, 100, 1000)
    }
    figures = {"outcome": "CONVERGED", "steps": 9, "elbo": -3.0, "khat": 0.1, "log_evidence": -2.0}
    figures["log_evidence_mcse"] = 0.01
    ours, theirs = figures | {"ness": 0.995, "seconds": 1.0}, figures | {"ness": 0.5, "seconds": 12.0}
    found = {speed.DEFAULT: ours, **dict.fromkeys((speed_report.NUMPYRO, *speed_report.VARIATIONAL), theirs)}
    found["PyMC, FullRankADVI"] = {"outcome": "FAILED", "message": "no compiler"}
    census = {name: {"parameters": {"section": name}, "result": found} for name in ("census9", "census96")}
    waits = {"import": 1.0, "result": 2.0}
    first = {"bures": waits, "NumPyro": waits}
    imports = {"jax": 1.0, "bures": 0.4, "first use": 0.2}
    cold = {"parameters": {"section": "cold"}, "result": {"imports": [imports], "first": [first]}}
    settings = speed.SETTINGS | {"only": ["cold", "growth", "census9", "census96"], "seeds": 1, "slow_seeds": 1}
    speed_page.write({**growth, **census, "cold": cold}, settings, tmp_path)
    with (tmp_path / "tables.csv").open() as file:
        holds = {(row["table"], row["row"]): row["holds"] for row in csv.DictReader(file)}
    assert holds["Cold start", "import bures, seconds beyond import jax"] == "no"
    assert holds["Cold start", "first result on the eggbox, bures / NumPyro"] == "yes"
    assert holds["Growth", "slope of seconds a step in rows N"] == "yes"
    assert holds["Growth", "slope of seconds a step in draws M·K"] == "no"
    assert holds["Census, d = 9", "seconds, NumPyro, its own model / default"] == "yes"
    assert holds["Census, d = 96", "default: log evidence − ELBO, nats"] == "yes"
    assert "no compiler" in (tmp_path / "tables.md").read_text()


def test_the_evidence_is_that_of_all_draws_of_the_contestant_that_sees_most():
    def runs(*pairs):
        return [{"log_evidence": value, "log_evidence_mcse": error} for value, error in pairs]

    good, narrow = runs((-3.0, 0.01), (-3.02, 0.01)), runs((-4.0, 0.001))
    lucky = runs((-2.9, 0.04), *[(-3.1, 0.04)] * 9)  # one of many estimates is too high
    found = {"good": good, "narrow": narrow, "lucky": lucky, "failed": [{"outcome": "FAILED", "message": ""}]}
    assert speed_report._evidence(found) == pytest.approx(-3.01, abs=1e-3)


def test_a_process_of_its_own_tells_seconds_and_memory():
    options = dict(kind="gradients", N=1, dim=2, M=None, K=10, num_steps=1)
    found = speed_alone.alone("growth", **options)
    assert 0 < found["seconds"] < 10 and found["total"] > 2**26 and found["points"] == 400
    with pytest.raises(RuntimeError, match="failed in its own process"):
        speed_alone.alone("growth", **options, nonsense=1)


def test_a_contestant_that_fails_is_a_result(monkeypatch):
    def failing(target, settings):
        raise RuntimeError("no such luck")

    monkeypatch.setitem(speed_cells.PEERS, "Pathfinder", failing)
    monkeypatch.setattr(bures.models, "census", lambda design: bures.models.gaussian(2))
    found = speed_cells.census({"design": "", "seed": 0, "contestants": speed_cells.QUICK, "num_samples": 200})
    assert found["bures.fit"]["outcome"] == "CONVERGED" and found["bures.fit"]["ness"] > 0.9
    assert found["Laplace"]["seconds"] > 0
    assert found["Pathfinder"] == {"outcome": "FAILED", "message": "RuntimeError: no such luck"}


def test_unknown_sections_of_speed_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--only must be one of"):
        speed.run(only=["nonsense"], out=tmp_path)
