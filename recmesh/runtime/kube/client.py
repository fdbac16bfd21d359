"""Calls of the API server."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
import orjson
from kubernetes.aio import client as api

from recmesh.runtime.bucket import Bucket
from recmesh.runtime.deadline import bounded
from recmesh.runtime.errors import DeadlineExceeded, Unavailable
from recmesh.runtime.kube.errors import error_of
from recmesh.runtime.kube.resources import Resource

Object = dict[str, Any]
TIMEOUT_S = 15.0
CONNECT_S = 5.0
PAGE = 500
_AGAIN = (429, 500, 502, 503, 504)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_PATCHES = {
    "merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class KubeClient:
    """Calls are tried again within their deadline where the server is away or asks for it; each is safe to repeat, but
    a `create` whose answer was lost says AlreadyExists then. `calls` counts requests, by (verb, plural)."""

    def __init__(
        self, client: api.ApiClient, *, field_manager: str, calls_per_s: float, burst: float,
        refresh: asyncio.Task[None] | None = None,
    ) -> None:
        self._client, self._refresh = client, refresh
        self.field_manager = field_manager
        self._bucket = Bucket(per_s=calls_per_s, burst=burst)
        self.calls: Counter[tuple[str, str]] = Counter()

    async def close(self) -> None:
        """Ends connections, watches included."""
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.gather(self._refresh, return_exceptions=True)
        session = self._client.rest_client.pool_manager
        if session is not None and session.connector is not None:
            await session.connector.close(abort_ssl=True)   # else TLS would say goodbye after the loop has gone
        await self._client.close()

    # -- objects -----------------------------------------------------------------------------------------

    async def apply(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str = "", subresource: str = "",
        force: bool = True, dry_run: bool = False, timeout_s: float | None = None,
    ) -> Object:
        """Server-side apply: the fields in `body` are this manager's from now on; those that it had besides go.

        force: fields that another manager set are taken over, as a controller does with what it owns; without it
        Aborted names them. `body` has apiVersion, kind and metadata.name.
        """
        query = {"fieldManager": self.field_manager, "force": "true" if force else "false"} | _dry(dry_run)
        path = resource.path(namespace, _name(body), subresource)
        return await self._object("PATCH", "apply", resource, path, query, body, "apply", timeout_s)

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str = "", name: str = "",
        subresource: str = "", dry_run: bool = False, timeout_s: float | None = None,
    ) -> Object:
        """AlreadyExists when the name is taken. With a subresource (`eviction`, `token`) `name` is its object's."""
        path = resource.path(namespace, name if subresource else "", subresource)
        query = {"fieldManager": self.field_manager} | _dry(dry_run)
        return await self._object("POST", "create", resource, path, query, body, "", timeout_s)

    async def get(
        self, resource: Resource, name: str, *, namespace: str = "", subresource: str = "",
        timeout_s: float | None = None,
    ) -> Object:
        """NotFound when it is not there."""
        path = resource.path(namespace, name, subresource)
        return await self._object("GET", "get", resource, path, {}, None, "", timeout_s)

    async def list(
        self, resource: Resource, *, namespace: str = "", labels: str = "", fields: str = "",
        timeout_s: float | None = None,
    ) -> tuple[Sequence[Object], str]:
        """(all objects that match, the resourceVersion of the whole), as of one moment; pages are put together."""
        found: list[Object] = []
        following = ""
        while True:
            query = {"limit": str(PAGE)} | _selected(labels, fields) | ({"continue": following} if following else {})
            path = resource.path(namespace)
            page = await self._object("GET", "list", resource, path, query, None, "", timeout_s)
            found += page.get("items") or []
            metadata = page.get("metadata") or {}
            following = metadata.get("continue") or ""
            if not following:
                return found, str(metadata.get("resourceVersion") or "")

    async def patch(
        self, resource: Resource, name: str, body: Any, *, namespace: str = "", subresource: str = "",
        kind: str = "merge", dry_run: bool = False, timeout_s: float | None = None,
    ) -> Object:
        """kind: merge or strategic (both safe to repeat, as JSON patches are not). With `metadata.resourceVersion` in
        the body, Aborted when it is another by now."""
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": self.field_manager} | _dry(dry_run)
        return await self._object("PATCH", "patch", resource, path, query, body, kind, timeout_s)

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", grace_s: int | None = None, uid: str = "",
        policy: str = "Background", timeout_s: float | None = None,
    ) -> Object:
        """Asks for its end; the object where it has yet to go, else a Status. NotFound when it is not there. uid:
        Aborted when the name is another object's by now."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        path = resource.path(namespace, name)
        return await self._object("DELETE", "delete", resource, path, {}, options, "", timeout_s)

    async def delete_all(
        self, resource: Resource, *, namespace: str, labels: str, grace_s: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """One call for all that match; `labels` must not be empty."""
        if not labels:
            raise ValueError("everything of a namespace is never meant")
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = resource.path(namespace)
        await self._object(
            "DELETE", "deletecollection", resource, path, _selected(labels, ""), options, "", timeout_s
        )

    async def logs(
        self, name: str, *, namespace: str, lines: int, container: str = "", limit_bytes: int = 256 << 10,
        timeout_s: float | None = None,
    ) -> str:
        """The last lines that a pod's container wrote. InvalidArgument while it has not started."""
        query = {"tailLines": str(lines), "limitBytes": str(limit_bytes)}
        query |= {"container": container} if container else {}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        body = await self._call("GET", ("logs", "pods"), path, query, None, "", timeout_s)
        return body.decode(errors="replace")

    # -- watches -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(
        self, resource: Resource, *, namespace: str = "", labels: str = "", fields: str = "", version: str,
        life_s: int, silence_s: float,
    ) -> AsyncIterator[AsyncIterator[Object]]:
        """Events of a watch, from after `version` on, until the server ends it (about `life_s`); for `follow`.

        Unavailable when nothing came for `silence_s`, or the connection broke.
        """
        query = {
            "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": str(life_s),
        } | _selected(labels, fields)
        doing = f"watch {resource.plural}"
        timeout = aiohttp.ClientTimeout(total=life_s + silence_s, sock_connect=CONNECT_S, sock_read=silence_s)
        await self._take_turn(TIMEOUT_S, doing)
        self.calls["watch", resource.plural] += 1
        try:
            answer = await self._send("GET", resource.path(namespace), query, None, "", timeout)
            try:
                if answer.status != 200:
                    raise error_of(answer.status, await answer.read(), doing=doing)
                yield _events(answer, doing)
            finally:
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()     # a goodbye by TLS could outlive the loop
                answer.close()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:    # ValueError: a line too long
            raise Unavailable(f"Kubernetes: {doing}: {_words(error)}") from error

    # -- one request -------------------------------------------------------------------------------------

    async def _object(
        self, method: str, verb: str, resource: Resource, path: str, query: Mapping[str, str], body: Any, kind: str,
        timeout_s: float | None,
    ) -> Object:
        answer = await self._call(method, (verb, resource.plural), path, query, body, kind, timeout_s)
        found: Object = orjson.loads(answer) if answer else {}
        return found

    async def _call(
        self, method: str, counted: tuple[str, str], path: str, query: Mapping[str, str], body: Any, kind: str,
        timeout_s: float | None,
    ) -> bytes:
        doing = f"{counted[0]} {path.rpartition('/namespaces/')[2].removeprefix('/')}"
        limit_s = bounded(timeout_s, default_s=TIMEOUT_S, method=doing) or TIMEOUT_S
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + limit_s, _FIRST_PAUSE_S
        while True:
            await self._take_turn(deadline - loop.time(), doing)
            self.calls[counted] += 1
            left_s = max(0.001, deadline - loop.time())
            again_s, failed = None, None
            try:
                timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=min(CONNECT_S, left_s))
                answer = await self._send(method, path, query, body, kind, timeout)
                async with answer:
                    content = await answer.read()
                if answer.status < 300:
                    return content
                failed = error_of(answer.status, content, doing=doing)
                if answer.status not in _AGAIN:
                    raise failed
                again_s = _retry_after_s(answer)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if loop.time() >= deadline:
                    raise DeadlineExceeded(f"Kubernetes: {doing}: no answer within {limit_s:g} s") from error
                failed = Unavailable(f"Kubernetes: {doing}: {_words(error)}")
            wait_s = max(again_s or 0.0, pause_s * random.uniform(0.5, 1.0))   # replicas must not come back together
            if loop.time() + wait_s >= deadline:
                raise failed
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _take_turn(self, patience_s: float, doing: str) -> None:
        wait_s = self._bucket.take(asyncio.get_running_loop().time(), patience_s=patience_s)
        if wait_s is None:
            raise Unavailable(
                f"Kubernetes: {doing}: too many calls wait for their turn", reason="CALLS_LIMITED"
            )
        if wait_s:
            await asyncio.sleep(wait_s)

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Any, kind: str, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": _PATCHES[kind] if kind else "application/json"}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        response = await self._client.call_api(method, url, headers, body, None, _request_timeout=limits)
        answer: aiohttp.ClientResponse = response.response
        return answer


async def _events(answer: aiohttp.ClientResponse, doing: str) -> AsyncIterator[Object]:
    while line := await answer.content.readline():
        if not line.endswith(b"\n"):
            raise Unavailable(f"Kubernetes: {doing}: the answer broke off")
        event: Object = orjson.loads(line)
        if event.get("type") == "ERROR":
            status = event.get("object") or {}
            raise error_of(int(status.get("code") or 500), orjson.dumps(status), doing=doing)
        yield event


def _retry_after_s(answer: aiohttp.ClientResponse) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None


def _selected(labels: str, fields: str) -> dict[str, str]:
    return ({"labelSelector": labels} if labels else {}) | ({"fieldSelector": fields} if fields else {})


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _name(body: Mapping[str, Any]) -> str:
    return str(body["metadata"]["name"])


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
