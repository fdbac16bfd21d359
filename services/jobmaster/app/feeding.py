"""As many data executors as a job needs: brain is told how full their buffers are, and its answer carried out."""

from services.jobmaster.app.looking import look_every
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import conclude, decide
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.executors import Buffers, BufferWindow
from services.jobmaster.domain.facts import namespace_of
from services.jobmaster.domain.job import RolePlan
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.vitals import Beat
from services.jobmaster.peers.planning import FeedAsk

LOOK_S = 1.0
MATTER = "data"
TRAINING = (Phase.RUNNING, Phase.SCALING)


class Feeder:
    """Looks once a second at one job, whose user leaves the number of its executors to brain (`plan.is_fed`).

    While a plan is tried (`app/tuning.py`) nothing is changed here: neither could tell what the other has brought.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._window = BufferWindow()
        self._lacking_since: float | None = None
        self._rests_until = 0.0

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        await look_every(self._run, LOOK_S, self.look, at="its data executors")

    async def look(self) -> None:
        """Hear; when a window is whole, ask."""
        run, window_s = self._run, self._run.context.limits.feed_window_s
        if not window_s or not plans.is_fed(run.spec, run.job.intent):
            self._lacking_since = None
            self._conclude("overtaken: its number is not brain's any more")
            await self._follow_pin()
            return
        now = run.context.clock.now()
        beats, size = self._heard(), plans.size(run.spec, run.job.intent, run.status.plan, MATTER)
        self._window.hear(
            now, beats, run.vitals.of("worker"), cores=size.cpu, memory_bytes=size.memory_bytes, window_s=window_s
        )
        if beats:
            self._conclude(f"{len(beats)} run")
        await self._bear(now, is_whole=bool(beats) or not self._trains())
        seen = self._window.mean(window_s=window_s)
        if seen is not None and run.status.trial is None and now >= self._rests_until:
            self._window.clear()
            await self._ask(seen, size.model_copy(update={"replicas": len(beats)}))

    def _trains(self) -> bool:
        run = self._run
        if run.record.phase != "open" or run.status.phase not in TRAINING or run.status.ending is not None:
            return False
        is_drained = run.queue is not None and run.queue.drained
        return any(beat.samples for beat in run.vitals.of("worker")) and not is_drained

    def _heard(self) -> list[Beat]:
        """Of the executors, when all that are wanted serve a job that trains, and no others; else of none."""
        run = self._run
        if not self._trains():
            return []
        wanted = plans.wanted(run.spec, run.job.intent, run.status.plan, MATTER)
        live, beats = run.status.live(MATTER), run.vitals.of(MATTER)
        is_whole = len(live) == wanted == len(beats) and all(role.stage == "running" for role in live)
        return beats if is_whole else []

    async def _ask(self, seen: Buffers, now: RolePlan) -> None:
        run, role = self._run, self._run.spec.roles.data
        answer = await run.context.peers.brain.feed(FeedAsk(
            job_id=run.job_id, owner=run.spec.owner, namespace=namespace_of(run.spec, run.job), now=now,
            least=role.min, most=role.max,
            buffer_fill=seen.fill, cpu_idle=seen.cpu_idle, memory=seen.memory, samples_per_s=seen.samples_per_s,
            free=await run.context.cluster.capacity(run.job_id),
        ))
        is_as_it_was = plans.is_fed(run.spec, run.job.intent) and len(self._heard()) == now.replicas
        if answer.replicas == now.replicas or not is_as_it_was or run.status.trial is not None:
            return
        decide(
            run, matter=MATTER, seen=f"workers waited {1 - seen.fill:.0%} of the time; {answer.explanation}",
            decision=f"data {now.replicas} → {answer.replicas} ({answer.reason})",
        )
        await self._want(answer.replicas)

    async def _bear(self, now: float, *, is_whole: bool) -> None:
        """That some are lacking, but not for ever: those that do not start would keep the job from another count."""
        run, limits = self._run, self._run.context.limits
        if is_whole or run.status.trial is not None:        # a trial may replace them one by one
            self._lacking_since = None
            return
        self._lacking_since = now if self._lacking_since is None else self._lacking_since
        lacking_s = now - self._lacking_since
        there = sum(role.stage == "running" for role in run.status.live(MATTER))
        wanted = plans.wanted(run.spec, run.job.intent, run.status.plan, MATTER)
        least = max(there, run.spec.roles.data.min)
        if lacking_s < limits.feed_deadline_s:
            return
        seen = f"{there} of {wanted} run after {lacking_s:,.0f} s"
        self._conclude(seen)
        self._lacking_since, self._rests_until = None, now + limits.feed_rest_s
        if least < wanted:
            decide(run, matter=MATTER, seen=seen, decision=f"data {wanted} → {least}, as the others do not come up")
            await self._want(least)

    async def _follow_pin(self) -> None:
        """A count that a user has fixed is where brain goes on from when it is given back."""
        run = self._run
        fixed, planned = plans.pin(run.spec, run.job.intent, MATTER), run.status.plan.get(MATTER)
        if planned is not None and fixed and planned.replicas != fixed and not run.status.has_ended:
            await self._want(fixed)

    async def _want(self, count: int) -> None:
        run = self._run
        planned = run.status.plan.get(MATTER, RolePlan(replicas=count))
        run.update(plan={**run.status.plan, MATTER: planned.model_copy(update={"replicas": count})})
        self._window.clear()
        await run.flush()
        run.wake()

    def _conclude(self, done: str) -> None:
        """The decision under way, if there is one."""
        lines = [line for line in self._run.status.timeline if line.matter == MATTER]
        if lines and not lines[-1].done:
            conclude(self._run, lines[-1].number, done=done)
