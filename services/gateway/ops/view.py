"""What the ops page shows, as rows and numbers."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import MeshError
from recmesh.serving import halves
from recmesh.serving.split import manifest
from recmesh.serving.split.manifest import Manifest
from services.gateway.app.deliveries import Deliveries
from services.gateway.app.models import Models
from services.gateway.app.observation import Observation
from services.gateway.app.scaling import Scaling
from services.gateway.app.served import Served
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.statistics import ModelStatistics, Outcome
from services.gateway.domain.traffic import Traffic
from services.gateway.domain.webhooks import Record, Webhook
from services.gateway.peers.mesh import Mesh, ServiceHealth
from services.gateway.runtimes.pool import Runtimes, RuntimeStatus

REFRESH_S = 3.0
MAX_PICTURE_BYTES = 1 << 20


class View:
    """A snapshot that is refreshed in the background, so that showing the page asks nobody."""

    def __init__(
        self,
        models: Models,
        observation: Observation,
        runtimes: Runtimes,
        mesh: Mesh,
        scaling: Scaling,
        deliveries: Deliveries | None = None,
        *,
        dashboards: Mapping[str, str],
    ) -> None:
        self._models = models
        self._observation = observation
        self._runtimes = runtimes
        self._mesh = mesh
        self.scaling = scaling
        self._deliveries = deliveries
        self.dashboards = dict(dashboards)
        self.versions: Sequence[ModelVersion] = ()
        self.services: Sequence[ServiceHealth] = ()

    async def refresh(self) -> float:
        """Ask the registry and the services; answers when to ask again."""
        versions, services = await asyncio.gather(
            self._models.versions(), self._mesh.health(), return_exceptions=True
        )
        for found in (versions, services):
            if isinstance(found, BaseException) and not isinstance(found, MeshError):
                raise found
        self.versions = versions if isinstance(versions, list) else self.versions
        self.services = services if isinstance(services, list) else self.services
        return REFRESH_S

    def now(self) -> float:
        """Unix seconds, for ages."""
        return self._observation.now()

    def runtimes(self) -> Sequence[RuntimeStatus]:
        """The model servers."""
        return self._runtimes.status()

    async def told(self) -> Sequence[tuple[RuntimeStatus, Mapping[str, Any]]]:
        """The processes, each with what it says of itself."""
        return await self._runtimes.told()

    def loaded(self) -> Sequence[Served]:
        """All versions in memory or at rest."""
        return [item for name in self._models.serving.names for item in self._models.serving.versions(name)]

    def traffic(self, name: str) -> Traffic:
        """The rules of a model."""
        return self._models.serving.traffic(name)

    def split_of(self, served: Served | None) -> Manifest | None:
        """How a version is cut; None where it is not, or its folder cannot be read."""
        if served is None or served.settings.split == "never":
            return None
        try:
            return manifest.load(served.folder / manifest.FOLDER)
        except MeshError:
            return None

    def why_whole(self, served: Served) -> str:
        """Why a version would be served whole if it were loaded now; empty where in halves."""
        try:
            return halves.why_whole(served.folder, served.settings)
        except MeshError as error:
            return str(error)

    def picture_of(self, served: Served | None) -> Path | None:
        """The picture of the cut, where `recmesh partition` left one."""
        path = None if served is None else served.folder / manifest.FOLDER / manifest.PICTURE
        return path if path is not None and path.is_file() and path.stat().st_size <= MAX_PICTURE_BYTES else None

    def find(self, name: str, version: str) -> Served | None:
        """A loaded version."""
        return self._models.serving.find(name, version)

    def statistics(self) -> Mapping[tuple[str, str], ModelStatistics]:
        """By model and version."""
        return self._observation.statistics

    def serves(self, name: str, version: str) -> bool:
        """True when a request would be run now."""
        return self._models.serving.is_ready(name, version)

    def rates(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """Requests per second by model, over the last hour."""
        return self._observation.chart()

    def recent(self) -> Sequence[Outcome]:
        """The last requests, newest first."""
        return list(reversed(self._observation.recent))

    def webhooks(self) -> Sequence[tuple[Webhook, Record | None]]:
        """All of the mesh; with what was seen of each where this gateway delivers."""
        if self._deliveries is None:
            return []
        records = self._deliveries.records()
        return [(hook, records.get(hook.name)) for hook in self._deliveries.hooks]

    def summary(self) -> Mapping[str, Any]:
        """For $SRV.STATS."""
        statistics = list(self._observation.statistics.values())
        return {
            "models": len(self.versions),
            "serving": sum(self.serves(item.name, item.version) for item in self.versions),
            "requests": sum(item.success.count + item.fail.count for item in statistics),
            "errors": sum(item.fail.count for item in statistics),
            "samples": sum(item.samples for item in statistics),
        }
