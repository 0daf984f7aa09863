"""Five posteriors of posteriordb as PyMC models of their data, with the variables' names of the reference draws."""

import numpy as np
import pymc as pm


def eight_schools_noncentered(data):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        theta_trans = pm.Normal("theta_trans", 0, 1, shape=data["J"])
        theta = pm.Deterministic("theta", mu + tau * theta_trans)
        pm.Normal("y", theta, np.array(data["sigma"], float), observed=np.array(data["y"], float))
    return model


def kidscore_momiq(data):
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=2)
        sigma = pm.HalfCauchy("sigma", 2.5)
        mean = beta[0] + beta[1] * np.array(data["mom_iq"], float)
        pm.Normal("kid_score", mean, sigma, observed=np.array(data["kid_score"], float))
    return model


def earn_height(data):
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=2)
        sigma = pm.HalfFlat("sigma")
        mean = beta[0] + beta[1] * np.array(data["height"], float)
        pm.Normal("earn", mean, sigma, observed=np.array(data["earn"], float))
    return model


def blr(data):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 10, shape=data["D"])
        sigma = pm.HalfNormal("sigma", 10)
        pm.Normal("y", np.array(data["X"], float) @ beta, sigma, observed=np.array(data["y"], float))
    return model


def kilpisjarvi(data):
    with pm.Model() as model:
        alpha = pm.Normal("alpha", data["pmualpha"], data["psalpha"])
        beta = pm.Normal("beta", data["pmubeta"], data["psbeta"])
        sigma = pm.HalfFlat("sigma")
        mean = alpha + beta * np.array(data["x"], float)
        pm.Normal("y", mean, sigma, observed=np.array(data["y"], float))
    return model
