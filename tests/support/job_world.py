"""A small world around jobmaster: every peer and every process of a role, hand-written, on virtual time.

Workers here train like real ones in what matters to jobmaster: they lease positions, apply them at every
parameter server of the open generation, and report. Tests kill, silence and starve the parts.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import (
    MeshError,
    Unavailable,
)
from recmesh.runtime.events import Event
from services.jobmaster.app.context import Addresses, Context
from services.jobmaster.app.jobs import Jobs
from services.jobmaster.app.roles import Roles
from services.jobmaster.domain.ledgers import Interval
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.placement import SLOTS
from services.jobmaster.domain.vitals import Beat, Serving, StepTimes
from services.jobmaster.peers import (
    Peers,
)
from services.jobmaster.store import JobStore
from tests.support.job_fakes import (
    FakeBrain,
    FakeCheckpoints,
    FakeCluster,
    FakeKeys,
    FakeModels,
    FakeProcess,
    FakeShards,
    LoopClock,
)
from tests.support.job_servers import FakeServer, FakeServers


class JobWorld:
    """Everything, and one jobmaster (which may be killed and come back)."""

    def __init__(self, *, limits: Limits | None = None) -> None:
        self.keys = FakeKeys()
        self.shards = FakeShards()
        self.checkpoints = FakeCheckpoints()
        self.servers = FakeServers()
        self.brain = FakeBrain()
        self.models = FakeModels()
        self.cluster = FakeCluster(self)
        self.clock: Clock = LoopClock()
        self.events: list[Event[Any]] = []
        self.limits = limits or Limits(move_slots=SLOTS)
        self.step_s = 0.1
        self.start_s = 0.2
        self.poison: int | None = None
        """A position in whose compute every worker dies."""
        self.in_hand: Interval | None = None
        """The batch that workers which die of `poison` have in their hands, as they tell it themselves."""
        self.rows_per_sample = self.row_bytes = 0
        """How parameter servers grow, as they tell it."""
        self.mistake = False
        self.exports_fail = 0
        """The code with which finishers exit before they have exported anything; 0: they do not."""
        self.retries = 0
        """Pushes that were sent again because their map was old."""
        self.slowness: dict[str, float] = {}
        """By process of a parameter server: how much longer its kernels take."""
        self.unborn: set[tuple[str, int]] = set()
        """Places whose processes never come up."""
        self.serving: Serving | None = None
        """What data executors tell of their buffers."""
        self.waited_share = 0.0
        """Of the time workers wait for them."""
        self.step = StepTimes(pull_s=0.03, push_s=0.03, total_s=0.1, steps=10)
        self.draining: set[str] = set()
        """Processes whose machine asks them to go."""
        self.skipped_nan = 0
        self.metrics = {"auc": 0.75}
        self.evaluations: list[float] = []
        self.jobs, self.roles = self._jobmaster()

    def _jobmaster(self) -> tuple[Jobs, Roles]:
        context = Context(
            store=JobStore(self.keys),
            peers=Peers(self.shards, self.checkpoints, self.servers, self.brain, self.models),
            cluster=self.cluster, clock=self.clock, rng=random.Random(7),
            publish=lambda event: self.publish(event),
            addresses=Addresses(lambda: "jobmaster:1", "shardsvc:1", "ckptcache:1"),
            storage_uri="/storage", limits=self.limits,
        )
        jobs = self.jobs_of(context)
        return jobs, Roles(jobs)

    def jobs_of(self, context: Context) -> Jobs:
        """Users' use cases of a jobmaster."""
        return Jobs(context)

    async def publish(self, event: Event[Any]) -> None:
        await asyncio.sleep(0)
        if self.keys.away:
            raise Unavailable("no NATS")
        self.events.append(event)

    async def restart_jobmaster(self) -> None:
        """kill -9, then another process that reads everything from the store."""
        for runner in self.jobs.runners.values():
            for task in (*runner._tasks, *runner.run._kept):
                task.cancel()
            for lane in runner._lanes:
                if lane.task is not None:
                    lane.task.cancel()
        self.jobs.buckets = frozenset()
        await asyncio.sleep(0)
        self.jobs, self.roles = self._jobmaster()
        await self.jobs.lead()

    async def close(self) -> None:
        await self.jobs.follow()
        tasks = [
            process.task for known in self.cluster.processes_of.values() for process in known.values()
            if process.task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- what processes do -------------------------------------------------------------------------------

    async def behave(self, process: FakeProcess) -> int:
        order = process.order
        incarnation = f"{order.name}-{process.pid}".ljust(32, "x")
        await asyncio.sleep(self.start_s if (order.role, order.index) not in self.unborn else 1e9)
        address = f"{order.job_id}/{order.name}"
        if order.role == "ps":
            self.servers.by_address[address] = FakeServer(incarnation)
        assignment = await self._patiently(
            lambda: self.roles.register(
                order.job_id, role=order.role, index=order.index, incarnation=incarnation, address=address
            )
        )
        if self.mistake and order.role == "worker":
            await self._report(process, incarnation, error="no such column: clicks")
            return 64
        if order.role == "finisher" and self.exports_fail:
            return self.exports_fail
        if order.role == "finisher":
            await self._report(
                process, incarnation, final=True, model_uri=assignment.export_uri, framework="torch",
                metrics=self.metrics,
            )
            return 0
        return await self._work(process, incarnation)

    async def _report(self, process: FakeProcess, incarnation: str, **said: Any) -> None:
        defaults: dict[str, Any] = {
            "snapshot": 0, "samples": 0, "metrics": {}, "model_uri": "", "framework": "", "error": "",
            "final": False,
        }
        await self._patiently(
            lambda: self.roles.report(
                process.order.job_id, role=process.order.role, incarnation=incarnation, **(defaults | said)
            )
        )

    async def _patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.1)

    async def _work(self, process: FakeProcess, incarnation: str) -> int:
        order, samples, beat_at, told_at = process.order, 0, 0.0, self.clock.monotonic()
        worker = f"{order.index}-{incarnation[:8]}"
        while True:
            now = self.clock.monotonic()
            if now >= beat_at and not process.silent:
                beat_at = now + self.limits.heartbeat_s
                with suppress(MeshError):
                    server = self.servers.by_address.get(f"{order.job_id}/{order.name}")
                    rows = len(server.applied) * self.rows_per_sample if server is not None else 0
                    beat = Beat(
                        rows=rows, memory_bytes=rows * self.row_bytes,
                        at=self.clock.now(), incarnation=incarnation, samples=samples, loss=0.5, auc=0.7,
                        window_samples=max(1, samples), skipped_nan=self.skipped_nan,
                        draining=process.notified or order.name in self.draining, busy_s=self._busy_s(process),
                        step=replace(self.step, steps=round((now - told_at) / self.step.total_s)),
                        serving=self._serving(now) if order.role == "data" else None,
                    )
                    told_at = now
                    answer = self.roles.heartbeat(
                        order.job_id, role=order.role, index=order.index, beat=beat
                    )
                    if answer.directive != "continue" or process.notified:
                        return 75 if process.notified else 0
            if order.role == "worker" and not process.silent and not process.stuck:
                trained = await self._train(process, worker)
                if trained < 0:
                    return 70
                samples += trained
            if order.role == "evaluator" and self.evaluations:
                await self._report(process, incarnation, metrics={"auc": self.evaluations.pop(0)})
            await asyncio.sleep(self.step_s * process.slowness)

    def _serving(self, now: float) -> Serving | None:
        return replace(self.serving, waited_s=now * self.waited_share) if self.serving is not None else None

    def _busy_s(self, process: FakeProcess) -> float:
        """Time in kernels: a slot takes two microseconds per push."""
        server = self.servers.by_address.get(f"{process.order.job_id}/{process.order.name}")
        return 2e-6 * server.work * self.slowness.get(process.order.name, 1.0) if server is not None else 0.0

    async def _train(self, process: FakeProcess, worker: str) -> int:
        job_id = process.order.job_id
        try:
            record = await self.roles.record(job_id, newer_than_gen=0, wait_s=0)
        except MeshError:
            return 0
        if record.phase != "open":
            return 0
        chunk = self.shards.lease(job_id, worker, record.gen)
        if self.poison is not None and self.poison in chunk:
            servers = [self.servers.by_address[m.address] for m in record.owning]
            if not all(self.poison in server.applied for server in servers):
                return -1
        await asyncio.sleep(self.step_s / 2)
        while (answer := self.servers.push(record, chunk)) == "wrong_map":
            self.retries += 1
            await asyncio.sleep(0.002)
            try:
                record = await self.roles.record(job_id, newer_than_gen=0, wait_s=0)
            except MeshError:
                continue
            if record.phase != "open":
                return 0
        if answer == "applied" and not self.shards.away:
            self.shards.complete(job_id, worker)
            return len(chunk)
        return 0

    # -- what tests ask ----------------------------------------------------------------------------------

    async def submit(self, spec: Mapping[str, Any], **options: Any) -> str:
        given: dict[str, Any] = {"request_id": "", "submitter": "tests", "dry_run": False} | options
        run = await self.jobs.submit(orjson.dumps(dict(spec)).decode(), **given)
        return run.job_id

    async def until(self, condition: Callable[[], bool], *, timeout_s: float = 120.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  # virtual time
                await asyncio.sleep(0.02)

    def phase(self, job_id: str) -> str:
        return str(self.jobs.run_of(job_id).status.phase)

    async def until_phase(self, job_id: str, phase: str, *, timeout_s: float = 300.0) -> None:
        await self.until(lambda: self.phase(job_id) == phase, timeout_s=timeout_s)

    def told(self, name: str) -> list[Any]:
        return [event.data for event in self.events if event.type.name == name]


def spec(**changes: Any) -> dict[str, Any]:
    """A small valid TrainingJob; keywords replace its fields."""
    return {
        "name": "ads",
        "model": {"zoo": "torch_dcn_v2", "params": {"embedding_dim": 8}},
        "data": {"source": {"files": ["/data/x.parquet"]}, "features": [{"name": "user"}]},
        "roles": {"ps": {"replicas": 2}, "worker": {"replicas": 2}},
        "checkpoint": {"every_s": 2.0},
    } | changes
