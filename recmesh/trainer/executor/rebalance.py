"""Passing tasks on: who has room, and who gets what (KALE's thresholds). Pure.

An executor refuses tasks of peers from when more than `refuse_above` wait, until fewer than `accept_below` do: without
the gap it would change its mind with every task. One with more than `refuse_above` passes the surplus to peers that
have room. A task that was passed on stays where it came to, so none wanders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """In tasks that wait to be decoded."""

    refuse_above: int
    accept_below: int

    def __post_init__(self) -> None:
        if not 0 < self.accept_below <= self.refuse_above:
            raise ValueError(f"accept_below {self.accept_below} must be from 1 to refuse_above {self.refuse_above}")


class Room:
    """Whether tasks of peers are accepted: a state with hysteresis."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.accepting = True

    def see(self, queued: int) -> bool:
        """So many wait now; True when the state has changed, which peers are to be told."""
        before = self.accepting
        if queued > self._thresholds.refuse_above:
            self.accepting = False
        elif queued < self._thresholds.accept_below:
            self.accepting = True
        return self.accepting != before

    def takes(self, offered: int, *, queued: int) -> int:
        """How many of a peer's tasks are taken: none while refusing, and never more than to the upper threshold."""
        if not self.accepting:
            return 0
        return min(offered, max(0, self._thresholds.refuse_above - queued))


@dataclass(frozen=True, slots=True)
class Peer:
    """Another executor, as it was last heard."""

    accepting: bool
    queued: int


def surplus(queued: int, thresholds: Thresholds) -> int:
    """How many tasks are to be passed on."""
    return max(0, queued - thresholds.refuse_above)


def share_out(tasks: Sequence[T], peers: Mapping[str, Peer], *, upto: int) -> dict[str, list[T]]:
    """Tasks by address of the peer that is to be offered them: one after the other to the peer with the fewest, as long
    as it has less than `upto`. What nobody has room for is in no list."""
    load = {address: peer.queued for address, peer in peers.items() if peer.accepting and peer.queued < upto}
    shared: dict[str, list[T]] = {}
    for task in tasks:
        if not load:
            break
        address = min(load, key=lambda each: (load[each], each))
        shared.setdefault(address, []).append(task)
        load[address] += 1
        if load[address] >= upto:
            del load[address]
    return shared
