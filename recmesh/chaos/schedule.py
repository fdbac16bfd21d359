"""What is done to whom, and when: a pure function of how many kills and a seed."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, zip_longest
from typing import Literal

TARGETS = ("worker", "ps", "shardsvc", "jobmaster", "ckptcache", "nats", "valkey")
STORES = ("nats", "valkey")
PLACES = {"worker": 2, "ps": 2}
"""Processes of a role; of everything else there is one."""

REQUESTS = "requests"
"""The gate of a store, which has none inside: it is stopped, and killed once requests wait in its sockets."""
GATES: Mapping[str, Sequence[str]] = {
    "worker": ("worker.push", "worker.acked"),
    "ps": (
        "ps.apply", "ps.rows", "ps.ack", "ps.claim", "ps.mark", "ps.part", "ps.restore", "ps.freeze", "ps.install",
        "ps.arrive",
    ),
    "shardsvc": ("shardsvc.lease", "shardsvc.renew", "shardsvc.open"),
    "jobmaster": (
        "jobmaster.mark", "jobmaster.commit", "jobmaster.committed", "jobmaster.rollback", "jobmaster.opened",
        "jobmaster.freeze", "jobmaster.publish",
    ),
    "ckptcache": ("ckptcache.part", "ckptcache.stored", "ckptcache.commit"),
    "nats": (REQUESTS,),
    "valkey": (REQUESTS,),
}
"""By target; names as in recmesh.runtime.gates."""
NEED_A_ROLLBACK = frozenset({"ps.restore", "shardsvc.open", "jobmaster.rollback", "jobmaster.opened"})
"""Gates that are reached only after a parameter server was lost."""

NEED_A_MOVE = frozenset({"ps.freeze", "ps.arrive", "ps.install", "jobmaster.freeze", "jobmaster.publish"})
"""Gates that are reached only while slots move: another number of parameter servers is asked for."""
MOVING: Mapping[str, tuple[str, str]] = {
    "ps.freeze": ("ps-0", "ps-2"), "ps.arrive": ("ps-2", "ps-0"), "ps.install": ("ps-2", "ps-0"),
}
"""Who stands at the gate when a third parameter server comes, and when it goes."""

STOP_S: Mapping[str, float] = {"worker": 4.5, "ps": 4.0, "jobmaster": 5.0}
"""How long a stopped process stays so: a worker beyond its lease, a jobmaster beyond its leadership. Others: 3 s."""
ACTS_S = 1.5
"""A jobmaster that was stopped at a gate goes on for so long beside the one that took over."""
LONG = 21
LATE_S = 5.0
"""Slots come to their new parameter server so late: their move was given up, and their old one has them again."""
LAST_S = 4.0
"""Within which the last tenth of the data is trained."""
SHIFT_S = 3_600.0
SHIFTED: Sequence[str] = ("jobmaster", "shardsvc", "ckptcache")
"""Services whose clock is shifted; roles and gateway decide nothing by Unix seconds."""
REWIND_S: Sequence[float] = (1.0, 60.0, math.inf)
"""Of Valkey's last writes so many seconds are lost; at last all there are."""
USURPED: Sequence[str] = (
    "jobmaster.commit", "jobmaster.freeze", "jobmaster.rollback", "jobmaster.mark", "jobmaster.publish",
    "jobmaster.opened", "jobmaster.committed",
)
"""Between a jobmaster's decision and its command another one takes over."""
PS_DEAD_S = 12.0
"""A parameter server that is silent for so long is taken for dead, and replaced while it is stopped."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One disturbance."""

    who: str
    """The process: `worker-0`, `ps-1`, `jobmaster`."""
    how: Literal["kill", "stop", "hold", "usurp", "rewind", "shift", "last"] = "kill"
    """usurp: stopped until a second jobmaster leads, then both act; rewind: killed, and its newest writes are lost;
    shift: its clock is set, it is killed, its clock is set back, it is killed again; hold: only the gate is shut;
    last: killed after the last sample was trained, and before the closing snapshot."""
    gate: str = ""
    """Held there first; empty: at any moment."""
    trigger: str = ""
    """Killed first, so that the gate is reached."""
    after_s: float = 0.0
    """The time since the one before."""
    stop_s: float = 0.0
    """How long it is stopped, or held; of usurp, how long both act; of rewind, how much is lost."""
    shift_s: float = 0.0
    """By how much its clock is set."""
    patient: bool = True
    """Until everything works again nothing else is done."""

    @property
    def target(self) -> str:
        """The kind of process."""
        return self.who.partition("-")[0]

    @property
    def is_rare(self) -> bool:
        """It takes several steps, and some time."""
        return self.how not in ("kill", "stop")

    def __str__(self) -> str:
        """In words."""
        at = f" at {self.gate}" if self.gate else ""
        match self.how:
            case "stop":
                return f"stop {self.who}{at} for {self.stop_s:g} s"
            case "hold":
                return f"hold {self.who}{at} for {self.stop_s:g} s"
            case "last":
                return f"kill {self.who} after the last sample"
            case "usurp":
                return f"stop {self.who}{at} until another leads"
            case "rewind":
                lost = "all it has written" if math.isinf(self.stop_s) else f"its last {self.stop_s:g} s"
                return f"kill {self.who} without {lost}"
            case "shift":
                return f"set the clock of {self.who} by {self.shift_s:+g} s"
        return f"kill {self.who}{at}"


def schedule(kills: int, *, seed: int) -> list[Strike]:
    """At least `kills` kills, first one at a gate of each target; for each seventh a stop.

    From `LONG` kills on there are as many rare strikes as stops, and one more after the last sample.
    """
    rng = random.Random(seed)
    each = -(-kills // 10)
    gated = [_gated(target, each, rng) for target in TARGETS]
    rounds = chain.from_iterable(zip_longest(*gated))
    strikes = list(islice((strike for strike in rounds if strike), kills))
    strikes += [_at_random(rng) for _ in range(kills - len(strikes))]
    strikes += [_stop(rng, number) for number in range(kills // 7)]
    if kills < LONG:
        rng.shuffle(strikes)
        return strikes
    strikes += [_rare(rng, number) for number in range(kills // 7)]
    rng.shuffle(strikes)
    return [*strikes, Strike(_place("ps", rng), how="last")]


def _gated(target: str, count: int, rng: random.Random) -> list[Strike]:
    gates = list(GATES[target])
    rng.shuffle(gates)
    return [_at(target, gate, rng) for gate in islice(cycle(gates), count)]


def _at(target: str, gate: str, rng: random.Random) -> Strike:
    who, trigger = _place(target, rng), ""
    if gate in NEED_A_ROLLBACK:
        trigger = f"ps-{1 - int(who[-1])}" if target == "ps" else _place("ps", rng)
    return Strike(who, gate=gate, trigger=trigger, after_s=rng.uniform(0.0, 1.0), patient=rng.random() < 0.75)


def _at_random(rng: random.Random) -> Strike:
    who = _place(rng.choice(TARGETS), rng)
    return Strike(who, after_s=rng.uniform(0.0, 3.0), patient=rng.random() < 0.5)


def _stop(rng: random.Random, number: int) -> Strike:
    """Every other one is a worker between its pushes, which comes back as a zombie."""
    target = "worker" if number % 2 == 0 else rng.choice(TARGETS)
    stop_s = PS_DEAD_S if target == "ps" and rng.random() < 0.5 else STOP_S.get(target, 3.0)
    gate = "worker.push" if target == "worker" else ""
    return Strike(_place(target, rng), how="stop", gate=gate, after_s=rng.uniform(0.0, 1.0), stop_s=stop_s)


def _rare(rng: random.Random, number: int) -> Strike:
    """In turn another jobmaster, older writes, another time, slots that arrive after their move was given up."""
    turn, after_s = number // 4, rng.uniform(0.0, 1.0)
    match number % 4:
        case 0:
            return usurp(USURPED[turn % len(USURPED)], after_s=after_s, trigger=_place("ps", rng))
        case 1:
            return Strike("valkey", how="rewind", after_s=after_s, stop_s=REWIND_S[turn % len(REWIND_S)])
        case 3:
            return Strike("ps-2", how="hold", gate="ps.arrive", after_s=after_s, stop_s=LATE_S)
    who, shift_s = SHIFTED[turn % len(SHIFTED)], rng.choice((SHIFT_S, -SHIFT_S))
    return Strike(who, how="shift", after_s=after_s, shift_s=shift_s)


def usurp(gate: str, *, after_s: float = 0.0, trigger: str = "ps-0") -> Strike:
    """Another jobmaster takes over at this gate; `trigger` dies first where it takes a rollback to reach it."""
    trigger = trigger if gate in NEED_A_ROLLBACK else ""
    return Strike("jobmaster", how="usurp", gate=gate, trigger=trigger, after_s=after_s, stop_s=ACTS_S)


def _place(target: str, rng: random.Random) -> str:
    return f"{target}-{rng.randrange(PLACES[target])}" if target in PLACES else target
