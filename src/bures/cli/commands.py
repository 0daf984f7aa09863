"""The commands, their options and help, and what an error becomes."""

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bures.cli.methods import (
    Draws,
    EstimatorName,
    FamilyName,
    GeometryName,
    Indices,
    ObjectiveName,
    given,
    make_estimator,
    make_family,
    make_geometry,
    make_key,
    make_objective,
    make_start,
)
from bures.cli.showing import check_folder, show_draws, show_fit
from bures.cli.targets import find_target

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Gaussian variational inference on Bures-Wasserstein space.",
)


# What `fit` and `sample` both take.
_Data = Annotated[
    Path | None, typer.Option(help="JSON file: data of a Stan program, or arguments by name of a NumPyro model.")
]
_Dim = Annotated[int | None, typer.Option(help="Dimension of a bare log density.")]
_MaxSeconds = Annotated[float | None, typer.Option(help="End after so long with the best so far. [default: no limit]")]
_MaxEvaluations = Annotated[
    int | None, typer.Option(help="The same for evaluations of log p and its gradient. [default: no limit]")
]
_Seed = Annotated[int, typer.Option(help="Seed of the random key.")]
_Float32 = Annotated[bool, typer.Option("--float32", help="Single precision.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from bures import __version__

        typer.echo(f"bures {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def fit(
    target: Annotated[
        str,
        typer.Argument(
            help="eggbox, banana, funnel, student_t, logistic (the Census data, d = 9); `path/to/model.stan`; or "
            "`path/to/file.py:name` where `name` is a bures.Target, a PyMC model, a NumPyro model, or a JAX log "
            "density (then give --dim)."
        ),
    ],
    data: _Data = None,
    dim: _Dim = None,
    objective: Annotated[
        ObjectiveName | None, typer.Option(help="The bound to maximise. [default: chosen by bures]")
    ] = None,
    k: Annotated[int | None, typer.Option("--K", "-K", help="Draws in a tuple (iwelbo, vriwae).")] = None,
    alpha: Annotated[float | None, typer.Option(help="Rényi power of vriwae: 0 is iwelbo, 1 is elbo.")] = None,
    estimator: Annotated[
        EstimatorName | None, typer.Option(help="Hessians, gradients only, or plain. [default: gradients only]")
    ] = None,
    m: Annotated[int | None, typer.Option("--M", "-M", help="Tuples drawn at each step.")] = None,
    indices: Annotated[Indices | None, typer.Option(help="Draws of a tuple that give derivatives.")] = None,
    draws: Annotated[Draws | None, typer.Option(help="Independent, mirrored or quasi-random draws.")] = None,
    geometry: Annotated[GeometryName | None, typer.Option(help="How a gradient becomes a step.")] = None,
    step_size: Annotated[float | None, typer.Option(help="Needed by every geometry but whitened.")] = None,
    family: Annotated[
        FamilyName | None,
        typer.Option(
            help="Gaussians with any covariance; with independent coordinates; or with a diagonal and a few "
            "directions, which is for many dimensions; or mixtures of Gaussians, as many as pay. [default: full up to "
            "400 dimensions, low-rank beyond]"
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Directions of --family low-rank. [default: as many as pay, found by the fit]")
    ] = None,
    init_mean: Annotated[str | None, typer.Option(help="Start here, e.g. 6,12. [default: found by a search]")] = None,
    init_variance: Annotated[
        float | None, typer.Option(help="Variance of the start, with --init-mean. [default: 1]")
    ] = None,
    num_steps: Annotated[int | None, typer.Option(help="Take exactly this many. [default: stop by itself]")] = None,
    seed: _Seed = 0,
    num_samples: Annotated[
        int | None, typer.Option(help="Fresh draws for the diagnostics. [default: as many as the verdict takes]")
    ] = None,
    max_seconds: _MaxSeconds = None,
    max_evaluations: _MaxEvaluations = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Write the fit so far to this file now and then; bures.load reads it.")
    ] = None,
    every: Annotated[float | None, typer.Option(help="Seconds between two checkpoints. [default: 60]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint, if it is there.")] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="One of several processes that make one fit, each with its part of the rows of Target.from_data. "
            "Start all with the same command; under Slurm, Open MPI and on TPU pods nothing more is needed.",
        ),
    ] = False,
    coordinator: Annotated[str | None, typer.Option(help="Else: host:port of process 0, the same for all.")] = None,
    num_processes: Annotated[int | None, typer.Option(help="How many there are, with --coordinator.")] = None,
    process_id: Annotated[int | None, typer.Option(help="The number of this one, from 0.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the fit, its figure and its page.")] = Path("bures-output"),
    float32: _Float32 = False,
    progress: Annotated[bool, typer.Option(help="Show the progress bar.")] = True,
) -> None:
    """Fit a Gaussian to a target, print how good it is, save the fit, a figure and a page (HTML).

    Examples:

    - `bures fit logistic`: nothing to tune.

    - `bures fit eggbox -K 5 --estimator price -M 100 --indices last --geometry bures-wasserstein --step-size 0.5
      --init-mean 6,12 --init-variance 5 --num-steps 1000`: the paper's eggbox run.

    - `bures fit model.py:log_density --dim 3`: your own log density.

    - `bures fit model.py:log_density --dim 1000 --family low-rank`: in many dimensions.

    - `bures fit model.stan --data data.json`: a Stan program; `bures fit file.py:model` a NumPyro or PyMC model.

    - `bures fit model.py:target --distributed --checkpoint fit.bures --resume`: in every process of several.
    """
    import jax

    jax.config.update("jax_enable_x64", not float32)
    import bures
    from bures.diagnostics.diagnostics import check_diagnosis

    _join_processes(distributed, coordinator, num_processes, process_id)
    key = make_key(seed)
    if num_samples is not None:  # before any work is done
        check_diagnosis(num_samples, k or 10)
    model, name = find_target(target, dim, data)
    check_folder(out)
    limits: dict[str, Any] = dict(max_seconds=max_seconds, max_evaluations=max_evaluations)
    limits |= dict(checkpoint=checkpoint, every=every)
    if resume and checkpoint is None:
        raise ValueError("--resume needs --checkpoint, the file to go on from.")
    if resume and checkpoint is not None and checkpoint.exists():
        result = bures.load(checkpoint, target=model).resume(progress=progress, **limits)
    else:
        bound, kind = make_objective(objective, k, alpha), make_family(family, rank)
        result = bures.fit(
            model,
            key=key,
            objective=bound,
            estimator=make_estimator(model, bound, estimator, given(M=m, indices=indices, draws=draws), kind),
            geometry=make_geometry(geometry, step_size),
            family=kind,
            init=make_start(init_mean, init_variance),
            num_steps=num_steps,
            progress=progress,
            **limits,
        )
    show_fit(result, name, seed, num_samples, out)
    failed = result.outcome in (bures.Outcome.NON_FINITE, bures.Outcome.DIVERGED)
    if failed or (result.outcome is bures.Outcome.ZERO_DENSITY and not result.diagnostics.trustworthy):
        raise typer.Exit(1)


@app.command()
def sample(
    target: Annotated[str, typer.Argument(help="A target, model or program, as for `bures fit`.")],
    data: _Data = None,
    dim: _Dim = None,
    draws: Annotated[int, typer.Option(help="Draws of the posterior.")] = 1000,
    max_seconds: _MaxSeconds = None,
    max_evaluations: _MaxEvaluations = None,
    seed: _Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write the draws: a name that ends in .nc (netCDF), .zarr or .npz (NumPy)."),
    ] = None,
    float32: _Float32 = False,
    progress: Annotated[bool, typer.Option(help="Say what each rung found.")] = True,
) -> None:
    """Draws that can be trusted, and nothing to choose: from a Gaussian up to NUTS, the first rung that passes.

    Exit status 1 says that none did.

    Examples:

    - `bures sample eggbox`

    - `bures sample model.stan --data data.json --out draws.nc`

    - `bures sample model.py:log_density --dim 3 --max-seconds 60`
    """
    import jax

    jax.config.update("jax_enable_x64", not float32)
    import bures
    from bures.ladder.files import check_file, write_tree

    key = make_key(seed)
    if out is not None:
        check_file(out)
    model, name = find_target(target, dim, data)
    tree = bures.sample(
        model,
        key=key,
        num_draws=draws,
        max_seconds=max_seconds,
        max_evaluations=max_evaluations,
        progress=progress,
    )
    show_draws(tree, name)
    if out is not None:
        write_tree(tree, out)
        typer.echo(f"saved {out}")
    if not tree.attrs["trustworthy"]:
        raise typer.Exit(1)


@app.command()
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="eggbox, snr, convergence, census, census-full, banana, factorial, families, mixtures or all."
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Minutes, not hours: fewer seeds and steps.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Repetitions. [default: the protocol's own]")] = None,
    out: Annotated[Path, typer.Option(help="Folder that keeps the results.")] = Path("results"),
) -> None:
    """Run the paper's experiments and compare with its figures.

    Results are kept cell by cell: a run that was stopped or killed continues where it was, and a second run only
    redraws. Cells, tables and figures are in OUT/EXPERIMENT/full or quick; `bures report OUT` puts them on one page.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    from bures.reproduce import reproduce as run

    check_folder(out)
    run(experiment, quick=quick, seeds=seeds, out=out, say=typer.echo)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder filled by `bures reproduce`.")] = Path(
        "results"
    ),
) -> None:
    """Write DIR/report.html: every experiment's question, settings, tables, figures and reading on one page.

    A run that is not finished is shown as far as it got; its tables and figures are written as well.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    from bures.report import write_report

    typer.echo(f"wrote {write_report(folder)}")


@app.command()
def bench(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="posteriordb: real posteriors with reference draws. speed: what the default fit promises. cold: the "
            "first answer in a fresh process. honesty: what the verdict says, against exact draws. families: mean "
            "field, low rank and full rank on real models of 65 to 3,075 dimensions. ladder: mixtures, centring and "
            "`bures.sample` where one Gaussian is not enough. scale: data of any size, by batches, devices and "
            "processes. models: all of it, six peers and NUTS on real models."
        ),
    ],
    path: Annotated[
        Path | None, typer.Option(help="posteriordb's folder [default: BURES_POSTERIORDB]; scale: one for its data.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Repetitions. [default: the benchmark's own]")] = None,
    slow_seeds: Annotated[
        int | None, typer.Option(help="speed: repetitions of what takes minutes each. [default: 1]")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A posterior, model or section; may be repeated. [default: all]")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="posteriordb, families, ladder, models: a method; may be repeated. [default: all]"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="families, ladder, models: minutes, fewer seeds and draws.")
    ] = False,
    sampling: Annotated[
        Path | None,
        typer.Option(
            help="families, ladder, models: the folder of pines.csv and other data. [default: BURES_SAMPLING]"
        ),
    ] = None,
    old: Annotated[
        str | None, typer.Option(help="families: a commit, or a checkout, to compare the full Gaussian's steps with.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder that keeps the results.")] = Path("results"),
) -> None:
    """Compare the default fit with the paper's methods and other libraries, cell by cell as `bures reproduce` does.

    `speed` has the sections cold, overhead, targets, regression, growth, census9 and census96.

    Needs the extra `bench`, the libraries compared: BlackJAX, NumPyro and PyMC. Tables, figure and page are in OUT.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    from bures.experiments.store import Store
    from bures.reproduce import load_benchmark, other_code

    check_folder(out)
    module = load_benchmark(benchmark)
    options = given(path=path, seeds=seeds, slow_seeds=slow_seeds, only=only or None, methods=method or None)
    options |= given(quick=quick or None, sampling=sampling, old=old)
    if unknown := set(options) - set(inspect.signature(module.run).parameters):
        flag = sorted(unknown)[0].replace("methods", "method").replace("_", "-")
        raise ValueError(f"bench {benchmark} takes no --{flag}. Leave it out.")
    folder = module.run(**options, out=out, say=typer.echo)
    if said := other_code(Store.at(folder), getattr(module, "Benchmark", module)):
        typer.echo(said)
    typer.echo(f"see {folder / 'tables.md'} and {folder / f'{benchmark}.html'}")


def _join_processes(
    distributed: bool, coordinator: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Become one of several processes, of which the first alone prints."""
    if not distributed:
        if (coordinator, num_processes, process_id) != (None, None, None):
            raise ValueError("--coordinator, --num-processes and --process-id need --distributed.")
        return
    import os

    import bures

    bures.distributed.start(coordinator, num_processes, process_id)
    if not bures.distributed.is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as this process


def main() -> None:
    """Run the command line; a user's mistake gives one line and exit status 2."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        from bures.extras import remedy

        said = remedy(error) if type(error) is ModuleNotFoundError else None
        message = said or " ".join(str(error).split())
        typer.echo(f"bures: {message}", err=True)
        sys.exit(2)
    except MemoryError as error:
        typer.echo(f"bures: out of memory: {error}. Take fewer dimensions or draws: --dim, -K, -M.", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("bures: interrupted", err=True)
        sys.exit(130)
    except RuntimeError as error:
        from bures.distributed import LostProcessError

        if not isinstance(error, LostProcessError):
            raise
        typer.echo(f"bures: {error}", err=True)
        sys.exit(1)
