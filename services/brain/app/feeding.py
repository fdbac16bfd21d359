"""How many data executors jobs need: each tells how full their buffers are, and hears of another count."""

import math
from dataclasses import replace

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation
from recmesh.runtime.telemetry import Metrics
from services.brain.app.book import Book
from services.brain.domain.executors.horizontal import Executors, Rule, Signal, Tried, Verdict, decide, level
from services.brain.domain.model import FeedAsk
from services.brain.domain.views import UNLIMITED_CPU

MAX_TRIED = 32
"""Changes of a job that are remembered."""
MAX_LIVE = 20_000
"""Jobs whose changes are; those that asked longest ago go."""

_metrics = Metrics("brain")
_verdicts = _metrics.counter("executor_decisions", "Looks at data executors, by what was decided", labels=["reason"])


class Feeding:
    """What was tried is kept in memory: after a restart the first change waits for no cooldown."""

    def __init__(self, rule: Rule, book: Book, *, clock: Clock) -> None:
        self._rule, self._book, self._clock = rule, book, clock
        self._tried: dict[str, tuple[Tried, ...]] = {}

    async def decide(self, ask: FeedAsk) -> Verdict:
        """How many there should be now, and why. InvalidArgument names what is wrong."""
        _check(ask)
        async with self._book.choosing:
            return self._decide(ask, self._clock.now())

    def _decide(self, ask: FeedAsk, now: float) -> Verdict:
        if self._book.has_ended(ask.job_id):
            raise FailedPrecondition(f"job {ask.job_id!r} has ended")
        self._book.see(ask.job_id, self._account(ask), [ask.now], whole=False)
        signal = Signal(ask.buffer_fill, ask.cpu_idle, ask.memory, ask.samples_per_s)
        history = self._tried.pop(ask.job_id, ())
        if history and history[-1].wanted != ask.now.replicas:      # not carried out, or overtaken by a user
            history = history[:-1]
        history = _measured(history, signal, now, self._rule)
        found = decide(Executors(ask.now.replicas, ask.least, self._most(ask), signal, history), now, self._rule)
        if found.count != ask.now.replicas:
            tried = Tried(
                now, found.strategy, level(signal, self._rule), None, count=ask.now.replicas, wanted=found.count,
                rate_before=ask.samples_per_s,
            )  # fmt: skip
            history = (*history, tried)[-MAX_TRIED:]
            more = [replace(ask.now, replicas=found.count)]
            self._book.give(ask.job_id, self._account(ask), more, cluster=ask.free.cluster)
        self._tried[ask.job_id] = history
        while len(self._tried) > MAX_LIVE:
            self._tried.pop(next(iter(self._tried)))
        _verdicts.labels(found.reason.name).inc()
        return found

    def _account(self, ask: FeedAsk) -> str:
        return self._book.account(ask.owner, ask.namespace)

    def _most(self, ask: FeedAsk) -> int:
        """Within the limits, what is free, and its owner's quota less what waits to begin; what is there stays."""
        rooms = [self._book.room(ask.free, but=ask.job_id), self._book.to_grow(self._account(ask))]
        more = [
            room / one for each in rooms if each is not None
            for room, one in ((each.cpu, ask.now.cpu or UNLIMITED_CPU), (each.memory_bytes, ask.now.memory_bytes))
            if one > 0
        ]
        most = min([ask.now.replicas + max(0.0, each) for each in more], default=math.inf)
        return max(ask.least, math.floor(min(ask.most, most)))

    def forget(self, job_id: str) -> None:
        """The job has ended."""
        self._tried.pop(job_id, None)


def _measured(history: tuple[Tried, ...], signal: Signal, now: float, rule: Rule) -> tuple[Tried, ...]:
    """With what the last change has brought, once it had time to show."""
    if not history or history[-1].level_after is not None or now - history[-1].at < rule.grow_after_s:
        return history
    return (*history[:-1], replace(history[-1], level_after=level(signal, rule), rate_after=signal.samples_per_s))


def _check(ask: FeedAsk) -> None:
    violations = [
        Violation(name, f"{value} is not from 0 to 1")
        for name, value in (("buffer_fill", ask.buffer_fill), ("cpu_idle", ask.cpu_idle), ("memory", ask.memory))
        if not 0.0 <= value <= 1.0
    ]  # fmt: skip
    if not ask.job_id:
        violations.append(Violation("job_id", "is empty"))
    if not 0.0 <= ask.samples_per_s < math.inf:
        violations.append(Violation("samples_per_s", f"{ask.samples_per_s} is not a number from 0 up"))
    if ask.now.replicas < 1:
        violations.append(Violation("now.replicas", "is 0; without executors there is no buffer"))
    if not 1 <= ask.least <= ask.most:
        violations.append(Violation("min", f"{ask.least} is not from 1 to max, {ask.most}"))
    if violations:
        raise InvalidArgument("cannot decide how many data executors there should be", violations=violations)
