"""Holding copies of other nodes' parts in this node's memory."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Violation
from services.ckptcache.app.ports import Policy
from services.ckptcache.domain.parts import Part, job_violations, packed, part_violations
from services.ckptcache.domain.retention import to_evict
from services.ckptcache.store.files import verified
from services.ckptcache.store.memory import append, read_range, room
from services.ckptcache.store.replicas import Held, Key, ReplicaShelf

log = logging.getLogger(__name__)


class Replicas:
    """What a peer asks of this node. A copy counts once its bytes have their checksums."""

    def __init__(self, shelf: ReplicaShelf, *, policy: Policy, clock: Clock) -> None:
        self._shelf, self._policy, self._clock = shelf, policy, clock
        self._coming_bytes = 0
        """Announced by copies that are on their way here."""

    async def hold(
        self, job_id: str, number: int, part: Part, *, node: str, size_bytes: int, data: AsyncIterator[bytes]
    ) -> None:
        """Take a copy; one that is here already is left as it is."""
        if node == self._policy.node:
            raise FailedPrecondition("a node is no peer of its own", reason="SAME_NODE")
        violations = [*job_violations(job_id), *part_violations(part, memory_bytes=size_bytes)]
        if packed(part).files != part.files or part.size_bytes != size_bytes:
            violations.append(Violation("files", "do not lie one behind the other"))
        if violations:
            raise InvalidArgument("the copy is refused", violations=violations)
        if size_bytes > self._policy.replica_budget_bytes:
            raise ResourceExhausted(f"this node holds {self._policy.replica_budget_bytes} bytes of copies at most",
                                    reason="MEMORY_FULL")
        key = (job_id, number, part.ps)
        held = self._shelf.get(key)
        if held is not None and held.part.files == part.files:
            async for _ in data:
                pass
            return
        if self._coming_bytes + size_bytes > self._policy.replica_budget_bytes:
            raise ResourceExhausted(f"{self._coming_bytes} bytes of copies are on their way here already",
                                    reason="MEMORY_FULL")
        self._coming_bytes += size_bytes
        incoming = self._shelf.incoming(key, str(id(part)))
        try:
            self._evict()
            room(incoming.parent, size_bytes)
            await asyncio.to_thread(incoming.touch, 0o600)
            received = 0
            async for chunk in data:
                received += len(chunk)
                if received > size_bytes:
                    break
                await asyncio.to_thread(append, incoming, chunk)
            if received != size_bytes:
                raise InvalidArgument("the copy is not whole", violations=[
                    Violation("data", f"{received} bytes arrived, {size_bytes} were announced")])
            await asyncio.to_thread(_check, part, incoming)
            self._shelf.put(key, part, incoming, now=self._clock.now())
        finally:
            self._coming_bytes -= size_bytes
            incoming.unlink(missing_ok=True)
        self._evict()

    def find(self, key: Key) -> Held:
        """A copy that is held here; NotFound."""
        held = self._shelf.get(key)
        if held is None or not held.path.exists():
            raise NotFound(f"no copy of snapshot {key[1]} of job {key[0]}, ps {key[2]}, is held here")
        return held

    def drop(self, job_id: str, number: int) -> None:
        """The snapshot is deleted, or all of the job's for number 0."""
        for key in self._shelf.keys(job_id, number):
            self._shelf.drop(key)

    def sweep(self) -> None:
        """Let go of what nobody has asked to be dropped for long."""
        for key in self._shelf.older_than(self._clock.now() - self._policy.replica_max_age_s):
            self._shelf.drop(key)

    @property
    def size_bytes(self) -> int:
        """Of all copies."""
        return sum(copy.size_bytes for copy in self._shelf.copies)

    def _evict(self) -> None:
        budget = self._policy.replica_budget_bytes - self._coming_bytes
        for copy in to_evict(self._shelf.copies, budget_bytes=budget, newest=max(1, self._policy.memory_snapshots)):
            self._shelf.drop((copy.job_id, copy.number, copy.ps))


def _check(part: Part, path: Path) -> None:
    """DataLoss names the file that is not what was sent."""
    for file in part.files:
        for _ in verified(file, read_range(path, file.offset, file.size_bytes)):
            pass
