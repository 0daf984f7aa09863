"""What `bench honesty` shows: the two criteria, each family, every false comfort and false alarm, and a figure."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bures.benchmarks import pages
from bures.benchmarks.honesty_targets import CASES, half
from bures.benchmarks.pages import Criterion, Grid, median, text
from bures.experiments.protocol import Results
from bures.plot.style import styled
from bures.reproduce import _png

TITLE = "Honesty: what the verdict says, against what is true"
QUESTION = "Is a fit that misses mass ever called close or usable, and how often is a right one warned about?"
GAVE_NONE = ("REFUSED", "FAILED")  # outcomes of no fit
NOTE = (
    "Missed mass: where the 10,000 draws of a judge are 95% sure not to fall. A false comfort is a fit called close or "
    "usable that misses more than 2% and does not name other modes. Right: less than 2% missed and, after importance "
    "resampling, every mean within 0.1 standard deviations and every standard deviation within 10%. A warning is a "
    "verdict that is neither close nor usable, an outcome other than CONVERGED, or other modes where there are none. "
    "Heavy tails are not counted among the right that are warned about: their weights have no variance, so that a "
    "warning is right whatever the moments are."
)


def write(results: Results, settings: dict[str, Any], folder: Path) -> list[str]:
    """Write the tables, the figure and the page; return the lines of the criteria."""
    records = collect(results)
    criteria = judge(records)
    grids = [pages.criteria_grid(criteria, NOTE), by_family(records)]
    grids.append(_list("False comforts", [r for r in records if r.get("false")]))
    grids.append(_list("Right, but warned about", [r for r in counted(records) if r["warned"]]))
    grids.append(_list("Refused or failed", [r for r in records if r["outcome"] in GAVE_NONE]))
    grids.append(_list("Harmless, but not right", [r for r in records if r["harmless"] and not r["right"]]))
    figure = _png(styled(plot)(records))
    caption = "Missed mass of every fit, by what its verdict says"
    pages.write(folder, "honesty", TITLE, QUESTION, grids, records, {"missed": (caption, figure)})
    return [each.line() for each in criteria]


def collect(results: Results) -> list[dict[str, Any]]:
    """One flat record a fit."""
    records = []
    for entry in results.values():
        name = entry["parameters"]["case"]
        facts = {"case": name, "family": CASES[name].family, "harmless": CASES[name].harmless, "half": half(name)}
        records += [facts | found for found in entry["result"]]
    return records


def counted(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The right fits, of which few may be warned about."""
    return [record for record in records if record["right"] and record["family"] != "heavy tails"]


def judge(records: list[dict[str, Any]]) -> list[Criterion]:
    right = counted(records)
    plain = [record for record in right if record["harmless"]]

    def share(chosen: list[dict[str, Any]]) -> tuple[float | None, str]:
        warned = sum(record["warned"] for record in chosen)
        return (warned / len(chosen) if chosen else None), f"{warned} of {len(chosen)}"

    traps = [record for record in records if not record["harmless"]]
    lost = sum(record.get("missed", 0) > 0.02 for record in traps)
    return [
        Criterion(
            "false comforts",
            sum(record.get("false", False) for record in records),
            0,
            f"{lost} of {len(traps)} fits of traps miss more than 2%",
        ),
        Criterion("share of right fits that are warned about", *_placed(share(right), 0.1)),
        Criterion("the same, harmless targets alone", *_placed(share(plain), 0.1)),
        Criterion("harmless refused, or any failed", sum(_lost(record) for record in records), 0),
    ]


def _lost(record: dict[str, Any]) -> bool:
    return record["outcome"] == "FAILED" or (record["harmless"] and record["outcome"] == "REFUSED")


def _placed(found: tuple[float | None, str], limit: float) -> tuple[float | None, float, str]:
    return found[0], limit, found[1]


def by_family(records: list[dict[str, Any]]) -> Grid:
    rows = []
    for family in dict.fromkeys(record["family"] for record in records):
        mine = [record for record in records if record["family"] == family]
        rows.append(
            (
                family,
                str(len({record["case"] for record in mine})),
                str(len(mine)),
                str(sum(record["right"] for record in mine)),
                str(sum(record.get("missed", 0) > 0.02 for record in mine)),
                str(sum(record.get("named", False) for record in mine)),
                str(sum(record["comfort"] for record in mine)),
                str(sum(record.get("false", False) for record in mine)),
                str(sum(record["right"] and record["warned"] for record in mine)),
                *(text(median(record.get(name) for record in mine)) for name in ("ness", "evaluations", "seconds")),
            )
        )
    heads = ("family", "targets", "fits", "right", "miss > 2%", "modes named", "comforts", "false comforts")
    heads += ("right, warned", "median nESS", "evaluations", "seconds")
    return Grid("By family", heads, rows)


def _list(title: str, records: list[dict[str, Any]]) -> Grid:
    heads = ("target", "half", "seed", "outcome", "missed", "mean error", "sd error", "nESS", "k̂", "said")
    names = ("missed", "mean_error", "deviation_error", "ness", "khat")
    rows = [
        (
            *(str(record[name]) for name in ("case", "half", "seed", "outcome")),
            *(text(record.get(name), 2) for name in names),
            _last(record["said"]),
        )
        for record in records
    ]
    return Grid(f"{title}: {len(records)}", heads, rows)


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


STYLES = {
    "false comfort": ("#D55E00", "X", 50),
    "comfort": ("#009E73", "o", 18),
    "comfort, modes named": ("#56B4E9", "D", 18),
    "warning": ("0.55", "v", 18),
}


def _kind(record: dict[str, Any]) -> str:
    if record.get("false"):
        return "false comfort"
    if not record["comfort"]:
        return "warning"
    return "comfort, modes named" if record["named"] else "comfort"


def plot(records: list[dict[str, Any]]) -> Figure:
    """Missed mass of every fit, family by family."""
    records = [record for record in records if "missed" in record]
    families = list(dict.fromkeys(record["family"] for record in records))
    figure = Figure(figsize=(9, 1.6 + 0.6 * len(families)), layout="constrained")
    ax = figure.subplots()
    jitter = np.random.default_rng(0).uniform(-0.33, 0.33, len(records))
    heights = np.array([len(families) - 1 - families.index(record["family"]) for record in records]) + jitter
    missed = np.array([max(record["missed"], 5e-5) for record in records])
    kinds = np.array([_kind(record) for record in records])
    for kind, (colour, marker, size) in STYLES.items():
        mine = kinds == kind
        label = f"{kind} ({np.count_nonzero(mine)})"
        ax.scatter(missed[mine], heights[mine], color=colour, marker=marker, s=size, label=label, linewidths=0)
    ax.axvline(0.02, color="0.3", linewidth=1)
    ax.set(xscale="log", xlim=(3e-5, 1.3), xlabel="mass that the fit misses (line: 2%)")
    ax.set_yticks(range(len(families))[::-1], families)
    figure.legend(loc="outside lower center", ncols=4)
    return figure
