"""Workers that an elastic job lends to serving: brain is asked, the job shrinks or grows as by any plan.

What is answered is a total: an answer that comes twice, or after a restart, changes nothing more.
"""

from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.looking import look_every
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import conclude, decide
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.facts import facts_of
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.straggler import backups
from services.jobmaster.peers.planning import LendAsk, Owed

logger = get_logger(__name__)

LOOK_S = 1.0
MATTER = "loan"
ASKING = frozenset({Phase.RUNNING, Phase.SCALING})
LEAST_S, MOST_S = 1.0, 60.0
"""Between two asks, whatever brain says; it counts on no job that is silent for five minutes."""


class Lender:
    """Looks once a second at one job; asks when brain wants to be asked."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ask_at = 0.0

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        await look_every(self._run, LOOK_S, self.look, at="what it lends")

    async def look(self) -> None:
        """Ask, and do without what is asked for, or have back what is returned."""
        run, now = self._run, self._run.context.clock.now()
        if run.status.phase in (Phase.PENDING, Phase.SUSPENDED) and run.status.lent:
            run.update(lent=0)      # it holds nothing: what it begins with again is planned anew
        if now < self._ask_at or not self._may():
            return
        self._conclude()
        there = await run.context.cluster.processes(run.job_id)
        workers = {role.name for role in run.status.live("worker")}
        worker, declared = run.status.plan["worker"], run.spec.roles.worker
        # A user who has fixed the number lends nothing more; what was lent before is still to come back.
        pinned = plans.pin(run.spec, run.job.intent, "worker") is not None
        owed = await run.context.peers.brain.lend(LendAsk(
            facts=facts_of(run.spec, run.job), worker=worker, lent=run.status.lent, settled=self._is_settled(),
            least=worker.replicas + run.status.lent if pinned else max(1, declared.min),
            nodes=tuple(sorted({each.node for each in there if each.node and each.name in workers})),
        ))
        self._ask_at = now + min(max(owed.again_s, LEAST_S), MOST_S)
        if owed.workers != run.status.lent and self._may() and worker == run.status.plan["worker"]:
            await self._follow(owed)

    def _may(self) -> bool:
        """It trains, its number of workers is brain's to choose, and no change that went wrong is under way."""
        run, status = self._run, self._run.status
        declared, trial = run.spec.roles.worker, status.trial
        is_elastic = (
            run.spec.scaling is None and declared.max > declared.min
            and (status.lent or plans.pin(run.spec, run.job.intent, "worker") is None)
        )
        trains = run.record.phase == "open" and status.phase in ASKING and status.ending is None
        return bool(is_elastic and trains and "worker" in status.plan and (trial is None or not trial.taken_back))

    def _is_settled(self) -> bool:
        run = self._run
        wanted = plans.wanted(run.spec, run.job.intent, run.status.plan, "worker") + backups(run.status.slow)
        return len(run.status.live("worker")) <= wanted

    async def _follow(self, owed: Owed) -> None:
        run, status = self._run, self._run.status
        worker, declared = status.plan["worker"], run.spec.roles.worker
        more = owed.workers - status.lent
        after = min(max(worker.replicas - more, declared.min, 1), declared.max)
        # What the bounds leave of it: told as it is, so that brain sees what it did not get.
        lent = owed.workers if more < 0 else status.lent + worker.replicas - after
        if lent == status.lent:
            return
        verb = "lends" if more > 0 else "has back"
        decide(
            run, matter=MATTER, seen=owed.explanation,
            decision=f"worker {worker.replicas} → {after}: it {verb} {abs(more)}, {lent} are lent now",
        )
        run.update(plan={**status.plan, "worker": worker.model_copy(update={"replicas": after})}, lent=lent)
        await run.flush()
        run.wake()

    def _conclude(self) -> None:
        """What was decided last is done when the workers are as many as it says."""
        run = self._run
        last = next((line for line in reversed(run.status.timeline) if line.matter == MATTER), None)
        if last is not None and not last.done and self._is_settled():
            conclude(run, last.number, done=f"{len(run.status.live('worker'))} workers are there")

