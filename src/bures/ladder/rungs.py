"""The rungs: from a fit, tempered chains or NUTS to draws with a verdict."""

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key
from scipy.stats import norm

from bures.diagnostics.diagnostics import Verdict
from bures.diagnostics.weighted import WeightedDraws, draw_points, relative_weights
from bures.draws import host_generator
from bures.engine import Evaluator
from bures.export import weight_statistics
from bures.fitting import Fit
from bures.ladder.base import Base
from bures.ladder.modes import Searched
from bures.ladder.nuts import CHAINS, NutsRun
from bures.ladder.result import Rung, choose_balanced
from bures.ladder.smc import Tempered
from bures.target import Target

_WANTED = 1000  # effective draws, at the least
_WANTED_SHARE = 0.4  # of the number of draws asked for
_TOLERANCE, _DOUBT = 0.1, 0.05  # a mean this many standard deviations off, anywhere, is to be as unlikely as this
_CHOSEN, _MORE = 0, 1  # with a rung's key: the streams that draws are chosen by, and that more come from
_MOST_DRAWS, _MOST_NUMBERS = 40_000, 2**23  # of a pool
_EVEN, _NEARLY_EVEN = 0.6, 0.2  # nESS below which another fit is worth its cost, and chains are
_LOST = 0.02  # share of the mass outside the draws that is not to be trusted


def wanted_draws(dim: int, num_draws: int) -> float:
    """Effective draws for every coordinate, so that none of the means is far off.

    >>> round(wanted_draws(2, 1000)), round(wanted_draws(200, 1000)), round(wanted_draws(2, 10_000))
    (1000, 1341, 4000)
    """
    quantile = float(norm.isf(_DOUBT / (2 * dim)))
    return max(_WANTED, (quantile / _TOLERANCE) ** 2, _WANTED_SHARE * num_draws)


# ---- Fits -----------------------------------------------------------------------------------------------------------


def pool_of(fit: Fit, key: Key[Array, ""], evaluator: Evaluator, num_draws: int) -> WeightedDraws:
    """The judgement's draws, and where these can be trusted but are few for the means, more of them."""
    found, pool = fit.diagnostics, fit.draws()
    size = pool.log_p.size
    more = int(min(wanted_draws(fit.target.dim, num_draws) / max(found.ness, 1e-9), _MOST_DRAWS) - size)
    if not found.trustworthy or more <= 0 or (size + more) * fit.target.dim > _MOST_NUMBERS:
        return pool
    return pool.joined(WeightedDraws.pool(lambda: host_generator(key, _MORE), fit.approximation, evaluator, more)[0])


def rung_of_fit(
    name: str, fit: Fit, pool: WeightedDraws, key: Key[Array, ""], num_draws: int, needs_even: bool
) -> Rung:
    """Importance-resampled draws of a fit that has been judged; where another fit may follow, it needs even weights."""
    found = fit.diagnostics
    rng = host_generator(key, _CHOSEN)
    usable = math.isfinite(float(np.max(pool.log_weights)))
    weights = relative_weights(pool.smoothed()) if usable else np.ones(pool.log_p.size)
    chosen = choose_balanced(rng, np.asarray(pool.z[:], np.float64), np.nan_to_num(weights), num_draws)
    statistics = {each: value[chosen][None] for each, value in weight_statistics(pool).items()} if usable else {}
    figures = f"importance-resampled from the {name} fit ({fit.approximation.label}, nESS {100 * found.ness:.0f}%)"
    # Weights make no draws where an approximation has none: what uneven ones miss of far tails they do not show.
    trusted = found.trustworthy and found.ness >= (_EVEN if needs_even else _NEARLY_EVEN)
    if trusted:
        text = f"Trust these draws, {figures}. {_about_search(found.coverage.reach)}"
    else:
        reason = _UNEVEN if found.trustworthy else _REASONS[found.verdict]
        text = f"Do not trust these draws, {figures}: {reason}."
    evidence = (found.log_evidence, found.log_evidence_mcse) if usable else (None, None)
    return Rung(name, fit.target, pool.z[chosen][None], text, trusted, statistics, *evidence)


def rung_unjudged(name: str, fit: Fit, key: Key[Array, ""], num_draws: int) -> Rung:
    """Plain draws of an approximation that there was no time to judge."""
    z = draw_points(host_generator(key, _CHOSEN), fit.approximation, num_draws)
    text = f"Do not trust these draws, plain ones of the {name} fit after {fit.num_steps} steps: nothing judged it."
    return Rung(name, fit.target, z[None], text)


def rung_of_start(target: Target, key: Key[Array, ""], num_draws: int) -> Rung:
    """Standard normal draws about the target's first point: for a budget that was spent before anything was fitted."""
    noise = host_generator(key, _CHOSEN).standard_normal((1, num_draws, target.dim))
    z = np.asarray(target.start()) + noise
    text = "Do not trust these draws, standard normal ones about the first point: nothing was fitted."
    return Rung("start", target, z, text)


# ---- Sequential Monte Carlo -----------------------------------------------------------------------------------------


def base_of(fit: Fit) -> tuple[Base, WeightedDraws | None]:
    """What SMC begins from, and draws of it that have been made: the judgement's, unless modes join in."""
    others = [mode.gaussian for mode in fit.modes] if fit.diagnostics.coverage.missed else []
    return Base(fit.approximation, others), None if others else fit.draws()


def rung_of_smc(
    target: Target, found: Tempered, key: Key[Array, ""], num_draws: int, wanted: float, searched: Searched | None
) -> Rung:
    """Draws of the chains at the end of the path."""
    precision = found.precision
    assert precision is not None
    flat, log_p = found.states.reshape(-1, target.dim), found.log_p.reshape(-1)
    chosen = choose_balanced(host_generator(key, _CHOSEN), flat, np.ones(len(flat)), num_draws)
    count = len(found.temperatures) - 1
    path = f"{count} temperature{'s' if count > 1 else ''}, {found.states.shape[1]} chains"
    figures = f"tempered SMC ({path}; means are known to {precision.mean_error:.2f} standard deviations)"
    passes = precision.is_enough(wanted) and searched is not None and searched.missed < _LOST
    if passes:
        assert searched is not None
        text = f"Trust these draws of {figures}. {_about_search(searched.reach)}"
    elif searched is not None and precision.is_enough(wanted):
        text = f"Do not trust these draws of {figures}: {_about_missed(searched)}."
    else:
        moving = "the chains still move" if precision.drift >= 1 else "the chains mix too slowly"
        text = f"Do not trust these draws of {figures}: {moving}, {precision.effective:.0f} effective of {wanted:.0f}."
    z = flat[chosen].astype(np.asarray(target.start()).dtype)[None]
    statistics = {"lp": log_p[chosen][None]}
    # Its log evidence is not given: chains that move too little at a temperature bias it by more than its error says.
    return Rung("SMC", target, z, text, passes, statistics)


# ---- NUTS -----------------------------------------------------------------------------------------------------------


def starts_of_chains(key: Key[Array, ""], z: np.ndarray, modes: Any) -> np.ndarray:
    """Scattered draws to start chains from; where several modes are known, from all of them in turn."""
    order = host_generator(key, _CHOSEN).permutation(len(z))
    if len(modes) < 2:
        return z[order[:CHAINS]]
    distances = np.stack([np.linalg.norm(mode.gaussian.whiten(z[order]), axis=1) for mode in modes])
    nearest = np.argmin(distances, axis=0)
    present = [order[nearest == i] for i in np.unique(nearest)]
    return z[[present[i % len(present)][i // len(present) % len(present[i % len(present)])] for i in range(CHAINS)]]


def rung_of_nuts(target: Target, run: NutsRun, wanted: float, searched: Searched | None) -> Rung:
    """The chains as they are."""
    chains = run.chains
    size = f"{chains.num_chains} chains of {chains.num_samples} draws"
    figures = f"NUTS ({size}; R̂ {run.rhat:.3f}, {run.effective:.0f} effective)"
    enough = run.is_enough(wanted)
    if enough and searched is not None and searched.missed < _LOST:
        text, passes = f"Trust these draws of {figures}. {_about_search(searched.reach)}", True
    elif enough and searched is not None:
        text, passes = f"Do not trust these draws of {figures}: {_about_missed(searched)}.", False
    else:
        several = searched is not None and len(searched.modes) > 1
        text, passes = f"Do not trust these draws of {figures}: {_why_not(run, wanted, several)}.", False
    statistics = {"lp": run.log_p, "diverging": run.diverging}
    return Rung("NUTS", target, np.asarray(chains.draws), text, passes, statistics)


def _why_not(run: NutsRun, wanted: float, several_modes: bool) -> str:
    if not run.rhat < 1.01 and several_modes:
        return "the chains sit in different modes, and cannot tell how heavy each is"
    if not run.rhat < 1.01:
        return "the chains do not agree"
    if run.effective >= wanted and run.tail_effective >= min(400, wanted):
        return f"{100 * run.divergent:.1f}% of the transitions diverge. Write the model in other variables"
    return f"{wanted:.0f} effective draws were wanted, and the limit was met"


# ---- Words ----------------------------------------------------------------------------------------------------------


def _about_search(reach: float) -> str:
    if not reach:
        return "Other modes were not searched for."
    return f"No other mode was found up to {reach:.0f} standard deviations away; a narrow one can be missed."


def _about_missed(searched: Searched) -> str:
    return f"they do not reach a mode with about {100 * searched.missed:.0f}% of the mass"


_UNEVEN = "the weights are uneven, and no further rung has shown that nothing is left out"
_REASONS = {
    Verdict.UNDECIDED: "whether weights correct them is undecided",
    Verdict.SEVERAL_MODES: "it is one of several modes",
    Verdict.MASS_OUTSIDE: "some of the mass lies further out",
    Verdict.HEAVY_TAILS: "the tails are heavier",
    Verdict.ROUNDED: "log p is too large for float32; call jax.config.update('jax_enable_x64', True) first",
    Verdict.UNTRUSTED: "the weights are too heavy-tailed to correct them",
    Verdict.DEGENERATE: "the weights are degenerate",
    Verdict.UNJUDGED: "the limits left too few evaluations to judge them",
}


def key_of(key: Key[Array, ""], number: int) -> Key[Array, ""]:
    """The key of a rung's part."""
    return jax.random.fold_in(key, number)
