"""`Fits`: many fits, their figures as arrays, and each of them as a `Fit` of its own."""

import collections
import dataclasses
import functools
import operator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bures.arrays import to_device
from bures.check import check_key, check_positive_integer
from bures.diagnostics.diagnostics import Diagnostics, Verdict
from bures.family import Gaussian
from bures.family.gaussian_moves import WhitenedState
from bures.fitting.result import Fit, Record
from bures.loop import LoopState, Method, State, Trace
from bures.many.judging import Figures
from bures.many.models import Models
from bures.many.steps import Lanes
from bures.outcome import FAILURES, Outcome


@dataclasses.dataclass(frozen=True, eq=False)
class Fits:
    """Many fits: arrays whose first axis numbers them. `fits[i]` is a `bures.Fit`, `print(fits)` counts what happened.

    A fit without an approximation, because its log density was not finite where it began, has a mean of NaN.
    """

    models: Models
    key: Key[Array, ""]
    methods: tuple[Method, Method]  # of few and of more draws
    lanes: Lanes
    takes_more: np.ndarray
    outcome_codes: np.ndarray
    num_steps: np.ndarray
    start_evaluations: np.ndarray
    evaluations: np.ndarray  # points at which each one's log density was evaluated, all of them
    figures: Figures
    seconds: float
    density_seconds: float  # of these, in log densities and their compilation

    def __len__(self) -> int:
        return len(self.num_steps)

    @property
    def mean(self) -> Float[np.ndarray, "fits dim"]:
        """The means of the approximations."""
        return self.lanes.mean

    @property
    def chol(self) -> Float[np.ndarray, "fits dim dim"]:
        """The Cholesky factors of their covariances."""
        return self.lanes.chol

    @functools.cached_property
    def covariance(self) -> Float[np.ndarray, "fits dim dim"]:
        return np.matmul(self.chol, self.chol.mT)

    @functools.cached_property
    def standard_deviations(self) -> Float[np.ndarray, "fits dim"]:
        return np.sqrt((self.chol**2).sum(axis=2))

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How each fit ended."""
        return tuple(Outcome(int(code)) for code in self.outcome_codes)

    @functools.cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What each approximation may be used for."""
        return tuple(self.diagnostics(i).verdict for i in range(len(self)))

    @property
    def trustworthy(self) -> np.ndarray:
        """Whether the draws of each, corrected by importance weights where its message says so, can be used."""
        return np.array([verdict in (Verdict.CLOSE, Verdict.USABLE) for verdict in self.verdicts])

    @property
    def khat(self) -> Float[np.ndarray, " fits"]:
        """Pareto k̂."""
        return self.figures.khat

    @property
    def ness(self) -> Float[np.ndarray, " fits"]:
        """The effective share of draws."""
        return self.figures.ness

    @property
    def elbo(self) -> Float[np.ndarray, " fits"]:
        return self.figures.elbo

    @property
    def log_evidence(self) -> Float[np.ndarray, " fits"]:
        """With the standard errors `log_evidence_mcse`."""
        return self.figures.log_evidence

    @property
    def log_evidence_mcse(self) -> Float[np.ndarray, " fits"]:
        return self.figures.log_evidence_mcse

    @property
    def num_log_density_evaluations(self) -> int:
        """Of all fits together."""
        return int(self.evaluations.sum())

    def diagnostics(self, i: int) -> Diagnostics:
        """The judgement of one fit. Other modes were not searched for: `fits[i].diagnostics` does that."""
        return self.figures.diagnostics(i, self.models.names)

    def sample(self, key: Key[Array, ""], n: int) -> Float[np.ndarray, "fits n dim"]:
        """`n` draws of each approximation."""
        check_key(key)
        check_positive_integer("n", n, "It is the number of draws of each fit.")
        noise = np.asarray(jax.random.normal(key, (len(self), n, self.models.dim), self.mean.dtype))
        return self.mean[:, None] + np.matmul(noise, self.chol.mT)

    def to_arviz(self, key: Key[Array, ""], num_draws: int = 1000) -> Any:
        """An ArviZ `DataTree` of plain draws, with the fits as a dimension `fit` of every variable."""
        from bures.export import import_from_dict

        check_positive_integer("num_draws", num_draws, "It is the number of draws of each fit.")
        from_dict, z = import_from_dict(), self.sample(key, num_draws)
        size = self.models.chunk_size
        chunks = [slice(i, min(i + size, len(self))) for i in range(0, len(self), size)]
        parts = [self.models.constrain(chunk, z[chunk]) for chunk in chunks]
        values = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}
        posterior = {name: np.moveaxis(value, 0, 1)[None] for name, value in values.items()}
        figures = {"khat": self.khat, "ness": self.ness, "elbo": self.elbo, "log_evidence": self.log_evidence}
        words = {"outcome": np.array([outcome.name for outcome in self.outcomes])}
        dims = {name: ["fit", *_axes(name, value)] for name, value in posterior.items()}
        tree = from_dict({"posterior": posterior}, dims=dims, coords={"fit": np.arange(len(self))})
        tree["posterior"].attrs["inference_library"] = "bures"
        import xarray

        tree["fits"] = xarray.DataTree(
            xarray.Dataset(
                {name: ("fit", value) for name, value in (figures | words).items()}, {"fit": np.arange(len(self))}
            )
        )
        return tree

    def __getitem__(self, i: int) -> Fit:
        """One of the fits. Its judgement is made when it is asked for, from more draws, with a search for modes."""
        i = operator.index(i)
        if not -len(self) <= i < len(self):
            raise IndexError(f"there are {len(self)} fits, and no fit {i}")
        i %= len(self)
        if not np.isfinite(self.mean[i]).all():
            raise ValueError(f"Fit {i} has no approximation. {self.outcomes[i]}")
        own = self.lanes.at(np.array(i))
        state = State(Gaussian.unchecked(own.mean, own.chol), WhitenedState(*own[2:]))
        loop = LoopState.start(state)
        failed = np.asarray(self.outcomes[i] in FAILURES)
        loop = loop._replace(count=np.asarray(self.num_steps[i], np.int32), failed=failed)
        record = Record(start_evaluations=int(self.start_evaluations[i]), grows=True)
        q, empty = to_device(state.approximation), Trace.empty(0, own.mean.dtype)
        key = jax.random.fold_in(self.key, i)
        target, method = self.models.target(i), self.methods[int(self.takes_more[i])]
        return Fit(q, empty, ((int(self.num_steps[i]), q),), target, method, key, loop, self.outcome_codes[i], record)

    def __str__(self) -> str:
        """Counts of outcomes and verdicts, and the spread of the figures."""
        outcomes = collections.Counter(outcome.name for outcome in self.outcomes)
        verdicts = collections.Counter(verdict.value for verdict in self.verdicts)
        lines = [
            f"{len(self):,} fits of {self.models.dim} dimensions, {self.num_log_density_evaluations:,} evaluations, "
            f"{self.seconds:.3g} seconds",
            f"Outcomes: {_counted(outcomes)}",
            f"Judgement: {_counted(verdicts)}",
            f"nESS: {_spread(100 * self.ness, '.1f')} %",
            f"Pareto k̂: {_spread(self.khat, '.2f')}",
            "Other modes were not searched for: fits[i].diagnostics does.",
        ]
        doubtful = np.flatnonzero(~self.trustworthy)
        if doubtful.size:
            shown = ", ".join(map(str, doubtful[:10])) + (", ..." if doubtful.size > 10 else "")
            lines.append(f"Not to be trusted: {shown}. See print(fits.diagnostics(i)), or fits[i].refine(key).")
        return "\n".join(lines)

    __repr__ = __str__


def _counted(counter: collections.Counter) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common())


def _spread(values: np.ndarray, form: str) -> str:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "unknown"
    low, middle, high = np.quantile(finite, (0.05, 0.5, 0.95))
    return f"{low:{form}} to {high:{form}} (5% to 95%), median {middle:{form}}"


def _axes(name: str, value: np.ndarray) -> list[str]:
    """Names of the axes beyond chain, draw and fit."""
    return [f"{name}_dim_{axis}" for axis in range(value.ndim - 3)]
