"""The calls of gateway's REST API."""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from recmesh.client.find import gateway_of, meant
from recmesh.client.forward import Forward
from recmesh.client.packing import pack
from recmesh.client.problems import error_of
from recmesh.client.trust import refusal, trusting
from recmesh.client.views import OVER, Checkpoint, Event, Job, JobPage, Model, RoleLog, Served, View
from recmesh.runtime.errors import (
    DeadlineExceeded,
    Internal,
    MeshError,
    NotFound,
    Unavailable,
)

V = TypeVar("V", bound=View)
_FIRST_RETRY_S = 0.1
_AWAY = "SERVICE_AWAY"
"""gateway has looked for the service behind it for a while, and somebody waits: no second look."""
_TELL_AFTER_S = 1.0
_REOPEN_S = 0.5
_LAST_LOOKS = 4
_RETRIED = frozenset({502, 503})
_DELETE_S = 75.0
"""Longer than the server takes to stop a job."""
_VERIFY_S = 3600.0
"""Every byte of every snapshot is read."""
_RETRY_S = 1600.0
"""A hundred events, each of which a slow receiver may answer after 15 s."""
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
        ca_file: str = "",
        transport: httpx.BaseTransport | None = None,
        forward: Forward | None = None,
        waiting: Callable[[str], None] | None = None,
    ) -> None:
        """ca_file: certificates (PEM) to trust in place of the system's. `forward`: the way to `url`, where there is
        one; it is closed with the client. `waiting` is told, once for a call that is tried for more than a second,
        what it waits for."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._forward = forward
        self._waiting = waiting
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False, transport=transport,
            verify=trusting(ca_file) if ca_file else True,
            event_hooks={"request": [self._name_server]} if forward and forward.server_name else {},
        )

    @classmethod
    def find(
        cls, *, home: Path | str | None = None, env: Mapping[str, str] | None = None, timeout_s: float = 30.0,
        ca_file: str = "", waiting: Callable[[str], None] | None = None,
    ) -> Self:
        """The mesh that `recmesh.client.find.meant` says is meant: by the data folder `home`, $RECMESH_URL, a context
        (`recmesh context`), or `.recmesh` here.

        Unavailable when there is none, or it is stopped. The API key is the context's, else $RECMESH_API_KEY; and
        certificates to trust are those of `ca_file`, else the context's, else $RECMESH_CA_FILE's.
        """
        env = os.environ if env is None else env
        place = meant(home, env)
        if ca_file:
            place = replace(place, ca_file=ca_file)
        key = place.key() or env.get("RECMESH_API_KEY", "")
        forward = Forward(place, timeout_s=timeout_s) if place.namespace else None
        url = forward.url if forward else place.url or gateway_of(place.home)
        trusted = place.ca_file or env.get("RECMESH_CA_FILE", "")
        return cls(url, api_key=key, timeout_s=timeout_s, ca_file=trusted, forward=forward, waiting=waiting)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()
        if self._forward is not None:
            self._forward.close()

    def _name_server(self, request: httpx.Request) -> None:
        """Behind a forwarded port the certificate is not for the address that is called."""
        assert self._forward is not None
        request.extensions["sni_hostname"] = self._forward.server_name

    def _mend(self) -> None:
        if self._forward is not None:
            self._forward.mend()

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

    def jobs(
        self, *, owner: str = "", phase: str = "", limit: int = 100, page_token: str = "", namespace: str = ""
    ) -> JobPage:
        """One page of jobs, newest first."""
        params = {
            "owner": owner, "phase": phase, "limit": limit, "page_token": page_token, "namespace": namespace,
        }
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

    def suspend_job(self, job_id: str, *, reason: str = "") -> Job:
        """Sets a job aside: it saves a snapshot, and its processes go."""
        return self._view(Job, "POST", f"/v1/jobs/{_part(job_id)}:suspend", json={"reason": reason}, retry=True)

    def resume_job(self, job_id: str) -> Job:
        """Goes on with a job that was suspended."""
        return self._view(Job, "POST", f"/v1/jobs/{_part(job_id)}:resume", retry=True)

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
                self._mend()
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

    def checkpoints(
        self, job_id: str, *, verify: bool = False, snapshot: int = 0, timeout_s: float = 0.0
    ) -> list[Checkpoint]:
        """A job's snapshots, newest last; with `verify` all bytes of all of them, or of that `snapshot`, are read and
        hashed first, which takes its time (an hour at most, unless `timeout_s` says otherwise)."""
        timeout_s = timeout_s or (_VERIFY_S if verify else 0.0)
        params = {"verify": "true", **({"snapshot": str(snapshot)} if snapshot else {})} if verify else {}
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

    def dataset(self, name: str) -> dict[str, Any]:
        """A registered dataset, with its specification as JSON."""
        return self._mapping("GET", f"/v1/datasets/{_part(name)}")

    def remove_dataset(self, name: str, *, force: bool = False) -> None:
        """Forgets a dataset's name; with `force` though jobs use it."""
        self._call("DELETE", f"/v1/datasets/{_part(name)}", params={"force": "true"} if force else None)

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

    def register_model(self, model: Mapping[str, Any]) -> Model:
        """Registers a version (`name`, `uri`, `framework`, ...), which is loaded after the answer."""
        return self._view(Model, "POST", "/v1/models", json=dict(model))

    def load_model(self, name: str, version: str = "", *, timeout_s: float = 300.0) -> Model:
        """Serve a version (the newest); returns when it does."""
        path = f"/v1/models/{_part(name)}:load"
        return self._view(Model, "POST", path, params={"version": version}, timeout_s=timeout_s)

    def unload_model(self, name: str, version: str = "") -> list[Model]:
        """Serve a model no more, or only that version; requests in flight are answered."""
        path = f"/v1/models/{_part(name)}:unload"
        return _list(Model, self._call("POST", path, params={"version": version}, timeout_s=120.0).json(), "models")

    def serving(self) -> list[Served]:
        """What models are asked now, how long they take, and which versions answer."""
        return _list(Served, self._call("GET", "/v1/serving").json(), "models")

    def freshness(self, name: str) -> dict[str, Any]:
        """Of a model that follows its job: which version serves, how far behind it was, and figures of its tiers."""
        return self._mapping("GET", f"/v1/models/{_part(name)}/freshness")

    def roll_back(self, name: str, fresh_version: int) -> dict[str, Any]:
        """Serve an earlier version of rows and weights until `resume`."""
        path = f"/v1/models/{_part(name)}/rollback"
        return self._mapping("POST", path, json={"fresh_version": fresh_version}, retry=True, timeout_s=300.0)

    def resume(self, name: str) -> dict[str, Any]:
        """Follow the job again."""
        return self._mapping("POST", f"/v1/models/{_part(name)}/resume", retry=True, timeout_s=300.0)

    def model_metadata(self, name: str) -> dict[str, Any]:
        """Inputs and outputs, by Open Inference Protocol."""
        return self._mapping("GET", f"/v2/models/{_part(name)}")

    def infer(self, name: str, request: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        """One inference request of the Open Inference Protocol v2, JSON form."""
        path = f"/v2/models/{_part(name)}/infer"
        return self._mapping("POST", path, json=dict(request), retry=True, timeout_s=timeout_s)

    def predict(
        self, name: str, rows: Sequence[Mapping[str, Any]], *, request_id: str = "", timeout_s: float = 30.0
    ) -> dict[str, Any]:
        """Predictions for rows of raw columns; the answer's `id` is what labels name."""
        body = {"rows": list(rows), **({"id": request_id} if request_id else {})}
        return self._mapping("POST", f"/v2/models/{_part(name)}/predict", json=body, retry=True, timeout_s=timeout_s)

    def post_labels(self, labels: Sequence[Mapping[str, Any]], *, topic: str = "labels") -> dict[str, Any]:
        """Labels of samples (`id`, `value`, `time`), at most 10,000; posting them again changes nothing."""
        return self._mapping("POST", "/v1/labels", json={"topic": topic, "labels": list(labels)}, retry=True)

    # -- webhooks -----------------------------------------------------------------------------------------

    def create_webhook(self, webhook: Mapping[str, Any]) -> dict[str, Any]:
        """Sends events to an address (`name`, `url`, `types`, ...); with its `secret`, which is not shown again."""
        return self._mapping("POST", "/v1/webhooks", json=dict(webhook))

    def webhooks(self) -> list[dict[str, Any]]:
        """All webhooks, with how their deliveries go."""
        return list(self._mapping("GET", "/v1/webhooks")["webhooks"])

    def webhook(self, name: str) -> dict[str, Any]:
        """One webhook."""
        return self._mapping("GET", f"/v1/webhooks/{_part(name)}")

    def test_webhook(self, name: str) -> dict[str, Any]:
        """Sends one event; `taken`, `status` and `answer` tell what came of it."""
        return self._mapping("POST", f"/v1/webhooks/{_part(name)}:test", timeout_s=60.0)

    def rotate_webhook(self, name: str, secret: str = "") -> dict[str, Any]:
        """Another secret, made unless one is given; for a day the one before signs, too."""
        return self._mapping("POST", f"/v1/webhooks/{_part(name)}:rotate", json={"secret": secret})

    def change_webhook(self, name: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Another `url`, `types`, `namespaces`, `jobs`, `mode`, `description`; `resume` lets a stopped one go on."""
        return self._mapping("PATCH", f"/v1/webhooks/{_part(name)}", json=dict(change))

    def retry_webhook(self, name: str, ids: Sequence[str] = ()) -> dict[str, Any]:
        """Sends dead letters again, all or those named, 100 at most: `taken` (ids), `left`, and the `answer` to the one
        that was not taken (`failed`), after which none was sent."""
        path = f"/v1/webhooks/{_part(name)}:retry"
        return self._mapping("POST", path, json={"ids": list(ids)}, timeout_s=_RETRY_S)

    def webhook_dead_letters(self, name: str, *, limit: int = 100) -> list[dict[str, Any]]:
        """Events that were given up, oldest first, with the reason."""
        return list(self._mapping("GET", f"/v1/webhooks/{_part(name)}/dead", params={"limit": limit})["events"])

    def delete_webhook(self, name: str) -> None:
        """Nothing is sent any more."""
        self._call("DELETE", f"/v1/webhooks/{_part(name)}")

    # -- mesh ---------------------------------------------------------------------------------------------

    def mesh(self) -> dict[str, Any]:
        """Health of the services."""
        return self._mapping("GET", "/v1/mesh")

    def loans(self, *, open_only: bool = False, limit: int = 100) -> dict[str, Any]:
        """What training lends to serving: `enabled`, the `pool` as it is, and the ledger, newest first."""
        return self._mapping("GET", "/v1/loans", params={"open": str(open_only).lower(), "limit": limit})

    def forecasts(self, *, prefix: str = "", limit: int = 100) -> dict[str, Any]:
        """Series of rates that can be forecast."""
        return self._mapping("GET", "/v1/forecasts", params={"prefix": prefix, "limit": limit})

    def forecast(
        self, series: str, *, horizon: int = 24, step_s: float = 0.0, level: float = 0.8, season_s: float = 0.0
    ) -> dict[str, Any]:
        """What is expected of a series after its newest rate: mean and interval of each step, and past errors.

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

    def tell_rates(
        self, series: str, points: Iterable[tuple[float, float]], *, step_s: float, counter: bool = False
    ) -> int:
        """Keep what was measured of a series: (Unix seconds of a step's begin, events per second) each, or with
        `counter` (any moment, what the counter showed). How many were taken; the same again replaces itself."""
        told = [{"at": at, "value": value} for at, value in points]
        body = {"step_s": step_s, "points": told, "counter": counter}
        return int(self._mapping("POST", f"/v1/rates/{_part(series)}", json=body, retry=True)["stored"])

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
        begun = time.monotonic()
        deadline = begun + timeout_s
        may_retry, is_told = retry or method == "GET", False
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
                refused = refusal(cause, url=self.url, ca_file=self._ca_file)
                if refused is not None:
                    raise refused from cause
                error = Unavailable(f"{self.url} cannot be reached: {cause}")
                again = may_retry
                self._mend()
            if not again or time.monotonic() + delay_s >= deadline:
                raise error
            if self._waiting and not is_told and (now := time.monotonic()) - begun > _TELL_AFTER_S:
                self._waiting(f"{error.message}; trying again for {deadline - now:.0f} s")
                is_told = True
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
