"""Which source is read next."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.trainer.executor.priority import Priority, Waiting, score


def chooses(*queued: float, scale: float = 1.0, weights: tuple[float, ...] = (1.5, 1.0)) -> int | None:
    waiting = [Waiting(i, w, q) for i, (w, q) in enumerate(zip(weights, queued, strict=True))]  # type: ignore[arg-type]
    return Priority(scale=scale, least_share=0.0).choose(waiting)


def test_an_empty_source_scores_half_of_its_weight() -> None:
    assert score(1.0, 0, scale=4.0) == 0.5


@pytest.mark.parametrize("scale", [0.5, 1.0, 7.0])
def test_a_lighter_source_wins_from_scale_times_ln_3_on(scale: float) -> None:
    # w = (1.5, 1) and a first queue at 0: 1.5 / 2 = 1 / (1 + e^(-q/scale)) at q = scale * ln 3.
    border = scale * math.log(3.0)
    assert border == pytest.approx(1.0986 * scale, rel=1e-4)
    assert score(1.0, border * 1.001, scale=scale) > score(1.5, 0.0, scale=scale)
    assert score(1.0, border * 0.999, scale=scale) < score(1.5, 0.0, scale=scale)


def test_an_empty_heavy_source_is_passed_over() -> None:
    assert chooses(0, 1, weights=(100.0, 1.0)) == 1


def test_nothing_is_chosen_where_nothing_waits() -> None:
    assert chooses(0, 0) is None


def test_of_equals_the_first_is_read() -> None:
    assert chooses(3, 3, weights=(1.0, 1.0)) == 0


def test_every_source_that_has_something_to_read_gets_its_least_share() -> None:
    priority = Priority(scale=4.0, least_share=0.1)
    waiting = [Waiting(0, 100.0, 50), Waiting(1, 1.0, 50), Waiting(2, 1.0, 50)]
    read = [priority.choose(waiting) for _ in range(600)]
    for source in (1, 2):
        assert read.count(source) / len(read) == pytest.approx(0.1, abs=0.01)


def test_without_a_least_share_the_heaviest_takes_all() -> None:
    priority = Priority(scale=4.0, least_share=0.0)
    waiting = [Waiting(0, 100.0, 50), Waiting(1, 1.0, 50)]
    assert {priority.choose(waiting) for _ in range(50)} == {0}


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 50)), min_size=1, max_size=8),
    st.floats(0.1, 50), st.floats(0, 1), st.integers(1, 40),
)
def test_what_is_chosen_always_waits(
    sources: list[tuple[float, int]], scale: float, least_share: float, times: int
) -> None:
    priority = Priority(scale=scale, least_share=least_share)
    for _ in range(times):
        chosen = priority.choose([Waiting(i, w, q) for i, (w, q) in enumerate(sources)])
        assert chosen is None if not any(q for _, q in sources) else sources[chosen][1] > 0   # type: ignore[index]


def test_a_scale_that_is_no_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="scale"):
        Priority(scale=0.0)
