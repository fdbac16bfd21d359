"""Between a client and a real API server: what networks and busy servers do to calls and watches when told to."""

import asyncio
import json
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

HOP = {"transfer-encoding", "content-length", "content-encoding", "connection"}


class ApiProxy:
    """All goes through unless it is told otherwise."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._config: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
        self.kubeconfig = folder / "through-proxy"
        """For the client."""
        self.delay_s = 0.0
        """Before each call is passed on."""
        self.refusals: dict[str, list[int]] = {}
        """By method (`WATCH` is one): statuses that the next calls are answered with, instead of being passed on."""
        self.lost_answers: Counter[str] = Counter()
        """By method: so many calls are carried out, and their answers are lost."""
        self.unversioned = False
        """A DELETE answers as where another one of the same moment was first."""
        self.expired = 0
        """So many watches end with an event that says: too old a version."""
        self.seen: Counter[tuple[str, int]] = Counter()
        """Calls by method and status as the client got it."""
        self._watches: set[asyncio.Transport] = set()
        self._session: aiohttp.ClientSession | None = None

    @property
    def watches(self) -> int:
        """That are open now."""
        return len(self._watches)

    def cut(self) -> int:
        """Breaks every watch off in the middle; how many there were."""
        cut, self._watches = self._watches, set()
        for transport in cut:
            transport.abort()
        return len(cut)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ApiProxy"]:
        """Listens within the block."""
        cluster = self._config["clusters"][0]["cluster"]
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self._upstream = cluster["server"]
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        own = json.loads(json.dumps(self._config))
        own["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        self.kubeconfig.write_text(json.dumps(own))
        async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as self._session:
            try:
                yield self
            finally:
                self.cut()
                await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        method = "WATCH" if "watch" in request.query else request.method
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        refusals = self.refusals.get(method)
        if refusals:
            return self._refuse(method, refusals.pop(0))
        headers = {name: value for name, value in request.headers.items() if name.lower() not in {"host", *HOP}}
        url = self._upstream + request.path_qs
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, url, headers=headers, data=await request.read(), timeout=timeout
        ) as answer:
            if method == "WATCH":
                return await self._stream(request, answer)
            body = await answer.read()
            if self.lost_answers[method] > 0:
                self.lost_answers[method] -= 1
                self.seen[method, 0] += 1
                assert request.transport is not None
                request.transport.abort()
            self.seen[method, answer.status] += 1
            if method == "DELETE" and self.unversioned:
                told = json.loads(body)
                told["metadata"].pop("resourceVersion", None)
                return web.json_response(told, status=answer.status)
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP}
            return web.Response(status=answer.status, body=body, headers=kept)

    def _refuse(self, method: str, status: int) -> web.Response:
        self.seen[method, status] += 1
        reason = {409: "Conflict", 410: "Expired", 429: "TooManyRequests"}.get(status, "ServiceUnavailable")
        body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": f"{reason} (test)"}
        return web.json_response(body, status=status, headers={"Retry-After": "0"} if status == 429 else {})

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        told = web.StreamResponse(status=answer.status)
        told.headers["Content-Type"] = answer.headers.get("Content-Type", "application/json")
        self.seen["WATCH", answer.status] += 1
        await told.prepare(request)
        if self.expired > 0:
            self.expired -= 1
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version (test)"}
            await told.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return told
        assert request.transport is not None
        self._watches.add(request.transport)
        try:
            with suppress(ConnectionError):
                async for part in answer.content.iter_any():
                    await told.write(part)
        finally:
            if request.transport is not None:
                self._watches.discard(request.transport)
        return told


@contextmanager
def proxied(kubeconfig: Path, folder: Path) -> Iterator[ApiProxy]:
    """One in a thread of its own, for other processes."""
    proxy, ends, begun = ApiProxy(kubeconfig, folder), threading.Event(), threading.Event()

    async def serve() -> None:
        async with proxy.serving():
            begun.set()
            await asyncio.to_thread(ends.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="api-proxy")
    thread.start()
    try:
        assert begun.wait(60.0)
        yield proxy
    finally:
        ends.set()
        thread.join()
