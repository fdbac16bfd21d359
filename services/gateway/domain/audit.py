"""Which requests are changes that are written down: who did what, to what, and whether they were let."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["done", "refused", "failed"]
Via = Literal["rest", "event", "rpc"]

UNKNOWN = "unknown"
"""Who showed no credential, or a wrong one."""


@dataclass(frozen=True, slots=True)
class Act:
    """A change: `scale` of the `job` flights."""

    verb: str
    kind: str
    object: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the audit."""

    act: Act
    actor: str
    outcome: Outcome
    via: Via
    reason: str = ""
    request_id: str = ""
    peer: str = ""
    status: int = 0


_CREATE = {"jobs": ("submit", "job"), "code": ("upload", "code"), "datasets": ("register", "dataset"),
           "models": ("register", "model"), "webhooks": ("create", "webhook")}  # fmt: skip
_SINGULAR = {"jobs": "job", "datasets": "dataset", "models": "model", "webhooks": "webhook"}


def act_of(method: str, path: str, *, dry_run: bool = False) -> Act | None:
    """The change that an HTTP request asks for; None where it asks for none, or for what is traffic: inferences,
    labels, measured rates, checks of specifications."""
    parts = path.strip("/").split("/")
    match method, parts:
        case "POST", ["v1", what] if what in _CREATE and not dry_run:
            return Act(*_CREATE[what])
        case "POST", ["v1", what, named] if what in _SINGULAR and ":" in named:
            name, _, verb = named.rpartition(":")
            return Act(verb, _SINGULAR[what], name)
        case ("POST", ["v1", "models", name, ("rollback" | "resume") as verb]):
            return Act(verb, "model", name)
        case "PUT", ["v1", "models", name, "traffic"]:
            return Act("route", "model", name)
        case "PATCH", ["v1", "webhooks", name]:
            return Act("change", "webhook", name)
        case "DELETE", ["v1", what, name] if what in _SINGULAR:
            return Act("unregister" if what == "models" else "delete", _SINGULAR[what], name)
        case ("POST", ["v2", "repository", "models", name, ("load" | "unload") as verb]):
            return Act(verb, "model", name)
        case ("POST" | "PUT" | "PATCH" | "DELETE"), ["v1", what, _, *_] if what in _SINGULAR:
            return Act(method.lower(), _SINGULAR[what], "/".join(parts[2:]))    # a route that is new
    return None


def outcome_of(status: int) -> Outcome:
    """What an HTTP status says."""
    return "done" if status < 400 else "refused" if status < 500 else "failed"
