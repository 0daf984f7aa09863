"""`bench families`: densities that are what they claim, one judge for all, cells that are kept, and what tables say."""

import csv
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, stats

import bures
from bures.benchmarks import (
    families,
    families_alone,
    families_cells as cells,
    families_models as models,
    families_report as report,
    peers,
)
from bures.benchmarks.families_cells import AUTO_LOW_RANK, AUTO_NORMAL, DEFAULT, LOW_RANK, MEAN_FIELD
from tests.problems import needs_posteriordb, needs_sampling

# ---- Densities ------------------------------------------------------------------------------------------------------


def naive_cox(points, grid, f):
    """Cell by cell, with a factorisation anew."""
    counts = np.histogram2d(*points.T, bins=grid, range=[[0, 1], [0, 1]])[0].ravel()
    cells = [(i, j) for i in range(grid) for j in range(grid)]
    covariance = np.array([[1.91 * np.exp(-np.hypot(i - m, j - n) / (40 / 33)) for m, n in cells] for i, j in cells])
    mean = np.full(grid**2, np.log(len(points)) - 1.91 / 2)
    return stats.multivariate_normal(mean, covariance).logpdf(f) + np.sum(counts * f - np.exp(f) / grid**2)


def test_the_cox_process_is_that_of_its_definition():
    rng = np.random.default_rng(0)
    points = rng.random((30, 2))
    density = models.cox(points, grid=5)
    f = rng.standard_normal(25)
    np.testing.assert_allclose(density(jnp.asarray(f)), naive_cox(points, 5, f), rtol=1e-10)


@needs_sampling
def test_the_pines_are_all_there():
    folder = models.find_sampling()
    density = models.cox(models.read_pines(folder))
    assert density.counts.size == models.DIMENSIONS[models.COX] == 1600
    f = 0.3 * np.random.default_rng(0).standard_normal(1600) + density.mean
    assert float(jnp.sum(density.counts)) == 126 and density.mean == pytest.approx(np.log(126) - 0.955)
    chol = np.linalg.cholesky(models.cox_covariance(40))
    noise = linalg.solve_triangular(chol, f - density.mean, lower=True)
    prior = -noise @ noise / 2 - np.sum(np.log(np.diagonal(chol))) - 800 * np.log(2 * np.pi)
    seen = np.sum(np.asarray(density.counts) * f - np.exp(f) / 1600)
    np.testing.assert_allclose(density(jnp.asarray(f)), prior + seen, rtol=1e-9)


def differences(density, naive):
    """Of two points: ours and another's log density of the same constrained values."""
    rng = np.random.default_rng(0)
    target = bures.Target.from_variables(density, density.variables())
    points = [target.constrain(jnp.asarray(0.3 * rng.standard_normal(target.dim))) for _ in range(2)]
    values = [{name: np.asarray(value) for name, value in point.items()} for point in points]
    return [float(f(**values[0])) - float(f(**values[1])) for f in (density, naive)]


def test_stochastic_volatility_is_that_of_stans_manual():
    density = models.volatility(40)
    y = np.asarray(density.y)

    def naive(mu, phi, sigma, h):
        path = stats.norm.logpdf(h[0], mu, sigma / np.sqrt(1 - phi**2))
        path += sum(stats.norm.logpdf(h[t], mu + phi * (h[t - 1] - mu), sigma) for t in range(1, 40))
        seen = stats.norm.logpdf(y, 0, np.exp(h / 2)).sum()
        return path + seen + stats.cauchy.logpdf(sigma, 0, 5) + stats.cauchy.logpdf(mu, 0, 10)

    np.testing.assert_allclose(*differences(density, naive), rtol=1e-10)


def test_the_network_is_a_network():
    density = models.network(inputs=3, hidden=4, n=20)
    X, y = np.asarray(density.X), np.asarray(density.y)

    def naive(w, b, v, c, log_noise):
        f = [sum(v[j] / 2 * np.tanh(w[j] @ x / np.sqrt(3) + b[j]) for j in range(4)) + c for x in X]
        weights = sum(stats.norm.logpdf(each).sum() for each in (w, b, v, c))
        return stats.norm.logpdf(y, f, np.exp(log_noise)).sum() + weights + stats.norm.logpdf(log_noise, -1, 1)

    np.testing.assert_allclose(*differences(density, naive), rtol=1e-10)


@needs_posteriordb
def test_the_eleven_have_their_dimensions():
    names = [name for name in models.MODELS if name != models.COX]  # which has a test of its own
    folders = models.find_folders(names)
    for name in names:
        target = models.MODELS[name](folders)
        assert target.dim == models.DIMENSIONS[name]


def test_folders_are_asked_for_only_where_needed(monkeypatch, tmp_path):
    monkeypatch.delenv("BURES_SAMPLING", raising=False)
    assert models.find_folders(["network"]) == (None, None)
    with pytest.raises(ValueError, match="BURES_SAMPLING"):
        models.find_folders([models.COX])
    with pytest.raises(ValueError, match="--sampling must be a folder with pines"):
        models.find_folders([models.COX], sampling=tmp_path)


@pytest.mark.parametrize("kind", models.GAUSSIANS)
def test_gaussians_in_factors_are_those_in_full(kind):
    target = models.gaussian(12, kind, rank=3)
    p = target.log_density
    columns, variances = np.asarray(p.columns), np.asarray(p.variances)
    covariance = np.diag(variances) + columns @ columns.T
    assert variances.max() / variances.min() == pytest.approx(1e4)
    full = bures.Gaussian.from_moments(p.mean, jnp.asarray(covariance))
    z = full.sample(jax.random.key(0), 5)
    np.testing.assert_allclose(jax.vmap(p)(z), full.log_prob(z), rtol=1e-9)
    draws = np.asarray(p.sample(jax.random.key(1), 20_000))
    deviations = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((np.cov(draws.T) - covariance) / np.outer(deviations, deviations), 0, atol=0.05)
    # KL from a Gaussian in factors, wider along some of them and narrower along others, and from one in full.
    rng = np.random.default_rng(1)
    weights = np.array([0.7, 0.2, -0.002])
    q = models.Factors(np.asarray(p.mean) + rng.standard_normal(12), variances * 1.3, columns, weights)
    matrix = np.diag(q.variances) + (columns * weights) @ columns.T
    other = bures.Gaussian.from_moments(jnp.asarray(q.mean), jnp.asarray(matrix))
    assert p.kl_from(q) == pytest.approx(float(other.kl(full)), rel=1e-9)
    assert q.entropy() == pytest.approx(float(other.entropy()), rel=1e-9)
    assert p.kl_from(families_alone.factors(other)) == pytest.approx(float(other.kl(full)), rel=1e-9)
    assert p.kl_from(families_alone.factors(full)) == pytest.approx(0, abs=1e-9)


def test_parts_of_a_low_rank_gaussian_are_checked_against_what_it_says():
    rng = np.random.default_rng(0)
    scale, basis, variances = rng.random(6) + 1, np.linalg.qr(rng.standard_normal((6, 2)))[0], np.array([5.0, 0.2])
    matrix = scale[:, None] * (np.eye(6) + (basis * (variances - 1)) @ basis.T) * scale
    same = bures.Gaussian.from_moments(jnp.zeros(6), jnp.asarray(matrix))
    parts = dict(mean=np.zeros(6), scale=scale, basis=basis, variances=variances, entropy=same.entropy)
    q = types.SimpleNamespace(**parts, standard_deviations=same.standard_deviations)
    found = families_alone.factors(q)
    np.testing.assert_allclose(np.diag(found.variances) + (found.columns * found.weights) @ found.columns.T, matrix)
    q.scale = 2 * scale  # the parts mean something else
    assert families_alone.factors(q) is None
    assert families_alone.factors(types.SimpleNamespace(mean=np.zeros(6))) is None


# ---- Contestants and their judge ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepare", [peers.numpyro_low_rank, peers.numpyro_diagonal])
def test_peers_in_factors_find_a_gaussian(prepare):
    target = bures.Target(lambda z: -((z[0] - 1) ** 2) - (z[1] - z[0]) ** 2, 2)
    with peers.quiet():
        q = prepare(target, {"numpyro_steps": 3000, "numpyro_step_size": 0.01})(0).approximation
    draws = np.asarray(q.sample(jax.random.key(0), 4000))
    np.testing.assert_allclose(draws.mean(0), [1, 1], atol=0.3)
    covariance = [[0.5, 0.5], [0.5, 1.0]] if q.rank else [[0.25, 0], [0, 0.5]]
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.3)
    z = draws[:3]
    exact = stats.multivariate_normal(*_moments(q)).logpdf(z)
    np.testing.assert_allclose(q.log_prob(jnp.asarray(z)), exact, rtol=1e-6)


def _moments(q):
    base = q.distribution
    covariance = base.covariance_matrix if q.rank else np.diag(np.asarray(base.variance))
    return np.asarray(base.mean), np.asarray(covariance)


def test_one_judge_for_all():
    q = bures.Gaussian(jnp.ones(3), jnp.diag(jnp.array([1.0, 2.0, 3.0])))
    exact = cells.judge(q, bures.Target(lambda z: q.log_prob(z) - 2.0, 3), 0, 1000, block=300)
    assert exact["elbo"] == pytest.approx(-2) and exact["elbo_error"] < 1e-6
    wide = bures.Gaussian.standard(3)
    found = cells.judge(wide, bures.Target(lambda z: q.log_prob(z), 3), 0, 4000)
    assert abs(found["elbo"] + float(wide.kl(q))) < 4 * found["elbo_error"] < 0.5
    half = bures.Target(lambda z: jnp.where(z[0] > 0, -z @ z, -jnp.inf), 3)
    assert cells.judge(wide, half, 0, 100) == {"elbo": None, "elbo_error": None, "khat": None}


def test_a_family_is_passed_on_where_it_is_asked_for(monkeypatch):
    asked = []
    fit = bures.fit(bures.models.gaussian(2), key=jax.random.key(0), progress=False)
    monkeypatch.setattr(bures, "MeanField", lambda: "mean field", raising=False)
    monkeypatch.setattr(bures, "fit", lambda target, *, key, progress, **options: asked.append(options) or fit)
    for name in (DEFAULT, MEAN_FIELD):
        found = cells.CONTESTANTS[name](fit.target, {})(0)
    assert asked == [{}, {"family": "mean field"}]
    assert found.facts["evaluations"] == fit.num_log_density_evaluations and found.facts["verdict"] == "close"


# ---- Running --------------------------------------------------------------------------------------------------------

TINY = {
    "numpyro_steps": 50,
    "num_samples": 300,
    "rounds": 1,
    "peer_factor": 1,
    "gaussians": [[12, 1]],
    "unchanged": ["Gaussian, d = 1"],
    "unchanged_rounds": 1,
}


def _tiny_model(monkeypatch):
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # other tests have use for them
    density = models.volatility(3)
    target = bures.Target.from_variables(density, density.variables())
    monkeypatch.setitem(models.MODELS, "tiny", lambda folders: target)
    monkeypatch.setitem(models.DIMENSIONS, "tiny", target.dim)


def test_models_gaussians_and_versions_are_measured_told_and_kept(tmp_path, monkeypatch):
    _tiny_model(monkeypatch)
    monkeypatch.setattr(models, "GAUSSIANS", ("fixed",))
    monkeypatch.setattr(families, "GAUSSIANS", ("fixed",))
    said = []
    repository = str(Path(__file__).parent.parent)
    chosen = dict(only=["tiny", "gaussians", "unchanged"], methods=[DEFAULT, AUTO_NORMAL], old=repository)
    options = dict(seeds=1, out=tmp_path, say=said.append, **chosen, **TINY)
    folder = families.run(**options)
    assert said[0] == "0/4 tiny--bures.fit--0" and len(said) == 15  # four cells, eleven criteria
    with (folder / "tables.csv").open() as file:
        ours, theirs, gaussian = csv.DictReader(file)
    assert 0 < float(ours["warm_seconds"]) <= float(ours["cold_seconds"]) and ours["outcome"] == "CONVERGED"
    assert float(ours["elbo"]) > float(theirs["elbo"]) and theirs["evaluations"] == "50"
    assert abs(float(gaussian["kl"])) < 1e-6 and float(gaussian["step_seconds"]) > 0
    told = (folder / "tables.md").read_text()
    assert "Gaussians: KL per thousand dimensions" in told and "| fixed | 12 | Gaussian |" in told
    assert "full Gaussian: seconds a step, new / old, median | ≤ 1.05 |" in told
    assert (folder / "figures.webp").is_file() and "(figures.webp)" in told
    assert "data:image/png;base64," in (folder / "families.html").read_text()
    families.run(**options)  # only the criteria are said again
    assert len(said) == 26


def test_a_contestant_that_fails_is_a_result(monkeypatch, tmp_path):
    def failing(target, settings):
        raise RuntimeError("no such luck")

    _tiny_model(monkeypatch)
    monkeypatch.setitem(cells.CONTESTANTS, AUTO_NORMAL, failing)
    options = dict(seeds=1, only=["tiny"], methods=[DEFAULT, AUTO_NORMAL], out=tmp_path)
    folder = families.run(**options, **TINY)
    assert "RuntimeError: no such luck" in (folder / "tables.md").read_text()


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--only must be one of"):
        families.run(only=["nonsense"], out=tmp_path)
    with pytest.raises(ValueError, match="--method must be one of"):
        families.run(only=["network"], methods=["nonsense"], out=tmp_path)
    with pytest.raises(ValueError, match="--old must be a commit or a checkout"):
        families.run(only=["unchanged"], old="nonsense", out=tmp_path)


def test_a_commit_is_unpacked():
    if not (Path(families.__file__).parents[3] / ".git").exists():
        pytest.skip("not a clone of the repository")
    with families._sources("HEAD") as sources:
        assert (sources["old"] / "bures" / "__init__.py").is_file()
    assert families._versions("HEAD")["new"].startswith(families._versions("HEAD")["old"][:7])


# ---- Arrays ---------------------------------------------------------------------------------------------------------


def test_the_largest_array_of_compiled_programs(tmp_path):
    name = "module_0001.jit_step.cpu_after_optimizations.txt"
    (tmp_path / name).write_text("%a = f64[10,20]{1,0} parameter(0)\n ROOT %b = f64[3,100,2]{2,1,0} dot(f64[10]{0} %c)")
    (tmp_path / "module_0001.jit_step.before_optimizations.txt").write_text("f64[1000,1000]")
    found = families_alone.largest_compiled(tmp_path)
    assert found == {"elements": 600, "shape": "3,100,2", "program": "jit_step"}


def test_the_largest_array_of_numpy():
    import time

    with families_alone.largest_of_numpy(every=0.005) as found:
        x = np.ones((300, 1000))
        time.sleep(0.1)
        del x
    assert 300_000 <= found["elements"] < 310_000


# ---- Tables ---------------------------------------------------------------------------------------------------------


def made_up(lower=(), slower=()):
    """Figures of all eleven models and of the Gaussians, made up: what is tested is what the tables make of them."""
    results = {}
    for model, d in models.DIMENSIONS.items():
        for contestant, below in (
            (DEFAULT, 0),
            (MEAN_FIELD, 9),
            (LOW_RANK, 0.1),
            (AUTO_LOW_RANK, 20),
            (AUTO_NORMAL, 12),
        ):
            ours = contestant in (DEFAULT, MEAN_FIELD, LOW_RANK)
            for seed in range(2):
                elbo = -d - below * d**0.3 + 0.01 * seed - (1000 if contestant == DEFAULT and model in lower else 0)
                seconds = d / 1000 * (0.3 if ours else 1) * (10 if contestant == DEFAULT and model in slower else 1)
                found = {"elbo": elbo, "elbo_error": 0.02, "khat": 0.6, "warm_seconds": seconds, "cold_seconds": 3.0}
                found |= {"steps": 40, "evaluations": int(900 * d**0.5), "outcome": "CONVERGED"}
                if ours:
                    phases = {"start": 100, "steps": 800, "search": 0, "judgement": 400}
                    found |= {"family": "LowRank", "verdict": "usable", "evaluations_by_phase": phases}
                found["rank"] = int(d**0.4) if contestant in (DEFAULT, LOW_RANK) else None
                parameters = dict(section="models", model=model, contestant=contestant, seed=seed)
                results[f"{model}{contestant}{seed}"] = {"parameters": parameters, "result": found}
    for kind in models.GAUSSIANS:
        for d in (1_000, 10_000, 100_000):
            fit = {
                "family": "LowRank",
                "rank": 10,
                "outcome": "CONVERGED",
                "steps": 20,
                "evaluations": 4000,
                "draws": 100,
                "evaluations_by_phase": {"start": 100, "steps": 2000, "search": 0, "judgement": 2000},
            }
            fit |= {"seconds": d * (4e-4 if kind == "fixed" else 6e-4), "step_seconds": 1e-5 * d**1.05}
            fit |= {"kl": d * 2e-6, "kl_by_draws": d * 2e-6, "kl_error": 1e-3}
            compiled = {"elements": 100 * d, "shape": f"100,{d}", "program": "jit__evaluate"}
            found = {"fits": [fit, fit], "memory": {"before": 0, "peak": 2**30 + 30_000 * d}}
            found |= {"largest_compiled": compiled, "largest_of_numpy": 2000 * d if d < 100_000 else None}
            results[f"{kind}{d}"] = {"parameters": dict(section="gaussians", kind=kind, dim=d), "result": found}
    return results


SETTINGS = families.SETTINGS | {"models": list(models.DIMENSIONS), "contestants": list(cells.CONTESTANTS)}


def test_tables_judge_by_the_criteria(tmp_path):
    lines = report.write(made_up(), SETTINGS, tmp_path)
    assert [line.split()[-1] for line in lines] == ["yes"] * 10
    told = (tmp_path / "tables.md").read_text()
    assert "Criteria: 10 of 10 hold" in told and "d^0.5" in told and "| fixed | 100,000 | LowRank | 10 |" in told
    lines = report.write(made_up(lower=["rats", "lsat", "ovarian"], slower=["lsat"]), SETTINGS, tmp_path)
    assert [line.split()[-1] for line in lines][:3] == ["no", "no", "yes"]
    told = (tmp_path / "tables.md").read_text()
    assert "| ≤ 2 | 3 | no | rats, lsat, ovarian |" in told and "| ≤ 0 | 1 | no | lsat |" in told


def test_what_was_not_run_is_not_judged(tmp_path):
    some = SETTINGS | {"models": ["rats", "lsat"], "contestants": [DEFAULT, AUTO_NORMAL]}
    lines = report.write(made_up(lower=["rats"]), some, tmp_path)
    assert [line.split()[-1] for line in lines][:3] == ["–", "–", "yes"]
    lines = report.write(made_up(lower=["rats"]), SETTINGS | {"models": ["rats", "lsat"]}, tmp_path)
    assert [line.split()[-1] for line in lines][:3] == ["yes", "no", "yes"]  # of two models none is spared


def test_a_size_that_failed_keeps_no_limit(tmp_path):
    results = made_up()
    results["fixed100000"]["result"] = {"outcome": "FAILED", "message": "RuntimeError: out of memory"}
    lines = report.write(results, SETTINGS, tmp_path)
    assert "Gaussians: KL per thousand dimensions, largest: inf (≤ 0.01) no" in lines
    assert "RuntimeError: out of memory" in (tmp_path / "tables.md").read_text()


def test_every_run_above_every_other_is_told_and_not_counted():
    def runs(*elbos):
        return [{"elbo": elbo, "elbo_error": 0.1} for elbo in elbos]

    ours, spread = runs(-1.0, -1.1, -1.2, -1.0, -1.1), runs(-23_000.0, -4_800.0, -1_100.0)
    assert not report.is_higher(report.summarise_elbo(ours), report.summarise_elbo(spread))
    entries = [report.Entry(runs, report.summarise_elbo(runs)) for runs in (ours, spread)]
    assert report.is_apart(ours, spread) and not entries[0].beats(entries[1])
    assert report._gain(*entries).endswith(" †") and "**" not in report._gain(*entries)
    assert not report.is_apart(ours[:3], spread)  # three and three are apart by chance once in twenty times
    assert not report.is_apart(ours, runs(-23_000.0, -4_800.0, -1.4))  # not by two errors
    assert report.is_apart(ours, [*spread, {"elbo": None, "elbo_error": None}])
    assert not report.is_apart([*ours, {"elbo": None, "elbo_error": None}], spread)


def test_an_elbo_is_higher_by_two_standard_errors():
    one = report.Elbo(-3.0, 0.1)
    assert report.is_higher(one, report.Elbo(-3.5, 0.1)) and not report.is_higher(one, report.Elbo(-3.2, 0.1))
    assert report.is_higher(one, None) and not report.is_higher(None, one) and not report.is_higher(None, None)
    runs = [{"elbo": -3.0, "elbo_error": 0.1}, {"elbo": -5.0, "elbo_error": 0.1}]
    assert report.summarise_elbo(runs) == pytest.approx((-4.0, 1.0))  # the seeds' spread is the larger
    assert report.summarise_elbo([*runs, {"outcome": "FAILED"}]) is None


def test_comfort_without_reason_is_not_honest():
    run = {"outcome": "CONVERGED", "verdict": "usable", "khat": 0.5}
    assert report.Entry([run], None).is_honest
    assert not report.Entry([run | {"khat": 1.2}], None).is_honest
    assert report.Entry([run | {"khat": 1.2, "verdict": "untrusted"}], None).is_honest
    assert not report.Entry([run | {"outcome": "FAILED"}], None).is_honest


def test_a_power_law_is_found():
    law = report.fit_law([10, 100, 1000], [3 * d**0.7 for d in (10, 100, 1000)])
    assert law == pytest.approx((3.0, 0.7)) and str(law) == "3 d^0.70"
    assert report.fit_law([10], [3.0]) is None and report.fit_law([10, 20], [3.0, None]) is None
