"""The rules of supervision, pure: what to do with one component, given what is seen of it now.

waiting ──start──► starting ──ready──► ready ◄──► unready
                      │ died             │ died      │ died, or silent too long (killed)
                      └──────► backoff ◄─┴───────────┘
                                  └── delay over ──► starting
"""

from dataclasses import dataclass, field
from enum import Enum

from recmesh.cli.mesh.probes import Answer

FIRST_DELAY_S = 0.25
LARGEST_DELAY_S = 30.0
STEADY_S = 60.0
"""A component that was ready this long starts again with the first delay."""
SILENCE_S = 60.0
"""A component that listens but answers nobody for so long hangs; it is killed and restarted."""
HOPELESS_EXITS = frozenset({64, 73, 78})
"""Of what will not start by itself: wrong use, a folder that cannot be written, bad settings (sysexits.h)."""
MAX_FAILED_STARTS = 3
"""Deaths before the first readiness after which a start counts as failed (trying goes on)."""


class State(Enum):
    """Where a component is; the value is what people see."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    UNREADY = "unready"
    BACKOFF = "backoff"


class Action(Enum):
    """What the supervisor shall do now."""

    NOTHING = "nothing"
    START = "start"
    KILL = "kill"


@dataclass(slots=True)
class Watch:
    """What is remembered of one component."""

    state: State = State.WAITING
    restarts: int = 0
    failures: int = 0
    """Deaths since it was last steady."""
    failed_starts: int = 0
    """Deaths since the mesh was brought up, as long as it was never ready."""
    hopeless: bool = False
    since: float = 0.0
    next_start: float = 0.0
    largest_delay_s: float = LARGEST_DELAY_S
    _heard: float = field(default=0.0, repr=False)

    def adopted(self, now: float) -> None:
        """A living process of an earlier supervisor was found; a probe will tell its state."""
        self._enter(State.STARTING, now)
        self._heard = now

    def started(self, now: float) -> None:
        """A process was started."""
        self._enter(State.STARTING, now)
        self._heard = now

    def died(self, now: float, *, exit_code: int | None) -> None:
        """The process ended; the next start waits, twice as long each time, until it was steady once."""
        if self.state is State.READY and now - self.since >= STEADY_S:
            self.failures = 0
        if self.state is State.STARTING:
            self.failed_starts += 1
            if exit_code in HOPELESS_EXITS or self.failed_starts >= MAX_FAILED_STARTS:
                self.hopeless = True
        self.next_start = now + min(FIRST_DELAY_S * 2 ** min(self.failures, 16), self.largest_delay_s)
        self.failures += 1
        self._enter(State.BACKOFF, now)

    def heard(self, answer: Answer, now: float) -> None:
        """A probe came back."""
        if answer is not Answer.SILENT:
            self._heard = now
        if answer is Answer.READY:
            self.failed_starts, self.hopeless = 0, False
            if self.state is not State.READY:
                self._enter(State.READY, now)
        elif self.state is State.READY:
            self._enter(State.UNREADY, now)

    def decide(self, now: float, *, alive: bool, may_start: bool) -> Action:
        """What to do; counts a start out of backoff as a restart."""
        if alive:
            hangs = self.state is not State.STARTING and now - self._heard >= SILENCE_S
            return Action.KILL if hangs else Action.NOTHING
        if self.state is State.WAITING and may_start:
            return Action.START
        if self.state is State.BACKOFF and now >= self.next_start and may_start:
            self.restarts += 1
            return Action.START
        return Action.NOTHING

    def _enter(self, state: State, now: float) -> None:
        self.state, self.since = state, now
