"""What the default fit promises, measured: iterations, seconds, overhead, quality, growth and first waits.

Run by `bures bench speed`. Every promise is a ratio, or a figure, of contestants that were run in turn, warm, in one
process (first waits and memory: in fresh ones), next to the criterion it has to meet. One cell a size, target or seed,
kept by the protocol of the experiments: a run that was stopped goes on where it was.
"""

from pathlib import Path
from typing import Any

from bures.benchmarks import speed_page
from bures.benchmarks.peers import DEFAULT
from bures.benchmarks.speed_cells import OWN, PEERS, QUICK, SAME_M, SECTIONS, TARGETS, regression_methods
from bures.check import check_option, check_positive_integer
from bures.experiments.protocol import Store, run_cells

PYMC = {"PyMC": "PyMC, FullRankADVI", "PyMC-Pathfinder": "PyMC, Pathfinder"}
MOST = [name for name in PEERS if name not in PYMC.values()]
SETTINGS = {
    "n": 1000,
    "M": 100,
    "K": [10, 50, 100, 200],
    "rounds": 7,
    "regression_dtype": "float32",
    "default_steps": 200,
    "euclidean_steps": {"10": 600, "50": 800, "100": 1000, "200": 1300},  # never arrived counts as arrived after them
    "overhead_dtypes": ["float32", "float64"],
    "overhead_rounds": 11,
    "overhead_points": 300_000,  # evaluated in a round, at least: what a call costs once is then lost in them
    "num_samples": 10_000,
    "rows": [1_000, 10_000, 100_000, 1_000_000],
    "draws": [100, 1_000, 10_000, 100_000],
    "dims": [10, 30, 100, 300, 1_000],
    "numpyro_step_size": 0.01,
    "numpyro_steps": 5_000,
    "blackjax_step_size": 0.01,
    "blackjax_steps": 5_000,
    "pymc_steps": 5_000,
    "cold_steps": 2_000,
    "repeats": 5,
}
STEPS = ("numpyro_step_size", "numpyro_steps", "blackjax_step_size", "blackjax_steps", "pymc_steps", "num_samples")


def cells(settings: dict[str, Any]) -> dict[str, Any]:
    """The cells of the chosen sections, the cheapest section first."""
    makers = {
        "cold": _cold,
        "overhead": _overhead,
        "targets": _targets,
        "regression": _regression,
        "growth": _growth,
        "census9": _census9,
        "census96": _census96,
    }
    return {
        f"{section}-{name}": dict(parameters, section=section)
        for section in SECTIONS
        if section in settings["only"]
        for name, parameters in makers[section](settings).items()
    }


def run_cell(parameters: dict[str, Any]) -> dict[str, Any]:
    return SECTIONS[parameters["section"]](parameters)


def _chosen(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings[name] for name in names}


def _cold(settings: dict[str, Any]) -> dict[str, Any]:
    return {"start": _chosen(settings, "cold_steps", "numpyro_step_size", "repeats")}


def _overhead(settings: dict[str, Any]) -> dict[str, Any]:
    effort = {"rounds": settings["overhead_rounds"], "points": settings["overhead_points"]}
    shared = _chosen(settings, "n", "M") | effort
    return {
        f"{dtype}-K{K}": dict(shared, K=K, dtype=dtype) for dtype in settings["overhead_dtypes"] for K in settings["K"]
    }


def _targets(settings: dict[str, Any]) -> dict[str, Any]:
    shared = _chosen(settings, "seeds", "num_samples")
    names = {name: name.replace(",", "").replace("'", "").replace(" = ", "").replace(" ", "-") for name in TARGETS}
    return {short: dict(shared, target=name) for name, short in names.items()}


def _regression(settings: dict[str, Any]) -> dict[str, Any]:
    made = {}
    for K in settings["K"]:
        shared = _chosen(settings, "n", "M", "rounds") | {"K": K, "dtype": settings["regression_dtype"]}
        made[f"K{K}-seconds"] = dict(shared, seed=None)
        for method in regression_methods(K):
            ours = method in (DEFAULT, SAME_M)
            num_steps = settings["default_steps"] if ours else settings["euclidean_steps"][str(K)]
            for seed in range(settings["seeds"]):
                name = f"K{K}-{method.replace(',', '').replace(' ', '-')}-{seed}"
                made[name] = dict(shared, method=method, seed=seed, num_steps=num_steps)
    return made


def _growth(settings: dict[str, Any]) -> dict[str, Any]:
    """Three ladders: rows of the data, draws of a step, dimensions by gradients alone."""
    regression, gradients = dict(kind="regression", dim=10, K=10), dict(kind="gradients", K=10, M=None)
    return {
        **{f"N{N}": dict(regression, ladder="N", N=N, M=100, num_steps=3) for N in settings["rows"]},
        **{f"MK{n}": dict(regression, ladder="MK", N=1000, M=n // 10, num_steps=5) for n in settings["draws"]},
        **{f"d{dim}": dict(gradients, ladder="d", N=1, dim=dim, num_steps=3) for dim in settings["dims"]},
    }


def _census9(settings: dict[str, Any]) -> dict[str, Any]:
    """PyMC, the slowest, in cells of its own."""
    made = _census(settings, "screened", every=MOST)
    return made | {cell: dict(made["0"], contestants=[name]) for cell, name in PYMC.items()}


def _census96(settings: dict[str, Any]) -> dict[str, Any]:
    return _census(settings, "full", every=[*QUICK, OWN])


def _census(settings: dict[str, Any], design: str, every: list[str]) -> dict[str, Any]:
    """All contestants but PyMC in the first seeds, those of `every` in the others."""
    shared = _chosen(settings, *STEPS) | {"design": design}
    return {
        str(seed): dict(shared, seed=seed, contestants=MOST if seed < settings["slow_seeds"] else every)
        for seed in range(settings["seeds"])
    }


NEEDS = ("blackjax", "numpyro", "pymc", "pymc_extras")


class Benchmark:
    """What the protocol of the experiments takes."""

    cells = staticmethod(cells)
    run = staticmethod(run_cell)


def run(
    *,
    seeds: int = 10,
    slow_seeds: int = 1,
    only: list[str] | None = None,
    out: Path = Path("results"),
    say: Any = lambda message: None,
    **changes: Any,
) -> Path:
    """Run what is not kept yet, then write the tables, the figures and the page; return their folder.

    `changes` are other values of `SETTINGS`, for tests.
    """
    check_positive_integer("seeds", seeds, "It is the number of repetitions of each measurement.")
    check_positive_integer("slow_seeds", slow_seeds, "It is the number of repetitions of what takes minutes.")
    only = [check_option("--only", name, tuple(SECTIONS)) for name in only or SECTIONS]
    settings = {**SETTINGS, **changes, "seeds": seeds, "slow_seeds": slow_seeds, "only": only}
    store = Store(out, "speed", "full")

    def report(done: int, total: int, cell: str) -> None:
        if cell:
            say(f"{done}/{total} {cell}")

    results = run_cells(Benchmark, store, settings, report)
    speed_page.write(results, settings, store.folder)
    return store.folder
