"""One model after another in one process: they go with their data, and free memory is given back."""

import ctypes
import gc
import os
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bures
from bures import compiled, engine
from bures.compiled import Programs, split
from bures.memory import give_back_memory

KEY = jax.random.key(0)


def live_programs():
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


def test_of_programs_for_other_shapes_only_the_latest_are_kept():
    programs = Programs(lambda static, arrays: jnp.sum(jnp.sin(static.combine(arrays))), kept=3)

    def call(n):
        static, arrays, owners = split(np.ones(n, np.float32))
        return float(programs.of(owners, static, arrays)(static, arrays))

    before = live_programs()
    for n in range(1, 12):
        assert call(n) == pytest.approx(n * np.sin(1), rel=1e-5)
    assert live_programs() - before == programs.count == 3
    call(10)  # is one of them
    assert programs.count == 3


def test_where_fewer_are_kept_than_there_are_all_others_go(monkeypatch):
    programs = Programs(lambda static, arrays: jnp.sum(static.combine(arrays)), kept=5)
    for n in range(1, 8):
        monkeypatch.setattr(programs, "kept", 2 if n == 7 else 5)
        static, arrays, owners = split(np.ones(n, np.float32))
        programs.of(owners, static, arrays)(static, arrays)
    assert programs.count == 2


def test_models_of_ever_new_shapes_do_not_add_up(monkeypatch):
    monkeypatch.setattr(engine._PROGRAMS, "kept", 2)
    rng = np.random.default_rng(0)

    def fit(rows):
        X = rng.normal(size=(rows, 2))
        target = bures.models.logistic_regression(X, (X[:, 0] > 0).astype(float))
        bures.fit(target, key=KEY, max_evaluations=400)

    fit(20)
    before = live_programs()
    for rows in range(21, 29):
        fit(rows)
    assert live_programs() <= before + 2


def test_what_compiling_took_is_given_back_once(monkeypatch):
    calls = []
    for module in (compiled, engine):
        monkeypatch.setattr(module, "give_back_memory", lambda: calls.append(1))
    target = bures.Target(lambda z: -jnp.sum(z**4), 3)
    bures.fit(target, key=KEY, max_evaluations=400)
    assert len(calls) == 1
    bures.fit(target, key=jax.random.key(1), max_evaluations=400)
    assert len(calls) == 1
    bures.fit(target, key=KEY, num_steps=2, init=bures.Gaussian.standard(3))
    assert len(calls) == 2


def test_free_memory_goes_back_to_the_system():
    if not give_back_memory():
        assert not hasattr(ctypes.CDLL(None), "malloc_trim")
        return

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    pieces = [ctypes.create_string_buffer(2**16) for _ in range(2000)]  # 125 MB, too small to be mapped each
    kept, full = pieces[::100], resident()
    del pieces
    give_back_memory()
    assert len(kept) == 20 and full - resident() > 80


def rows_target():
    constants = np.zeros(2**18, np.float32)

    def log_likelihood(z, row):
        return -((row @ z - 1) ** 2) / 2 + 0 * constants[0]

    data = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    return bures.Target.from_data(lambda z: -z @ z / 2, log_likelihood, data, 2), weakref.ref(log_likelihood)


@pytest.mark.parametrize("what", ["bw_gradient", "wasserstein_gradient", "weighted_hessian"])
def test_a_target_of_rows_goes_after_its_gradients(what):
    target, function = rows_target()
    q = bures.Gaussian.standard(2)
    if what == "bw_gradient":
        bures.bw_gradient(KEY, q, target, bures.ELBO(), bures.Stein(M=4))
    elif what == "wasserstein_gradient":
        bures.wasserstein_gradient(KEY, jnp.zeros(2), q, target, bures.ELBO(), M=4)
    else:
        engine.Evaluator(target).weighted_hessian(np.ones(1, np.float32), np.zeros((1, 2), np.float32))
    del target
    gc.collect()
    assert function() is None


def normal_prior(z):
    return -z @ z / 2


def of_row(z, row):
    return -((row - z[0]) ** 2) / 2


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
@pytest.mark.parametrize("compiled", [False, True], ids=["on the host", "compiled"])
def test_rows_go_with_their_target(on_disk, compiled, tmp_path):
    """Also where its functions are those of a module, which stay: no program holds the rows, nor their passes."""
    rows = np.random.default_rng(0).normal(size=300)
    if on_disk:
        rows.tofile(tmp_path / "rows")
        rows = np.memmap(tmp_path / "rows", dtype=np.float64)
    target = bures.Target.from_data(normal_prior, of_row, rows, 1, subsample=True)
    method = dict(geometry=bures.Euclidean(optax.sgd(1e-3)), num_steps=2) if compiled else {}
    bures.fit(target, key=KEY, **method).resample(KEY, 10)
    stream = weakref.ref(target.log_density.stream)
    del target, rows
    gc.collect()
    assert stream() is None


def of_numpyro(y):
    numpyro = pytest.importorskip("numpyro")

    def model(y):
        mu = numpyro.sample("mu", numpyro.distributions.Normal(0, 5))
        numpyro.sample("y", numpyro.distributions.Normal(mu, 1), obs=y)

    return bures.frontends.from_numpyro(model, jnp.asarray(y))


def of_pymc(y):
    pymc = pytest.importorskip("pymc")
    with pymc.Model() as model:
        pymc.Normal("y", pymc.Normal("mu", 0, 5), 1, observed=y)
    return bures.frontends.from_pymc(model)


@pytest.mark.parametrize("make", [of_numpyro, of_pymc], ids=lambda make: make.__name__)
def test_a_model_of_another_library_goes_with_its_data(make):
    target = make(np.random.default_rng(0).normal(size=30))
    source = weakref.ref(target.log_density.source)
    fit = bures.fit(target, key=KEY)
    assert set(fit.summary()) == {"mu"}
    bures.fit(target, key=KEY, num_steps=2)
    del target, fit
    gc.collect()
    assert source() is None
