"""The benchmarks: peers that are what they claim to be, cells that are kept, failures that are told."""

import csv
import math
import os
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.benchmarks import (
    before_after,
    cold,
    cold_alone,
    cold_report,
    honesty,
    honesty_targets,
    large_models,
    peers,
    posteriordb as benchmark,
    speed,
    speed_alone,
    speed_cells,
    speed_page,
    speed_report,
)
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
    assert (folder / "figures.webp").is_file()
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


# ---- cold -----------------------------------------------------------------------------------------------------------


def test_a_cold_fit_is_measured_in_a_process_of_its_own(tmp_path):
    said = []
    options = dict(seeds=1, only=["eggbox"], out=tmp_path, say=said.append, numpyro_steps=20)
    folder = cold.run(**options)
    with (folder / "tables.csv").open() as file:
        rows = {row["contestant"]: row for row in csv.DictReader(file)}
    ours, theirs = rows["bures"], rows["numpyro"]
    phases = sum(float(ours[f"{phase} s"]) for phase in cold_report.PHASES)
    assert phases == pytest.approx(float(ours["total"]), rel=0.01)
    assert 0 < float(ours["compile s"]) < float(ours["answer"]) < float(ours["total"])
    assert 0 < int(ours["costly"]) <= int(ours["programs"])
    assert ours["outcome"] == "CONVERGED" and float(theirs["total"]) > 0
    told = (folder / "tables.md").read_text()
    assert "(target)" in told and "seconds to the answer, median" in told
    assert (folder / "figures.webp").is_file() and (folder / "cold.html").is_file()
    assert len(said) == 8  # two cells, six criteria
    cold.run(**options)  # nothing is run again
    assert len(said) == 14


def test_cold_tables_judge_and_say_what_is_missing(tmp_path):
    # Figures made up: what is tested is what the tables make of them.
    def ours(seconds):
        phases = {"import": 0.5, "bures": 0.2, "model": 0.1, "fit": seconds, "print": 0.01}
        own = {"compile": 0.3, "start": 0.1, "steps": 0.1, "judgement": 0.05}
        programs = [{"name": "target", "seconds": 0.3, "target": True}] + 3 * [
            {"name": "add", "seconds": 0.01, "target": False}
        ]
        compiled = {"model": 0.0, "fit": 0.33, "print": 0.0}
        facts = {"tracing": 0.1, "lowering": 0.1, "outcome": "CONVERGED", "evaluations": 100}
        return {"phases": phases, "compile": compiled, "own": own, "programs": programs, **facts}

    theirs = {"phases": {"import": 1.0, "bures": 0.5, "model": 0.1, "fit": 5.0, "print": 0.9}}
    cells = {("eggbox", "bures"): ours(0.8), ("eggbox", "numpyro"): theirs, ("census9", "bures"): ours(9.0)}
    cells |= {("census9", "numpyro"): theirs, ("stan", "bures"): {"missing": "BRIDGESTAN is not set"}}
    results = {
        f"{model}-{contestant}": {"parameters": dict(model=model, contestant=contestant, turn=0), "result": found}
        for (model, contestant), found in cells.items()
    }
    lines = cold_report.write(results, {"only": ["eggbox", "census9", "stan"]}, tmp_path)
    assert [line.split()[-1] for line in lines] == ["no", "no", "no", "no", "yes", "yes"]
    told = (tmp_path / "tables.md").read_text()
    assert "| stan | BRIDGESTAN is not set |" in told
    assert (
        "| eggbox | 0.5 | 0.2 | 0.1 | 0.33 | 0.1 | 0.1 | 0.05 | 0.01 | 0.22 | 1.11 | 1.61 | 7 | 0.23 | 1 | 4 |" in told
    )


def test_programs_that_need_the_target_are_told_from_others():
    programs = cold_alone.Programs()
    target = bures.Target(lambda z: -jnp.sum(jnp.cosh(z)), 2)
    programs.watch(target)
    jax.jit(jax.vmap(target.log_density))(jnp.ones((3, 2)))

    @jax.jit
    def another(x):
        return jnp.sum(jnp.tanh(x) * 1.2345)

    another(jnp.ones(7))
    found = {each["name"]: each["target"] for each in programs.compiled}
    assert not found["another"] and sum(found.values()) == 1


def test_without_bridgestan_its_row_says_so(monkeypatch):
    monkeypatch.delenv("BRIDGESTAN", raising=False)
    assert cold.prepare_stan() == "BRIDGESTAN is not set"


# ---- honesty --------------------------------------------------------------------------------------------------------


def test_missed_mass_is_what_no_draw_can_be_expected_to_show():
    assert honesty.missed_mass(np.zeros(10_000), 5e-6) == 0
    assert honesty.missed_mass(np.r_[np.zeros(6000), np.full(4000, 40.0)], 5e-6) == 0.4
    rng = np.random.default_rng(0)
    z = np.where(rng.random(20_000) < 0.3, 10.0, 0.0) + rng.standard_normal(20_000)
    log_p = np.logaddexp(np.log(0.7) - z**2 / 2, np.log(0.3) - (z - 10) ** 2 / 2)
    assert honesty.missed_mass(log_p + z**2 / 2, 5e-6) == pytest.approx(0.3, abs=0.01)  # q has one mode
    log_q = -((z - 3) ** 2) / (2 * 25) - np.log(5)
    assert honesty.missed_mass(log_p - log_q, 5e-6) < 1e-3  # q has both


TELLING = (  # a case of each kind of density
    *("two modes, d = 2, 5 sd apart, 0.3 light, origin light", "spike, d = 2, sd 0.1, weight 0.7, at 0"),
    *("ring, d = 3, radius 3, width 0.3, origin its centre", "label switching, d = 4, 8 sd apart, n = 60"),
    *("t, 3 df, d = 2", "half-normal, d = 2", "Gaussian, d = 3, condition 10, scale 1, 10 sd away"),
    *("logistic, n = 100, d = 3", "Poisson, n = 100, d = 3", "log gamma 5, d = 2", "Gumbel, d = 2"),
    "schools, non-centred, 4 groups",
)


@pytest.mark.parametrize("name", TELLING)
def test_exact_draws_are_those_of_the_density(name):
    case = honesty_targets.CASES[name].make()
    z = case.draw(np.random.default_rng(1), 20_000)
    log_p = np.asarray(jax.jit(jax.vmap(honesty.as_arrays(case.density)))(jnp.asarray(z))) - case.log_z
    assert np.all(np.isfinite(log_p))
    # E_p[φ / p] = 1 for a density φ inside of p: wrong draws, or a wrong constant, give another number.
    centre, own = z[np.argmax(log_p)], z
    if name.startswith("label switching"):  # half of the draws have the labels the other way round
        own = z[np.abs(z[:, 0] - centre[0]) < np.abs(z[:, 0] - centre[1])]
    scale = np.median(np.abs(own - centre), axis=0) / 4
    if name.startswith("half-normal"):
        centre = centre + 6 * scale
    log_phi = -np.sum(((z - centre) / scale) ** 2 / 2 + np.log(scale) + math.log(2 * math.pi) / 2, axis=1)
    ratios = np.exp(log_phi - log_p)
    error = ratios.std() / math.sqrt(len(z))
    assert error < 0.2 and abs(ratios.mean() - 1) < 5 * error + 0.01


def test_the_list_is_long_enough_and_its_halves_are_fixed():
    harmless = [name for name, listed in honesty_targets.CASES.items() if listed.harmless]
    assert len(harmless) >= 60 and len(honesty_targets.CASES) - len(harmless) >= 70
    halves = {half: honesty.choose([half]) for half in ("dev", "judge")}
    assert min(map(len, halves.values())) > 60 and not set(halves["dev"]) & set(halves["judge"])
    assert honesty_targets.half("Cauchy, d = 1") == "judge" and honesty_targets.half("Cauchy, d = 5") == "dev"
    with pytest.raises(ValueError, match="--only must be dev, judge, a family"):
        honesty.choose(["nonsense"])


def test_verdicts_are_compared_with_the_truth(tmp_path):
    said = []
    only = [
        "two modes, d = 1, 50 sd apart, 0.5 light, origin elsewhere",
        "Gaussian, d = 1, condition 1, scale 1, 0 sd away",
    ]
    options = dict(seeds=1, only=only, out=tmp_path, say=said.append, num_draws=5000, resampled=2000)
    folder = honesty.run(**options)
    with (folder / "tables.csv").open() as file:
        trap, harmless = csv.DictReader(file)
    assert harmless["right"] == "True" and harmless["comfort"] == "True" and float(harmless["missed"]) < 1e-3
    assert trap["right"] == "False" and float(trap["missed"]) == pytest.approx(0.5, abs=0.03)
    assert (folder / "figures.webp").is_file() and (folder / "honesty.html").is_file()
    count = len(said)
    honesty.run(**options)  # only the criteria are said again
    assert len(said) == count + 4


@pytest.mark.parametrize(
    ("text", "comfort", "named"),
    [
        ("The approximation is close to the target: use its draws.", True, False),
        ("Usable: take fit.resample draws.", True, False),
        ("The draws are not usable.", False, False),
        ("One of several modes, with 30% of the mass.", False, True),
    ],
)
def test_words_of_comfort(text, comfort, named):
    assert bool(honesty.COMFORT.search(text)) == comfort
    assert bool(honesty.NAMES_MODES.search(text)) == named


# ---- large models ---------------------------------------------------------------------------------------------------

DIMENSIONS = {
    "surgical": 14,
    "seeds": 26,
    "rats": 65,
    "GLMM_Poisson": 45,
    "radon_mn_centred": 90,
    "radon_mn_noncentred": 90,
    "radon_mn_slopes": 175,
    "radon_all": 391,
    "irt_2pl": 144,
    "lsat": 1006,
    "uk_drivers": 389,
    "ovarian": 3075,
    "hmm_gaussian_simulated": 14,
    "normal_2": 3,
    "normal_5": 14,
    "three_docs1200": 7,
    "sir": 4,
    "sir_odeint": 4,
    "wells": 7,
    "dogs": 3,
}


@needs_posteriordb
@pytest.mark.parametrize("name", DIMENSIONS)
def test_large_models_have_the_gradient_of_their_density(name):
    target = large_models.MODELS[name](Path(os.environ["BURES_POSTERIORDB"]))
    assert target.dim == DIMENSIONS[name] == len(target.names)
    rng, h = np.random.default_rng(0), 1e-5
    start = np.asarray(target.start())
    z = start + np.vstack([np.zeros(target.dim), 0.1 * rng.standard_normal((2, target.dim))])
    direction = rng.standard_normal(z.shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    points = jnp.asarray(np.concatenate([z, z + h * direction, z - h * direction]))
    values, scores = large_models.values_and_scores(target)(points)
    assert np.all(np.isfinite(values)) and np.all(np.isfinite(scores))
    values = np.asarray(values).reshape(3, -1)
    # odeint's own error, and rounding of values near a million, limit what differences can tell.
    scale = np.abs(values[0]) * 1e-10 / h + np.linalg.norm(np.asarray(scores)[:3], axis=1) + 1
    tolerance = 1e-4 if name == "sir_odeint" else 1e-6
    error = (values[1] - values[2]) / (2 * h) - np.sum(np.asarray(scores)[:3] * direction, axis=1)
    assert np.max(np.abs(error) / scale) < tolerance


def test_models_of_the_registry_are_those_tested():
    assert set(large_models.MODELS) == set(DIMENSIONS)


@needs_posteriordb
def test_sums_over_groups_are_those_over_rows():
    folder = Path(os.environ["BURES_POSTERIORDB"])
    data = large_models.read_data(folder, "radon_mn")
    rng = np.random.default_rng(0)
    county, y = np.asarray(data["county_idx"]) - 1, np.asarray(data["log_radon"])
    x1, x2 = np.asarray(data["log_uppm"]), np.asarray(data["floor_measure"])
    a, b, slopes = rng.standard_normal(85), rng.standard_normal(2), rng.standard_normal(85)
    sums = large_models.GroupSums(county, [y, x1, x2])
    rows = np.sum((y - a[county] - b[0] * x1 - b[1] * x2) ** 2)
    np.testing.assert_allclose(sums(jnp.asarray(a), jnp.asarray(b)), rows, rtol=1e-10)
    rows = np.sum((y - a[county] - slopes[county] * x2) ** 2)
    found = large_models.SlopeSums(county, y, x2)(jnp.asarray(a), jnp.asarray(slopes))
    np.testing.assert_allclose(found, rows, rtol=1e-10)


def _naive_densities(read):
    """The models once more, row by row, by SciPy: functions of the same constrained values."""
    from scipy import stats

    def t(x, df, scale):
        return stats.t.logpdf(x, df, 0, scale).sum()

    def normal(x, mean, scale):
        return stats.norm.logpdf(x, mean, scale).sum()

    def bernoulli(y, logits):
        return stats.bernoulli.logpmf(np.asarray(y), 1 / (1 + np.exp(-np.asarray(logits)))).sum()

    def surgical(v):
        d = read("surgical_data")
        deaths = stats.binom.logpmf(d["r"], d["n"], 1 / (1 + np.exp(-v["b"]))).sum()
        scale = stats.invgamma.logpdf(v["sigmasq"], 0.001, scale=0.001)
        return deaths + normal(v["b"], v["mu"], v["sigmasq"] ** 0.5) + normal(v["mu"], 0, 1000) + scale

    def seeds(v):
        d = {name: np.asarray(x) for name, x in read("seeds_data").items()}
        a = v["alpha"]
        logits = a[0] + a[1] * d["x1"] + a[2] * d["x2"] + a[3] * d["x1"] * d["x2"] + v["b"]
        grown = stats.binom.logpmf(d["n"], d["N"], 1 / (1 + np.exp(-logits))).sum()
        effects = normal(v["b"], 0, v["tau"] ** -0.5) + stats.gamma.logpdf(v["tau"], 0.001, scale=1000)
        return grown + normal(a, 0, 1000) + effects

    def rats(v):
        d = {name: np.asarray(x) for name, x in read("rats_data").items()}
        rat = d["rat"] - 1
        weights = normal(d["y"], v["alpha"][rat] + v["beta"][rat] * (d["x"] - d["xbar"]), v["sigma_y"])
        effects = normal(v["alpha"], v["mu"][0], v["sigma"][0]) + normal(v["beta"], v["mu"][1], v["sigma"][1])
        return weights + effects + normal(v["mu"], 0, 100)

    def glmm(v):
        d = {name: np.asarray(x) for name, x in read("GLMM_Poisson_data").items()}
        rate = np.exp(v["alpha"] + sum(v["beta"][k] * d["year"] ** (k + 1) for k in range(3)) + v["eps"])
        return stats.poisson.logpmf(d["C"], rate).sum() + normal(v["eps"], 0, v["sigma"])

    def radon(v):
        d = {name: np.asarray(x) for name, x in read("radon_mn").items()}
        mean = v["alpha"][d["county_idx"] - 1] + v["beta"][0] * d["log_uppm"] + v["beta"][1] * d["floor_measure"]
        effects = normal(v["alpha"], v["mu_alpha"], v["sigma_alpha"]) + normal(v["mu_alpha"], 0, 10)
        scales = normal(v["sigma_alpha"], 0, 1) + normal(v["sigma_y"], 0, 1)
        return normal(d["log_radon"], mean, v["sigma_y"]) + effects + normal(v["beta"], 0, 10) + scales

    def irt(v):
        y = np.asarray(read("irt_2pl")["y"])
        answers = bernoulli(y, v["a"][:, None] * (v["theta"] - v["b"][:, None]))
        items = stats.lognorm.logpdf(v["a"], v["sigma_a"]).sum() + normal(v["b"], v["mu_b"], v["sigma_b"])
        scales = sum(stats.cauchy.logpdf(v[name], 0, 2) for name in ("sigma_theta", "sigma_a", "sigma_b"))
        return answers + items + normal(v["theta"], 0, v["sigma_theta"]) + normal(v["mu_b"], 0, 5) + scales

    def drivers(v):
        d = {name: np.asarray(x) for name, x in read("uk_drivers").items()}
        mu, s, sigma = v["mu"], v["seasonal"], v["sigma"]
        season = sum(normal(s[i], -s[i - 11 : i].sum(), sigma[0]) for i in range(11, s.size))
        level = normal(mu[1:], mu[:-1], sigma[1])
        seen = normal(d["y"], mu + v["beta"] * d["x"] + v["lambda"] * d["w"] + s, sigma[2])
        return season + level + seen + t(sigma, 4, 1)

    def ovarian(v):
        d = {name: np.asarray(x) for name, x in read("ovarian").items()}
        c2, scales, tau = d["slab_scale"] ** 2 * v["caux"], v["lambda"], v["tau"]
        beta = v["z"] * tau * np.sqrt(c2 * scales**2 / (c2 + tau**2 * scales**2))
        priors = normal(v["z"], 0, 1) + normal(v["beta0"], 0, d["scale_icept"]) + t(scales, d["nu_local"], 1)
        priors += t(tau, d["nu_global"], 2 * d["scale_global"])
        priors += stats.invgamma.logpdf(v["caux"], d["slab_df"] / 2, scale=d["slab_df"] / 2)
        return bernoulli(d["y"], v["beta0"] + d["x"] @ beta) + priors

    def hidden(v):
        y, K = read("hmm_gaussian_simulated")["y"], 3
        forward = np.log(v["pi1"]) + stats.norm.logpdf(y[0], v["mu"], v["sigma"])
        for seen in y[1:]:
            moved = [np.logaddexp.reduce(forward + np.log(v["A"][:, k])) for k in range(K)]
            forward = np.array(moved) + stats.norm.logpdf(seen, v["mu"], v["sigma"])
        return np.logaddexp.reduce(forward)

    def five(v):
        y = np.asarray(read("normal_5")["y"])[:, None]
        logs = np.log(v["theta"]) + stats.norm.logpdf(y, v["mu"], v["sigma"])
        return np.logaddexp.reduce(logs, axis=1).sum() + normal(v["mu"], 0, 10)

    def topics(v):
        d = read("three_docs1200")
        return sum(np.log(v["theta"][m - 1] @ v["phi"][:, w - 1]) for m, w in zip(d["doc"], d["w"], strict=True))

    return {
        "surgical": surgical,
        "seeds": seeds,
        "rats": rats,
        "GLMM_Poisson": glmm,
        "radon_mn_centred": radon,
        "irt_2pl": irt,
        "uk_drivers": drivers,
        "ovarian": ovarian,
        "hmm_gaussian_simulated": hidden,
        "normal_5": five,
        "three_docs1200": topics,
    }


@needs_posteriordb
def test_large_models_are_what_their_table_says():
    folder = Path(os.environ["BURES_POSTERIORDB"])
    rng = np.random.default_rng(0)
    for name, naive in _naive_densities(lambda data: large_models.read_data(folder, data)).items():
        target = large_models.MODELS[name](folder)
        points = target.start() + 0.2 * rng.standard_normal((2, target.dim))
        values = [jax.tree.map(np.asarray, jax.jit(target.constrain)(z)) for z in points]
        # On the constrained scale the two differ by a constant.
        density = large_models.density(name, folder)
        ours = [float(jax.jit(lambda v, density=density: density(**v))(v)) for v in values]
        theirs = [float(naive(v)) for v in values]
        np.testing.assert_allclose(ours[0] - ours[1], theirs[0] - theirs[1], rtol=1e-8, atol=1e-6, err_msg=name)


# ---- before and after -----------------------------------------------------------------------------------------------


def test_two_versions_are_run_in_turn(tmp_path):
    repository = Path(__file__).parent.parent
    options = dict(seeds=1, only=["Gaussian, d = 1"], out=tmp_path, num_samples=500, rounds=1)
    folder = before_after.run(repository, **options)
    with (folder / "tables.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["fit_and_print, ratio"]) > 0 and float(row["steps_alone, ratio"]) > 0
    assert row["elbo, old"] == row["elbo, new"] and float(row["ness, new"]) > 0.9  # the same code, key and noise
    assert row["evaluations, old"] == row["evaluations, new"]
    with pytest.raises(ValueError, match="old must be a checkout"):
        before_after.run(tmp_path)


def test_what_got_worse_is_marked():
    def fits(seconds, ness, elbo):
        facts = {"evaluations": 100, "steps": 3, "outcome": "CONVERGED", "steps_alone": 0.1}
        return [{"fit_and_print": seconds, "ness": ness, "elbo": elbo, **facts}] * 3

    def marks(**new):
        found = {
            "dim": 2,
            "old": fits(1.0, 0.9, -3.0),
            "new": fits(**({"seconds": 1, "ness": 0.9, "elbo": -3.0} | new)),
        }
        return before_after.compare("eggbox", found)["marks"]

    assert marks() == ""
    assert marks(seconds=1.05) == "" and marks(seconds=1.2) == "slower"
    assert marks(ness=0.8) == "lower nESS" and marks(elbo=-3.1) == "lower ELBO"
    failed = before_after.compare("eggbox", {"failed": "no such luck"})
    grid = before_after.table(
        [failed, before_after.compare("eggbox", {"dim": 2, "old": fits(1, 1, 0), "new": fits(2, 1, 0)})]
    )
    assert "2 of 2 worse" in grid.title and "no such luck" in grid.rows[0][1]
