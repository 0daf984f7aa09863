"""The default fit on every posterior of posteriordb, as a plain table: the quick look while working on the core.

python -m bures.benchmarks.default_on_posteriordb --path DIR [--seed N] [--out FILE] [NAME ...]
"""

import argparse
import json
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import bures  # noqa: E402
from bures import posteriordb  # noqa: E402
from bures.benchmarks.posteriordb import moment_errors  # noqa: E402
from bures.storage import write_atomically  # noqa: E402

HEAD = (
    f"{'posterior':42} {'dim':>3} {'outcome':>10} {'steps':>5} {'nESS':>7} {'khat':>6} {'moment':>7} {'ratio':>6} "
    f"{'mean':>6} {'sd':>6} {'cold s':>7} {'warm s':>7}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all posteriors if there are none")
    parser.add_argument("--path", default=None, help="posteriordb's folder [default: BURES_POSTERIORDB]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the table here, line by line")
    options = parser.parse_args()
    folder = posteriordb.find_path(options.path)
    moments = json.loads((folder / "moment_gaussian.json").read_text())
    chosen = [n for n in posteriordb.names() if not options.names or any(part in n for part in options.names)]
    lines = [f"# python -m bures.benchmarks.default_on_posteriordb --path {options.path} --seed {options.seed}", HEAD]
    for name in chosen:
        lines.append(measure(name, folder, options.seed, moments[name]["moment_gaussian_ness"]))
        print(*(lines if len(lines) == 3 else lines[-1:]), sep="\n", flush=True)  # noqa: T201
        if options.out:
            write_atomically(options.out, ("\n".join(lines) + "\n").encode())


def measure(name: str, folder: Path, seed: int, moment_ness: float) -> str:
    """One line of the table; nESS and k̂ from 10,000 draws, errors after importance resampling.

    The errors are the largest of a mean and of a standard deviation, in reference standard deviations: a good nESS with
    a bad error is a fit of a minor mode.
    """
    posterior = posteriordb.load(name, folder)
    target = posterior.target
    seconds = []
    for _ in range(2):  # the second time everything is compiled
        began = time.perf_counter()
        fit = bures.fit(target, key=jax.random.key(seed))
        seconds.append(time.perf_counter() - began)
    found = fit.diagnose(jax.random.key(seed + 1000))
    errors = moment_errors(posterior, fit.resample(jax.random.key(seed + 2000), 10_000))
    return (
        f"{name:42} {target.dim:3} {fit.outcome.name:>10} {fit.num_steps:5} {found.ness:7.4f} {found.khat:6.2f} "
        f"{moment_ness:7.4f} {found.ness / moment_ness:6.2f} "
        f"{errors['mean']:6.2f} {errors['deviation']:6.2f} {seconds[0]:7.1f} {seconds[1]:7.1f}"
    )


if __name__ == "__main__":
    main()
