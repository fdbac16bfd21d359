"""What the ops page shows, as rows and numbers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from recmesh.runtime.errors import MeshError
from services.gateway.app.models import Models
from services.gateway.app.observation import Observation
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.statistics import ModelStatistics, Outcome
from services.gateway.peers.mesh import Mesh, ServiceHealth
from services.gateway.runtimes.pool import Runtimes, RuntimeStatus

REFRESH_S = 3.0


class View:
    """A snapshot that is refreshed in the background, so that showing the page asks nobody."""

    def __init__(
        self,
        models: Models,
        observation: Observation,
        runtimes: Runtimes,
        mesh: Mesh,
        *,
        dashboards: Mapping[str, str],
    ) -> None:
        self._models = models
        self._observation = observation
        self._runtimes = runtimes
        self._mesh = mesh
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
