"""How pieces are cut into shards. The scripts of the queue follow the same rules, held by one test suite."""

SMALLEST_SHARE = 8
"""Near the end shards shrink to this fraction of their size at most: a lease costs a ledger query per PS."""


def shard_batches(queued: int, *, holders: int, batch_size: int, most: int) -> int:
    """Batches of the next shard: `most`, until less than two such shards per holder are queued.

    Then half of a fair share (guided self-scheduling, Polychronopoulos and Kuck 1987), so that workers
    end together.
    """
    fair = -(-queued // (2 * max(1, holders) * batch_size))
    return max(1, -(-most // SMALLEST_SHARE), min(most, fair))


def shard_end(lo: int, hi: int, *, batch_size: int, batches: int) -> int:
    """Where a shard that starts at lo ends: on the grid of batches, or at the piece's end."""
    return min(hi, (lo // batch_size + batches) * batch_size)


def suspect(lo: int, progress: int, hi: int, *, batch_size: int) -> tuple[int, int] | None:
    """The batch in whose compute a worker died: the first one after its progress, on the shard's own grid.

    Workers count batches from the shard's start, and progress may stand inside one (a batch retrained in
    parts). None: the shard was complete.
    """
    if progress >= hi:
        return None
    return progress, min(hi, lo + ((progress - lo) // batch_size + 1) * batch_size)


def kept_end(lo: int, progress: int, hi: int, *, batch_size: int, batches: int) -> int:
    """Where a lease ends that keeps so many batches from its progress on, on its own grid of batches."""
    return min(hi, lo + ((progress - lo) // batch_size + batches) * batch_size)


def stolen_from(lo: int, progress: int, hi: int, *, batch_size: int) -> int:
    """Where what another takes of a lease begins: the later half of its batches, or its progress when one is left.

    In the last case both train the same batch: ledgers make that cost time only, and whoever is first ends it.
    """
    first = (progress - lo) // batch_size
    batches = -(-(hi - lo) // batch_size) - first
    return progress if batches < 2 else lo + (first + (batches + 1) // 2) * batch_size
