"""The sections of `bench scale` on devices, processes and many fits: they run small, and show what they found."""

from pathlib import Path

import pytest

from bures.benchmarks import scale_shared
from bures.benchmarks.scale_sections import found

SETTINGS = scale_shared.SETTINGS | {"many_fits": 20, "many_rows": 50, "many": ["a function"], "kills": 2}


def entries(section, results):
    """Cells with these results, as the store of the experiments gives them."""
    cells = scale_shared.SECTIONS[section].cells(SETTINGS)
    return {
        name: {"parameters": dict(section=section, **parameters), "result": result}
        for (name, parameters), result in zip(cells.items(), results, strict=True)
    }


def test_many_fits():
    (parameters,) = scale_shared.many_cells(SETTINGS).values()
    run = scale_shared.measure_many(parameters, Path())
    assert run["converged"] == run["khat_known"] == 1
    assert run["over_own_densities"] > 1
    assert run["mean_error"] < 0.2
    shown = scale_shared.show_many(entries("many", [run]), SETTINGS)
    assert [criterion.limit for criterion in shown.criteria] == [5, 3, 3, 1]
    assert len(shown.grids[0].heads) == len(shown.grids[0].rows[0])


@pytest.mark.parametrize(("said", "same"), [(True, True), (False, False)])
def test_kills_are_judged(said, same):
    run = {"victim": 0, "after": 1.0, "seconds": 2.0, "clear": said, "ours": said, "had_checkpoint": True}
    run |= {"resumed_steps": 7, "same": same}
    results = entries("killed", [run, run | {"seconds": 61.0}])
    assert len(list(found(results, "killed"))) == 2
    shown = scale_shared.show_killed(results, SETTINGS)
    assert [criterion.holds for criterion in shown.criteria] == [False, said, same]
    assert len(shown.grids[0].heads) == len(shown.grids[0].rows[0])


def test_distances_are_judged():
    run = {"mean": 1e-12, "chol": 1e-7, "steps": 9, "same_outcome": True}
    shown = scale_shared.show_together(entries("together", 3 * [run]), SETTINGS)
    assert [criterion.holds for criterion in shown.criteria] == [False] * 3
