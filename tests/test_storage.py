"""Saved fits: bit for bit back, atomic, and never half-read."""

import hashlib
import io
import json
import os
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import regression_data

import bures
from bures import LowRankGaussian

METHODS = {
    "bures-wasserstein": dict(
        objective=bures.IWELBO(K=3), estimator=bures.Price(M=8), geometry=bures.BuresWasserstein(0.3)
    ),
    "forward-backward": dict(
        objective=bures.ELBO(), estimator=bures.Stein(M=8, draws="sobol"), geometry=bures.ForwardBackward(0.1)
    ),
    "euclidean": dict(
        objective=bures.VRIWAE(K=3, alpha=0.25), estimator=bures.Reparameterised(M=8), geometry=bures.Euclidean(0.05)
    ),
    "whitened": dict(
        objective=bures.IWELBO(K=3), estimator=bures.Price(M=8, permutations=4), geometry=bures.Whitened()
    ),
}


def start() -> bures.Gaussian:
    return bures.Gaussian.from_moments(jnp.array([6.0, 12.0]), 5 * jnp.eye(2))


def fitted(num_steps: int, method: dict) -> bures.Fit:
    return bures.fit(bures.models.eggbox(), key=jax.random.key(3), init=start(), num_steps=num_steps, **method)


def assert_same(first: bures.Fit, second: bures.Fit) -> None:
    assert first.outcome is second.outcome
    one = jax.tree.leaves((first.approximation, first.trace, first.path, first.loop))
    two = jax.tree.leaves((second.approximation, second.trace, second.path, second.loop))
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_and_resumed_fit_equals_an_uninterrupted_one(tmp_path, name):
    whole = fitted(61, METHODS[name])
    path = tmp_path / "half.fit"
    half = fitted(17, METHODS[name])
    half.save(path)
    loaded = bures.load(path, target=bures.models.eggbox())
    assert_same(loaded, half)
    assert_same(loaded.resume(44), whole)


def test_a_loaded_fit_can_do_all_a_fit_can(tmp_path, key):
    path = tmp_path / "a.fit"
    fit = fitted(30, METHODS["bures-wasserstein"])
    fit.save(path)
    loaded = bures.load(path, target=bures.models.eggbox())
    assert str(loaded.diagnose(key)) == str(fit.diagnose(key))
    assert str(loaded) == str(fit)
    assert loaded.evaluations == fit.evaluations
    np.testing.assert_array_equal(loaded.resample(key, 10), fit.resample(key, 10))


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "saved.fit"
    fitted(5, METHODS["bures-wasserstein"]).save(path)
    return path


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.99])
def test_a_file_cut_short_is_refused(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"not a saved fit|cut short"):
        bures.load(saved, target=bures.models.eggbox())


@pytest.mark.parametrize("place", [70, 100, 500, -1])
def test_an_edited_file_is_refused(saved, place):
    content = bytearray(saved.read_bytes())
    content[place] ^= 1
    saved.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="cut short or changed"):
        bures.load(saved, target=bures.models.eggbox())


def test_another_version_is_refused_by_its_number(saved):
    saved.write_bytes(saved.read_bytes().replace(b"bures-fit 6\n", b"bures-fit 99\n", 1))
    with pytest.raises(ValueError, match="version '99'"):
        bures.load(saved, target=bures.models.eggbox())


def test_a_payload_that_is_not_an_archive_is_refused(saved):
    payload = b"not a zip"
    saved.write_bytes(b"bures-fit 6\n" + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    with pytest.raises(ValueError, match="cannot be read"):
        bures.load(saved, target=bures.models.eggbox())


def test_another_target_is_refused(saved):
    with pytest.raises(ValueError, match=r"target must be the one"):
        bures.load(saved, target=bures.models.banana())
    with pytest.raises(ValueError, match=r"target must be the one"):
        bures.load(saved, target=bures.models.banana(dim=3))


def gaussian_with(change):
    """A standard normal whose log density is changed by a function of the point."""
    return bures.Target(lambda z: -jnp.sum(z**2) / 2 + change(z), 2)


CHANGES = {
    "a constant": lambda z: 1e-6,
    "another tail": lambda z: -1e-3 * jnp.sum(z**4),
    "the same near the mean": lambda z: jnp.where(jnp.sum(z**2) > 4, 1.0, 0.0),
    "another support": lambda z: jnp.where(z[0] > 1.0, -jnp.inf, 0.0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("saved_first", [True, False], ids=["lost", "gained"])
def test_a_target_that_differs_only_away_from_the_mean_is_refused(tmp_path, change, saved_first):
    plain, changed = gaussian_with(lambda z: 0.0), gaussian_with(CHANGES[change])
    first, second = (plain, changed) if saved_first else (changed, plain)
    fit = bures.fit(first, key=jax.random.key(0), init=bures.Gaussian.standard(2), num_steps=1)
    fit.save(tmp_path / "a.fit")
    assert bures.load(tmp_path / "a.fit", target=first).num_steps == 1  # infinities and all
    with pytest.raises(ValueError, match=r"target must be the one .* another at \d+ of 16 points"):
        bures.load(tmp_path / "a.fit", target=second)


def test_rounding_does_not_make_another_target(tmp_path):
    """The same sum in another order, and in float32: log densities near -30,000, where floats are 0.002 apart."""
    data = jnp.asarray(np.random.default_rng(0).standard_normal(20_000), jnp.float32)
    forward = bures.Target(lambda z: -jnp.sum((data - z[0]) ** 2) - 1000 * z[1] ** 2, 2)
    backward = bures.Target(lambda z: -1000 * z[1] ** 2 - jnp.sum(jnp.cumsum((data[::-1] - z[0]) ** 2)[-1]), 2)
    for dtype in (jnp.float32, jnp.float64):
        fit = bures.fit(forward, key=jax.random.key(0), init=bures.Gaussian.standard(2, dtype), num_steps=3)
        fit.save(tmp_path / "a.fit")
        bures.load(tmp_path / "a.fit", target=backward)


# ---- Earlier versions -----------------------------------------------------------------------------------------------

# Files of version 3, written by bures before there were families (commit b195cf3).
EARLIER = Path(__file__).parent / "saved"


def bent(z):
    """The target of the fits in those files."""
    return -(z[0] ** 2) / 2 - (z[1] - 0.1 * z[0] ** 2) ** 2


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(path.read_bytes().split(b"\n", 2)[2])) as archive:
        return dict(archive)


def write(path: Path, version: int, arrays: dict[str, np.ndarray], description: dict) -> None:
    arrays["description"] = np.frombuffer(json.dumps(description).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest().encode()
    path.write_bytes(b"bures-fit %d\n" % version + digest + b"\n" + buffer.getvalue())


@pytest.mark.parametrize("name", ["whitened-on-host", "euclidean"])
def test_a_file_of_version_3_is_read(tmp_path, name):
    path = EARLIER / f"version-3-{name}.fit"
    fit, arrays = bures.load(path, target=bent, dim=2), arrays_of(path)
    np.testing.assert_array_equal(fit.approximation.mean, arrays["mean"])
    np.testing.assert_array_equal(fit.approximation.chol, arrays["chol"])
    np.testing.assert_array_equal([q.mean for _, q in fit.path], arrays["path_means"])
    np.testing.assert_array_equal([q.chol for _, q in fit.path], arrays["path_chols"])
    np.testing.assert_array_equal(fit.trace.bound, arrays["trace_bound"])
    for i, leaf in enumerate(jax.tree.leaves(fit.loop)):
        np.testing.assert_array_equal(leaf, arrays[f"carry_{i}"])
    assert f"carry_{i + 1}" not in arrays
    # It goes on, and is saved as any other.
    fit.save(tmp_path / "again.fit")
    assert_same(bures.load(tmp_path / "again.fit", target=bent, dim=2).resume(5), fit.resume(5))


def test_a_judgement_of_version_3_is_read():
    fit = bures.load(EARLIER / "version-3-whitened-on-host.fit", target=bent, dim=2)
    assert fit.record.judgement is not None
    assert fit.diagnostics.elbo == pytest.approx(1.4659500573357158, rel=1e-12)  # as it was printed then
    assert fit.loop.is_on_host


def test_a_judgement_of_version_5_is_read_without_the_walk_and_a_later_one_is_not(tmp_path):
    path = tmp_path / "a.fit"
    bures.fit(bent, key=jax.random.key(0), dim=2).save(path)
    arrays = arrays_of(path)
    description = json.loads(arrays["description"].tobytes())
    del description["looked"]
    write(path, 6, arrays, description)
    with pytest.raises(ValueError, match="its description lacks looked"):
        bures.load(path, target=bent, dim=2)
    del description["num_edges"]
    write(path, 5, {name: array for name, array in arrays.items() if not name.startswith("edge_")}, description)
    found = bures.load(path, target=bent, dim=2).record.judgement
    assert found is not None and found.looked == 0 and found.edge is None


def test_a_file_of_version_2_is_read(tmp_path):
    """It has the log density at the mean in the place of the points."""
    earlier, path = EARLIER / "version-3-euclidean.fit", tmp_path / "a.fit"
    arrays = arrays_of(earlier)
    description = json.loads(arrays["description"].tobytes())
    del arrays["probes"]
    description["log_density_at_mean"] = float(arrays.pop("log_densities")[0])
    write(path, 2, arrays, description)
    assert_same(bures.load(path, target=bent, dim=2), bures.load(earlier, target=bent, dim=2))
    with pytest.raises(ValueError, match=r"target must be the one .* 1 of 1 points"):
        bures.load(path, target=lambda z: bent(z) + 1, dim=2)


# ---- Families -------------------------------------------------------------------------------------------------------

FAMILIES = {
    "mean field": (bures.MeanField(), METHODS["forward-backward"]),
    "low rank, whitened": (bures.LowRank(rank=2), METHODS["whitened"]),
    "low rank, Bures-Wasserstein": (bures.LowRank(), METHODS["bures-wasserstein"]),
    "low rank, Euclidean": (bures.LowRank(rank=1), METHODS["euclidean"]),
}


def regression() -> bures.Target:
    return bures.models.logistic_regression(*regression_data(dim=6))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_saved_and_resumed(tmp_path, name):
    family, method = FAMILIES[name]
    options = dict(key=jax.random.key(3), family=family, init=bures.Gaussian.standard(6), **method)
    half = bures.fit(regression(), num_steps=7, **options)
    half.save(tmp_path / "half.fit")
    loaded = bures.load(tmp_path / "half.fit", target=regression())
    assert_same(loaded, half)
    assert loaded.approximation.grows == half.approximation.grows == (family == bures.LowRank())
    assert str(loaded) == str(half)
    assert_same(loaded.resume(6), bures.fit(regression(), num_steps=13, **options))


def correlated(dim: int, rank: int) -> tuple[bures.Target, LowRankGaussian]:
    """A Gaussian of a diagonal and some directions, without a d × d array."""
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.standard_normal((dim, rank)))[0]
    truth = LowRankGaussian(
        jnp.zeros(dim), jnp.asarray(np.exp(generator.normal(size=dim))), basis, np.linspace(5.0, 9.0, rank)
    )
    return bures.Target(truth.log_prob, dim), truth


def test_a_fit_whose_columns_grow_is_saved_and_resumed(tmp_path):
    """Members of the path have different shapes, and so may the best and the last."""
    target, truth = correlated(60, 12)
    start = LowRankGaussian(truth.mean, truth.scale, grows=False)
    options = dict(key=jax.random.key(0), init=start, family=bures.LowRank())
    fit = bures.fit(target, **options)
    columns = [q.capacity for _, q in fit.path]
    assert columns[0] < columns[-1]  # or the test is of nothing
    fit.save(tmp_path / "a.fit")
    loaded = bures.load(tmp_path / "a.fit", target=target)
    assert_same(loaded, fit)
    assert loaded.loop.is_on_host and loaded.approximation.grows
    assert [q.capacity for _, q in loaded.path] == columns
    assert_same(loaded.resume(4), fit.resume(4))


def test_files_of_low_rank_hold_nothing_of_d_times_d(tmp_path):
    dim = 600
    target, truth = correlated(dim, 2)
    method = dict(objective=bures.ELBO(), estimator=bures.Stein(M=20), geometry=bures.Whitened())
    fit = bures.fit(target, key=jax.random.key(0), init=truth, num_steps=2, **method)
    fit.save(tmp_path / "a.fit")
    sizes = {name: array.size for name, array in arrays_of(tmp_path / "a.fit").items()}
    assert max(sizes.values()) <= 16 * dim, sizes  # the points by which a target is known
    assert sum(sizes.values()) < 100 * dim < dim**2
    assert_same(bures.load(tmp_path / "a.fit", target=target), fit)


def test_an_unknown_family_is_refused_by_name(saved):
    arrays = arrays_of(saved)
    description = json.loads(arrays["description"].tobytes())
    description["family"]["name"] = "Spline"
    write(saved, 4, arrays, description)
    with pytest.raises(
        ValueError, match=r"family 'Spline', but this bures knows FullRank and LowRank and Mixture.*family="
    ):
        bures.load(saved, target=bures.models.eggbox())


def test_a_family_whose_arrays_are_not_there_is_refused(saved):
    arrays = arrays_of(saved)
    description = json.loads(arrays["description"].tobytes())
    description["family"]["name"] = "Mixture"
    write(saved, 4, arrays, description)
    with pytest.raises(ValueError, match=r"does not hold approximation\.log_shares"):
        bures.load(saved, target=bures.models.eggbox())


class Round(bures.Gaussian):
    """A family from outside."""

    family: ClassVar[str] = "Round"

    def transport(self, estimate, step_size, clip):
        moved, clipped = super().transport(estimate, step_size, clip)
        return Round.unchecked(moved.mean, moved.chol), clipped


class Rounds(bures.FullRank):
    def standard(self, dim, dtype=None):
        return Round.standard(dim, dtype)


def test_a_family_of_ones_own_is_passed_again(tmp_path):
    target = bures.Target(lambda z: -jnp.sum(z**2) / 2, 2)
    method = dict(objective=bures.ELBO(), estimator=bures.Price(M=2), geometry=bures.BuresWasserstein(0.1))
    init = Round.standard(2)
    fit = bures.fit(target, key=jax.random.key(0), init=init, family=Rounds(), num_steps=1, **method)
    fit.save(tmp_path / "a.fit")
    with pytest.raises(ValueError, match=r"family 'Round', but this bures knows"):
        bures.load(tmp_path / "a.fit", target=target)
    with pytest.raises(ValueError, match=r"family must be that of the saved fit, 'Round'"):
        bures.load(tmp_path / "a.fit", target=target, family=bures.LowRank())
    assert isinstance(bures.load(tmp_path / "a.fit", target=target, family=Rounds()).approximation, Round)


# ---- What a file can hold -------------------------------------------------------------------------------------------

NUMPY_NUMBERS = {
    "integer": lambda: dict(estimator=bures.Price(M=np.int64(8))),
    "step size": lambda: dict(geometry=bures.BuresWasserstein(np.float32(0.25))),
    "power": lambda: dict(objective=bures.VRIWAE(3, np.float32(0.5))),
}


@pytest.mark.parametrize("name", NUMPY_NUMBERS)
def test_numbers_of_numpy_are_saved_as_numbers(tmp_path, name, unchecked_types):
    fit = fitted(5, METHODS["bures-wasserstein"] | NUMPY_NUMBERS[name]())
    fit.save(tmp_path / "a.fit")
    loaded = bures.load(tmp_path / "a.fit", target=bures.models.eggbox())
    assert_same(loaded, fit)
    assert_same(loaded.resume(5), fit.resume(5))


def test_a_missing_file_and_a_wrong_option(saved, tmp_path):
    with pytest.raises(FileNotFoundError):
        bures.load(tmp_path / "none.fit", target=bures.models.eggbox())
    with pytest.raises(ValueError, match="load's options"):
        bures.load(saved, target=bures.models.eggbox(), geometri=bures.Whitened())


@pytest.mark.parametrize("name", ["missing/a.fit", "folder", "file/a.fit"])
def test_a_path_that_cannot_be_written(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    fit = fitted(5, METHODS["bures-wasserstein"])
    with pytest.raises(OSError, match="path must be a file that can be written"):
        fit.save(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]  # nothing left behind


def test_an_optimiser_of_ones_own_is_passed_again(tmp_path):
    path = tmp_path / "own.fit"
    geometry = bures.Euclidean(optax.sgd(0.01, momentum=0.9))
    method = dict(objective=bures.ELBO(), estimator=bures.Price(M=8), geometry=geometry)
    fitted(11, method).save(path)
    with pytest.raises(ValueError, match="geometry must be passed to load"):
        bures.load(path, target=bures.models.eggbox())
    with pytest.raises(ValueError, match="geometry must be the one of the saved fit"):
        bures.load(path, target=bures.models.eggbox(), geometry=bures.BuresWasserstein(0.1))
    loaded = bures.load(path, target=bures.models.eggbox(), geometry=geometry)
    assert_same(loaded.resume(9), fitted(20, method))


def test_float32_fits_come_back_in_float32(tmp_path):
    target = bures.Target(lambda z: -jnp.sum(z**2) / 2, 2)
    init = bures.Gaussian(jnp.ones(2, jnp.float32), jnp.eye(2, dtype=jnp.float32))
    fit = bures.fit(target, key=jax.random.key(0), init=init, num_steps=5)
    fit.save(tmp_path / "f.fit")
    loaded = bures.load(tmp_path / "f.fit", target=target)
    assert loaded.approximation.mean.dtype == jnp.float32
    assert_same(loaded.resume(5), fit.resume(5))


def test_one_kind_of_error_for_all_that_is_wrong_with_a_file(saved):
    from bures.storage import FileError

    arrays = arrays_of(saved)
    description = json.loads(arrays["description"].tobytes())
    method = description["method"]
    edits = [
        {"dim": 10**9},
        {"num_modes": 10**12},
        {"outcome": "os"},
        {"more": 1},
        {"method": method | {"geometry": {"type": "load", "arguments": {"path": "x", "target": None}}}},
        {"method": method | {"geometry": {"type": "Whitened", "arguments": {"nonsense": 1}}}},
    ]
    for edit in edits:
        write(saved, 5, arrays, description | edit)
        with pytest.raises(FileError):
            bures.load(saved, target=bures.models.eggbox())
    changed = arrays | {"approximation.mean": arrays["approximation.mean"] + 1e-3}
    write(saved, 5, changed, description)
    with pytest.raises(FileError, match="neither its last nor its best"):
        bures.load(saved, target=bures.models.eggbox())
    moved = {name: array + 1e-3 if name.endswith(".mean") else array for name, array in arrays.items()}
    write(saved, 5, moved, description)
    with pytest.raises(FileError, match="its log density is another at"):
        bures.load(saved, target=bures.models.eggbox())
    write(saved, 5, arrays | {"log_q": arrays["log_q"] + 1e-2}, description)
    with pytest.raises(FileError, match="are not those of its approximation"):
        bures.load(saved, target=bures.models.eggbox())
    for path in (None, 3, ""):
        with pytest.raises(ValueError, match="path must be a path"):
            bures.load(path, target=bures.models.eggbox())
    write(saved, 5, arrays, description)
    assert_same(bures.load(saved, target=bures.models.eggbox()), fitted(5, METHODS["bures-wasserstein"]))
