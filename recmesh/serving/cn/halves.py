"""Dense halves in HNs that load what CNs tell them to: told at a load, told again when an HN comes back, and when it
could not or took too long."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from recmesh.runtime.errors import MeshError, Unavailable
from recmesh.serving.cn.alarms import Alarms
from recmesh.serving.cn.peers import Hns
from recmesh.serving.frames import Header
from recmesh.serving.transport import Message

UNLOAD_S = 60.0
AGAIN_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Until an HN that did not load a half is told again; the last one from then on."""


class Members(Protocol):
    """The HNs of a model, as those see them who know which of them have its dense half."""

    @property
    def names(self) -> Sequence[str]:
        """All of them."""
        ...

    def has(self, name: str, *, model: bool) -> None:
        """Whether this one has it, as far as is known."""
        ...


Outcome = Callable[[str, Message | MeshError], None]
"""An HN's name, and what it answered."""


def _nothing(_name: str, _outcome: Message | MeshError) -> None:
    """Nobody waits for it."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    key: str
    fleet: Members
    header: Header
    timeout_s: float
    told: Counter[str] = field(default_factory=Counter)
    """How often each HN was told to load it: only what the last time came to counts."""


class Halves:
    """Used from any thread."""

    def __init__(self, hns: Hns, *, alarms: Alarms, log: Callable[[str], None]) -> None:
        self._hns = hns
        self._alarms = alarms
        self._log = log
        self._wanted: dict[str, _Wanted] = {}

    def load(self, key: str, header: Header, fleet: Members, *, until: float) -> None:
        """Have the dense half loaded by those HNs that do so and are connected now; the others when they come. Each is
        asked for the model once it has it.

        `header`: `folder`, `part` and `settings`, as HNs know them. Raises what an HN said when none of them could,
        or Unavailable when they took longer; the model is wanted until it is unloaded, or was `put_back`.
        """
        wanted = _Wanted(key, fleet, {**header, "op": "load", "model": key}, max(0.0, until - time.monotonic()))
        for name in fleet.names:
            fleet.has(name, model=False)         # until it connects: `connected` knows better
        self._wanted[key] = wanted
        there = [link for link in self._hns.links() if link.name in fleet.names and link.connected]
        told = [link.name for link in there if link.loads]
        outcomes: dict[str, Message | MeshError] = {}
        came = threading.Condition()

        def answered(name: str, outcome: Message | MeshError) -> None:
            with came:
                outcomes[name] = outcome
                came.notify()

        for link in there:
            self._load(wanted, link.name, answered)
        with came:
            came.wait_for(lambda: len(outcomes) == len(told), max(0.0, until - time.monotonic()) + 1.0)
        errors = [each for each in outcomes.values() if isinstance(each, MeshError)]
        if told and len(errors) == len(told):
            raise errors[0]
        if len(outcomes) < len(told) and len(errors) == len(outcomes):
            missing = ", ".join(sorted(set(told) - set(outcomes)))
            raise Unavailable(f"{missing} did not load the dense half of {key} in time", reason="LOAD_TOO_SLOW")

    def wanted(self, key: str) -> _Wanted | None:
        """What is wanted of the model, for `put_back`."""
        return self._wanted.get(key)

    def put_back(self, key: str, before: _Wanted | None) -> None:
        """A load failed: what was wanted before it is again. HNs that have changed their half change it back."""
        if before is None:
            self.unload(key)
            return
        self._wanted[key] = before
        for name in before.fleet.names:
            self._tell(name, before.header, before.timeout_s, _nothing)

    def unload(self, key: str) -> None:
        """It is not wanted any more, by this CN."""
        wanted = self._wanted.pop(key, None)
        if wanted is not None:
            self.leave(key, wanted.fleet.names)

    def leave(self, key: str, names: Iterable[str]) -> None:
        """These HNs are asked for the model no more, by this CN; others are."""
        for name in names:
            self._tell(name, {"op": "unload", "model": key}, UNLOAD_S, _nothing)

    def added(self, key: str, names: Iterable[str]) -> None:
        """These are the model's, too, from now on."""
        wanted, new = self._wanted.get(key), set(names)
        for link in self._hns.links():
            if wanted is not None and link.name in new and link.connected:
                self._load(wanted, link.name, _nothing)

    def connected(self, hn: str) -> None:
        """An HN is there, or there again: it has forgotten who wanted what. In its connection's thread."""
        for wanted in list(self._wanted.values()):
            if hn in wanted.fleet.names:
                self._load(wanted, hn, _nothing)

    def lost(self, hn: str) -> None:
        """An HN is gone. If it comes back it has no models, unless it has them of its own."""
        for wanted in list(self._wanted.values()):
            wanted.fleet.has(hn, model=False)

    def _load(self, wanted: _Wanted, name: str, answered: Outcome, *, failures: int = 0) -> None:
        link = self._hns.link(name)
        if link is not None and not link.loads:
            wanted.fleet.has(name, model=True)   # or it will say so itself
            return
        wanted.fleet.has(name, model=False)
        wanted.told[name] += 1
        time_told = wanted.told[name]

        def loaded(name: str, outcome: Message | MeshError) -> None:
            if isinstance(outcome, MeshError):
                self._again(wanted, name, outcome, time_told, failures)
            else:
                wanted.fleet.has(name, model=True)
            answered(name, outcome)

        self._tell(name, wanted.header, wanted.timeout_s, loaded)

    def _again(self, wanted: _Wanted, name: str, error: MeshError, time_told: int, failures: int) -> None:
        """An HN that is gone is told when it comes back; one that is there, and has not loaded the half, later."""

        def tell() -> None:
            link = self._hns.link(name)
            is_there = link is not None and link.connected and name in wanted.fleet.names
            if is_there and self._wanted.get(wanted.key) is wanted and wanted.told[name] == time_told:
                self._log(f"{name} does not load the dense half of {wanted.key}, and is told again: {error}")
                self._load(wanted, name, _nothing, failures=failures + 1)

        def ring() -> None:                      # a connection may be slow to take it: no alarm may wait for that
            threading.Thread(target=tell, name=f"again {name}", daemon=True).start()

        self._alarms.set(time.monotonic() + AGAIN_S[min(failures, len(AGAIN_S) - 1)], ring)

    def _tell(self, name: str, header: Header, timeout_s: float, answered: Outcome) -> None:
        link = self._hns.link(name)
        if link is None or not link.loads:
            return
        try:
            link.call(
                header, (), deadline=time.monotonic() + timeout_s, done=lambda outcome: answered(name, outcome)
            )
        except MeshError as error:
            answered(name, error)
