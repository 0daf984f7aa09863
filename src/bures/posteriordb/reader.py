"""Reading posteriordb's folders: data and reference draws, checked against what these densities were written for."""

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bures.check import as_array, check_option, fail
from bures.posteriordb.densities import BUILDERS
from bures.posteriordb.density import Density, Values, support_of
from bures.target import Target

_VARIABLE = "BURES_POSTERIORDB"
_REMEDY = "It is the folder of posteriordb: clone github.com/stan-dev/posteriordb."

# SHA-256 of the data and the draws of each, unpacked, as they are at commit 28f8d3d.
_CONTENTS = {
    "nes2000-nes": "e5c2f33e563df3098df3bd9bbb9e86fc",
    "kidiq-kidscore_momiq": "3c379f080926b51e004026a336bd3d72",
    "earnings-earn_height": "c2b7adfedd05a935c469e6aeb122d727",
    "mesquite-mesquite": "815516067a909bb111b2e0446c97ccf9",
    "kilpisjarvi_mod-kilpisjarvi": "f7342580f7610ad303da46549c36c6f8",
    "sblrc-blr": "7fef146dcb91c386fe5d1ba53a0a4dc7",
    "eight_schools-eight_schools_centered": "402ed3e8f12cb552b709d09dcf8071b0",
    "eight_schools-eight_schools_noncentered": "402ed3e8f12cb552b709d09dcf8071b0",
    "arK-arK": "f8b096385832a6872e90abcd0b3c59cf",
    "garch-garch11": "d9345cf1fb5d8ec828f7dc7db99c2116",
    "gp_pois_regr-gp_pois_regr": "0b162e8b7edc72a6524cb2ec141d84f6",
    "hmm_example-hmm_example": "04d4c4474a1ecac14facdf85bb7a5cc3",
    "bball_drive_event_0-hmm_drive_0": "9fd0d96f4b40b81a450b0719d7614a1c",
    "hudson_lynx_hare-lotka_volterra": "bca5f61265f652fc2447b4a60a3956a6",
    "low_dim_gauss_mix-low_dim_gauss_mix": "9d445e64aae36bb4f63e4cf5b0fca5c8",
}


class Reference:
    """Reference draws of a posterior: 10 chains of 1,000 by independent, checked runs of Stan."""

    def __init__(self, chains: list[dict[str, list[float]]], density: Density):
        self.draws = {name: np.array([chain[name] for chain in chains]) for name in chains[0]}
        self.variables = _assemble(self.draws)
        self.unconstrained = _unconstrain(density, self.variables)

    @property
    def num_chains(self) -> int:
        return len(next(iter(self.draws.values())))


class Posterior:
    """A posterior of posteriordb: its density as a `Target`, its data and its reference draws.

    - `target` is on Stan's unconstrained scale; its `constrain` gives the variables the reference holds.
    - `data` are those of its Stan program, by the names there.
    - `reference.draws` are by the reference's own names, `beta[1]` say, (chains, draws) each;
        `reference.variables` are the same as arrays by variable, (chains, draws, ...);
        `reference.unconstrained` is the same on the scale of the target, (chains · draws, dim).
    """

    def __init__(self, name: str, data: dict[str, Any], chains: list[dict[str, list[float]]]):
        density = BUILDERS[name](data)
        plain = Target.from_variables(density, density.variables())
        constrain = _Described(plain.constrain, density)
        self.name, self.data = name, data
        self.target = Target(plain.log_density, plain.dim, names=plain.names, constrain=constrain)
        self.reference = Reference(chains, density)

    def names(self) -> tuple[str, ...]:
        """The names of the reference's variables, one for each element."""
        return tuple(self.reference.draws)

    def constrain(self, z: Float[Array, "n dim"]) -> dict[str, np.ndarray]:
        """Points of the target in the reference's variables, by the reference's names."""
        variables = jax.jit(jax.vmap(self.target.constrain))(z)
        return {name: np.asarray(_element(variables, name)) for name in self.names()}


def names() -> tuple[str, ...]:
    """The names of the posteriors."""
    return tuple(BUILDERS)


def find_path(path: str | os.PathLike | None = None) -> Path:
    """The folder of posteriordb: as given, or from the environment variable BURES_POSTERIORDB."""
    given = path or os.environ.get(_VARIABLE)
    if not given:
        raise ValueError(f"path must be given, or the environment variable {_VARIABLE} set. {_REMEDY}")
    if not (Path(given) / "posterior_database").is_dir():
        raise fail("path", "a folder with posterior_database in it", str(given), _REMEDY)
    return Path(given)


def load(name: str, path: str | os.PathLike | None = None) -> Posterior:
    """A posterior by its name in posteriordb; `path` is posteriordb's folder, or BURES_POSTERIORDB says where it is.

    The arrays are in float64 if JAX is (`jax_enable_x64`), which the reference's accuracy asks for.
    """
    check_option("name", name, names())
    folder = find_path(path) / "posterior_database"
    entry = json.loads(_content(folder / "posteriors" / f"{name}.json"))
    data = _content(folder / "data" / "data" / f"{entry['data_name']}.json.zip")
    reference = entry["reference_posterior_name"]
    draws = _content(folder / "reference_posteriors" / "draws" / "draws" / f"{reference}.json.zip")
    if fingerprint(data, draws) != _CONTENTS[name]:
        raise ValueError(
            f"The data or the draws of {name} in {str(folder)!r} are not those this density was written for (their "
            "SHA-256 differs). Use posteriordb as it is at commit 28f8d3d."
        )
    return Posterior(name, json.loads(data), json.loads(draws))


def fingerprint(data: bytes, draws: bytes) -> str:
    """Identifies the contents of a posterior."""
    return hashlib.sha256(data + draws).hexdigest()[:32]


def _content(path: Path) -> bytes:
    """The bytes of a file, unpacked if it is an archive of one."""
    if not path.is_file():
        raise FileNotFoundError(f"posteriordb has no file {str(path)!r}. {_REMEDY}")
    if path.suffix != ".zip":
        return path.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(archive.namelist()[0])
    except (zipfile.BadZipFile, IndexError) as error:
        raise ValueError(f"{str(path)!r} is not a whole archive: {error}. Fetch it again.") from error


class _Described(eqx.Module):
    """From a point of R^dim to the variables of the reference draws."""

    constrain: Any
    density: Density

    def __call__(self, z: Float[Array, " dim"]) -> Values:
        return self.density.describe(self.constrain(z))


def _split(name: str) -> tuple[str, tuple[int, ...]]:
    """`beta[2]` is element 1 of `beta`: Stan counts from one."""
    variable, _, index = name.partition("[")
    return variable, (int(index[:-1]) - 1,) if index else ()


def _element(variables: Values, name: str) -> Array:
    variable, index = _split(name)
    return variables[variable][(slice(None), *index)]


def _assemble(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Elements `beta[1]`, `beta[2]` in order, as one array `beta` with a last axis."""
    variables = dict.fromkeys(_split(name)[0] for name in draws)
    return {
        variable: draws[variable]
        if variable in draws
        else np.stack([values for name, values in draws.items() if _split(name)[0] == variable], axis=-1)
        for variable in variables
    }


def _unconstrain(density: Density, variables: dict[str, np.ndarray]) -> Float[Array, "n dim"]:
    """The draws of all chains on the unconstrained scale, one chain after the other."""

    @jax.jit
    @jax.vmap
    def unconstrain(values: Values) -> Array:
        values = density.recover(values)
        parts = [support_of(declared).unconstrain(values[name]) for name, declared in density.variables().items()]
        return jnp.concatenate([jnp.ravel(part) for part in parts])

    return unconstrain({name: as_array(x.reshape(-1, *x.shape[2:])) for name, x in variables.items()})
