"""The command line, run as a user runs it."""

import jax.numpy as jnp
import pytest
from problems import run_command, run_commands

import bures
from bures.cli.methods import make_estimator
from bures.cli.targets import find_target
from bures.fitting import default_estimator


def test_fit_prints_a_table_and_writes_the_fit_and_a_figure(tmp_path):
    method = "--objective iwelbo -K 5 --geometry bures-wasserstein --step-size 0.5 --estimator price -M 20"
    start = "--init-mean 6,12 --init-variance 5 --num-steps 50"
    done = run_command("fit", "eggbox", *method.split(), *start.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("ELBO", "nESS", "Pareto", "log evidence", "50 steps", "saved"):
        assert word in done.stdout
    assert (tmp_path / "bures-output" / "eggbox.png").stat().st_size > 10_000
    assert "<h1>eggbox</h1>" in (tmp_path / "bures-output" / "eggbox.html").read_text()
    fit = bures.load(tmp_path / "bures-output" / "eggbox.fit", target=bures.models.eggbox())
    assert fit.num_steps == 50


MISTAKES = {
    "fit eggbok": "target must be one of",
    "fit none.py:f --dim 2": "does not exist",
    "fit broken.py:f --dim 2": "at line 1: ZeroDivisionError",
    "fit good.py:g --dim 2": "has no 'g'; it has f",
    "fit good.py:f": "--dim",
    "fit good.py:f --dim 2": "must return a real scalar",
    "fit eggbox --geometry bures-wasserstein": "needs a --step-size",
    "fit eggbox --step-size 0.1": "--step-size is for",
    "fit eggbox --objective iwelbo -K 0": "K must be a positive integer",
    "fit eggbox --objective vriwae -K 5": "--objective vriwae needs --alpha",
    "fit eggbox --objective elbo -K 5": "--objective elbo takes no --K",
    "fit eggbox --estimator reparameterised --indices all": "takes no --indices",
    "fit eggbox -K 5 --geometry forward-backward --step-size 0.1": "ForwardBackward needs",
    "fit eggbox --init-mean a,b": "--init-mean must be",
    "fit eggbox --init-mean 1,2,3": "R^2",
    "fit eggbox --num-steps 0": "num_steps must be",
    "fit eggbox --out taken": "--out must be a folder",
    "fit eggbox -M 0": "M must be a positive integer",
    "fit eggbox --dim 5": "--dim must be 2, that of eggbox",
    "fit eggbox --data good.py": "--data is for Stan programs and NumPyro models",
    "fit eggbox --init-variance 2": "--init-variance needs --init-mean",
    "fit eggbox --rank 2": "--rank is for --family low-rank",
    "fit eggbox --family mean-field --rank 2": "--rank is for --family low-rank",
    "fit eggbox --family low-rank --rank -1": "rank must be a whole number, or None",
    "fit eggbox --family low-rank --objective elbo --geometry forward-backward --step-size 0.1": "move a LowRank",
    "bench speeed": "benchmark must be one of posteriordb, speed",
    "fit eggbox --seed 99999999999999999999": "--seed must be a whole number of at most 64 bits",
    "sample eggbox --seed 99999999999999999999": "--seed must be a whole number of at most 64 bits",
    "fit eggbox --num-samples 3 --no-progress": "num_samples must be an integer of at least 25",
    "fit model.py:log_density --dim 1000000000000000": "out of memory",
    "fit eggbox --distributed --coordinator x --num-processes 1 --process-id 0": "coordinator must be host:port",
    "fit eggbox --distributed --coordinator x:1 --num-processes 0 --process-id 0": "num_processes must be a positive",
    "fit eggbox --distributed --coordinator x:1 --num-processes 2 --process-id 2": "process_id must be a whole number",
    "bench speed --path here": "bench speed takes no --path",
    "bench speed --only nothing": "--only must be one of",
    "bench speed --quick": "bench speed takes no --quick",
}


VERSION = "--version"
OWN_FILE = "fit model.py:log_density --dim 3 --out here"
LOW_RANK = "fit model.py:log_density --dim 4 --family low-rank --rank 1 -M 30 --out low"
HELP = "fit --help"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folder")
    (path / "model.py").write_text(
        "import jax.numpy as jnp\n\n\ndef log_density(z):\n    return -jnp.sum((z - 1) ** 2) / 2\n"
    )
    (path / "broken.py").write_text("1 / 0\n")
    (path / "good.py").write_text("def f(z):\n    return z\n")
    (path / "taken").write_text("")
    return path


@pytest.fixture(scope="module")
def done(folder):
    return run_commands([OWN_FILE, LOW_RANK, HELP, VERSION, *MISTAKES], folder)


def test_a_users_own_file_and_nothing_to_tune(folder, done):
    assert done[OWN_FILE].returncode == 0, done[OWN_FILE].stderr
    assert "CONVERGED" in done[OWN_FILE].stdout
    assert (folder / "here" / "log_density.png").exists()


def test_a_family_can_be_chosen(folder, done):
    assert done[LOW_RANK].returncode == 0, done[LOW_RANK].stderr
    assert "log_density: low rank" in done[LOW_RANK].stdout
    target = bures.Target(lambda z: -jnp.sum((z - 1) ** 2) / 2, 4)
    fit = bures.load(folder / "low" / "log_density.fit", target=target)
    assert fit.approximation.capacity == 1
    assert fit.method.estimator.M == 30 and fit.method.estimator.draws == "iid"  # the family's default but for M


def test_the_version_is_printed(done):
    assert done[VERSION].returncode == 0
    assert done[VERSION].stdout == f"bures {bures.__version__}\n"


# What is given, and the fields that differ from those of the default.
CHANGES = {
    "M": (dict(M=20), dict(M=20)),
    "M, fewer than the blockings": (dict(M=3), dict(M=3, permutations=3)),
    "draws": (dict(draws="iid"), dict(draws="iid")),
    "Sobol draws, which have one blocking": (dict(draws="sobol"), dict(draws="sobol", permutations=1)),
    "indices": (dict(indices="last"), dict(indices="last", permutations=1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_options_without_an_estimator_change_the_default(change):
    options, fields = CHANGES[change]
    target, objective = bures.models.eggbox(), bures.IWELBO(5)
    default = default_estimator(target, objective)
    assert default.permutations > 3  # or the test is of nothing
    found = make_estimator(target, objective, None, options)
    assert type(found) is type(default) is bures.Stein
    assert {name: getattr(found, name) for name in ("M", "indices", "draws", "permutations")} == {
        name: fields.get(name, getattr(default, name)) for name in ("M", "indices", "draws", "permutations")
    }


def test_no_options_leave_the_estimator_to_bures():
    assert make_estimator(bures.models.eggbox(), None, None, {}) is None
    assert make_estimator(bures.models.eggbox(), None, None, dict(M=7)).M == 7


def test_help_teaches(done):
    assert done[HELP].returncode == 0
    for word in (
        "bures fit logistic",
        "--family",
        "mean-field",
        "--rank",
        "--step-size",
        "--objective",
        "file.py:name",
    ):
        assert word in done[HELP].stdout


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_are_one_line_and_status_2(arguments, done):
    assert done[arguments].returncode == 2
    assert MISTAKES[arguments] in done[arguments].stderr
    assert len(done[arguments].stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("content", [b"[1, 2]", b"nonsense", b"\xff\xfe", b'{"y": [[1.0], [1.0, 2.0]]}'])
def test_data_that_are_no_arguments_by_name_are_refused(content, folder, tmp_path):
    pytest.importorskip("numpyro")
    path = tmp_path / "data.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"--data must be a JSON file of arguments by name.*data\.json.*For example"):
        find_target(f"{folder / 'good.py'}:f", None, path)


def test_a_resumed_fit_keeps_to_its_limits(tmp_path):
    command = "fit eggbox --num-steps 100 -M 100 --checkpoint fit.saved --resume --max-evaluations"
    for limit in ("4000", "2000"):
        done = run_command(*command.split(), limit, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "EVALUATION_LIMIT" in done.stdout
    assert bures.load(tmp_path / "fit.saved", target=bures.models.eggbox()).num_steps < 100


def test_a_mistake_in_a_process_of_its_own(folder, done):
    alone = run_command("fit", "good.py:g", "--dim", "2", cwd=folder)
    assert (alone.returncode, alone.stderr) == (2, done["fit good.py:g --dim 2"].stderr)
