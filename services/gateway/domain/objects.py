"""A ModelService object and its version of a model: what is to be done, and what is told of it.

The object is the intent. What it says of the program (`uri`, `framework`, `version`, `serving`) becomes one version of
the model; another text becomes another one, and an earlier text the version that it was. `load` and `traffic` are
carried out once for each generation of the object, so that whoever loads another version by REST afterwards, as jobs
do, is not worked against; rules of traffic that an object names are held to.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from recmesh.crd.kinds import REFUSED, ModelServiceStatus
from recmesh.crd.kinds import ModelService as Spec
from recmesh.crd.telling import MAX_MESSAGE, Told, kept, moment, word, words
from recmesh.runtime.errors import InvalidArgument, MeshError, Violation
from recmesh.spec.namespaces import NAMESPACE_END, unfit
from services.gateway.domain import traffic as traffic_rules
from services.gateway.domain.callers import MESH, MODELS, Caller
from services.gateway.domain.models import ModelVersion, Registration, State
from services.gateway.domain.traffic import Traffic

PENDING, DELETING = "Pending", "Deleting"
MAX_NAME = 63
_PHASES: Mapping[State, str] = {
    State.REGISTERED: "Unloaded", State.LOADING: "Loading", State.READY: "Ready", State.FAILED: "Failed",
    State.UNLOADED: "Unloaded",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What an object asks for."""

    uid: str
    generation: int
    model: str
    caller: Caller
    """As whom: an object of another namespace than the mesh's own reaches that namespace's models and folders alone."""
    registration: Registration
    load: bool
    traffic: Traffic | None


def origin(uid: str) -> str:
    """What the request ids of an object's versions begin with."""
    return f"object/{uid}/"


def model_of(thing: Mapping[str, Any], *, own_namespace: str) -> str:
    """The name that requests use; NAMESPACE--NAME where the object is not in the mesh's own namespace."""
    metadata = thing["metadata"]
    model, namespace = (thing.get("spec") or {}).get("model") or metadata["name"], metadata["namespace"]
    return str(model) if namespace == own_namespace else f"{namespace}{NAMESPACE_END}{model}"


def asked(thing: Mapping[str, Any], *, own_namespace: str) -> Asked:
    """What the object says; InvalidArgument names every wrong field, as from the top of `spec`."""
    metadata = thing["metadata"]
    spec = Spec.parse(thing.get("spec") or {})
    namespace = str(metadata["namespace"])
    is_own = namespace == own_namespace
    wrong: list[Violation] = []
    name = model_of(thing, own_namespace=own_namespace)
    if not is_own and (reason := unfit(namespace)):
        wrong.append(Violation("metadata.namespace", reason))
    if len(name) > MAX_NAME:
        wrong.append(Violation("model", f"{name} has more than {MAX_NAME} characters"))
    traffic = None
    if spec.traffic is not None:
        try:
            traffic = traffic_rules.parse(spec.traffic)
        except InvalidArgument as error:
            wrong += [Violation(f"traffic.{item.path}", item.reason) for item in error.violations]
    if wrong:
        raise InvalidArgument("the ModelService is wrong", reason="BAD_OBJECT", violations=wrong)
    text = json.dumps([name, spec.uri, spec.framework, spec.version, spec.serving], sort_keys=True)
    request_id = origin(metadata["uid"]) + hashlib.sha256(text.encode()).hexdigest()[:32]
    registration = Registration(
        name, spec.version, spec.uri, spec.framework, request_id=request_id, serving=dict(spec.serving)
    )
    caller = MESH if is_own else Caller(f"namespace {namespace}", frozenset({MODELS}), namespaces=(namespace,))
    return Asked(
        str(metadata["uid"]), int(metadata.get("generation", 0)), name, caller, registration, spec.load, traffic
    )


def own(records: Sequence[ModelVersion], uid: str) -> list[ModelVersion]:
    """Of a model's versions, those that the object has made."""
    return [record for record in records if record.request_id.startswith(origin(uid))]


class Act(StrEnum):
    """What is done with the object's version."""

    NOTHING = "nothing"
    LOAD = "load"
    UNLOAD = "unload"


def act(record: ModelVersion, *, load: bool, is_done: bool, is_other: bool = False) -> Act:
    """`is_done`: this generation was carried out before. `is_other`: the object stood for another version until now, so
    that this one is to be the one loaded last."""
    active = record.state in (State.READY, State.LOADING)
    if not load:
        return Act.UNLOAD if active and not is_done else Act.NOTHING
    if record.state is State.LOADING:
        return Act.NOTHING
    if record.state is State.REGISTERED or (not is_done and (is_other or not active)):
        return Act.LOAD
    return Act.NOTHING


def is_at_rest(record: ModelVersion, *, load: bool) -> bool:
    """Whether nothing is to be done, nor awaited, for an object that was carried out."""
    return record.state in (State.READY, State.UNLOADED) or (record.state is State.REGISTERED and not load)


@dataclass(frozen=True, slots=True)
class Replicas:
    """Gateways that follow objects."""

    following: int
    serving: int
    """Of these, that serve the version."""


def status_of(
    wanted: Asked, record: ModelVersion, *, ready: Collection[str], replicas: Replicas, trouble: MeshError | None,
    traffic: Traffic | None, before: Mapping[str, Any], now: float,
) -> dict[str, Any]:
    """What is told of a version. `ready`: all versions of the model that serve. `trouble`: why its rules of traffic are
    not those of the model. `traffic`: the rules that this object has set."""
    phase = _PHASES[record.state]
    if record.state is State.UNLOADED and not wanted.load:
        reason, message = "NotLoaded", "spec.load is false"
    elif record.state is State.REGISTERED:
        reason, message = "NotLoaded", "registered, and not loaded"
    else:
        code, _, rest = record.reason.partition(":")
        is_code = bool(rest) and code.isupper()
        reason, message = (word(code) if is_code else phase), (rest.strip() if is_code else record.reason)
    synced = ("Synced", "True", "Synced", "") if trouble is None else (
        "Synced", "False", word(trouble.reason), words(trouble)
    )
    is_ready = record.state is State.READY
    said = [
        ("Accepted", "True", "Registered", ""), synced,
        ("Ready", "True" if is_ready else "False", reason, "" if is_ready else message),
    ]
    told = ModelServiceStatus(
        observedGeneration=wanted.generation, model=wanted.model, phase=phase, reason=reason,
        message=message[:MAX_MESSAGE], version=record.version, ready_versions=sorted(ready, key=int)[:256],
        replicas=replicas.following, ready_replicas=replicas.serving,
        ready=f"{replicas.serving}/{replicas.following}",
        traffic=traffic_rules.as_document(traffic) if traffic is not None else None,
        framework=record.framework, loaded=moment(record.loaded) if record.loaded else None,
        conditions=kept(said, wanted.generation, before.get("conditions") or [], now),
    )
    return told.model_dump(exclude_none=True)


def refused(error: MeshError, *, generation: int, before: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The status of an object of which nothing can be made as it stands; what its earlier text has become goes on."""
    return _not_made(REFUSED, "False", error, generation, before, now)


def waits(error: MeshError, *, generation: int, before: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The status of an object that waits for the mesh; it is tried again, and its generation is not carried out."""
    told = _not_made(PENDING, "Unknown", error, generation, before, now)
    if before.get("observedGeneration") is None:
        told.pop("observedGeneration")
    else:
        told["observedGeneration"] = before["observedGeneration"]
    return told


def held(thing: Mapping[str, Any], error: MeshError, *, now: float) -> dict[str, Any]:
    """What is told of an object that is to be deleted, and whose versions could not be unregistered yet."""
    before, generation = thing.get("status") or {}, int(thing["metadata"].get("generation", 0))
    reason, message = word(error.reason), f"it is not deleted yet: {words(error)}"[:MAX_MESSAGE]
    others = [
        (str(item["type"]), str(item["status"]), str(item["reason"]), str(item.get("message", "")))
        for item in before.get("conditions") or [] if item.get("type") != "Synced"
    ]
    told = ModelServiceStatus.parse(dict(before) | {
        "phase": DELETING, "reason": reason, "message": message, "conditions": [
            item.model_dump() for item in
            kept([*others, ("Synced", "False", reason, message)], generation, before.get("conditions") or [], now)
        ],
    })
    return told.model_dump(exclude_none=True)


def _not_made(
    phase: str, accepted: str, error: MeshError, generation: int, before: Mapping[str, Any], now: float
) -> dict[str, Any]:
    reason, message = word(error.reason), words(error)
    conditions = before.get("conditions") or []
    said = [("Accepted", accepted, reason, message)]
    said += [
        (str(item["type"]), str(item["status"]), str(item["reason"]), str(item.get("message", "")))
        for item in conditions if item.get("type") == "Ready"
    ]
    known = {
        name: before[name] for name in
        ("model", "version", "ready_versions", "replicas", "ready_replicas", "ready", "traffic", "framework", "loaded")
        if name in before
    }
    told = ModelServiceStatus(
        observedGeneration=generation, phase=phase, reason=reason, message=message,
        conditions=kept(said, generation, conditions, now), **known,
    )
    return told.model_dump(exclude_none=True)


def event_of(uid: str, told: Mapping[str, Any], before: Mapping[str, Any], now: float) -> Told | None:
    """An Event where the object's phase, version or reason is another one; None: nothing is new."""
    names = ("observedGeneration", "phase", "reason", "version")
    if all(told.get(name) == before.get(name) for name in names[1:]):
        return None
    phase, version = str(told["phase"]), str(told.get("version", ""))
    about = f"{told.get('model', '')}/{version}" if version else ""
    note = ": ".join(part for part in (about, str(told.get("message", ""))) if part) or phase
    reason = str(told["reason"]) if phase in (REFUSED, "Failed", PENDING, DELETING) else phase
    identity = f"{uid}.{moment(now)}." + ".".join(str(told.get(name, "")) for name in names)
    return Told(identity, now, reason, note[:1024], phase in (REFUSED, "Failed", DELETING))
