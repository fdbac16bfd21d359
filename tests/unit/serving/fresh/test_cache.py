"""Hot rows stay in a bounded cache, whatever passes by."""

import numpy as np

from recmesh.serving.fresh.cache import WAYS, Cache

DIM = 4


def asked(cache: Cache, ids: list[int]) -> np.ndarray:
    """As a look-up asks: what is not there is offered, with rows that tell their ids."""
    wanted = np.array(ids, np.int64)
    out = np.zeros((len(ids), DIM), np.float32)
    found = cache.get(wanted, out)
    rows = np.repeat(wanted[:, None], DIM, axis=1).astype(np.float32)
    assert np.array_equal(out[found], rows[found]), "a cached row is the row of its id"
    cache.offer(wanted[~found], rows[~found])
    return found


def test_a_row_is_found_the_second_time() -> None:
    cache = Cache(1 << 16, dim=DIM)
    assert not asked(cache, [3, -7, 2**62]).any()
    assert asked(cache, [3, -7, 2**62]).all()
    cache.clear()
    assert len(cache) == 0
    assert not asked(cache, [3]).any()


def test_it_stays_within_its_bytes() -> None:
    size = 1 << 14
    cache = Cache(size, dim=DIM)
    for first in range(0, 20_000, 500):
        asked(cache, list(range(first, first + 500)))
    assert cache.size_bytes <= size
    assert 0 < len(cache) <= size // (4 * DIM)


def test_a_scan_of_rare_ids_does_not_push_hot_ones_out() -> None:
    cache = Cache(1 << 14, dim=DIM)
    hot = list(range(10_000, 10_060))
    for _ in range(30):
        asked(cache, hot)
    for first in range(100_000, 140_000, 1000):
        asked(cache, list(range(first, first + 1000)))
    assert asked(cache, hot).mean() > 0.9


def test_what_becomes_hot_takes_the_place_of_what_was() -> None:
    cache = Cache(1 << 13, dim=DIM)
    before, after = list(range(60)), list(range(5000, 5060))
    for _ in range(20):
        asked(cache, before)
    for _ in range(400):
        asked(cache, after)
    assert asked(cache, after).mean() > 0.8


def test_one_that_is_too_small_for_a_set_holds_nothing() -> None:
    cache = Cache(8 * WAYS, dim=DIM)
    for _ in range(3):
        assert not asked(cache, [1, 2, 3]).any()
    assert len(cache) == 0
