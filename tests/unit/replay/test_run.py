"""The loop of a replay on a clock of its own: when rows are sent, again and again, and which of them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.replay.resume import There
from recmesh.replay.rows import open_rows
from recmesh.replay.run import Options, Progress, Replay


class OwnClock:
    """Time passes only in sleep."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, delay_s: float) -> None:
        self.at += delay_s


class Kept:
    """A sink that keeps what is sent, and when."""

    def __init__(self, clock: OwnClock, *, partitions: int = 1, there: frozenset[int] = frozenset()) -> None:
        self.partitions, self.stored, self.doubles = partitions, 0, 0
        self.sent: list[tuple[float, int, str, float | None]] = []
        self._clock, self._there = clock, there

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def reached(self, offsets: Mapping[str, int], total: int) -> list[There]:
        return [There(0, self._there)] * self.partitions

    async def send(self, partition: int, payload: bytes, *, message_id: str, key: str, at: float | None) -> None:
        self.sent.append((self._clock.at - 100.0, partition, message_id.partition(":")[2], at))

    async def flush(self) -> None:
        self.stored = len(self.sent)


TIMES = [1000.0, 1010.0, 1005.0, 1040.0]


def run(
    folder: Path, *, partitions: int = 1, there: frozenset[int] = frozenset(), **options: Any
) -> tuple[Kept, Progress]:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"t": TIMES}), path)
    clock = OwnClock()
    sink = Kept(clock, partitions=partitions, there=there)
    replay = Replay(open_rows([str(path)], also=["t"]), sink, Options(time="t", **options), clock=clock)
    return sink, asyncio.run(replay.run())


def test_rows_are_sent_at_their_time_times_the_speed(tmp_path: Path) -> None:
    sink, done = run(tmp_path, speed=10.0)
    assert [sent[0] for sent in sink.sent] == pytest.approx([0.0, 1.0, 1.0, 4.0], abs=0.006)
    assert [sent[3] for sent in sink.sent] == TIMES and done.sent == 4 and done.most_lag_s < 0.01


def test_without_a_key_each_partition_has_its_turn(tmp_path: Path) -> None:
    sink, _ = run(tmp_path, speed=0.0, partitions=3)
    assert [sent[1] for sent in sink.sent] == [0, 1, 2, 0]


def test_only_rows_of_a_time_are_sent(tmp_path: Path) -> None:
    sink, done = run(tmp_path, speed=0.0, begin=1005.0, end=1040.0)
    assert [sent[3] for sent in sink.sent] == [1010.0, 1005.0] and done.left_out == 2


def test_rounds_go_on_in_time_and_end_at_the_limit(tmp_path: Path) -> None:
    sink, done = run(tmp_path, speed=10.0, loop=True, limit=6)
    step = 40.0 * 4 / 3
    assert [sent[2] for sent in sink.sent[3:]] == ["0:3", "1:0", "1:1"]
    assert sink.sent[4][3] == pytest.approx(1000.0 + step)
    assert sink.sent[4][0] == pytest.approx(step / 10, abs=0.006) and done.sent == 6


def test_what_is_there_is_passed_over_and_the_rest_begins_at_once(tmp_path: Path) -> None:
    sink, done = run(tmp_path, speed=10.0, resume=True, there=frozenset({0, 1}))
    assert [sent[2] for sent in sink.sent] == ["0:2", "0:3"] and done.skipped == 2
    assert [sent[0] for sent in sink.sent] == pytest.approx([0.0, 3.5], abs=0.006)
