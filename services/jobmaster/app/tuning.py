"""Better plans of a job while it trains: brain is asked, one change is carried out at a time, measured, and kept or
taken back."""

from collections.abc import Mapping

from recmesh.runtime.errors import CallerError
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.looking import look_every
from services.jobmaster.app.planning import bounds_of
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import conclude, decide
from services.jobmaster.domain import fleet
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.facts import facts_of
from services.jobmaster.domain.job import Outcome, RolePlan, Trial
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.straggler import backups
from services.jobmaster.domain.tuning import SteadyRate, differences, fault_of, overhead_s
from services.jobmaster.peers.planning import Advice, PlanAsk

logger = get_logger(__name__)

LOOK_S = 1.0
WORTH_S = 60.0
"""A job that ends sooner is left as it is."""
UNASKED_S = 60.0
"""A reason against another plan that lasts so long is logged."""
MAX_UNTOLD = 16
"""Outcomes that are kept for brain while it is away."""


class Tuner:
    """Looks once a second at one job."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._why, self._why_since, self._is_told = "", 0.0, False

    async def watch(self) -> None:
        """Runs until it is cancelled. An interval of 0 asks for no better plan; a change under way is still judged."""
        await look_every(self._run, LOOK_S, self.look, at="its plan")

    async def look(self) -> None:
        """Hear; judge the change under way, or ask for another; tell brain what came of the last."""
        run, limits = self._run, self._run.context.limits
        now, is_steady = run.context.clock.now(), not self._unsteady()
        run.steady.hear(now, run.vitals.of("worker"), is_steady=is_steady, limits=limits)
        trial = run.status.trial
        if run.status.has_ended or run.status.ending is not None or run.record.phase == "closed":
            if trial is not None:
                await self._let_go(trial, now, "the job ended first", plan=self._as_before(trial))
        elif trial is not None:
            self._tell_why(self._unsteady(), now)
            await self._judge(trial, now, is_steady=is_steady)
        elif not run.status.untold:
            why = self._why_not_ask(now)
            self._tell_why(why, now)
            if not why:
                await self._ask(now)
        if run.status.untold:
            await self._tell()

    def _unsteady(self) -> str:
        """Why the job's speed says nothing now. Empty: everybody who is wanted is there and trains, slots lie where
        they belong, and there is work."""
        run, status, record = self._run, self._run.status, self._run.record
        if record.phase != "open" or status.phase is not Phase.RUNNING:
            return f"the job is {status.phase}, its generation {record.phase}"
        if status.relief is not None:
            return f"PS {status.relief.ps} is relieved"
        if run.queue is None or run.queue.drained or fleet.ends_soon(run.job.intent, record):
            return "there is no work left"
        workers = status.live("worker")
        wanted = plans.wanted(run.spec, run.job.intent, status.plan, "worker") + backups(status.slow)
        running = sum(role.stage == "running" for role in workers)
        if len(workers) != wanted or running != wanted:
            return f"{running} of {wanted} workers run, {len(workers) - running} others are there"
        beats = run.vitals.of("worker")
        training = sum(beat.samples > 0 for beat in beats)
        if len(beats) != wanted or training != wanted:
            return f"{training} of {wanted} workers have trained something"
        executors = [line for line in status.timeline if line.matter == "data"]
        if executors and not executors[-1].done:
            return "data executors come or go"
        count = fleet.wanted(run.spec, run.job.intent, status, record)
        if not fleet.is_settled(record, status, fleet.places(record, status, count=count)) or record.move is not None:
            return "slots are moved"
        for role in (role for name in plans.planned_roles(run.spec) for role in status.live(name)):
            size = plans.size(run.spec, run.job.intent, status.plan, role.role)
            if role.size is not None and (role.size.cpu, role.size.memory_bytes) != (size.cpu, size.memory_bytes):
                return f"{role.role} {role.index} has another size than it should"
        return ""

    # -- asking ------------------------------------------------------------------------------------------

    def _why_not_ask(self, now: float) -> str:
        """Empty: brain may be asked. A worker that stays slow is how the job is; one that has just been answered to
        changes the job's speed for a while."""
        run, limits = self._run, self._run.context.limits
        answered_s = limits.plan_settle_s + limits.plan_window_s
        rate = run.steady.per_s(limits=limits)
        if run.spec.scaling is not None:
            return "its workers follow what comes in"
        if not limits.plan_interval_s:
            return "no better plan is asked for"
        if now - run.status.asked_plan_at < limits.plan_interval_s:
            return "it was asked a moment ago"
        if any(worker.level and now - worker.at < answered_s for worker in run.status.slow):
            return "a slow worker has just been answered to"
        if not rate:
            return self._unsteady() or "its speed is not known yet"
        if run.status.remaining / rate <= WORTH_S:
            return f"it ends within {WORTH_S:g} s"
        return ""

    def _tell_why(self, why: str, now: float) -> None:
        """Once for every reason that lasts."""
        if why != self._why:
            self._why, self._why_since, self._is_told = why, now, False
        if why and not self._is_told and now - self._why_since >= UNASKED_S:
            self._is_told = True
            logger.info("job %s: no other plan for %.0f s: %s", self._run.job_id, now - self._why_since, why)

    async def _ask(self, now: float) -> None:
        run, rate = self._run, self._run.steady.per_s(limits=self._run.context.limits) or 0.0
        run.update(asked_plan_at=now)
        has = self._all_has()
        advice = await run.context.peers.brain.decide(
            PlanAsk(
                facts=facts_of(run.spec, run.job), bounds=bounds_of(run), now=self._as_raised(has), samples_per_s=rate,
                remaining=run.status.remaining, free=await run.context.cluster.capacity(run.job_id),
            )
        )
        is_as_it_was = has == self._all_has() and not self._unsteady()
        if advice is not None and is_as_it_was and run.status.ending is None:
            await self._begin(advice, has, rate, now)

    def _all_has(self) -> dict[str, RolePlan]:
        """Of the roles that the job has: of workers and servers brain may change numbers and sizes, of others sizes."""
        has = {name: self._has(name) for name in plans.planned_roles(self._run.spec)}
        return {name: plan for name, plan in has.items() if plan.replicas}

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
        after = {**old, **before, **{role: planned for role, planned in advice.roles.items() if role in before}}
        for role in before:     # what the user has fixed since is not brain's to change
            after[role] = self._as_fixed(after, role)
        told = differences(before, {role: after[role] for role in before})
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
                before=dict(before), after={role: after[role] for role in before}, rate_before=rate,
                rate_expected=advice.samples_per_s, began=now,
                samples=run.status.samples, generation=run.record.gen,
            ),
        )
        run.steady = SteadyRate()
        await run.flush()
        run.wake()

    # -- measuring ---------------------------------------------------------------------------------------

    async def _judge(self, trial: Trial, now: float, *, is_steady: bool) -> None:
        run, limits = self._run, self._run.context.limits
        if not trial.taken_back and any(self._has(role) != trial.after[role] for role in trial.after):
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

    def _as_before(self, trial: Trial) -> dict[str, RolePlan]:
        """Of the roles that the trial is about."""
        plan = self._run.status.plan
        return {**plan, **trial.before}

    async def _take_back(self, trial: Trial, why: str, *, rate: float) -> None:
        run, now = self._run, self._run.context.clock.now()
        logger.info("job %s: plan %s is taken back: %s", run.job_id, trial.plan_id, why)
        run.update(
            plan=self._as_before(trial), trial=trial.model_copy(update={"taken_back": why, "taken_back_at": now}),
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
            before=self._as_raised(trial.before), after=self._as_raised(trial.after),
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
