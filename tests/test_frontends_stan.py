"""Stan: the engine's way in, and who is blamed when a program cannot be compiled."""

import bridgestan
import jax
import numpy as np
import pytest

from bures.frontends import from_stan
from tests.problems import needs_stan
from tests.test_frontends import EIGHT_SCHOOLS, SCHOOLS

PROGRAM = "parameters { real x; } model { x ~ std_normal(); }"


@needs_stan
def test_the_engine_needs_no_compilation(key):
    target = from_stan(EIGHT_SCHOOLS, SCHOOLS)
    z = np.array(jax.random.normal(key, (6, 10)))
    z[3, 0] = np.nan
    values, scores = target.log_density.values_and_scores_on_host(z)
    expected, expected_scores = jax.vmap(jax.value_and_grad(target.log_density))(z)
    assert isinstance(values, np.ndarray)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(scores, expected_scores)
    assert values[3] == -np.inf
    np.testing.assert_array_equal(target.log_density.initial_candidates(), np.zeros((1, 10)))
    assert "Random variable is nan" in target.log_density.explain(np.full(10, np.nan))


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder that BridgeStan takes for its sources; its Makefile does what a test says."""
    monkeypatch.setenv("BRIDGESTAN", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(*commands):
        (tmp_path / "Makefile").write_text("%_model.so: %.stan\n" + "".join(f"\t{line}\n" for line in commands))

    return write


def test_a_missing_compiler_is_named(sources):
    sources("no-such-g++ -c model.cpp")
    with pytest.raises(ValueError, match=r"'no-such-g\+\+' was not found. Install make and a C\+\+ compiler"):
        from_stan(PROGRAM)
    sources("sh -c 'no-such-g++ -c model.cpp; exit 1'")  # as the shell says it
    with pytest.raises(ValueError, match=r"'no-such-g\+\+' was not found"):
        from_stan(PROGRAM)


def test_a_missing_make_is_named(sources, monkeypatch):
    sources("true")
    monkeypatch.setattr(bridgestan.compile, "MAKE", "no-such-make")
    with pytest.raises(ValueError, match=r"'no-such-make' was not found. Install make"):
        from_stan(PROGRAM)


def test_the_program_is_blamed_for_what_stanc_says(sources):
    sources("@echo \"Semantic error in 'model.stan', line 1, column 45: 'sigma' not in scope.\" >&2; exit 1")
    with pytest.raises(ValueError, match=r"(?s)The Stan program does not compile.*'sigma' not in scope"):
        from_stan(PROGRAM)


def test_the_compiler_is_blamed_for_what_it_says(sources):
    sources("@echo 'model.hpp:3: internal compiler error: out of memory' >&2; exit 1")
    with pytest.raises(ValueError, match=r"(?s)no error in the program itself.*out of memory"):
        from_stan(PROGRAM)
    sources("@echo 'fatal error: stan/math/rev.hpp: No such file or directory' >&2; exit 1")
    with pytest.raises(ValueError, match=r"(?s)no error in the program itself.*rev.hpp"):
        from_stan(PROGRAM)


def test_missing_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIDGESTAN", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"sources are missing.*environment variable BRIDGESTAN"):
        from_stan(PROGRAM)

    def offline():
        raise ValueError("Failed to download BridgeStan from github.com.")

    monkeypatch.delenv("BRIDGESTAN")
    monkeypatch.setattr(bridgestan.compile, "CURRENT_BRIDGESTAN", tmp_path / "nowhere")
    monkeypatch.setattr(bridgestan.compile, "get_bridgestan_src", offline)
    with pytest.raises(ValueError, match=r"sources are missing.*Failed to download.*github\.com"):
        from_stan(PROGRAM)
