"""What brain knows of jobs under one policy: what they have shown, and what like jobs have before them."""

import math
from dataclasses import replace

from recmesh.plugins.planning import Allocation, Resources, Throughput
from services.brain.domain.first_plan import first_plan as planned
from services.brain.domain.model import History, RoleLimits, RolePlan
from services.brain.domain.warmstart import SUCCEEDED
from services.brain.simulator.costs import Measured
from services.brain.simulator.job import Job
from services.brain.simulator.policy import Policy
from services.brain.simulator.pool import Pool
from services.brain.simulator.run import Run, size_of
from services.brain.simulator.truth import Oracle, Truth

UNBOUNDED = Resources(math.inf, math.inf)
"""A job that finds no room queues here; its plan is not cut."""
PAST_JOBS = 20
"""Of the newest of its model that succeeded, a first plan looks at so many."""
NEWS = 0.02
"""A model is fitted again when a job has had a new size, or the mean rate of one has moved by more than this."""


class Knowledge:
    """Of all jobs of one simulation."""

    def __init__(self, truth: Truth, policy: Policy, noise_sd: float) -> None:
        self.truth, self.policy, self.noise_sd = truth, policy, noise_sd
        self.costs = Measured()
        self.past: dict[str, list[History]] = {}
        self.pools: dict[str, Pool] = {}

    def measure(self, run: Run, now: float) -> float:
        """The rate since the last look, or else the mean at this size; 0 while nothing was measured."""
        assert run.allocation is not None
        size = size_of(run.allocation)
        news = run.observe(now, self.noise_sd)
        if news is None:
            return run.seen[size].rate if size in run.seen else 0.0
        if self.policy.shared:
            log = math.log(news.rate)
            run.factor = self._pool(run.job).add(
                run.index, size, log=log, windows=news.windows, at=now, factor=run.factor
            )
        return news.rate

    def _pool(self, job: Job) -> Pool:
        model = job.facts.model
        if model not in self.pools:
            shared_batch, learn = job.facts.sync, self.policy.learn
            assert learn is not None
            self.pools[model] = Pool(
                job.facts, lambda found, now: learn(found, now=now, shared_batch=shared_batch, prior=None)
            )
        return self.pools[model]

    def throughput(self, run: Run, now: float) -> Throughput | None:
        """What was learned of it, with what is known of its model behind that.

        A job that waits is planned with that, too: the planner starts none at a guess.
        """
        if self.policy.oracle:
            return Oracle(self.truth, run.job.facts.model)
        if self.policy.learn is None:
            return None
        prior = self._pool(run.job).model(now) if self.policy.shared else None
        if not run.seen:
            return prior
        known = run.learned_from
        rates = {size: seen.rate for size, seen in run.seen.items()}
        fresh = prior is not run.prior
        if (
            fresh
            or len(rates) != len(known)
            or any(abs(math.log(rate / known[size])) > NEWS for size, rate in rates.items())
        ):
            run.learned = self.policy.learn(run.observations(), now=now, shared_batch=run.job.facts.sync, prior=prior)
            run.learned_from, run.prior = rates, prior
        return run.learned

    def first_plan(self, run: Run) -> Allocation:
        """As `brain` makes it at submission, when the policy has it; else what the user asks for."""
        job, asked = run.job, run.job.asked
        if self.policy.warm is None:
            return asked
        limits = [
            RoleLimits("worker", *job.bounds.workers, cpu=asked.worker_cpu, memory_bytes=asked.worker_memory_bytes),
            RoleLimits("ps", *job.bounds.ps, cpu=asked.ps_cpu, memory_bytes=asked.ps_memory_bytes),
        ]
        plan = planned(job.described, limits, UNBOUNDED, self.past.get(job.facts.model, ()), self.policy.warm)
        workers, servers = plan.role("worker"), plan.role("ps")
        if plan.source != "similar" or workers is None or servers is None:
            return asked
        return replace(asked, workers=workers.replicas, ps=servers.replicas)

    def remember(self, run: Run, now: float) -> None:
        """Its last size, for first plans: of a job that had come to rest, as algorithm 1 asks for steady plans."""
        if self.policy.warm is None or run.allocation is None or not run.steady:
            return
        final = run.allocation
        roles = (
            RolePlan("worker", final.workers, final.worker_cpu, final.worker_memory_bytes),
            RolePlan("ps", final.ps, final.ps_cpu, final.ps_memory_bytes),
        )
        past = self.past.setdefault(run.job.facts.model, [])
        past.append(History(run.job.described, SUCCEEDED, started=run.started, ended=now, final_plan=roles))
        del past[:-PAST_JOBS]
