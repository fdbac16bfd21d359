"""Models that follow an online job: which version serves, rollback and resumption, and figures of the tiers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import replace

from recmesh.runtime import telemetry
from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition, MeshError, Unavailable
from services.gateway.app.ports import Document, Runtimes
from services.gateway.app.served import Served
from services.gateway.app.serving import Serving, ServingLimits
from services.gateway.domain.models import with_hold
from services.gateway.runtimes.process import REFUSED
from services.gateway.store.registry import Registry

ASK_S = 10.0
REFRESH_S = 5.0
TIERS = ("fresh", "cache", "valkey", "disk", "absent")

_log = telemetry.get_logger(__name__)
_metrics = telemetry.Metrics("gateway")
_version = _metrics.gauge("fresh_version", "The snapshot of its job that a model serves", labels=("model", "version"))
_lag = _metrics.gauge(
    "fresh_install_lag_seconds", "From the commit of the last snapshot until it served", labels=("model", "version")
)
_ids = _metrics.gauge(
    "embedding_ids", "Ids looked up since the model was loaded, by the tier that answered",
    labels=("model", "version", "table", "tier"),
)  # fmt: skip


class Freshness:
    """Asks the model servers; what is rolled back to is kept in the registry, and outlives them."""

    def __init__(
        self, registry: Registry, serving: Serving, runtimes: Runtimes, *, limits: ServingLimits,
        why_not_serving: Callable[[str, str], Awaitable[MeshError]],
    ) -> None:
        """`why_not_serving`: of a model and a version (or none) that is not loaded."""
        self._registry, self._serving, self._runtimes, self._limits = registry, serving, runtimes, limits
        self._why_not_serving = why_not_serving
        self._measured: dict[str, tuple[str, str, tuple[str, ...]]] = {}
        self._asking: dict[str, asyncio.Task[Document]] = {}

    async def status(self, name: str, version: str = "") -> Document:
        """Of a loaded version (the one that serves). FailedPrecondition: it follows no job, or is not loaded, and why;
        Unavailable: it is being loaded, and what it waits for."""
        return await self._status(await self._served(name, version))

    async def roll_back(self, name: str, to: int, *, version: str = "") -> Document:
        """Serve rows and weights of an earlier snapshot, until `resume`; what comes meanwhile is not applied.

        NotFound, DataLoss: there is no such version, nothing has changed. Unavailable (HOLD_NOT_TOLD): it is noted and
        holds from the next load on; the model server is told again until it answers. So with `resume`.
        """
        served = await self._served(name, version)
        return await self._hold(served, "rollback", to)

    async def resume(self, name: str, *, version: str = "") -> Document:
        """Follow again; answers when the newest version serves."""
        served = await self._served(name, version)
        return await self._hold(served, "resume", 0)

    async def measure(self) -> float:
        """Figures of all that follow, for Prometheus; seconds until the next time."""
        loaded = self._serving.all()
        self._forget_all_but({served.record.key: served for served in loaded})
        for served in loaded:
            if served.card.apart is None or served.resting:
                continue
            try:
                if served.untold:
                    await self._tell_again(served)
                told = await self._status(served)
            except MeshError as error:
                _log.info("model %s does not tell how fresh it is: %s", served.record.key, error)
                continue
            if self._serving.find(served.record.name, served.record.version) is served:
                self._measured[served.record.key] = (served.record.name, served.record.version, tuple(told["tables"]))
                _show(served, told)
        return REFRESH_S

    def _forget_all_but(self, loaded: Mapping[str, Served]) -> None:
        """A model that is gone has no figures, rather than its last ones for ever."""
        for key in [key for key in self._measured if key not in loaded]:
            name, version, tables = self._measured.pop(key)
            _version.remove(name, version)
            with suppress(KeyError):             # it never took a version from its job
                _lag.remove(name, version)
            for table in tables:
                for tier in TIERS:
                    _ids.remove(name, version, table, tier)

    async def _served(self, name: str, version: str) -> Served:
        served = self._serving.find(name, version)
        if served is None:
            raise await self._why_not_serving(name, version)
        if served.card.apart is None:
            raise FailedPrecondition(
                f"model {served.record.key} follows no job: its tables are in its program", reason="NOT_FRESH"
            )
        await served.awake(self._runtimes, load_timeout_s=self._limits.load_timeout_s)
        return served

    async def _hold(self, served: Served, act: str, number: int) -> Document:
        """Note the hold in the registry, then tell the model server: what ends either in between, the record stands."""
        async with served.holding:
            before, untold = served.record.held, served.untold
            with served.busy():
                await self._note(served, number)
                try:
                    return await self._tell(served, act, number)
                except REFUSED:                  # nothing was changed there
                    await self._note(served, before)
                    served.untold = untold
                    raise
                except MeshError as error:
                    raise Unavailable(
                        f"it is noted that model {served.record.key} is to {_wish(number)}, and holds from its next "
                        f"load on; its model server has not said that it does: {error}", reason="HOLD_NOT_TOLD",
                    ) from error

    async def _note(self, served: Served, held: int | None) -> None:
        record = served.record
        served.record = await self._registry.change(
            record.name, record.version, lambda item: replace(item, held=held)
        )
        served.settings = with_hold(served.settings, held)

    async def _tell(self, served: Served, act: str, number: int) -> Document:
        served.untold = True
        told = await self._ask(served, act, number)
        served.untold = False
        return told

    async def _tell_again(self, served: Served) -> None:
        async with served.holding:
            held = served.settings.freshness.held
            if served.untold:
                try:
                    await self._tell(served, "rollback" if held else "resume", held)
                except REFUSED as error:
                    served.untold = False        # said once is enough: it cannot be had
                    _log.warning("model %s cannot %s: %s", served.record.key, _wish(held), error)

    async def _status(self, served: Served) -> Document:
        """One question at a time of a model, whose answer all have who ask meanwhile. DeadlineExceeded."""
        key = served.registration
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(
                self._ask(served, "status", 0), name=f"freshness of {served.record.key}", context=Context()
            )
            asking.add_done_callback(lambda done: self._asked(key, done))
        try:
            async with asyncio.timeout(ASK_S):
                return await asyncio.shield(asking)
        except TimeoutError:
            why = f"model {served.record.key} did not tell how fresh it is within {ASK_S:g} s"
            raise DeadlineExceeded(why, reason="MODEL_TOO_SLOW") from None

    def _asked(self, key: str, done: "asyncio.Task[Document]") -> None:
        self._asking.pop(key, None)
        if not done.cancelled():
            done.exception()                     # whoever asked has it; maybe nobody waits any more

    async def _ask(self, served: Served, act: str, number: int) -> Document:
        timeout_s = ASK_S if act == "status" else self._limits.load_timeout_s
        told = await self._runtimes.freshen(
            served.runtime, served.record.key, act, number, settings=served.settings, timeout_s=timeout_s
        )
        status = told["status"]
        return {
            "name": served.record.name, "model_version": served.record.version, "fresh_version": status["version"],
            **{key: value for key, value in status.items() if key != "version"}, "versions": told["versions"],
        }


def _wish(held: int) -> str:
    return f"stay at version {held}" if held else "follow its job"


def _show(served: Served, told: Document) -> None:
    labels = (served.record.name, served.record.version)
    _version.labels(*labels).set(told["fresh_version"])
    if told["committed_at"]:
        _lag.labels(*labels).set(told["commit_to_install_s"])
    for table, counts in told["tables"].items():
        for tier in TIERS:
            _ids.labels(*labels, table, tier).set(counts[tier])
