"""How good is an approximation? Weights of fresh draws tell, and the search for modes what these cannot see."""

import dataclasses
import enum
import math
import numbers
from typing import Any

import numpy as np
from jaxtyping import Array, Key

from bures.check import check_positive_integer, fail
from bures.diagnostics.correction import LARGEST, Correction, measure_correction
from bures.diagnostics.coverage import Coverage, Missed
from bures.diagnostics.pareto import khat_threshold, smooth_log_weights
from bures.diagnostics.weighted import WeightedDraws, log_evidence, ness
from bures.family import AbstractApproximation
from bures.objective import IWELBO
from bures.target import Target

_CLOSE = 0.9  # nESS from which plain draws are as good as corrected ones
_HEAVIEST = 1.2  # k̂ of a close fit whose far tails alone are lighter than the target's
_LEAST_DRAWS = 25  # for k̂, which needs a tail to look at
_WIDER = 1.3  # times by which weights may widen a standard deviation: where it is more, q hardly has draws further out
_ENDS = 0.5  # of the k̂ of a Gaussian that is wider by as much: a tail that is lighter ends within q's draws
_WORTH_A_WORD = 0.01  # share of draws where the density is zero
_LED = 50  # effective draws, by weights as they are, below which a few lead: one has a share of a seventh or more
_LEFT = 0.1  # of the effective draws after smoothing, that there are by weights as they are
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
    zero_share: float = 0.0  # of the draws, where the density is zero

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
        if self.ness >= _CLOSE and (self.correction.works or self.correction.is_as_exact):
            heavy = self.khat - 2 * self.khat_error > _HEAVIEST and not self.correction.is_even
            return Verdict.HEAVY_TAILS if heavy else Verdict.CLOSE
        if self.correction.is_even and not self.is_led_by_few:
            return Verdict.USABLE
        if not self.correction.may_work or self.khat - 2 * self.khat_error > 1:
            return Verdict.UNTRUSTED
        sure = self.correction.works and self.khat + 2 * self.khat_error < 1
        return Verdict.USABLE if sure and not (self.is_led_by_few or self.is_smoothed_away) else Verdict.UNDECIDED

    @property
    def is_light(self) -> bool:
        """Whether the tail of the weights is surely light enough to correct anything."""
        return self.khat + 2 * self.khat_error < self.khat_threshold

    @property
    def is_open(self) -> bool:
        """Whether more draws may well change the verdict, for all that the tail of these says.

        A narrow part of the target that few draws fall onto looks like a heavy tail until more see how even its weights
        are. And how much weights widen is known no better than the deviations.
        """
        correction = self.correction
        if self.verdict not in (Verdict.USABLE, Verdict.UNTRUSTED):
            return False
        if self._verdict_of_weights() is Verdict.USABLE:
            near = abs(correction.widening - _WIDER) < 2 * correction.deviation_error * correction.widening
            return near and self._may_be_narrow
        return correction.may_work and correction.largest < 2 * LARGEST

    @property
    def is_led_by_few(self) -> bool:
        """Whether a few draws weigh as much as all others: they say that there is more of their kind.

        k̂ and smoothed weights hardly see a single one.
        """
        return self.num_samples * self.ness < _LED

    @property
    def is_smoothed_away(self) -> bool:
        """Whether a few draws weigh so much that it is smoothed weights alone that look even.

        As of a t with three degrees of freedom: of 10,000 draws none may be heavy, and one of 40,000 may outweigh the
        rest. Smoothing makes it one of a tail, whose shape is not known well enough for that.
        """
        return self.num_samples * self.ness < _LEFT * self.correction.effective

    @property
    def is_narrow(self) -> bool:
        """Whether the weights widen it so much that there is likely more further out, where it has no draws.

        Weights stretch what draws there are. On eight schools, mean field ends 40% too narrow in log τ; the weights,
        light as they are (k̂ = 0.5), make half of that good.

        About a Gaussian that is w times wider k = 1 − 1 / w². Weights whose tail is far lighter move mass within q's
        reach, to either side of its middle say, and there is no more of it further out.
        """
        return self.correction.widening > _WIDER and self._may_be_narrow

    @property
    def _may_be_narrow(self) -> bool:
        return self.khat + 2 * self.khat_error >= _ENDS * (1 - 1 / self.correction.widening**2)

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
        if self.zero_share > _WORTH_A_WORD and self.verdict is not Verdict.DEGENERATE:
            text = f"{text} {_OFF.format(share=100 * self.zero_share)}"
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
_OFF = (
    "{share:.0f}% of its draws lie where the density is zero, and weigh nothing: if a variable ends there, give its "
    "support to Target.from_variables."
)
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
            zero_share=float(np.mean(np.isneginf(draws.log_p))),
            **run,
        )


def _unjudged(size: int, K: int, run: dict[str, Any]) -> Diagnostics:
    """The diagnostics of too few draws: nothing is known."""
    nothing = Correction(math.inf, math.inf, 0.0, math.inf, 1.0)
    nan = math.nan
    return Diagnostics(size, nan, nan, nan, K, 0.0, nan, nan, nan, nan, nan, 0.0, nothing, **run)
