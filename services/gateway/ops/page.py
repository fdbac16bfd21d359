"""The page, and what probes and Prometheus read, as routes of the gateway's own HTTP port."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import quote, urlsplit

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from recmesh.runtime.ops import Cell, Chart, Log, Page, Table, Tile, Tiles, Tone, router, state, text
from recmesh.runtime.ops.server import Live, linked, tell_ready
from services.gateway.domain.statistics import Histogram, ModelStatistics
from services.gateway.ops import serving
from services.gateway.ops.relay import Relay
from services.gateway.ops.view import View

SERVICE = "gateway"
PICTURE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
}  # fmt: skip
HEALTH_TONES = {"serving": Tone.OK, "not_serving": Tone.WARN, "unreachable": Tone.BAD}


class OpsFace:
    """The page with its probes; the lifecycle tells it whether the process is ready."""

    def __init__(
        self, view: View, *, version: str, grafana: str = "", waits_for: Callable[[], str] = lambda: "",
        relays: bool = True,
    ) -> None:
        """waits_for: why requests had better go to another replica, or ''. relays: tell metrics of CNs and HNs, too;
        False where they have ports of their own."""
        self._ready = False
        self._relay = Relay(view.told if relays else None)
        self._waits_for = waits_for
        self._view = view
        self._page = linked(page(view), grafana, SERVICE)
        self._serving = linked(serving.page(view), grafana, SERVICE)
        self.live = Live(SERVICE, self._page, version=version)
        self.serving = Live(SERVICE, self._serving, version=version)

    def set_ready(self, ready: bool) -> None:
        """Told by the lifecycle."""
        self._ready = ready

    def routes(self) -> Sequence[BaseRoute]:
        """To be added to the public application, behind its guard."""
        return [
            *router(SERVICE, self._page, live=self.live).routes,
            Route("/serving", self._to_serving),
            Route("/serving/cut/{name}/{version}.svg", self._cut),
            Mount("/serving", router(SERVICE, self._serving, live=self.serving)),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
        ]

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def _readyz(self, request: Request) -> Response:
        """The API's readiness, after a start once models serve again; that of models is /v2/health/ready."""
        reason = self._waits_for() if self._ready else "starting or stopping"
        return JSONResponse({"ready": not reason, "reason": reason}, status_code=503 if reason else 200)

    async def _to_serving(self, request: Request) -> Response:
        return RedirectResponse(f"/serving/?{request.url.query}" if request.url.query else "/serving/")

    async def _cut(self, request: Request) -> Response:
        """A picture from a model's folder: nothing in it may run or be fetched."""
        served = self._view.find(request.path_params["name"], request.path_params["version"])
        path = self._view.picture_of(served)
        if path is None:
            return PlainTextResponse("there is no such picture", status_code=404)
        content = await asyncio.to_thread(path.read_bytes)
        return Response(content, media_type="image/svg+xml", headers=PICTURE_HEADERS)

    async def _metrics(self, request: Request) -> Response:
        tell_ready(self._ready and not self._waits_for())
        await self._relay.look()
        return Response(generate_latest() + generate_latest(self._relay.registry), media_type=CONTENT_TYPE_LATEST)


def page(view: View) -> Page:
    """What serves, how fast, what went wrong."""
    return Page(
        "gateway",
        [
            Tiles("Serving", lambda: tiles(view)),
            Table("Models", MODEL_COLUMNS, lambda: model_rows(view), empty="no model is registered yet"),
            Chart("Requests per second", lambda: chart(view)),
            Table(
                "Model servers", RUNTIME_COLUMNS, lambda: runtime_rows(view), empty="none runs", wide=False
            ),
            Table("Webhooks", WEBHOOK_COLUMNS, lambda: webhook_rows(view), empty="none", limit=100),
            Table("Last requests", REQUEST_COLUMNS, lambda: request_rows(view), empty="none yet", limit=25),
            Table("Services", SERVICE_COLUMNS, lambda: service_rows(view)),
            Log("Log"),
        ],
        subtitle="The public API: jobs, models, inference",
        links={"serving": "/serving/", "API documentation": "/docs", **view.dashboards},
    )


MODEL_COLUMNS = (
    "model", "version", "state", "framework", "requests", "errors", "p50", "p99", "samples", "job",
    "registered", "note",
)  # fmt: skip
RUNTIME_COLUMNS = ("framework", "version", "pid", "models", "waiting", "restarts")
REQUEST_COLUMNS = ("at", "model", "version", "samples", "time", "outcome")
WEBHOOK_COLUMNS = ("webhook", "receiver", "events", "state", "delivered", "failed", "dead", "waiting", "last", "note")
SERVICE_COLUMNS = ("service", "health", "answers in", "address", "dashboard", "note")


def chart(view: View) -> Mapping[str, Sequence[tuple[float, float | None]]]:
    """Each model's rate, window by window."""
    return {name: list(points) for name, points in view.rates().items()}


def tiles(view: View) -> Iterator[Tile]:
    """The numbers that matter."""
    statistics = list(view.statistics().values())
    served = sum(view.serves(item.name, item.version) for item in view.versions)
    failed = sum(item.state == "failed" for item in view.versions)
    errors, requests = sum(item.fail.count for item in statistics), _requests(statistics)
    last = [points[-1][1] for points in view.rates().values() if points]
    latency = _all(statistics)
    down = [item.service for item in view.services if item.status != "serving"]
    yield Tile("models serving", served, f"{len(view.versions)} versions", Tone.OK if served else Tone.IDLE)
    yield Tile("requests per second", text.count(sum(last)), "over the last 10 s", spark=_spark(view))
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        taken = latency.quantile(share)
        yield Tile(name, text.duration(taken) if taken else None, "since the start" if taken else "no request yet")
    yield Tile("errors", errors, f"of {requests} requests", Tone.WARN if errors else Tone.OK)
    yield Tile("failed models", failed, tone=Tone.BAD if failed else Tone.OK)
    note = ", ".join(down) if down else "all answer"
    up = f"{len(view.services) - len(down)}/{len(view.services)}"
    yield Tile("services", up, note, Tone.BAD if down else Tone.OK)


def model_rows(view: View) -> Iterator[Sequence[Cell | str | int]]:
    """Newest version of each name first."""
    for item in sorted(view.versions, key=lambda one: (one.name, -one.number)):
        counted = view.statistics().get((item.name, item.version), ModelStatistics())
        errors = Cell(str(counted.fail.count), Tone.WARN if counted.fail.count else Tone.PLAIN)
        p50, p99 = counted.latency.quantile(0.5), counted.latency.quantile(0.99)
        yield (
            Cell(item.name, href=f"/serving/?model={item.name}"), item.version, state(str(item.state)),
            item.framework,
            counted.success.count + counted.fail.count, errors, text.duration(p50) if p50 else "",
            text.duration(p99) if p99 else "",
            counted.samples, _job(view, item.job_id), text.age(item.created, now=view.now()), item.reason,
        )  # fmt: skip


def _job(view: View, job_id: str) -> Cell:
    """With the way to its own page, where one is known."""
    pages = view.dashboards.get("jobmaster", "").rstrip("/")
    return Cell(job_id, href=f"{pages}/?job={quote(job_id, safe='')}" if pages and job_id else "")


def runtime_rows(view: View) -> Iterator[Sequence[Cell | str | int]]:
    """One row for each framework in use."""
    for item in view.runtimes():
        pid = Cell(str(item.pid), Tone.OK) if item.pid else Cell("down", Tone.BAD)
        restarts = Cell(str(item.restarts), Tone.WARN if item.restarts else Tone.PLAIN)
        yield item.framework, item.version, pid, ", ".join(item.models), item.queued, restarts


def request_rows(view: View) -> Iterator[Sequence[Cell | str | int]]:
    """Newest first."""
    for item in view.recent():
        outcome = Cell(item.error, Tone.BAD) if item.error else Cell("ok", Tone.OK)
        yield (
            text.age(item.at, now=view.now()),
            item.model,
            item.version,
            item.samples,
            text.duration(item.total_s),
            outcome,
        )


def webhook_rows(view: View) -> Iterator[Sequence[Cell | str | int]]:
    """By name; what is known of deliveries is told by the gateway that makes them."""
    for hook, record in view.webhooks():
        host = urlsplit(hook.url).netloc
        if hook.disabled or record is None:
            shown = state("stopped") if hook.disabled else Cell("elsewhere", Tone.IDLE)
            yield hook.name, host, ", ".join(hook.types), shown, "", "", "", "", "", hook.disabled
            continue
        failing = bool(record.failing_since)
        word = Cell("failing", Tone.BAD) if failing else state("ok" if record.delivered else "idle")
        since = f"for {text.duration(view.now() - record.failing_since)}: {record.last}" if failing else ""
        dead = Cell(str(record.dead), Tone.BAD if record.dead else Tone.PLAIN)
        last = text.age(record.last_at, now=view.now()) if record.last_at else ""
        yield (
            hook.name, host, ", ".join(hook.types), word, record.delivered, record.failures, dead,
            record.waiting + record.behind, last, since,
        )  # fmt: skip


def service_rows(view: View) -> Iterator[Sequence[Cell | str]]:
    """The rest of the mesh, with the way to its pages."""
    for item in view.services:
        link = view.dashboards.get(item.service, "")
        health = Cell(item.status.replace("_", " "), HEALTH_TONES[item.status])
        shown = Cell(link, href=link) if link else ""
        yield item.service, health, text.duration(item.latency_s), item.address, shown, item.reason


def _requests(statistics: Sequence[ModelStatistics]) -> int:
    return sum(item.success.count + item.fail.count for item in statistics)


def _all(statistics: Sequence[ModelStatistics]) -> Histogram:
    together = Histogram()
    for item in statistics:
        together.counts = [a + b for a, b in zip(together.counts, item.latency.counts, strict=True)]
        together.total += item.latency.total
    return together


def _spark(view: View) -> Sequence[float]:
    """Requests per second of all models together, window by window."""
    sums: dict[float, float] = {}
    for points in view.rates().values():
        for at, value in points:
            sums[at] = sums.get(at, 0.0) + value
    return [sums[at] for at in sorted(sums)][-60:]
