"""Every test runs in float64 unless it asks for float32 arrays."""

import atexit
import os
import shutil
import sys
import tempfile

# Most programs of the tests run once: little time is spent on their speed, in the processes that tests start, too. With
# BURES_TESTS_OPTIMISED they run as users have them.
if "BURES_TESTS_OPTIMISED" not in os.environ:
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# What one test has compiled the others need not compile again, in whatever process they run: the programs are kept
# until the tests end, in a folder that the workers and the processes that tests start learn of by the environment.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="bures-programs-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"  # smaller ones are not worth a file
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import jax
import jaxtyping
import pytest
from hypothesis import settings

# Model programs for other libraries: imported by the tests that need those libraries, not by the search for doctests.
collect_ignore_glob = ["tests/posteriordb_models/*"]

# Files and tests of which the running takes longer than the compiling.
RUN_LONG = {
    "test_objective",
    "test_posteriordb",
    "test_signal_to_noise",
    "test_gradients_are_those_of_the_bound",
    "test_projected_gradients_are_those_of_the_bound_in_the_familys_parameters",
    "test_every_variant_has_the_same_expectation",
    "test_stein_and_price_agree_in_expectation",
    "test_wasserstein_gradient_averages_to_a",
    "test_moments_of_a_correlated_gaussian",
    "test_dtype_follows_the_start",
}

# The longest files, longest first: at the end no worker is left with one of them and the other without work.
FIRST = (
    "test_experiments",
    "test_estimator",
    "test_contract",
    "test_docs",
    "test_fitting",
    "test_frontends",
    "test_benchmarks",
)

OPTIMISED = "BURES_TESTS_OPTIMISED" in os.environ

jax.config.update("jax_enable_x64", True)
settings.register_profile("bures", derandomize=True, deadline=None)  # the same examples on every machine
settings.load_profile("bures")


@pytest.fixture
def key():
    return jax.random.key(0)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before all fixtures, which may compile."""
    names = {item.path.stem, getattr(item, "originalname", item.name)}
    jax.config.update("jax_disable_most_optimizations", not OPTIMISED and RUN_LONG.isdisjoint(names))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """No figure stays open for the tests that follow, which look at the open ones."""
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def unchecked_types():
    """As users run bures: without run-time checks of annotations, so that bures' own checks answer bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
