"""How many processes of each kind (CN, HN) a served model should have now. Each kind is decided on its own.

What one request takes of a kind's time, S, is what is measured: U = X S, the utilisation law (Denning and Buzen, "The
Operational Analysis of Queueing Network Models", 1978), with U the processes' busy time per second and X the requests
that they answered. To be used to a share of at most ρ, λ requests per second need n = ceil(λ S / ρ) processes. Where
requests are run in batches S falls with load, so that an S measured at little load asks for too many, not too few.

λ is the largest rate forecast for the time in which processes that are started now, one after another, could not
help yet; what is taken away must not be needed for as long as it is held, either. When measurements contradict the
forecast they hold, and say so:

- more comes than was forecast: what comes is planned with;
- processes are busy beyond `SATURATED`, or more than `WAIT_S` of work wait for each: as many as the
  measured use needs, and at least one more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SATURATED = 0.9
"""Busy share from which the rate of answers no longer tells the rate of requests."""
WAIT_S = 1.0
"""Seconds of work that wait for each process: beyond that they do not keep up (Little's law: L = λ W)."""
BAND = 0.1
"""Around the target: as the tolerance of Kubernetes' HorizontalPodAutoscaler, within which nothing changes."""
ENOUGH = 20.0
"""Requests after which S is known."""
HALF_LIFE_S = 300.0
"""By which older measurements of S count half."""


class Reason(StrEnum):
    """Why a kind has the number that it has."""

    FORECAST = "FORECAST"
    """What is forecast needs so many."""
    MEASURED = "MEASURED"
    """There is no forecast, or more comes than it says."""
    SATURATED = "SATURATED"
    """They do not keep up, whatever was forecast."""
    HELD = "HELD"
    """Fewer would do, but not for long enough yet."""
    UNKNOWN = "UNKNOWN"
    """What a request takes has not been seen yet."""
    LIMIT = "LIMIT"
    """More are needed than the model may have."""
    ROOM = "ROOM"
    """More are needed than serving has room for, its own and what training lends."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The processes of one kind, as they were over the last window."""

    name: str
    replicas: int
    least: int = 1
    most: int = 1
    busy: float = 0.0
    """Mean share of a process' time, 0 to 1."""
    answered_per_s: float = 0.0
    waiting: float = 0.0
    """Requests."""
    start_s: float = 0.0
    """Until a new one takes requests; 0: not known."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the model's settings say."""

    target: float = 0.7
    quantile: float = 0.9
    hold_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Coming:
    """Requests per second, at the rules' quantile, in each step from now on; empty: there is no forecast."""

    demand: Sequence[float]
    step_s: float
    note: str = ""
    """By which model; or why there is none."""

    def peak(self, ahead_s: float) -> float:
        """The largest until then."""
        steps = max(1, math.ceil(ahead_s / self.step_s))
        return max(self.demand[:steps], default=0.0)


@dataclass(slots=True)
class Service:
    """S of one kind, from what it did."""

    busy_s: float = 0.0
    answered: float = 0.0

    def saw(self, kind: Kind, window_s: float) -> None:
        """One window more."""
        keep = 0.5 ** (window_s / HALF_LIFE_S)
        self.busy_s = self.busy_s * keep + kind.busy * kind.replicas * window_s
        self.answered = self.answered * keep + kind.answered_per_s * window_s

    @property
    def seconds(self) -> float | None:
        """For one request; None: too few were seen."""
        return self.busy_s / self.answered if self.answered >= ENOUGH else None


@dataclass(frozen=True, slots=True)
class Decision:
    """How many of a kind there should be now."""

    kind: str
    replicas: int
    reason: Reason
    why: str
    demand_per_s: float = 0.0
    """Planned for."""
    capacity_per_s: float = 0.0
    """Of one, at the target; 0: not known."""


@dataclass(frozen=True, slots=True)
class Need:
    """How many would do now, before what was needed lately is looked at."""

    to_grow: int
    """More than there are: so many must be started."""
    to_shrink: int
    """Fewer than there are: so many are enough, with the band's room."""
    reason: Reason
    why: str
    demand_per_s: float
    capacity_per_s: float


@dataclass(frozen=True, slots=True)
class ServingAsk:
    """A served model, as its gateway tells it."""

    model: str
    series: str
    """Under which its requests are forecast; empty: not at all."""
    step_s: float
    """Of that forecast."""
    arrivals_per_s: float
    """Over the window, refused ones too."""
    window_s: float
    kinds: Sequence[Kind]
    rules: Rules
    asker: str = ""
    """The gateway, and which of the model's processes: each is decided about apart."""
    dry_run: bool = False
    elsewhere: float = 0.0
    """Share of the series' requests that others of the asker's processes get."""
    latency_s: float = 0.0
    """Mean time of a request within its processes, over the window."""
    node: str = ""
    """On which they run; empty: on several."""
    pods: bool = False
    """They are: what a cluster tells to be free is without them."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was decided of a model at one moment."""

    at: float
    model: str
    arrivals_per_s: float
    now: Sequence[Kind]
    chosen: Sequence[Decision]
    dry_run: bool


def changed(look: Look) -> list[tuple[Kind, Decision]]:
    """Kinds whose number is to change."""
    return [
        (kind, one) for kind, one in zip(look.now, look.chosen, strict=True)
        if one.replicas != kind.replicas
    ]  # fmt: skip


def needed(kind: Kind, service_s: float | None, arrivals_per_s: float, coming: Coming, rules: Rules) -> Need:
    """From demand and capacity, by itself: limits and the past are `decide`'s."""
    one = rules.target / service_s if service_s else math.inf
    near = _near(kind, coming, one)
    far = max(near, coming.peak(kind.start_s + rules.hold_s))
    demand, later = max(near, arrivals_per_s), max(far, arrivals_per_s)
    basis, why = _basis(arrivals_per_s, near, coming)
    late = _saturation(kind, service_s)
    if service_s is None:
        found = Need(kind.replicas, kind.replicas, Reason.UNKNOWN, "what a request takes is not known yet", demand, 0.0)
    else:
        found = Need(
            _count(demand / one, 1 + BAND), _count(later / one, 1 - BAND), basis,
            f"{why}; one bears {one:,.0f}/s at {rules.target:.0%}", demand, one if math.isfinite(one) else 0.0,
        )  # fmt: skip
    if not late or found.to_grow > kind.replicas:
        return found
    count = max(kind.replicas + 1, math.ceil(kind.replicas * kind.busy / rules.target))
    return Need(
        count, count, Reason.SATURATED, f"{late} in spite of what is known: {found.why}", demand, found.capacity_per_s
    )


def units(kind: Kind, demand_per_s: float, one_per_s: float) -> int:
    """Processes for so many requests per second, where one bears `one_per_s`; within the model's limits."""
    return min(max(kind.least, _count(demand_per_s / one_per_s, 1 + BAND)), kind.most)


def decide(kind: Kind, need: Need, recently: Sequence[tuple[float, int]], *, now: float, rules: Rules) -> Decision:
    """Within limits, and not below what was needed within `hold_s`.

    `recently`: (when, `to_shrink` of that look), oldest first, this look included. Growth is not held back: a queue
    costs requests, a process too many only its share of a machine.
    """
    def made(replicas: int, reason: Reason, why: str) -> Decision:
        return Decision(kind.name, replicas, reason, why, need.demand_per_s, need.capacity_per_s)

    if not kind.least <= kind.replicas <= kind.most:
        bound = min(max(kind.replicas, kind.least), kind.most)
        return made(bound, Reason.LIMIT, f"the model may have {kind.least} to {kind.most}")
    if need.to_grow > kind.replicas:
        if need.to_grow > kind.most:
            why = f"{need.to_grow} are needed, the model may have {kind.most}: {need.why}"
            return made(kind.most, Reason.LIMIT, why)
        return made(need.to_grow, need.reason, need.why)
    enough = max(kind.least, need.to_shrink)
    if enough >= kind.replicas:
        return made(kind.replicas, need.reason, need.why)
    covered = bool(recently) and recently[0][0] <= now - rules.hold_s
    most = max([count for at, count in recently if at >= now - rules.hold_s], default=kind.replicas)
    held = min(kind.replicas, max(enough, most)) if covered else kind.replicas
    if held == kind.replicas:
        return made(held, Reason.HELD, f"{enough} would do, but not yet for {rules.hold_s:.0f} s: {need.why}")
    return made(held, need.reason, f"{held} were enough for {rules.hold_s:.0f} s: {need.why}")


def _near(kind: Kind, coming: Coming, one_per_s: float) -> float:
    """The largest rate for which a process must be begun now: they start one after another, so that the first of many
    is begun for as many starts earlier."""
    found = coming.peak(kind.start_s + coming.step_s)
    for step, demand in enumerate(coming.demand):
        starts = units(kind, demand, one_per_s) - kind.replicas
        if step * coming.step_s < starts * kind.start_s + coming.step_s:
            found = max(found, demand)
    return found


def _basis(arrivals_per_s: float, near: float, coming: Coming) -> tuple[Reason, str]:
    if not coming.demand:
        return Reason.MEASURED, f"{arrivals_per_s:,.1f}/s come, and there is no forecast ({coming.note})"
    if arrivals_per_s > near * (1 + BAND):
        return Reason.MEASURED, f"{arrivals_per_s:,.1f}/s come where {near:,.1f} were forecast"
    return Reason.FORECAST, f"{max(near, arrivals_per_s):,.1f}/s are forecast ({coming.note})"


def _saturation(kind: Kind, service_s: float | None) -> str:
    """In which way they do not keep up; '': they do."""
    if kind.busy >= SATURATED:
        return f"busy to {kind.busy:.0%}"
    work_s = kind.waiting * (service_s or 0.0) / max(1, kind.replicas)
    return f"{work_s:.1f} s of work wait for each" if work_s > WAIT_S else ""


def _count(share: float, band: float) -> int:
    """Processes for so much work, each to be filled to the target and the band's share of it."""
    return max(1, math.ceil(share / band - 1e-9))
