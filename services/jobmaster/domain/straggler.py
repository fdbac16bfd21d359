"""Workers well below the median of their peers, and the answers to it: smaller shards, then a backup worker.

DLRover-RM (PVLDB 17, 2024), section 5.2: a straggler gets smaller shards, so that it never holds more of the data
than it can train soon. What it cannot do for the job a backup worker does; the job itself is never restarted.
Everything here is pure: the caller says what was heard and what time it is.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

from services.jobmaster.domain.job import SlowWorker
from services.jobmaster.domain.limits import Limits

HALVINGS = 2
"""How often shards get smaller before a backup worker helps: the paper's 256, 128, 64 batches."""
BACKUP_LEVEL = HALVINGS + 1


class Pace:
    """Samples of one process over time, as its heartbeats told them."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._points: deque[tuple[float, int, float]] = deque()
        """When, and until then samples and seconds in steps."""

    def hear(self, at: float, samples: int, *, window_s: float, worked_s: float = 0.0) -> None:
        """A heartbeat. Nothing before the first sample counts: frameworks take their time to load.

        worked_s: in steps since the process began; what is missing to the clock's time is waiting for shards.
        """
        if samples <= 0 or (self._points and at <= self._points[-1][0]):
            return
        self._points.append((at, samples, worked_s))
        while len(self._points) > 1 and self._points[1][0] <= at - window_s:
            self._points.popleft()

    def per_s(self, now: float, *, window_s: float) -> float | None:
        """Over the last window, silence included; None until it has trained for a whole one."""
        start = now - window_s
        if not self._points or self._points[0][0] > start:
            return None
        before = max((samples for at, samples, _ in self._points if at <= start), default=0)
        return (self._points[-1][1] - before) / window_s

    def work_s(self) -> float | None:
        """Seconds in steps per sample of the last window; None while it trained nothing."""
        if not self._points or self._points[-1][1] <= self._points[0][1]:
            return None
        (_, before, began), (_, after, ended) = self._points[0], self._points[-1]
        return (ended - began) / (after - before)


@dataclass(frozen=True, slots=True)
class Found:
    """A worker is slow, and gets this answer; `worse` is False for the first one."""

    worker: SlowWorker
    answer: str
    """smaller shards | backup worker"""
    seen: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """It keeps up again, or its process has gone: nothing is held against it any more."""

    worker: SlowWorker
    seen: str


def shard_batches(level: int, *, most: int) -> int:
    """Of a worker at this level; 0: as everybody's."""
    return 0 if level <= 0 else max(1, most >> min(level, HALVINGS))


def backups(slow: Iterable[SlowWorker]) -> int:
    """Workers beyond the wanted count."""
    return sum(worker.level >= BACKUP_LEVEL for worker in slow)


def judged(
    paces: Mapping[int, tuple[str, float | None]],
    slow: Sequence[SlowWorker],
    *,
    batch_size: int,
    is_busy: bool,
    may_back_up: str,
    limits: Limits,
    now: float,
    work_s: Mapping[int, float | None] = MappingProxyType({}),
) -> list[Found | Recovered]:
    """What follows from the paces of the workers, by index: (incarnation, samples/s or None when not known).

    `work_s`: seconds in steps per sample, by index, where known. A slow worker whose steps take no longer than its
    peers' is well again, though its small shards make it wait for the next one more often.
    `is_busy`: positions were queued for the whole window, so whoever trained little had work to do.
    `may_back_up` is empty when a backup worker may be started, else it says why not.
    Between below (`straggler_below`) and above (`straggler_above`) nothing changes, and no worker gets two answers
    within `straggler_cooldown_s`: a pace that wavers at a limit does not make shards waver.
    """
    known = {worker.index: worker for worker in slow}
    result: list[Found | Recovered] = []
    for index, worker in known.items():
        if index not in paces or paces[index][0] != worker.incarnation:
            result.append(Recovered(worker, f"worker {index} is another process now"))
    gone = {found.worker.index for found in result}
    if not is_busy:
        return result
    for index, (incarnation, pace) in sorted(paces.items()):
        peers = [other for i, (_, other) in paces.items() if i != index and other is not None]
        normal = median(peers) if peers else 0.0
        if pace is None or normal * limits.straggler_window_s < limits.straggler_batches * batch_size:
            continue
        share, held = pace / normal, None if index in gone else known.get(index)
        if held is not None and now - held.at < limits.straggler_cooldown_s:
            continue
        seen = (
            f"{pace:,.0f} samples/s in {limits.straggler_window_s:g} s, {share:.0%} of its peers' median {normal:,.0f}"
        )
        if held is not None and share <= limits.straggler_above and _works_well(index, work_s, limits=limits):
            result.append(Recovered(held, f"{seen}, but its steps take no longer than theirs"))
        elif held is not None and share > limits.straggler_above:
            result.append(Recovered(held, seen))
        elif share < limits.straggler_below:
            worse = _worse(held, index, incarnation, share, may_back_up=may_back_up, now=now)
            if worse is not None:
                answer = "backup worker" if worse.level >= BACKUP_LEVEL else "smaller shards"
                result.append(Found(worse, answer, seen))
                may_back_up = may_back_up or ("one has just been started" if worse.level >= BACKUP_LEVEL else "")
    return result


def _works_well(index: int, work_s: Mapping[int, float | None], *, limits: Limits) -> bool:
    own, peers = work_s.get(index), [other for i, other in work_s.items() if i != index and other]
    return bool(own and peers) and median(peers) > limits.straggler_above * (own or 0.0)


def _worse(
    held: SlowWorker | None, index: int, incarnation: str, share: float, *, may_back_up: str, now: float
) -> SlowWorker | None:
    if held is None:
        return SlowWorker(index=index, incarnation=incarnation, level=1, since=now, at=now, share=share)
    level = held.level + 1
    if level > BACKUP_LEVEL or (level == BACKUP_LEVEL and may_back_up):
        return None
    return held.model_copy(update={"level": level, "at": now, "share": share})
