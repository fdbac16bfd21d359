"""Gateway with its wires replaced: an in-memory bucket, runtimes that add numbers, recorded facts."""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from recmesh.runtime.deadline import remaining_s
from recmesh.runtime.errors import Aborted, AlreadyExists, MeshError, NotFound, Unavailable
from recmesh.runtime.events import Event
from recmesh.runtime.room import Room
from recmesh.serving.settings import Scaling as ScalingRules
from recmesh.serving.settings import ServingSettings
from services.gateway.app.access import Access
from services.gateway.app.audit import Audit
from services.gateway.app.freshness import Freshness
from services.gateway.app.inference import Inference
from services.gateway.app.labels import Labels
from services.gateway.app.loading import Loading
from services.gateway.app.models import Models
from services.gateway.app.observation import Observation
from services.gateway.app.ports import Document, Fact, Features, Inspect, Runtimes
from services.gateway.app.scaling import Planned, Scaling
from services.gateway.app.serving import Serving, ServingLimits
from services.gateway.app.webhooks import Letter, Webhooks
from services.gateway.domain import addresses
from services.gateway.domain.load import Load
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.predictions import Label, Prediction
from services.gateway.domain.scaling import Change, Decision, Look, Own, ScalingFact
from services.gateway.domain.statistics import Times
from services.gateway.domain.tensors import Tensor
from services.gateway.domain.webhooks import Record
from services.gateway.peers.data import DataPeer, PlanningPeer
from services.gateway.peers.jobs import JobsPeer
from services.gateway.peers.mesh import Mesh
from services.gateway.peers.webhooks import Poster
from services.gateway.rest import api
from services.gateway.rest.guard import BodyLimits
from services.gateway.rest.inference import InferLimits
from services.gateway.store.code import CodeStore
from services.gateway.store.credentials import Credentials, Sources
from services.gateway.store.folders import ModelFolders
from services.gateway.store.registry import Registry
from services.gateway.store.shared_memory import Access as SharedAccess
from services.gateway.store.shared_memory import SharedRegions
from services.gateway.store.traffic import TrafficRules
from services.gateway.store.webhooks import WebhookStore

CARD: Document = {
    "framework": "torch",
    "inputs": [
        {"name": "x", "kind": "dense", "dtype": "float32", "shape": [-1]},
        {"name": "id", "kind": "single", "dtype": "int64", "shape": [-1]},
    ],
    "outputs": [{"name": "predictions", "dtype": "float32", "shape": [-1]}],
    "metrics": {"auc": 0.75},
}
"""predictions = x + id"""


@dataclass(frozen=True, slots=True)
class FakeEntry:
    key: str
    value: bytes
    revision: int


class FakeBucket:
    """A key-value bucket with revisions, in memory."""

    def __init__(self, beside: "FakeBucket | None" = None) -> None:
        self.values: dict[str, FakeEntry] = {}
        self._beside = beside
        self._revision = 0
        self._watchers: list[asyncio.Queue[FakeEntry]] = []

    @property
    def beside(self) -> "FakeBucket":
        """The bucket of traffic rules, which a restart sees, too."""
        self._beside = self._beside or FakeBucket()
        return self._beside

    async def get(self, key: str) -> FakeEntry | None:
        return self.values.get(key)

    async def create(self, key: str, value: bytes) -> int:
        if key in self.values:
            raise AlreadyExists(key)
        return self._put(key, value)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        if key not in self.values or self.values[key].revision != revision:
            raise Aborted(key)
        return self._put(key, value)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        if self.values.pop(key, None) is not None:
            self._told(FakeEntry(key, b"", self._revision))

    async def watch(self, prefix: str = "") -> AsyncGenerator[FakeEntry, None]:
        news: asyncio.Queue[FakeEntry] = asyncio.Queue()
        self._watchers.append(news)
        for entry in [each for each in self.values.values() if each.key.startswith(prefix)]:
            yield entry
        while True:
            yield await news.get()

    async def keys(self, prefix: str = "") -> Sequence[str]:
        return sorted(key for key in self.values if key.startswith(prefix))

    async def entries(self, prefix: str = "") -> Sequence[FakeEntry]:
        return [self.values[key] for key in await self.keys(prefix)]

    def _put(self, key: str, value: bytes) -> int:
        self._revision += 1
        self._told(FakeEntry(key, value, self._revision))
        self.values[key] = FakeEntry(key, value, self._revision)
        return self._revision

    def _told(self, entry: FakeEntry) -> None:
        for news in self._watchers:
            news.put_nowait(entry)


class FakeRuntimes:
    """Runs `predictions = x + id`. A key in `broken` cannot be loaded; `hold` keeps requests in the model."""

    def __init__(self) -> None:
        self.loaded: dict[str, Path] = {}
        self.waiting: dict[str, str] = {}
        """What loads wait for."""
        self.broken: dict[str, MeshError] = {}
        self.unloaded: list[str] = []
        self.time_left: list[float | None] = []
        """Of the caller's deadline, at each load."""
        self.ran: list[tuple[str, str]] = []
        """(runtime, key) of each run that began."""
        self.hold_load: asyncio.Event | None = None
        self.hold: asyncio.Event | None = None
        self.running = asyncio.Event()
        self.lost: Callable[[str, str, str], None] = lambda _runtime, _key, _reason: None
        self.rules: dict[str, ScalingRules] = {}
        """Of models with processes of their own."""
        self.ways: dict[str, Own] = {}
        self.loads: dict[str, dict[str, Load]] = {}
        self.no_room: MeshError | None = None
        """Why no process can be started."""

    def scaled(self) -> dict[str, Own]:
        """One way for each model, unless `ways` says otherwise."""
        versions = frozenset(str(number) for number in range(10))
        return self.ways or {name: Own(name, versions, rules, "torch, whole") for name, rules in self.rules.items()}

    async def measured(self, model: str) -> dict[str, Load]:
        return self.loads[model]

    async def grow(self, model: str, kind: str) -> None:
        if self.no_room is not None:
            raise self.no_room
        self._count(model, kind, 1)

    async def shrink(self, model: str, kind: str) -> None:
        self._count(model, kind, -1)

    def _count(self, model: str, kind: str, by: int) -> None:
        load = self.loads[model][kind]
        self.loads[model] = self.loads[model] | {kind: replace(load, replicas=load.replicas + by)}

    def serves(self, framework: str, key: str) -> bool:
        return _at(framework, key) in self.loaded

    def waits(self, framework: str, key: str) -> str:
        return self.waiting.get(_at(framework, key), "")

    async def load(
        self, framework: str, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float
    ) -> None:
        self.time_left.append(remaining_s())
        if self.hold_load is not None:
            await self.hold_load.wait()
        if key in self.broken:
            raise self.broken[key]
        self.loaded[_at(framework, key)] = folder

    async def unload(self, framework: str, key: str) -> None:
        self.loaded.pop(_at(framework, key), None)
        self.unloaded.append(_at(framework, key))

    async def infer(
        self,
        framework: str,
        key: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        *,
        timeout_s: float,
        priority: int,
    ) -> tuple[list[Tensor], Times]:
        assert _at(framework, key) in self.loaded, f"{key} was taken away under a request"
        self.ran.append((framework, key))
        if self.hold is not None:
            self.running.set()
            await self.hold.wait()
            assert _at(framework, key) in self.loaded, f"{key} was taken away under a request"
        arrays = {item.name: item.array for item in inputs}
        total = np.asarray(arrays["x"] + arrays["id"], np.float32)
        return [Tensor.of("predictions", total)], Times(10, 20, 30, 40)


def _at(framework: str, key: str) -> str:
    """Each server has its own models: those of shadows are apart."""
    return key + framework.removeprefix(framework.partition("#")[0])


class FakeFeatures:
    """Raw columns are inputs already."""

    async def transform(
        self, key: str, folder: Path, form: str, columns: Sequence[Tensor], *, timeout_s: float, priority: int
    ) -> tuple[list[Tensor], Times]:
        return list(columns), Times(0, 0, 0, 0)

    def forget(self, key: str) -> None:
        pass


async def no_inspection(framework: str, program: Path) -> Document:
    raise AssertionError(f"{program} was read")


class FakeClock:
    """Time that stands still until it is told."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, delay_s: float) -> None:
        self.time += delay_s


@dataclass(slots=True)
class Facts:
    """What was told."""

    models: list[tuple[str, str]] = field(default_factory=list)
    rates: list[tuple[str, float, list[tuple[float, float]]]] = field(default_factory=list)
    scalings: list[tuple[ScalingFact, Look, Change | None]] = field(default_factory=list)
    away: bool = False
    labels: list[tuple[str, Label]] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    audit: list[Event[Any]] = field(default_factory=list)

    async def publish(self, event: Event[Any]) -> None:
        if self.away:
            raise Aborted("the bus is away")
        self.audit.append(event)

    async def labels_of(self, topic: str, labels: Sequence[Label], at: float, make: bool) -> int:
        before = {label.message_id for _, label in self.labels}
        self.labels += [(topic, label) for label in labels]
        return sum(label.message_id in before for label in labels)

    async def model(self, fact: Fact, record: ModelVersion) -> None:
        self.models.append((fact, record.key))

    async def scaling(self, fact: ScalingFact, look: Look, change: Change | None) -> None:
        self.scalings.append((fact, look, change))

    async def rates_of(self, step_s: float, rates: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        if self.away:
            raise Aborted("the bus is away")
        self.rates += [(series, step_s, list(points)) for series, points in rates.items()]


class NoEvents:
    """A job without history."""

    async def history(self, job_id: str, *, after: int, limit: int) -> list[Document]:
        return []

    async def live(self, job_id: str, *, after: int) -> AsyncGenerator[Document | None, None]:
        yield None


@dataclass(slots=True)
class Gateway:
    """The use cases over fakes (or real runtimes), and the storage folder."""

    root: Path
    models: Models
    inference: Inference
    observation: Observation
    runtimes: Any
    bucket: FakeBucket
    facts: Facts
    clock: FakeClock
    freshness: Freshness
    scaling: Scaling
    regions: SharedRegions = field(default_factory=SharedRegions)

    def folder(self, name: str = "tiny", version: str = "1", *, card: Document | None = None) -> str:
        """Make a model folder; its URI."""
        path = self.root / "models" / name / version
        path.mkdir(parents=True)
        (path / "model.json").write_text(json.dumps(CARD if card is None else card))
        return f"models/{name}/{version}"

    async def swapped(self, version: str) -> None:
        """Wait until this version serves."""
        async with asyncio.timeout(10.0):
            while self.models.serving.find("tiny", version) is None:  # noqa: ASYNC110 (nobody signals a swap)
                await asyncio.sleep(0)

    async def loading(self) -> None:
        """Wait until a load has reached the runtime."""
        async with asyncio.timeout(10.0):
            while not self.runtimes.time_left:  # noqa: ASYNC110 (as below)
                await asyncio.sleep(0.001)

    async def settled(self) -> None:
        """Wait for loads and retirements in the background."""
        while self.models.loading.tasks:
            await asyncio.gather(*self.models.loading.tasks, return_exceptions=True)


async def no_plan(*_: Any) -> Sequence[Decision]:
    """brain, while it is away."""
    raise Unavailable("brain does not run", reason="SERVICE_AWAY")


def gateway(
    root: Path, *, bucket: FakeBucket | None = None, runtimes: Runtimes | None = None, retire_s: float = 5.0,
    draw: Callable[[], float] = random.random, features: Features | None = None,
    inspect: Inspect | None = None,
    planned: Planned | None = None,
) -> Gateway:
    """A gateway; give the bucket of another one to see what a restart sees."""
    bucket, facts, clock = bucket or FakeBucket(), Facts(), FakeClock()
    chosen: Any = runtimes or FakeRuntimes()
    limits = ServingLimits(retire_s=retire_s, load_timeout_s=120.0)
    observation = Observation(clock=clock, rate_step_s=10.0, tell_rates=facts.rates_of)
    serving = Serving(
        chosen, features or FakeFeatures(), observation, clock=clock, limits=limits, draw=draw,
        log_prediction=facts.predictions.append, new_id=lambda: "made",
    )  # fmt: skip
    folders = ModelFolders(root)
    loading = Loading(
        Registry(bucket), folders, chosen, serving, observation, tell=facts.model, clock=clock, limits=limits
    )
    models = Models(
        Registry(bucket), TrafficRules(bucket.beside), folders, loading, clock=clock, inspect=inspect or no_inspection
    )
    inference = Inference(models, observation, version="1.2.3")
    freshness = Freshness(
        Registry(bucket), serving, chosen, limits=limits, why_not_serving=models.why_not_serving
    )
    scaling = Scaling(
        chosen, observation, planned=planned or no_plan, tell=facts.scaling, clock=clock, step_s=10.0
    )
    return Gateway(root, models, inference, observation, chosen, bucket, facts, clock, freshness, scaling)


@dataclass(slots=True)
class FakePeer:
    """Answers any call with its arguments, or with an error."""

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    error: MeshError | None = None

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Document:
            self.calls.append((name, args, kwargs))
            if self.error is not None:
                raise self.error
            return {"job_id": "job-1", "call": name, "args": list(args), **kwargs}

        return call


class JobsInNamespaces(FakePeer):
    """Jobs by their namespaces; what else is asked of them is answered as a FakePeer does."""

    def __init__(self, **namespaces: str) -> None:
        super().__init__()
        self.namespaces = namespaces

    async def get(self, job_id: str) -> Document:
        """As jobmaster."""
        if job_id not in self.namespaces:
            raise unknown_job()
        return {"job_id": job_id, "namespace": self.namespaces[job_id], "phase": "Running"}


def unknown_job() -> NotFound:
    """What jobmaster says of a job that is not there."""
    return NotFound("there is no job 'x'", reason="UNKNOWN_JOB")


def open_to(api_key: str | None = None) -> Access:
    """Everyone who shows the key may do everything; with none, everyone may."""
    return Access(Credentials(Sources(api_key)), clock=FakeClock())


def rest_app(
    made: Gateway,
    *,
    jobs: Any = None,
    data: Any = None,
    planning: Any = None,
    events: Any = None,
    api_key: str | None = None,
    access: Access | None = None,
    loopback: bool = True,
    limits: BodyLimits | None = None,
    room: Room | None = None,
    shared: SharedAccess = "loopback",
    webhooks: Webhooks | None = None,
) -> Any:
    """The REST API over the gateway, as an ASGI application."""
    peer: Any = FakePeer()
    code = CodeStore(made.root, max_bytes=1 << 20, max_unpacked_bytes=1 << 21, max_members=100)
    mesh = Mesh({}, token=None, tls=None)
    chosen_jobs: JobsPeer = jobs or peer
    chosen_data: DataPeer = data or peer
    chosen_planning: PlanningPeer = planning or peer
    parts = api.Parts(
        made.models,
        made.freshness,
        made.inference,
        Labels(made.facts.labels_of, clock=made.clock),
        made.regions,
        code,
        chosen_jobs,
        chosen_data,
        chosen_planning,
        mesh,
        events or NoEvents(),
        {},
        "1.2.3",
        made.scaling,
        webhooks or webhooks_of(made),
        Audit(made.facts.publish, clock=made.clock),
    )
    return api.create(
        parts, ops=[], access=access or open_to(api_key), loopback=loopback,
        limits=limits or BodyLimits(default=1 << 16, infer=1 << 20, code=1 << 20), room=room or Room(made.root),
        closing=asyncio.Event(), infer=InferLimits(1 << 20, shared_memory=shared),
    )  # fmt: skip


def webhooks_of(
    made: Gateway, *, networks: str = "", records: Mapping[str, Record] | None = None, poster: Any = None,
    letters: Sequence[Letter] = (),
) -> Webhooks:
    """Webhooks in memory; addresses of these networks are let. letters: what any of them has given up."""
    async def newest() -> int:
        return 7

    async def dead(durable: str, limit: int) -> list[Letter]:
        return list(letters)[-limit:]

    reached = Poster(allowed=addresses.networks(networks), tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return Webhooks(
        WebhookStore(FakeBucket()), poster or reached, clock=made.clock, random_bytes=lambda count: b"r" * count,
        newest=newest, records=lambda: dict(records or {}), dead=dead, changed=lambda: None,
    )  # fmt: skip


def http(made: Gateway, **parts: Any) -> httpx.AsyncClient:
    """A client of the REST API over the gateway, without sockets."""
    transport = httpx.ASGITransport(app=rest_app(made, **parts))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")
