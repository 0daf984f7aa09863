"""Every test runs in float64 unless it asks for float32 arrays."""

import jax
import pytest

jax.config.update("jax_enable_x64", True)


@pytest.fixture
def key():
    return jax.random.key(0)
