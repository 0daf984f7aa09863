"""Several processes on this machine, by gloo: one fit, the same as that of one process; and one that is killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bures
from bures.benchmarks import scale_killed
from bures.rows.sources import Parquet

PROGRAM = Path(__file__).parent / "processes_program.py"
MODEL = """
import numpy as np
import bures

rng = np.random.default_rng(0)
x = rng.standard_normal((301, 2))
y = x @ np.array([1.0, -2.0]) + rng.standard_normal(301)
target = bures.Target.from_data(
    lambda z: -z @ z / 20, lambda z, row: -((row["y"] - row["x"] @ z) ** 2) / 2, {"x": x, "y": y}, 2
)
"""


def run_together(commands, **options):
    """Start all, and wait for all; their output."""
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        for command in commands
    ]
    try:
        ends = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, said) in zip(started, ends, strict=True):
        assert process.returncode == 0, said
    return [out for out, _ in ends]


@pytest.fixture(scope="module")
def found():
    """The fits of one process, and of two; each of the two prints, but for its results."""
    address = scale_killed.free_address()
    commands = [[sys.executable, str(PROGRAM), address, "2", str(number)] for number in range(2)]
    first, second = run_together(commands)
    assert "{" not in second
    (alone,) = run_together([[sys.executable, str(PROGRAM), address, "1", "0"]])
    return json.loads(alone.splitlines()[-1]), json.loads(first.splitlines()[-1])


@pytest.mark.parametrize("place", ["shared", "own", "on a mesh", "subsampled"])
def test_fits_are_those_of_one_process(found, place):
    alone, together = found
    ours, one = together[place], alone[place]
    assert (ours["outcome"], ours["steps"]) == (one["outcome"], one["steps"])
    for name in ("mean", "chol", "elbo", "khat"):
        np.testing.assert_allclose(ours[name], one[name], rtol=1e-8, atol=1e-8, err_msg=name)


def test_hessians_and_shares(found):
    alone, together = found
    np.testing.assert_allclose(together["hessian"], alone["hessian"], rtol=1e-10)
    assert (alone["rows of this process"], together["rows of this process"]) == ([0, 1001], [0, 500])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_others_and_the_fit_goes_on(tmp_path, victim, undisturbed):
    seen = scale_killed.killed(tmp_path, victim, None, undisturbed)
    assert seen["had_checkpoint"]
    assert seen["code"] != 0
    assert seen["clear"]
    assert seen["seconds"] < scale_killed.LIMIT
    assert seen["resumed_code"] == 0
    assert seen["same"]
    if victim == 0:  # one process goes on from the checkpoint of two, to rounding
        result = tmp_path / "alone.json"
        (alone,) = scale_killed.start_processes(1, tmp_path / "kept.fit", result)
        assert alone.wait(timeout=300) == 0
        found = json.loads(result.read_text())
        assert found["resumed_from"] > 0
        for name in ("mean", "chol", "khat"):
            np.testing.assert_allclose(found[name], undisturbed[name], rtol=1e-8, atol=1e-8)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return scale_killed.undisturbed(tmp_path_factory.mktemp("undisturbed"))


def test_command_line(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    address, model = scale_killed.free_address(), {}
    exec(MODEL, model)
    command = [sys.executable, "-m", "bures.cli", "fit", "model.py:target", "--no-progress"]
    together = [
        [*command, "--distributed", "--coordinator", address, "--num-processes", "2", "--process-id", str(number)]
        for number in range(2)
    ]
    first, second = run_together(together, cwd=tmp_path)
    assert "CONVERGED" in first
    assert "CONVERGED" not in second
    saved = bures.load(tmp_path / "bures-output" / "target.fit", target=model["target"]).approximation
    (alone,) = run_together([[*command, "--out", "alone"]], cwd=tmp_path)
    assert "CONVERGED" in alone
    one = bures.load(tmp_path / "alone" / "target.fit", target=model["target"]).approximation
    np.testing.assert_allclose(saved.mean, one.mean, rtol=1e-8)
    np.testing.assert_allclose(saved.chol, one.chol, rtol=1e-8, atol=1e-12)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="coordinator, num_processes and process_id must be given together"):
        bures.distributed.start("127.0.0.1:1234")
    assert (bures.distributed.count(), bures.distributed.number()) == (1, 0)


def test_a_part_of_a_parquet_file(tmp_path):
    """Parts of two files of several row groups each, and what they read."""
    numbers = np.arange(50.0)
    for i, part in enumerate((numbers[:30], numbers[30:])):
        pq.write_table(pa.table({"x": part}), tmp_path / f"{i}.parquet", row_group_size=7)
    whole = Parquet([tmp_path / "0.parquet", tmp_path / "1.parquet"])
    for low, high in ((0, 50), (0, 13), (13, 33), (33, 50), (29, 31)):
        part = whole.part(slice(low, high))
        rows = np.concatenate([block["x"] for block in part.blocks(4)])
        np.testing.assert_array_equal(rows, numbers[low:high])
        np.testing.assert_array_equal(part.take(np.array([0, 1]))[0]["x"], numbers[low : low + 2])


def test_environment_of_these_tests_has_no_cluster():
    """Else the processes above would be told apart by it."""
    assert not {"SLURM_JOB_ID", "OMPI_MCA_orte_hnp_uri", "JAX_COORDINATOR_ADDRESS"} & set(os.environ)
