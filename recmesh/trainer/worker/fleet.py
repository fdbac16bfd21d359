"""The parameter servers of one generation, called all at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from time import monotonic
from typing import TypeVar

from recmesh.runtime.errors import MeshError
from recmesh.trainer.layout import Placement
from recmesh.trainer.patience import NoLongerWanted, patiently
from recmesh.trainer.ports import Member, ParameterServer, RunRecord

T = TypeVar("T")
Connect = Callable[[Member], ParameterServer]


class WrongMap(Exception):
    """An answer: a server's slots changed; `since` is the version from which it accepts splits."""

    def __init__(self, since: int) -> None:
        super().__init__(since)
        self.since = since


class StaleGeneration(Exception):
    """An answer: a rollback happened; everything of this generation is void."""


class Fleet:
    """Connections by member, and a thread for each server that a call is made to."""

    def __init__(self, connect: Connect, record: RunRecord) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._known: dict[tuple[int, str], ParameterServer] = {}
        """All that calls went to; calls may still be under way to members that are none any more."""
        self._stubs: dict[tuple[int, str], ParameterServer] = {}
        self._placement = Placement.of(record)
        self._heard = record.map_version
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="ps-call")
        self.use(record)

    def use(self, record: RunRecord) -> Placement:
        """From now on calls go to these members."""
        with self._lock:
            self._placement = Placement.of(record)
            live = {(m.ps, m.incarnation): m for m in record.members}
            for key, member in live.items():
                if key not in self._known:
                    self._known[key] = self._connect(member)
            self._stubs = {key: self._known[key] for key in live}
            return self._placement

    def heard(self, map_version: int) -> None:
        """There is a map of this version: calls under an older one that find no server are not repeated."""
        self._heard = max(self._heard, map_version)

    @property
    def placement(self) -> Placement:
        """The newest that was given to `use`."""
        return self._placement

    def each(
        self,
        call: Callable[[int, ParameterServer], T],
        *,
        placement: Placement,
        what: str,
        gone: threading.Event,
    ) -> dict[int, T]:
        """`call(ps, stub)` to every server of the placement, in parallel, each for as long as it takes.

        Raises StaleGeneration, WrongMap (with the highest `since`; also when one may be a member no more),
        NoLongerWanted when `gone` is set, or the first other error. Returns or raises only after every call has ended.
        """
        with self._lock:
            stubs = {ps: stub for (ps, _), stub in self._stubs.items() if ps in placement.servers}
            newest = self._placement.version
        if len(stubs) < len(placement.servers):
            raise WrongMap(newest)     # one has left since: without its part the batch would not be whole
        abandon = _Either(gone, lambda: self._heard > placement.version)

        def one(ps: int, stub: ParameterServer) -> T:
            try:
                return patiently(lambda: call(ps, stub), what=f"{what} at ps {ps}", gone=abandon)
            except NoLongerWanted:
                # A server that has left the map answers nobody; those that are in it still want their part.
                if not gone.is_set() and self._heard > placement.version:
                    raise WrongMap(self._heard) from None
                raise
            except MeshError as error:
                abandon.set()
                if error.reason == "STALE_GEN":
                    raise StaleGeneration from None
                if error.reason == "WRONG_MAP":
                    raise WrongMap(int(error.metadata.get("since", 0))) from None
                raise
            except BaseException:
                abandon.set()
                raise

        if len(stubs) == 1:
            return {ps: one(ps, stub) for ps, stub in stubs.items()}
        futures = {ps: self._pool.submit(one, ps, stub) for ps, stub in stubs.items()}
        wait(futures.values())
        errors = [error for future in futures.values() if (error := future.exception()) is not None]
        errors.sort(key=lambda error: error.since if isinstance(error, WrongMap) else 0, reverse=True)
        for kind in (StaleGeneration, WrongMap, MeshError, Exception):
            for error in errors:
                if isinstance(error, kind):
                    raise error
        return {ps: future.result() for ps, future in futures.items()}

    def close(self) -> None:
        """Ends the threads and the connections; calls under way fail."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            known, self._known = self._known, {}
        for server in known.values():
            server.close()


class _Either(threading.Event):
    """Set by itself, by another event, or by what the test finds."""

    def __init__(self, other: threading.Event, test: Callable[[], bool]) -> None:
        super().__init__()
        self._other, self._test = other, test

    def is_set(self) -> bool:
        return super().is_set() or self._other.is_set() or self._test()

    def wait(self, timeout: float | None = None) -> bool:
        """Looks at the other event ten times a second."""
        deadline = monotonic() + (float("inf") if timeout is None else timeout)
        while not self.is_set() and (left := deadline - monotonic()) > 0:
            super().wait(min(left, 0.1))
        return self.is_set()
