"""Targets from rows: the same in memory, in blocks and from disk; what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bures
from bures.engine import Evaluator
from bures.frontends.stan_files import read_data
from bures.mesh import ShardedRows
from bures.rows import Parquet, sources, sums
from bures.support import Positive

DIM = 3


def log_prior(z):
    return -jnp.sum(z**2) / 20


def logistic(z, row):
    x = row["x"] @ z
    return row["y"] * x - jnp.logaddexp(0.0, x)


def make_data(n, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, DIM)).astype(dtype)
    y = rng.random(n) < 1 / (1 + np.exp(-x @ np.array([1.0, -0.5, 0.2])))
    return {"x": x, "y": y.astype(dtype)}


def plain_target(data):
    """The same density by hand: no rows, no blocks."""

    def log_density(z):
        x = jnp.asarray(data["x"]) @ z
        return log_prior(z) + jnp.sum(jnp.asarray(data["y"]) * x - jnp.logaddexp(0.0, x))

    return bures.Target(log_density, DIM)


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of rows even where there are few: within a program and from a source."""
    monkeypatch.setattr(sums, "_BLOCK_ELEMENTS", 64)
    monkeypatch.setattr(sums, "_LEAST_ROWS", 8)
    monkeypatch.setattr(sources, "_MOST_ROWS", 100)


@pytest.mark.parametrize("n", [1, 7, 8, 203])
def test_rows_in_blocks_are_the_density_by_hand(n, key, small_blocks):
    data = make_data(n)
    target, plain = bures.Target.from_data(log_prior, logistic, data, DIM), plain_target(data)
    z, weights = jax.random.normal(key, (5, DIM)), jnp.arange(5.0)
    for found, wanted in zip(target.value_and_score(z), plain.value_and_score(z), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_allclose(target.value(z), plain.value(z), rtol=1e-12)
    np.testing.assert_allclose(target.weighted_hessian(weights, z), plain.weighted_hessian(weights, z), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(target.log_density)(z[0]), jax.grad(plain.log_density)(z[0]), rtol=1e-12)


def test_rows_of_weight_zero_count_for_nothing(key, small_blocks):
    data, z = make_data(20), jax.random.normal(key, (4, DIM))
    padded = jax.tree.map(
        lambda x: jnp.concatenate([x, jnp.full_like(x[:5], jnp.nan)]), jax.tree.map(jnp.asarray, data)
    )
    weights = jnp.concatenate([jnp.ones(20), jnp.zeros(5)])
    values = sums.values_of_rows(logistic, padded, weights, z)
    np.testing.assert_allclose(values, sums.values_of_rows(logistic, data, None, z), rtol=1e-12)


def as_memory_map(data, folder):
    for name, array in data.items():
        np.save(folder / f"{name}.npy", array)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in data}


def as_hdf5(data, folder):
    import h5py

    file = h5py.File(folder / "rows.h5", "w")
    return {name: file.create_dataset(name, data=array) for name, array in data.items()}


def as_parquet(data, folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {f"x{i}": data["x"][:, i] for i in range(DIM)} | {"y": data["y"]}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=70)
    return Parquet(folder / "rows.parquet", {"x": [f"x{i}" for i in range(DIM)], "y": "y"})


@pytest.mark.parametrize("store", [lambda data, _: data, as_memory_map, as_hdf5, as_parquet])
@pytest.mark.parametrize("n", [200, 237])
def test_a_stream_is_the_same_as_memory(store, n, tmp_path, small_blocks):
    data = make_data(n)
    streamed = bures.Target.from_data(log_prior, logistic, store(data, tmp_path), DIM, subsample=True)
    plain = plain_target(data)
    z = np.random.default_rng(1).standard_normal((9, DIM))
    stream = streamed.log_density.stream
    before = stream.rows_read
    values, scores = Evaluator(streamed).value_and_score(z)
    assert stream.rows_read - before == n, "one pass for all points"
    wanted = plain.value_and_score(jnp.asarray(z))
    np.testing.assert_allclose(values, wanted[0], rtol=1e-10)
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-10)
    np.testing.assert_allclose(Evaluator(streamed).value(z), wanted[0], rtol=1e-10)
    weights = np.arange(9.0)
    hessian = stream.weighted_hessian(weights, z)
    np.testing.assert_allclose(hessian, plain.weighted_hessian(jnp.asarray(weights), jnp.asarray(z)), rtol=1e-10)
    np.testing.assert_allclose(stream.hessian(z[0])[2], jax.hessian(plain.log_density)(z[0]), rtol=1e-10)


def test_rows_by_their_numbers(tmp_path, small_blocks):
    data, numbers = make_data(237), np.array([0, 3, 99, 100, 236])
    for store in (as_memory_map, as_hdf5, as_parquet):
        source = store(data, tmp_path)
        source = source if isinstance(source, Parquet) else sources.ArraySource(source)
        rows, read = source.take(numbers)
        np.testing.assert_array_equal(rows["x"], data["x"][numbers])
        assert read == (5 if store is as_memory_map else 237)


def test_a_streamed_density_within_a_compiled_program(tmp_path, small_blocks):
    data = make_data(150)
    target = bures.Target.from_data(log_prior, logistic, as_memory_map(data, tmp_path), DIM, subsample=True)
    z = jnp.array([0.3, -0.2, 0.1])
    value, score = jax.jit(jax.value_and_grad(target.log_density))(z)
    wanted = jax.value_and_grad(plain_target(data).log_density)(z)
    np.testing.assert_allclose(value, wanted[0], rtol=1e-10)
    np.testing.assert_allclose(score, wanted[1], rtol=1e-10)


def test_a_small_file_is_read_into_memory(tmp_path):
    data = make_data(50)
    target = bures.Target.from_data(log_prior, logistic, as_memory_map(data, tmp_path), DIM)
    assert isinstance(target.log_density, bures.rows.RowDensity)
    assert target.log_density.stream is None


def test_another_data_set_compiles_nothing_and_is_no_constant():
    targets = [bures.Target.from_data(log_prior, logistic, make_data(50, seed=seed), DIM) for seed in range(2)]
    z = np.ones((3, DIM))
    first, second = (Evaluator(target) for target in targets)
    assert not np.allclose(first.value(z), second.value(z))
    assert first.compile_seconds > 0
    assert second.compile_seconds == 0


def test_named_variables():
    data = np.random.default_rng(0).normal(1.0, 2.0, 40)

    def prior(mu, sigma):
        return -(mu**2) / 200 - sigma

    def likelihood(mu, sigma, row):
        return -(((row - mu) / sigma) ** 2) / 2 - jnp.log(sigma)

    variables = {"mu": (), "sigma": Positive()}
    target = bures.Target.from_data(prior, likelihood, data, variables=variables)
    whole = bures.Target.from_variables(
        lambda mu, sigma: (
            prior(mu, sigma) + jnp.sum(jax.vmap(lambda row: likelihood(mu, sigma, row))(jnp.asarray(data)))
        ),
        variables,
    )
    assert target.names == ("mu", "sigma")
    z = jnp.array([0.7, 0.4])
    np.testing.assert_allclose(target.log_density(z), whole.log_density(z), rtol=1e-13)
    np.testing.assert_allclose(target.constrain(z)["sigma"], jnp.exp(0.4), rtol=1e-13)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"x": np.ones((4, 3)), "y": np.ones(3)}}, r"data must be arrays of one length"),
        ({"data": {}}, r"data must be a pytree of arrays"),
        ({"data": np.ones((0, 3))}, r"at least one row"),
        ({"data": 3.0}, r"first axis, the rows"),
        ({"data": {"x": np.array(["a", "b"])}}, r"arrays of numbers"),
        ({"log_likelihood": lambda z, row: row["x"] * z}, r"log_likelihood must be .* returned float64\[3\]"),
        ({"log_likelihood": lambda z, row: row["q"]}, r"log_likelihood must be .* could not be traced"),
        ({"log_prior": lambda z: z}, r"log_prior must be .* returned float64\[3\]"),
        ({"dim": None}, r"dim must be a positive integer"),
        ({"subsample": 100}, r"subsample must be True, False or None"),
    ],
)
def test_what_is_refused(change, message):
    good = dict(log_prior=log_prior, log_likelihood=logistic, data=make_data(4), dim=DIM)
    with pytest.raises(ValueError, match=message):
        bures.Target.from_data(**(good | change))


def test_parquet_columns_are_checked(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": [1.0, None], "b": ["x", "y"], "c": [1, 2]}), path)
    with pytest.raises(ValueError, match=r"columns\['y'\] must be columns of the file, but got 'q'"):
        Parquet(path, {"y": "q"})
    with pytest.raises(ValueError, match=r"columns must be numbers"):
        Parquet(path)
    with pytest.raises(ValueError, match=r"column 'a' must be without nulls"):
        list(Parquet(path, {"y": "a"}).blocks(2))
    assert [block["c"].tolist() for block in Parquet(path, {"c": "c"}).blocks(2)] == [[1, 2]]


def test_parquet_files_of_several_types_have_the_type_that_holds_all(tmp_path):
    """The fractions of the second file were cut off: whole numbers are the type of the first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "c.parquet"]
    for path, columns in zip(paths, ({"y": [1, 2]}, {"y": [0.5, 0.25]}, {"z": [1]}), strict=True):
        pq.write_table(pa.table(columns), path)
    source = Parquet(paths[:2])
    assert source.row()["y"].dtype == np.float64
    assert next(source.blocks(4))["y"].tolist() == [1, 2, 0.5, 0.25]
    with pytest.raises(ValueError, match="paths must be of files that all have the column 'y'"):
        Parquet(paths)


def test_columns_of_pandas_are_rows():
    """Also those whose types NumPy does not know."""
    pandas = pytest.importorskip("pandas")
    data = make_data(50)
    frame = pandas.DataFrame(data["x"], columns=list("abc"))
    y = pandas.Series(data["y"].astype(int), dtype="Int64", index=np.arange(50)[::-1])
    target = bures.Target.from_data(log_prior, logistic, {"x": frame, "y": y}, DIM)
    wanted = plain_target(data).log_density(jnp.ones(DIM))
    np.testing.assert_allclose(target.log_density(jnp.ones(DIM)), wanted, rtol=1e-12)
    with pytest.raises(ValueError, match="data must be arrays of numbers"):
        bures.Target.from_data(log_prior, logistic, {"x": frame, "y": y.astype(str)}, DIM)


def test_masked_entries_are_refused_everywhere():
    y = np.ma.masked_array(np.arange(6.0), mask=[0, 0, 0, 1, 1, 1])
    likelihood = lambda z, row: -((row - z[0]) ** 2)  # noqa: E731
    for make in (
        lambda: bures.Target.from_data(log_prior, likelihood, y, 1),
        lambda: bures.shard_rows(y),
        lambda: bures.fit_many(lambda z, y: -((z[0] - y) ** 2), y, jax.random.key(0), dim=1),
        lambda: read_data({"y": y}),
    ):
        with pytest.raises(ValueError, match=r"data.* must be without masked entries"):
            make()
    bures.Target.from_data(log_prior, likelihood, np.ma.masked_array(np.arange(6.0)), 1)  # nothing is masked


def test_integers_that_single_precision_does_not_hold_are_refused(tmp_path):
    """They were others without a word: 3,000,000,000 was −1,294,967,296."""
    times = np.arange(3_000_000_000, 3_000_000_010)
    np.save(tmp_path / "times.npy", times)
    likelihood = lambda z, row: -((row - z[0]) ** 2)  # noqa: E731
    with jax.enable_x64(False):
        for data in (times, np.load(tmp_path / "times.npy", mmap_mode="r")):
            with pytest.raises(ValueError, match=r"data must be integers from -2147483648 .*jax_enable_x64"):
                bures.Target.from_data(log_prior, likelihood, data, 1)
        on_disk = np.load(tmp_path / "times.npy", mmap_mode="r")
        streamed = bures.Target.from_data(log_prior, likelihood, on_disk, 1, subsample=True)
        with pytest.raises(ValueError, match="data must be integers"):
            bures.fit(streamed, key=jax.random.key(0))
        with pytest.raises(ValueError, match="data must be integers"):
            bures.fit_many(lambda z, t: -((z[0] - t) ** 2), times, jax.random.key(0), dim=1)
        bures.Target.from_data(log_prior, likelihood, times - 3_000_000_000, 1)
    bures.Target.from_data(log_prior, likelihood, times, 1)


def test_a_row_without_a_density_is_named(key):
    data = make_data(50)
    data["x"][7, 1] = np.nan
    with pytest.raises(ValueError, match="log_likelihood of row 7 is not finite, whose data hold NaN"):
        bures.fit(bures.Target.from_data(log_prior, logistic, data, DIM), key=key)
    with pytest.raises(ValueError, match="log_likelihood of a row is not finite, whose data hold NaN"):
        bures.fit(bures.Target.from_data(log_prior, logistic, data, DIM, subsample=True), key=key)


def test_weights_of_rows_are_not_dropped():
    data, weights = make_data(20), jnp.arange(20.0)
    rows = ShardedRows(data, weights)
    target = bures.Target.from_data(log_prior, logistic, rows, DIM)
    values = jax.vmap(logistic, in_axes=(None, 0))(jnp.ones(DIM), data)
    np.testing.assert_allclose(target.log_density(jnp.ones(DIM)), log_prior(jnp.ones(DIM)) + weights @ values)
    with pytest.raises(ValueError, match="data must be without weights"):
        bures.Target.from_data(log_prior, logistic, rows, DIM, subsample=True)
