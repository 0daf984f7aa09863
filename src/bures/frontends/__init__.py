"""Models as their owners write them, NumPyro, PyMC or Stan, in; a `Target` on the unconstrained scale out.

Each front-end is an extra and is imported when it is first used: `pip install 'bures[numpyro]'`, `'bures[pymc]'` or
`'bures[stan]'`. The one-liners `bures.numpyro.fit`, `bures.pymc.fit` and `bures.stan.fit` go all the way to draws.
"""

from typing import Any

from bures.target import Target


def from_numpyro(model: Any, *args: Any, **kwargs: Any) -> Target:
    """A target from a NumPyro model and the arguments it takes (data included).

    Coordinates follow the alphabetical order of the site names, as `ravel_pytree` and NumPyro's own guides have it.
    Discrete latent sites are summed out where funsor is installed. The model is traced, not run: nothing is compiled.
    """
    from bures.frontends import numpyro

    return numpyro.from_numpyro(model, *args, **kwargs)


def from_pymc(model: Any = None) -> Target:
    """A target from a PyMC model; inside `with model:` it can be left out.

    Data (`pm.Data`) are read now: after `pm.set_data` make the target again. Ops that JAX does not know are evaluated
    by PyTensor; they need a gradient.
    """
    from bures.frontends import pymc

    return pymc.from_pymc(model)


def from_stan(program: Any, data: Any = None, **options: Any) -> Target:
    """A target from a Stan program (its text, or the path of a `.stan` file) and its data, or a BridgeStan model.

    `data` is a dict, JSON text or the path of a `.json` file. `seed`, `make_args` and `stanc_args` go to BridgeStan;
    `make_args=["BRIDGESTAN_AD_HESSIAN=True"]` has Hessians by automatic differentiation, not finite differences.
    """
    from bures.frontends import stan

    return stan.from_stan(program, data, **options)
