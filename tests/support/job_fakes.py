"""Hand-written peers of jobmaster, and the processes of roles, on virtual time; `job_world` puts them together."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from recmesh.runtime.errors import (
    Aborted,
    AlreadyExists,
    DataLoss,
    InvalidArgument,
    MeshError,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Violation,
)
from recmesh.spec.job import TrainingJob
from services.jobmaster.cluster import RoleProcess, StartOrder
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.facts import JobFacts
from services.jobmaster.domain.job import Capacity, Outcome
from services.jobmaster.domain.ledgers import Interval, Ledger
from services.jobmaster.peers import (
    AwaitState,
    Inspection,
    ModelVersion,
    OpenedRun,
    QueueProgress,
    RegisteredDataset,
    Released,
    RunOrder,
    StoredSnapshot,
)
from services.jobmaster.peers.planning import (
    Advice,
    Fed,
    FeedAsk,
    JobEnd,
    JobProfile,
    LendAsk,
    Owed,
    PlanAsk,
    Planned,
    RoleBounds,
    ScheduleAsk,
    Scheduled,
)
from tests.support.job_servers import positions

if TYPE_CHECKING:
    from tests.support.job_world import JobWorld

EPOCH = 1_700_000_000.0
CHUNK = 10


class LoopClock:
    """The event loop's time, which a test may make virtual."""

    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, delay_s))


@dataclass(frozen=True)
class FakeEntry:
    value: bytes
    revision: int


class FakeKeys:
    """A bucket in memory. `away` makes every call fail, as without NATS."""

    def __init__(self) -> None:
        self.data: dict[str, FakeEntry] = {}
        self.away = self.full = False
        self.gate: Callable[[str], Awaitable[None]] | None = None
        """Passed before and after each change of a run record."""
        self._revision = 0

    async def _touch(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no NATS")

    async def get(self, key: str) -> FakeEntry | None:
        await self._touch()
        return self.data.get(key)

    async def create(self, key: str, value: bytes) -> int:
        await self._touch()
        self._check_room()
        if key in self.data:
            raise AlreadyExists(key)
        return self._put(key, value)

    def _check_room(self) -> None:
        if self.full:
            raise ResourceExhausted("the data folder is full", reason="DATA_FOLDER_FULL")

    async def update(self, key: str, value: bytes, revision: int) -> int:
        if self.gate is not None and key.startswith("record."):
            await self.gate("before write")
        await self._touch()
        self._check_room()
        if key not in self.data or self.data[key].revision != revision:
            raise Aborted(key)
        after = self._put(key, value)
        if self.gate is not None and key.startswith("record."):
            await self.gate("after write")
        return after

    async def put(self, key: str, value: bytes) -> int:
        await self._touch()
        return self._put(key, value)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        await self._touch()
        self.data.pop(key, None)

    async def keys(self, prefix: str) -> list[str]:
        await self._touch()
        return sorted(key for key in self.data if key.startswith(prefix))

    def _put(self, key: str, value: bytes) -> int:
        self._revision += 1
        self.data[key] = FakeEntry(value, self._revision)
        return self._revision


class FakeShards:
    """Positions 0..total-1, leased in chunks."""

    def __init__(self) -> None:
        self.total = 400
        self.arrivals_per_s = 0.0
        """Above 0: of a topic."""
        self.away = False
        self.runs: dict[str, RunOrder] = {}
        self.to_do: dict[str, list[int]] = {}
        self.leased: dict[str, dict[str, list[int]]] = {}
        self.released: list[tuple[str, bool]] = []
        self.full = False
        """It can store nothing, as with a full disk."""
        self.deaths = 0
        self.suspects: tuple[Interval, ...] = ()
        self.refusals: list[Violation] = []
        self.refusal: type[MeshError] = InvalidArgument
        self.datasets: dict[str, str] = {}
        self.revisions: dict[str, int] = {}
        self.closed: list[tuple[str, bool]] = []
        self.requeues = 0
        self.has_just_begun = False
        """It has not looked at topics yet."""
        self.lag_messages = 0
        self.committed: list[tuple[int, Ledger]] = []
        """Generation, and what was done for ever, each time that offsets were committed."""
        self.sized: list[tuple[str, int]] = []
        """Workers whose shards were sized, and how; 0: as everybody's."""
        self.log_end = 1 << 60
        """The next queue with more positions done than this finds its task log too short."""

    async def _touch(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no shardsvc")

    async def inspect(self, dataset_json: str) -> Inspection:
        await self._touch()
        if self.refusals:
            raise self.refusal("bad data", violations=self.refusals)
        return Inspection(self.total, self.total * 100, 1)

    async def dataset(self, name: str) -> str:
        await self._touch()
        if name not in self.datasets:
            raise NotFound(name)
        return self.datasets[name]

    async def register_dataset(self, name: str, dataset_json: str) -> RegisteredDataset:
        found = await self.inspect(dataset_json)
        revision = self.revisions.get(name, 0) + (self.datasets.get(name) != dataset_json)
        self.datasets[name], self.revisions[name] = dataset_json, revision
        return RegisteredDataset(name, revision, 1e9, found.rows, found.files, found.size_bytes, 4, 3)

    async def remove_dataset(self, name: str) -> None:
        await self._touch()
        self.datasets.pop(name, None)

    async def open_run(self, order: RunOrder) -> OpenedRun:
        await self._touch()
        done = positions(order.done)
        if len(done) > self.log_end:
            self.log_end, known = 1 << 60, self.log_end
            raise DataLoss(f"the task log stops at {known}", reason="LOG_SHORT")
        self.runs[order.job_id] = order
        self.to_do[order.job_id] = [p for p in range(self.total) if p not in done]
        self.leased[order.job_id] = {}
        return OpenedRun(self.total, len(self.to_do[order.job_id]), 1)

    async def close_run(self, job_id: str, *, forget: bool) -> None:
        await self._touch()
        self.closed.append((job_id, forget))

    async def release_worker(self, job_id: str, *, gen: int, worker: str, crashed: bool) -> Released:
        await self._touch()
        if self.full:
            raise ResourceExhausted("the queue's disk is full", reason="STORAGE_FULL")
        back = self.leased.get(job_id, {}).pop(worker, [])
        self.to_do[job_id] = sorted({*self.to_do[job_id], *back})
        self.released.append((worker, crashed))
        self.requeues += bool(back)
        if crashed and self.suspects:
            self.deaths += 1
        return Released(len(back), self.suspects if crashed else (), self.deaths)

    async def size_shards(self, job_id: str, *, gen: int, worker: str, shard_batches: int) -> int:
        await self._touch()
        self.sized.append((worker, shard_batches))
        return 10

    async def commit_offsets(self, job_id: str, *, gen: int, done: Ledger) -> int:
        self.committed.append((gen, done))
        return 1

    async def reconcile(self, job_id: str, *, gen: int, done: Ledger) -> tuple[int, int]:
        await self._touch()
        have = positions(done)
        held = {p for chunk in self.leased[job_id].values() for p in chunk}
        known = have | held | set(self.to_do[job_id])
        orphans = [p for p in range(self.total) if p not in known]
        self.to_do[job_id] = sorted([*self.to_do[job_id], *orphans])
        return len(orphans), self.total - len(have)

    async def progress(self, job_id: str) -> QueueProgress:
        await self._touch()
        if job_id not in self.runs:
            raise NotFound(job_id)
        queued = len(self.to_do[job_id])
        leased = sum(len(chunk) for chunk in self.leased[job_id].values())
        return QueueProgress(
            self.runs[job_id].gen, self.total, self.total - queued - leased, queued, leased, 1,
            drained=not queued and not leased, requeues=self.requeues, **self._topics(),
        )

    def _topics(self) -> dict[str, Any]:
        """As a job on one topic sees them; its ends are looked at every 5 s."""
        if not self.arrivals_per_s or self.has_just_begun:
            return {}
        looked_at = asyncio.get_running_loop().time() // 5.0 * 5.0
        return {
            "arrived": round(self.arrivals_per_s * looked_at), "partitions": 1, "series": ("topic/clicks",),
            "lag_messages": self.lag_messages, "lag_s": float(self.lag_messages),
        }

    def lease(self, job_id: str, worker: str, gen: int) -> list[int]:
        if self.away or job_id not in self.runs or self.runs[job_id].gen != gen:
            return []
        chunk, self.to_do[job_id] = self.to_do[job_id][:CHUNK], self.to_do[job_id][CHUNK:]
        if chunk:
            self.leased[job_id][worker] = chunk
        return chunk

    def complete(self, job_id: str, worker: str) -> None:
        self.leased.get(job_id, {}).pop(worker, None)


class FakeCheckpoints:
    """Snapshots in memory."""

    def __init__(self) -> None:
        self.away = False
        self.begun: dict[tuple[str, int], int] = {}
        self.committed: dict[tuple[str, int], StoredSnapshot] = {}
        self.aborted: list[tuple[str, int]] = []
        self.failing: set[int] = set()
        self.damaged: set[int] = set()
        self.deleted: list[str] = []
        self.hold: asyncio.Event | None = None

    async def _touch(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no ckptcache")

    async def begin(self, job_id: str, *, gen: int, snapshot: int, ps: Sequence[int], label: str) -> None:
        await self._touch()
        self.begun[job_id, snapshot] = gen

    async def await_parts(self, job_id: str, snapshot: int, *, wait_s: float) -> tuple[AwaitState, str]:
        await self._touch()
        if self.hold is not None:
            await self.hold.wait()
        await asyncio.sleep(0.05)
        return ("failed", "a disk is full") if snapshot in self.failing else ("stored", "")

    async def commit(
        self, job_id: str, *, gen: int, snapshot: int, manifest_json: str, keep: int
    ) -> StoredSnapshot:
        await self._touch()
        document = orjson.loads(manifest_json)
        stored = StoredSnapshot(
            snapshot, "committed", f"mem://{job_id}/{snapshot}", tuple(document["parts"]), 0, 0,
            document["samples"], manifest_json,
        )
        self.committed[job_id, snapshot] = stored
        return stored

    async def abort(self, job_id: str, snapshot: int, *, reason: str) -> None:
        await self._touch()
        self.aborted.append((job_id, snapshot))

    async def get(self, job_id: str, snapshot: int) -> StoredSnapshot:
        await self._touch()
        numbers = [number for job, number in self.committed if job == job_id]
        number = snapshot or max(numbers, default=0)
        if (job_id, number) not in self.committed:
            raise NotFound(f"{job_id}/{number}")
        if number in self.damaged:
            raise DataLoss(f"{job_id}/{number} is damaged")
        return self.committed[job_id, number]

    async def delete(self, job_id: str) -> None:
        await self._touch()
        self.deleted.append(job_id)


class FakeBrain:
    def __init__(self) -> None:
        self.away = False
        self.planned = Planned({}, "default", "")
        self.bounds: list[RoleBounds] = []
        """Of the last question for a first plan."""
        self.fault: MeshError | None = None
        """Of the question for a first plan."""
        self.profiles: list[JobProfile] = []
        self.asks: list[PlanAsk] = []
        self.advice: list[Advice | None] = []
        """What is answered to the next questions."""
        self.feeds: list[FeedAsk] = []
        self.fed: list[int] = []
        """How many executors are answered to the next questions."""
        self.planners = ["horizon", "kale"]
        self.schedules: list[ScheduleAsk] = []
        self.scheduled: list[int] = []
        """How many workers are answered to the next questions."""
        self.lends: list[LendAsk] = []
        self.owed = 0
        """Workers that a job is to do without, in all."""
        self.outcomes: list[Outcome] = []
        self.ends: list[JobEnd] = []
        self.lives: list[str] = []
        """Jobs that were planned and suspended, in order."""

    async def lend(self, ask: LendAsk) -> Owed:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no brain")
        self.lends.append(ask)
        return Owed(self.owed, "serving needs room", 1.0)

    async def plan(self, facts: JobFacts, bounds: Sequence[RoleBounds], *, free: Capacity) -> Planned:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no brain")
        self.bounds = list(bounds)
        if self.fault is not None:
            raise self.fault
        self.lives.append(f"plan {facts.job_id}")
        return self.planned

    async def observe(self, profile: JobProfile) -> None:
        self.profiles.append(profile)

    async def decide(self, ask: PlanAsk) -> Advice | None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no brain")
        self.asks.append(ask)
        return self.advice.pop(0) if self.advice else None

    async def feed(self, ask: FeedAsk) -> Fed:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no brain")
        self.feeds.append(ask)
        return Fed(self.fed.pop(0) if self.fed else ask.now.replicas, "STARVED", "L = 0.10")

    async def stream_planners(self) -> Sequence[str]:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no brain")
        return self.planners

    async def schedule(self, ask: ScheduleAsk) -> Scheduled:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no brain")
        if ask.rules.planner == "oracle":
            raise InvalidArgument("the job cannot be scaled", violations=[Violation("scaling.planner", "no 'oracle'")])
        self.schedules.append(ask)
        count = self.scheduled.pop(0) if self.scheduled else ask.now["worker"].replicas
        roles = {"worker": ask.now["worker"].model_copy(update={"replicas": count})}
        return Scheduled(roles if count != ask.now["worker"].replicas else {}, "kale", "GROW", "2 is the fewest")

    async def conclude(self, outcome: Outcome) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no brain")
        self.outcomes.append(outcome)

    async def suspend(self, job_id: str) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no brain")
        self.lives.append(f"suspend {job_id}")

    async def record_job(self, end: JobEnd) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no brain")
        self.ends.append(end)


class FakeModels:
    def __init__(self) -> None:
        self.away = False
        self.registered: list[ModelVersion] = []
        self.serving: dict[str, Any] = {}
        """Of the last registration."""
        self.refusal: MeshError | None = None
        """Answer to the next registration under a number."""

    async def versions(self, name: str) -> list[ModelVersion]:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no gateway")
        return [model for model in self.registered if model.name == name]

    async def register(
        self,
        model: ModelVersion,
        *,
        framework: str,
        metrics: Mapping[str, float],
        request_id: str,
        load: bool,
        serving: Mapping[str, Any],
    ) -> ModelVersion:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no gateway")
        self.serving = dict(serving)
        if self.refusal is not None and model.version:
            error, self.refusal = self.refusal, None
            raise error
        self.registered.append(model)
        return model


@dataclass
class FakeProcess:
    order: StartOrder
    pid: int
    exit: Exit | None = None
    task: asyncio.Task[None] | None = None
    silent: bool = False
    stuck: bool = False
    """It beats, and trains nothing."""
    slowness: float = 1.0
    """Its steps take so many times as long."""
    notified: bool = False
    """Somebody sent it SIGTERM: it drains."""


class FakeCluster:
    """Processes are tasks; they outlive a jobmaster as long as the world does."""

    def __init__(self, world: "JobWorld") -> None:
        self._world = world
        self.processes_of: dict[str, dict[str, FakeProcess]] = {}
        self.started: list[str] = []
        self.refused: list[Violation] = []
        self.resized: list[tuple[str, int]] = []
        self.resizes = True
        """Whether processes can be given other cores while they run."""
        self.held: dict[str, str] = {}
        """Processes that find no place yet, and why, by name."""
        self.outage: MeshError | None = None
        """What starts are answered with."""
        self._pid = 100
        self._on_change: Callable[[str], None] = lambda job_id: None

    def watch(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change

    async def stop_watching(self) -> None:
        """Nothing is watched."""

    def refusals(self, spec: TrainingJob) -> list[Violation]:
        return list(self.refused)

    async def find_again(self) -> None:
        """All are here."""

    async def start(self, order: StartOrder) -> RoleProcess:
        await asyncio.sleep(0)
        if self.outage is not None:
            raise self.outage
        known = self.processes_of.setdefault(order.job_id, {})
        if order.name not in known:
            self._pid += 1
            process = FakeProcess(order, self._pid)
            known[order.name] = process
            self.started.append(order.name)
            process.task = asyncio.create_task(self._live(process))
        return self._view(known[order.name])

    async def _live(self, process: FakeProcess) -> None:
        code: int | None = 70
        try:
            while process.order.name in self.held:  # noqa: ASYNC110  # on virtual time
                await asyncio.sleep(0.5)
            code = await self._world.behave(process)
        except asyncio.CancelledError:
            return  # whoever cancelled says how it ended
        batch = self._world.in_hand if code == 70 else None
        self.end(process, Exit(code=code, knows_batch=batch is not None, batch=batch))

    def end(self, process: FakeProcess, exit: Exit) -> None:
        if process.exit is None:
            process.exit = exit
            server = self._world.servers.by_address.get(f"{process.order.job_id}/{process.order.name}")
            if server is not None:
                server.alive = False
            self._on_change(process.order.job_id)

    def kill(self, job_id: str, name: str, exit: Exit | None = None) -> None:
        """kill -9 from outside, or an end with the given truth."""
        process = self.processes_of[job_id][name]
        if process.task is not None:
            process.task.cancel()
        self.end(process, exit or Exit(signal=9, reason="killed by SIGKILL"))

    async def stop(self, job_id: str, name: str, *, grace_s: float) -> None:
        process = self.processes_of[job_id][name]
        if process.exit is None:
            signal = 9 if grace_s <= 0 else 15
            self.kill(job_id, name, Exit(signal=signal, reason=f"signal {signal}"))

    async def drain(self, job_id: str, name: str) -> None:
        pass

    async def processes(self, job_id: str) -> list[RoleProcess]:
        return [self._view(process) for process in self.processes_of.get(job_id, {}).values()]

    def _view(self, process: FakeProcess) -> RoleProcess:
        held = self.held.get(process.order.name)
        return RoleProcess(
            process.order.job_id, process.order.name, str(process.pid), process.exit,
            waiting=held or "", begun=held is None,
        )

    async def resize(self, job_id: str, name: str, *, cpu: float | None, memory_bytes: int) -> bool:
        if cpu is not None and not self.resizes:
            return False
        self.resized.append((name, memory_bytes))
        process = self.processes_of[job_id][name]
        process.order = replace(
            process.order, cpu=process.order.cpu if cpu is None else cpu, memory_bytes=memory_bytes
        )
        return True

    async def tail(self, job_id: str, name: str, *, lines: int) -> list[str]:
        return [f"log of {name}"]

    async def forget(self, job_id: str) -> None:
        self.processes_of.pop(job_id, None)

    async def jobs(self) -> list[str]:
        return sorted(self.processes_of)

    async def capacity(self, job_id: str = "", spec: TrainingJob | None = None) -> Capacity:
        return Capacity(4.0, 1 << 34)

    def alive(self, job_id: str, role: str = "") -> list[str]:
        return [
            name for name, process in self.processes_of.get(job_id, {}).items()
            if process.exit is None and (not role or process.order.role == role)
        ]
