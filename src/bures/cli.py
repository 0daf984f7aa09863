"""The command line: `bures fit`, `bures sample`, `bures reproduce`, `bures report`, `bures bench`."""

import enum
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Gaussian variational inference on Bures-Wasserstein space.",
)


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


class ObjectiveName(enum.StrEnum):
    elbo = "elbo"
    iwelbo = "iwelbo"
    vriwae = "vriwae"


class EstimatorName(enum.StrEnum):
    price = "price"
    stein = "stein"
    reparameterised = "reparameterised"


class GeometryName(enum.StrEnum):
    whitened = "whitened"
    bures_wasserstein = "bures-wasserstein"
    forward_backward = "forward-backward"
    euclidean = "euclidean"


class FamilyName(enum.StrEnum):
    full = "full"
    mean_field = "mean-field"
    low_rank = "low-rank"
    mixture = "mixture"


class Indices(enum.StrEnum):
    all = "all"
    last = "last"


class Draws(enum.StrEnum):
    iid = "iid"
    antithetic = "antithetic"
    sobol = "sobol"


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
    data: Annotated[
        Path | None, typer.Option(help="JSON file: data of a Stan program, or arguments by name of a NumPyro model.")
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Dimension of a bare log density.")] = None,
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
    seed: Annotated[int, typer.Option(help="Seed of the random key.")] = 0,
    num_samples: Annotated[
        int | None, typer.Option(help="Fresh draws for the diagnostics. [default: as many as the verdict takes]")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="End after so long with the best so far. [default: no limit]")
    ] = None,
    max_evaluations: Annotated[
        int | None, typer.Option(help="The same for evaluations of log p and its gradient. [default: no limit]")
    ] = None,
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
    float32: Annotated[bool, typer.Option("--float32", help="Single precision.")] = False,
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

    _join_processes(distributed, coordinator, num_processes, process_id)
    model, name = _find_target(target, dim, data)
    _check_folder(out)
    limits: dict[str, Any] = dict(max_seconds=max_seconds, max_evaluations=max_evaluations)
    limits |= dict(checkpoint=checkpoint, every=every)
    if resume and checkpoint is None:
        raise ValueError("--resume needs --checkpoint, the file to go on from.")
    if resume and checkpoint is not None and checkpoint.exists():
        result = bures.load(checkpoint, target=model).resume(progress=progress, **limits)
    else:
        bound, kind = _make_objective(objective, k, alpha), _make_family(family, rank)
        result = bures.fit(
            model,
            key=jax.random.key(seed),
            objective=bound,
            estimator=_make_estimator(model, bound, estimator, _given(M=m, indices=indices, draws=draws), kind),
            geometry=_make_geometry(geometry, step_size),
            family=kind,
            init=_make_start(init_mean, init_variance),
            num_steps=num_steps,
            progress=progress,
            **limits,
        )
    _report(result, name, seed, num_samples, out)
    if result.outcome in (bures.Outcome.NON_FINITE, bures.Outcome.DIVERGED):
        raise typer.Exit(1)


@app.command()
def sample(
    target: Annotated[str, typer.Argument(help="A target, model or program, as for `bures fit`.")],
    data: Annotated[
        Path | None, typer.Option(help="JSON file: data of a Stan program, or arguments by name of a NumPyro model.")
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Dimension of a bare log density.")] = None,
    draws: Annotated[int, typer.Option(help="Draws of the posterior.")] = 1000,
    max_seconds: Annotated[
        float | None, typer.Option(help="End after so long with the best so far. [default: no limit]")
    ] = None,
    max_evaluations: Annotated[
        int | None, typer.Option(help="The same for evaluations of log p and its gradient. [default: no limit]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random key.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write the draws: a name that ends in .nc (netCDF), .zarr or .npz (NumPy)."),
    ] = None,
    float32: Annotated[bool, typer.Option("--float32", help="Single precision.")] = False,
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

    if out is not None:
        check_file(out)
    model, name = _find_target(target, dim, data)
    tree = bures.sample(
        model,
        key=jax.random.key(seed),
        num_draws=draws,
        max_seconds=max_seconds,
        max_evaluations=max_evaluations,
        progress=progress,
    )
    _print_draws(tree, name)
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

    _check_folder(out)
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

    _check_folder(out)
    module = load_benchmark(benchmark)
    options = _given(path=path, seeds=seeds, slow_seeds=slow_seeds, only=only or None, methods=method or None)
    options |= _given(quick=quick or None, sampling=sampling, old=old)
    if unknown := set(options) - set(inspect.signature(module.run).parameters):
        flag = sorted(unknown)[0].replace("methods", "method").replace("_", "-")
        raise ValueError(f"bench {benchmark} takes no --{flag}. Leave it out.")
    folder = module.run(**options, out=out, say=typer.echo)
    if said := other_code(Store.at(folder), getattr(module, "Benchmark", module)):
        typer.echo(said)
    typer.echo(f"see {folder / 'tables.md'} and {folder / f'{benchmark}.html'}")


def _find_target(text: str, dim: int | None, data: Path | None) -> tuple[Any, str]:
    """A built-in by name, a Stan program, or an object of a Python file."""
    import bures

    builtin: dict[str, Callable[[], Any]] = {
        "eggbox": bures.models.eggbox,
        "banana": lambda: bures.models.banana() if dim is None else bures.models.banana(dim=dim),
        "funnel": lambda: bures.models.funnel() if dim is None else bures.models.funnel(dim),
        "student_t": lambda: bures.models.student_t() if dim is None else bures.models.student_t(dim),
        "logistic": bures.models.census,
    }
    if text in builtin:
        if data is not None:
            raise ValueError(f"--data is for Stan programs and NumPyro models; {text} has none. Leave it out.")
        target = builtin[text]()
        _check_dim(target, text, dim)
        return target, text
    if data is not None and not data.is_file():
        raise ValueError(f"--data must be a JSON file that exists, but got {str(data)!r}. Check the path.")
    if text.endswith(".stan"):
        target = bures.frontends.from_stan(text, data)
        _check_dim(target, text, dim)
        return target, Path(text).stem
    path, separator, attribute = text.rpartition(":")
    if not separator or not path.endswith(".py"):
        raise ValueError(
            f"target must be one of {', '.join(builtin)}, path/to/model.stan or path/to/file.py:name, "
            f"but got {text!r}. Check the spelling."
        )
    return _as_target(_load_attribute(Path(path), attribute), text, dim, data), attribute


def _as_target(found: Any, text: str, dim: int | None, data: Path | None) -> Any:
    """A Target from an object of a Python file; a model's library is known by what the file imported."""
    import bures

    is_pymc = "pymc" in sys.modules and isinstance(found, sys.modules["pymc"].Model)
    if data is not None and (is_pymc or dim is not None or isinstance(found, bures.Target)):
        raise ValueError(f"--data is for Stan programs and NumPyro models; {text} has its data already. Leave it out.")
    if is_pymc or isinstance(found, bures.Target):
        target = bures.frontends.from_pymc(found) if is_pymc else found
        _check_dim(target, text, dim)
        return target
    if dim is not None:
        return bures.Target(found, dim)
    if "numpyro" in sys.modules:
        arguments = {} if data is None else json.loads(data.read_text())
        arrays = {name: np.asarray(value) if isinstance(value, list) else value for name, value in arguments.items()}
        return bures.frontends.from_numpyro(found, **arrays)
    raise ValueError(f"{text} is a bare log density: give its dimension with --dim.")


def _check_dim(target: Any, text: str, dim: int | None) -> None:
    """A dimension that is given is the target's."""
    if dim not in (None, target.dim):
        raise ValueError(f"--dim must be {target.dim}, that of {text}, but got {dim}. Leave it out.")


def _load_attribute(path: Path, attribute: str) -> Any:
    if not path.is_file():
        raise ValueError(f"target names the file {str(path)!r}, which does not exist. Check the path.")
    absolute = str(path.resolve())
    spec = importlib.util.spec_from_file_location(path.stem, absolute)
    if spec is None or spec.loader is None:
        raise ValueError(f"{str(path)!r} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(absolute).parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == absolute]
        line = f" at line {frames[-1].lineno}" if frames else ""
        raise ValueError(f"{path} could not be run{line}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not hasattr(module, attribute):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ValueError(f"{path} has no {attribute!r}; it has {', '.join(names) or 'nothing callable'}.")
    return getattr(module, attribute)


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given, as plain values."""
    return {
        name: value.value if isinstance(value, enum.Enum) else value
        for name, value in options.items()
        if value is not None
    }


def _make_objective(name: ObjectiveName | None, k: int | None, alpha: float | None) -> Any:
    import bures

    options = _given(K=k, alpha=alpha)
    if name is None and options:
        name = ObjectiveName.iwelbo if alpha is None else ObjectiveName.vriwae
    kinds = {ObjectiveName.elbo: bures.ELBO, ObjectiveName.iwelbo: bures.IWELBO, ObjectiveName.vriwae: bures.VRIWAE}
    return None if name is None else _construct(f"--objective {name}", kinds[name], options)


def _make_estimator(
    target: Any, objective: Any, name: EstimatorName | None, options: dict[str, Any], family: Any = None
) -> Any:
    import bures

    kinds = {
        EstimatorName.price: bures.Price,
        EstimatorName.stein: bures.Stein,
        EstimatorName.reparameterised: bures.Reparameterised,
    }
    if name is not None:
        return _construct(f"--estimator {name}", kinds[name], options)
    return _change_default(target, objective, options, family) if options else None


def _change_default(target: Any, objective: Any, options: dict[str, Any], family: Any) -> Any:
    """The estimator that bures would choose, with these options changed."""
    from bures.fitting import default_estimator, default_objective
    from bures.fitting.defaults import default_family

    family = family or default_family(target)
    default = default_estimator(target, objective or default_objective(target, family), family=family)
    options = {name: getattr(default, name) for name in inspect.signature(type(default)).parameters} | options
    several = options["indices"] == "all" and options["draws"] != "sobol"  # what can be blocked in several ways
    options["permutations"] = max(1, min(options["permutations"], options["M"])) if several else 1
    return type(default)(**options)


def _construct(flag: str, kind: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Call a constructor; the error for an option that is unknown or missing names its flag."""
    parameters = inspect.signature(kind).parameters
    if unknown := set(options) - set(parameters):
        raise ValueError(f"{flag} takes no --{sorted(unknown)[0]}. Leave it out.")
    required = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    if missing := required - set(options):
        raise ValueError(f"{flag} needs --{sorted(missing)[0]}, e.g. -K 10 or --alpha 0.1.")
    return kind(**options)


def _make_geometry(name: GeometryName | None, step_size: float | None) -> Any:
    import bures

    if name in (None, GeometryName.whitened):
        if step_size is not None:
            raise ValueError("--step-size is for --geometry bures-wasserstein, forward-backward or euclidean.")
        return None if name is None else bures.Whitened()
    if step_size is None:
        raise ValueError(f"--geometry {name} needs a --step-size, e.g. --step-size 0.1.")
    kinds = {
        GeometryName.bures_wasserstein: bures.BuresWasserstein,
        GeometryName.forward_backward: bures.ForwardBackward,
        GeometryName.euclidean: bures.Euclidean,
    }
    return kinds[name](step_size)


def _make_family(name: FamilyName | None, rank: int | None) -> Any:
    import bures

    if rank is not None and name is not FamilyName.low_rank:
        raise ValueError("--rank is for --family low-rank. Leave it out, or choose that family.")
    if name is FamilyName.low_rank:
        return bures.LowRank(rank)
    kinds = {
        FamilyName.full: bures.FullRank,
        FamilyName.mean_field: bures.MeanField,
        FamilyName.mixture: bures.Mixture,
    }
    return None if name is None else kinds[name]()


def _make_start(mean: str | None, variance: float | None) -> Any:
    if mean is None:
        if variance is not None:
            raise ValueError("--init-variance needs --init-mean, e.g. --init-mean 6,12.")
        return None
    import jax.numpy as jnp

    import bures

    try:
        point = jnp.array([float(part) for part in mean.split(",")])
    except ValueError as error:
        raise ValueError(f"--init-mean must be numbers such as 6,12, but got {mean!r}.") from error
    return bures.Gaussian.from_moments(point, (1.0 if variance is None else variance) * jnp.eye(point.size))


def _join_processes(
    distributed: bool, coordinator: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Become one of several processes, of which the first alone prints."""
    if not distributed:
        if (coordinator, num_processes, process_id) != (None, None, None):
            raise ValueError("--coordinator, --num-processes and --process-id need --distributed.")
        return
    import os
    import sys

    import bures

    bures.distributed.start(coordinator, num_processes, process_id)
    if not bures.distributed.is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as this process


def _check_folder(folder: Path) -> None:
    """Check that results can be written, before any work is done."""
    from bures.distributed import is_first
    from bures.storage import write_atomically

    if not is_first():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out must be a folder that can be made, but {str(folder)!r} cannot: {error}.") from error
    probe = folder / ".bures-probe"
    write_atomically(probe, b"")
    probe.unlink()


def _report(result: Any, name: str, seed: int, num_samples: int | None, out: Path) -> None:
    """The table, the saved fit, the figure and the page, all from the draws the fit was judged by."""
    import jax
    from rich.console import Console
    from rich.table import Table

    import bures
    from bures.looking.fit_page import page_of
    from bures.storage import write_atomically

    key = None if num_samples is None else jax.random.fold_in(jax.random.key(seed), 2**31 - 1)
    diagnostics = result.diagnostics if num_samples is None else result.diagnose(key, num_samples)
    console = Console(soft_wrap=True)
    table = Table(title=f"{name}: {result.approximation.label}, {result.num_steps} steps", show_header=False)
    for row in diagnostics.rows():
        table.add_row(*row)
    console.print(table)
    console.print(f"{result.outcome}", markup=False)
    console.print(diagnostics.message, markup=False)
    saved, figure = out / f"{name}.fit", out / f"{name}.png"
    result.save(saved)
    if result.outcome is bures.Outcome.TIME_LIMIT:
        console.print(f"saved {saved}; a figure would take more evaluations", markup=False)
        return
    drawn = bures.plot.summary(result, key)  # by all of several processes: it may ask for log p
    content, page = page_of(result, title=name), out / f"{name}.html"
    if bures.distributed.is_first():
        drawn.savefig(figure, dpi=150)
        write_atomically(page, content.encode())
    console.print(f"saved {saved}, {figure} and {page}", markup=False)


def _print_draws(tree: Any, name: str) -> None:
    """Means, standard deviations and quantiles by variable, and the verdict."""
    from rich.console import Console
    from rich.table import Table

    from bures.ladder.files import summary_rows

    console, facts = Console(soft_wrap=True), tree.attrs
    title = f"{name}: {facts['rung']}, {facts['evaluations']} evaluations"
    table = Table("", "mean", "sd", "5%", "50%", "95%", title=title)
    for row in summary_rows(tree):
        table.add_row(*row)
    console.print(table)
    if "log_evidence" in facts:
        console.print(f"log evidence {facts['log_evidence']:.3f} ± {facts['log_evidence_error']:.3f}", markup=False)
    console.print(facts["verdict"], markup=False)


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
    except KeyboardInterrupt:
        typer.echo("bures: interrupted", err=True)
        sys.exit(130)
    except RuntimeError as error:
        from bures.distributed import LostProcessError

        if not isinstance(error, LostProcessError):
            raise
        typer.echo(f"bures: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
