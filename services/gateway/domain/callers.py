"""Who calls, what they may do to which models, and how often they may ask."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recmesh.runtime.errors import InvalidArgument, PermissionDenied, ResourceExhausted, Violation
from recmesh.spec.namespaces import NAMESPACE_END, unfit

INFER, MODELS, JOBS, ADMIN = "infer", "models", "jobs", "admin"
SCOPES = (INFER, MODELS, JOBS, ADMIN)
"""Run models and read of them; register, load and route them; everything else under /v1; all, with the pages."""
SERIES_OF_MESH = ("model", "job", "topic")


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second in the long run, and how many at once after a pause."""

    per_s: float
    burst: float


@dataclass(frozen=True, slots=True)
class Caller:
    """A checked credential's rights."""

    name: str
    scopes: frozenset[str] = frozenset({ADMIN})
    models: tuple[str, ...] = ("*",)
    """Patterns as in a shell; a model is allowed when one fits."""
    namespaces: tuple[str, ...] = ()
    """When there are any, a model must be in one of them too."""
    rate: Rate | None = None

    def sees(self, model: str) -> bool:
        """True when the rights reach this model."""
        inside = not self.namespaces or any(
            model.startswith(namespace + NAMESPACE_END) for namespace in self.namespaces
        )
        return inside and any(fnmatch.fnmatchcase(model, pattern) for pattern in self.models)

    def check(self, scope: str, model: str = "") -> None:
        """PermissionDenied unless the scope is held, and reaches the model."""
        if scope not in self.scopes and ADMIN not in self.scopes:
            raise PermissionDenied(f"{self.name} has no scope {scope!r}", reason="NO_SCOPE")
        if model and not self.sees(model):
            raise PermissionDenied(f"{self.name} may not use model {model!r}", reason="WRONG_MODEL")

    def confined_to(self, model: str) -> str:
        """The namespace whose folders alone the caller may serve as this model; empty: any folder."""
        if ADMIN in self.scopes:
            return ""
        fitting = [each for each in self.namespaces if model.startswith(each + NAMESPACE_END)]
        return max(fitting, key=len, default="")

    def reaches_dataset(self, name: str) -> bool:
        """True when the dataset is in one of the namespaces, where there are any; the admin's are no limit."""
        return not self.namespaces or ADMIN in self.scopes or any(
            name.startswith(namespace + NAMESPACE_END) for namespace in self.namespaces
        )

    def check_dataset(self, name: str) -> None:
        """PermissionDenied unless the dataset is one of the caller's."""
        if not self.reaches_dataset(name):
            wanted = " or ".join(f"{namespace}{NAMESPACE_END}NAME" for namespace in self.namespaces)
            raise PermissionDenied(
                f"{self.name} may use datasets {wanted} alone, not {name!r}", reason="WRONG_NAMESPACE"
            )

    @property
    def makes_topics(self) -> bool:
        """Who may only run models makes none: each is a stream with a share of the disk."""
        return not self.scopes.isdisjoint((MODELS, JOBS, ADMIN))

    def check_series(self, series: str) -> None:
        """PermissionDenied unless the caller may tell rates of a series: a model's of its own, and the mesh's of none.

        A caller with namespaces may tell none of `model/`, `job/` and `topic/`, which the mesh measures itself.
        """
        kind, _, rest = series.partition("/")
        if self.namespaces and ADMIN not in self.scopes and kind in SERIES_OF_MESH:
            raise PermissionDenied(
                f"{self.name} may not tell rates of {series!r}: the mesh measures {kind}s itself", reason="WRONG_SERIES"
            )
        if kind == "model":
            self.check(JOBS, rest.partition("/")[0])

    def check_topic(self, topic: str) -> None:
        """PermissionDenied unless the topic is in one of the namespaces, where there are any: `ads.labels`."""
        free = not self.namespaces or ADMIN in self.scopes
        if not free and not any(topic.startswith(f"{namespace}.") for namespace in self.namespaces):
            wanted = " or ".join(f"{namespace}.NAME" for namespace in self.namespaces)
            raise PermissionDenied(
                f"{self.name} may not write to topic {topic!r}, only to {wanted}", reason="WRONG_TOPIC"
            )


MESH = Caller("the mesh")
"""Its own services, whose token was seen already."""
ANYONE = Caller("anyone")
"""Where no credential is asked for."""


def needed(method: str, path: str) -> tuple[str, str]:
    """The scope that an HTTP request needs, and the model that it is about; empty: none, or several."""
    parts = path.strip("/").split("/")
    match parts:
        case ["v2", "models", "stats"]:
            return INFER, ""
        case ["v2", "models", name, *_]:
            return INFER, name
        case ["v2", "repository", "models", name, *_]:
            return MODELS, name
        case ["v2", *_]:
            return INFER, ""
        case ["v1", "models", name, *_]:
            return INFER if method == "GET" else MODELS, name.partition(":")[0]
        case ["v1", "serving"]:
            return INFER, ""
        case ["v1", "labels"]:
            return INFER, ""
        case ["v1", "models"]:
            return INFER if method == "GET" else MODELS, ""
        case ["v1", *_]:
            return JOBS, ""
    return ADMIN, ""


@dataclass(slots=True)
class TokenBucket:
    """Requests of one caller; time is an argument."""

    rate: Rate
    tokens: float = field(init=False)
    at: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        self.tokens = self.rate.burst

    def take(self, now: float) -> float:
        """0 when the request may go on; else the seconds after which one may."""
        gained = (now - self.at) * self.rate.per_s if now > self.at else 0.0
        self.tokens, self.at = min(self.rate.burst, self.tokens + gained), max(now, self.at)
        if self.tokens >= 1.0:
            self.tokens -= 1.0
            return 0.0
        return (1.0 - self.tokens) / self.rate.per_s


def too_often(caller: Caller, wait_s: float) -> ResourceExhausted:
    """The error of a caller above its rate."""
    assert caller.rate is not None, "a caller without a rate has no limit"
    return ResourceExhausted(
        f"{caller.name} may ask {caller.rate.per_s:g} times per second; try again in {wait_s:.2f} s",
        reason="RATE_LIMITED", metadata={"retry_after_s": f"{wait_s:.3f}"},
    )  # fmt: skip


def parse(name: str, document: Mapping[str, Any], path: str) -> Caller:
    """A caller's rights as they are written down; InvalidArgument names every wrong field."""
    wrong: list[Violation] = []
    scopes = _texts(document, "scopes", path, wrong)
    wrong += [
        Violation(f"{path}.scopes", f"{item!r} is none of {', '.join(SCOPES)}") for item in scopes if item not in SCOPES
    ]
    models = _texts(document, "models", path, wrong) or ("*",)
    namespaces = _texts(document, "namespaces", path, wrong)
    wrong += [
        Violation(f"{path}.namespaces", reason) for namespace in namespaces if (reason := unfit(namespace))
    ]
    wrong += [
        Violation(f"{path}.{name}", "is empty: leave it out, if there is no limit") for name in ("models", "namespaces")
        if document.get(name) == []
    ]
    rate = document.get("rate")
    limit = None
    if rate is not None:
        numbers: list[Any] = [None]
        if isinstance(rate, dict):
            numbers = [rate.get("per_s"), rate.get("burst", rate.get("per_s"))]
        if not all(isinstance(item, (int, float)) and item > 0 for item in numbers):
            wrong.append(Violation(f"{path}.rate", "is not an object with per_s and burst above 0"))
        else:
            limit = Rate(float(numbers[0]), max(1.0, float(numbers[1])))
    if wrong:
        raise InvalidArgument(f"the rights of {name!r} are wrong", reason="BAD_CREDENTIALS", violations=wrong)
    return Caller(name, frozenset(scopes), models, namespaces, limit)


def _texts(document: Mapping[str, Any], key: str, path: str, wrong: list[Violation]) -> tuple[str, ...]:
    value = document.get(key) or []
    if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
        return tuple(value)
    wrong.append(Violation(f"{path}.{key}", "is not a list of texts"))
    return ()
