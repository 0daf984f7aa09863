"""`bench ladder`: targets that are what they claim, one judge for all, cells that are kept, and what tables say."""

import csv
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import needs_posteriordb, needs_sampling
from scipy import stats

import bures
from bures.benchmarks import (
    honesty_targets,
    ladder,
    ladder_cells as cells,
    ladder_centring as centring,
    ladder_fits as fits,
    ladder_honesty as honesty,
    ladder_models as models,
    ladder_nuts,
    ladder_sample as sample,
    ladder_sections as sections,
    ladder_targets as targets,
    large_models,
)
from bures.benchmarks.families_models import Folders
from bures.benchmarks.ladder_cells import GAUSSIAN, MIXTURE, REFINE, SAMPLE

NOWHERE = Folders(None, None)
TOYS = [name for name, listed in targets.TARGETS.items() if listed.data is None and listed.dim < 90]
NORMALISED = [name for name in TOYS if targets.TARGETS[name].log_evidence == 0]

# ---- Targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMALISED)
def test_a_normalised_target_has_exact_draws(name):
    target = targets.TARGETS[name].make(NOWHERE)
    assert target.dim == targets.TARGETS[name].dim
    z = target.sample(jax.random.key(0), 4000)
    assert z.shape == (4000, target.dim) and np.all(np.isfinite(target.value(z)))
    scores = np.asarray(target.value_and_score(z)[1])  # E_p[∇log p] = 0
    error = scores.std(axis=0) / math.sqrt(len(scores))
    assert np.all(np.abs(scores.mean(axis=0)) < 4.5 * error)


@pytest.mark.parametrize(("make", "half_width"), [(targets.mog40, 45), (lambda: targets.two_modes(2), 16)])
def test_mixtures_of_the_plane_integrate_to_one(make, half_width):
    grid = np.arange(-half_width, half_width, 0.25)
    points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    assert np.exp(make().value(jnp.asarray(points))).sum() * 0.25**2 == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("make", [targets.mog40, lambda: targets.ten_gaussians(5), lambda: targets.two_modes(10)])
def test_mixtures_are_those_of_their_parts(make):
    target = make()
    p = target.log_density
    weights, covariances = np.exp(p.log_weights), p.chols @ p.chols.transpose(0, 2, 1)
    assert weights.sum() == pytest.approx(1)
    z = np.asarray(target.sample(jax.random.key(1), 20_000))
    zipped = zip(weights, p.means, covariances, strict=True)
    parts = [weight * stats.multivariate_normal(m, c).pdf(z[:50]) for weight, m, c in zipped]
    np.testing.assert_allclose(target.value(jnp.asarray(z[:50])), np.log(np.sum(parts, axis=0)), rtol=1e-8)
    deviations = np.sqrt(np.diagonal(target.covariance))
    np.testing.assert_allclose((z.mean(axis=0) - target.mean) / deviations, 0, atol=0.03)
    np.testing.assert_allclose((np.cov(z.T) - target.covariance) / np.outer(deviations, deviations), 0, atol=0.04)


def test_modes_are_where_the_definitions_have_them():
    for dim in (2, 10, 50):
        means = np.asarray(targets.two_modes(dim).log_density.means)
        assert np.linalg.norm(means[0] - means[1]) == pytest.approx(20)
        np.testing.assert_allclose(means.sum(axis=0), 0, atol=1e-12)
    ten, forty = targets.ten_gaussians(20).log_density, targets.mog40().log_density
    assert ten.means.shape == (10, 20) and np.abs(ten.means).max() < 10 and np.ptp(ten.log_weights) > 0.5
    # The mean of a Wishart of d + 2 degrees of freedom and scale I / d has the trace d + 2.
    traces = np.sum(np.asarray(ten.chols) ** 2, axis=(1, 2))
    assert abs(traces.mean() - 22) < 4 * math.sqrt(2 * 22 / 20 / 10) * math.sqrt(20)
    assert forty.means.shape == (40, 2) and 30 < np.abs(forty.means).max() < 40


def test_the_robot_is_that_of_its_definition():
    target, rng = targets.robot(), np.random.default_rng(0)
    theta = rng.standard_normal(10) * 0.2
    x = sum(math.cos(theta[: i + 1].sum()) for i in range(10))
    y = sum(math.sin(theta[: i + 1].sum()) for i in range(10))
    prior = stats.norm.logpdf(theta, 0, [1] + 9 * [0.2]).sum()
    goals = [stats.norm.logpdf([x, y], goal, 0.01).sum() for goal in ((7, 0), (-7, 0), (0, 7), (0, -7))]
    np.testing.assert_allclose(target.log_density(jnp.asarray(theta)), prior + max(goals), rtol=1e-10)


@needs_sampling
@pytest.mark.parametrize(("name", "rows", "positive"), [("German credit", 1000, 300), ("breast cancer", 569, 357)])
def test_regressions_are_those_of_their_data(name, rows, positive):
    folders = targets.find_folders({targets.TARGETS[name].data})
    target = targets.TARGETS[name].make(folders)
    data = np.loadtxt(folders.sampling / targets.TARGETS[name].data)
    y, columns = (data[:, 24] - 1, data[:, :24]) if name == "German credit" else (data[:, 1], data[:, 2:])
    assert len(data) == rows and y.sum() == positive and target.dim == targets.TARGETS[name].dim
    z = 0.1 * np.random.default_rng(0).standard_normal(target.dim)
    logits = z[0] + (columns / columns.std(axis=0)) @ z[1:]
    expected = stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-logits))).sum() + stats.norm.logpdf(z, 0, 10).sum()
    np.testing.assert_allclose(target.log_density(jnp.asarray(z)), expected, rtol=1e-10)


@needs_posteriordb
def test_posteriors_have_their_dimensions():
    names = [name for name, listed in targets.TARGETS.items() if "-" in str(listed.data) and name in targets.MIXTURES]
    folders = targets.find_folders({targets.TARGETS[name].data for name in names})
    assert len(names) == 5
    for name in names:
        assert targets.TARGETS[name].make(folders).dim == targets.TARGETS[name].dim


def test_folders_are_asked_for_only_where_needed(monkeypatch, tmp_path):
    monkeypatch.delenv("BURES_SAMPLING", raising=False)
    assert targets.find_folders({None}) == NOWHERE
    with pytest.raises(ValueError, match="BURES_SAMPLING"):
        targets.find_folders({targets.GERMAN})
    with pytest.raises(ValueError, match="--sampling must be a folder with breast_cancer"):
        targets.find_folders({targets.BREAST}, sampling=tmp_path)


MODELS_NAMES = {
    f"{kind}_{effect}": f"{kind}[{i}]" for kind in ("mu", "sigma") for i, effect in enumerate(("alpha", "beta"))
}


@needs_posteriordb
@pytest.mark.parametrize("name", [name for name, model in models.MODELS.items() if model.density])
def test_models_in_numpyro_are_those_of_the_other_benchmarks(name):
    folder = targets.find_folders({"posteriordb"}).posteriordb
    ours, theirs = models.target(name, folder), large_models.MODELS[models.MODELS[name].density](folder)
    assert ours.dim == theirs.dim == models.MODELS[name].dim
    known = {each: i for i, each in enumerate(ours.names)}
    if name in ("rats", "radon slopes"):  # there means and deviations are vectors
        known |= {MODELS_NAMES[each]: i for each, i in known.items() if each in MODELS_NAMES}
    order = np.array([known[each] for each in theirs.names])
    z = jnp.asarray(0.3 * np.random.default_rng(0).standard_normal((2, ours.dim)))
    differences = [
        np.diff([float(target.log_density(point)) for point in points])
        for target, points in ((ours, z), (theirs, z[:, order]))
    ]
    np.testing.assert_allclose(*differences, rtol=1e-8)


def test_both_forms_of_eight_schools_are_one_model():
    """Where θ = μ + τ η the densities differ by the Jacobian τ⁸."""
    import numpyro

    one, two = (bures.frontends.from_numpyro(models.eight_schools(centred=centred)) for centred in (True, False))
    assert numpyro is not None and one.dim == two.dim == models.MODELS["eight schools"].dim
    z = 0.5 * jax.random.normal(jax.random.key(0), (one.dim,))
    by_name = dict(zip(two.names, z, strict=True))
    mu, log_tau = by_name["mu"], by_name["tau"]
    centred = {each: by_name.get(each, 0.0) for each in one.names}
    centred |= {f"theta[{i}]": mu + jnp.exp(log_tau) * by_name[f"theta_raw[{i}]"] for i in range(8)}
    value = one.log_density(jnp.stack([jnp.asarray(centred[each]) for each in one.names]))
    np.testing.assert_allclose(value + 8 * log_tau, two.log_density(z), rtol=1e-10)


def test_there_are_more_than_a_hundred_traps():
    assert len(honesty_targets.TRAPS) >= 100 and len(honesty_targets.CASES) == 150  # those of `bench honesty`
    families = {listed.family for listed in honesty_targets.TRAPS.values()}
    assert {"modes", "spike and slab", "rings", "label switching", "heavy tails", "cut", "Rosenbrock"} <= families


@pytest.mark.parametrize(
    "name", ["Rosenbrock, d = 2", "Rosenbrock, d = 10", "two modes, d = 15, 25 sd apart, 0.2 light, origin light"]
)
def test_further_traps_are_normalised(name):
    """E_p[r / p] = 1 for a normalised r inside of p: here p itself, moved a little."""
    case = honesty_targets.TRAPS[name].make()
    density = jax.vmap(honesty.as_arrays(case.density))
    z = case.draw(np.random.default_rng(0), 20_000)
    log_p, moved = (np.asarray(density(jnp.asarray(points))) for points in (z, z + 0.02))
    ratio = np.exp(moved - log_p)
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / math.sqrt(len(z)) < 0.05


# ---- Contestants and their judge ------------------------------------------------------------------------------------


def test_one_judge_for_all():
    q = bures.Gaussian(jnp.ones(3), jnp.diag(jnp.array([1.0, 2.0, 3.0])))
    exact = cells.judge(q, bures.Target(lambda z: q.log_prob(z) - 2.0, 3), 0, 1000)
    assert exact["elbo"] == pytest.approx(-2) and exact["log_evidence"] == pytest.approx(-2)
    assert exact["ness"] == pytest.approx(1) and exact["khat"] == -1 and exact["draws"] == 1000
    wide = bures.Gaussian.standard(3)
    found = cells.judge(wide, bures.Target(lambda z: q.log_prob(z), 3), 0, 1000, error=0.02)
    assert found["draws"] > 1000 and found["elbo_error"] < 0.03
    assert abs(found["elbo"] + float(wide.kl(q))) < 4 * found["elbo_error"]
    half = bures.Target(lambda z: jnp.where(z[0] > 0, -z @ z, -jnp.inf), 3)
    cut = cells.judge(wide, half, 0, 200)
    assert cut["elbo"] is None and cut["elbo_error"] is None and 0 < cut["ness"] < 0.6
    assert cells.judge(wide, bures.Target(lambda z: jnp.nan * z[0], 3), 0, 200)["ness"] == 0


def test_what_a_fit_says_of_itself():
    fit = bures.fit(bures.models.gaussian(2), key=jax.random.key(0), progress=False)
    said = cells.facts(fit)
    assert said["evaluations"] == fit.num_log_density_evaluations and said["components"] == 1
    assert said["beyond"] == said["evaluations"] - fit.evaluations.start - fit.evaluations.judgement
    assert cells.components_of(types.SimpleNamespace(weights=np.ones(4))) == 4
    assert cells.components_of(types.SimpleNamespace(num_components=7)) == 7


def test_a_refined_fit_is_judged_in_its_own_coordinates():
    target = bures.frontends.from_numpyro(models.eight_schools())
    found = cells.measure(REFINE, target, 0, {"num_samples": 1000})
    assert found["ness"] > 0.5 and found["evaluations"] > 1000
    assert found["log_evidence"] == pytest.approx(-31.31, abs=0.15)


# ---- Running --------------------------------------------------------------------------------------------------------

TINY = dict(num_samples=300, elbo_error=0.1)


def test_fits_are_measured_told_and_kept(tmp_path, monkeypatch):
    monkeypatch.setitem(cells.CONTESTANTS, MIXTURE, cells.gaussian)
    monkeypatch.setattr(ladder, "available", lambda names: [GAUSSIAN, MIXTURE])
    said = []
    chosen = ["eggbox", "two modes, d = 2", "ten Gaussians, d = 20"]
    options = dict(seeds=1, only=chosen, methods=[GAUSSIAN, MIXTURE], out=tmp_path, say=said.append, **TINY)
    folder = ladder.run(**options)
    assert said[0] == "0/6 mixtures--eggbox--Gaussian--0" and len(said) == 9  # six cells, three criteria
    with (folder / "tables.csv").open() as file:
        records = list(csv.DictReader(file))
    assert [record["section"] for record in records] == ["mixtures"] * 2 + ["modes"] * 2 + ["published"] * 2
    assert 0.2 < float(records[0]["ness"]) < 0.5 and float(records[0]["evaluations"]) > 1000
    told = (folder / "tables.md").read_text()
    assert "Criteria: 0 of 3 hold" in told and "(≥ 0.99) no" in told
    assert "| two modes, d = 2 | 2 | 0 (≥ 0.9) no |" in told
    assert (folder / "figures.webp").is_file() and (folder / "ladder.html").is_file()
    ladder.run(**(options | dict(only=["eggbox"])))  # nothing is run again, and the page still has the others
    assert len(said) == 12 and (folder / "tables.md").read_text() == told


def test_a_contestant_that_fails_is_a_result(monkeypatch, tmp_path):
    def failing(target, key):
        raise RuntimeError("no such luck")

    monkeypatch.setitem(cells.CONTESTANTS, GAUSSIAN, failing)
    found = cells.measure(GAUSSIAN, bures.models.eggbox(), 0, TINY)
    assert found == {"outcome": "FAILED", "message": "RuntimeError: no such luck"}
    folder = ladder.run(seeds=1, only=["eggbox"], methods=[GAUSSIAN], out=tmp_path, **TINY)
    assert "| eggbox | 2 | 0 |" in (folder / "tables.md").read_text()


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--only must be one of"):
        ladder.run(only=["nonsense"], out=tmp_path)
    with pytest.raises(ValueError, match="--method must be one of"):
        ladder.run(only=["eggbox"], methods=["nonsense"], out=tmp_path)


# ---- Tables ---------------------------------------------------------------------------------------------------------


def found(**changes):
    """A made-up fit that keeps every limit of mixtures."""
    good = {"ness": 0.995, "khat": 0.1, "beyond": 8000, "evaluations": 15_000, "components": 4, "seconds": 1.0}
    return good | {"log_evidence": 0.001, "own_log_evidence": 0.002, "elbo": -0.001, "elbo_error": 0.001} | changes


def cell(section, target, contestant, seed, result):
    parameters = dict(section=section, target=target, contestant=contestant, seed=seed)
    return {f"{section}{target}{contestant}{seed}": {"parameters": parameters, "result": result}}


def judged(name, mixtures, gaussians):
    runs = [sections.Runs(dict(enumerate(each))) for each in (mixtures, gaussians)]
    return [criterion.holds for criterion in fits.judge_mixture(name, *runs)]


def test_every_target_of_mixtures_has_limits():
    assert tuple(fits.LIMITS) == targets.MIXTURES and tuple(fits.BOUNDS) == targets.PUBLISHED
    assert set(fits.EVIDENCE) == set(targets.MODES)
    assert fits.LIMITS["banana, d = 10"] == (0.90, 0.5, 60_000)


def test_mixtures_are_judged_by_the_median_and_by_the_worst_seed():
    plain = [found(ness=0.34)] * 3
    assert judged("eggbox", [found()] * 3, plain) == [True] * 5
    assert judged("eggbox", [found(), found(), found(ness=0.5, khat=0.9)], plain) == [True] * 5
    assert judged("eggbox", [found(), found(), found(ness=0.2)], plain) == [True] * 4 + [False]
    assert judged("eggbox", [found(ness=0.98)] * 3, plain)[0] is False
    assert judged("eggbox", [found(khat=0.31)] * 3, plain)[1] is False
    assert judged("eggbox", [found(beyond=10_001)] * 3, plain)[2] is False
    assert judged("eggbox", [found(evaluations=20_001)] * 3, plain)[3] is False
    assert judged("kidscore_momiq", [found(ness=0.992)] * 3, [found(ness=0.995)] * 3) == [True] * 5  # noise
    assert judged("eggbox", [], plain) == [None] * 5
    failed = [{"outcome": "FAILED"}] * 2
    assert judged("eggbox", [*failed, found()], plain) == [False] * 5


def test_an_evidence_has_to_be_right_on_nine_of_ten_seeds():
    def share(wrong, name="two modes, d = 2", **changes):
        runs = [found(**changes)] * wrong + [found()] * (10 - wrong)
        return fits.judge_modes(name, sections.Runs(dict(enumerate(runs))))[0].holds

    assert share(1, log_evidence=-0.7) and not share(2, log_evidence=-0.7)
    assert not share(2, evaluations=20_001) and share(2, "MoG40", evaluations=20_001)
    assert not share(2, log_evidence=0.03) and share(2, "MoG40", log_evidence=0.03)
    assert not share(2, log_evidence=None)


def test_published_figures_are_bounds_and_budgets():
    def holds(**changes):
        runs = sections.Runs({0: found(**changes)})
        return [each.holds for each in fits.judge_published("German credit", runs)]

    assert holds(elbo=-585.11, evaluations=10_000) == [True, True]
    assert holds(elbo=-585.12, evaluations=10_001) == [False, False]
    assert holds(elbo=None, evaluations=10_000) == [False, True]


def test_tables_show_what_was_run(tmp_path):
    results = {}
    for seed in range(2):
        results |= cell("mixtures", "eggbox", MIXTURE, seed, found())
        results |= cell("mixtures", "eggbox", GAUSSIAN, seed, found(ness=0.34))
        results |= cell("modes", "MoG40", MIXTURE, seed, found(log_evidence=-1.0))
        results |= cell("published", "German credit", MIXTURE, seed, found(elbo=-585.11, evaluations=9000))
    lines = ladder.write(results, ladder.everything(ladder.SETTINGS | {"seeds": 2}), tmp_path)
    assert [line.split()[-1] for line in lines] == ["yes", "no", "yes"]
    told = (tmp_path / "tables.md").read_text()
    assert "Criteria: 2 of 3 hold" in told and "0.995 (≥ 0.99) yes" in told and "8,000 (≤ 10,000) yes" in told
    assert "of 1 targets of several modes: right on fewer than nine of ten seeds | ≤ 0 | 1 | no | MoG40 |" in told
    assert "585.1100 (≤ 585.115) yes" in told


# ---- Centring, sample, honesty --------------------------------------------------------------------------------------


def runs(*found):
    return sections.Runs(dict(enumerate(found)))


def test_centring_has_to_reach_the_better_form_or_ten_times_what_was():
    def holds(name, refined, plain, other=()):
        made = (runs(*({"ness": x, "khat": 0.5} for x in each)) for each in (refined, plain, other))
        return [criterion.holds for criterion in centring.judge(name, *made)]

    assert holds("eight schools", [0.6], [0.01], [0.65]) == [True]
    assert holds("eight schools", [0.5], [0.01], [0.65]) == [False]
    assert holds("eight schools", [0.5], [0.01]) == [None]
    least = min(0.5, 10 * centring.BEFORE["rats"])
    assert holds("rats", [least], [0.01]) == [True, True] and holds("rats", [least / 2], [0.01])[0] is False
    assert set(centring.BEFORE) == {name for name, model in models.MODELS.items() if model.other is None}
    told = centring.degrees(runs({"centring": {"alpha": 0.2}}, {"centring": {"alpha": 0.4, "beta": 1.0}}))
    assert told == "alpha 0.30, beta 1.00"


class FakeVariable:
    def __init__(self, values):
        self.values = values

    def __getitem__(self, place):
        return self.values[place]


class FakeTree(dict):
    """A tree as `bures.sample` returns it, with exact draws."""

    def __init__(self, variables, **attributes):
        self.attrs = {"evaluations_by_rung": {"mixture": 5000}} | attributes
        sizes = dict(zip(("chain", "draw"), next(iter(variables.values())).shape[:2], strict=True))
        group = types.SimpleNamespace(
            data_vars={name: FakeVariable(values) for name, values in variables.items()}, sizes=sizes
        )
        super().__init__(posterior=group)


def exact_sample(case, trusted=True):
    def sample(target, *, key, num_draws):
        z = case.draw(np.random.default_rng(5), num_draws)
        return FakeTree({"z": z[None]}, rung="mixture", verdict="so", trustworthy=trusted, evaluations=5000)

    return sample


PARAMETERS = honesty.SETTINGS | {"seed": 0, "num_draws": 4000, "contestant": SAMPLE}


def test_draws_are_judged_by_their_neighbours(monkeypatch):
    name = "two modes, d = 2, 15 sd apart, 0.5 light, origin between"
    prepared = honesty.make(name, NOWHERE)
    monkeypatch.setattr(bures, "sample", exact_sample(prepared.case), raising=False)
    found = honesty.measure(prepared, PARAMETERS)
    assert found["right"] and found["comfort"] and not found["false"] and found["missed"] < 0.001
    assert found["rung"] == "mixture" and found["evaluations"] == 5000

    def draw(rng, n):  # of one mode
        z = prepared.case.draw(rng, 4 * n)
        return z[z[:, 0] > 0][:n]

    one = prepared.case._replace(draw=draw)
    half = one.draw(np.random.default_rng(5), 1000)
    assert 0.4 < honesty.missed_by_draws(prepared.exact, half) < 0.6
    monkeypatch.setattr(bures, "sample", exact_sample(one), raising=False)
    found = honesty.measure(prepared, PARAMETERS | {"num_draws": 1000})
    assert found["false"] and not found["right"] and 0.4 < found["missed"] < 0.6
    monkeypatch.setattr(bures, "sample", exact_sample(one, trusted=False))
    assert not honesty.measure(prepared, PARAMETERS | {"num_draws": 1000})["false"]


def test_a_refined_fit_is_judged_as_fits_are(monkeypatch):
    monkeypatch.setitem(cells.CONTESTANTS, REFINE, cells.gaussian)
    prepared = honesty.make("two modes, d = 1, 50 sd apart, 0.5 light, origin elsewhere", NOWHERE)
    found = honesty.measure(prepared, PARAMETERS | {"contestant": REFINE, "resampled": 1000})
    assert found["missed"] > 0.02 and not found["right"]


def test_false_comfort_and_needless_warnings_are_counted():
    trap, plain = next(iter(honesty_targets.TRAPS)), next(iter(honesty_targets.HARMLESS))
    good = {"outcome": "CONVERGED", "comfort": True, "right": True, "warned": False, "false": False, "named": False}
    good |= {"missed": 0.0}
    results = cell("honesty", trap, REFINE, 0, good | {"false": True, "right": False, "missed": 0.4})
    results |= cell("honesty", plain, REFINE, 0, good) | cell("honesty", plain, SAMPLE, 0, good | {"warned": True})
    shown = honesty.present(results, {})
    assert [criterion.holds for criterion in shown.criteria] == [False, True, None, False]
    assert list(shown.figures) == ["honesty-refine", "honesty-sample"] and len(shown.grids) == 2


def test_errors_and_gradients_of_sample_are_judged():
    def holds(ours, theirs):
        return [criterion.holds for criterion in sample.judge(ours, theirs)]

    good = {"mean_error": 0.05, "deviation_error": 0.08, "evaluations": 5000}
    nuts = runs({"evaluations": 50_000, "largest_rhat": 1.0})
    assert holds(runs(good), nuts) == [True, True, True]
    assert holds(runs(good, good, good | {"mean_error": 0.5}), nuts) == [True, True, True]  # the median counts
    assert holds(runs(good | {"deviation_error": 0.11, "evaluations": 60_000}), nuts) == [True, False, False]
    assert holds(runs({"outcome": "FAILED"}), nuts) == [False, False, False]
    assert holds(runs(good), runs()) == [True, True, None]


def test_references_of_their_own_are_long_chains():
    """A cell of reference moments serves the errors of `sample` where a target comes without draws."""
    known = {"x": {"mean": [0.0, 1.0], "sd": [1.0, 2.0]}}
    found = {"x": {"mean": [0.05, 1.0], "sd": [1.0, 2.1]}}
    results = cell("sample", "rats", SAMPLE, 0, {"moments": found, "evaluations": 100, "trusted": True})
    results |= cell("sample", "rats", sample.REFERENCE, 0, {"moments": known})
    results |= cell("sample", "rats", sample.NUTS, 0, {"evaluations": 1000, "largest_rhat": 1.01})
    assert sample.with_errors(results, "rats").found[0]["mean_error"] == pytest.approx(0.05)
    assert sample.with_errors(results, "rats").found[0]["deviation_error"] == pytest.approx(0.05)
    shown = sample.present(results, ladder.SETTINGS)
    assert [criterion.holds for criterion in shown.criteria] == [True, True, True]
    found["x"]["mean"][1] = 9.0
    shown = sample.present(results, ladder.SETTINGS)
    assert [criterion.holds for criterion in shown.criteria] == [True, False, True]  # one is spared, but it was trusted


def test_gradients_of_nuts_are_counted():
    target = bures.models.gaussian(3)
    settings = {"nuts_warmup": 100, "nuts_draws": 200}
    found = ladder_nuts.gradients_needed(target, 0, 100.0, settings)
    assert found["warmup_gradients"] >= 4 * 100 and found["gradients_a_draw"] >= 1
    needed = found["warmup_gradients"] + found["draws_needed"] * found["gradients_a_draw"]
    assert found["evaluations"] == pytest.approx(needed, abs=1)
    assert found["draws_needed"] == math.ceil(100 * 800 / found["smallest_ess"])
