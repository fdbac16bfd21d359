"""Events of a job in words: one line each, with the main facts. `-o json` has all of them, as they came."""

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from recmesh.cli import output
from recmesh.runtime.errors import InvalidArgument, Violation

if TYPE_CHECKING:
    from recmesh.client.views import Event

PERIODIC = frozenset({"topic.observed", "job.progressed", "job.measured"})
"""Measurements that come every few seconds or each minute, and would bury what happened."""
_MOMENTS = frozenset({"at", "start", "since", "until", "first", "last"})
"""Fields that are unix seconds."""
_LONGEST = 160
Data = Mapping[str, Any]


def known_types() -> list[str]:
    """Every type of event that a mesh has."""
    from recmesh.runtime.events import catalog, types

    assert catalog.JOB_SUBMITTED in list(types.EVENTS), "the catalogue fills the registry"
    return sorted(each.name for each in types.EVENTS)


def check_types(wanted: Collection[str]) -> None:
    """InvalidArgument names a type, or a pattern such as `job.*`, that no event of a mesh has."""
    known = known_types()
    wrong = [
        Violation("--type", f"no event is {each}{_or(get_close_matches(each, known, n=1))}")
        for each in wanted if not any(fnmatchcase(name, each) for name in known)
    ]  # fmt: skip
    if wrong:
        raise InvalidArgument("an event type is unknown", violations=wrong)


def is_wanted(name: str, wanted: Collection[str], *, everything: bool) -> bool:
    """Whether an event is shown: one of the types that were asked for; else all but periodic ones."""
    if wanted:
        return any(fnmatchcase(name, each) for each in wanted)
    return everything or name not in PERIODIC


def line(event: "Event") -> str:
    """When (local time), what, and the main facts in words."""
    at = output.clock(event.time) if isinstance(event.time, float) else event.time
    tell = _WORDS.get(event.type)
    try:
        facts = tell(event.data) if tell else _fields(event.data)
    except (KeyError, TypeError, ValueError):   # another version of the mesh has other fields
        facts = _fields(event.data)
    return f"{at}  {event.type:<24}  {' '.join(facts.split())}".rstrip()


def _fields(data: Data) -> str:
    """Of an event that has no words of its own: name and value of what is known."""
    known = {key: value for key, value in data.items() if value not in (None, "", [], {}) and key != "job_id"}
    return ", ".join(f"{key} {_value(key, value)}" for key, value in known.items())


def _value(key: str, value: Any) -> str:
    match value:
        case bool():
            text = "yes" if value else "no"
        case int() | float() if key in _MOMENTS:
            text = output.clock(float(value))
        case int() | float() if key.endswith("_bytes"):
            text = output.size(value)
        case int() | float() if key.endswith("_s") and not key.endswith("per_s"):
            text = f"{output.number(round(value, 2))} s"
        case int() | float():
            text = output.number(value)
        case dict():
            text = ", ".join(f"{name} {_value(name, item)}" for name, item in value.items())
        case list() | tuple() if value and isinstance(value[0], Mapping):
            text = f"({len(value):,})"
        case list() | tuple():
            text = ", ".join(_value("", item) for item in value)
        case str() if len(value) == 32 and not value.strip("0123456789abcdef"):
            text = value[:8]    # an incarnation
        case _:
            text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _or(close: list[str]) -> str:
    return f"; did you mean {close[0]}?" if close else ""


def _why(data: Data, before: str = ": ") -> str:
    return f"{before}{data['reason']}" if data.get("reason") else ""


def _place(data: Data) -> str:
    return f"{data['role']}-{data['index']}"


def _submitted(data: Data) -> str:
    owner, submitter = data.get("owner"), data.get("submitter")
    return f"{data['name']}{f' of {owner}' if owner else ''}{f', by {submitter}' if submitter else ''}"


def _transitioned(data: Data) -> str:
    why = ": ".join(data[name] for name in ("reason", "message") if data.get(name))
    return f"{data['from_phase']} → {data['to_phase']}{f' ({why})' if why else ''}"


def _progressed(data: Data) -> str:
    total = f" of {output.number(data['total'])}" if data.get("total") else ""
    measured = [f"{name} {data[name]:.4f}" for name in ("loss", "auc") if data.get(name) is not None]
    pace = f"{output.number(data.get('samples_per_s', 0.0))} samples/s"
    return ", ".join([f"{output.number(data['samples'])}{total} samples", pace, *measured])


def _measured(data: Data) -> str:
    auc = [f"AUC of {label} {value:.4f}" for label, value in data.get("auc", {}).items()]
    what = f"the minute of {output.clock(data['at'])}: {output.number(data['samples'])} samples"
    return ", ".join([what, f"loss {data['loss']:.4f}", *auc])


def _topic(data: Data) -> str:
    behind = {each["partition"]: each["end"] - each["offset"] for each in data["partitions"]}
    return (
        f"{output.number(sum(behind.values()))} messages behind on {len(behind)} partitions, the oldest came "
        f"{output.duration(data['lag_s'])} ago"
    )


def _exited(data: Data) -> str:
    if data.get("expected"):
        return f"{_place(data)}, as was to be{_why(data)}"
    code = "" if data.get("exit_code") is None else f", exit code {data['exit_code']}"
    return f"{_place(data)}{code}{_why(data)}"


def _started(data: Data) -> str:
    restarts = data.get("restarts")
    again = f", restart {restarts}" if restarts else ""
    return f"{_place(data)}, process {data.get('handle') or 'unknown'}{again}"


def _decided(data: Data) -> str:
    place = f" of {data['place']}" if data.get("place") else ""
    return f"{data['decision']}, {data['matter']}{place}: {data['decided']}, for {data['seen']}"


def _effect(data: Data) -> str:
    what = ". ".join(data[name] for name in ("done", "effect") if data.get(name))
    return f"of decision {data['decision']}, {data['matter']}: {what}"


def _committed(data: Data) -> str:
    return f"{data['snapshot']}, generation {data['gen']}, {output.number(data['samples'])} samples are safe"


def _stored(data: Data) -> str:
    took = f" in {data['duration_s']:.2g} s" if data.get("duration_s") else ""
    return f"{data['snapshot']}: {output.size(data['size_bytes'])} in {data['parts']} part(s){took}"


def _plan(data: Data) -> str:
    replicas = ", ".join(f"{count} {role}" for role, count in data.get("replicas", {}).items())
    return f"by {data['planner']}: {replicas or 'as it is'}{_why(data, '; ')}"


def _rolled_back(data: Data) -> str:
    lost = data.get("lost_samples")
    again = f"; {output.number(lost)} samples are trained again" if lost else ""
    return f"to snapshot {data['snapshot']}, generation {data['gen']}{again}{_why(data)}"


_WORDS: Mapping[str, Callable[[Data], str]] = {
    "job.submitted": _submitted, "job.transitioned": _transitioned, "job.progressed": _progressed,
    "job.measured": _measured, "topic.observed": _topic, "job.role_started": _started, "job.role_exited": _exited,
    "job.scaled": lambda data: f"{data['role']} {data['from_replicas']} → {data['to_replicas']}{_why(data)}",
    "job.decided": _decided, "job.effect_observed": _effect, "job.snapshot_committed": _committed,
    "snapshot.stored": _stored, "plan.proposed": _plan, "job.rolled_back": _rolled_back,
}  # fmt: skip
