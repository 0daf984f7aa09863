"""The picture of docs/large_data.md from what `bures bench scale` has kept: `python scripts/draw_scale.py [folder]`."""

import sys
from pathlib import Path

from bures.benchmarks import scale
from bures.benchmarks.scale_figure import draw_cost
from bures.benchmarks.scale_sections import found
from bures.experiments.protocol import Store, read_cells

ROOT = Path(__file__).resolve().parents[1]


def main(folder: Path) -> None:
    settings = scale.SETTINGS | {"sections": ["cost"]}
    results = read_cells(scale.Benchmark(Path()), Store(ROOT / "results", "scale", "full"), settings)
    runs = [(parameters, run) for _, run, parameters in found(results, "cost", parameters=True)]
    (folder / "scale-cost.png").write_bytes(draw_cost(runs))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "figures")
