"""Every test runs in float64 unless it asks for float32 arrays."""

import os

# Most programs of the tests run once: little time is spent on their speed, in the processes that tests start, too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import jaxtyping
import pytest
from hypothesis import settings

# Model programs for other libraries: imported by the tests that need those libraries, not by the search for doctests.
collect_ignore_glob = ["tests/posteriordb_models/*"]

# Here the running takes longer than the compiling.
RUN_LONG = (
    "test_estimator",
    "test_geometry",
    "test_objective",
    "test_posteriordb",
    "test_reference",
    "test_signal_to_noise",
)

jax.config.update("jax_enable_x64", True)
settings.register_profile("bures", derandomize=True, deadline=None)  # the same examples on every machine
settings.load_profile("bures")


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture(autouse=True, scope="module")
def optimisations(request):
    jax.config.update("jax_disable_most_optimizations", request.module.__name__ not in RUN_LONG)


@pytest.fixture
def unchecked_types():
    """As users run bures: without run-time checks of annotations, so that bures' own checks answer bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
