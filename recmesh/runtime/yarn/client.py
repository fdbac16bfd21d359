"""Calls of YARN's REST APIs (Hadoop 3.3 and later: ResourceManager, Services, NodeManager)."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import orjson

from recmesh.runtime.bucket import Bucket
from recmesh.runtime.deadline import bounded
from recmesh.runtime.errors import DeadlineExceeded, MeshError, Unavailable
from recmesh.runtime.yarn.errors import error_of

Object = dict[str, Any]
TIMEOUT_S = 15.0
CONNECT_S = 5.0
DELETE_S = 40.0
"""YARN answers a DELETE when the service has ended: it waits 10 s for it, and kills it then."""
NODE_S = 5.0
LIVE_STATES = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
SERVICES = "/app/v1/services"
CLUSTER = "/ws/v1/cluster"
_AGAIN = (429, 502, 503, 504)
"""A 500 is how the Services API tells of much that stays wrong, so that it is for the caller to try again."""
_FLAWS = 4
"""So many 500s in a row are no accident: YARN answers with one when a service's definition is just being written."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_CONNECTIONS = 16


class YarnClient:
    """Every call has a deadline, passes one token bucket, and is safe to repeat; it is tried again within its deadline
    while the server is away. With several ResourceManagers (high availability) the next one is asked when one does not
    answer; a standby's redirection is followed. `calls` counts requests by what they are for."""

    def __init__(self, urls: Sequence[str], *, user: str = "", calls_per_s: float = 20.0, burst: float = 40.0) -> None:
        """urls: `http://rm:8088`, at least one. user: whom YARN takes this for (simple authentication)."""
        if not urls:
            raise ValueError("YARN needs the address of a ResourceManager")
        self._urls, self._at = [url.rstrip("/") for url in urls], 0
        self._query = {"user.name": user} if user else {}
        self._bucket = Bucket(per_s=calls_per_s, burst=burst)
        self._http = httpx.AsyncClient(
            follow_redirects=True, limits=httpx.Limits(max_connections=_CONNECTIONS),
        )
        self.calls: Counter[str] = Counter()

    async def close(self) -> None:
        """Ends the connections."""
        await self._http.aclose()

    # -- services ----------------------------------------------------------------------------------------

    async def create_service(self, body: Mapping[str, Any]) -> None:
        """AlreadyExists when the name is taken, by a service that runs or by one that has ended and was not deleted."""
        await self._call("create service", "POST", SERVICES, body=body)

    async def service(self, name: str) -> Object:
        """As its master tells, while that runs; else as it was created. NotFound when there is none."""
        found: Object = await self._call("get service", "GET", f"{SERVICES}/{name}")
        return found

    async def flex(self, name: str, component: str, count: int) -> None:
        """So many containers of a component from now on. FailedPrecondition while the service's master does not run."""
        await self._call(
            "flex", "PUT", f"{SERVICES}/{name}/components/{component}",
            body={"name": component, "number_of_containers": count},
        )

    async def decommission(self, name: str, instances: Mapping[str, Sequence[str]]) -> None:
        """Ends these instances, by component; their numbers are not given to others."""
        components = [{"name": name, "decommissioned_instances": list(each)} for name, each in instances.items()]
        await self._call("decommission", "PUT", f"{SERVICES}/{name}", body={"name": name, "components": components})

    async def delete_service(self, name: str) -> None:
        """Ends it and what it knows. NotFound when there is none."""
        await self._call("delete service", "DELETE", f"{SERVICES}/{name}", timeout_s=DELETE_S)

    # -- the cluster -------------------------------------------------------------------------------------

    async def nodes(self) -> list[Object]:
        """All nodes, with what each has free."""
        found = await self._call("list nodes", "GET", f"{CLUSTER}/nodes")
        return _listed(found, "nodes", "node")

    async def services_alive(self) -> list[Object]:
        """Applications of services that have not ended."""
        query = {"applicationTypes": "yarn-service", "states": LIVE_STATES}
        found = await self._call("list applications", "GET", f"{CLUSTER}/apps", query=query)
        return _listed(found, "apps", "app")

    async def application(self, application: str) -> Object:
        """NotFound when the ResourceManager has forgotten it."""
        found = await self._call("get application", "GET", f"{CLUSTER}/apps/{application}")
        return dict(found["app"])

    async def attempt(self, application: str) -> str:
        """The newest attempt of its master; empty where there is none yet."""
        found = await self._call("list attempts", "GET", f"{CLUSTER}/apps/{application}/appattempts")
        attempts = _listed(found, "appAttempts", "appAttempt")
        newest = max(attempts, key=lambda each: int(each["id"]), default={})
        return str(newest.get("appAttemptId") or "")

    async def containers(self, application: str, attempt: str) -> list[Object]:
        """Those that have not ended."""
        path = f"{CLUSTER}/apps/{application}/appattempts/{attempt}/containers"
        return _listed(await self._call("list containers", "GET", path), "containers", "container")

    async def signal(self, container: str, *, kill: bool) -> None:
        """SIGTERM, or SIGKILL, to all processes of the container. Returns when it is on its way."""
        command = "FORCEFUL_SHUTDOWN" if kill else "GRACEFUL_SHUTDOWN"
        await self._call("signal", "POST", f"{CLUSTER}/containers/{container}/signal/{command}")

    # -- nodes -------------------------------------------------------------------------------------------

    async def container(self, node: str, container: str) -> Object:
        """As its node tells, with `exitCode` and `diagnostics`; a node forgets a container seconds after its end.
        node: `host:port` of its NodeManager's REST API. NotFound then."""
        found = await self._node_call(node, f"containers/{container}")
        return dict(orjson.loads(found)["container"])

    async def log(self, node: str, container: str, file: str, *, last_bytes: int) -> str:
        """The end of a file that a container wrote."""
        found = await self._node_call(
            node, f"containers/{container}/logs/{file}", accept="text/plain", size=str(-last_bytes)
        )
        return log_of(found.decode(errors="replace"), file)

    async def _node_call(self, node: str, path: str, accept: str = "application/json", **query: str) -> bytes:
        found = await self._call(
            "ask node", "GET", f"/ws/v1/node/{path}", query=query, base=f"http://{node.removeprefix('http://')}",
            timeout_s=NODE_S, accept=accept,
        )
        return bytes(found)

    # -- one request -------------------------------------------------------------------------------------

    async def _call(
        self, doing: str, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None,
        base: str = "", timeout_s: float = TIMEOUT_S, accept: str = "",
    ) -> Any:
        limit_s = bounded(timeout_s, default_s=timeout_s, method=doing) or timeout_s
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + limit_s, _FIRST_PAUSE_S
        failed: MeshError
        flaws = 0
        while True:
            await self._take_turn(deadline - loop.time(), doing)
            self.calls[doing] += 1
            left_s = max(0.001, deadline - loop.time())
            try:
                async with asyncio.timeout(left_s):
                    answer = await self._http.request(
                        method, (base or self._urls[self._at]) + path, params={**(query or {}), **self._query},
                        content=None if body is None else orjson.dumps(body),
                        headers={"Accept": accept or "application/json"} | (
                            {} if body is None else {"Content-Type": "application/json"}
                        ),
                        timeout=httpx.Timeout(left_s, connect=min(CONNECT_S, left_s)),
                    )
                if answer.is_success:
                    return answer.content if accept else orjson.loads(answer.content or b"{}")
                failed = error_of(answer.status_code, answer.content, doing=f"{doing} {path}")
                flaws += answer.status_code == 500 and method == "GET"
                if answer.status_code not in _AGAIN and not 0 < flaws < _FLAWS:
                    raise failed
            except orjson.JSONDecodeError as error:
                raise Unavailable(f"YARN: {doing} {path}: the answer is no JSON: {error}") from error
            except (httpx.HTTPError, OSError, TimeoutError) as error:
                if loop.time() >= deadline:
                    raise DeadlineExceeded(f"YARN: {doing} {path}: no answer within {limit_s:g} s") from error
                failed = Unavailable(f"YARN: {doing} {path}: {str(error) or type(error).__name__}")
                if not base:
                    self._at = (self._at + 1) % len(self._urls)
            wait_s = pause_s * random.uniform(0.5, 1.0)
            if loop.time() + wait_s >= deadline or base:     # a node that is away is not waited for
                raise failed
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _take_turn(self, patience_s: float, doing: str) -> None:
        wait_s = self._bucket.take(asyncio.get_running_loop().time(), patience_s=patience_s)
        if wait_s is None:
            raise Unavailable(f"YARN: {doing}: too many calls wait for their turn", reason="CALLS_LIMITED")
        if wait_s:
            await asyncio.sleep(wait_s)


def log_of(told: str, file: str) -> str:
    """What a file holds, without the words that a node puts before and behind it."""
    return told.partition("\nLogContents:\n")[2].rpartition(f"End of LogType:{file}")[0]


def _listed(found: Any, outer: str, inner: str) -> list[Object]:
    """YARN's JSON leaves a list's outer object out, or gives null, where the list is empty, and one object for a list
    of one in places."""
    held = found.get(outer, found) or {}
    items = held.get(inner) or []
    return [items] if isinstance(items, dict) else list(items)


