"""What `bench cold` shows: seconds by phase and programs by model, the ratio to NumPyro, criteria, and a figure."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bures.benchmarks import pages
from bures.benchmarks.pages import Criterion, Grid, largest, median, text
from bures.experiments.protocol import Results, select
from bures.plot.style import styled
from bures.reproduce import _png

TITLE = "Cold: the first answer in a fresh process"
QUESTION = "How long does a new model take from import to printed verdict, with nothing compiled before, and where?"
PHASES = ("import", "bures", "model", "compile", "start", "steps", "judgement", "print", "rest")
COSTLY = 0.05  # seconds of a program that counts
NOTE = (
    "Seconds, medians over repetitions. import: jax and the model's own library; bures: importing it; model: making "
    "the target; compile: XLA's compilations wherever they happen, which the other phases are without; start, steps "
    "and judgement: by the fit's own clock, where it has one; rest: what none of them holds, tracing and lowering "
    "among it (for a fit without a clock, all of it). answer: from the imports of jax and the model's library to the "
    "printed verdict; total: imports included. NumPyro's total is from the first import to the printed covariance; the "
    "import of bures is left out there. Programs that count need the target or cost over 50 ms."
)


def write(results: Results, settings: dict[str, Any], folder: Path) -> list[str]:
    """Write the tables, the figure and the page; return the lines of the criteria."""
    records = collect(results)
    rows = [summarise(records, name) for name in settings["only"]]
    criteria = judge(rows)
    grids = [pages.criteria_grid(criteria), by_model(rows), programs(results, settings)]
    figure = _png(styled(plot)(rows))
    caption = "Seconds by phase; the tick is NumPyro's AutoMultivariateNormal"
    pages.write(folder, "cold", TITLE, QUESTION, grids, records, {"phases": (caption, figure)})
    return [each.line() for each in criteria]


def collect(results: Results) -> list[dict[str, Any]]:
    """One flat record a cell."""
    records = []
    for parameters, found in select(results):
        record = {name: parameters[name] for name in ("model", "contestant", "turn")}
        if "missing" in found:
            records.append({**record, "missing": found["missing"]})
            continue
        phases = found["phases"]
        record["total"] = sum(phases.values())
        record["answer"] = record["total"] - phases["import"]
        if parameters["contestant"] == "bures":
            record |= {f"{name} s": seconds for name, seconds in split(found).items()}
            compiled = found["programs"]
            record["programs"] = len(compiled)
            record["costly"] = sum(each["target"] or each["seconds"] > COSTLY for each in compiled)
            record |= {name: found[name] for name in ("tracing", "lowering", "outcome", "evaluations")}
            record |= {f"{name}, own clock": seconds for name, seconds in found["own"].items()}
        else:
            record["total"] -= phases["bures"]
        records.append(record)
    return records


def split(found: dict[str, Any]) -> dict[str, float]:
    """Seconds by phase, compilations apart."""
    phases, compiled, own = found["phases"], found["compile"], found["own"]
    parts = {name: phases[name] - compiled.get(name, 0.0) for name in ("import", "bures", "model", "print")}
    parts["compile"] = sum(compiled.values())
    parts |= {name: own.get(name, 0.0) for name in ("start", "steps", "judgement")}
    parts["rest"] = max(0.0, sum(phases.values()) - sum(parts.values()))
    return {name: parts[name] for name in PHASES}


def summarise(records: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Medians of a model over its repetitions; counts of programs at their worst."""
    mine = [record for record in records if record["model"] == name]
    ours, theirs = ([r for r in mine if r["contestant"] == each] for each in ("bures", "numpyro"))
    row: dict[str, Any] = {"model": name, "missing": next((r["missing"] for r in mine if r.get("missing")), None)}
    columns = ("answer", "total", *(f"{phase} s" for phase in PHASES))
    row |= {column: median(record.get(column) for record in ours) for column in columns}
    row |= {column: largest(record.get(column) for record in ours) for column in ("programs", "costly")}
    row["numpyro"] = median(record.get("total") for record in theirs)
    # Turn by turn: what slows the machine for a while slows both.
    pairs = [(ours[i].get("total"), theirs[i].get("total")) for i in range(min(len(ours), len(theirs)))]
    row["ratio"] = median(mine / other for mine, other in pairs if mine and other)
    return row


def judge(rows: list[dict[str, Any]]) -> list[Criterion]:
    def column(name: str) -> list[Any]:
        return [row[name] for row in rows]

    def where(name: str) -> str:
        known = [row for row in rows if row[name] is not None]
        return max(known, key=lambda row: row[name])["model"] if known else ""

    return [
        Criterion("seconds to the answer, median", median(column("answer")), 1.5),
        Criterion("seconds to the answer, largest", largest(column("answer")), 4, where("answer")),
        Criterion("total / NumPyro's, median", median(column("ratio")), 0.3),
        Criterion("total / NumPyro's, largest", largest(column("ratio")), 0.6, where("ratio")),
        Criterion("programs that need the target or cost over 50 ms", largest(column("costly")), 6, where("costly")),
        Criterion("programs in all", largest(column("programs")), 12, where("programs")),
    ]


def by_model(rows: list[dict[str, Any]]) -> Grid:
    heads = ("model", *PHASES, "answer", "total", "NumPyro", "ratio", "programs that count", "programs")
    cells = []
    for row in rows:
        if row["missing"]:
            cells.append((row["model"], row["missing"], *["–"] * (len(heads) - 2)))
            continue
        phases = (text(row[f"{phase} s"], 2) for phase in PHASES)
        figures = (text(row[name]) for name in ("answer", "total", "numpyro", "ratio", "costly", "programs"))
        cells.append((row["model"], *phases, *figures))
    return Grid("Seconds by phase", heads, cells, NOTE)


def programs(results: Results, settings: dict[str, Any]) -> Grid:
    """The costly programs of each model's first repetition."""
    cells = []
    for name in settings["only"]:
        for _, found in select(results, model=name, contestant="bures", turn=0):
            if "missing" in found:
                continue
            counted = [each for each in found["programs"] if each["target"] or each["seconds"] > COSTLY]
            told = (f"{each['name']}{' (target)' * each['target']} {each['seconds']:.2f} s" for each in counted)
            small = [each["seconds"] for each in found["programs"] if each not in counted]
            cells.append((name, ", ".join(told) or "–", f"{len(small)}, {sum(small):.2f} s"))
    return Grid("Programs that count, first repetition", ("model", "programs", "the others"), cells)


def plot(rows: list[dict[str, Any]]) -> Figure:
    """Phases of each model as one bar, and where NumPyro is."""
    rows = [row for row in rows if not row["missing"]][::-1]
    figure = Figure(figsize=(9, 1.6 + 0.38 * len(rows)), layout="constrained")
    ax = figure.subplots()
    left = [0.0] * len(rows)
    for i, phase in enumerate(PHASES):
        widths = [row[f"{phase} s"] or 0.0 for row in rows]
        colour = f"C{i % 7}" if i < 7 else ("0.6", "0.85")[i - 7]
        ax.barh(range(len(rows)), widths, left=left, color=colour, label=phase, height=0.6)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, row in enumerate(rows):
        if row["numpyro"] is not None:
            ax.plot([row["numpyro"]] * 2, [place - 0.4, place + 0.4], color="0.2", linewidth=2)
    ax.set(xlabel="seconds from the start of the process", xlim=(0, None))
    ax.set_yticks(range(len(rows)), [row["model"] for row in rows])
    figure.legend(loc="outside lower center", ncols=len(PHASES))
    return figure
