"""shardsvc, forecaster and brain: datasets, forecasts, plans."""

import uuid
from collections.abc import Sequence
from typing import Any

from recmesh.pb import (
    brain_pb2,
    brain_pb2_grpc,
    forecaster_pb2,
    forecaster_pb2_grpc,
    shardsvc_pb2,
    shardsvc_pb2_grpc,
)
from services.gateway.domain.scaling import Decision, Measured
from services.gateway.peers.documents import document
from services.gateway.peers.mesh import Mesh

QUICK_S = 10.0
INSPECT_S = 60.0
"""Opens every file of a dataset."""

Document = dict[str, Any]


class DataPeer:
    """Datasets, by shardsvc."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    @property
    def _shards(self) -> "shardsvc_pb2_grpc.ShardsAsyncStub":
        return shardsvc_pb2_grpc.ShardsStub(self._mesh.channel("shardsvc"))

    async def inspect(self, dataset_json: str) -> Document:
        """Columns and counts of a dataset; creates nothing."""
        request = shardsvc_pb2.InspectRequest(dataset_json=dataset_json)
        return document(await self._shards.Inspect(request, timeout=INSPECT_S))

    async def register(self, name: str, dataset_json: str) -> Document:
        """Give a dataset a name."""
        request = shardsvc_pb2.RegisterDatasetRequest(name=name, dataset_json=dataset_json)
        return document(await self._shards.RegisterDataset(request, timeout=INSPECT_S))

    async def get(self, name: str) -> Document:
        """A registered dataset."""
        request = shardsvc_pb2.GetDatasetRequest(name=name)
        return document(await self._shards.GetDataset(request, timeout=QUICK_S))

    async def remove(self, name: str) -> bool:
        """Forget a name; whether there was one."""
        request = shardsvc_pb2.RemoveDatasetRequest(name=name)
        return (await self._shards.RemoveDataset(request, timeout=QUICK_S)).existed

    async def list(self) -> Document:
        """All registered datasets."""
        return document(await self._shards.ListDatasets(shardsvc_pb2.ListDatasetsRequest(), timeout=QUICK_S))


class PlanningPeer:
    """Forecasts and plans. Unavailable, soon, where the service that knows them is away."""

    def __init__(self, mesh: Mesh, *, rate_step_s: float = 10.0, node: str = "", pods: bool = False) -> None:
        """node: on which models' processes run; empty: on several. pods: they are."""
        self._mesh, self._node, self._pods = mesh, node, pods
        self._rate_step_s = rate_step_s
        self._asker = uuid.uuid4().hex
        """Each gateway process has models' processes of its own."""

    async def forecast(
        self, series: str, *, horizon: int, step_s: float, level: float, season_s: float
    ) -> Document:
        """What is expected of a series, by forecaster."""
        stub = forecaster_pb2_grpc.ForecasterStub(await self._mesh.present("forecaster"))
        request = forecaster_pb2.ForecastRequest(
            series=series, horizon=horizon, step_s=step_s, level=level, season_s=season_s
        )
        return document(await stub.Forecast(request, timeout=QUICK_S))

    async def series(self, *, prefix: str, limit: int) -> Document:
        """The series that forecaster knows."""
        stub = forecaster_pb2_grpc.ForecasterStub(await self._mesh.present("forecaster"))
        return document(
            await stub.Series(forecaster_pb2.SeriesRequest(prefix=prefix, limit=limit), timeout=QUICK_S)
        )

    async def rates(self, series: str, *, since: float, until: float, step_s: float, limit: int) -> Document:
        """What was measured of a series, by forecaster."""
        stub = forecaster_pb2_grpc.ForecasterStub(await self._mesh.present("forecaster"))
        request = forecaster_pb2.HistoryRequest(series=series, since=since, until=until, step_s=step_s, limit=limit)
        return document(await stub.History(request, timeout=QUICK_S))

    async def tell_rates(
        self, series: str, points: Sequence[tuple[float, float]], *, step_s: float, counter: bool
    ) -> Document:
        """Values per second over `step_s` from each moment on, or what a counter showed; forecaster keeps them."""
        stub = forecaster_pb2_grpc.ForecasterStub(await self._mesh.present("forecaster"))
        request = forecaster_pb2.ObserveRequest(
            series=series, step_s=step_s, counter=counter,
            points=[forecaster_pb2.Point(at=at, value=value) for at, value in points],
        )  # fmt: skip
        return document(await stub.Observe(request, timeout=QUICK_S))

    async def processes(self, measured: Measured) -> Sequence[Decision]:
        """How many processes of each kind there should be now, by brain."""
        stub = brain_pb2_grpc.BrainStub(await self._mesh.present("brain"))
        rules, loads = measured.rules, measured.loads
        limits = {"cn": rules.cn, "hn": rules.hn}
        request = brain_pb2.PlanServingRequest(
            model=measured.model, asker=f"{self._asker} {measured.key}", series=f"model/{measured.model}",
            step_s=self._rate_step_s, arrivals_per_s=measured.arrivals_per_s, window_s=measured.window_s,
            elsewhere=measured.elsewhere,
            kinds=[
                brain_pb2.ServingKind(
                    name=kind, replicas=load.replicas, min=limits[kind].min, max=limits[kind].max,
                    busy=min(1.0, load.busy), answered_per_s=load.answered_per_s, waiting=load.waiting,
                    start_s=load.start_s,
                )
                for kind, load in loads.items()
            ],
            target_utilisation=rules.target_utilisation, quantile=rules.quantile, hold_s=rules.hold_s,
            dry_run=rules.dry_run, latency_s=measured.latency_s, node=self._node, pods=self._pods,
        )  # fmt: skip
        reply = await stub.PlanServing(request, timeout=QUICK_S)
        return [
            Decision(
                each.kind, each.replicas, each.reason, each.explanation, each.demand_per_s, each.capacity_per_s
            )
            for each in reply.decisions if each.kind in loads
        ]  # fmt: skip

    async def loans(self, *, is_open: bool, limit: int) -> Document:
        """What training lends to serving: the pool as it is, and the ledger, by brain."""
        stub = brain_pb2_grpc.BrainStub(await self._mesh.present("brain"))
        return document(await stub.Loans(brain_pb2.LoansRequest(open=is_open, limit=limit), timeout=QUICK_S))

    async def explain(self, job_id: str) -> Document:
        """Why a job has the resources it has, by brain."""
        stub = brain_pb2_grpc.BrainStub(await self._mesh.present("brain"))
        return document(await stub.Explain(brain_pb2.ExplainRequest(job_id=job_id), timeout=QUICK_S))
