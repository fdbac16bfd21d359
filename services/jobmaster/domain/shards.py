"""Which jobmaster runs which jobs: jobs fall into buckets by their hashed names, and each bucket has one holder.

Everything of one name falls into one bucket: a job whose name is taken gets another one of the same bucket.
"""

import hashlib
from collections.abc import Collection, Sequence

BUCKETS = 64
"""For ever: jobmasters that count otherwise would run the same job twice."""
NOBODY = ""

Holders = tuple[str, ...]
"""Of each bucket, by number; NOBODY where there is none."""


def bucket_of(name: str) -> int:
    """The bucket of a job's name or id."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % BUCKETS


def score(member: str, bucket: int) -> int:
    """How much a bucket would like to be held by this member (rendezvous hashing)."""
    return int.from_bytes(hashlib.sha256(f"{member}/{bucket}".encode()).digest()[:8])


def targets(holders: Sequence[str], live: Collection[str]) -> Holders:
    """Who is to hold each bucket: all members within one of each other, and of those that are well held none moves.

    A function of its arguments alone, so that all members come to the same. Nobody holds any where none lives.
    """
    if not live:
        return (NOBODY,) * len(holders)
    held: dict[str, list[int]] = {member: [] for member in sorted(live)}
    for bucket, holder in enumerate(holders):
        if holder in held:
            held[holder].append(bucket)
    least, more = divmod(len(holders), len(held))
    most_first = sorted(held, key=lambda member: (-len(held[member]), member))
    room = {member: least + (place < more) for place, member in enumerate(most_first)}
    found = [NOBODY] * len(holders)
    for member, buckets in held.items():
        for bucket in sorted(buckets, key=lambda bucket: -score(member, bucket))[: room[member]]:
            found[bucket] = member
        room[member] -= min(room[member], len(buckets))
    for bucket, holder in enumerate(found):
        if holder == NOBODY:
            open_ones = (member for member in held if room[member] > 0)
            chosen = found[bucket] = max(open_ones, key=lambda member: score(member, bucket))
            room[chosen] -= 1
    return tuple(found)
