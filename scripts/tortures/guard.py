"""What can be seen of accelerators without one: float32 throughout, and how often arrays cross to the device."""

from collections import Counter
from typing import Any


def run(short: bool) -> dict[str, Any]:
    """Host steps with one crossing a call; the compiled loop with none but its own; no double precision."""
    import jax

    import bures

    target, key = bures.models.banana(b=0.1, dim=3), jax.random.key(0)
    with jax.enable_x64(True):
        double = _double_in_float32(bures)
    q = bures.Gaussian.standard(3)
    options = {"key": key, "init": q, "estimator": bures.Stein(M=20), "geometry": bures.BuresWasserstein(0.1)}
    bures.fit(target, num_steps=10, **options)  # compiled before
    counts: Counter[str] = Counter()
    for steps in (20, 100):
        counts[f"calls of the compiled loop for {steps} steps"] = _calls(bures, target, options | {"num_steps": steps})
    guarded = _guarded(bures, target, options, jax)
    few = counts["calls of the compiled loop for 100 steps"]
    return {
        "double precision in float32 programs": double,
        "counts": dict(counts),
        "implicit crossings inside the compiled loop": guarded,
        "holds": {"no float64 in float32": not double, "no crossing in the loop": guarded == 0, "few calls": few <= 20},
    }


def _double_in_float32(bures: Any) -> list[str]:
    """Geometries whose step makes double precision, where JAX has it, from a start and a target in float32."""
    import jax
    import jax.numpy as jnp

    from bures.loop import Method, init as init_state, take_step
    from bures.target.blocks import equations

    found = []
    target, key = bures.Target(lambda z: -jnp.sum(z**2) / 2, 3), jax.random.key(0)
    q = bures.Gaussian(jnp.zeros(3, jnp.float32), jnp.eye(3, dtype=jnp.float32))
    for geometry in (bures.BuresWasserstein(0.1), bures.Whitened(), bures.Euclidean(0.05)):
        method = Method(bures.IWELBO(3), bures.Stein(M=4), geometry).traced(jnp.dtype(jnp.float32))
        state = init_state(target, init=q, **method.parts())
        jaxpr = jax.make_jaxpr(lambda k, s, m=method: take_step(k, s, target, m))(key, state)
        # Numbers of no axes are Python's own, weakly typed: arrays are what would cost.
        made = (out.aval for each in equations(jaxpr) for out in each.outvars)
        if any(str(getattr(aval, "dtype", "")) == "float64" and aval.ndim > 0 for aval in made):
            found.append(type(geometry).__name__)
    return found


def _calls(bures: Any, target: Any, options: dict[str, Any]) -> int:
    """Calls of the compiled loop in a fit: each is one crossing there and back."""
    from bures.fitting import driver

    calls = []
    real = driver.advance

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return real(*arguments)

    driver.advance = counted
    try:
        bures.fit(target, **options)
    finally:
        driver.advance = real
    return len(calls)


def _guarded(bures: Any, target: Any, options: dict[str, Any], jax: Any) -> int:
    """Implicit copies from or to the host within the compiled loop, by `jax.transfer_guard`."""
    from bures.fitting import driver

    wrong = []
    real = driver.advance

    def guarded(*arguments: Any) -> Any:
        try:
            with jax.transfer_guard_device_to_host("disallow"):
                return real(*arguments)
        except Exception as error:
            wrong.append(str(error))
            return real(*arguments)

    driver.advance = guarded
    try:
        bures.fit(target, num_steps=20, **options)
    finally:
        driver.advance = real
    return len(wrong)
