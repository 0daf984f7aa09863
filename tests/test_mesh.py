"""Rows on a mesh: two devices, in a process of their own, give what one gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import bures

PROGRAM = Path(__file__).parent / "mesh_program.py"


@pytest.fixture(scope="module")
def found():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["devices"] == 2
    return found


PLACES = (
    "explicit",
    "automatic",
    "grid",
    "labels on one device",
    "replicated",
    "columns",
    "sharded by us",
    "mesh of one",
)


@pytest.mark.parametrize("place", PLACES)
def test_densities_of_rows(found, place):
    for ours, wanted in zip(found["densities"][place], found["densities"]["one"], strict=False):
        np.testing.assert_allclose(ours, wanted, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("place", ["explicit", "automatic", "grid", "replicated"])
def test_densities_of_the_logistic_regression(found, place):
    models = found["models"]
    for ours, wanted in zip(models[place]["derivatives"], models["one"]["derivatives"], strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize(
    ("group", "place", "wanted"),
    [
        ("fits", "explicit", "one"),
        ("fits", "automatic", "one"),
        ("fits", "explicit, mesh set", "one"),
        ("fits", "explicit, compiled", "one, compiled"),
        ("odd", "explicit", "one"),
        ("odd", "automatic", "one"),
        ("models", "explicit", "one"),
    ],
)
def test_fits_are_those_of_one_device(found, group, place, wanted):
    ours, one = found[group][place], found[group][wanted]
    assert (ours["outcome"], ours["steps"]) == (one["outcome"], one["steps"])
    for name in ("mean", "chol", "elbo", "khat"):
        np.testing.assert_allclose(ours[name], one[name], rtol=1e-8, atol=1e-8, err_msg=name)


def test_shard_rows_checks_its_arguments():
    with pytest.raises(ValueError, match="data must be arrays of one length"):
        bures.shard_rows({"x": np.zeros(3), "y": np.zeros(4)})
    with pytest.raises(ValueError, match="axis must be one of"):
        bures.shard_rows(np.zeros(3), jax.make_mesh((1,), ("rows",)), axis="columns")
