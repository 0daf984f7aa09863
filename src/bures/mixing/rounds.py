"""The rounds of a mixture's fit: draw, move, grow, until its draws can be trusted or nothing helps."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bures.family.gaussian import Gaussian
from bures.family.mixture import GaussianMixture
from bures.mixing import bound
from bures.mixing.elbo import joined
from bures.mixing.further import FAR, FurtherRun, further_evaluations, has_elbo
from bures.mixing.growing import grow, is_far
from bures.mixing.moving import TAIL_SIZE, Moved, with_tails
from bures.mixing.pause import Mixing, Pause, Round, is_finite, ness_of
from bures.mixing.pool import Pool, draw_batch
from bures.mixing.seeking import Place, seek
from bures.outcome import Outcome
from bures.search import Budget

_DRAWS, _DRAWS_PER_DIMENSION, _DRAWN_SHARE = 300, 10, 0.1  # of a round: at the least, and of those in the pool
_POOL = 10_000  # draws that are kept
_STEPS = 3  # on the pool, in a round
# Of the deficit, and as a share of it: a component that adds less to nESS is not worth its cost.
_LEAST_GAIN, _LARGEST_LEAST_GAIN, _GAIN_SHARE = 0.002, 0.01, 0.1
_SMALLEST_SHARE = 3e-4
_MOST_COMPONENTS = 25
_POLISHED = 100  # steps before a check
_ENOUGH = 0.015  # deficit of fresh draws at which there is nothing left to gain: an nESS of 98.5%
_JUDGED = 2000  # latest fresh draws by which that is seen
# Fresh draws, fewer where there is little to gain, that must see no more than so many times the deficit of the pool.
# Where weights are even, those since the last new component count.
_CHECKED, _DOUBTED, _CONFIRMED, _EVEN = 1000, 5000, 1.2, 0.06
_DOUBTFUL_SHARE = 0.05  # of the draws, for each component that does not surely help
_SOUGHT, _PROMISE = 0.05, 0.5  # of what is left, for climbs to missed mass; and of the least gain, that is worth draws
_SOUGHT_EVERY, _SOUGHT_DRAWS = 3, 2  # rounds, and at each check; at most so many times the draws of the round
_MISSED, _MISSED_SHARE = 0.01, 0.2  # deficit at places just found, alone and of all, with which a fit is not at its end
_PATIENCE, _PATIENT_SHARE = 3000, 0.4  # draws without a new component after which none is expected, and of all draws
_WORTHWHILE, _LEAST_PATIENCE = 0.07, 0.2  # deficit that is worth all of that, and how much of it any is worth
_LEAST_EFFECTIVE = 5.0  # draws of the pool, below which its evidence is that of a few chance draws
_LEVEL, _LEVEL_ROUNDS = 0.2, 4  # of the deficit, and rounds in a quarter of the draws: to see that it gained no more
_SLOW_DIM = 30  # beyond which components gain less, and d × d work is most of a round
_LEAST_EVALUATIONS, _EVALUATIONS_PER_DIMENSION, _MOST_EVALUATIONS = 19_500, 5_000, 55_000
_LEAST_TAIL, _DOUBTFUL_DEFICIT = 0.03, 0.03  # of a mixture with a larger deficit than that
_TAIL_DIM, _LARGE_DEFICIT = 10, 0.1  # up to which dimension, and beyond it
_TAIL_GAIN = 0.003  # of the deficit, from which a tail is worth what it costs of the ELBO


def evaluations_for(dim: int) -> int:
    """How many evaluations a fit of a mixture may take, where it is not told: fewer where each round is slow."""
    most = max(_LEAST_EVALUATIONS, _MOST_EVALUATIONS * _SLOW_DIM // max(dim, _SLOW_DIM))
    return int(np.clip(_EVALUATIONS_PER_DIMENSION * dim, _LEAST_EVALUATIONS, most))


def first_pause(
    rng: np.random.Generator,
    start: GaussianMixture,
    places: Sequence[Gaussian],
    evaluations: int,
    max_components: int | None,
    goes_on: bool = False,
) -> Pause:
    """Before the first round; `places` are Gaussians of modes that may be worth a component.

    A fit that `goes_on` climbs the ELBO where weights still degenerate after it.
    """
    further = further_evaluations(start.dim, evaluations) if goes_on else 0
    counts = evaluations, 0, 0, False, 0.0, max_components or 0, further, 0, 0
    return Pause(start, None, (), tuple(places), (), (), *counts, dict(rng.bit_generator.state))


def fit_mixture(
    rng: np.random.Generator,
    evaluator: Any,
    begun: Pause,
    report: Callable[[Pause], Any] = lambda _: None,
) -> Mixing:
    """Rounds from a pause, by a generator of its kind; they end if `report` says so after one of them."""
    run = (FurtherRun if begun.by_elbo else _Run)(rng, evaluator, begun)
    pause, stopped, interrupted = begun, False, False
    try:
        with np.errstate(all="ignore"):
            while not run.ended and not stopped:
                run.round()
                run = (run.next() if run.ended else None) or run
                pause = run.pause()
                if run.failure is None:  # a round that fails is none
                    stopped = bool(report(pause)) and not run.ended
    except KeyboardInterrupt:
        if not pause.rounds:
            raise
        interrupted = True
    with np.errstate(all="ignore"):
        return Mixing(run.best(), pause.rounds, run.outcome, pause if stopped or interrupted else None)


def is_level(rounds: Sequence[Round]) -> bool:
    """Whether the last quarter of the draws saw surely more than five sixths of the deficit of the one before.

    On a target with an edge components come and go for ever, each of them of help to the draws it was chosen by.
    """
    deficits, draws = (np.array([getattr(each, name) for each in rounds]) for name in ("deficit", "draws"))
    done = np.cumsum(draws) / np.sum(draws)
    before, last = deficits[(done > 0.5) & (done <= 0.75)], deficits[done > 0.75]
    if min(before.size, last.size) < _LEVEL_ROUNDS:
        return False
    error = math.sqrt(before.var(ddof=1) / before.size + last.var(ddof=1) / last.size)
    return float(before.mean() - last.mean()) + 2 * error < _LEVEL * float(last.mean())


def _with_doubts(q: GaussianMixture, doubts: Sequence[Gaussian]) -> GaussianMixture:
    """The mixture and components in doubt, each with draws enough to say whether it helps."""
    means, chols = (np.stack(parts) for parts in zip(*((each.mean, each.chol) for each in doubts), strict=True))
    return joined(q, means, chols, _DOUBTFUL_SHARE * (q.num_components + len(doubts)))


class _Run:
    """One fit: its pool, its present mixture and the rounds so far."""

    def __init__(self, rng: np.random.Generator, evaluator: Any, begun: Pause):
        self.rng, self.evaluator = rng, evaluator
        rng.bit_generator.state = begun.generator
        self.q, self.doubtful, self.kept, self.places = begun.q, begun.doubtful, begun.kept, begun.places
        self.rounds, self.left, self.idle, self.drawn = list(begun.rounds), begun.left, begun.idle, begun.drawn
        self.checking, self.expected, self.begun = begun.checking, begun.expected, begun
        self.max_components = begun.max_components or _MOST_COMPONENTS
        self.pool = Pool(_POOL, begun.batches)
        self.settled, self.failure, self.flaw = False, None, None

    def pause(self) -> Pause:
        """What the next round depends on."""
        return self.begun._replace(
            q=self.q,
            doubtful=self.doubtful,
            kept=self.kept,
            batches=tuple(self.pool.batches),
            rounds=tuple(self.rounds),
            left=self.left,
            idle=self.idle,
            drawn=self.drawn,
            checking=self.checking,
            expected=self.expected,
            generator=dict(self.rng.bit_generator.state),
        )

    def next(self) -> FurtherRun | None:
        """The rounds by the ELBO that follow where weights still degenerate, and that is finite; none elsewhere."""
        left = self.begun.further - self.drawn
        if self.failure is not None or left <= 0 or not self.degenerates():
            return None
        q = self.best()
        q = GaussianMixture.unchecked(q.log_shares, q.means, q.chols, np.zeros_like(q.tail))
        if not has_elbo(q, self.pool):
            return None
        changes: dict[str, Any] = dict(q=q, doubtful=None, kept=(), batches=(), left=left, by_elbo=len(self.rounds))
        return FurtherRun(self.rng, self.evaluator, self.pause()._replace(**changes))

    def degenerates(self) -> bool:
        """Whether the latest fresh draws say so, or hardly any draw at all says what the evidence is.

        Then those see nothing of it, and no deficit either.
        """
        deficit = self.fresh_deficit(_CHECKED)
        return self.pool.effective < _LEAST_EFFECTIVE or (deficit is not None and deficit > FAR)

    @property
    def draws(self) -> int:
        """Of the next round."""
        least = max(_DRAWS, _DRAWS_PER_DIMENSION * self.evaluator.dim)
        if not self.rounds:
            return min(2 * least, self.left)
        if self.checking:
            even = self.rounds[-1].deficit < _EVEN  # rare, heavy draws matter where weights are uneven
            wanted = _CHECKED - self.idle if even else _DOUBTED
            return min(max(wanted, least), self.left)
        return min(max(least, int(_DRAWN_SHARE * len(self.pool))), self.left)

    @property
    def ended(self) -> bool:
        return self.settled or self.failure is not None or self.left <= 0

    @property
    def outcome(self) -> Outcome:
        return self.failure or self.flaw or (Outcome.CONVERGED if self.settled else Outcome.MAX_STEPS)

    def proposal(self) -> GaussianMixture:
        """What to draw from: with components that do not help surely, so that their places are looked at again."""
        return self.q if self.doubtful is None or self.checking else self.doubtful

    def in_doubt(self) -> tuple[Gaussian, ...]:
        """The components that only the proposal has."""
        return () if self.doubtful is None else self.doubtful.components[self.q.num_components :]

    def round(self) -> None:
        """Draw, look at the draws, move and grow; a round that fails leaves nothing behind."""
        n = self.draws
        batch = draw_batch(self.rng, self.proposal(), self.evaluator, n)
        self.left -= n
        self.failure = batch.failure
        if self.failure is not None:
            return
        self.pool.add(batch)
        seen = self.look(batch)
        self.rounds.append(seen)
        now = Moved(self.q, self.pool)
        for _ in range(_STEPS):
            now = now.stepped()
        now, helps, doubts = self.grown(now)
        if not is_finite(now.q):
            self.failure = Outcome.NON_FINITE
            return
        large = now.q.log_shares > math.log(_SMALLEST_SHARE)
        now = now if np.all(large) else now.without(large)
        places = () if helps else self.sought(now)
        doubts = [*doubts, *(place.gaussian for place in places)]
        missed = sum(place.deficit for place in places) > max(_MISSED, _MISSED_SHARE * seen.deficit)
        self.idle = 0 if helps else self.idle + n
        q = self.polished(now.q) if not helps and seen.deficit < _EVEN and now.q.dim > _TAIL_DIM else now.q
        self.q, self.doubtful = q, _with_doubts(q, doubts) if doubts else None
        self.kept = (*self.kept[-3:], self.q)
        self.drawn += n
        if self.checking:
            fresh = self.fresh_deficit(min(_CHECKED, self.idle))
            is_confirmed = fresh is not None and fresh < _CONFIRMED * self.expected + _ENOUGH
            self.settled = not helps and not missed and is_confirmed
            self.checking, self.idle = False, 0
        elif not missed and (self.is_enough() or self.idle >= self.patience()):
            self.checking, self.expected = True, self.deficit(self.q)
        if self.left <= 0 and not self.settled:
            self.settled = is_level(self.rounds) or self.deficit(self.best()) < _ENOUGH

    def polished(self, q: GaussianMixture) -> GaussianMixture:
        """After more steps on the pool: few rounds leave a mixture short of its best, and these cost no evaluation.

        Not where tails matter, in few dimensions or as far as the pool sees: few of its draws lie there, and such steps
        make tails too light.
        """
        if self.deficit(q) - self.deficit(with_tails(q, self.pool, 0.0, TAIL_SIZE)) > _TAIL_GAIN:
            return q
        now = Moved(q, self.pool)
        for _ in range(_POLISHED):
            now = now.stepped()
        return now.q

    def grown(self, now: Moved) -> tuple[Moved, bool, list[Gaussian]]:
        """With the component that helps most, whether that helps surely, and if not, the component in doubt."""
        if not self.has_room(now):
            return now, False, []
        growth = grow(self.rng, now, (*self.places, *self.in_doubt()), self.least_gain(now))
        if growth is None:
            return now, False, []
        return (growth.tried, True, []) if growth.helps else (now, False, [growth.tried.q.components[-1]])

    def has_room(self, now: Moved) -> bool:
        return now.q.num_components < self.max_components

    def sought(self, now: Moved) -> tuple[Place, ...]:
        """Places of mass that draws have not seen well, other than those just drawn from."""
        due = self.checking or len(self.rounds) % _SOUGHT_EVERY == 0
        if not due or not self.has_room(now) or is_far(now) or self.is_enough():
            return ()
        # Beside the tails that it would have: what they see is not missed.
        tailed = Moved(with_tails(now.q, self.pool, 0.0, TAIL_SIZE), self.pool)
        if np.mean(tailed.deficits()) < (_ENOUGH if now.q.dim <= _TAIL_DIM else _EVEN):
            return ()
        before, most = self.evaluator.count, min(_SOUGHT * self.left, _SOUGHT_DRAWS * self.rounds[-1].draws)
        budget = Budget(self.evaluator, int(most))
        places = seek(self.rng, tailed, budget, self.in_doubt(), _PROMISE * self.least_gain(now))
        self.left -= self.evaluator.count - before
        return places

    def patience(self) -> float:
        """Draws without a new component after which none is expected: the fewer, the less there is to gain."""
        worth = float(np.clip((self.rounds[-1].deficit / _WORTHWHILE) ** 2, _LEAST_PATIENCE, 1))
        return worth * max(_PATIENCE, _PATIENT_SHARE * self.drawn)

    def look(self, batch: Any) -> Round:
        """Fresh draws of the proposal, as those of q."""
        log_q = self.q.log_density(batch.z)
        drawn = np.exp(log_q - batch.proposal.log_density(batch.z))
        self.flaw = batch.flaw(drawn)
        w = bound.weights(batch.log_p, log_q, self.pool.log_evidence)
        value = self.pool.log_evidence + float(np.average(bound.of_tuples(w), weights=drawn))
        deficit = float(np.mean(bound.deficits(w, drawn, TAIL_SIZE)))
        return Round(value, ness_of(w, drawn), deficit, len(batch.z), float(self.q.min_eigenvalue()))

    def least_gain(self, now: Moved) -> float:
        """Of the deficit, by one component more."""
        return float(np.clip(_GAIN_SHARE * np.mean(now.deficits()), _LEAST_GAIN, _LARGEST_LEAST_GAIN))

    def is_enough(self) -> bool:
        """Whether the latest fresh draws see hardly any deficit."""
        deficit = self.fresh_deficit()
        return deficit is not None and deficit < _ENOUGH

    def fresh_deficit(self, enough: int = _JUDGED) -> float | None:
        """What the latest fresh draws see; None where they are too few."""
        seen, deficit = 0, 0.0
        for each in reversed(self.rounds):
            deficit, seen = deficit + each.draws * each.deficit, seen + each.draws
            if seen >= enough:
                return deficit / seen
        return None

    def best(self) -> GaussianMixture:
        """The best of the last mixtures by all of the pool, with as much of a tail as helps."""
        if not self.kept:
            return self.q
        tried = [(self.deficit(each), i, each) for i, each in enumerate(self.kept)]
        deficit, _, q = min(tried)
        # That a pool has seen nothing beyond the components is no proof that there is nothing, where they fit badly.
        # In more dimensions a tail is further from its Gaussian, and costs more of the ELBO.
        doubtful = deficit > (_DOUBTFUL_DEFICIT if q.dim <= _TAIL_DIM else _LARGE_DEFICIT)
        with_tail = with_tails(q, self.pool, _LEAST_TAIL if doubtful else 0.0, TAIL_SIZE)
        return with_tail if doubtful or deficit - self.deficit(with_tail) > _TAIL_GAIN else q

    def deficit(self, q: GaussianMixture) -> float:
        """Of a mixture, by all of the pool."""
        return float(np.mean(Moved(q, self.pool).deficits(TAIL_SIZE)))
