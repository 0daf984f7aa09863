"""The tables of `inputs`: kinds of arguments, what is wrong for each kind, one good call of every public name."""

import functools
import tempfile
from pathlib import Path
from typing import Any

# The kind of an argument by its name, or by the names of function and argument.
KINDS = {
    "key": "key",
    "target": "target",
    "target_or_model": "target",
    "dim": "count",
    "q": "approximation",
    "objective": "part",
    "estimator": "part",
    "geometry": "part",
    "family": "part",
    "init": "approximation",
    "num_steps": "count",
    "tolerance": "positive",
    "progress": "flag",
    "callback": "function",
    "max_seconds": "positive",
    "max_evaluations": "count",
    "checkpoint": "path",
    "every": "real",
    "num_draws": "count",
    "M": "count",
    "K": "count",
    "alpha": "real",
    "indices": "option",
    "draws": "option",
    "permutations": "count",
    "step_size": "positive",
    "clip": "pair",
    "optimizer": "positive",
    "control_variate": "flag",
    "trust_radius": "positive",
    "stale": "real",
    "memory": "real",
    "far": "real",
    "doubt": "real",
    "max_components": "count",
    "mean": "vector",
    "chol": "matrix",
    "covariance": "matrix",
    "scale": "vector",
    "basis": "matrix",
    "variances": "vector",
    "grows": "flag",
    "log_shares": "vector",
    "means": "matrix",
    "chols": "cube",
    "tail": "real",
    "dtype": "dtype",
    "state": "state",
    "z": "vector",
    "path": "path",
    "num_samples": "count",
    "n": "count",
    "num_chains": "count",
    "resample": "flag",
    "coordinates": "coordinates",
    "log_density": "function",
    "names": "names",
    "constrain": "function",
    "weighted_hessian": "function",
    "sample": "function",
    "initial_point": "vector",
    "labels": "record",
    "sites": "record",
    "variables": "mapping",
    "location_scale": "mapping",
    "gradient": "function",
    "num_seeds": "count",
    "num_realisations": "count",
    "batch_size": "count",
    "x": "vector",
    "ratios": "record",
    "max_iterations": "count",
    "degrees": "mapping",
    "start": "approximation",
    "watch": "skip",
    "other": "approximation",
    "condition_number": "positive",
    "seed": "seed",
    "degrees_of_freedom": "positive",
    "X": "matrix",
    "y": "vector",
    "prior_variance": "positive",
    "design": "option",
    "shape": "shape",
    "quantiles": "quantiles",
    "corrected": "flag",
    "function": "function",
    "model": "function",
    "data": "data",
    "max_steps": "count",
    "predict": "function",
    "log_prior": "function",
    "log_likelihood": "function",
    "subsample": "flag",
    "args": "skip",
    "kwargs": "skip",
    "proposal_covariance": "matrix",
    "initial": "point",
    "mesh": "record",
    "axis": "option",
    "max_grad_norm": "optional",
    "rank": "columns",
    "b": "any real",
    "low": "any real",
    "high": "any real",
    "Gaussian.log_prob.z": "points",
    "LowRankGaussian.log_prob.z": "points",
    "GaussianMixture.log_prob.z": "points",
    "Gaussian.standard.dim": "matrix dim",
    "models.gaussian.dim": "matrix dim",
    "num_warmup": "warmup",
    "thinning": "count",
    "Positive.shape": "shape",
    "funnel.scale": "positive",
    "gaussian.scale": "positive",
    "models.gaussian.scale": "positive",
    "models.funnel.scale": "positive",
    "laplace.init": "vector",
    "fit_many.init": "skip",
    "predict.draws": "record",
    "bures.predict.draws": "record",
    "Target.sample": "function",
    "predict.target": "target",
    "paths": "path",
    "columns": "mapping",
    "reference": "skip",
    "title": "title",
    "coordinator": "option",
    "num_processes": "count",
    "process_id": "number",
    "heartbeat_seconds": "count",
    "connect_seconds": "count",
    "fit": "state",
    "ax": "skip",
    "samples": "skip",
    "plot.weights_tail.num_samples": "skip",
    "plot.weights_tail.key": "skip",
    "plot.summary.key": "skip",
}


def bad_values() -> dict[str, dict[str, Any]]:
    """Wrong values by kind, each made when it is needed."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import bures

    nothing, text, thing = (lambda: None), (lambda: "x"), object
    numbers = {"nan": lambda: float("nan"), "inf": lambda: float("inf"), "complex": lambda: 1j}
    lists = {"a list": lambda: [1.0, 2.0], "an array": lambda: np.arange(3.0), "a dict": lambda: {"a": 1}}
    odd = {"None": nothing, "text": text, "object": thing}
    arrays = {
        "None": nothing,
        "text": text,
        "a number": lambda: 3.0,
        "NaN": lambda: np.array([np.nan, 1.0]),
        "float16": lambda: np.zeros(2, np.float16),
        "bfloat16": lambda: jnp.zeros(2, jnp.bfloat16),
        "complex": lambda: np.zeros(2, complex),
        "objects": lambda: np.array([None, "x"], object),
        "integers": lambda: np.zeros(2, int),
        "too long": lambda: np.zeros(7),
        "of three axes": lambda: np.zeros((2, 2, 2)),
        "ragged": lambda: [[1.0], [1.0, 2.0]],
        "a dict": lambda: {"a": 1},
    }
    square = {
        **{k: v for k, v in arrays.items() if k not in ("too long",)},
        "not square": lambda: np.zeros((2, 3)),
        "NaN": lambda: np.full((2, 2), np.nan),
        "float16": lambda: np.eye(2, dtype=np.float16),
        "integers": lambda: np.eye(2, dtype=int),
        "complex": lambda: np.eye(2, dtype=complex),
        "negative": lambda: -np.eye(2),
    }
    real = {**odd, **numbers, "a dict": lambda: {"a": 1}, "an array": lambda: np.arange(7.0)}
    count = {
        **odd,
        **numbers,
        **lists,
        "0": lambda: 0,
        "-1": lambda: -1,
        "2.5": lambda: 2.5,
        "True": lambda: True,
        "digits": lambda: "3",
    }
    positive = {**odd, **numbers, **lists, "0": lambda: 0.0, "-1": lambda: -1.0}
    fine = ("NaN", "integers", "of three axes", "float16", "bfloat16")  # points may be all that
    return {
        "any real": real,
        "optional": {label: value for label, value in positive.items() if label != "None"},
        "columns": {label: value for label, value in count.items() if label not in ("0", "None")},
        "number": {label: value for label, value in count.items() if label not in ("0", "None")},
        "title": {"a number": lambda: 3, "a list": lambda: ["x"], "object": thing},
        "warmup": {label: value for label, value in count.items() if label != "0"},
        "matrix dim": count | {"10**7": lambda: 10**7},
        "points": {label: value for label, value in arrays.items() if label not in fine},
        "point": {label: value for label, value in arrays.items() if label != "of three axes"},
        "key": {
            **odd,
            "a number": lambda: 0,
            "raw": lambda: np.zeros(2, np.uint32),
            "several": lambda: jax.random.split(jax.random.key(0), 3),
            "floats": lambda: jnp.zeros(2),
        },
        "target": {**odd, "a number": lambda: 3, "an array": lambda: np.zeros(2), "a class": lambda: bures.Target},
        "approximation": {
            **odd,
            "a number": lambda: 3.0,
            "an array": lambda: np.zeros(2),
            "a class": lambda: bures.Gaussian,
        },
        "part": {
            **odd,
            "a number": lambda: 3,
            "a class": lambda: bures.ELBO,
            "a Gaussian": lambda: bures.Gaussian.standard(2),
        },
        "count": {
            **odd,
            **numbers,
            **lists,
            "0": lambda: 0,
            "-1": lambda: -1,
            "2.5": lambda: 2.5,
            "True": lambda: True,
            "digits": lambda: "3",
        },
        "seed": {**odd, **numbers, "2.5": lambda: 2.5, "a list": lambda: [1.0]},
        "positive": {**odd, **numbers, **lists, "0": lambda: 0.0, "-1": lambda: -1.0},
        "real": {
            **odd,
            **numbers,
            "a dict": lambda: {"a": 1},
            "an array": lambda: np.arange(7.0),
            "-1e3": lambda: -1e3,
        },
        "flag": {
            "text": text,
            "a list": lambda: [1, 2],
            "an array": lambda: np.ones(2),
            "2": lambda: 2,
            "object": thing,
        },
        "option": {
            **odd,
            "a number": lambda: 3,
            "an array": lambda: np.zeros(2),
            "a list": lambda: ["iid"],
            "bytes": lambda: b"iid",
        },
        "function": {"a number": lambda: 3, "text": text, "an array": lambda: np.zeros(2), "a dict": lambda: {"a": 1}},
        "pair": {
            **odd,
            "a number": lambda: 3.0,
            "three": lambda: (1, 2, 3),
            "turned": lambda: (1.5, 0.1),
            "NaN": lambda: (float("nan"), 1.0),
        },
        "path": {
            "a number": lambda: 3,
            "empty": lambda: "",
            "object": thing,
            "no folder": lambda: "/no/such/folder/x.fit",
            "a list": lambda: ["x"],
            "a folder": lambda: tempfile.gettempdir(),
        },
        "vector": arrays,
        "matrix": square,
        "cube": {k: v for k, v in arrays.items() if k != "of three axes"} | {"not square": lambda: np.zeros((1, 2, 3))},
        "names": {
            "a number": lambda: 3,
            "one word": lambda: "ab",
            "numbers": lambda: [1, 2],
            "one name twice": lambda: ["a", "a"],
            "too few": lambda: ["a"],
            "an array": lambda: np.zeros(2),
            "a dict": lambda: {"a": 1},
        },
        "dtype": {"text": text, "a number": lambda: 3, "int": lambda: int, "complex": lambda: complex, "object": thing},
        "state": {**odd, "a number": lambda: 3, "a Gaussian": lambda: bures.Gaussian.standard(2)},
        "record": {
            "text": text,
            "a number": lambda: 3,
            "object": thing,
            "a list": lambda: [1, 2],
            "a dict": lambda: {"a": 1},
        },
        "mapping": {
            **odd,
            "a number": lambda: 3,
            "a list": lambda: [1, 2],
            "wrong inside": lambda: {"a": object()},
            "number as name": lambda: {3: ()},
        },
        "coordinates": {
            "None": nothing,
            "object": thing,
            "another": lambda: "no such name",
            "too large": lambda: 99,
            "float": lambda: 1.5,
            "empty": list,
            "twice": lambda: [0, 0],
            "floats": lambda: [0.5],
            "a dict": lambda: {"a": 1},
            "names": lambda: ["no", "none"],
        },
        "shape": {
            "text": text,
            "a number": lambda: -1,
            "fractional": lambda: (2.5,),
            "object": thing,
            "negative": lambda: (-1,),
        },
        "quantiles": {
            "None": nothing,
            "text": text,
            "beyond": lambda: (0.5, 1.5),
            "empty": tuple,
            "object": thing,
            "NaN": lambda: (float("nan"),),
        },
        "data": {
            "None": nothing,
            "text": text,
            "object": thing,
            "a number": lambda: 3.0,
            "of several lengths": lambda: (np.zeros(3), np.zeros(4)),
        },
        "skip": {},
    }


def good_calls() -> dict[str, tuple[Any, dict[str, Any]]]:
    """One good call of each public name: the function, and the arguments that it cannot do without."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import bures
    from bures import reference
    from bures.diagnostics import diagnose, forward_kl
    from bures.support import Interval, Ordered, Positive, Simplex

    key = jax.random.key(0)
    target = bures.models.gaussian(2)
    q = bures.Gaussian.standard(2)
    low, mixture = bures.LowRankGaussian(jnp.zeros(2), jnp.ones(2)), bures.Mixture().of(q)
    method = {"objective": bures.ELBO(), "estimator": bures.Price(M=4), "geometry": bures.BuresWasserstein(0.1)}
    state = bures.init(target, init=q, **method)
    fit = _small_fit()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6, 2)), np.array([0.0, 1, 0, 1, 0, 1])

    def density(z: Any) -> Any:
        return -jnp.sum(z**2) / 2

    def gradient(key: Any) -> Any:
        return jax.random.normal(key, (2,))

    ratio = bures.snr(key, gradient, num_seeds=2, num_realisations=4)
    hierarchical = bures.Target.from_variables(
        lambda mu, tau, theta: -(mu**2) - tau - jnp.sum((theta - mu) ** 2) / tau**2,
        {"mu": (), "tau": Positive(), "theta": (2,)},
        location_scale={"theta": lambda mu, tau: (mu, tau)},
    )
    tree = fit.to_arviz(key, num_draws=5)
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "fit": (bures.fit, {"target": target, "key": key, "num_steps": 2, "init": q, "estimator": bures.Price(M=4)}),
        "sample": (bures.sample, {"target_or_model": target, "key": key, "max_evaluations": 50}),
        "fit_many": (
            bures.fit_many,
            {"model": lambda z, y: -jnp.sum((z - y) ** 2), "data": np.zeros((3, 2)), "key": key, "dim": 2},
        ),
        "init": (bures.init, {"target": target, "init": q, **method}),
        "step": (bures.step, {"key": key, "state": state, "target": target, **method}),
        "bw_gradient": (
            bures.bw_gradient,
            {"key": key, "q": q, "target": target, "objective": method["objective"], "estimator": method["estimator"]},
        ),
        "wasserstein_gradient": (
            bures.wasserstein_gradient,
            {"key": key, "z": jnp.zeros(2), "q": q, "target": target, "objective": bures.IWELBO(3), "M": 2},
        ),
        "laplace": (bures.laplace, {"target": target}),
        "load": (bures.load, {"path": _saved(), "target": target}),
        "recentre": (bures.recentre, {"target": hierarchical, "degrees": {"theta": 0.5}}),
        "learn_centring": (bures.learn_centring, {"key": key, "target": hierarchical}),
        "snr": (bures.snr, {"key": key, "gradient": gradient, "num_seeds": 2, "num_realisations": 4}),
        "snr_slope": (bures.snr_slope, {"x": [1.0, 2.0], "ratios": [ratio, ratio]}),
        "predict": (
            bures.predict,
            {"draws": tree, "target": target, "key": key, "function": lambda variables, key: 1.0},
        ),
        "ELBO": (bures.ELBO, {}),
        "IWELBO": (bures.IWELBO, {"K": 3}),
        "VRIWAE": (bures.VRIWAE, {"K": 3, "alpha": 0.5}),
        "Price": (bures.Price, {}),
        "Stein": (bures.Stein, {}),
        "Reparameterised": (bures.Reparameterised, {}),
        "BuresWasserstein": (bures.BuresWasserstein, {"step_size": 0.1}),
        "ForwardBackward": (bures.ForwardBackward, {"step_size": 0.1}),
        "Euclidean": (bures.Euclidean, {}),
        "Whitened": (bures.Whitened, {}),
        "FullRank": (bures.FullRank, {}),
        "MeanField": (bures.MeanField, {}),
        "LowRank": (bures.LowRank, {}),
        "Mixture": (bures.Mixture, {}),
        "Gaussian": (bures.Gaussian, {"mean": jnp.zeros(2), "chol": jnp.eye(2)}),
        "Gaussian.from_moments": (bures.Gaussian.from_moments, {"mean": jnp.zeros(2), "covariance": jnp.eye(2)}),
        "Gaussian.standard": (bures.Gaussian.standard, {"dim": 2}),
        "LowRankGaussian": (bures.LowRankGaussian, {"mean": jnp.zeros(2), "scale": jnp.ones(2)}),
        "GaussianMixture": (
            bures.GaussianMixture,
            {"log_shares": jnp.zeros(1), "means": jnp.zeros((1, 2)), "chols": jnp.eye(2)[None]},
        ),
        "Target": (bures.Target, {"log_density": density, "dim": 2}),
        "Target.from_variables": (
            bures.Target.from_variables,
            {"log_density": lambda a: -(a**2), "variables": {"a": ()}},
        ),
        "Target.from_data": (
            bures.Target.from_data,
            {
                "log_prior": density,
                "log_likelihood": lambda z, row: -jnp.sum((z - row) ** 2),
                "data": np.zeros((4, 2)),
                "dim": 2,
            },
        ),
        "Fit.diagnose": (fit.diagnose, {"key": key, "num_samples": 30}),
        "Fit.resample": (fit.resample, {"key": key, "n": 3}),
        "Fit.to_arviz": (fit.to_arviz, {"key": key, "num_draws": 5}),
        "Fit.nuts_start": (fit.nuts_start, {"key": key}),
        "Fit.save": (fit.save, {"path": _saved()}),
        "Fit.resume": (fit.resume, {"num_steps": 1}),
        "Fit.refine": (fit.refine, {"key": key}),
        "Fit.marginal": (fit.marginal, {"coordinates": 0}),
        "Fit.summary": (fit.summary, {}),
        "diagnostics.diagnose": (diagnose, {"key": key, "q": q, "target": target, "num_samples": 30}),
        "diagnostics.forward_kl": (forward_kl, {"key": key, "target": target, "q": q, "num_samples": 30}),
        "reference.random_walk_metropolis": (
            reference.random_walk_metropolis,
            {
                "key": key,
                "target": target,
                "proposal_covariance": np.eye(2),
                "initial": np.zeros(2),
                "num_samples": 4,
                "num_warmup": 2,
            },
        ),
        "models.gaussian": (bures.models.gaussian, {"dim": 2}),
        "models.banana": (bures.models.banana, {}),
        "models.funnel": (bures.models.funnel, {}),
        "models.student_t": (bures.models.student_t, {}),
        "models.logistic_regression": (bures.models.logistic_regression, {"X": X, "y": y}),
        "models.census": (bures.models.census, {}),
        "support.Interval": (Interval, {"low": 0.0, "high": 1.0}),
        "support.Positive": (Positive, {}),
        "support.Simplex": (Simplex, {}),
        "support.Ordered": (Ordered, {}),
    }
    fits = bures.fit_many(lambda z, y: -((z[0] - y[0]) ** 2), np.zeros((3, 1)), key, dim=1)
    calls |= {
        "Parquet": (bures.Parquet, {"paths": _parquet(), "columns": {"x": "a"}}),
        "Fits.sample": (fits.sample, {"key": key, "n": 3}),
        "Fits.to_arviz": (fits.to_arviz, {"key": key, "num_draws": 3}),
        "Fit.report": (fit.report, {"path": f"{_saved()}.html"}),
        "distributed.start": (
            bures.distributed.start,
            {"coordinator": "here:1", "num_processes": 1, "process_id": 0, "connect_seconds": 1},
        ),
        "plot.summary": (bures.plot.summary, {"fit": fit}),
        "plot.evolution": (bures.plot.evolution, {"fit": fit}),
        "plot.bound_trace": (bures.plot.bound_trace, {"fit": fit}),
        "plot.weights_tail": (bures.plot.weights_tail, {"fit": fit}),
    }
    calls["shard_rows"] = bures.shard_rows, {"data": np.zeros((4, 2))}
    for name, each in (("Gaussian", q), ("LowRankGaussian", low), ("GaussianMixture", mixture)):
        calls |= {
            f"{name}.sample": (each.sample, {"key": key, "n": 3}),
            f"{name}.log_prob": (each.log_prob, {"z": jnp.zeros(2)}),
            f"{name}.marginal": (each.marginal, {"indices": 0}),
        }
        if name != "GaussianMixture":
            calls[f"{name}.kl"] = each.kl, {"other": q}
            calls[f"{name}.bures_distance"] = each.bures_distance, {"other": q}
        KINDS[f"{name}.marginal.indices"] = "coordinates"
    return calls


def _small_fit() -> Any:
    import jax

    import bures

    return bures.fit(
        bures.models.gaussian(2),
        key=jax.random.key(0),
        init=bures.Gaussian.standard(2),
        estimator=bures.Price(M=4),
        num_steps=2,
    )


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="bures-torture-")  # gone when the process ends


@functools.cache
def _parquet() -> str:
    import pyarrow
    import pyarrow.parquet

    path = str(Path(_folder().name) / "rows.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0, 2.0]}), path)
    return path


@functools.cache
def _saved() -> str:
    path = Path(_folder().name) / "small.fit"
    _small_fit().save(path)
    return str(path)
