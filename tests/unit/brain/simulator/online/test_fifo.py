from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.brain.simulator.online.fifo import Fifo

spans = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 7.0, 60.0]), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=25
)


def grain_by_grain(steps: list[tuple[float, int, int]], *, per_s: int = 200) -> tuple[float, float]:
    """The brute-force queue: samples one by one, evenly within each tick; (waiting, age of the oldest)."""
    waiting: deque[tuple[float, float]] = deque()
    now = 0.0
    for seconds, arriving, served in steps:
        for _ in range(round(seconds * per_s)):
            now += 1 / per_s
            if arriving:
                waiting.append((now - 1 / per_s, arriving / per_s))
            can = served / per_s
            while waiting and can > 1e-12:
                came, size = waiting.popleft()
                if size > can + 1e-12:
                    waiting.appendleft((came, size - can))
                can -= min(size, can)
    return sum(size for _, size in waiting), now - waiting[0][0] if waiting else 0.0


@given(spans)
def test_backlog_and_lag_are_those_of_a_queue_of_single_samples(steps: list[tuple[float, int, int]]) -> None:
    fifo = Fifo()
    for seconds, arriving, served in steps:
        fifo.run(seconds, arriving=arriving, served=served)
    waits, oldest_s = grain_by_grain(steps, per_s=20)
    assert fifo.backlog == pytest.approx(waits, abs=1.0)
    if waits > 1.0:
        slowest = min(arriving for _, arriving, _ in steps if arriving)
        assert fifo.lag_s == pytest.approx(oldest_s, abs=0.11 + 1.0 / slowest)


@given(spans)
def test_no_sample_is_lost_or_made(steps: list[tuple[float, int, int]]) -> None:
    fifo = Fifo()
    for seconds, arriving, served in steps:
        trained = fifo.served
        fifo.run(seconds, arriving=arriving, served=served)
        assert -1e-9 <= fifo.served - trained <= served * seconds + 1e-9
    assert fifo.arrived == pytest.approx(sum(seconds * arriving for seconds, arriving, _ in steps))
    assert fifo.served + fifo.backlog == pytest.approx(fifo.arrived)
    assert 0 <= fifo.lag_s <= fifo.now_s


def test_lag_is_the_age_of_the_oldest_and_not_backlog_over_rate() -> None:
    fifo = Fifo()
    fifo.run(60, arriving=10, served=0)
    fifo.run(60, arriving=1, served=5)
    assert fifo.backlog == 360
    assert fifo.lag_s == 90  # half of the first minute's are trained; backlog over today's rate would be 360


def test_what_came_before_a_silence_keeps_its_age() -> None:
    fifo = Fifo()
    fifo.run(10, arriving=1, served=0)
    fifo.run(100, arriving=0, served=0)
    fifo.run(5, arriving=1, served=2)
    assert fifo.backlog == 5 and fifo.lag_s == 5
