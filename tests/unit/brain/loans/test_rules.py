"""Who lends, what is packed, and who is evicted."""

import pytest

from recmesh.plugins.planning import Resources
from services.brain.domain.loans.interference import Act, Node, Offline, Tolerance, victim
from services.brain.domain.loans.lenders import Lender, chosen, units_of, workers_for
from services.brain.domain.loans.packing import Host, Whole, for_slices, for_whole, saved

UNIT, WORKER = Resources(cpu=1.0), Resources(cpu=2.0, gpus={"a100": 1.0})


def test_the_papers_inputs_give_the_papers_saving() -> None:
    """MATH §4: 140 HNs, 24 to a node of 8 GPUs, against 2 whole models to a node."""
    host, model = Host(cpu=96, gpus=8, slices_per_gpu=3), Whole(cpu=48)
    assert (for_slices(140, host), for_whole(140, host, model)) == (6, 70)
    assert saved(140, host, model) == pytest.approx(0.914, abs=5e-4)
    assert saved(0, host, model) == 0.0
    with pytest.raises(ValueError, match="no room"):
        for_whole(1, host, Whole(cpu=97))


def test_workers_are_counted_by_what_a_unit_needs_most_of() -> None:
    """Slices of a GPU: two units of 0.25 are one worker."""
    assert [workers_for(count, WORKER, UNIT) for count in (0, 1, 2, 3)] == [0, 1, 1, 2]
    slices = Resources(cpu=1.0, gpus={"a100": 0.25})
    assert [workers_for(count, WORKER, slices) for count in (1, 2, 4, 8)] == [1, 1, 2, 4]
    with pytest.raises(ValueError, match="nothing"):
        workers_for(1, Resources(cpu=2.0), slices)


def test_no_job_lends_beyond_its_least() -> None:
    """What it lends already counts, and one without what is needed lends nothing."""
    job = Lender("a", 0, workers=4, least=2, worker=WORKER)
    assert units_of(job, UNIT, 0) == 4
    assert units_of(Lender("a", 0, workers=3, least=2, worker=WORKER, lent=1), UNIT, 2) == 2
    assert units_of(Lender("a", 0, workers=4, least=2, worker=Resources()), UNIT, 0) == 0


def test_low_priority_lends_first_then_the_one_with_most_to_give() -> None:
    """And those with a deadline last of their priority."""
    lenders = [
        Lender("dear", 5, 9, 1, UNIT), Lender("due", 0, 9, 1, UNIT, deadline=99.0),
        Lender("small", 0, 3, 1, UNIT), Lender("large", 0, 4, 1, UNIT),
    ]  # fmt: skip
    assert chosen(lenders, UNIT, {}, 3) == ["large", "large", "small"]
    everything = chosen(lenders, UNIT, {}, 99)
    assert len(everything) == 8 + 8 + 2 + 3
    assert everything[5:13] == ["due"] * 8
    assert everything[-1] == "dear"


def test_offline_work_goes_one_by_one_and_comes_back_after_a_calm() -> None:
    """Not for one slow window, and not while between both bounds."""
    rules, node = Tolerance(goal_s=0.025, after_s=30, settle_s=60, clear=0.8, clear_s=100), Node()
    assert node.saw(0.030, 2, rules, 0.0) is Act.NOTHING
    assert node.saw(0.024, 2, rules, 20.0) is Act.NOTHING     # it was a moment only
    assert node.saw(0.030, 2, rules, 30.0) is Act.NOTHING
    assert node.saw(0.030, 2, rules, 60.0) is Act.EVICT
    assert node.saw(0.030, 1, rules, 90.0) is Act.NOTHING
    assert node.saw(0.030, 1, rules, 119.0) is Act.NOTHING    # the first one's effect is waited for
    assert node.saw(0.030, 1, rules, 121.0) is Act.EVICT
    assert node.saw(0.022, 0, rules, 130.0) is Act.NOTHING    # neither bad nor good
    assert node.saw(0.010, 0, rules, 140.0) is Act.NOTHING
    assert node.saw(0.022, 0, rules, 200.0) is Act.NOTHING    # the calm begins anew
    assert node.saw(0.010, 0, rules, 210.0) is Act.NOTHING
    assert node.saw(0.010, 0, rules, 310.0) is Act.ADMIT
    assert node.saw(0.010, 0, rules, 500.0) is Act.NOTHING


def test_slow_requests_without_offline_work_evict_nobody() -> None:
    """And where no goal is set nothing is looked at."""
    rules, node = Tolerance(goal_s=0.025, after_s=0.0), Node()
    assert node.saw(1.0, 0, rules, 0.0) is Act.NOTHING
    assert Node().saw(1.0, 9, Tolerance(), 0.0) is Act.NOTHING


def test_the_victim_is_of_low_priority_and_large() -> None:
    """A job at its least is left alone."""
    workers = [Offline("a", 1, 8, True), Offline("b", 0, 1, True), Offline("c", 0, 4, True), Offline("d", 0, 9, False)]
    found = victim(workers)
    assert found is not None and found.job_id == "c"
    assert victim(workers[3:]) is None
