"""Which batches of a lease are still to be trained. Pure."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from recmesh.trainer.ports import AppliedSets, Piece


def missing_batches(
    lease: Piece, applied: Sequence[AppliedSets], batch_size: int, *, between: Iterable[int] = ()
) -> list[Piece]:
    """The lease in batches, without what every server has applied.

    A batch must lie wholly inside or outside each ledger, or it is refused as OVERLAP; cutting wherever some
    server's sets begin or end makes that rare. Nor may it go on over one of the positions in `between`, where samples
    of another kind begin. A fresh lease is cut at k·batch_size from its begin, and anew from each of those.
    """
    borders = {
        border
        for server in applied
        for piece in (*server.by_all, *server.by_any)
        if piece.line == lease.line
        for border in (piece.lo, piece.hi)
        if lease.lo < border < lease.hi
    }
    borders |= {border for border in between if lease.lo < border < lease.hi}
    edges = [lease.lo, *sorted(borders), lease.hi]
    batches: list[Piece] = []
    for lo, hi in pairwise(edges):
        if not all(_covers(server.by_all, Piece(lease.line, lo, hi)) for server in applied):
            batches += [Piece(lease.line, at, min(at + batch_size, hi)) for at in range(lo, hi, batch_size)]
    return batches


def cut_at(batch: Piece, cuts: Iterable[Piece]) -> list[Piece]:
    """The sub-batches between the borders of `cuts`; all of them, since other servers may lack any."""
    borders = {
        border
        for cut in cuts
        if cut.line == batch.line
        for border in (cut.lo, cut.hi)
        if batch.lo < border < batch.hi
    }
    edges = [batch.lo, *sorted(borders), batch.hi]
    return [Piece(batch.line, lo, hi) for lo, hi in pairwise(edges)]


def _covers(intervals: Sequence[Piece], piece: Piece) -> bool:
    return any(i.line == piece.line and i.lo <= piece.lo and piece.hi <= i.hi for i in intervals)
