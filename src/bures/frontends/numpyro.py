"""NumPyro models: the unconstrained potential and the way back that NumPyro itself gives, as a `Target`."""

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bures.frontends.common import Result, find_initial_point, fit_target, import_extra, no_variables
from bures.target import Labels, Target, coordinate_names


def fit(model: Any, *args: Any, seed: int = 0, num_draws: int = 1000, options: Any = None, **kwargs: Any) -> Result:
    """Fit a NumPyro model and draw from the posterior: the fit, and a DataTree of resampled draws.

    `args` and `kwargs` are the model's; `options`, a dict, goes to `bures.fit`.
    """
    return fit_target(from_numpyro(model, *args, **kwargs), seed, num_draws, **(options or {}))


def from_numpyro(model: Any, *args: Any, **kwargs: Any) -> Target:
    """See `bures.frontends.from_numpyro`."""
    numpyro = import_extra("numpyro", "numpyro")
    source = _Source(model, args, kwargs)
    sites = source.trace()
    latent = _latent_sites(sites)
    observed = {name: site for name, site in sites.items() if site["type"] == "sample" and site["is_observed"]}
    source.site_log_densities(sites)  # data that do not fit their distribution are found here, by name
    variables = [name for name, site in sites.items() if site["type"] != "plate"]  # no axis can have the name of one
    means = {name: site["value"] for name, site in latent.items()}
    start = numpyro.infer.util.unconstrain_fn(source.model, args, kwargs, means)
    flat, unravel = ravel_pytree(start)
    flat = jnp.where(jnp.isfinite(flat), flat, 0)  # a prior without a mean, or with one on its boundary
    source.unravel = unravel
    density = _LogDensity(source)
    with _quiet():
        candidates = [np.asarray(flat), np.zeros_like(flat)]
        initial_point = find_initial_point(eqx.filter_jit(density), candidates, source.explain)
    return Target(
        density,
        flat.size,
        names=coordinate_names({name: jnp.shape(start[name]) for name in sorted(start)}),
        constrain=_Constrain(source),
        initial_point=initial_point,
        labels=Labels(
            dims={name: dims for name, site in sites.items() if (dims := _dims(site)) and not {*dims} & {*variables}},
            observed_data={name: np.asarray(site["value"]) for name, site in observed.items()},
            log_likelihood=_Pointwise(source) if observed else None,
            attributes={"numpyro_version": numpyro.__version__},
        ),
    )


class _Source:
    """A model with its arguments. Known by its identity, so that it can be a static part of a pytree."""

    unravel: Any

    def __init__(self, model: Any, args: tuple, kwargs: dict):
        from numpyro import handlers

        self.args, self.kwargs = args, kwargs
        self.model = handlers.seed(model, jax.random.key(0))  # for sites that need a key, such as subsamples
        parameters = {name: site["value"] for name, site in self.trace().items() if site["type"] == "param"}
        self.model = handlers.substitute(self.model, data=parameters)

    def trace(self, values: dict[str, Array] | None = None) -> dict[str, Any]:
        """Run the model, with its latent variables at `values` or else at their prior means."""
        import numpyro
        from numpyro import handlers

        last = _LastSite(self.model)
        if values is None:
            model = handlers.substitute(last, substitute_fn=_typical_value)
        else:
            model = handlers.substitute(last, data=values)
        try:
            with numpyro.validation_enabled(False):  # values that are not finite are named later, by site
                return handlers.trace(model).get_trace(*self.args, **self.kwargs)
        except (TypeError, ValueError) as error:
            where = f" at site {last.name!r}" if last.name else ""
            raise ValueError(
                f"The NumPyro model cannot be run{where}: {error} Check its arguments and the shapes of the data."
            ) from error

    def constrain(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        from numpyro.infer.util import constrain_fn

        return constrain_fn(self.model, self.args, self.kwargs, self.unravel(z), return_deterministic=True)

    def site_log_densities(self, sites: dict[str, Any]) -> dict[str, Array]:
        """The log density of every entry of every sample site."""
        densities = {}
        for name, site in sites.items():
            if site["type"] == "sample":
                try:
                    with _quiet():
                        densities[name] = site["fn"].log_prob(site["value"])
                except (TypeError, ValueError) as error:
                    shape = jnp.shape(site["value"])
                    raise ValueError(
                        f"Site {name!r} has values of shape {list(shape)}, which do not fit its distribution of "
                        f"shape {list(site['fn'].shape())}: {error} Check the shape of the data."
                    ) from error
        return densities

    def explain(self, z: Any) -> str:
        """Which sites have no density at a point."""
        densities = self.site_log_densities(self.trace(self.constrain(jnp.asarray(z))))
        bad = [name for name, value in densities.items() if not bool(jnp.all(jnp.isfinite(value)))]
        return f"it is not finite at site {', '.join(map(repr, bad))}" if bad else "no single site is to blame"


class _LogDensity(eqx.Module):
    source: _Source = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> Float[Array, ""]:
        from numpyro.infer.util import potential_energy

        source = self.source
        return -jnp.asarray(potential_energy(source.model, source.args, source.kwargs, source.unravel(z)))


class _Constrain(eqx.Module):
    """The way back: latent and deterministic sites."""

    source: _Source = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        return self.source.constrain(z)


class _Pointwise(eqx.Module):
    """The log likelihood of each observation."""

    source: _Source = eqx.field(static=True)

    def __call__(self, z: Float[Array, " dim"]) -> dict[str, Array]:
        sites = self.source.trace(self.source.constrain(z))
        observed = {name: site for name, site in sites.items() if site.get("is_observed")}
        return self.source.site_log_densities(observed)


def _quiet() -> Any:
    """NumPyro warns of data outside the support of their distribution; where that matters bures says so by name."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def _LastSite(model: Any) -> Any:  # noqa: N802 - a class that can be made only once NumPyro is there
    """A handler that remembers the name of the site that was reached last."""
    from numpyro.primitives import Messenger

    class LastSite(Messenger):
        name: str | None = None

        def process_message(self, msg: dict) -> None:
            self.name = msg.get("name") or self.name

    return LastSite(model)


def _typical_value(site: dict[str, Any]) -> Any:
    """The prior mean of a site, or its median where there is no mean."""
    from numpyro.infer import init_to_mean, init_to_median

    mean: Any = init_to_mean(site)
    return init_to_median(site) if mean is not None and not bool(jnp.all(jnp.isfinite(mean))) else mean


def _latent_sites(sites: dict[str, Any]) -> dict[str, Any]:
    """The continuous latent variables; discrete ones are refused."""
    latent = {name: s for name, s in sites.items() if s["type"] == "sample" and not s["is_observed"]}
    discrete = [name for name, site in latent.items() if site["fn"].support.is_discrete]
    if discrete:
        raise ValueError(
            f"The latent variable {', '.join(map(repr, discrete))} is discrete, and a Gaussian cannot approximate it. "
            "Sum it out of the model (numpyro.distributions.MixtureSameFamily does for mixtures), or observe it."
        )
    if not latent:
        raise no_variables("The NumPyro model", "sample statements: those with obs= are data")
    return latent


def _dims(site: dict[str, Any]) -> list[str]:
    """Names of the axes of a site: its plates, then what `infer={"event_dims": ...}` says."""
    if site["type"] not in ("sample", "deterministic"):
        return []
    plates = sorted(site.get("cond_indep_stack", ()), key=lambda frame: frame.dim)
    names = [frame.name for frame in plates]
    names += list((site.get("infer") or {}).get("event_dims", ()))
    return names if len(names) <= jnp.ndim(site["value"]) else []
