"""Buckets of jobs and their holders."""

from hypothesis import given
from hypothesis import strategies as st

from services.jobmaster.domain.shards import BUCKETS, NOBODY, Holders, bucket_of, targets

NAMES = st.sets(st.integers(0, 30).map("replica-{}".format), max_size=9)
HOLDERS = st.lists(st.sampled_from([NOBODY, *(f"replica-{number}" for number in range(12))]), min_size=BUCKETS,
                   max_size=BUCKETS).map(tuple)  # fmt: skip


def counts(holders: Holders) -> dict[str, int]:
    return {member: holders.count(member) for member in set(holders)}


@given(HOLDERS, NAMES)
def test_each_bucket_has_one_live_holder_and_loads_differ_by_one_at_most(holders: Holders, live: set[str]) -> None:
    found = targets(holders, live)
    assert len(found) == BUCKETS
    if not live:
        assert set(found) == {NOBODY}
        return
    assert set(found) <= live
    loads = [found.count(member) for member in live]
    assert max(loads) - min(loads) <= 1


@given(HOLDERS, NAMES.filter(bool))
def test_no_more_buckets_move_than_balance_asks_for(holders: Holders, live: set[str]) -> None:
    found = targets(holders, live)
    moved = sum(old in live and old != new for old, new in zip(holders, found, strict=True))
    least, more = divmod(BUCKETS, len(live))
    loads = sorted((holders.count(member) for member in live), reverse=True)
    excess = sum(max(0, load - least - (place < more)) for place, load in enumerate(loads))
    assert moved == excess


@given(HOLDERS, NAMES.filter(bool))
def test_what_was_found_once_stays(holders: Holders, live: set[str]) -> None:
    found = targets(holders, live)
    assert targets(found, live) == found
    assert targets(holders, sorted(live, reverse=True)) == found


@given(st.integers(1, 8))
def test_a_member_that_goes_concerns_its_own_buckets_alone(members: int) -> None:
    live = {f"replica-{number}" for number in range(members + 1)}
    before = targets((NOBODY,) * BUCKETS, live)
    after = targets(before, live - {"replica-0"})
    assert all(new == old for old, new in zip(before, after, strict=True) if old != "replica-0")


def test_names_spread_over_all_buckets_and_stay_where_they_are() -> None:
    loads = counts(tuple(str(bucket_of(f"job-{number}")) for number in range(6400)))
    assert len(loads) == BUCKETS and max(loads.values()) < 160 and min(loads.values()) > 50
    assert (bucket_of("ads"), bucket_of("demo"), bucket_of("")) == (62, 4, 20)
