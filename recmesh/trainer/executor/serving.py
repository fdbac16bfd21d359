"""The threads of an executor: decoders that fill the shelf, one that passes tasks on, and calls that wait for rows."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from recmesh.data.decoded import Decoded
from recmesh.data.records import Batch, TaskRecord
from recmesh.runtime.errors import MeshError, Unavailable
from recmesh.trainer.executor.rebalance import Peer, Room, Thresholds, share_out, surplus
from recmesh.trainer.executor.shelf import Entry, Shelf
from recmesh.trainer.ports import DataExecutor, Serving, Taken

_log = logging.getLogger(__name__)
MOST_WAIT_S = 30.0
"""A call waits for rows at most so long, whatever it asks for."""
_POLL_S = 0.5
REFUSED_S = 1.0
"""A peer that could not be asked is left alone so long."""
FRESH_S = 0.25
"""So long the length of a peer's queue is believed; one that accepts is then taken to be short of work."""
HEARD_S = 5.0
"""So long what a peer said itself goes before what jobmaster says of it: a message may have been lost."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a task, and how many of the positions could not be read."""

    batch: Batch
    bad: int


@dataclass(frozen=True, slots=True)
class MovedTo:
    """A peer has the task."""

    address: str


class Executor:
    """Thread-safe. `decode` makes a task's rows: one call per decoder at a time, each with a reader of its own."""

    def __init__(
        self, shelf: Shelf, decoders: Sequence[Callable[[TaskRecord], Decoded]], *, thresholds: Thresholds | None,
        reach: Callable[[str], DataExecutor], clock: Callable[[], float] = monotonic,
    ) -> None:
        """thresholds None: mode `forward`."""
        self._shelf, self._thresholds, self._reach, self._clock = shelf, thresholds, reach, clock
        self._changed = threading.Condition()
        self._room = Room(thresholds) if thresholds else None
        self._peers: dict[str, tuple[Peer, float]] = {}
        """By address: how it was last heard, and when."""
        self._silent_until: dict[str, float] = {}
        self._waiting, self._waits_since, self._waited_s = 0, 0.0, 0.0
        self._address = ""
        self._stopping = self._leaving = self._untold = False
        self.on_room: Callable[[], None] = lambda: None
        """Called, from any thread, when it begins or ceases to accept tasks of peers."""
        bodies = [lambda decode=decode: self._decoding(decode) for decode in decoders]
        self._threads = [
            threading.Thread(target=body, name=f"decode-{index}", daemon=True) for index, body in enumerate(bodies)
        ]
        if thresholds:
            self._threads.append(threading.Thread(target=self._passing, name="pass-on", daemon=True))

    def start(self, address: str) -> None:
        """Decoding begins; `address` is where peers find this one."""
        self._address = address
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """From now on nothing new is taken in; what is asked for is still served."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the threads, also where none has begun; calls that wait are refused."""
        with self._changed:
            self._stopping = self._leaving = True
            self._changed.notify_all()
        until = monotonic() + 5.0
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=max(0.0, until - monotonic()))

    # ---- what workers call

    def announce(self, tasks: Sequence[TaskRecord]) -> int:
        """Tasks that will be asked for; how many of the first are read ahead."""
        with self._changed:
            if self._leaving:
                return 0
            count = self._shelf.announce(tasks, now=self._clock())
            self._news()
            return count

    def read(self, task: TaskRecord, lo: int, hi: int, *, wait_s: float, here: bool) -> Rows | MovedTo | None:
        """Rows at positions [lo, hi) of the task's line; None when they are not there in time. What decoding it
        raised is raised here."""
        until = self._clock() + min(wait_s, MOST_WAIT_S)
        with self._changed:
            entry = self._shelf.ask(task, now=self._clock(), here=here or self._room is None)
            self._news()
            entry.waiters += 1
            self._wait(+1)
            try:
                while entry.state in ("queued", "decoding"):
                    if self._stopping:
                        raise Unavailable("this executor ends")
                    left_s = until - self._clock()
                    if left_s <= 0:
                        return None
                    self._changed.wait(min(left_s, _POLL_S))
            finally:
                entry.waiters -= 1
                self._wait(-1)
            if entry.state == "moved":
                return MovedTo(entry.moved_to)
            if entry.error is not None:
                raise entry.error
            decoded = entry.decoded
            self._shelf.handed_out(entry, hi - lo, now=self._clock())
            self._changed.notify_all()          # there may be room now
        assert decoded is not None
        return Rows(decoded.within(lo - task.base, hi - task.base), decoded.bad_within(lo - task.base, hi - task.base))

    def _wait(self, more: int) -> None:
        """So many more calls wait for rows; the caller holds the lock."""
        now = self._clock()
        if self._waiting:
            self._waited_s += now - self._waits_since
        self._waits_since = now
        self._waiting += more

    # ---- what peers call

    def take(self, tasks: Sequence[TaskRecord]) -> Taken:
        """Tasks that a peer passes on."""
        with self._changed:
            if self._room is None or self._leaving:
                return Taken(0, False, self._shelf.queued)
            offered = tasks[: self._room.takes(len(tasks), queued=self._shelf.queued)]
            count = self._shelf.announce(offered, now=self._clock(), taken=True)
            self._shelf.took(count)
            self._news()
            return Taken(count, self._room.accepting, self._shelf.queued)

    def heard(self, address: str, peer: Peer) -> None:
        """A peer says whether it has room."""
        with self._changed:
            if address in self._peers:
                self._peers[address] = peer, self._clock()
                self._changed.notify_all()

    def use_peers(self, peers: dict[str, Peer]) -> None:
        """Those that jobmaster knows, this one aside. What a peer said itself is newer, and stays."""
        with self._changed:
            now = self._clock()
            known = {address: heard for address, heard in self._peers.items() if now - heard[1] < HEARD_S}
            self._peers = {address: known.get(address, (peer, now)) for address, peer in peers.items()
                           if address != self._address}
            self._changed.notify_all()

    # ---- what it says of itself

    def serving(self) -> Serving:
        """For heartbeats."""
        with self._changed:
            accepting = self._room is not None and self._room.accepting and not self._leaving
            shelf, counts = self._shelf, self._shelf.counts
            return Serving(
                queued=shelf.queued, held_bytes=shelf.held_bytes, limit_bytes=shelf.limit_bytes, accepting=accepting,
                forwarded=counts.forwarded, taken=counts.taken, decoded=counts.decoded,
                waited_s=self._waited_s + (self._clock() - self._waits_since if self._waiting else 0.0),
            )

    # ---- threads

    def _news(self) -> None:
        """The queue may be another; the caller holds the lock."""
        if self._room is not None and self._room.see(self._shelf.queued):
            self._untold = True
            self.on_room()
        self._changed.notify_all()

    def _decoding(self, decode: Callable[[TaskRecord], Decoded]) -> None:
        while True:
            with self._changed:
                entry = None if self._stopping else self._shelf.next_to_decode(now=self._clock())
                if self._stopping:
                    return
                if entry is None:
                    self._changed.wait(_POLL_S)
                    continue
                self._news()
            self._decode(entry, decode)

    def _decode(self, entry: Entry, decode: Callable[[TaskRecord], Decoded]) -> None:
        decoded: Decoded | None = None
        error: Exception | None = None
        try:
            decoded = decode(entry.task)
        except Exception as failure:    # whoever asked for it must hear of it, whatever it was
            error = failure
            if not isinstance(failure, MeshError):
                _log.exception("a task cannot be decoded")
        with self._changed:
            self._shelf.finish(entry, decoded, error, now=self._clock())
            self._changed.notify_all()

    def _passing(self) -> None:
        """Passes the surplus on, and tells peers when this one begins or ceases to have room."""
        while True:
            with self._changed:
                shared: dict[str, list[Entry]] = {}
                while not self._stopping and not self._untold:
                    shared = self._surplus()
                    if shared:
                        break
                    self._changed.wait(_POLL_S)
                if self._stopping:
                    return
                tell, self._untold, peers = self._untold, False, list(self._peers)
                queued = self._shelf.queued
                accepting = self._room is not None and self._room.accepting and not self._leaving
            if tell:
                for address in peers:
                    self._tell(address, accepting=accepting, queued=queued)
            for address, entries in shared.items():
                self._offer(address, entries)

    def _surplus(self) -> dict[str, list[Entry]]:
        if self._thresholds is None:
            return {}
        most = surplus(self._shelf.queued, self._thresholds)
        now = self._clock()
        peers = {
            address: peer if now - heard_at <= FRESH_S else Peer(peer.accepting, 0)
            for address, (peer, heard_at) in self._peers.items() if self._silent_until.get(address, 0.0) <= now
        }
        if not most or not any(peer.accepting for peer in peers.values()):
            return {}
        return share_out(self._shelf.to_pass_on(most), peers, upto=self._thresholds.refuse_above)

    def _offer(self, address: str, entries: list[Entry]) -> None:
        try:
            answer = self._reach(address).take([entry.task for entry in entries])
        except MeshError as error:
            _log.info("peer %s takes nothing: %s", address, error)
            with self._changed:
                self._silent_until[address] = self._clock() + REFUSED_S
            return
        with self._changed:
            # A task that is decoded here meanwhile is decoded twice, and trained once: by whoever leased it.
            self._shelf.gone(entries[: answer.count], address)
            if address in self._peers:
                self._peers[address] = Peer(answer.accepting, answer.queued), self._clock()
            self._news()

    def _tell(self, address: str, *, accepting: bool, queued: int) -> None:
        try:
            self._reach(address).room(self._address, accepting=accepting, queued=queued)
        except MeshError as error:
            _log.debug("peer %s was not told: %s", address, error)
