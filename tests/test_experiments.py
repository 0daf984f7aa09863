"""The experiments in a tiny version, the cells they keep, what a killed run leaves, and the page that shows it all."""

import contextlib
import functools
import itertools
import json
import lzma
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

import jax
import numpy as np
import pytest
from problems import run_command, run_commands

import bures
from bures.experiments import protocol
from bures.experiments.provenance import code
from bures.experiments.store import ADDED, TABLE, Store
from bures.report import write_report
from bures.reproduce import EXPERIMENTS, load_experiment, read_experiment, run_experiment
from tests.single_page import browse, needs_browser


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """From the name of an experiment to what its tiny version shows; it is run when it is first asked for."""
    out = tmp_path_factory.mktemp("tiny") / "results"

    @functools.cache
    def run(name):
        module = load_experiment(name)
        return run_experiment(name, module, module.tiny(), "quick", out)

    return run


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_tiny_version_runs_once(name, tiny, monkeypatch):
    shown, module = tiny(name), load_experiment(name)
    assert shown.done == shown.total > 0
    assert shown.tables and shown.figures and shown.reading
    assert all(content.startswith(b"\x89PNG") for content in shown.figures.values())
    for table in shown.tables:
        assert table.rows
        for row in table.rows:
            assert row.label and row.measured and row.agrees in (True, False, None)
            # A figure of the paper's that differs, or is not compared, comes with a reason.
            assert row.note or row.agrees is not False
            assert row.note or table.note or row.agrees is not None or row.paper in ("–", "not given")
    files = {path.name for path in shown.folder.iterdir()}
    assert files == {"cells.jsonl.xz", "tables.md", "tables.csv", "figures.webp"}

    monkeypatch.setattr(module, "run", lambda parameters: pytest.fail("a kept cell was run again"))
    results = protocol.run_cells(
        module, Store(shown.folder.parents[1], shown.folder.parent.name, "quick"), module.tiny()
    )
    assert module.tables(results, json.loads(json.dumps(module.tiny()))) == list(shown.tables)


def test_tables_and_figures_are_drawn_again_without_rerunning(tiny, monkeypatch):
    shown, module = tiny("eggbox"), load_experiment("eggbox")
    files = {path.name: path.read_bytes() for path in shown.folder.iterdir()}
    monkeypatch.setattr(module, "run", lambda parameters: pytest.fail("a kept cell was run again"))
    run_experiment("eggbox", module, module.tiny(), "quick", shown.folder.parents[1])
    assert {path.name: path.read_bytes() for path in shown.folder.iterdir()} == files


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_are_json_and_cells_are_named_apart(name):
    module = load_experiment(name)
    for quick in (True, False):
        settings = module.settings(quick, None)
        cells = module.cells(json.loads(json.dumps(settings)))
        assert json.dumps(cells) == json.dumps(module.cells(settings))
        # On file systems that do not tell A from a, too.
        assert len({cell.lower() for cell in cells}) == len(cells)
        assert all(re.fullmatch(r"[\w.+-]+", cell) for cell in cells)


def test_low_rank_projection_is_orthogonal_and_that_of_the_family():
    families = load_experiment("families")
    rng = np.random.default_rng(0)
    V, *matrices = np.linalg.qr(rng.standard_normal((7, 2)))[0], *rng.standard_normal((2, 7, 7))
    S, T = (matrix + matrix.T for matrix in matrices)
    project = families.low_rank_projection(V)
    np.testing.assert_allclose(project(project(S)), project(S), atol=1e-12)
    np.testing.assert_allclose(np.sum(project(S) * T), np.sum(S * project(T)), atol=1e-12)
    # What the family keeps, diag S and S D V, is that of the projection, as the rest of S is orthogonal to both.
    rest = S - project(S)
    np.testing.assert_allclose(rest @ V, 0, atol=1e-12)
    np.testing.assert_allclose(np.diagonal(rest), 0, atol=1e-12)


@pytest.mark.parametrize("objective", [bures.ELBO(), bures.IWELBO(K=4), bures.VRIWAE(K=4, alpha=0.5)])
def test_gradients_of_mixtures_are_the_librarys(objective):
    """The same draws: written out draw by draw, and as the family projects them."""
    mixtures = load_experiment("mixtures")
    target = bures.models.banana()
    q = mixtures.start(target, 3, seed=1)
    q = bures.GaussianMixture(np.log([0.2, 0.5, 0.3]), q.means, q.chols)
    estimator = bures.Stein(M=60)
    noise = estimator.noise(jax.random.key(0), q, objective.K)
    estimate = q.project(estimator.field(noise, q, target, objective))
    ours = mixtures.Mixture.of(q)
    at = mixtures.evaluate(ours, target, q.push(noise).reshape(-1, 2))
    terms = jax.tree.map(lambda x: np.mean(x, axis=0), mixtures.gradient(ours, at, objective))
    np.testing.assert_allclose(terms.a, np.einsum("cji,cj->ci", q.chols, estimate.a), rtol=1e-8)
    whitened = np.einsum("cji,cjk,ckl->cil", q.chols, estimate.S.slopes, q.chols)
    np.testing.assert_allclose(terms.S, whitened, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(terms.A, estimate.mean_A, rtol=1e-8)


def test_the_baseline_of_the_weights_changes_noise_and_not_the_mean():
    mixtures = load_experiment("mixtures")
    target, objective = bures.models.eggbox(), bures.IWELBO(K=5)
    q = mixtures.Mixture.of(mixtures.start(target, 2, seed=0))
    z, c = q.sample(jax.random.key(0), 200_000)
    at = mixtures.evaluate(q, target, z)
    terms = mixtures.gradient(q, at, objective)
    shares = np.exp(q.log_weights)
    lowered, plain = (np.asarray(each - (each @ shares)[:, None]) for each in (terms.weights, terms.plain))
    error = np.std(plain - lowered, axis=0) / np.sqrt(len(z))
    assert np.all(np.abs(np.mean(plain - lowered, axis=0)) < 4 * error)
    assert np.all(np.std(lowered, axis=0) < np.std(plain, axis=0))
    # K times the mean of the field is the gradient of the bound, by the plain reparameterised gradient too.
    a = objective.K * np.exp(q.log_weights)[:, None, None] * np.mean(terms.a, axis=0)[:, None]
    plain = np.asarray(mixtures.euclidean(q, at, c, objective))
    whitened = np.einsum("cji,mcj->mci", q.chols, plain)
    error = np.std(whitened, axis=0) / np.sqrt(len(whitened))
    assert np.all(np.abs(np.mean(whitened, axis=0) - a[:, 0]) < 5 * error)


# ---- What is kept ---------------------------------------------------------------------------------------------------


def unpack(folder):
    """The lines of the table and those added to it."""
    packed = lzma.decompress((folder / TABLE).read_bytes()).decode() if (folder / TABLE).exists() else ""
    added = (folder / ADDED).read_text() if (folder / ADDED).exists() else ""
    return (packed + added[: added.rfind("\n") + 1]).splitlines()


def kept_cells(folder):
    """The lines of the cells, by name."""
    return {json.loads(line)["cell"]: line for line in unpack(folder) if line.startswith('{"cell"')}


def counting_experiment():
    """Squares, and a list of the cells that were run."""
    ran = []

    def run(parameters):
        ran.append(parameters["number"])
        return {"square": parameters["number"] ** 2}

    def tables(results, settings):
        squares = [result["square"] for _, result in protocol.select(results)]
        return [protocol.Table("squares", (protocol.Row("largest", "16", str(max(squares)), max(squares) == 16),))]

    module = types.SimpleNamespace(
        TITLE="Squares",
        QUESTION="How large?",
        cells=lambda settings: {f"n{n}": {"number": n, "power": settings["power"]} for n in range(settings["count"])},
        run=run,
        tables=tables,
        plot=lambda results, settings: {},
        reading=lambda results, settings: f"{len(results)} squares.",
    )
    return module, ran


def test_a_cell_is_run_once_and_again_if_its_settings_change(tmp_path):
    module, ran = counting_experiment()
    store = Store(tmp_path, "squares", "full")
    results = protocol.run_cells(module, store, {"count": 3, "power": 2})
    assert [result["square"] for _, result in protocol.select(results)] == [0, 1, 4]
    protocol.run_cells(module, store, {"count": 5, "power": 2})
    assert ran == [0, 1, 2, 3, 4]
    protocol.run_cells(module, store, {"count": 5, "power": 3})
    assert ran == [0, 1, 2, 3, 4] * 2


@pytest.mark.parametrize("damage", ["", "{", '{"cell": "n1"}', "[]", "\x00\x00"])
def test_a_damaged_cell_is_run_again(tmp_path, damage):
    module, ran = counting_experiment()
    settings = {"count": 3, "power": 2}
    whole = run_experiment("squares", module, settings, "full", tmp_path)
    lines = unpack(whole.folder)
    place = next(number for number, line in enumerate(lines) if '"cell":"n1"' in line)
    lines[place] = damage or lines[place][:-20]
    (whole.folder / TABLE).unlink()
    (whole.folder / ADDED).write_text("".join(f"{line}\n" for line in lines))
    (whole.folder / f".{TABLE}.abc123").write_text("half")  # what a kill in the middle of writing leaves
    assert read_experiment("squares", module, "full", tmp_path).done == 2
    again = run_experiment("squares", module, settings, "full", tmp_path)
    assert ran == [0, 1, 2, 1]
    assert again.tables == whole.tables
    assert not list(whole.folder.glob(".*"))


def test_settings_of_another_version_are_passed_over(tmp_path):
    module, _ = counting_experiment()
    shown = run_experiment("squares", module, {"count": 1, "power": 2}, "full", tmp_path)
    (shown.folder / ADDED).write_text('{"settings": {"count": 1}}\n')
    assert read_experiment("squares", module, "full", tmp_path) is None


def test_a_cell_says_where_it_comes_from(tmp_path):
    module, _ = counting_experiment()
    run_experiment("squares", module, {"count": 1, "power": 2}, "full", tmp_path)
    kept = Store(tmp_path, "squares", "full").entry("n0", {"number": 0, "power": 2})
    assert kept["parameters"] == {"number": 0, "power": 2} and kept["seconds"] >= 0
    assert {"code", "commit", "modified", "versions", "machine", "time"} <= set(kept["provenance"])
    assert {"jax", "bures", "python"} <= set(kept["provenance"]["versions"])
    assert kept["provenance"]["code"] == code()


def test_two_runs_do_not_share_a_folder(tmp_path):
    pytest.importorskip("fcntl")
    module, _ = counting_experiment()
    inner, _ = counting_experiment()
    module.run = lambda parameters: run_experiment("squares", inner, {"count": 1, "power": 2}, "full", tmp_path)
    with pytest.raises(ValueError, match="Another run is at work"):
        run_experiment("squares", module, {"count": 1, "power": 2}, "full", tmp_path)


# ---- The rule for step sizes ----------------------------------------------------------------------------------------


def test_the_largest_viable_step_is_chosen():
    finals = {0.1: [-1.0, -1.0], 0.2: [-0.5, -0.5], 0.5: [-0.8, -0.8], 1.0: [-0.6, -60.0], 2.0: [0.0, None]}
    assert protocol.choose_step(finals) == (0.5, [1.0, 2.0])
    assert protocol.choose_step(finals, margin=0.0) == (0.2, [1.0, 2.0])
    assert protocol.choose_step({}) == (None, [])


def test_no_step_is_chosen_if_all_fail():
    assert protocol.choose_step({0.1: [None, None], 0.2: [None]}) == (None, [0.1, 0.2])


def test_a_step_is_taken_over_once_all_selection_cells_are_there():
    def selection(step, seed, final, method="a"):
        parameters = {"kind": "selection", "method": method, "step_size": step, "seed": seed}
        return {"parameters": parameters, "result": {"final": final}}

    results = {"1": selection(0.1, 9001, -2.0), "2": selection(0.2, 9001, -1.0), "3": selection(0.5, 9001, 0.0, "b")}
    cell = {"kind": "run", "method": "a", "step_size": 7.0, "selected_from": 2}
    assert protocol.with_chosen_step(cell, results, by=("method",))["step_size"] == 0.2
    assert protocol.with_chosen_step(cell | {"selected_from": 3}, results, by=("method",))["step_size"] == 7.0
    assert protocol.with_chosen_step(cell | {"selected_from": 0}, results, by=("method",))["step_size"] == 7.0
    assert protocol.with_chosen_step({"kind": "cost"}, results, by=("method",)) == {"kind": "cost"}


# ---- The command line -----------------------------------------------------------------------------------------------


SLOW_EXPERIMENT = """
import time

from matplotlib.figure import Figure

from bures.experiments.protocol import Row, Table, select

TITLE, QUESTION = "Slow <squares>", "How large & how slow?"


def settings(quick, seeds):
    return {"count": 6 if quick else 40, "seeds": seeds or 1}


def cells(settings):
    return {f"n{n}": {"number": n} for n in range(settings["count"])}


def run(parameters):
    time.sleep(0.05)
    return {"square": parameters["number"] ** 2, "noise": "x" * 10_000}


def tables(results, settings):
    rows = [Row(f"square of {p['number']}", "4", str(r["square"]), r["square"] == 4) for p, r in select(results)]
    return [Table("Squares", tuple(rows), "A note.")]


def plot(results, settings):
    figure = Figure()
    figure.subplots().plot([result["square"] for _, result in select(results)])
    return {"squares": figure}


def reading(results, settings):
    return f"{len(results)} squares <measured>."
"""


# A program's first lines: the experiment of that name is the one in this file.
REPLACE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("bures.experiments.eggbox", {path!r})
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
"""
MAIN = "from bures.cli import main; main()"


@pytest.fixture
def slow_eggbox(tmp_path):
    """An experiment of short cells, and the lines that put it in the eggbox's place."""
    path = tmp_path / "slow.py"
    path.write_text(SLOW_EXPERIMENT)
    return path, REPLACE.format(path=str(path))


def test_reproduce_and_report(tmp_path, slow_eggbox):
    _, replace = slow_eggbox
    done, written = run_commands(["reproduce eggbox --quick", "report results"], tmp_path, replace).values()
    assert done.returncode == 0, done.stderr
    assert "eggbox: 6 cells, 1 of 6 comparisons agree" in done.stdout
    assert written.returncode == 0, written.stderr
    page = (tmp_path / "results" / "report.html").read_text()
    for text in ("Slow &lt;squares&gt;", "1 of 6 comparisons agree", "quick protocol", "all 6 cells run", "A note."):
        assert text in page

    # Full results, once there are any, come before quick ones; how many cells are missing is said.
    full = tmp_path / "results" / "eggbox" / "full"
    shutil.copytree(tmp_path / "results" / "eggbox" / "quick", full)
    (full / ADDED).write_text('{"settings": {"count": 8, "seeds": 1}}\n')
    assert run_command("report", "results", cwd=tmp_path, program=("-c", replace + MAIN)).returncode == 0
    page = (tmp_path / "results" / "report.html").read_text()
    assert "full protocol" in page and "6 of 8 cells run" in page
    assert "full, 6 of 8 cells so far" in (full / "tables.md").read_text()


MISTAKES = {
    "reproduce eggbok": "experiment must be one of",
    "reproduce eggbox --seeds 0": "seeds must be",
    "reproduce eggbox --out taken": "--out must be a folder",
    "report nowhere": "is none",
    "report empty": "holds no results",
}


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "taken").write_text("")
    (folder / "empty").mkdir()
    return run_commands(list(MISTAKES), folder)


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_are_one_line_and_status_2(arguments, mistaken):
    done = mistaken[arguments]
    assert done.returncode == 2
    assert MISTAKES[arguments] in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is a Unix signal")
def test_a_killed_run_resumes_to_the_same_tables(tmp_path, slow_eggbox):
    """The experiments themselves are killed 20 times by scripts/kill_and_resume.py."""
    line, replace = "reproduce eggbox", slow_eggbox[1]
    killed, generator = tmp_path / "killed" / "eggbox" / "full", random.Random(0)
    command = [sys.executable, "-c", replace + MAIN, *line.split(), "--out", "killed"]
    counts = [0]
    for _ in range(4):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        before = len(kept_cells(killed))
        while len(kept_cells(killed)) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.3))
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
        counts.append(len(kept_cells(killed)))
    assert all(more > fewer for fewer, more in itertools.pairwise(counts))
    before = kept_cells(killed)
    with (killed / ADDED).open("a") as file:
        file.write('{"cell":"n39","parameters":{"number":39},"result":{"squ')  # cut short
    resumed, unbroken = run_commands([f"{line} --out killed", f"{line} --out whole"], tmp_path, replace).values()
    assert resumed.returncode == unbroken.returncode == 0
    whole = tmp_path / "whole" / "eggbox" / "full"
    for name in ("tables.md", "tables.csv", "figures.webp"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert sorted(path.name for path in killed.iterdir()) == sorted(path.name for path in whole.iterdir())
    # What had been kept was not run again.
    after = kept_cells(killed)
    assert len(after) == 40 and all(after[cell] == line for cell, line in before.items())


# What a cell does, from the moment it says that it is at work until Ctrl-C.
INTERRUPTED_CELLS = {
    "a fit": """
    import jax
    import bures

    def log_density(z):
        jax.debug.callback(say)
        return -jax.numpy.sum(z**2) / 2

    start = bures.Gaussian.standard(2)
    fit = bures.fit(bures.Target(log_density, 2), key=jax.random.key(0), init=start, num_steps=10**6)
    return {"square": int(fit.num_steps)}
""",
    "what swallows it": """
    try:
        say()
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    return {"square": 0}
""",
    "what makes another error of it": """
    try:
        say()
        time.sleep(60)
    except KeyboardInterrupt:
        raise ValueError("the other process ended")
""",
}


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT of another process is a Unix signal")
@pytest.mark.parametrize("cell", INTERRUPTED_CELLS)
def test_a_cell_that_was_interrupted_is_not_kept(tmp_path, slow_eggbox, cell):
    path, replace = slow_eggbox
    body = "def run(parameters):\n    if parameters['number'] < 2:\n        return {'square': 0}\n"
    body += f"    say = lambda: open('at-work', 'w').close()\n{INTERRUPTED_CELLS[cell]}\n\ndef tables"
    path.write_text(re.sub(r"def run\(.*?\ndef tables", lambda _: body, path.read_text(), flags=re.DOTALL))
    # Where the tests themselves run in the background, SIGINT is ignored, and so it would be here.
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{replace + MAIN}"
    command = [sys.executable, "-c", program, "reproduce", "eggbox"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "at-work").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    folder = tmp_path / "results" / "eggbox" / "full"
    assert set(kept_cells(folder)) == {"n0", "n1"}
    assert {path.name for path in folder.iterdir()} == {TABLE}


@pytest.fixture
def heard():
    """SIGINT as in a foreground process, whatever it is here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupts_are_noted_and_the_handler_put_back(heard):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), protocol.raise_interrupts(), contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ValueError, match="its own"), protocol.raise_interrupts():
        raise ValueError("its own")
    assert signal.getsignal(signal.SIGINT) is before


def test_cells_run_in_other_threads(tmp_path):
    module, ran = counting_experiment()
    store = Store(tmp_path, "squares", "full")
    thread = threading.Thread(target=protocol.run_cells, args=(module, store, {"count": 3, "power": 2}))
    thread.start()
    thread.join()
    assert ran == [0, 1, 2]
    assert len(protocol.read_cells(module, store, {"count": 3, "power": 2})) == 3


# ---- The page in a browser ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tiny):
    """The report of the tiny versions of all experiments, as they were read and drawn when they had been run.

    That reading and drawing again gives the same is shown above, with the eggbox.
    """

    def read(name, module, mode, out):
        return tiny(name) if mode == "quick" else read_experiment(name, module, mode, out)

    folders = [tiny(name).folder for name in EXPERIMENTS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bures.report.read_experiment", read)
        return write_report(folders[0].parents[1])


@needs_browser
def test_the_report_in_a_browser(page, tiny, tmp_path):
    shown = {name: tiny(name) for name in EXPERIMENTS}
    for width in (1280, 390):
        seen = browse(page, tmp_path, width)
        assert seen["sections"] == list(EXPERIMENTS)
        assert sorted(seen["tables"]) == sorted(len(table.rows) for each in shown.values() for table in each.tables)
        assert seen["images"] == sum(len(each.figures) for each in shown.values()) > 0
        assert seen["broken"] == seen["dead"] == 0 and seen["problems"] == []
        assert seen["requests"] == []
        assert seen["overflow"] <= 0, f"the page is wider than {width} pixels"
    assert seen["width"] == 390


def test_the_report_refers_to_nothing_outside_itself(page):
    text = page.read_text()
    assert not re.findall(r'(?:src|href|action|data|srcset)="(?!data:|#)', text)
    assert not re.search(r"https?://|file:|url\(|@import", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
