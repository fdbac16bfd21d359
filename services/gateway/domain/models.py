"""The rules of the model registry: versions that only grow, and the states of a version."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from recmesh.runtime.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Violation
from recmesh.serving.card import ENSEMBLE, FRAMEWORKS
from recmesh.serving.settings import ServingSettings
from services.gateway.domain.traffic import Traffic, kept


class State(StrEnum):
    """Where a model version is in its life."""

    REGISTERED = "registered"
    """Known; never asked to serve."""
    LOADING = "loading"
    """Being read, checked and warmed up; also after a restart."""
    READY = "ready"
    """Serves."""
    FAILED = "failed"
    """Could not be loaded; the reason says why. Loading may be asked for again. Ready again where it serves in another
    gateway."""
    UNLOADED = "unloaded"
    """Served once, or was asked not to."""


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.REGISTERED: frozenset({State.LOADING, State.UNLOADED}),
    State.LOADING: frozenset({State.LOADING, State.READY, State.FAILED, State.UNLOADED}),
    State.READY: frozenset({State.LOADING, State.READY, State.FAILED, State.UNLOADED}),
    State.FAILED: frozenset({State.LOADING, State.READY, State.FAILED, State.UNLOADED}),
    State.UNLOADED: frozenset({State.LOADING, State.UNLOADED}),
}


ON_REQUEST = "unloaded on request"
KEPT_NO_MORE = "the traffic rules keep it no more"
"""Reason of a version that new rules have unloaded."""
NOT_KEPT = "none of the versions that the traffic rules name"
"""Reason of a version that was to be loaded while the rules name others."""

ONCE_WRITTEN = {"follow", "poll_s", "held", "overlay_bytes"}
"""All that `freshness` had when rollbacks were written there."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One registered version of a model."""

    name: str
    version: str
    uri: str
    framework: str
    job_id: str = ""
    snapshot: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    created: float = 0.0
    state: State = State.REGISTERED
    reason: str = ""
    request_id: str = ""
    serving: Mapping[str, Any] = field(default_factory=dict)
    """Settings that go before those of the model's `model.json`, name by name."""
    namespace: str = ""
    """Where its folder, and all that is in it, must lie; empty: anywhere under the storage root."""
    held: int | None = None
    """The snapshot of its job that it was told to stay at; 0: told to follow. None: as its settings say."""
    loaded: float = 0.0
    """When it was loaded last (Unix seconds), but for loads after a restart; 0: never, or before this was noted."""

    @property
    def number(self) -> int:
        """The version as a number."""
        return int(self.version)

    @property
    def key(self) -> str:
        """`name/version`"""
        return f"{self.name}/{self.version}"


@dataclass(frozen=True, slots=True)
class Registration:
    """What a caller wants registered; an empty version means the next number, an empty framework that of the files."""

    name: str
    version: str
    uri: str
    framework: str
    job_id: str = ""
    snapshot: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    request_id: str = ""
    load: bool = False
    serving: Mapping[str, Any] = field(default_factory=dict)


def register(
    existing: Sequence[ModelVersion], wanted: Registration, *, now: float, namespace: str = ""
) -> tuple[ModelVersion, bool]:
    """The record for a registration, and whether it is new.

    Asking twice is asking once: by request id, or by an equal version, the record that is there is answered.
    """
    check(wanted)
    for record in existing:
        if wanted.request_id and record.request_id == wanted.request_id:
            return record, False
        if record.version == wanted.version:
            same = (record.uri, record.framework, record.job_id) == (wanted.uri, wanted.framework, wanted.job_id)
            if same and _same_serving(record.serving, wanted.serving):
                return record, False
            raise AlreadyExists(
                f"model {wanted.name!r} version {wanted.version} is registered with other content",
                reason="VERSION_TAKEN",
            )
    newest = max((record.number for record in existing), default=0)
    if wanted.version and int(wanted.version) <= newest:
        raise FailedPrecondition(
            f"model {wanted.name!r} has version {newest} already; version {wanted.version} is not above it",
            reason="VERSION_NOT_INCREASING",
        )
    return (
        ModelVersion(
            wanted.name, wanted.version or str(newest + 1), wanted.uri, wanted.framework, wanted.job_id,
            wanted.snapshot, dict(wanted.metrics), now,
            State.LOADING if wanted.load else State.REGISTERED, "", wanted.request_id, dict(wanted.serving),
            namespace,
        ),
        True,
    )  # fmt: skip


def _same_serving(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a registration asks for what is recorded.

    Rollbacks once wrote all of `freshness` there, with what the registration had left out, and with the version held.
    """
    if dict(recorded) == dict(wanted):
        return True
    written, asked = recorded.get("freshness"), wanted.get("freshness") or {}
    if not isinstance(written, Mapping) or set(written) != ONCE_WRITTEN or not isinstance(asked, Mapping):
        return False
    others = {name: value for name, value in recorded.items() if name != "freshness"}
    return others == {name: value for name, value in wanted.items() if name != "freshness"} and all(
        written.get(name) == value for name, value in asked.items() if name != "held"
    )


def check(wanted: Registration) -> None:
    """InvalidArgument with one violation for each wrong field."""
    wrong: list[Violation] = []
    if not is_name(wanted.name):
        wrong.append(Violation("name", "is not a lower-case DNS label (a-z, 0-9, -; at most 63)"))
    if wanted.version and not is_version(wanted.version):
        wrong.append(Violation("version", f"{wanted.version!r} is not a positive whole number"))
    if not wanted.uri:
        wrong.append(Violation("uri", "is missing"))
    if wanted.framework and wanted.framework not in FRAMEWORKS:
        wrong.append(Violation("framework", f"{wanted.framework!r} is none of {', '.join(FRAMEWORKS)}"))
    try:
        ServingSettings.parse(wanted.serving)
    except InvalidArgument as error:
        wrong.extend(error.violations)
    if wrong:
        raise InvalidArgument("the model cannot be registered", reason="BAD_REGISTRATION", violations=wrong)


def is_name(text: str) -> bool:
    """True for a lower-case DNS label, which is also a file name and a subject token."""
    alphabet = set("abcdefghijklmnopqrstuvwxyz0123456789-")
    return (
        0 < len(text) <= 63 and set(text) <= alphabet and not text.startswith("-") and not text.endswith("-")
    )


def is_version(text: str) -> bool:
    """True for a positive whole number in its shortest form."""
    return text.isascii() and text.isdigit() and not text.startswith("0") and len(text) <= 18


def moved(record: ModelVersion, state: State, *, reason: str = "", loaded: float | None = None) -> ModelVersion:
    """The record in its next state, `loaded` now where that is given; FailedPrecondition when there is no such
    transition."""
    if state not in TRANSITIONS[record.state]:
        raise FailedPrecondition(
            f"model {record.key} is {record.state} and cannot become {state}", reason="BAD_TRANSITION"
        )
    return replace(record, state=state, reason=reason, loaded=record.loaded if loaded is None else loaded)


def to_load_at_start(
    records: Sequence[ModelVersion], traffic_of: Callable[[str], Traffic]
) -> list[ModelVersion]:
    """Per name the versions that served and that its rules keep, in the order in which they were loaded, for the last
    one answers; and one newer that was on its way.

    Those that served are loaded first, so that a newer one that turns out broken leaves them in place.
    Ensembles come after all others, for their models must serve before them.
    """
    chosen: dict[str, list[ModelVersion]] = {}
    for record in sorted(records, key=lambda item: (item.name, item.number)):
        if record.state in (State.READY, State.LOADING):
            chosen.setdefault(record.name, []).append(record)
    result: list[ModelVersion] = []
    for name, group in chosen.items():
        served = sorted((record for record in group if record.state is State.READY), key=lambda item: item.loaded)
        stay = kept(traffic_of(name), [record.version for record in served])
        traffic = traffic_of(name)
        loading = [record for record in group if record.state is State.LOADING]
        wanted = loading if traffic.keeps_all else [
            record for record in loading if record is loading[-1] or record.version in traffic.needed
        ]
        result.extend(record for record in served if record.version in stay)
        result.extend(wanted)
    return sorted(result, key=lambda record: record.framework == ENSEMBLE)


def loaded_before(record: ModelVersion, other: ModelVersion) -> bool:
    """Whether it stood behind the other, which was loaded later; by number where it was never loaded."""
    if record.loaded == 0:
        return record.number < other.number
    return (record.loaded, record.number) < (other.loaded, other.number)


def put_aside(records: Iterable[ModelVersion]) -> list[ModelVersion]:
    """Those that nothing but rules of traffic has unloaded, or not let in; newest first."""
    found = [
        record for record in records if record.state is State.UNLOADED and record.reason in (KEPT_NO_MORE, NOT_KEPT)
    ]
    return sorted(found, key=lambda record: record.number, reverse=True)


def with_hold(settings: ServingSettings, held: int | None) -> ServingSettings:
    """The settings at the version that a model was told to stay at; unchanged where it was told nothing."""
    if held is None:
        return settings
    return settings.model_copy(update={"freshness": settings.freshness.model_copy(update={"held": held})})


def newest(records: Sequence[ModelVersion]) -> ModelVersion | None:
    """The one with the highest version."""
    return max(records, key=lambda item: item.number, default=None)
