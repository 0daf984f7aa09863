"""Every test runs in float64 unless it asks for float32 arrays, and with every annotation of bures checked."""

import jax
import jaxtyping
import pytest
from hypothesis import settings

# Model programs for other libraries: imported by the tests that need those libraries, not by the search for doctests.
collect_ignore_glob = ["tests/posteriordb_models/*"]

jax.config.update("jax_enable_x64", True)
settings.register_profile("bures", derandomize=True, deadline=None)  # the same examples on every machine
settings.load_profile("bures")


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def unchecked_types():
    """As users run bures: without run-time checks of annotations, so that bures' own checks answer bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
