"""The pictures of docs/models.md: `python scripts/draw_models.py [folder]`, from what is kept in results/models."""

import sys
from pathlib import Path

from bures.benchmarks import models, models_report
from bures.experiments.protocol import read_cells
from bures.experiments.store import Store
from bures.reproduce import _png

ROOT = Path(__file__).resolve().parents[1]


def draw(folder: Path) -> None:
    """Write both figures of `bures bench models`."""
    store = Store(ROOT / "results", "models", "full")
    table = models_report.read(read_cells(models.Benchmark(models.NOWHERE, store), store, models.everything()))
    for name, plot in (("quality", models_report.plot_quality), ("gradients", models_report.plot_gradients)):
        (folder / f"models-{name}.png").write_bytes(_png(plot(table)))


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "figures")
