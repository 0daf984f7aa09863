"""The models and data of `bench scale`: regressions of millions of rows, made block by block and kept on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bures
from bures.models.regression import softplus
from bures.support import Positive

COLUMNS = 29  # an intercept and 28 others, as HIGGS has
_BLOCK = 2**18  # rows that are made at once
_SLOPES = 5  # of the hierarchical model
_PRIOR_VARIANCE = 10.0


def features(rng: np.random.Generator, n: int, columns: int = COLUMNS) -> np.ndarray:
    """Rows like HIGGS': a one, then angles, skewed momenta, and functions of these that are correlated with them."""
    plain = rng.standard_normal((n, columns))
    third = columns // 3
    plain[:, 1:third] = np.exp(0.5 * plain[:, 1:third]) - 1.13  # skewed to the right, about centred
    plain[:, -third:] = 0.7 * plain[:, 1 : 1 + third] + 0.7 * plain[:, -third:]
    plain[:, 0] = 1.0
    return plain.astype(np.float32)


def _coefficients(dim: int) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.3 / np.sqrt(dim / 5), dim)


def _logistic_rows(rng: np.random.Generator, n: int, columns: int, groups: int) -> dict[str, np.ndarray]:
    x = features(rng, n, columns)
    y = rng.random(n) < 1 / (1 + np.exp(-x @ _coefficients(columns)))
    return {"x": x, "y": y.astype(np.float32)}


def _poisson_rows(rng: np.random.Generator, n: int, columns: int, groups: int) -> dict[str, np.ndarray]:
    x = features(rng, n, columns)
    rate = np.exp(np.minimum(x @ _coefficients(columns) * 0.5, 3))
    return {"x": x, "y": rng.poisson(rate).astype(np.float32)}


def _grouped_rows(rng: np.random.Generator, n: int, columns: int, groups: int) -> dict[str, np.ndarray]:
    x = features(rng, n, 9)[:, 1 : 1 + _SLOPES]
    group = rng.integers(0, groups, n).astype(np.int32)
    levels = np.random.default_rng(2).normal(-0.5, 0.7, groups)
    y = rng.random(n) < 1 / (1 + np.exp(-(levels[group] + x @ _coefficients(_SLOPES))))
    return {"x": x, "group": group, "y": y.astype(np.float32)}


def normal_prior(z: Any) -> Any:
    return -jnp.sum(z**2) / (2 * _PRIOR_VARIANCE)


def logistic(z: Any, row: Any) -> Any:
    eta = row["x"] @ z
    return row["y"] * eta - softplus(eta)


def poisson(z: Any, row: Any) -> Any:
    eta = row["x"] @ z
    return row["y"] * eta - jnp.exp(eta)


def grouped_prior(mu: Any, tau: Any, level: Any, slope: Any) -> Any:
    between = -jnp.sum(((level - mu) / tau) ** 2) / 2 - level.size * jnp.log(tau)
    return between - mu**2 / 50 - tau**2 / 2 + normal_prior(slope)


def grouped(mu: Any, tau: Any, level: Any, slope: Any, row: Any) -> Any:
    eta = level[row["group"]] + row["x"] @ slope
    return row["y"] * eta - softplus(eta)


class Model(NamedTuple):
    """How rows are made, and the target and the NumPyro model of them."""

    rows: Callable[[np.random.Generator, int, int, int], dict[str, np.ndarray]]
    target: Callable[..., bures.Target]
    numpyro: Callable[..., Any]


def _regression(log_likelihood: Any) -> Callable[..., bures.Target]:
    def target(data: Any, columns: int, groups: int, **options: Any) -> bures.Target:
        return bures.Target.from_data(normal_prior, log_likelihood, data, columns, **options)

    return target


def _hierarchical(data: Any, columns: int, groups: int, **options: Any) -> bures.Target:
    variables = {"mu": (), "tau": Positive(), "level": (groups,), "slope": (_SLOPES,)}
    return bures.Target.from_data(grouped_prior, grouped, data, variables=variables, **options)


def _numpyro_regression(kind: str) -> Callable[..., Any]:
    def model(x: Any, y: Any, batch: int | None) -> None:
        import numpyro
        import numpyro.distributions as dist

        z = numpyro.sample("z", dist.Normal(0, _PRIOR_VARIANCE**0.5).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", x.shape[0], subsample_size=batch) as rows:
            eta = x[rows] @ z.astype(x.dtype)
            likelihood = dist.Bernoulli(logits=eta) if kind == "logistic" else dist.Poisson(jnp.exp(eta))
            numpyro.sample("y", likelihood, obs=y[rows])

    return model


def _numpyro_hierarchical(x: Any, y: Any, batch: int | None, group: Any, groups: int) -> None:
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    level = numpyro.sample("level", dist.Normal(mu, tau).expand([groups]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0, _PRIOR_VARIANCE**0.5).expand([_SLOPES]).to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=batch) as rows:
        eta = level[group[rows]] + x[rows] @ slope.astype(x.dtype)
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y[rows])


MODELS = {
    "logistic": Model(_logistic_rows, _regression(logistic), _numpyro_regression("logistic")),
    "poisson": Model(_poisson_rows, _regression(poisson), _numpyro_regression("poisson")),
    "hierarchical": Model(_grouped_rows, _hierarchical, _numpyro_hierarchical),
}


def blocks(model: str, n: int, columns: int, groups: int, seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """The rows, a block at a time: the same whatever n is, up to there."""
    for i, start in enumerate(range(0, n, _BLOCK)):
        rng = np.random.default_rng([seed, i])
        made = MODELS[model].rows(rng, _BLOCK, columns, groups)
        yield {name: x[: n - start] for name, x in made.items()}


def memory_map(folder: Path, model: str, n: int, columns: int = COLUMNS, groups: int = 1000) -> dict[str, np.ndarray]:
    """The rows as memory maps of .npy files in a folder, written if they are not there."""
    place = folder / f"{model}-{n}-{columns}-{groups}"
    if not (place / "done").exists():
        place.mkdir(parents=True, exist_ok=True)
        arrays, start = {}, 0
        for block in blocks(model, n, columns, groups):
            for name, x in block.items():
                if name not in arrays:
                    shape = (n, *x.shape[1:])
                    file = place / f"{name}.npy"
                    arrays[name] = np.lib.format.open_memmap(file, mode="w+", dtype=x.dtype, shape=shape)
                arrays[name][start : start + len(x)] = x
            start += len(block["y"])
        for array in arrays.values():
            array.flush()
        (place / "done").touch()
    return {file.stem: np.load(file, mmap_mode="r") for file in sorted(place.glob("*.npy"))}


def parquet(folder: Path, model: str, n: int, columns: int = COLUMNS) -> bures.Parquet:
    """The rows of a regression as a Parquet file, written if it is not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f"x{i}" for i in range(columns)]
    path = folder / f"{model}-{n}-{columns}.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part, writer = path.with_suffix(".part"), None
        for block in blocks(model, n, columns, 1):
            table = pa.table({name: block["x"][:, i] for i, name in enumerate(names)} | {"y": block["y"]})
            writer = pq.ParquetWriter(part, table.schema) if writer is None else writer
            writer.write_table(table, row_group_size=_BLOCK // 2)
        assert writer is not None
        writer.close()
        part.rename(path)
    return bures.Parquet(path, {"x": names, "y": "y"})


def elbo(target: bures.Target, q: Any, draws: int, seed: int = 0) -> tuple[float, float]:
    """The ELBO of an approximation by exact passes, and its error; the same noise for all approximations."""
    from bures.arrays import to_host
    from bures.engine import Evaluator

    q = to_host(q)
    noise = np.random.default_rng(seed).standard_normal((draws // 2, q.noise_dim))
    noise = np.concatenate([noise, -noise])
    values = Evaluator(target, dtype=np.float64).value(q.push(noise)) - q.log_prob_of_noise(noise)
    halves = (values[: draws // 2] + values[draws // 2 :]) / 2
    return float(np.mean(values)), float(np.std(halves, ddof=1) / np.sqrt(draws // 2))


def in_memory(data: Any) -> Any:
    """The rows on the device, as they are."""
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x)), data)
