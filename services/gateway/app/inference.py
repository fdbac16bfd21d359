"""The Open Inference Protocol's questions about server and models, the same for REST and gRPC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recmesh.serving.card import ModelCard
from recmesh.serving.settings import ServingSettings
from services.gateway.app.models import Models
from services.gateway.app.observation import Observation
from services.gateway.domain import inference
from services.gateway.domain.callers import MODELS, Caller
from services.gateway.domain.models import ModelVersion, State
from services.gateway.domain.statistics import ModelStatistics

EXTENSIONS = (
    "binary_tensor_data", "model_configuration", "model_repository", "model_repository(unload_dependents)",
    "schedule_policy", "statistics", "system_shared_memory",
)  # fmt: skip
STATES: Mapping[State, str] = {
    State.REGISTERED: "UNAVAILABLE", State.LOADING: "LOADING", State.READY: "READY",
    State.FAILED: "UNAVAILABLE",
    State.UNLOADED: "UNAVAILABLE",
}  # fmt: skip
"""Ours in the repository extension's words."""


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """Who answers."""

    name: str
    version: str
    extensions: Sequence[str] = EXTENSIONS


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A model version in the repository index."""

    name: str
    version: str
    state: str
    reason: str


class Inference:
    """Reads what `Models` and `Observation` know."""

    def __init__(self, models: Models, observation: Observation, *, version: str) -> None:
        self._models = models
        self._observation = observation
        self._version = version

    @property
    def ready(self) -> bool:
        """True once what served before a restart serves again, or has failed."""
        return self._models.loading.restored.is_set()

    def server(self) -> ServerDescription:
        """Who answers."""
        return ServerDescription("recmesh", self._version)

    async def model_ready(self, name: str, version: str = "") -> bool:
        """True when a request would be run now; NotFound for an unknown model."""
        if self._models.serving.is_ready(name, version):
            return True
        await self._models.get(name, version)
        return False

    async def why_not_ready(self, name: str, version: str = "") -> str:
        """Its state, and the reason where there is one; NotFound for an unknown model."""
        record = await self._models.get(name, version)
        if record.state is State.READY:
            return "no process runs it now"
        return f"it is {record.state}{f': {record.reason}' if record.reason else ''}"

    async def metadata(self, name: str, version: str = "") -> tuple[ModelVersion, ModelCard, list[str]]:
        """A model, what it takes and gives, and its versions."""
        record, card = await self._models.card(name, version)
        versions = [version] if version else [item.version for item in await self._models.versions(name)]
        return record, card, versions

    async def config(self, name: str, version: str = "") -> tuple[ModelVersion, ModelCard, ServingSettings]:
        """A model, what it takes and gives, and how it is served."""
        record, card = await self._models.card(name, version)
        return record, card, await self._models.settings(record)

    async def statistics(self, name: str = "", version: str = "") -> dict[tuple[str, str], ModelStatistics]:
        """Of one version, one model, or all; models without requests have zeros."""
        records = await self._models.versions(name)
        chosen = [item for item in records if version in ("", item.version)]
        if name and not chosen:
            raise inference.unknown_model(name, version if records else "")
        counted = self._observation.statistics
        return {
            (item.name, item.version): counted.get((item.name, item.version), ModelStatistics())
            for item in chosen
        }

    @property
    def rate_step_s(self) -> float:
        """Seconds over which `rates` are means."""
        return self._observation.step_s

    def rates(self) -> dict[str, float]:
        """Requests per second of each model, over the newest step that is over."""
        return {name: points[-1][1] for name, points in self._observation.chart().items() if points}

    async def unload(self, name: str, version: str = "", *, dependents: bool = False, caller: Caller) -> None:
        """Serve a model no more; with `dependents`, an ensemble's models neither: all that the caller may, or none."""
        steps = (await self.metadata(name, version))[1].steps if dependents else ()
        models = sorted({step.model for step in steps})
        for model in (name, *models):
            caller.check(MODELS, model)
        await self._models.unload(name, version)
        for model in models:
            await self._models.unload(model)

    async def index(self, *, only_ready: bool = False) -> list[IndexEntry]:
        """All versions with their states."""
        entries = [
            IndexEntry(item.name, item.version, STATES[item.state], item.reason or str(item.state))
            for item in await self._models.versions()
        ]
        return [item for item in entries if item.state == "READY" or not only_ready]
