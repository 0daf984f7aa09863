"""Five posteriors of posteriordb as NumPyro models of their data, with the variables' names of the reference draws."""

import jax.numpy as jnp
import numpyro
from numpyro import distributions as dist

_FLAT_POSITIVE = dist.ImproperUniform(dist.constraints.positive, (), ())


def eight_schools_noncentered(data):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta_trans = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0).expand([data["J"]]).to_event(1))
    theta = numpyro.deterministic("theta", mu + tau * theta_trans)
    numpyro.sample("y", dist.Normal(theta, jnp.array(data["sigma"], float)), obs=jnp.array(data["y"], float))


def kidscore_momiq(data):
    beta = numpyro.sample("beta", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    mean = beta[0] + beta[1] * jnp.array(data["mom_iq"], float)
    numpyro.sample("kid_score", dist.Normal(mean, sigma), obs=jnp.array(data["kid_score"], float))


def earn_height(data):
    beta = numpyro.sample("beta", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    sigma = numpyro.sample("sigma", _FLAT_POSITIVE)
    mean = beta[0] + beta[1] * jnp.array(data["height"], float)
    numpyro.sample("earn", dist.Normal(mean, sigma), obs=jnp.array(data["earn"], float))


def blr(data):
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([data["D"]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    numpyro.sample("y", dist.Normal(jnp.array(data["X"], float) @ beta, sigma), obs=jnp.array(data["y"], float))


def kilpisjarvi(data):
    alpha = numpyro.sample("alpha", dist.Normal(data["pmualpha"], data["psalpha"]))
    beta = numpyro.sample("beta", dist.Normal(data["pmubeta"], data["psbeta"]))
    sigma = numpyro.sample("sigma", _FLAT_POSITIVE)
    mean = alpha + beta * jnp.array(data["x"], float)
    numpyro.sample("y", dist.Normal(mean, sigma), obs=jnp.array(data["y"], float))
