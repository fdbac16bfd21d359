"""Room that training lends to serving: decided step by step, kept in a ledger that outlives the process.

Elastic jobs ask every few seconds what they are to do without (`lend`), gateways are told how many HNs the pool has
room for (`bounded`). Nothing else carries a loan out: the job shrinks as by any plan, and the gateway starts and ends
processes as by any decision.
"""

import asyncio
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from recmesh.plugins.planning import Resources
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import InvalidArgument, MeshError, Violation
from recmesh.runtime.telemetry import Metrics, get_logger
from services.brain.app.book import Book
from services.brain.domain.loans.interference import Act, Node, Offline, victim
from services.brain.domain.loans.ledger import COMING, HELD, Cause, Loan, State, sums
from services.brain.domain.loans.lenders import Lender, chosen, units_of, workers_for
from services.brain.domain.loans.planning import Rules, Verdict, decide
from services.brain.domain.loans.pool import LendAsk, Owed, Pool, Served, Standing, kept_back, outlook
from services.brain.domain.model import Ask
from services.brain.domain.serving import Decision, Kind, Reason
from services.brain.store import SqlStore

KIND = "hn"
"""Whose processes take the room."""
GONE_S = 300.0
"""A job that has not asked for so long is asked for nothing more. What it has given up it still does without: silence
is not an end, and serving may be in that room."""
PATIENCE = 5.0
"""Times the drain's time, at least `GONE_S`: a loan that drains for longer comes to nothing."""
STALE_S = 120.0
"""A gateway that has told nothing for so long needs nothing."""
MISSED = 3.0
"""Windows after which a gateway that tells nothing keeps no room from others: it was started anew, under a new name."""
IDLE_S = 60.0
"""Between two asks of a job where nothing is ever lent."""
MAX_JOBS, MAX_SERVED = 20_000, 10_000
MOST_OPEN = 10_000

logger = get_logger(__name__)
_metrics = Metrics("brain")
_units = _metrics.gauge("loan_units", "Units of room on loan from training to serving, by state", labels=["state"])
_moves = _metrics.counter("loan_moves", "Steps of loans, by the state that they came to", labels=["state"])
_late = _metrics.counter("loan_late_returns", "Loans that came back after their due time")
_renewals = _metrics.counter("loan_renewals", "Loans that were made longer in time for a notice")
_evictions = _metrics.counter("loan_evictions", "Workers that had to leave a node for its online requests")


class Lending:
    """`pool` None: nothing is lent. Whatever changes is in the ledger before anybody is told."""

    def __init__(
        self, store: SqlStore, pool: Pool | None, book: Book, *, clock: Clock, told: Callable[[Loan, float], None]
    ) -> None:
        self._store, self.pool, self._book, self._clock, self._told = store, pool, book, clock, told
        self._loans: dict[str, Loan] = {}
        """The open ones."""
        self._lenders: dict[str, tuple[float, LendAsk]] = {}
        self._served: dict[tuple[str, str], Served] = {}
        self._nodes: dict[str, Node] = {}
        self._changing = asyncio.Lock()
        self._began = clock.now()
        self.why = "nobody has asked yet"

    async def restore(self) -> None:
        """After a restart: loans go on where they were."""
        found = await asyncio.to_thread(self._store.loans, is_open=True, limit=MOST_OPEN)
        self._loans = {loan.loan_id: loan for loan in found}
        self._nodes = {loan.node: Node(evicted=loan.planned) for loan in reversed(found) if loan.node}
        self._began = self._clock.now()
        self._show()

    # -- what others tell --------------------------------------------------------------------------------

    async def lend(self, ask: LendAsk) -> Owed:
        """What the job is to do without, in all. What it has given up since it asked last is serving's from now on."""
        _check(ask)
        if self.pool is None:
            return Owed(0, "", IDLE_S)
        job_id, now = ask.lender.job_id, self._clock.now()
        self._lenders.pop(job_id, None)
        self._lenders[job_id] = now, ask
        while len(self._lenders) > MAX_JOBS:
            self._lenders.pop(next(iter(self._lenders)))
        async with self._changing:
            mine = self._of(job_id)
            owed = self._workers(ask.lender, mine)
            if owed is None:     # its workers changed so that they hold nothing of what is lent
                await self._put([loan.moved(State.CANCELLED, now) for loan in mine if loan.state in COMING])
                # Serving is in the room of those that left: as many stay away until it is out of all of it.
                owed = ask.lender.lent if self._of(job_id) else 0
                return Owed(owed, "its workers hold nothing of what serving needs", self.pool.step_s)
            moved = [loan.moved(State.DRAINING, now) for loan in mine if loan.state is State.PLANNED]
            if not moved and ask.settled and ask.lender.lent >= owed:
                moved = [loan.moved(State.LENT, now) for loan in mine if loan.state is State.DRAINING]
            await self._put(moved)
            mine = self._of(job_id)
        why = next((loan.why for loan in sorted(mine, key=lambda loan: -loan.planned)), "nothing of it is lent")
        return Owed(owed, why, self.pool.step_s)

    async def leave(self, job_id: str) -> None:
        """The job has ended or rests: it lends no more, and what it gave up stays with serving until that is over."""
        self._lenders.pop(job_id, None)
        async with self._changing:
            await self._put([loan.without_lender(self._clock.now()) for loan in self._of(job_id)])

    def saw(self, asker: str, model: str, told: Served) -> None:
        """What a gateway's model has and needs."""
        self._served.pop((asker, model), None)
        self._served[asker, model] = told
        while len(self._served) > MAX_SERVED:
            self._served.pop(next(iter(self._served)))
        self._keep_back()

    def bounded(self, asker: str, model: str, kind: Kind, decision: Decision) -> Decision:
        """Not more than the pool has room for beside other models' processes; at least the model's least."""
        if self.pool is None or kind.name != KIND:
            return decision
        others = sum(
            told.replicas for key, told in self._fresh().items()
            if key != (asker, model) and self._clock.now() - told.at <= MISSED * told.window_s
        )
        has = self._lent_for_serving
        room = max(kind.least, self.pool.rules.own + has - others)
        if decision.replicas <= room:
            return decision
        coming = sums(self._loans.values(), self._clock.now()).coming
        why = (
            f"{decision.replicas} are needed, there is room for {room}: {self.pool.rules.own} of serving's own, {has} "
            f"lent, {coming} on their way, {others} of other models; {decision.why}"
        )
        return replace(decision, replicas=room, reason=Reason.ROOM, why=why)

    @property
    def horizon_s(self) -> float:
        """So far ahead needs are looked at; 0: nothing is lent."""
        if self.pool is None:
            return 0.0
        rules = self.pool.rules
        rounds = math.ceil(rules.most / rules.most_draining) if rules.most_draining else 0
        return max(rules.round_trip_s, rounds * rules.drain_s + rules.start_s) + rules.slack_s

    # -- deciding ----------------------------------------------------------------------------------------

    async def step(self) -> float:
        """Look, decide, write down; answers when to look again."""
        if self.pool is None:
            return IDLE_S
        async with self._changing:
            now = self._clock.now()
            await self._forget_gone(now)
            served = self._fresh()
            if not served and now - self._began <= STALE_S:
                return self.pool.step_s        # after a restart gateways tell within seconds what they need
            await self._put(self._back(served, now))
            verdict = self._decided(served, now)
            self.why = verdict.why
            await self._put(self._carried_out(verdict, now))
            await self._put(self._calmed(served, now))
            self._keep_back()
        return self.pool.step_s

    def _decided(self, served: Mapping[tuple[str, str], Served], now: float) -> Verdict:
        assert self.pool is not None
        rules = self.pool.rules
        ours = [loan for loan in self._loans.values() if loan.cause is not Cause.INTERFERENCE]
        lent = self._lent_by_job()
        lenders = [ask.lender for _, ask in self._lenders.values()]
        available = sum(units_of(each, self.pool.unit, lent.get(each.job_id, 0)) for each in lenders)
        return decide(ours, outlook(served.values()), rules, available=available, now=now)

    def _carried_out(self, verdict: Verdict, now: float) -> list[Loan]:
        assert self.pool is not None
        lent = self._lent_by_job()
        lenders = [ask.lender for _, ask in self._lenders.values()]
        who = chosen(lenders, self.pool.unit, lent, verdict.lend)
        made = [
            Loan(uuid.uuid4().hex, job_id, due, now, cause=verdict.cause, why=verdict.why, since=now)
            for job_id, due in zip(who, verdict.dues, strict=False)
        ]
        made += [self._loans[name].moved(State.RETURNING, now) for name in verdict.give_back]
        made += [self._loans[name].moved(State.CANCELLED, now) for name in verdict.cancel]
        for name, due in verdict.renew:
            _renewals.inc()
            made.append(self._loans[name].renewed(due))
        return made

    def _back(self, served: Mapping[tuple[str, str], Served], now: float) -> list[Loan]:
        """Units that serving has left: what there is beyond its processes is nobody's any more."""
        assert self.pool is not None
        used = sum(told.replicas for told in served.values())
        ours = [loan for loan in self._loans.values() if loan.cause is not Cause.INTERFERENCE]
        returning = sorted((loan for loan in ours if loan.state is State.RETURNING), key=lambda loan: loan.since)
        lent = sum(loan.state is State.LENT for loan in ours)
        still = max(0, used - self.pool.rules.own - lent)
        return [loan.moved(State.RETURNED, now) for loan in returning[: max(0, len(returning) - still)]]

    def _calmed(self, served: Mapping[tuple[str, str], Served], now: float) -> list[Loan]:
        """Offline work leaves nodes where online requests are slow, and may come back when they are not."""
        assert self.pool is not None
        made: list[Loan] = []
        # Where no requests are served any more none are slow.
        worst = {loan.node: 0.0 for loan in self._loans.values() if loan.node}
        for told in served.values():
            if told.node:
                worst[told.node] = max(worst.get(told.node, 0.0), told.latency_s)
        lent = self._lent_by_job()
        for node, latency_s in worst.items():
            here = [
                Offline(
                    ask.lender.job_id, ask.lender.priority, ask.lender.worker.cpu,
                    units_of(ask.lender, self.pool.unit, lent.get(ask.lender.job_id, 0)) > 0,
                )
                for _, ask in self._lenders.values() if node in ask.lender.nodes
            ]
            act = self._nodes.setdefault(node, Node()).saw(latency_s, len(here), self.pool.tolerance, now)
            if act is Act.EVICT and (leaves := victim(here)) is not None:
                _evictions.inc()
                goal_s = self.pool.tolerance.goal_s
                why = f"online requests on {node} take {latency_s * 1e3:,.1f} ms, {goal_s * 1e3:,.1f} are the goal"
                made.append(Loan(
                    uuid.uuid4().hex, leaves.job_id, 0.0, now, cause=Cause.INTERFERENCE, why=why, since=now,
                    node=node,
                ))  # fmt: skip
            if act is Act.ADMIT:
                made += [
                    loan.moved(State.CANCELLED if loan.state is State.PLANNED else State.RETURNED, now)
                    for loan in self._loans.values() if loan.node == node
                ]
        return made

    async def _forget_gone(self, now: float) -> None:
        """Jobs of which nothing is heard any more: what they have not heard of comes to nothing; after a restart they
        have time to ask. What a job does not give up in time comes to nothing, too, and another may be asked. What
        serving was given is owed on: only `leave` says that a job is no more, and one that was away for long, or whose
        jobmaster was, would else have its workers back while serving is in their room."""
        for job_id, (heard, _) in list(self._lenders.items()):
            if now - heard > GONE_S:
                del self._lenders[job_id]
        assert self.pool is not None
        patience_s = max(GONE_S, PATIENCE * self.pool.rules.drain_s)
        stuck = [
            loan.moved(State.CANCELLED, now) for loan in self._loans.values()
            if loan.state is State.DRAINING and now - loan.since > patience_s
        ]
        await self._put(stuck)
        if now - self._began <= GONE_S:
            return
        await self._put([
            loan.moved(State.CANCELLED, now) for loan in self._loans.values()
            if loan.state is State.PLANNED and loan.lender not in self._lenders
        ])

    # -- the ledger --------------------------------------------------------------------------------------

    async def ledger(self, *, is_open: bool, limit: int) -> Sequence[Loan]:
        """The newest first."""
        return await asyncio.to_thread(self._store.loans, is_open=is_open, limit=limit)

    def standing(self) -> Standing:
        """Of the pool now."""
        served = self._fresh()
        rules = self.pool.rules if self.pool is not None else Rules(0, 0)
        seen = outlook(served.values())
        return Standing(
            rules.own, rules.most, sum(told.replicas for told in served.values()),
            max([seen.measured, *seen.needs[:1]]), self.why,
        )  # fmt: skip

    @property
    def open(self) -> Sequence[Loan]:
        """All that is not back."""
        return list(self._loans.values())

    async def _put(self, made: Sequence[Loan]) -> None:
        if not made:
            return
        now = self._clock.now()
        await asyncio.to_thread(self._store.put_loans, made)
        for loan in made:
            before = self._loans.pop(loan.loan_id, None)
            if loan.is_open:
                self._loans[loan.loan_id] = loan
            if before is None or before.state is not loan.state:
                _moves.labels(loan.state).inc()
                late = loan.state is State.RETURNED and loan.is_late(now)
                _late.inc(late)
                logger.info("loan %s of %s is %s: %s", loan.loan_id, loan.lender, loan.state, loan.why)
            try:
                self._told(loan, now)
            except MeshError as error:
                logger.warning("loan %s: its change is not told: %s", loan.loan_id, error.message)
        self._show()

    def _show(self) -> None:
        for state in State:
            if state is not State.RETURNED and state is not State.CANCELLED:
                _units.labels(state).set(sum(loan.state is state for loan in self._loans.values()))
        self._keep_back()

    def _keep_back(self) -> None:
        """From whoever else trains."""
        if self.pool is None:
            return
        held = sum(loan.state in HELD for loan in self._loans.values())
        count = kept_back(held, self.pool.rules, self._fresh().values())
        self._book.lent = Resources().plus(self.pool.unit, float(count))

    def _of(self, job_id: str) -> list[Loan]:
        """Open, and not given up for good."""
        return [loan for loan in self._loans.values() if loan.lender == job_id and not loan.released]

    def _workers(self, lender: Lender, mine: Iterable[Loan]) -> int | None:
        """That so many loans take; those that serving leaves only now are still out. None: they cannot be counted."""
        assert self.pool is not None
        try:
            return workers_for(len(list(mine)), lender.worker, self.pool.unit)
        except ValueError:
            return None

    def _lent_by_job(self) -> dict[str, int]:
        lent: dict[str, int] = {}
        for loan in self._loans.values():
            if not loan.released:
                lent[loan.lender] = lent.get(loan.lender, 0) + 1
        return lent

    @property
    def _lent_for_serving(self) -> int:
        return sum(
            loan.state is State.LENT and loan.cause is not Cause.INTERFERENCE for loan in self._loans.values()
        )

    def kept(self, ask: Ask) -> Ask:
        """A job that lends gets no more workers meanwhile than it has."""
        has = ask.now.get("worker")
        if has is None or not self._of(ask.job.job_id):
            return ask
        limits = tuple(
            replace(each, max=max(each.min, min(each.max, has.replicas))) if each.role == "worker" else each
            for each in ask.limits
        )
        return replace(ask, limits=limits)

    @property
    def now(self) -> float:
        """By the clock that loans are due by."""
        return self._clock.now()

    def _fresh(self) -> dict[tuple[str, str], Served]:
        now = self._clock.now()
        return {key: told for key, told in self._served.items() if now - told.at <= STALE_S}


def _check(ask: LendAsk) -> None:
    lender = ask.lender
    wrong = [
        Violation(name, "is missing or 0")
        for name, value in (("job.job_id", lender.job_id), ("worker.replicas", lender.workers)) if not value
    ]
    if lender.least > lender.workers + lender.lent:
        wrong.append(Violation("least", f"{lender.least} is more than the {lender.workers} that it has"))
    if wrong:
        raise InvalidArgument("the job cannot lend", violations=wrong)
