"""The calls of gateway's REST API."""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from recmesh.client.packing import pack
from recmesh.client.problems import error_of
from recmesh.client.views import OVER, Checkpoint, Event, Job, JobPage, Model, RoleLog, View
from recmesh.runtime.errors import DeadlineExceeded, Internal, MeshError, NotFound, Unavailable

V = TypeVar("V", bound=View)
_FIRST_RETRY_S = 0.1
_AWAY = "SERVICE_AWAY"
"""gateway has looked for the service behind it for a while, and somebody waits: no second look."""
_REOPEN_S = 0.5
_LAST_LOOKS = 4
_RETRIED = frozenset({502, 503})
_DELETE_S = 75.0
"""Longer than the server takes to stop a job."""
_VERIFY_S = 3600.0
"""Every byte of every snapshot is read."""
_STREAM_SILENCE_S = 60.0
"""Longer than the server's keep-alives; a stream silent for so long is opened again."""


class Client:
    """One mesh. Not thread-safe for closing; calls may come from several threads."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False, transport=transport
        )

    @classmethod
    def find(cls, *, home: Path | str | None = None, env: Mapping[str, str] | None = None) -> Self:
        """The mesh at $RECMESH_URL, else the one with data folder `home`, $RECMESH_HOME or `.recmesh` here.

        Unavailable when there is none, or it is stopped. The API key is $RECMESH_API_KEY.
        """
        env = os.environ if env is None else env
        key = env.get("RECMESH_API_KEY", "")
        if env.get("RECMESH_URL") and home is None:
            return cls(env["RECMESH_URL"], api_key=key)
        folder = Path(home or env.get("RECMESH_HOME") or ".recmesh").expanduser()
        try:
            mesh = json.loads((folder / "mesh.json").read_bytes())
            gateway = mesh["components"]["gateway"]
            running = gateway["state"] != "stopped"
            url = gateway["addresses"]["http"]
        except (OSError, ValueError, KeyError, TypeError):
            raise Unavailable(f"there is no mesh in {folder.absolute()}: start one with `recmesh up`") from None
        if not running:
            raise Unavailable(f"the mesh in {folder.absolute()} is stopped: start it with `recmesh up`")
        return cls(url, api_key=key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    # -- jobs ---------------------------------------------------------------------------------------------

    def submit(self, spec: Mapping[str, Any], *, dry_run: bool = False, request_id: str = "") -> Job:
        """Submits a job; a local `model.code` folder is packed and uploaded first.

        Repeating it with the same `request_id` submits nothing new. InvalidArgument names every wrong field.
        """
        values = dict(spec)
        code = (values.get("model") or {}).get("code", "")
        if code and not code.startswith("sha256:") and not dry_run:
            values["model"] = dict(values["model"]) | {"code": self.upload_code(pack(Path(code)))}
        headers = {"Idempotency-Key": request_id or uuid.uuid4().hex}
        params = {"dry_run": "true"} if dry_run else {}
        return self._view(Job, "POST", "/v1/jobs", json=values, params=params, headers=headers, retry=True)

    def jobs(self, *, owner: str = "", phase: str = "", limit: int = 100, page_token: str = "") -> JobPage:
        """One page of jobs, newest first."""
        params = {"owner": owner, "phase": phase, "limit": limit, "page_token": page_token}
        return self._view(JobPage, "GET", "/v1/jobs", params={key: v for key, v in params.items() if v})

    def job(self, job_id: str) -> Job:
        """One job."""
        return self._view(Job, "GET", f"/v1/jobs/{_part(job_id)}")

    def find_job(self, job: str) -> str:
        """The id meant by an id, or by a name (the newest job of that name); NotFound when there is none."""
        try:
            return self.job(job).job_id
        except NotFound:
            page = self.jobs(limit=1000)
            while True:
                for found in page.jobs:
                    if found.name == job:
                        return found.job_id
                if not page.next_page_token:
                    raise
                page = self.jobs(limit=1000, page_token=page.next_page_token)

    def stop(self, job_id: str, *, reason: str = "", finish: bool = False) -> Job:
        """Stops a job; with `finish` it succeeds at the next snapshot instead."""
        body = {"reason": reason, "finish": finish}
        return self._view(Job, "POST", f"/v1/jobs/{_part(job_id)}:stop", json=body, retry=True)

    def scale(self, job_id: str, role: str, replicas: int | None) -> Job:
        """Pins the count of a role; None leaves it to brain again."""
        body = {"role": role, "replicas": replicas}
        return self._view(Job, "POST", f"/v1/jobs/{_part(job_id)}:scale", json=body, retry=True)

    def resize(self, job_id: str, role: str, *, cpu: str | float | None = None, memory: str | int | None = None) -> Job:
        """Another size of a role's processes; what is None stays as it is."""
        body = {"role": role, "cpu": cpu, "memory": memory}
        return self._view(Job, "POST", f"/v1/jobs/{_part(job_id)}:resize", json=body, retry=True)

    def delete(self, job_id: str, *, force: bool = False) -> None:
        """Deletes an ended job's record and checkpoints; with `force` one that has not ended is stopped first."""
        timeout_s = max(self._timeout_s, _DELETE_S)
        params = {"force": "true"} if force else {}
        self._call("DELETE", f"/v1/jobs/{_part(job_id)}", params=params, timeout_s=timeout_s)

    def events(self, job_id: str) -> list[Event]:
        """What has happened to a job so far, oldest first."""
        found: list[Event] = []
        while True:
            params = {"after": found[-1].sequence if found else 0, "limit": 1000}
            body = self._call("GET", f"/v1/jobs/{_part(job_id)}/events", params=params).json()
            page = _list(Event, body, "events")
            found.extend(page)
            if len(page) < 1000:
                return found

    def follow(self, job_id: str) -> Iterator[Event]:
        """Events as they happen, after those that have; ends with the job. Goes on after interruptions."""
        last = 0
        looks_left = _LAST_LOOKS
        while looks_left:
            if self.job(job_id).over:  # a stream would never end; the last fact may come a moment later
                looks_left -= 1
                events = iter([event for event in self.events(job_id) if event.sequence > last])
            else:
                events = self._stream(f"/v1/jobs/{_part(job_id)}/events", last)
            try:
                for event in events:
                    last = event.sequence or last
                    yield event
                    if ends_job(event):
                        return
            except (httpx.TransportError, Unavailable):
                pass
            time.sleep(_REOPEN_S)

    def logs(
        self, job_id: str, *, role: str = "", index: int | None = None, tail: int = 200
    ) -> list[RoleLog]:
        """The last lines of each process of a job; of one role, or one of its processes, when named."""
        params: dict[str, Any] = {"tail": tail}
        params |= {"role": role} if role else {}
        params |= {"index": index} if index is not None else {}
        body = self._call("GET", f"/v1/jobs/{_part(job_id)}/logs", params=params).json()
        return _list(RoleLog, body, "logs")

    def checkpoints(self, job_id: str, *, verify: bool = False, timeout_s: float = 0.0) -> list[Checkpoint]:
        """A job's snapshots, newest last; with `verify` all their bytes are read and hashed first, which takes its time
        (an hour at most, unless `timeout_s` says otherwise)."""
        timeout_s = timeout_s or (_VERIFY_S if verify else 0.0)
        params = {"verify": True} if verify else {}
        path = f"/v1/jobs/{_part(job_id)}/checkpoints"
        body = self._call("GET", path, params=params, timeout_s=timeout_s).json()
        return _list(Checkpoint, body, "snapshots")

    def checkpoint(self, job_id: str, *, timeout_s: float = 300.0) -> int:
        """Takes a snapshot now; its number."""
        response = self._call("POST", f"/v1/jobs/{_part(job_id)}:checkpoint", timeout_s=timeout_s)
        return int(response.json()["snapshot"])

    def upload_code(self, archive: bytes) -> str:
        """Stores packed code; `sha256:...`, the same for the same bytes."""
        response = self._call(
            "POST", "/v1/code", content=archive, headers={"Content-Type": "application/gzip"}, retry=True,
            timeout_s=300.0,
        )  # fmt: skip
        digest = str(response.json()["digest"])
        return digest if digest.startswith("sha256:") else f"sha256:{digest}"

    # -- data ---------------------------------------------------------------------------------------------

    def register_dataset(self, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Registers a dataset; a different one under a known name is its next revision."""
        return self._mapping("POST", "/v1/datasets", json={"name": name, "dataset": dict(spec)}, retry=True)

    def datasets(self) -> list[dict[str, Any]]:
        """All registered datasets."""
        body = self._call("GET", "/v1/datasets").json()
        return list(body["datasets"] if isinstance(body, dict) else body)

    def inspect_dataset(self, spec: Mapping[str, Any], *, timeout_s: float = 120.0) -> dict[str, Any]:
        """What is in a dataset's files: columns, rows, problems."""
        return self._mapping("POST", "/v1/datasets:inspect", json=dict(spec), timeout_s=timeout_s)

    # -- models -------------------------------------------------------------------------------------------

    def models(self) -> list[Model]:
        """All registered versions."""
        return _list(Model, self._call("GET", "/v1/models").json(), "models")

    def model(self, name: str) -> list[Model]:
        """The versions of one model."""
        return _list(Model, self._call("GET", f"/v1/models/{_part(name)}").json(), "versions", "models")

    def model_metadata(self, name: str) -> dict[str, Any]:
        """Inputs and outputs, by Open Inference Protocol."""
        return self._mapping("GET", f"/v2/models/{_part(name)}")

    def infer(self, name: str, request: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        """One inference request of the Open Inference Protocol v2, JSON form."""
        path = f"/v2/models/{_part(name)}/infer"
        return self._mapping("POST", path, json=dict(request), retry=True, timeout_s=timeout_s)

    # -- mesh ---------------------------------------------------------------------------------------------

    def mesh(self) -> dict[str, Any]:
        """Health of the services."""
        return self._mapping("GET", "/v1/mesh")

    def forecasts(self, *, prefix: str = "", limit: int = 100) -> dict[str, Any]:
        """Series of rates that can be forecast."""
        return self._mapping("GET", "/v1/forecasts", params={"prefix": prefix, "limit": limit})

    def forecast(
        self, series: str, *, horizon: int = 24, step_s: float = 0.0, level: float = 0.8, season_s: float = 0.0
    ) -> dict[str, Any]:
        """What is expected of a series from now on: mean and interval of each step, and how wrong it was before.

        `step_s` 0: as it is measured; `season_s` 0: found.
        """
        params = {"horizon": horizon, "step_s": step_s, "level": level, "season_s": season_s}
        return self._mapping("GET", f"/v1/forecasts/{_part(series)}", params=params)

    def rates(
        self, series: str, *, since: float = 0.0, until: float = 0.0, step_s: float = 0.0, limit: int = 1000
    ) -> dict[str, Any]:
        """The newest measured rates of a series within [since, until); `step_s` 0: as they are kept."""
        params = {"since": since, "until": until, "step_s": step_s, "limit": limit}
        return self._mapping("GET", f"/v1/rates/{_part(series)}", params=params)

    def plan(self, job_id: str) -> dict[str, Any]:
        """Brain's newest plan for a job."""
        return self._mapping("GET", f"/v1/plans/{_part(job_id)}")

    # -- transport ----------------------------------------------------------------------------------------

    def _view(self, view: type[V], method: str, path: str, **options: Any) -> V:
        body = self._call(method, path, **options).json()
        try:
            return view.model_validate(body)
        except ValidationError as error:
            raise Internal(f"{method} {path} did not answer a {view.__name__}: {error}") from error

    def _mapping(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        body = self._call(method, path, **options).json()
        if not isinstance(body, dict):
            raise Internal(f"{method} {path} answered no mapping")
        return body

    def _call(
        self, method: str, path: str, *, retry: bool = False, timeout_s: float = 0.0, **options: Any
    ) -> httpx.Response:
        """Calls; what may be repeated is, on lost connections and on 502/503, until the deadline."""
        timeout_s = timeout_s or self._timeout_s
        deadline = time.monotonic() + timeout_s
        may_retry = retry or method == "GET"
        error: MeshError | None = None
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                remaining_s = max(0.1, deadline - time.monotonic())
                response = self._http.request(method, path, timeout=remaining_s, **options)
                if response.is_success:
                    return response
                error = error_of(response)
                again = may_retry and response.status_code in _RETRIED and error.reason != _AWAY
            except httpx.TimeoutException as cause:
                # What an earlier try was told says more than that the last one had no time left.
                raise error or DeadlineExceeded(f"{self.url} did not answer within {timeout_s:g} s") from cause
            except httpx.TransportError as cause:
                error = Unavailable(f"{self.url} cannot be reached: {cause}")
                again = may_retry
            if not again or time.monotonic() + delay_s >= deadline:
                raise error
            time.sleep(delay_s)
            delay_s = min(delay_s * 2, 2.0)

    def _stream(self, path: str, after: int) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after else {})
        timeout = httpx.Timeout(self._timeout_s, read=_STREAM_SILENCE_S)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if not response.is_success:
                response.read()
                raise error_of(response)
            for item in server_sent(response.iter_lines()):
                yield Event.model_validate(item)


def server_sent(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text/event-stream; comments, ids and an unfinished last event are left out."""
    data: list[str] = []
    for line in lines:
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            item = json.loads("\n".join(data))
            data = []
            if isinstance(item, dict):
                yield item


def ends_job(event: Event) -> bool:
    """True for the last event of a job's life."""
    return event.type.endswith("job.transitioned") and event.data.get("to_phase") in OVER


def _list(view: type[V], body: Any, *keys: str) -> list[V]:
    """A list, bare or under one of the keys; a single object is a list of one."""
    items = next((body[key] for key in keys if key in body), [body]) if isinstance(body, dict) else body
    parse: Callable[[Any], V] = view.model_validate
    return [parse(item) for item in items]


def _part(name: str) -> str:
    """A path segment."""
    return quote(name, safe="")
