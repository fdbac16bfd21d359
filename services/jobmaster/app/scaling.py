"""As many workers as what comes in needs: brain is told what is measured each step, and its answer carried out."""

from recmesh.runtime.errors import CallerError
from recmesh.spec.scaling import Scaling
from services.jobmaster.app.looking import look_every
from services.jobmaster.app.planning import bounds_of
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import conclude, decide
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.facts import facts_of
from services.jobmaster.domain.job import RolePlan
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.scaling import ChangeCost, Flow, FlowWindow, learned
from services.jobmaster.domain.straggler import backups
from services.jobmaster.domain.tuning import differences
from services.jobmaster.peers.planning import ScheduleAsk, Scheduled

LOOK_S = 1.0
MATTER = "demand"
TRAINING = (Phase.RUNNING, Phase.SCALING)
MOST_LEAD_S = 1800.0
"""Workers that take longer to come (a full cluster) are not asked for even earlier."""
LEAST_WINDOW_S = 15.0
"""Ends of topics are looked at every 5 s."""
SCALED = ("worker", "ps")
NO_ROOM = "NO_ROOM"
"""brain's reason: neither the cluster nor the owner's quota has room for as many as are needed."""


class Scaler:
    """Looks once a second at one job whose specification has `scaling`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._flow = FlowWindow()
        self._cost: ChangeCost | None = None
        self._asked_at = 0.0
        self._told = ""
        """What would have been done last, of a job that is not to be changed."""

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        await look_every(self._run, LOOK_S, self.look, at="what comes in")

    async def look(self) -> None:
        """Hear; see a change through; when a step has passed, ask."""
        run, rules = self._run, self._run.spec.scaling
        if rules is None:
            return
        if not self._trains():
            self._conclude("overtaken: the job does not train now")
            return
        now, queue = run.context.clock.now(), run.queue
        if queue is None or not queue.partitions:
            return                  # what comes in is not known
        window_s = _window_s(rules)
        beats = run.vitals.of("worker")
        self._flow.hear(
            now, arrived=queue.arrived, partitions=queue.partitions, workers=beats, window_s=window_s
        )
        self._follow(now)
        flow = self._flow.mean()
        if flow is not None and now - self._asked_at >= rules.step_s:
            self._asked_at = now
            await self._ask(flow, now)

    def _trains(self) -> bool:
        run = self._run
        is_drained = run.queue is not None and run.queue.drained
        return run.record.phase == "open" and run.status.phase in TRAINING and run.status.ending is None \
            and not is_drained and any(beat.samples for beat in run.vitals.of("worker"))

    def _follow(self, now: float) -> None:
        """The change under way: when it is done, what it has cost is known for the next plan."""
        run, cost = self._run, self._cost
        if cost is None:
            return
        grown = [at for (role, _), at in run.vitals.grown.items() if role == "worker"]
        cost.hear(now, has_work=self._has_work(), trained_at=max(grown, default=cost.began))
        if not self._is_settled():
            return
        took_s, count = now - cost.began, len(run.status.live("worker"))
        if cost.grows:
            run.update(lead_s=min(MOST_LEAD_S, learned(run.status.lead_s, took_s)))
        run.update(pause_s=learned(run.status.pause_s, cost.still_s))
        self._conclude(f"{count} run after {took_s:.0f} s, in {cost.still_s:.0f} s of which nobody trained")

    def _has_work(self) -> bool:
        queue = self._run.queue
        return queue is not None and queue.queued + queue.leased > 0

    def _is_settled(self) -> bool:
        """All workers that are wanted run, backups among them, and no others."""
        run = self._run
        wanted = self._has("worker").replicas + backups(run.status.slow)
        live, beats = run.status.live("worker"), run.vitals.of("worker")
        return len(live) == wanted == len(beats) and all(role.stage == "running" for role in live)

    async def _ask(self, flow: Flow, now: float) -> None:
        run, status, rules = self._run, self._run.status, self._run.spec.scaling
        if rules is None or run.queue is None:
            return
        has = {role: self._has(role) for role in SCALED}
        series = tuple(rules.series) or run.queue.series
        # What less workers, more workers or a backup can do is not what the wanted number can.
        is_measured = self._is_settled() and flow.workers == has["worker"].replicas
        is_late = self._has_work()      # else nobody could train what waits: the line waits for files of the window
        lag_s, backlog = (status.lag_s, status.lag_messages) if is_late else (0.0, 0)
        flow = flow.where(lag_s=lag_s, backlog=backlog, window_s=_window_s(rules))
        ask = ScheduleAsk(
            facts=facts_of(run.spec, run.job), bounds=[each for each in bounds_of(run) if each.role in SCALED],
            now=has, rules=rules, series=series, arrivals_per_s=flow.arrivals_per_s,
            trained_per_s=flow.trained_per_s, occupied=flow.occupied if is_measured else 0.0,
            lag_s=lag_s, backlog=backlog,
            since_s=max(0.0, now - (status.scaled_at or status.started)), pause_s=status.pause_s, lead_s=status.lead_s,
            free=await run.context.cluster.capacity(run.job_id),
        )
        try:
            answer = await run.context.peers.brain.schedule(ask)
        except CallerError as error:        # such as a planner that brain does not have: it will not get better
            why = "; ".join(map(str, error.violations)) or error.message
            run.note(f"its workers do not follow what comes in: {why}")
            raise
        is_as_it_was = has == {role: self._has(role) for role in SCALED}
        if is_as_it_was and self._trains():
            await self._carry_out(answer, has, flow, now)

    async def _carry_out(self, answer: Scheduled, has: dict[str, RolePlan], flow: Flow, now: float) -> None:
        run, status, rules = self._run, self._run.status, self._run.spec.scaling
        if answer.reason == NO_ROOM:
            run.note("more comes in than as many workers can train as there is room for: `recmesh explain` says which")
        after = {**has, **{role: plan for role, plan in answer.roles.items() if role in has}}
        told = differences(has, after)
        is_dry = rules is not None and rules.dry_run
        if not told or (is_dry and told == self._told):
            self._told = told
            return
        self._told = told
        seen = f"{flow.arrivals_per_s:,.0f}/s come, lag {status.lag_s:,.0f} s; {answer.explanation}"
        if is_dry:
            number = decide(run, matter=MATTER, seen=seen, decision=f"would be {told} ({answer.planner})")
            conclude(run, number, done="nothing is changed: scaling.dry_run")
            run.effects_due.pop(number, None)
            return
        self._conclude("overtaken by the next")
        decide(run, matter=MATTER, seen=seen, decision=f"{told} ({answer.planner}: {answer.reason})")
        run.update(plan={**status.plan, **after}, scaled_at=now)
        self._cost = ChangeCost(now, grows=after["worker"].replicas > has["worker"].replicas)
        self._flow.restart_workers()
        await run.flush()
        run.wake()

    def _has(self, role: str) -> RolePlan:
        run = self._run
        size = plans.size(run.spec, run.job.intent, run.status.plan, role)
        return size.model_copy(update={"replicas": plans.wanted(run.spec, run.job.intent, run.status.plan, role)})

    def _conclude(self, done: str) -> None:
        """The decision under way, if there is one."""
        self._cost = None
        lines = [line for line in self._run.status.timeline if line.matter == MATTER]
        if lines and not lines[-1].done:
            conclude(self._run, lines[-1].number, done=done)


def _window_s(rules: Scaling) -> float:
    return max(rules.step_s, LEAST_WINDOW_S)
