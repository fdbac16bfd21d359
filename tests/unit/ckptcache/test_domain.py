import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from services.ckptcache.domain import manifest
from services.ckptcache.domain.parts import (
    Part,
    PartFile,
    job_violations,
    packed,
    parse_part_path,
    part_violations,
)
from services.ckptcache.domain.retention import Copy, Retention, to_evict
from services.ckptcache.domain.snapshot import (
    TRANSITIONS,
    Link,
    Snapshot,
    State,
    check_generation,
    committed,
    damaged,
    failed,
    with_stored,
)

SHA = "0" * 64


def snapshot(
    number: int = 1, *, state: State = State.COLLECTING, at: float = 0.0, ps: tuple[int, ...] = (0, 1)
) -> Snapshot:
    return Snapshot("job-1", number, gen=2, expected=ps, created=at, state=state, committed=at)


def part(ps: int = 0, *files: PartFile) -> Part:
    return Part(ps, files or (PartFile("a.arrow", 0, 10, SHA),), "{}")


def test_a_snapshot_is_stored_only_with_its_last_part() -> None:
    one = with_stored(snapshot(), part(1))
    assert (one.state, one.missing) == (State.COLLECTING, (0,))
    assert with_stored(one, part(0)).state is State.STORED


def test_only_a_stored_snapshot_can_be_committed() -> None:
    for state in State:
        if State.COMMITTED in TRANSITIONS[state]:
            assert committed(snapshot(state=state), now=5, rows=1, samples=2).committed == 5
        else:
            with pytest.raises(FailedPrecondition, match=f"is {state}"):
                committed(snapshot(state=state), now=5, rows=1, samples=2)


def test_a_failed_snapshot_keeps_its_first_reason() -> None:
    assert failed(failed(snapshot(), "first"), "second").reason == "first"


def test_a_committed_snapshot_cannot_fail_but_can_be_found_damaged() -> None:
    with pytest.raises(FailedPrecondition):
        failed(snapshot(state=State.COMMITTED), "no")
    assert not damaged(snapshot(state=State.COMMITTED), "bits").usable


def test_a_message_of_another_generation_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match="generation 2, not 3") as caught:
        check_generation(snapshot(), 3)
    assert caught.value.reason == "STALE_GEN"


def test_every_wrong_field_of_a_part_is_named() -> None:
    wrong = part(
        0,
        PartFile("../etc/passwd", 0, 1, SHA),
        PartFile("a", 5, 10, SHA),
        PartFile("a", 0, 1, "xyz"),
        PartFile("receipt.json", 0, 1, SHA),
    )
    paths = [violation.path for violation in part_violations(wrong, memory_bytes=12)]
    assert paths == ["files[0].name", "files[1]", "files[2].name", "files[2].sha256", "files[3].name"]


def test_a_part_without_a_document_is_refused_unless_it_is_one_of_its_files() -> None:
    assert part_violations(Part(0, (PartFile("a", 0, 1, SHA),)), memory_bytes=1)
    assert not part_violations(Part(0, (PartFile("part.json", 0, 1, SHA),)), memory_bytes=1)


@pytest.mark.parametrize("job_id", ["", ".", "..", "a/b", "a.b", "-a", "a b", "a\n", "x" * 200])
def test_what_is_no_folder_name_is_no_job_id(job_id: str) -> None:
    assert job_violations(job_id)


def test_packed_files_touch_each_other() -> None:
    files = packed(part(0, PartFile("a", 7, 3, SHA), PartFile("b", 90, 5, SHA))).files
    assert [(file.offset, file.size_bytes) for file in files] == [(0, 3), (3, 5)]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("checkpoints/job-1/00000012/ps-003", ("job-1", 12, 3)),
        ("checkpoints/job-1/12/ps-003", None),
        ("checkpoints/job-1/00000012/ps-003/x", None),
        ("checkpoints/../00000012/ps-003", None),
    ],
)
def test_only_a_part_is_a_part(path: str, found: object) -> None:
    assert parse_part_path(path) == found


def test_what_ckptcache_vouches_for_wins_over_what_it_was_told() -> None:
    whole = with_stored(snapshot(ps=(0,)), part(0))
    document = manifest.merged({"gen": 99, "ledger": [[0, 1, 2]], "parts": "?"}, whole)
    assert document["gen"] == 2
    assert document["ledger"] == [[0, 1, 2]]
    assert document["parts"][0]["files"] == [{"name": "a.arrow", "size_bytes": 10, "sha256": SHA}]


@pytest.mark.parametrize("text", ["[", "[]", '"x"'])
def test_a_manifest_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        manifest.parse(text)


def test_a_count_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="rows is -1"):
        manifest.count({"rows": -1}, "rows")


def test_retention_lets_all_but_the_newest_go_and_the_remains_before_them() -> None:
    snapshots = [
        snapshot(1, state=State.COMMITTED),
        snapshot(2, state=State.FAILED),
        snapshot(3, state=State.COMMITTED),
        snapshot(4, state=State.STORED),
        snapshot(5, state=State.COMMITTED),
        snapshot(6, state=State.STORED),
    ]
    assert Retention(keep=2).expired(snapshots, now=0) == [1, 2, 4]
    assert Retention(keep=2).expired(snapshots, now=0, in_use={1}) == [2, 4]


def test_age_lets_go_of_more_but_never_of_the_newest() -> None:
    old = [snapshot(n, state=State.COMMITTED, at=n) for n in (1, 2, 3)]
    assert Retention(keep=3, max_age_s=10).expired(old, now=12.5) == [1, 2]
    assert Retention(keep=3, max_age_s=10).expired(old, now=1e9) == [1, 2]


def test_a_damaged_snapshot_does_not_count_as_kept() -> None:
    snapshots = [snapshot(1, state=State.COMMITTED), snapshot(2, state=State.DAMAGED)]
    assert Retention(keep=1).expired(snapshots, now=0) == []


def test_what_builds_on_a_snapshot_that_cannot_be_read_does_not_count_either() -> None:
    on_damaged = replace(snapshot(3, state=State.COMMITTED), chain=(Link(2, (0, 1)),))
    on_nothing = replace(snapshot(4, state=State.COMMITTED), chain=(Link(9, (0, 1)),))
    snapshots = [
        snapshot(1, state=State.COMMITTED), snapshot(2, state=State.DAMAGED), on_damaged, on_nothing,
    ]
    assert Retention(keep=1).expired(snapshots, now=0) == []


@given(
    st.lists(st.sampled_from(State), max_size=8),
    st.integers(1, 4),
    st.none() | st.floats(0.1, 10),
    st.floats(0, 100),
)
def test_the_newest_committed_snapshot_always_stays(
    states: list[State], keep: int, max_age_s: float | None, now: float
) -> None:
    snapshots = [snapshot(n, state=state, at=n) for n, state in enumerate(states, start=1)]
    gone = Retention(keep=keep, max_age_s=max_age_s).expired(snapshots, now=now)
    good = [each.number for each in snapshots if each.state is State.COMMITTED]
    assert not good or max(good) not in gone
    assert all(not good or number < max(good) for number in gone)


copies = st.lists(
    st.builds(
        Copy,
        job_id=st.sampled_from("ab"),
        number=st.integers(1, 4),
        ps=st.integers(0, 2),
        size_bytes=st.integers(1, 50),
        flushed=st.booleans(),
    ),
    unique_by=lambda copy: (copy.job_id, copy.number, copy.ps),
)


@given(copies, st.integers(0, 300), st.integers(0, 3))
def test_a_copy_that_is_not_on_storage_is_never_dropped(held: list[Copy], budget: int, newest: int) -> None:
    gone = to_evict(held, budget_bytes=budget, newest=newest)
    assert all(copy.flushed for copy in gone)
    left = [copy for copy in held if copy not in gone]
    assert sum(copy.size_bytes for copy in left) <= budget or not any(copy.flushed for copy in left)


def test_every_state_is_reached_and_every_end_is_an_end() -> None:
    reached = set(itertools.chain.from_iterable(TRANSITIONS.values())) | {State.COLLECTING}
    assert reached == set(State)
    assert not TRANSITIONS[State.FAILED]
