"""How good is an approximation? Weights of fresh draws tell, and the search for modes what these cannot see."""

import dataclasses
import enum
import itertools
import math
import numbers
from typing import Any

import numpy as np
from jaxtyping import Array, Key

from bures.check import check_positive_integer, fail
from bures.diagnostics.coverage import Coverage, Missed
from bures.diagnostics.pareto import khat_threshold, smooth_log_weights
from bures.diagnostics.weighted import Points, WeightedDraws, log_evidence, ness, relative_weights
from bures.family import AbstractApproximation
from bures.objective import IWELBO
from bures.target import Target

_CLOSE = 0.9  # nESS from which plain draws are as good as corrected ones
SPLITS = 10  # of the draws, to measure how well their weighted moments are known
# Of a correction that works, and of one that may: errors of means in sd, of sds in shares, and effective draws.
_WORKS, _MAY_WORK = (0.04, 0.08, 1000), (0.05, 0.1, 500)
_HEAVIEST = 1.2  # k̂ of a close fit whose far tails alone are lighter than the target's
_LARGEST = 0.005  # share of the heaviest draw in the weight of all
_LEAST_DRAWS = 25  # for k̂, which needs a tail to look at
_WIDER = 1.3  # times by which weights may widen a standard deviation: where it is more, q hardly has draws further out
_LED = 50  # effective draws, by weights as they are, below which a few lead: one has a share of a seventh or more
_ROUNDED = 0.05  # nats of rounding in log p that matter


class Verdict(enum.Enum):
    """What an approximation may be used for."""

    CLOSE = "close"
    USABLE = "usable"
    UNDECIDED = "undecided"
    SEVERAL_MODES = "several modes"
    MASS_OUTSIDE = "mass outside"
    HEAVY_TAILS = "heavy tails"
    ROUNDED = "rounded"
    UNTRUSTED = "untrusted"
    DEGENERATE = "degenerate"
    UNJUDGED = "unjudged"


@dataclasses.dataclass(frozen=True)
class Correction:
    """How well importance weights know the moments, from splits of the draws."""

    mean_error: float  # the largest standard error of a weighted mean, in weighted standard deviations
    deviation_error: float  # the largest relative standard error of a weighted standard deviation
    effective: float  # effective draws
    shift: float  # how far the weights move a mean at the most, in weighted standard deviations
    largest: float  # share of the heaviest draw in the sum of all weights
    widening: float = 1.0  # times by which the weights widen a standard deviation at the most

    @property
    def works(self) -> bool:
        """Whether the weights know the moments well."""
        return self._reaches(*_WORKS)

    @property
    def may_work(self) -> bool:
        """Whether they nearly do."""
        return self._reaches(*_MAY_WORK)

    def _reaches(self, mean_error: float, deviation_error: float, effective: float) -> bool:
        precise = self.mean_error < mean_error and self.deviation_error < deviation_error
        return precise and self.effective >= effective

    @property
    def is_even(self) -> bool:
        """Whether it works and no draw weighs much: a tail that matters would have shown itself by a heavy draw.

        Of n draws whose weights have a tail of shape k, the heaviest has a share of about n^(k−1): 6% of 10,000 at 0.7.
        """
        return self.works and self.largest < _LARGEST


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """Quality of an approximation, from `num_samples` fresh draws. Printable."""

    num_samples: int
    elbo: float
    elbo_mcse: float
    iw_elbo: float
    iw_elbo_K: int
    ness: float
    khat: float
    khat_error: float
    khat_threshold: float
    log_evidence: float
    log_evidence_mcse: float
    rounding: float  # nats by which log p may be off by rounding alone
    correction: Correction
    coverage: Coverage = dataclasses.field(default_factory=Coverage)
    min_eigenvalue: float | None = None  # over the run, where the diagnostics are those of a fit
    clip_rate: float | None = None
    names: tuple[str, ...] = ()

    @property
    def trustworthy(self) -> bool:
        """Whether its draws, corrected by importance weights where the message says so, can be used."""
        return self.verdict in (Verdict.CLOSE, Verdict.USABLE)

    @property
    def verdict(self) -> Verdict:
        """What the approximation may be used for."""
        if self.num_samples < max(self.iw_elbo_K, _LED):  # they lead, whatever they weigh
            return Verdict.UNJUDGED
        if self.khat == math.inf or math.isnan(self.khat):
            return Verdict.DEGENERATE
        by_weights = self._verdict_of_weights()
        if by_weights is Verdict.USABLE and self.is_narrow:
            by_weights = Verdict.ROUNDED if self.rounding > _ROUNDED else Verdict.UNTRUSTED
        trusted = by_weights in (Verdict.CLOSE, Verdict.USABLE)
        if any(trusted or missed.is_apart for missed in self.coverage.missed):
            return Verdict.SEVERAL_MODES
        if self.coverage.outside and (trusted or by_weights is Verdict.UNDECIDED):
            return Verdict.MASS_OUTSIDE
        return by_weights

    def _verdict_of_weights(self) -> Verdict:
        """By the weights of q's own draws alone, which see no other mode."""
        if self.is_light and not self.is_led_by_few:
            return Verdict.CLOSE if self.ness >= _CLOSE else Verdict.USABLE
        if self.rounding > _ROUNDED:
            return Verdict.ROUNDED
        if self.ness >= _CLOSE and self.correction.works:
            heavy = self.khat - 2 * self.khat_error > _HEAVIEST and not self.correction.is_even
            return Verdict.HEAVY_TAILS if heavy else Verdict.CLOSE
        if self.correction.is_even and not self.is_led_by_few:
            return Verdict.USABLE
        if not self.correction.may_work or self.khat - 2 * self.khat_error > 1:
            return Verdict.UNTRUSTED
        sure = self.correction.works and self.khat + 2 * self.khat_error < 1 and not self.is_led_by_few
        return Verdict.USABLE if sure else Verdict.UNDECIDED

    @property
    def is_light(self) -> bool:
        """Whether the tail of the weights is surely light enough to correct anything."""
        return self.khat + 2 * self.khat_error < self.khat_threshold

    @property
    def is_led_by_few(self) -> bool:
        """Whether a few draws weigh as much as all others: they say that there is more of their kind.

        k̂ and smoothed weights hardly see a single one.
        """
        return self.num_samples * self.ness < _LED

    @property
    def is_narrow(self) -> bool:
        """Whether the weights widen it so much that there is likely more further out, where it has no draws.

        Weights stretch what draws there are. On eight schools, mean field ends 40% too narrow in log τ; the weights,
        light as they are (k̂ = 0.5), make half of that good.
        """
        return self.correction.widening > _WIDER

    @property
    def message(self) -> str:
        """What the draws say, and what to do about it."""
        text = _MESSAGES[self.verdict]
        if self.verdict is Verdict.SEVERAL_MODES:
            text = self._about_modes()
        elif self.verdict is Verdict.MASS_OUTSIDE:
            text = text.format(share=100 * self.coverage.outside)
        elif self.verdict is Verdict.UNDECIDED:
            text = text.format(khat=self.khat, error=self.khat_error, means=self.correction.mean_error)
        elif self.verdict is Verdict.UNTRUSTED and self._verdict_of_weights() is Verdict.USABLE:
            text = _NARROW.format(wider=100 * (self.correction.widening - 1))
        elif self.verdict is Verdict.USABLE and not self.is_light:
            text = _CORRECTED.format(khat=self.khat, means=self.correction.mean_error)
        elif self.verdict is Verdict.CLOSE:
            text = text if self.coverage.reach else _NOT_SEARCHED
            text = text if self.is_light else f"{text} {_HEAVY.format(khat=self.khat)}"
        return f"{text} {self._about_the_search()}" if self.trustworthy else text

    def _about_modes(self) -> str:
        places = "; ".join(f"{100 * each.share:.1f}% around {self._place(each)}" for each in self.coverage.missed[:3])
        more = len(self.coverage.missed) - 3
        own = 100 * (1 - self.coverage.missed_share)
        return (
            f"One of several modes: the approximation holds about {own:.1f}% of the mass that was seen, and does not "
            f"reach {places}{f'; {more} more' if more > 0 else ''}. Its draws stand for its own part only: do not use "
            "them for the whole. A mixture holds several modes: family=bures.Mixture(), or bures.sample; "
            "or make labels unique."
        )

    def _place(self, missed: Missed) -> str:
        names = self.names or tuple(f"z[{i}]" for i in range(missed.location.size))
        shown = [f"{name} = {value:.3g}" for name, value in zip(names[:3], missed.location[:3], strict=False)]
        return f"({', '.join(shown)}{', ...' if missed.location.size > 3 else ''})"

    def _about_the_search(self) -> str:
        if not self.coverage.reach:
            return "Other modes were not searched for, and no diagnostic of draws sees them: see fit.diagnostics."
        reach = f"{self.coverage.reach:.0f} standard deviations away"
        return f"No other mode was found up to {reach}; a narrow one can be missed."

    def rows(self) -> list[tuple[str, str]]:
        """Names and formatted values, for tables."""
        rows = [
            ("ELBO", f"{self.elbo:.3f} ± {self.elbo_mcse:.3f}"),
            (f"IW-ELBO (K = {self.iw_elbo_K})", f"{self.iw_elbo:.3f}"),
            ("log evidence", f"{self.log_evidence:.3f} ± {self.log_evidence_mcse:.3f}"),
            ("nESS", f"{100 * self.ness:.1f}%"),
            (
                "Pareto k̂",
                f"{self.khat:.2f} ± {self.khat_error:.2f} "
                f"(threshold {self.khat_threshold:.2f} at {self.num_samples} draws)",
            ),
            (
                "error of corrected moments",
                f"means {self.correction.mean_error:.3f} sd, sds {100 * self.correction.deviation_error:.1f}%",
            ),
        ]
        if self.min_eigenvalue is not None:
            rows.append(("smallest eigenvalue in the run", f"{self.min_eigenvalue:.3g}"))
        if self.clip_rate is not None:
            rows.append(("steps where the safeguard acted", f"{100 * self.clip_rate:.1f}%"))
        return rows

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows())
        return "\n".join([*(f"{name:<{width}}  {value}" for name, value in self.rows()), self.message])

    def _repr_html_(self) -> str:
        from bures.looking.notebook import html_of_diagnostics

        return html_of_diagnostics(self)


_MESSAGES = {
    Verdict.CLOSE: "The approximation is close to the target: use its draws as they are, or resample them.",
    Verdict.USABLE: "Usable: take fit.resample draws, which importance weights correct, instead of plain ones.",
    Verdict.UNDECIDED: (
        "Undecided: the weights seem to know the means to {means:.2f} standard deviations, but k̂ = {khat:.2f} ± "
        "{error:.2f}. If it is below 1, fit.resample draws can be used; if above, the weights are too heavy-tailed to "
        "correct anything. More draws, fit.diagnose(key, 100_000), may tell; bures.sample will."
    ),
    Verdict.SEVERAL_MODES: "",
    Verdict.MASS_OUTSIDE: (
        "About {share:.0f}% of the mass lies further out than the approximation reaches, in tails or other modes: "
        "do not trust it, nor importance weights to correct it. bures.sample climbs until draws can be trusted."
    ),
    Verdict.HEAVY_TAILS: (
        "The bulk of the target is matched, but its tails are heavier than the approximation's, or there is something "
        "narrow that few draws see: do not trust tail probabilities, nor importance weights to correct them; check by "
        "MCMC."
    ),
    Verdict.ROUNDED: (
        "The weights show the rounding of log p, not the target: its values are too large for float32. "
        "Call jax.config.update('jax_enable_x64', True) first, and fit again."
    ),
    Verdict.UNTRUSTED: (
        "Do not trust this approximation: its weights are too heavy-tailed to correct. bures.sample climbs until draws "
        "can be trusted; else try an IW objective with larger K, a wider init, or a reparameterised model."
    ),
    Verdict.DEGENERATE: "The weights are degenerate or not finite: do not use this approximation. Try a wider init.",
    Verdict.UNJUDGED: (
        "Not judged: there are too few draws, for the limits of the fit perhaps. Do not use the approximation before "
        "fit.diagnose(key) has judged it."
    ),
}
_NARROW = (
    "Do not trust this approximation: it is too narrow. Importance weights widen a standard deviation by {wider:.0f}%, "
    "and do not know what lies further out than its draws. bures.sample climbs until draws can be trusted; else try a "
    "richer family, an IW objective with larger K, or a reparameterised model."
)
_CORRECTED = (
    "Usable: take fit.resample draws. The weights are heavy-tailed (k̂ = {khat:.2f}) but do correct the moments: means "
    "are known to {means:.2f} standard deviations. Do not use them for tail probabilities."
)
_HEAVY = "Only its tails may be lighter than the target's (k̂ = {khat:.2f}): check tail probabilities by MCMC."
_NOT_SEARCHED = "The approximation is close to the target where its draws are."


def diagnose(
    key: Key[Array, ""], q: AbstractApproximation, target: Target, *, num_samples: int = 10_000, K: int = 10, **run: Any
) -> Diagnostics:
    """Diagnostics of q as an approximation to the target, from fresh importance weights."""
    check_diagnosis(num_samples, K)
    return summarise(WeightedDraws.draw(key, q, target, num_samples), K=K, **run)


def check_diagnosis(num_samples: int, K: int) -> None:
    """Enough draws for k̂ and for tuples of K."""
    check_positive_integer("K", K, "It is the tuple size of the reported IW-ELBO, e.g. K=10.")
    least = max(K, _LEAST_DRAWS)
    if isinstance(num_samples, bool) or not isinstance(num_samples, numbers.Integral) or num_samples < least:
        raise fail("num_samples", f"an integer of at least {least}", num_samples, "k̂ needs a tail to look at.")


def summarise(draws: WeightedDraws, *, K: int = 10, **run: Any) -> Diagnostics:
    """Diagnostics of draws at hand; `run` are further fields of `Diagnostics`."""
    values, size = draws.log_weights, draws.log_p.size
    if size < max(K, _LEAST_DRAWS):
        return _unjudged(size, K, run)
    finite = bool(np.all(np.isfinite(values)))
    evidence, evidence_mcse = log_evidence(values)
    tail = draws.tail()
    with np.errstate(all="ignore"):
        return Diagnostics(
            num_samples=size,
            elbo=float(np.mean(values)),
            elbo_mcse=float(np.std(values, ddof=1) / math.sqrt(size)) if finite else math.inf,
            iw_elbo=float(np.mean(IWELBO(K).bound(values[: size // K * K].reshape(-1, K)))),
            iw_elbo_K=K,
            ness=ness(values),
            khat=tail.k,
            khat_error=tail.error,
            khat_threshold=khat_threshold(size),
            log_evidence=evidence,
            log_evidence_mcse=evidence_mcse,
            rounding=draws.resolution,
            correction=measure_correction(draws.z, smooth_log_weights(values, tail)),
            **run,
        )


def _unjudged(size: int, K: int, run: dict[str, Any]) -> Diagnostics:
    """The diagnostics of too few draws: nothing is known."""
    nothing = Correction(math.inf, math.inf, 0.0, math.inf, 1.0)
    nan = math.nan
    return Diagnostics(size, nan, nan, nan, K, 0.0, nan, nan, nan, nan, nan, 0.0, nothing, **run)


def measure_correction(z: np.ndarray | Points, log_weights: np.ndarray) -> Correction:
    """How well the weighted moments are known, by their spread over splits of the draws."""
    nothing = Correction(math.inf, math.inf, 0.0, math.inf, 1.0)
    size = log_weights.size // SPLITS * SPLITS
    if not np.isfinite(np.max(log_weights)) or size == 0:
        return nothing
    weights = relative_weights(np.where(np.isnan(log_weights), -np.inf, log_weights))
    plain, squares, *sums = _sums_by_split(z, weights, size)
    mean, deviation = weighted_moments(*(part.sum(axis=0) for part in sums))
    if not np.all(deviation > 0):
        return nothing
    moments = np.array([weighted_moments(*part) for part in zip(*(part[:SPLITS] for part in sums), strict=True)])
    with np.errstate(all="ignore"):
        errors = np.std(moments, axis=0, ddof=1) / (deviation * math.sqrt(SPLITS))
    errors = np.where(np.isfinite(errors), errors, math.inf)
    effective = float(np.sum(weights) ** 2 / np.sum(weights**2))
    own_mean, own = weighted_moments(weights.size, plain, squares)
    shift = float(np.max(np.abs(mean - own_mean) / deviation))
    largest = float(np.max(weights) / np.sum(weights))
    widening = float(np.max(deviation / own))
    return Correction(float(np.max(errors[0])), float(np.max(errors[1])), effective, shift, largest, widening)


def _sums_by_split(
    z: np.ndarray | Points, weights: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The sums of z and z², and sums of w, w z and w z² over each split of the first `size` draws and over those left.

    All of z about a centre.
    """
    dim, split = z.shape[1], size // SPLITS
    plain, squares = np.zeros(dim), np.zeros(dim)
    sums = np.zeros(SPLITS + 1), np.zeros((SPLITS + 1, dim)), np.zeros((SPLITS + 1, dim))
    held = isinstance(z, np.ndarray)
    centre = np.mean(z, axis=0, dtype=np.float64) if held else np.asarray(z.q.mean, np.float64)
    for here, block in [(slice(0, len(z)), z)] if held else z.blocks():
        edges = [here.start, *range((here.start // split + 1) * split, min(here.stop, size), split), here.stop]
        if here.start < size < here.stop:
            edges.insert(-1, size)
        for low, high in itertools.pairwise(edges):
            i, part = min(low // split, SPLITS), block[low - here.start : high - here.start] - centre
            both = np.stack([np.ones(high - low), weights[low:high]])
            firsts = both @ part
            np.square(part, out=part)  # small enough to stay where the processor has it
            seconds = both @ part
            plain, squares = plain + firsts[0], squares + seconds[0]
            sums[0][i] += np.sum(weights[low:high])
            sums[1][i] += firsts[1]
            sums[2][i] += seconds[1]
    return plain, squares, *sums


def weighted_moments(total: Any, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted means and standard deviations from sums of w, w z and w z²."""
    total = np.maximum(total, 1e-300)
    mean = first / total
    return mean, np.sqrt(np.maximum(second / total - mean**2, 0))
