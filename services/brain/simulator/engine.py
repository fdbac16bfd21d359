"""The cluster's life as events, one after another.

A job comes, waits, starts (its processes need a while), trains at the rate that the truth has for its size, and ends
when its samples are trained. Every `interval_s` the planner is asked about the jobs that are due: those that changed,
or were looked at and left alone a while ago (after each such look the next comes twice as late, up to 32 intervals).
Waiting jobs are also looked at as soon as one comes or something is given back.

Invariants, which the tests hold: no node ever gives more than it has; samples trained = samples kept + samples rolled
back; a job that ended well kept exactly its samples; the same seed gives the same run.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import islice

import numpy as np

from recmesh.plugins.planning import Allocation, Decision, JobView, Reason, Resources
from services.brain.domain.model import TAKEN_BACK
from services.brain.domain.views import without_avoided
from services.brain.simulator.cluster import Cluster, Pods
from services.brain.simulator.costs import kinds
from services.brain.simulator.faults import Clock, Recovery
from services.brain.simulator.job import SPARE, Job
from services.brain.simulator.knowledge import Knowledge
from services.brain.simulator.ledger import Ledger, roll_back
from services.brain.simulator.policy import Policy
from services.brain.simulator.run import Phase, Run, Trial
from services.brain.simulator.scenario import Outcome, Settings
from services.brain.simulator.trials import judged
from services.brain.simulator.truth import Truth, Use, rate_of

QUEUE_WINDOW = 16
"""Waiting jobs that are looked at together, the first that came first."""
LONGEST_IDLE = 5
"""Powers of two: a job that is left alone is looked at every 32 intervals."""
AT_REST = (Reason.KEEP, Reason.TOO_SMALL_A_GAIN)
"""Left alone because nothing is better, and not for want of room or of knowledge."""
SETTLED_S = 60.0
"""A job that changed has shown enough after two heartbeats: changes of one job follow each other by one interval."""


class What(IntEnum):
    """Kinds of events; of several at one time the lowest comes first."""

    FINISH = 0
    READY = 1
    DEATH = 2
    SLOW = 3
    WELL = 4
    ARRIVE = 5
    DECIDE = 6
    NODE_FAILS = 7
    NODE_IS_BACK = 8


def simulate(
    jobs: Sequence[Job], truth: Truth, policy: Policy, settings: Settings, *, tell: Callable[[int], None] | None = None
) -> Outcome:
    """Runs all jobs to their end, or until nothing can happen any more. `tell` hears how many jobs have ended."""
    return _Simulation(jobs, truth, policy, settings, tell).run()


class _Simulation:
    def __init__(
        self, jobs: Sequence[Job], truth: Truth, policy: Policy, settings: Settings,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        self.tell = tell
        self.truth, self.policy, self.settings = truth, policy, settings
        self.cluster = Cluster(settings.nodes)
        self.runs = [self._run(job, index) for index, job in enumerate(jobs)]
        self.events: list[tuple[float, int, int, int, int]] = []
        self.order = 0
        self.queue: dict[int, Run] = {}
        self.due: list[tuple[float, int]] = []
        self.active = 0
        self.coming = len(self.runs)
        self.now = 0.0
        self.deciding_at = math.inf
        self.known = Knowledge(truth, policy, settings.noise_sd)
        self.planner_rng = np.random.default_rng([settings.seed, 2])
        self.cost_rng = np.random.default_rng([settings.seed, 3])
        self.rates: dict[tuple[str, Allocation], tuple[float, Use]] = {}
        self.ledger = Ledger()
        self.node_rngs = [np.random.default_rng([settings.seed, 4, node]) for node in range(len(settings.nodes))]
        """Each draws when its node fails."""
        self.decisions = 0
        self.reasons: dict[str, int] = {}

    def _run(self, job: Job, index: int) -> Run:
        faults, seed = self.settings.faults, self.settings.seed
        fate = np.random.default_rng([seed, 0, index])
        return Run(
            job=job, index=index, deaths=Clock(faults.death_hazard, fate), slowness=Clock(faults.slow_hazard, fate),
            fate=fate, noise=np.random.default_rng([seed, 1, index]), wanted=job.asked,
        )  # fmt: skip

    # --- the loop

    def run(self) -> Outcome:
        """All events in order."""
        for run in self.runs:
            self._foretell(run.job.arrival_s, What.ARRIVE, run, 0)
        for node in range(len(self.settings.nodes)):
            self._foretell_failure(node)
        act = {
            What.ARRIVE: self._arrive, What.READY: self._ready, What.FINISH: self._finish, What.DEATH: self._death,
            What.SLOW: self._slow, What.WELL: self._well,
        }  # fmt: skip
        while self.events:
            at, what, _, index, stamp = heapq.heappop(self.events)
            if at > self.settings.until_s:
                self.now = self.settings.until_s
                break
            self.now = at
            if self.tell is not None and what == What.FINISH:
                self.tell(len(self.runs) - self.coming - self.active - len(self.queue))
            if what == What.DECIDE:
                if at == self.deciding_at:
                    self._decide()
            elif what == What.NODE_FAILS:
                self._node_fails(index)
            elif what == What.NODE_IS_BACK:
                self._node_is_back(index)
            else:
                act[What(what)](self.runs[index], stamp)
        living = [run for run in self.runs if run.phase in (Phase.STARTING, Phase.RUNNING)]
        for run in living:
            self.ledger.advance(run, self.now)
        ended_at = self.now if living else max((end for _, end, _, _ in self.ledger.held), default=0.0)
        return Outcome(
            self.policy.name, tuple(self.runs), ended_at, self.cluster.total, tuple(self.ledger.held),
            tuple(self.ledger.used), self.decisions, self.reasons,
        )  # fmt: skip

    def _foretell(self, at: float, what: What, run: Run, stamp: int) -> None:
        self.order += 1
        heapq.heappush(self.events, (at, int(what), self.order, run.index, stamp))

    def _tick(self, at: float) -> float:
        """The first whole number of intervals from `at` on."""
        return math.ceil(at / self.settings.interval_s - 1e-6) * self.settings.interval_s

    def _decide_at(self, tick: float) -> None:
        """There is a decision at that tick; one that was foretold for a later one is made anew then."""
        if tick < self.deciding_at:
            self.deciding_at = tick
            self.order += 1
            heapq.heappush(self.events, (tick, int(What.DECIDE), self.order, -1, 0))

    # --- what happens to a job

    def _arrive(self, run: Run, _: int) -> None:
        self.coming -= 1
        self.queue[run.index] = run
        run.updated = self.now
        run.wanted = self.known.first_plan(run)
        self._admit()

    def _start(self, run: Run, allocation: Allocation) -> bool:
        workers, servers = _pods(allocation)
        if not self.cluster.add_all([(servers, allocation.ps), (workers, allocation.workers)]):
            return False
        del self.queue[run.index]
        self.active += 1
        run.worker_pods, run.ps_pods, run.allocation = workers, servers, allocation
        run.first = run.first or allocation
        run.phase, run.updated, run.change_id = Phase.STARTING, self.now, run.change_id + 1
        if math.isnan(run.started):
            run.started = self.now
        self._foretell(self.now + self.policy.costs.starting_s(self.cost_rng), What.READY, run, run.change_id)
        return True

    def _change(self, run: Run, target: Allocation) -> bool:
        """Starts what is added; what goes stays until then. Workers and servers of another size are replaced."""
        now = run.allocation
        assert now is not None
        self.ledger.advance(run, self.now)
        workers, servers = _pods(target)
        same_workers, same_servers = workers.size == run.worker_pods.size, servers.size == run.ps_pods.size
        more_workers = target.workers - (now.workers if same_workers else 0)
        more_servers = target.ps - (now.ps if same_servers else 0)
        to_workers = run.worker_pods if same_workers else workers
        to_servers = run.ps_pods if same_servers else servers
        if not self.cluster.add_all([(to_servers, more_servers), (to_workers, more_workers)]):
            return False
        if not same_workers:
            run.retiring.append((run.worker_pods, now.workers))
            run.worker_pods = workers
        elif more_workers < 0:
            run.retiring.append((run.worker_pods, -more_workers))
        if not same_servers:
            run.retiring.append((run.ps_pods, now.ps))
            run.ps_pods = servers
        elif more_servers < 0:
            run.retiring.append((run.ps_pods, -more_servers))
        run.target, run.change_id = target, run.change_id + 1
        starts = max(more_workers, more_servers) > 0 and self.policy.costs.stop_s is None
        wait = self.policy.costs.starting_s(self.cost_rng) if starts else 0.0
        self._foretell(self.now + wait, What.READY, run, run.change_id)
        self._replan(run)
        return True

    def _ready(self, run: Run, stamp: int) -> None:
        """New processes can train: the first ones begin, or the job changes over to its new size."""
        if stamp != run.change_id:
            return
        if run.phase is Phase.STARTING:
            run.phase = Phase.RUNNING
            self.ledger.advance(run, self.now)
            self._train_from(run, self.now)
            run.saved_from = self.now
        else:
            assert run.target is not None and run.allocation is not None
            self.ledger.advance(run, self.now)
            changes = kinds(run.allocation, run.target)
            pause = self.policy.costs.pause_s(changes, self.cost_rng)
            self.known.costs.note(changes, pause)
            for pods, count in run.retiring:
                self.cluster.remove(pods, count)
            run.retiring.clear()
            run.allocation, run.target = run.target, None
            run.changes += 1
            run.paused_s += pause
            self._train_from(run, max(self.now, run.train_from) + pause)
        assert run.allocation is not None
        run.rate, run.use = self._speed(run.job, run.allocation)
        run.steps.append((run.train_from, run.allocation))
        run.idle = 0
        self._look_at(run, run.train_from + SETTLED_S)
        self._replan(run)
        self._admit()

    def _finish(self, run: Run, stamp: int) -> None:
        if stamp != run.epoch:
            return
        self.ledger.advance(run, self.now)
        run.trained += run.remaining  # what rounding left
        run.done = run.job.samples
        self._end(run, Phase.SUCCEEDED)
        self.known.remember(run, self.now)
        self._admit()

    def _end(self, run: Run, phase: Phase) -> None:
        self._give_back(run)
        run.phase, run.ended = phase, self.now

    def _give_back(self, run: Run) -> None:
        """Nothing that was foretold of it happens any more."""
        for pods, count in [*run.retiring, (run.worker_pods, run.worker_pods.count), (run.ps_pods, run.ps_pods.count)]:
            self.cluster.remove(pods, min(count, pods.count))
        run.retiring.clear()
        run.epoch += 1
        run.change_id += 1
        self.active -= 1

    # --- faults

    def _death(self, run: Run, stamp: int) -> None:
        """A process died; which one is drawn evenly."""
        if stamp != run.epoch or run.allocation is None:
            return
        self.ledger.advance(run, self.now)
        run.deaths.again()
        run.faults += 1
        is_worker = run.fate.random() * run.processes < run.worker_pods.count
        start_s = self.policy.costs.starting_s(run.fate)
        if self._gives_up(run):
            self._admit()
            return
        if run.phase is Phase.RUNNING:
            self._recover(run, start_s, workers=int(is_worker), servers=int(not is_worker))
        self._replan(run)

    def _gives_up(self, run: Run) -> bool:
        """Whether the fault that it has just met is its end."""
        faults = self.settings.faults
        again = faults.recovery is Recovery.ELASTIC or (
            faults.recovery is Recovery.RESTART and run.restarts < faults.max_restarts
        )
        if not again:
            self._end(run, Phase.FAILED)
        return not again

    def _recover(self, run: Run, start_s: float, *, workers: int, servers: int) -> None:
        """So many are replaced: while the other workers go on, or else all from the last checkpoint."""
        assert run.allocation is not None
        faults = self.settings.faults
        elastic = faults.recovery is Recovery.ELASTIC
        if elastic and not servers:
            pause = start_s * workers / run.allocation.workers  # the others go on
        else:
            pause = start_s + self.policy.costs.restore_s
            roll_back(run, self.now, faults.checkpoint_every_s)
            run.restarts += not elastic
        run.paused_s += pause
        self._train_from(run, max(self.now, run.train_from) + pause)

    def _foretell_failure(self, node: int) -> None:
        if self.settings.faults.node_hazard:
            due_in = float(self.node_rngs[node].exponential()) / self.settings.faults.node_hazard
            self._foretell_node(self.now + due_in, What.NODE_FAILS, node)

    def _foretell_node(self, at: float, what: What, node: int) -> None:
        self.order += 1
        heapq.heappush(self.events, (at, int(what), self.order, node, 0))

    def _node_fails(self, node: int) -> None:
        """All processes on it die at once, and are replaced on other nodes; a job that finds no room there waits."""
        if not (self.active or self.coming or self.cluster.down):
            return  # nothing runs, comes, or will find room: the end
        hit: list[tuple[Run, list[tuple[Pods, int]]]] = []
        for run in self.runs:
            if run.phase not in (Phase.STARTING, Phase.RUNNING):
                continue
            groups = {id(pods): pods for pods in (run.worker_pods, run.ps_pods, *(pods for pods, _ in run.retiring))}
            if not any(node in pods.where for pods in groups.values()):
                continue
            self.ledger.advance(run, self.now)      # they were held until now
            hit.append((run, [(pods, self.cluster.lose(pods, node)) for pods in groups.values()]))
        self.cluster.fail(node)
        self._foretell_node(self.now + self.settings.faults.repair_s, What.NODE_IS_BACK, node)
        for run, lost in hit:
            run.faults += 1
            if self._gives_up(run):
                continue
            if not self.cluster.add_all(lost):
                self._wait_again(run)
                continue
            assert run.allocation is not None
            a_worker, a_server = _pods(run.allocation)      # what trains; what a change has just started is not missed
            workers = sum(many for pods, many in lost if pods is not run.ps_pods and pods.size == a_worker.size)
            servers = sum(many for pods, many in lost if pods is not run.worker_pods and pods.size == a_server.size)
            if run.phase is Phase.RUNNING and workers + servers:
                start_s = self.policy.costs.starting_s(run.fate)
                self._recover(run, start_s, workers=min(workers, run.allocation.workers), servers=servers)
            self._replan(run)
        self._admit()

    def _wait_again(self, run: Run) -> None:
        """It gives back the rest, and begins from its last checkpoint when there is room for what it had."""
        assert run.allocation is not None
        if run.phase is Phase.RUNNING:
            roll_back(run, self.now, self.settings.faults.checkpoint_every_s)
            run.restarts += self.settings.faults.recovery is Recovery.RESTART
        self._give_back(run)
        run.wanted, run.allocation, run.target, run.trial = run.allocation, None, None, None
        run.phase, run.refused_at, run.rate, run.measured = Phase.QUEUED, -1, 0.0, 0.0
        run.slow, run.train_from, run.due_at = 1.0, math.inf, -1.0
        run.steady = False
        run.requeued += 1
        self.queue[run.index] = run

    def _node_is_back(self, node: int) -> None:
        self.cluster.repair(node)
        self._foretell_failure(node)
        self._admit()

    def _slow(self, run: Run, stamp: int) -> None:
        if stamp != run.epoch or run.allocation is None:
            return
        faults = self.settings.faults
        self.ledger.advance(run, self.now)
        run.slowness.again()
        speed = float(run.fate.uniform(*faults.slow_to))
        if run.slow == 1.0 and run.phase is Phase.RUNNING:
            workers = run.allocation.workers
            run.slow = (workers - 1 + speed) / workers  # shards go to those who are free
            self._foretell(self.now + faults.slow_for_s, What.WELL, run, 0)
        self._replan(run)

    def _well(self, run: Run, _: int) -> None:
        if run.phase is Phase.RUNNING:
            self.ledger.advance(run, self.now)
            run.slow = 1.0
            self._replan(run)

    # --- progress

    def _train_from(self, run: Run, at: float) -> None:
        run.train_from = at
        run.seen_at = at

    def _replan(self, run: Run) -> None:
        """Foretells its end and its next faults anew; what was foretold before no longer happens."""
        run.epoch += 1
        ends = math.inf
        if run.phase is Phase.RUNNING and run.rate:
            ends = max(self.now, run.train_from) + run.remaining / (run.rate * run.slow)
            self._foretell(ends, What.FINISH, run, run.epoch)
        for clock, what, count in (
            (run.deaths, What.DEATH, run.processes), (run.slowness, What.SLOW, run.worker_pods.count)
        ):  # fmt: skip
            at = self.now + clock.due_in(count)
            if at < ends and math.isfinite(at):
                self._foretell(at, what, run, run.epoch)

    def _speed(self, job: Job, allocation: Allocation) -> tuple[float, Use]:
        key = (job.facts.model, allocation)
        if key not in self.rates:
            rate = rate_of(self.truth, job.facts.model, allocation)
            self.rates[key] = (rate, self.truth.use(job.facts.model, allocation))
        rate, use = self.rates[key]
        every_s = self.settings.faults.checkpoint_every_s
        return rate * job.speed * every_s / (every_s + self.policy.costs.checkpoint_s), use

    # --- decisions

    def _look_at(self, run: Run, at: float) -> None:
        run.due_at = self._tick(at)
        heapq.heappush(self.due, (run.due_at, run.index))
        self._decide_at(run.due_at)

    def _decide(self) -> None:
        """Looks at all running jobs that are due, and at those that wait."""
        self.deciding_at = math.inf
        looked: list[Run] = []
        while self.due and self.due[0][0] <= self.now:
            at, index = heapq.heappop(self.due)
            run = self.runs[index]
            if run.phase is Phase.RUNNING and run.due_at == at and run.target is None:
                self.ledger.advance(run, self.now)
                run.measured = self.known.measure(run, self.now)
                if not self._is_taken_back(run):
                    looked.append(run)
        self._plan(looked)
        if self.due:
            self._decide_at(self.due[0][0])
        if self.queue and (self.active or self.coming or self.cluster.down):  # else nothing will ever be given back
            self._decide_at(self._tick(self.now + self.settings.interval_s))

    def _is_taken_back(self, run: Run) -> bool:
        """Its last change is judged; what made it slower is undone, where there is still room."""
        change = judged(run, self.now)
        if change is None or run.trial is None:
            return False
        before, run.trial = run.trial.before, None
        run.tried.append(change)
        if change.verdict != TAKEN_BACK or not self._change(run, before):
            return False
        run.taken_back += 1
        return True

    def _admit(self) -> None:
        """Looks at jobs that wait, until none of them finds room."""
        while self._plan([]):
            pass
        if self.queue:
            self._decide_at(self._tick(self.now + self.settings.interval_s))

    def _plan(self, running: Sequence[Run]) -> int:
        """Snapshot, propose, select, act. Returns how many of those that wait have started."""
        hopeful = (run for run in self.queue.values() if run.refused_at != self.cluster.freed)
        waiting = list(islice(hopeful, QUEUE_WINDOW))
        runs = [*running, *waiting]
        if not runs:
            return 0
        free = self.cluster.free
        cluster = replace(self.settings.view, now=self.now, free=free, interval_s=self.settings.interval_s)
        proposals = [self.policy.planner.propose(self._view(run), cluster, self.planner_rng) for run in runs]
        proposals = [
            without_avoided(each, run.tried, now=self.now) if run.tried else each
            for run, each in zip(runs, proposals, strict=True)
        ]
        for run, proposal in zip(runs, proposals, strict=True):
            run.front = tuple(candidate.allocation for candidate in proposal.candidates)
        decisions = self.policy.planner.select(proposals, cluster, self.planner_rng)
        self.decisions += len(decisions)
        return self._act(runs, decisions)

    def _act(self, runs: Sequence[Run], decisions: Sequence[Decision]) -> int:
        """What gives back comes first, so that what takes finds room."""
        started = 0
        pairs = sorted(zip(runs, decisions, strict=True), key=lambda pair: _growth(pair[0], pair[1]))
        for run, decision in pairs:
            self.reasons[decision.reason.name] = self.reasons.get(decision.reason.name, 0) + 1
            if run.phase is Phase.QUEUED:
                if decision.chosen is not None and self._start(run, decision.allocation):
                    started += 1
                else:
                    run.no_node += decision.chosen is not None
                    run.refused_at = self.cluster.freed
                continue
            if decision.chosen is not None and decision.allocation != run.allocation:
                run.explored += decision.reason is Reason.EXPLORE
                before = run.allocation
                if self._change(run, decision.allocation):
                    run.steady = False
                    if self.policy.takes_back and before is not None and run.measured:
                        run.trial = Trial(before, run.measured, decision.chosen.rate)
                    continue
                run.no_node += 1
            run.steady = decision.reason in AT_REST
            run.idle = min(run.idle + 1, LONGEST_IDLE)
            self._look_at(run, self.now + self.settings.interval_s * 2 ** (run.idle - 1))
        return started

    def _view(self, run: Run) -> JobView:
        """What a real brain would know of it now."""
        job = run.job
        return JobView(
            job_id=job.job_id, now=run.allocation or run.wanted, bounds=job.bounds,
            throughput=self.known.throughput(run, self.now), rate=run.measured,
            remaining=run.remaining, deadline=job.deadline_s, owner=job.owner, priority=job.priority,
            overheads=self.known.costs.overheads(), queued=run.phase is Phase.QUEUED, asked=job.asked,
            ps_state_bytes=SPARE * job.facts.ps_state_bytes, front=run.front,
            measured=tuple(Allocation(*size) for size in run.seen),
        )  # fmt: skip


def _pods(allocation: Allocation) -> tuple[Pods, Pods]:
    gpus = {allocation.gpu_kind: allocation.worker_gpus} if allocation.worker_gpus else {}
    return (
        Pods(Resources(allocation.worker_cpu, float(allocation.worker_memory_bytes), gpus)),
        Pods(Resources(allocation.ps_cpu, float(allocation.ps_memory_bytes))),
    )


def _growth(run: Run, decision: Decision) -> float:
    if run.allocation is None:
        return math.inf
    return decision.allocation.resources.cpu - run.allocation.resources.cpu
