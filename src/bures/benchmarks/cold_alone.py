"""One cold fit in this very process: `python -m bures.benchmarks.cold_alone bures|numpyro MODEL JSON`.

The last line of its output is JSON: seconds by phase, and the programs that were compiled. Nothing but the standard
library is imported before the clock starts.
"""

import time

BEGAN = time.perf_counter()

import functools  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import types  # noqa: E402
from typing import Any  # noqa: E402

from bures.benchmarks.cold_models import MODELS, import_parts  # noqa: E402

COMPILED = "/jax/core/compile/backend_compile_duration"
TRACED = "/jax/core/compile/jaxpr_trace_duration"
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
METHODS = ("__call__", "values", "values_and_scores", "weighted_hessian")  # by which a density may be evaluated


class Programs:
    """The programs that are compiled from now on: name, seconds, and whether the target was traced for them."""

    def __init__(self) -> None:
        import jax

        self.compiled: list[dict[str, Any]] = []
        self.traced = self.lowered = 0.0
        self._calls: list[float] = []  # when the density was traced
        self._involved: dict[str, bool] = {}
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, seconds: float, fun_name: str = "", **_: Any) -> None:
        if event == TRACED:
            began = time.perf_counter() - seconds
            self._involved[fun_name] = any(call >= began for call in self._calls)
            self.traced += seconds  # those of inner functions are in those of outer ones too
        elif event == LOWERED:
            self.lowered += seconds
        elif event == COMPILED:
            name = fun_name.removeprefix("jit(").removesuffix(")")
            self.compiled.append({"name": name, "seconds": seconds, "target": self._involved.get(name, False)})

    @property
    def seconds(self) -> float:
        return sum(each["seconds"] for each in self.compiled)

    def watch(self, target: Any) -> None:
        """Note every evaluation of the target's density; compiled programs evaluate it when they are traced."""
        density = target.log_density
        if isinstance(density, types.FunctionType):
            object.__setattr__(target, "log_density", self._noting(density))
            return
        kind = type(density)
        for name in METHODS:
            if callable(getattr(kind, name, None)):
                setattr(kind, name, self._noting(getattr(kind, name)))

    def _noting(self, function: Any) -> Any:
        @functools.wraps(function)
        def noting(*arguments: Any, **options: Any) -> Any:
            self._calls.append(time.perf_counter())
            return function(*arguments, **options)

        return noting


class Clock:
    """Seconds from mark to mark."""

    def __init__(self) -> None:
        self.last = BEGAN
        self.seconds: dict[str, float] = {}

    def mark(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self.last
        self.last = now


def with_bures(name: str, seed: int = 0) -> dict[str, Any]:
    """From the first import to the printed verdict."""
    model, clock = MODELS[name], Clock()
    import jax

    jax.config.update("jax_enable_x64", True)
    if model.library:
        importlib.import_module(model.library)
    clock.mark("import")
    programs = Programs()
    import_parts(model)
    clock.mark("bures")
    import bures

    target = model.target()
    programs.watch(target)
    clock.mark("model")
    in_model = programs.seconds
    fit = bures.fit(target, key=jax.random.key(seed), progress=False)
    jax.block_until_ready(fit.approximation.mean)
    clock.mark("fit")
    in_fit = programs.seconds - in_model
    said = str(fit)
    print(said, flush=True)  # noqa: T201
    clock.mark("print")
    in_print = programs.seconds - in_model - in_fit
    return {
        "phases": clock.seconds,
        "compile": {"model": in_model, "fit": in_fit, "print": in_print},
        "tracing": programs.traced,
        "lowering": programs.lowered,
        "own": {phase: float(seconds) for phase, seconds in dict(getattr(fit, "seconds", None) or {}).items()},
        "programs": programs.compiled,
        "outcome": fit.outcome.name,
        "evaluations": getattr(fit, "num_log_density_evaluations", None),
        "said": said,
    }


def with_numpyro(name: str, num_steps: int, step_size: float, seed: int = 0) -> dict[str, Any]:
    """NumPyro's AutoMultivariateNormal, from the first import to the printed covariance.

    The import of bures, where the density is from there, has a phase of its own: it is not NumPyro's.
    """
    model, clock = MODELS[name], Clock()
    assert model.numpyro is not None
    import jax

    jax.config.update("jax_enable_x64", True)
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal

    clock.mark("import")
    if model.library is None:
        import_parts(model)
    clock.mark("bures")
    made = model.numpyro()
    clock.mark("model")
    guide = AutoMultivariateNormal(made)
    inference = SVI(made, guide, numpyro.optim.Adam(step_size), Trace_ELBO())
    found = inference.run(jax.random.key(seed), num_steps, progress_bar=False)
    jax.block_until_ready(found.params)
    clock.mark("fit")
    print(guide.get_posterior(found.params).covariance_matrix, flush=True)  # noqa: T201
    clock.mark("print")
    return {"phases": clock.seconds}


CONTESTANTS = {"bures": with_bures, "numpyro": with_numpyro}

if __name__ == "__main__":
    print(json.dumps(CONTESTANTS[sys.argv[1]](sys.argv[2], **json.loads(sys.argv[3]))))  # noqa: T201
