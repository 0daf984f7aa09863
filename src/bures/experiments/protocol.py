"""What every experiment shares: cells that are run once and kept, tables that compare, and the paper's four methods.

An experiment is a module with

    TITLE, QUESTION               what it is about, in a line each
    settings(quick, seeds)        the frozen settings of a mode, JSON-able
    tiny()                        settings of a few seconds, for tests
    cells(settings)               {cell id: parameters}: independent pieces of work
    run(parameters)               one cell: parameters -> JSON-able result (deterministic but for times)
    tables(results, settings)     [Table]: paper | measured | agrees?
    resolve(parameters, results)  optional: parameters with what a cell takes from earlier ones filled in
    plot(results, settings)       {name: matplotlib Figure}, drawn from the results alone
    reading(results, settings)    a sentence or two on what the results say

Results live in OUT/<experiment>/<mode>/cells.jsonl.xz, a line a cell with its parameters, seed, code, commit, versions
and machine (`store.py`, `provenance.py`), so that a killed run resumes where it was and redrawing needs no rerun.
"""

import contextlib
import dataclasses
import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator

import bures
from bures.experiments.provenance import provenance
from bures.experiments.store import Store

Results = dict[str, Any]  # by cell id: the parameters and the result of each cell


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison: what the paper has, what was measured, and whether they agree (None: nothing to compare)."""

    label: str
    paper: str
    measured: str
    agrees: bool | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    title: str
    rows: tuple[Row, ...]
    note: str = ""


def fixed(value: float, digits: int = 2) -> str:
    """A number with this many decimals; a very large one, as of a fit that collapsed, in scientific notation."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.1e}"


def mean_and_spread(values: Any, digits: int = 2) -> str:
    """`mean ± standard deviation` over seeds; for one seed, its value."""
    values = np.asarray(values, np.float64)
    spread = f" ± {fixed(values.std(ddof=1), digits)}" if values.size > 1 else ""
    return f"{fixed(values.mean(), digits)}{spread}"


def number_plainly(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers; within two decades at 1, 2 and 5."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def within_spread(paper: float, paper_spread: float, values: Any, digits: int = 2) -> bool:
    """Whether mean and spread over seeds agree with the paper's.

    The means may differ by twice the joint spread, and the measured spread may be up to three times the paper's (each
    with the rounding of the paper's `digits` allowed for): a spread so wide that anything agrees does not count.
    """
    values = np.asarray(values, np.float64)
    rounding = 0.5 * 10.0**-digits
    spread = values.std(ddof=1) if values.size > 1 else 0.0
    near = abs(values.mean() - paper) <= 2 * np.hypot(paper_spread + rounding, spread)
    return bool(near and spread <= 3 * (paper_spread + rounding))


def run_cells(
    module: Any, store: Store, settings: Any, report: Callable[[int, int, str], None] = lambda done, total, cell: None
) -> Results:
    """Run what is not kept yet, in order; return the results of all cells.

    `report(done, total, cell)` is called before each cell that is run, and once at the end. A cell during which Ctrl-C
    was pressed is not kept, and the run ends there.
    """
    cells = _cells(module, settings)
    with store.alone():
        results = read_cells(module, store, settings)
        for cell, parameters in cells.items():
            if cell in results:
                continue
            report(len(results), len(cells), cell)
            parameters = _resolved(module, parameters, results)
            began = time.perf_counter()
            with raise_interrupts():
                result = json.loads(json.dumps(module.run(parameters)))
            store.put(cell, parameters, result, time.perf_counter() - began, provenance(module))
            results[cell] = {"parameters": parameters, "result": result}
    report(len(cells), len(cells), "")
    return {cell: results[cell] for cell in cells}


@contextlib.contextmanager
def raise_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if Ctrl-C was pressed in it.

    The code inside sees the interrupt as well, but may make an ordinary result or another error of it: `bures.fit`
    returns what it has so far, and a program in another process ends in the middle.
    """
    outer = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(outer):
        yield  # other threads get no signals, and a process that ignores Ctrl-C goes on doing so
        return
    pressed = threading.Event()

    def note(number: int, frame: Any) -> None:
        pressed.set()
        outer(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if pressed.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, outer)
    if pressed.is_set():
        raise KeyboardInterrupt


def read_cells(module: Any, store: Store, settings: Any) -> Results:
    """The kept results; cells that have not been run are left out."""
    kept = {}
    for cell, parameters in _cells(module, settings).items():
        parameters = _resolved(module, parameters, kept)
        result = store.get(cell, parameters)
        if result is not None:
            kept[cell] = {"parameters": parameters, "result": result}
    return kept


def _resolved(module: Any, parameters: Any, results: Results) -> Any:
    """The parameters of a cell with what it takes from earlier cells filled in, such as a step size selected there."""
    return module.resolve(parameters, results) if hasattr(module, "resolve") else parameters


def _cells(module: Any, settings: Any) -> dict[str, Any]:
    """The cells, their parameters as they are when read back from a file."""
    return json.loads(json.dumps(module.cells(settings)))


def select(results: Results, **wanted: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """(parameters, result) of the cells whose parameters have the wanted values."""
    for entry in results.values():
        if all(entry["parameters"].get(name) == value for name, value in wanted.items()):
            yield entry["parameters"], entry["result"]


# ---- Step sizes by one rule ------------------------------------------------------------------------------------------

MARGIN, STABILITY, STAY = 0.5, 50.0, 100  # nats, nats, iterations


def final(progress: Any) -> float | None:
    """The mean of the last 100 evaluations; None if the run failed."""
    last = np.asarray(progress, np.float64)[-STAY:]
    return float(np.mean(last)) if np.all(np.isfinite(last)) else None


def choose_step(
    finals: Mapping[float, Iterable[float | None]], margin: float = MARGIN
) -> tuple[float | None, list[float]]:
    """The paper's rule: the largest viable step, and the steps that fail the stability guard.

    A step is viable if its mean final value is within `margin` of the best mean, and its worst one within 50 of it.
    Without a margin it is the rule of the paper's toy problems: the step with the highest mean.
    """
    values = {step: [-np.inf if x is None else x for x in finals[step]] for step in finals}
    means = {step: float(np.mean(x)) for step, x in values.items() if len(x)}
    best = max(means.values(), default=-np.inf)
    unstable = [step for step in means if not (np.isfinite(best) and min(values[step]) >= best - STABILITY)]
    viable = [step for step, mean in means.items() if step not in unstable and mean >= best - margin]
    return max(viable, default=None), unstable


def selection_finals(results: Results, **wanted: Any) -> dict[float, list[float | None]]:
    """By step size, the final values of the selection cells with the wanted parameters."""
    finals: dict[float, list[float | None]] = {}
    for parameters, result in select(results, kind="selection", **wanted):
        finals.setdefault(parameters["step_size"], []).append(result["final"])
    return dict(sorted(finals.items()))


def all_selected(finals: Mapping[float, list], expected: int) -> bool:
    """Whether all of the selection cells are there; an incomplete set chooses no step."""
    return sum(map(len, finals.values())) == expected > 0


def with_chosen_step(parameters: dict, results: Results, by: tuple[str, ...], margin: float = MARGIN) -> dict:
    """A cell's parameters with the step size that the selection cells choose, once all of them are there.

    They are those with the same values of the parameters named in `by`, `selected_from` in number.
    """
    expected = parameters.get("selected_from", 0)
    finals = selection_finals(results, **{name: parameters[name] for name in by}) if expected else {}
    chosen = choose_step(finals, margin)[0] if all_selected(finals, expected) else None
    return parameters if chosen is None else parameters | {"step_size": chosen}


# ---- The paper's methods --------------------------------------------------------------------------------------------

BW_IW, FB, EUCLIDEAN_IW, EUCLIDEAN = "BW-IW-ELBO", "FB-GVI", "Euclidean IW-ELBO", "Euclidean ELBO"
METHODS = (BW_IW, FB, EUCLIDEAN_IW, EUCLIDEAN)


def make_method(name: str, step_size: float, *, M: int = 100, K: int = 5) -> dict[str, Any]:
    """The paper's four methods (Tables 1 and 7): M tuples of K for the IW-ELBO, M·K single draws for the ELBO."""
    iw, elbo = bures.IWELBO(K=K), bures.ELBO()
    match name:
        case "BW-IW-ELBO":
            geometry = bures.BuresWasserstein(step_size, clip=(0.1, 1.5))
            return dict(objective=iw, estimator=bures.Price(M=M, indices="last"), geometry=geometry)
        case "FB-GVI":
            return dict(objective=elbo, estimator=bures.Price(M=M * K), geometry=bures.ForwardBackward(step_size))
        case "Euclidean IW-ELBO":
            return dict(objective=iw, estimator=bures.Reparameterised(M=M), geometry=bures.Euclidean(step_size, 1.0))
        case "Euclidean ELBO":
            estimator = bures.Reparameterised(M=M * K)
            return dict(objective=elbo, estimator=estimator, geometry=bures.Euclidean(step_size, 1.0))
    raise ValueError(f"name must be one of {METHODS}, but got {name!r}.")
