"""Better plans of a job while it trains: brain is asked, one change is carried out at a time, measured, and kept or
taken back."""

from collections.abc import Mapping

from recmesh.runtime.errors import CallerError, MeshError
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.planning import bounds_of
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import conclude, decide
from services.jobmaster.domain import fleet
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.facts import facts_of
from services.jobmaster.domain.job import Outcome, RolePlan, Trial
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.tuning import SteadyRate, differences, fault_of, overhead_s
from services.jobmaster.peers.planning import Advice, PlanAsk

logger = get_logger(__name__)

LOOK_S = 1.0
ROLES = ("ps", "worker")
"""Whose plan brain may change while a job trains."""
WORTH_S = 60.0
"""A job that ends sooner is left as it is."""
MAX_UNTOLD = 16
"""Outcomes that are kept for brain while it is away."""


class Tuner:
    """Looks once a second at one job."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def watch(self) -> None:
        """Runs until it is cancelled. An interval of 0 asks for no better plan; a change under way is still judged."""
        run = self._run
        while True:
            await run.context.clock.sleep(LOOK_S)
            try:
                await self.look()
            except MeshError as error:
                logger.info("job %s: brain is asked, or told, again later: %s", run.job_id, error.message)
            except Exception:
                logger.exception("job %s: the look at its plan failed", run.job_id)

    async def look(self) -> None:
        """Hear; judge the change under way, or ask for another; tell brain what came of the last."""
        run, limits = self._run, self._run.context.limits
        now, is_steady = run.context.clock.now(), self._is_steady()
        run.steady.hear(now, run.vitals.of("worker"), is_steady=is_steady, limits=limits)
        trial = run.status.trial
        if run.status.has_ended or run.status.ending is not None or run.record.phase == "closed":
            if trial is not None:
                await self._let_go(trial, now, "the job ended first", plan=dict(trial.before))
        elif trial is not None:
            await self._judge(trial, now, is_steady=is_steady)
        elif self._may_ask(now) and not run.status.untold:
            await self._ask(now)
        if run.status.untold:
            await self._tell()

    def _is_steady(self) -> bool:
        """Everybody who is wanted is there and trains, slots lie where they belong, and there is work."""
        run, status, record = self._run, self._run.status, self._run.record
        if record.phase != "open" or status.phase is not Phase.RUNNING or status.relief is not None:
            return False
        if run.queue is None or run.queue.drained or fleet.ends_soon(run.job.intent, record):
            return False
        workers = status.live("worker")
        wanted = plans.wanted(run.spec, run.job.intent, status.plan, "worker")
        if len(workers) != wanted or any(role.stage != "running" for role in workers):
            return False
        beats = run.vitals.of("worker")
        if len(beats) != wanted or not all(beat.samples for beat in beats):
            return False
        count = fleet.wanted(run.spec, run.job.intent, status, record)
        if not fleet.is_settled(record, status, fleet.places(record, status, count=count)) or record.move is not None:
            return False
        sizes = {name: plans.size(run.spec, run.job.intent, status.plan, name) for name in ROLES}
        return all(
            role.size is None or (role.size.cpu, role.size.memory_bytes) == (
                sizes[role.role].cpu, sizes[role.role].memory_bytes
            )
            for role in (*workers, *status.live("ps"))
        )

    # -- asking ------------------------------------------------------------------------------------------

    def _may_ask(self, now: float) -> bool:
        run, limits = self._run, self._run.context.limits
        rate = run.steady.per_s(limits=limits)
        if not limits.plan_interval_s or not rate or any(worker.level for worker in run.status.slow):
            return False
        left = run.status.remaining
        return now - run.status.asked_plan_at >= limits.plan_interval_s and left / rate > WORTH_S

    async def _ask(self, now: float) -> None:
        run, rate = self._run, self._run.steady.per_s(limits=self._run.context.limits) or 0.0
        run.update(asked_plan_at=now)
        has = {name: self._has(name) for name in ROLES}
        capacity = await run.context.cluster.capacity()
        advice = await run.context.peers.brain.decide(
            PlanAsk(
                facts=facts_of(run.spec, run.job), bounds=bounds_of(run), now=self._as_raised(has), samples_per_s=rate,
                remaining=run.status.remaining, free_cpu=capacity.cpu,
                free_memory_bytes=capacity.memory_bytes,
            )
        )
        is_as_it_was = has == {name: self._has(name) for name in ROLES} and self._is_steady()
        if advice is not None and is_as_it_was and run.status.ending is None:
            await self._begin(advice, has, rate, now)

    def _has(self, role: str) -> RolePlan:
        return self._as_fixed(self._run.status.plan, role)

    def _as_fixed(self, plan: Mapping[str, RolePlan], role: str) -> RolePlan:
        """Of that plan, with what the user has fixed."""
        run = self._run
        size = plans.size(run.spec, run.job.intent, plan, role)
        return size.model_copy(update={"replicas": plans.wanted(run.spec, run.job.intent, plan, role)})

    def _as_raised(self, roles: Mapping[str, RolePlan]) -> dict[str, RolePlan]:
        """As brain is told it: a memory limit that was raised is what the role has."""
        raised = self._run.status.memory
        return {
            role: plan.model_copy(update={"memory_bytes": max(plan.memory_bytes, raised.get(role, 0))})
            if plan.memory_bytes else plan
            for role, plan in roles.items()
        }

    # -- executing ---------------------------------------------------------------------------------------

    async def _begin(self, advice: Advice, before: Mapping[str, RolePlan], rate: float, now: float) -> None:
        run, old = self._run, dict(self._run.status.plan)
        after = {**old, **before, **{role: planned for role, planned in advice.roles.items() if role in ROLES}}
        for role in ROLES:      # what the user has fixed since is not brain's to change
            after[role] = self._as_fixed(after, role)
        told = differences(before, {role: after[role] for role in ROLES if role in after})
        if not told:
            return
        number = decide(
            run, matter="plan", seen=f"{rate:,.0f} samples/s; {advice.explanation}",
            decision=f"{told} ({advice.planner}: {advice.reason})",
        )
        run.update(
            plan=after,
            trial=Trial(
                plan_id=advice.plan_id, decision=number, planner=advice.planner, why=f"{advice.planner}: {told}",
                before={**old, **before}, after=after, rate_before=rate, rate_expected=advice.samples_per_s, began=now,
                samples=run.status.samples, generation=run.record.gen,
            ),
        )
        run.steady = SteadyRate()
        await run.flush()
        run.wake()

    # -- measuring ---------------------------------------------------------------------------------------

    async def _judge(self, trial: Trial, now: float, *, is_steady: bool) -> None:
        run, limits = self._run, self._run.context.limits
        if not trial.taken_back and any(self._has(role) != trial.after[role] for role in ROLES):
            # A user, or the answer to a want of memory. That stays.
            await self._let_go(trial, now, "changed by others meanwhile")
            return
        is_late = now - max(trial.began, trial.settled, trial.taken_back_at) > limits.plan_deadline_s
        if trial.taken_back:
            if is_steady or is_late:
                self._conclude(trial, f"taken back: {trial.taken_back}")
                run.update(trial=None)
                await run.flush()
            return
        if not is_steady:
            if is_late:
                what = "measured" if trial.settled else "carried out"
                await self._take_back(trial, f"not {what} within {limits.plan_deadline_s:,.0f} s", rate=0.0)
            return
        if not trial.settled:
            is_same = run.record.gen == trial.generation      # what a rollback cost is not the change's price
            cost_s = overhead_s(trial, now=now, samples=run.status.samples) if is_same else 0.0
            trial = trial.model_copy(update={"settled": now, "overhead_s": cost_s})
            run.update(trial=trial)
            conclude(run, trial.decision, done=f"done after {now - trial.began:.0f} s")
            run.effects_due.pop(trial.decision, None)       # its effect is measured here, over a whole window
            await run.flush()
            return
        rate = run.steady.per_s(limits=limits)
        if rate is None:
            return
        fault = fault_of(trial, rate, limits=limits)
        if fault:
            await self._take_back(trial, fault, rate=rate)
            return
        effect = f"{rate:,.0f} samples/s, {trial.rate_before:,.0f} before, {trial.rate_expected:,.0f} expected"
        self._conclude(trial, effect)
        run.update(trial=None, asked_plan_at=now, untold=self._with(trial, now, verdict="kept", why=effect, rate=rate))
        await run.flush()

    async def _let_go(self, trial: Trial, now: float, why: str, **changes: object) -> None:
        """It cannot be measured any more, and nothing is taken back."""
        run = self._run
        self._conclude(trial, f"not measured: {why}")
        untold = self._with(trial, now, verdict="cancelled", why=why, rate=0.0)
        run.update(trial=None, asked_plan_at=now, untold=untold, **changes)
        await run.flush()

    def _conclude(self, trial: Trial, effect: str) -> None:
        """The timeline's own look some seconds after would say less."""
        self._run.effects_due.pop(trial.decision, None)
        conclude(self._run, trial.decision, effect=effect)

    async def _take_back(self, trial: Trial, why: str, *, rate: float) -> None:
        run, now = self._run, self._run.context.clock.now()
        logger.info("job %s: plan %s is taken back: %s", run.job_id, trial.plan_id, why)
        run.update(
            plan=dict(trial.before), trial=trial.model_copy(update={"taken_back": why, "taken_back_at": now}),
            asked_plan_at=now, untold=self._with(trial, now, verdict="taken back", why=why, rate=rate),
        )
        run.steady = SteadyRate()
        await run.flush()
        run.wake()

    # -- telling -----------------------------------------------------------------------------------------

    def _with(self, trial: Trial, now: float, *, verdict: str, why: str, rate: float) -> tuple[Outcome, ...]:
        """What brain is to be told, this change's outcome included: stored with it, so that neither is there alone."""
        outcome = Outcome(
            plan_id=trial.plan_id, job_id=self._run.job_id, at=now, verdict=verdict, why=why,
            before=self._as_raised({role: trial.before[role] for role in ROLES}),
            after=self._as_raised({role: trial.after[role] for role in ROLES}),
            rate_before=trial.rate_before, rate_expected=trial.rate_expected, rate_after=rate,
            overhead_s=trial.overhead_s,
        )
        return (*self._run.status.untold, outcome)[-MAX_UNTOLD:]

    async def _tell(self) -> None:
        """brain's experience, the oldest first. While it is away they wait, and so does the next ask: what it answers
        builds on them."""
        run = self._run
        for outcome in run.status.untold:
            try:
                await run.context.peers.brain.conclude(outcome)
            except CallerError as error:
                logger.warning("job %s: brain refuses an outcome: %s", run.job_id, error.message)
            run.update(untold=tuple(each for each in run.status.untold if each != outcome))
        await run.flush()
