"""How jobmasters share the jobs: a session of each in the store, and one document that says who holds which bucket.

    session.<id>   the lease of one jobmaster on all that it holds: a key that expires unless it is renewed
    shards         the holder of each bucket, changed by compare-and-set alone

A bucket's holder is the session that the document names, as long as that session lives. Others take buckets of sessions
that are gone; from sessions that live buckets are only given. A session that has ended never comes back: its process
opens another, and has to take its buckets again, before anybody else has. So no two hold one bucket, and the fence
closes a jobmaster that does not know yet that its session has ended.
"""

import asyncio
from collections.abc import Mapping, Sequence

import orjson

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, AlreadyExists, MeshError
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.fence import Fence
from services.jobmaster.app.jobs import Jobs
from services.jobmaster.app.members import Member, decoded, encoded, is_dead_neighbour, own_process
from services.jobmaster.domain.shards import BUCKETS, NOBODY, Holders, bucket_of, targets
from services.jobmaster.store import SHARDS, Entry, Keys

logger = get_logger(__name__)

SESSION = "session."
LEADER = "leader"
"""Jobmasters of releases before the shared ones lead by this key, or follow who has it. While it is `SHARED` they
follow; while one of them has it, nobody here takes anything."""
SHARED = orjson.dumps({"id": "shared"})
SWEEP_S = 15.0
AT_ONCE_S, CLOSED_S = 0.05, 0.2


class Sharing:
    """Two loops: `renew` keeps the session, `balance` takes and gives buckets."""

    def __init__(
        self, jobs: Jobs, sessions: Keys, store: Keys, fence: Fence, *, clock: Clock, ttl_s: float, name: str,
        address: str = "",
    ) -> None:
        """name: of this process, unlike any other's. sessions: keys that expire after `ttl_s`. address: of this
        jobmaster for others; it may be set until the first step."""
        self._jobs, self._sessions, self._store, self._fence = jobs, sessions, store, fence
        self._clock, self._ttl_s, self._name, self.address = clock, ttl_s, name, address
        self._process = own_process()
        self._opened = 0
        self._revision = 0
        self._former: set[str] = set()
        """Sessions of this process that have ended."""
        self._may_take = False
        self._resigned = False
        self._members: Mapping[str, Member] = {}
        self._holders: Holders = (NOBODY,) * BUCKETS
        self._swept = float("-inf")
        self.joined = asyncio.Event()
        """Set once this jobmaster has seen who holds what, and holds its part."""
        self._seen = asyncio.Event()
        jobs.live_elsewhere = lambda: sum(each.live_jobs for each in self.members if each.session != self.session)

    # -- what others ask ---------------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The present one."""
        return f"{self._name}.{self._opened}"

    @property
    def members(self) -> Sequence[Member]:
        """All jobmasters that lived at the last look, this one included."""
        return list(self._members.values())

    def holder_of(self, name: str) -> Member | None:
        """Who runs jobs of this name; None when nobody does, or it is not known."""
        return self._members.get(self._holders[bucket_of(name)])

    def is_self(self, member: Member) -> bool:
        """This jobmaster."""
        return member.session == self.session

    async def seen(self, *, timeout_s: float) -> None:
        """Returns at the next look, or after the time."""
        event = self._seen
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    # -- the session -------------------------------------------------------------------------------------

    async def renew(self) -> float:
        """One renewal; seconds until the next. While the store is away nothing is given up, and nothing written."""
        if self._resigned:
            return self._ttl_s
        began = self._clock.monotonic()
        try:
            if self._revision:
                try:
                    self._revision = await self._sessions.update(self._key, self._value(), self._revision)
                except Aborted:
                    return await self._renew_again()
            else:
                await self._open()
            self._may_take = await self._keep_older_ones_out()
        except MeshError as error:
            logger.warning("the session cannot be renewed: %s", error.message)
            return min(1.0, self._ttl_s / 4)
        self._fence.open_until(began + self._ttl_s)
        return self._ttl_s / 4

    @property
    def _key(self) -> str:
        return f"{SESSION}{self.session}"

    def _value(self) -> bytes:
        return encoded(Member(self.session, self.address, self._jobs.live), self._process)

    async def _open(self) -> None:
        self._fence.close()
        self._opened += 1
        self._revision = await self._sessions.create(self._key, self._value())

    async def _renew_again(self) -> float:
        entry = await self._sessions.get(self._key)
        if entry is not None:               # our own write, whose answer was lost
            self._revision = entry.revision
            return 0.0
        logger.warning("session %s has ended while this process or the store stood still", self.session)
        self._fence.close()
        self._former.add(self.session)
        self._revision = 0
        return 0.0

    async def _keep_older_ones_out(self) -> bool:
        """False while a jobmaster of an older release leads all jobs."""
        entry = await self._sessions.get(LEADER)
        try:
            if entry is None:
                await self._sessions.create(LEADER, SHARED)
            elif entry.value == SHARED or is_dead_neighbour(orjson.loads(entry.value)):
                await self._sessions.update(LEADER, SHARED, entry.revision)
            else:
                return False
        except (AlreadyExists, Aborted):
            entry = await self._sessions.get(LEADER)    # another one of these was faster, or an older one was
            return entry is not None and entry.value == SHARED
        return True

    # -- buckets -----------------------------------------------------------------------------------------

    async def balance(self) -> float:
        """One look at who holds what, and what follows from it; seconds until the next."""
        if self._resigned or not self._fence.is_open:
            return CLOSED_S
        try:
            again = await self._balance()
            if not again and self._clock.monotonic() >= self._swept + SWEEP_S:
                self._swept = self._clock.monotonic()
                await self._jobs.sweep()
        except Aborted:
            again = True
        except MeshError as error:
            logger.warning("who holds which jobs cannot be looked at: %s", error.message)
            return min(1.0, self._ttl_s / 4)
        return AT_ONCE_S if again else self._ttl_s / 12

    async def _balance(self) -> bool:
        """True when there is more to do at once."""
        session = self.session
        entry = await self._store.get(SHARDS)
        members = await self._living()
        holders = _holders(entry)
        if session not in members:
            raise Aborted("the own session is not there yet, or has just ended")
        if not self._may_take:
            await self._release(self._jobs.buckets)
            return False
        known = tuple(session if holder in self._former else holder for holder in holders)
        mine = {bucket for bucket, holder in enumerate(known) if holder == session}
        lost = self._jobs.buckets - mine
        if lost:
            logger.warning("%d bucket(s) are held by others now", len(lost))
            await self._release(lost)
        # Given by another that had taken them while the last session was over: what is known of their jobs is old.
        given = {bucket for bucket, holder in enumerate(holders) if holder == session} - self._fence.buckets
        if self._fence.is_open and (stale := self._jobs.buckets & given):
            await self._jobs.release(stale)
        wanted = targets(known, members.keys())
        give = {bucket for bucket in mine if wanted[bucket] != session}
        take = {
            bucket for bucket, holder in enumerate(holders)
            if wanted[bucket] == session and holder != session and holder not in members
        }
        if give:
            await self._release(give)
        if give or take:
            after = tuple(
                wanted[bucket] if bucket in give else session if bucket in take else holder
                for bucket, holder in enumerate(holders)
            )
            await self._write(after, entry)
            holders = after
        self._tell(holders, members)
        held = {bucket for bucket, holder in enumerate(holders) if holder == session}
        if session != self.session:
            return True                     # it has ended meanwhile
        self._fence.add(held)
        if held - self._jobs.buckets:
            await self._jobs.hold(held)
        self.joined.set()
        return bool(give or take)

    async def _release(self, buckets: frozenset[int] | set[int]) -> None:
        await self._jobs.release(buckets)
        self._fence.remove(buckets)

    async def _living(self) -> dict[str, Member]:
        found = {}
        for key in await self._sessions.keys(SESSION):
            entry = await self._sessions.get(key)
            member = decoded(entry.value) if entry is not None else None
            if member is not None:
                found[member.session] = member
        return found

    async def _write(self, holders: Holders, entry: Entry | None) -> None:
        value = orjson.dumps({"holders": holders})
        try:
            if entry is None:
                await self._store.create(SHARDS, value)
            else:
                await self._store.update(SHARDS, value, entry.revision)
        except AlreadyExists as error:
            raise Aborted("another jobmaster was faster") from error

    def _tell(self, holders: Holders, members: Mapping[str, Member]) -> None:
        if (holders, members) != (self._holders, self._members):
            self._holders, self._members = holders, members
            self._seen.set()
            self._seen = asyncio.Event()

    async def resign(self) -> None:
        """At a clean stop: all buckets are given to the others, and the session ends. Neither loop runs any more."""
        self._resigned = True
        await self._jobs.follow()
        if not self._revision:
            return
        session, revision, self._revision = self.session, self._revision, 0
        members: dict[str, Member] = {}
        try:
            for _ in range(5):
                entry = await self._store.get(SHARDS)
                members = await self._living()
                members.pop(session, None)
                holders = _holders(entry)
                wanted = targets(holders, members.keys())
                after = tuple(
                    wanted[bucket] if holder == session or holder in self._former else holder
                    for bucket, holder in enumerate(holders)
                )
                try:
                    if after != holders:
                        await self._write(after, entry)
                except Aborted:
                    continue
                self._tell(after, members)
                break
            await self._sessions.delete(f"{SESSION}{session}", revision=revision)
            if not members:
                await self._sessions.delete(LEADER)
        except MeshError as error:
            logger.info("the session is left to expire: %s", error.message)
        finally:
            self._fence.close()


def _holders(entry: Entry | None) -> Holders:
    """NOBODY's, where the document is not there or cannot be read."""
    try:
        found = tuple(str(holder) for holder in orjson.loads(entry.value)["holders"]) if entry is not None else ()
    except (ValueError, KeyError, TypeError):
        found = ()
    if len(found) != BUCKETS:
        return (NOBODY,) * BUCKETS
    return found
