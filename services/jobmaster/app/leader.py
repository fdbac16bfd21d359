"""Which of several jobmasters runs the jobs: a lease in the store, for order; terms, for safety.

A stopped leader that wakes up after its lease is over may still try to act. It cannot harm: whatever it
writes is a compare-and-set that fails, and parameter servers refuse its term.
"""

import os
import socket
from collections.abc import Callable

import orjson
import psutil

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, AlreadyExists, MeshError
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.jobs import Jobs
from services.jobmaster.store import Keys

logger = get_logger(__name__)

KEY = "leader"


def is_dead_neighbour(holder: dict[str, object]) -> bool:
    """The holder was a process of this machine that is gone: nobody needs to wait for its lease to end."""
    if holder.get("host") != socket.gethostname() or holder.get("boot") != int(psutil.boot_time()):
        return False
    try:
        process = psutil.Process(int(str(holder.get("pid"))))
        return abs(process.create_time() - float(str(holder.get("created")))) > 0.5
    except (psutil.NoSuchProcess, ValueError):
        return True


class Leadership:
    """The step of a loop: holds the lease, or tries to get it."""

    def __init__(self, jobs: Jobs, keys: Keys, *, clock: Clock, ttl_s: float, identity: str) -> None:
        self._jobs, self._keys, self._clock, self._ttl_s = jobs, keys, clock, ttl_s
        process = psutil.Process()
        self._me = orjson.dumps({
            "id": identity, "host": socket.gethostname(), "pid": os.getpid(),
            "created": process.create_time(), "boot": int(psutil.boot_time()),
        })
        self._revision = 0
        self._renewed = 0.0
        self.on_lead: Callable[[], None] = lambda: None

    async def step(self) -> float:
        """One look at the lease; seconds until the next. Errors of the store keep the present state."""
        try:
            return await self._hold() if self._revision else await self._try()
        except MeshError as error:
            # While the store is away nobody can take the lease over either, so nothing is given up.
            logger.warning("the leader's lease cannot be read: %s", error.message)
            return min(1.0, self._ttl_s / 4)

    async def _try(self) -> float:
        entry = await self._keys.get(KEY)
        try:
            if entry is None:
                self._revision = await self._keys.create(KEY, self._me)
            elif entry.value == self._me or is_dead_neighbour(orjson.loads(entry.value)):
                self._revision = await self._keys.update(KEY, self._me, entry.revision)
            else:
                return self._ttl_s / 6
        except (AlreadyExists, Aborted):
            return self._ttl_s / 6
        try:
            await self._jobs.lead()
        except BaseException:
            self._revision = 0
            raise
        return self._ttl_s / 4

    async def _hold(self) -> float:
        try:
            self._revision = await self._keys.update(KEY, self._me, self._revision)
        except Aborted:
            entry = await self._keys.get(KEY)
            if entry is not None and entry.value == self._me:  # our own write, whose answer was lost
                self._revision = entry.revision
                return self._ttl_s / 4
            if entry is None:
                # It expired while this process or the store stood still. Had another led meanwhile, the
                # compare-and-sets of the jobs would tell.
                return await self._renew_expired()
            logger.warning("another jobmaster leads")
            self._revision = 0
            await self._jobs.follow()
            return self._ttl_s / 6
        return self._ttl_s / 4

    async def _renew_expired(self) -> float:
        try:
            self._revision = await self._keys.create(KEY, self._me)
        except AlreadyExists:
            self._revision = 0
            await self._jobs.follow()
            return 0.0
        return self._ttl_s / 4

    async def resign(self) -> None:
        """At a clean stop: the next leader need not wait."""
        await self._jobs.follow()
        if self._revision:
            revision, self._revision = self._revision, 0
            try:
                await self._keys.delete(KEY, revision=revision)
            except MeshError as error:
                logger.info("the lease is left to expire: %s", error.message)
