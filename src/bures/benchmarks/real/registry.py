"""All models of `bench models`, by name and by size; near doubles of others are run only where they are asked for."""

from pathlib import Path

from bures import posteriordb
from bures.benchmarks import families_models
from bures.benchmarks.families_models import Folders
from bures.benchmarks.real import counts, existing, fields, groups, mixtures, motions, people, regressions, series
from bures.benchmarks.real.parts import POSTERIORDB, SAMPLING, Model

_FILES = (existing, regressions, counts, groups, people, mixtures, fields, series, motions)
SPARE = (
    *("beetles", "claims", "repairs", "occupancy", "fishing", "arma", "dogs", "tennis", "ionosphere", "nile_filter"),
    *("radon_mn_noncentred", "motorcycle", "admissions", "volatility_200", "dugongs", "flowers"),
)
_ALL = {name: model for file in _FILES for name, model in file.MODELS.items()}
MODELS: dict[str, Model] = dict(sorted(_ALL.items(), key=lambda pair: (pair[0] in SPARE, pair[1].dim)))


def find_folders(names: list[str], path: Path | None = None, sampling: Path | None = None) -> Folders:
    """The folders that these models need: as given, or from BURES_POSTERIORDB and BURES_SAMPLING."""
    sources = {MODELS[name].source for name in names}
    theirs = posteriordb.find_path(path) if POSTERIORDB in sources else None
    return Folders(theirs, families_models.find_sampling(sampling) if SAMPLING in sources else None)
