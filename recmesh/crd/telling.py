"""What is told of an object: conditions, Events, and words as the API server takes them."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from recmesh.crd.kinds import Condition
from recmesh.runtime.bucket import Bucket
from recmesh.runtime.errors import MeshError

MAX_NOTE = 1024
"""Of an Event, as the API server has it."""
MAX_MESSAGE = 4096
"""Of a condition or a status."""
EVENTS_PER_S, EVENTS_BURST = 1 / 15, 25.0
"""Of one object (client-go: 25, then 1/300)."""
Said = tuple[str, str, str, str]
"""(type, status, reason, message) of a condition."""
_REASON = re.compile(r"[^A-Za-z0-9_]")


class Ref(Protocol):
    """Which object."""

    @property
    def namespace(self) -> str:
        """Its namespace."""
        ...

    @property
    def name(self) -> str:
        """Its name there."""
        ...

    @property
    def uid(self) -> str:
        """Another one when it was deleted and made again."""
        ...


@dataclass(frozen=True, slots=True)
class ThingRef:
    """A `Ref` of an object that was read."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, thing: Mapping[str, Any]) -> "ThingRef":
        """The object's own."""
        metadata = thing["metadata"]
        return cls(metadata["namespace"], metadata["name"], metadata["uid"])


@dataclass(frozen=True, slots=True)
class Told:
    """An Event of an object."""

    id: str
    at: float
    reason: str
    note: str
    is_warning: bool = False

    @property
    def name_suffix(self) -> str:
        """The same for the same event, so that telling it again is no second one."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:16]


class Pace:
    """Lets each object tell Events only so fast; what comes faster is left out, and its status says how it is.

    A process that begins, or takes over, lets each of them tell as many as at first.
    """

    def __init__(self, *, per_s: float = EVENTS_PER_S, burst: float = EVENTS_BURST) -> None:
        self._per_s, self._burst = per_s, burst
        self._buckets: dict[str, tuple[Bucket, float]] = {}
        """By uid, with when it last told; who told last comes last."""

    def lets(self, ref: Ref, *, now_s: float) -> bool:
        """Whether the object may tell an Event now, which then counts as told."""
        known = self._buckets.pop(ref.uid, None)
        bucket = known[0] if known else Bucket(per_s=self._per_s, burst=self._burst)
        self._buckets[ref.uid] = bucket, now_s
        while now_s - self._buckets[oldest := next(iter(self._buckets))][1] >= self._burst / self._per_s:
            del self._buckets[oldest]                   # a bucket that is full again is as good as none
        return bucket.take(now_s, patience_s=0.0) is not None


def kept(said: Sequence[Said], generation: int, before: Sequence[Mapping[str, Any]], now: float) -> list[Condition]:
    """Conditions with the time since when each has had its status; `before`: those until now."""
    known = {str(item.get("type")): item for item in before}
    made = []
    for kind, value, reason, message in said:
        last = known.get(kind)
        since = str(last["lastTransitionTime"]) if last is not None and last.get("status") == value else moment(now)
        made.append(Condition.model_validate({
            "type": kind, "status": value, "reason": reason, "message": message[:MAX_MESSAGE],
            "lastTransitionTime": since, "observedGeneration": generation,
        }))
    return made


def word(reason: str) -> str:
    """A reason as the API server takes it: `REQUEST_REUSED` -> `RequestReused`."""
    if "_" in reason or reason.isupper():
        reason = "".join(part.capitalize() for part in reason.split("_"))
    found = _REASON.sub("", reason)
    return found if found[:1].isalpha() else "Unknown"


def words(error: MeshError) -> str:
    """What is wrong, field by field."""
    return "; ".join([error.message, *map(str, error.violations)])[:MAX_MESSAGE]


def moment(at: float) -> str:
    """Unix seconds as the API server has times."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """As kubectl writes ages: the two largest units."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for name, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size or (name == "s" and not parts):
            parts.append(f"{left // size}{name}")
            left %= size
    return "".join(parts[:2])


def size(count: float) -> str:
    """Bytes for people: `1.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:,.3g} TiB"
