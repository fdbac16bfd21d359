"""What was seen of a scaled model, what was decided, and what was done."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from recmesh.serving.settings import Scaling
from services.gateway.domain.load import Load

ScalingFact = Literal["measured", "scaling_decided", "scaled"]
PHASES = ("queue", "input", "infer", "output")


@dataclass(frozen=True, slots=True)
class Phases:
    """Nanoseconds of all answered requests of a model, and how many those were."""

    count: int = 0
    ns: tuple[int, ...] = (0, 0, 0, 0)

    def since(self, before: "Phases") -> "Phases":
        """What came since then."""
        return Phases(
            max(0, self.count - before.count),
            tuple(max(0, now - then) for now, then in zip(self.ns, before.ns, strict=True)),
        )

    def __add__(self, other: "Phases") -> "Phases":
        return Phases(self.count + other.count, tuple(a + b for a, b in zip(self.ns, other.ns, strict=True)))

    @property
    def means(self) -> dict[str, float]:
        """Seconds of one request in each phase."""
        return {
            name: taken / 1e9 / self.count if self.count else 0.0 for name, taken in zip(PHASES, self.ns, strict=True)
        }


@dataclass(frozen=True, slots=True)
class Own:
    """Processes that some versions of a model have for themselves."""

    model: str
    versions: frozenset[str]
    rules: Scaling
    way: str = ""
    """For people: how they run these versions."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What such processes had to do over a window."""

    key: str
    """Theirs, as long as they are there."""
    model: str
    rules: Scaling
    loads: Mapping[str, Load]
    """By kind."""
    arrivals_per_s: float
    """Of requests for their versions."""
    window_s: float
    elsewhere: float = 0.0
    """Share of the model's requests that other processes got."""
    latency_s: float = 0.0
    """Mean time of a request in its processes, waiting for them left out."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many processes of a kind there should be."""

    kind: str
    replicas: int
    reason: str
    why: str
    demand_per_s: float = 0.0
    capacity_per_s: float = 0.0
    """Of one process at the target; 0: not known."""


@dataclass(frozen=True, slots=True)
class Look:
    """One model at one moment."""

    at: float
    model: str
    window_s: float
    arrivals_per_s: float
    phases: Mapping[str, float]
    """Mean seconds of a request by phase."""
    loads: Mapping[str, Load]
    dry_run: bool
    decisions: tuple[Decision, ...] = ()
    trouble: str = ""
    """Why nothing was decided."""
    way: str = ""
    """Which of the model's processes, where its versions have them in several ways."""

    @property
    def wishes(self) -> tuple[tuple[str, int, int], ...]:
        """(kind, how many there are, how many there should be) where these differ."""
        return tuple(
            (each.kind, self.loads[each.kind].replicas, each.replicas) for each in self.decisions
            if self.loads[each.kind].replicas != each.replicas
        )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """For programs."""
        decided = {each.kind: each for each in self.decisions}
        return {
            "at": self.at, "model": self.model, "way": self.way, "window_s": self.window_s,
            "arrivals_per_s": self.arrivals_per_s,
            "phases_s": dict(self.phases), "dry_run": self.dry_run, "trouble": self.trouble,
            "kinds": {
                kind: {
                    "replicas": load.replicas, "busy": load.busy, "answered_per_s": load.answered_per_s,
                    "waiting": load.waiting, "start_s": load.start_s,
                    "wanted": decided[kind].replicas if kind in decided else load.replicas,
                    "reason": decided[kind].reason if kind in decided else "",
                    "why": decided[kind].why if kind in decided else "",
                    "capacity_per_s": decided[kind].capacity_per_s if kind in decided else 0.0,
                }
                for kind, load in self.loads.items()
            },
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """A process that was started or ended, or could not be."""

    at: float
    model: str
    kind: str
    before: int
    after: int
    reason: str
    why: str
    took_s: float
    trouble: str = ""
    way: str = ""
    """As in `Look`."""


def bounded(decision: Decision, rules: Scaling) -> Decision:
    """Never beyond the settings, whoever decided."""
    limits = rules.cn if decision.kind == "cn" else rules.hn
    return replace(decision, replicas=min(max(decision.replicas, limits.min), limits.max))
