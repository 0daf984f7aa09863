"""Targets with known answers, and the few helpers that several test files share."""

import json
import os
import shlex
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures

FLOATS = (jnp.float32, jnp.float64)

# BridgeStan without its sources would try to download them.
needs_stan = pytest.mark.skipif("BRIDGESTAN" not in os.environ, reason="BRIDGESTAN is not set")
needs_posteriordb = pytest.mark.skipif(
    not os.environ.get("BURES_POSTERIORDB"), reason="BURES_POSTERIORDB does not say where posteriordb is"
)
needs_sampling = pytest.mark.skipif(
    not os.environ.get("BURES_SAMPLING"), reason="BURES_SAMPLING does not say where the sampling literature's data are"
)


class GaussianDensity(eqx.Module):
    """An unnormalised N(mean, precision⁻¹), times exp(log_constant)."""

    mean: jax.Array
    precision: jax.Array
    log_constant: float = 0.0

    def __call__(self, z):
        shift = z - self.mean.astype(z.dtype)
        return self.log_constant - shift @ self.precision.astype(z.dtype) @ shift / 2


def gaussian_target(mean, covariance, log_constant=0.0):
    """exp(log_constant) times an unnormalised Gaussian; its moments are on the target."""
    mean, covariance = jnp.asarray(mean), jnp.asarray(covariance)
    density = GaussianDensity(mean, jnp.linalg.inv(covariance), log_constant)
    return bures.Target(density, mean.size, mean=mean, covariance=covariance)


def random_covariance(seed, dim, scale=1.0):
    """A well-conditioned covariance with correlations."""
    root = np.random.default_rng(seed).standard_normal((dim, 2 * dim))
    return scale * (root @ root.T / (2 * dim) + 0.3 * np.eye(dim))


def random_gaussian(seed, dim, scale=1.0, dtype=jnp.float64):
    mean = np.random.default_rng(seed + 1000).standard_normal(dim)
    return bures.Gaussian.from_moments(
        jnp.asarray(mean, dtype), jnp.asarray(random_covariance(seed, dim, scale), dtype)
    )


def low_rank_gaussian(seed, dim, variances=(3.0, 0.3), dtype=jnp.float64, grows=False):
    """A low-rank Gaussian away from the origin: by default one direction is wider than the scales say, one narrower."""
    generator = np.random.default_rng(seed + 2000)
    basis = np.linalg.qr(generator.standard_normal((dim, len(variances))))[0]
    mean, scale = generator.standard_normal(dim), np.exp(generator.normal(0, 0.5, dim))
    parts = (jnp.asarray(part, dtype) for part in (mean, scale, basis, np.asarray(variances, float)))
    return bures.LowRankGaussian(*parts, grows=grows)


def mean_field_gaussian(seed, dim, dtype=jnp.float64):
    """A diagonal Gaussian away from the origin."""
    return low_rank_gaussian(seed, dim, (), dtype)


def correlated_target(dtype=jnp.float64):
    """A Gaussian in three dimensions, away from the origin."""
    return gaussian_target(jnp.array([0.5, -0.3, 0.2], dtype), jnp.asarray(random_covariance(3, 3), dtype))


def regression_data(seed=0, n=20, dim=3):
    generator = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), generator.standard_normal((n, dim - 1))])
    y = generator.random(n) < 1 / (1 + np.exp(-X @ np.linspace(-0.5, 1.0, dim)))
    return X, y.astype(int)


def small_regression():
    """Logistic regression of 20 observations on 3 covariates."""
    return bures.models.logistic_regression(*regression_data())


def box(z):
    """The standard normal cut to the cube (−2, 2)^dim: −inf outside."""
    inside = jnp.all(jnp.abs(z) < 2)
    return jnp.where(inside, -jnp.sum(z**2) / 2, -jnp.inf)


def with_arrays(module):
    """The same with its floats as arrays, so that other numbers share its compilation."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, module)


def assert_within_standard_errors(estimate, expected, error, multiple=4.0, floor=1e-12, case=""):
    """Every coordinate within so many standard errors (and a floor for rounding)."""
    estimate, expected, error = np.asarray(estimate), np.asarray(expected), np.asarray(error)
    excess = np.abs(estimate - expected) - multiple * error - floor * (1 + np.abs(expected))
    assert np.all(excess <= 0), f"{case} {estimate} is not {expected} within {multiple} errors of {error}"


def mean_and_error(replicates):
    """The mean over the leading axis, and its standard error."""
    replicates = np.asarray(replicates)
    return replicates.mean(axis=0), replicates.std(axis=0, ddof=1) / np.sqrt(len(replicates))


def run_steps(key, q, target, method, num_steps):
    """The user's own loop: `lax.scan` over `bures.step`. Returns the last state and the `Info` of every step."""

    def body(state, t):
        return bures.step(jax.random.fold_in(key, t), state, target, **method)

    return jax.lax.scan(body, bures.init(target, init=q, **method), jnp.arange(num_steps))


def columns(target, formula):
    """Where the coordinates of a JAX target are in one of a front-end."""
    names = [name.replace("_log__", "") for name in target.names]  # PyMC names the logarithm
    return np.array([names.index(name) for name in formula.names])


def quick_jit(function):
    """`jax.jit`, with less time spent on the speed of a program that runs once."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


# Warnings are errors; but one that another process is just keeping a compiled program (see conftest.py) is none.
_PYTHON = [sys.executable, "-W", "error", "-W", "ignore:Error reading persistent compilation cache"]


def run_command(*arguments, cwd, stdin=None, program=("-m", "bures.cli")):
    """`bures` with these arguments, in a process of its own."""
    command = [*_PYTHON, *program, *arguments]
    return subprocess.run(command, input=stdin, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


_COMMANDS = """
import contextlib, io, json, sys
from bures.cli import main

def run(arguments):
    sys.argv = ["bures", *arguments]
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    return {"stdout": out.getvalue(), "stderr": err.getvalue(), "returncode": status}

json.dump([run(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
"""


def run_commands(commands, cwd, before=""):
    """The same for several command lines, in one process that imports everything once, after the code `before`."""
    lines = json.dumps([shlex.split(line) for line in commands])
    done = run_command(cwd=cwd, stdin=lines, program=("-c", before + _COMMANDS))
    assert done.returncode == 0 and not done.stderr, done.stderr  # what is printed by others than Python
    found = zip(commands, json.loads(done.stdout), strict=True)
    return {line: subprocess.CompletedProcess(line, **result) for line, result in found}
