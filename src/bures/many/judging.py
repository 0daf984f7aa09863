"""The judgement of many fits at once: for each the figures of `Diagnostics`, from fresh draws of its own."""

import dataclasses
from typing import Any

import numpy as np

from bures.diagnostics.correction import SPLITS, Correction, weighted_moments
from bures.diagnostics.coverage import Coverage
from bures.diagnostics.diagnostics import Diagnostics
from bures.diagnostics.pareto import (
    NO_MEAN,
    ROUNDING,
    expected_log_weights,
    fit_pareto,
    khat_error,
    khat_threshold,
    tail_length,
    truncate_log_weights,
)
from bures.objective import IWELBO

K = 10  # of the IW-ELBO that is reported


@dataclasses.dataclass(frozen=True)
class Figures:
    """The fields of `Diagnostics` and `Correction`, an array each, by fit."""

    num_samples: np.ndarray
    elbo: np.ndarray
    elbo_mcse: np.ndarray
    iw_elbo: np.ndarray
    ness: np.ndarray
    khat: np.ndarray
    khat_error: np.ndarray
    log_evidence: np.ndarray
    log_evidence_mcse: np.ndarray
    rounding: np.ndarray
    mean_error: np.ndarray
    deviation_error: np.ndarray
    effective: np.ndarray
    shift: np.ndarray
    largest: np.ndarray
    widening: np.ndarray
    outside: np.ndarray

    @classmethod
    def unknown(cls, count: int) -> "Figures":
        """Of fits that could not be judged: k̂ is infinite."""
        names = [field.name for field in dataclasses.fields(cls)]
        known = {"num_samples": 1000, "ness": 0.0, "khat": np.inf, "effective": 0.0, "largest": 1.0, "outside": 0.0}
        return cls(**{name: np.full(count, known.get(name, np.nan)) for name in names})

    def put(self, rows: np.ndarray, others: "Figures") -> None:
        """Others in the place of some; in place."""
        for field in dataclasses.fields(self):
            getattr(self, field.name)[rows] = getattr(others, field.name)

    def diagnostics(self, i: int, names: tuple[str, ...]) -> Diagnostics:
        """Of one fit, to be printed or asked for a verdict."""
        own = {field.name: getattr(self, field.name)[i].item() for field in dataclasses.fields(self)}
        correction = Correction(**{field.name: own.pop(field.name) for field in dataclasses.fields(Correction)})
        size, coverage = int(own.pop("num_samples")), Coverage(outside=own.pop("outside"))
        threshold = khat_threshold(size)
        return Diagnostics(
            num_samples=size,
            iw_elbo_K=K,
            khat_threshold=threshold,
            correction=correction,
            coverage=coverage,
            names=names,
            **own,
        )


def summarise_many(z: np.ndarray, log_p: np.ndarray, log_q: np.ndarray) -> Figures:
    """From draws (fits, n, dim) in the precision that p saw, and log p and log q (fits, n) there, in double."""
    n = log_p.shape[1]
    finite_p = np.where(np.isfinite(log_p), np.abs(log_p), 0)
    resolution = ROUNDING * float(np.finfo(z.dtype).eps) * finite_p.max(axis=1)
    with np.errstate(all="ignore"):
        log_weights = log_p - log_q
        top = log_weights.max(axis=1)
        usable = np.isfinite(top) & ~np.isnan(log_weights).any(axis=1)
        relative = np.where(usable[:, None], log_weights - top[:, None], 0)
        weights = np.exp(relative)
        mean = weights.mean(axis=1)
        tuples = log_weights[:, : n // K * K].reshape(len(log_p), -1, K)
        k, error, smoothed = _tails(relative, resolution)
        figures = Figures(
            np.full(len(log_p), n),
            log_weights.mean(axis=1),
            np.where(np.isfinite(log_weights).all(axis=1), log_weights.std(axis=1, ddof=1) / np.sqrt(n), np.inf),
            IWELBO(K).bound(tuples).mean(axis=1),
            mean**2 / (weights**2).mean(axis=1),
            k,
            error,
            top + np.log(mean),
            weights.std(axis=1, ddof=1) / (mean * np.sqrt(n)),
            resolution,
            *_corrections(z, smoothed),
            outside=np.zeros(len(log_p)),
        )
    figures.put(~usable, Figures.unknown(int((~usable).sum())))
    return figures


def _tails(relative: np.ndarray, resolution: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """k̂ of each fit, its standard error, and the weights smoothed by the tail, as `fit_tail` has them for one."""
    count, n = relative.shape
    length = tail_length(n)
    places = np.argpartition(relative, n - length - 1, axis=1)[:, n - length - 1 :]
    largest = np.take_along_axis(relative, places, axis=1)
    order = np.argsort(largest, axis=1)
    places, largest = (np.take_along_axis(x, order, axis=1) for x in (places, largest))
    cutoff, places, largest = largest[:, 0], places[:, 1:], largest[:, 1:]
    equal, lost = -cutoff <= np.maximum(resolution, 1e-9), cutoff < -700
    fitted = ~equal & ~lost
    k, error = np.where(equal, -np.inf, np.inf), np.zeros(count)
    k[fitted], sigma = fit_pareto(np.exp(largest[fitted]) - np.exp(cutoff[fitted])[:, None])
    error[fitted] = khat_error(k[fitted], length)
    smoothed = relative.copy()
    rows = np.flatnonzero(fitted)[:, None]
    smoothed[rows, places[fitted]] = expected_log_weights(k[fitted], sigma, cutoff[fitted], length)
    heavy = fitted & (k >= NO_MEAN)
    smoothed[heavy] = truncate_log_weights(relative[heavy])
    return k, error, smoothed


def _corrections(z: np.ndarray, log_weights: np.ndarray) -> Any:
    """The fields of `Correction` for each fit, as `measure_correction` has them for one."""
    count, n, dim = z.shape
    split = n // SPLITS
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    centred = np.asarray(z, np.float64) - z.mean(axis=1, dtype=np.float64, keepdims=True)
    parts = centred[:, : split * SPLITS].reshape(count * SPLITS, split, dim)
    w = weights[:, : split * SPLITS].reshape(count * SPLITS, 1, split)
    sums = [x.reshape(count, SPLITS, -1) for x in (w.sum(axis=2), np.matmul(w, parts), np.matmul(w, parts**2))]
    mean, deviation = weighted_moments(*(part.sum(axis=1) for part in sums))
    moments = np.stack(weighted_moments(*sums))  # (2, fits, splits, dim)
    errors = moments.std(axis=2, ddof=1) / (deviation * np.sqrt(SPLITS))
    errors = np.where(np.isfinite(errors), errors, np.inf).max(axis=2)
    total = weights.sum(axis=1)
    shift = np.abs(mean / deviation).max(axis=1)
    widening = (deviation / np.sqrt(np.mean(centred**2, axis=1))).max(axis=1)
    return *errors, total**2 / (weights**2).sum(axis=1), shift, weights.max(axis=1) / total, widening
