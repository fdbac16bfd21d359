"""`recmesh join` against a real server: killed at any moment and started again, every sample comes out once."""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pyarrow.parquet as pq
import pytest
import yaml
from nats.aio.client import Client

from recmesh.data.generating import Target, write
from recmesh.data.synthetic import Synthetic
from recmesh.data.windows import filled
from recmesh.join.record import Record
from recmesh.partitions import EVENT_TIME, Limits, ensure, fnv1a32, subject_of
from recmesh.runtime.bus import Link, Publisher
from recmesh.runtime.errors import FailedPrecondition
from tests.support.servers import NatsServer, nats
from tests.support.waiting import until

pytestmark = [pytest.mark.integration]
__all__ = ["nats"]

T = TypeVar("T")
START = 1_790_000_000.0 // 3600 * 3600
WINDOW_S = 60.0
PARTITIONS = {"shown": 2, "clicks": 3}


class Data:
    """Samples a second apart, some with labels: in time, late, several, of nobody."""

    def __init__(self, samples: int, *, seed: int = 0, gap_s: float = 1.0) -> None:
        rng = random.Random(seed)
        self.samples = [(f"s{n}", START + gap_s * n) for n in range(samples)]
        self.labels: list[tuple[str, float, int]] = []
        self.truth: dict[str, int] = {}
        self.fates: Counter[str] = Counter()
        for key, at in self.samples:
            delays = [rng.uniform(0, 1.5 * WINDOW_S) for _ in range(rng.choice([0, 0, 0, 1, 1, 2]))]
            labels = [(key, at + delay, rng.randint(0, 9)) for delay in delays]
            counting = [label for label in labels if label[1] <= at + WINDOW_S]
            self.truth[key] = max(counting, key=lambda label: label[1])[2] if counting else 0
            self.fates += Counter(joined=len(counting), late=len(labels) - len(counting))
            self.fates["labelled" if counting else "defaulted"] += 1
            self.labels += labels
        for n in range(samples // 50):
            self.labels.append((f"nobody{n}", START + gap_s * rng.uniform(0, samples), 1))
            self.fates["orphan"] += 1
        self.labels.sort(key=lambda label: label[1])

    def messages(self) -> list[tuple[float, str, str, bytes]]:
        """In the order of time: when, topic, key, body."""
        made = [(at, "shown", key, orjson.dumps({"id": key, "x": at})) for key, at in self.samples]
        made += [(at, "clicks", key, orjson.dumps({"id": key, "click": value})) for key, at, value in self.labels]
        return sorted(made)


async def with_link(server: NatsServer, work: Callable[[Link], Awaitable[T]]) -> T:
    link = Link(server.url, name="tests")
    await link.open(30)
    try:
        return await work(link)
    finally:
        await link.close()


def published(server: NatsServer, messages: list[tuple[float, str, str, bytes]]) -> None:
    async def work(link: Link) -> None:
        for topic, count in PARTITIONS.items():
            await ensure(link, topic, count, limits=Limits(), field="")
        publisher = Publisher(link)
        await publisher.start()
        for n, (at, topic, key, body) in enumerate(messages):
            partition = fnv1a32(key.encode()) % PARTITIONS[topic]
            await publisher.send(
                subject_of(topic, partition), body, message_id=f"{n}:{at}", headers={EVENT_TIME: repr(at)}
            )
        await publisher.flush()
        await publisher.stop()

    asyncio.run(with_link(server, work))


@asynccontextmanager
async def client(server: NatsServer) -> AsyncIterator[Client]:
    made = Client()
    await made.connect(server.url)
    try:
        yield made
    finally:
        await made.close()


def rows_of(server: NatsServer, topic: str) -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        found = []
        async with client(server) as made:
            js = made.jetstream()
            for partition in range(4):
                try:
                    state = (await js.stream_info(f"{topic}-{partition}")).state
                except Exception:   # there is no such partition
                    break
                subscription = await js.subscribe(f"{topic}.{partition}", ordered_consumer=True)
                for _ in range(state.messages):
                    message = await subscription.next_msg()
                    found.append({
                        **orjson.loads(message.data), "time": float((message.headers or {})[EVENT_TIME]),
                        "partition": partition,
                    })
                await subscription.unsubscribe()
        return found

    return asyncio.run(read())


def count_of(server: NatsServer, topic: str, *, partitions: int = 2) -> int:
    async def read() -> int:
        async with client(server) as made:
            js = made.jetstream()
            return sum([(await js.stream_info(f"{topic}-{n}")).state.messages for n in range(partitions)])

    try:
        return asyncio.run(read())
    except Exception:   # the process has not made it yet
        return 0


def spec(folder: Path, server: NatsServer, **fields: Any) -> Path:
    values = {
        "name": "ads", "server": server.url, "window": WINDOW_S, "label": "click",
        "samples": {"topic": "shown", "key": "id"}, "labels": {"topic": "clicks", "key": "id", "value": "click"},
        "topic": {"topic": "joined", "partitions": 2}, "late_topic": "late", "commit": 0.2, "idle": 0,
    } | fields
    path = folder / "join.yaml"
    path.write_text(yaml.safe_dump({name: value for name, value in values.items() if value is not None}))
    return path


_processes: list["subprocess.Popen[str]"] = []


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    yield
    while _processes:
        process = _processes.pop()
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def started(path: Path, *options: str) -> "subprocess.Popen[str]":
    with path.with_suffix(".log").open("a") as log:
        _processes.append(subprocess.Popen(
            [sys.executable, "-m", "recmesh.cli.main", "join", str(path), "--json", *options],
            stdout=subprocess.PIPE, stderr=log, text=True,
        ))
    return _processes[-1]


def ended(process: "subprocess.Popen[str]", path: Path) -> dict[str, int]:
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, path.with_suffix(".log").read_text()[-3000:]
    found: dict[str, int] = json.loads(output)
    return found


def check(data: Data, server: NatsServer, counts: dict[str, int]) -> None:
    rows = rows_of(server, "joined")
    assert {row["id"]: row["click"] for row in rows} == data.truth
    assert len(rows) == len(data.samples)
    for row in rows:
        assert row["time"] == row["x"] and row["partition"] == fnv1a32(row["id"].encode()) % 2
    assert {fate: counts[fate] for fate in data.fates} == dict(data.fates)
    assert len(rows_of(server, "late")) == data.fates["late"]
    assert counts["duplicate"] == counts["unreadable"] == counts["waiting_samples"] == counts["held_labels"] == 0


@pytest.mark.long
def test_what_is_there_is_joined_to_the_end_and_once_only(nats: NatsServer, tmp_path: Path) -> None:
    data = Data(3000)
    published(nats, data.messages())
    path = spec(tmp_path, nats)
    check(data, nats, ended(started(path, "--to-end"), path))
    check(data, nats, ended(started(path, "--to-end"), path))


@pytest.mark.long
def test_killed_at_any_moment_and_started_again_every_sample_comes_out_once(
    nats: NatsServer, tmp_path: Path
) -> None:
    data = Data(20_000, seed=1)
    published(nats, data.messages())
    path = spec(tmp_path, nats, limit=5000)
    rng, seen, kills = random.Random(2), 0, 0
    while kills < 4:
        process = started(path)
        more = seen + rng.randint(500, 3000)
        until(lambda: count_of(nats, "joined") >= more or process.poll() is not None, timeout_s=120)   # noqa: B023
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.communicate()
        kills += 1
        assert count_of(nats, "joined") > seen
        seen = count_of(nats, "joined")
    check(data, nats, ended(started(path, "--to-end"), path))


@pytest.mark.long
def test_with_a_window_of_duplicates_that_is_over_nothing_is_doubled(nats: NatsServer, tmp_path: Path) -> None:
    """The outputs' own ends tell what was stored and not written down."""
    data = Data(8000, seed=3)
    published(nats, data.messages())

    async def short(link: Link) -> None:
        from nats.js import api

        for topic, count in (("joined", 2), ("late", 1)):
            for n in range(count):
                session = await link.session()
                await session.js.add_stream(api.StreamConfig(
                    name=f"{topic}-{n}", subjects=[f"{topic}.{n}"], duplicate_window=0.1,
                ))

    asyncio.run(with_link(nats, short))
    path = spec(tmp_path, nats, commit=600)      # nothing is written down but when a life begins or ends
    process = started(path)
    until(lambda: count_of(nats, "joined") >= 1000, timeout_s=120)
    process.kill()
    process.communicate()
    check(data, nats, ended(started(path, "--to-end"), path))


@pytest.mark.long
def test_a_second_process_takes_over_and_the_first_one_ends(nats: NatsServer, tmp_path: Path) -> None:
    data = Data(500, seed=4)
    messages = data.messages()
    published(nats, messages[:200])
    path = spec(tmp_path, nats)
    first = started(path)
    until(lambda: count_of(nats, "joined") > 0, timeout_s=60)
    second = started(path)
    first.communicate(timeout=60)
    assert first.returncode == 5 and "another process runs the join ads" in path.with_suffix(".log").read_text()
    published(nats, messages)
    second.terminate()
    ended(second, path)
    check(data, nats, ended(started(path, "--to-end"), path))


def test_who_takes_a_record_wins_against_who_writes_it_all_the_time(nats: NatsServer) -> None:
    async def race(link: Link) -> None:
        first, second = Record(link, "ads"), Record(link, "ads")
        assert await first.take() is None
        await first.write(b"0")
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await first.write(str(written + 1).encode())
                written += 1
                await asyncio.sleep(0.01)

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.05)
        taken = await second.take()
        with pytest.raises(FailedPrecondition, match="another process runs the join ads"):
            await asyncio.wait_for(writing, 10)
        assert written > 0 and taken == str(written).encode()
        await second.write(b"mine")

    asyncio.run(with_link(nats, race))


@pytest.mark.long
def test_less_room_than_a_window_needs_costs_no_label_and_far_too_little_ends_it(
    nats: NatsServer, tmp_path: Path
) -> None:
    data = Data(1500, seed=6)                     # a window holds 61 samples and some 40 labels
    published(nats, data.messages())
    path = spec(tmp_path, nats, limit=5, name="tight", topic={"topic": "nothing"}, late_topic=None)
    process = started(path, "--to-end")
    process.communicate(timeout=60)
    log = path.with_suffix(".log").read_text()
    assert process.returncode == 5 and "5 labels wait for each other: raise `limit`" in log
    path = spec(tmp_path, nats, limit=48)
    check(data, nats, ended(started(path, "--to-end"), path))


@pytest.mark.long
def test_files_of_windows_are_whole_and_complete_when_their_marker_is_there(
    nats: NatsServer, tmp_path: Path
) -> None:
    data = Data(12_000, seed=5, gap_s=0.6)       # two hours
    messages = data.messages()
    published(nats, messages[: len(messages) * 3 // 4])
    folder = str(tmp_path / "joined/{YYYY}{MM}{DD}/{HH}")
    path = spec(tmp_path, nats, topic=None, files={"folder": folder, "rows": 1000})
    process = started(path)
    first = Path(filled(folder, START))
    until(lambda: (first / "ads-00002.parquet").exists(), timeout_s=120)
    process.kill()
    process.communicate()
    process = started(path)
    until(lambda: (first / "_SUCCESS").exists(), timeout_s=120)
    complete = {file.name: file.read_bytes() for file in first.iterdir()}
    process.kill()
    process.communicate()
    published(nats, messages)
    counts = ended(started(path, "--to-end"), path)
    assert {file.name: file.read_bytes() for file in first.iterdir()} == complete
    rows = []
    for hour in range(2):
        here = Path(filled(folder, START + 3600 * hour))
        assert (here / "_SUCCESS").exists() and not list(here.glob("*.new"))
        found = [row for file in sorted(here.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
        assert all(START + 3600 * hour <= row["x"] < START + 3600 * (hour + 1) for row in found)
        rows += found
    assert {row["id"]: row["click"] for row in rows} == data.truth and len(rows) == len(data.samples)
    assert {fate: counts[fate] for fate in data.fates} == dict(data.fates) and counts["late_samples"] == 0


def replayed(server: NatsServer, file: Path, topic: str, speed: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([
        sys.executable, "-m", "recmesh.cli.main", "replay", str(file), "--to", f"{server.url}/{topic}",
        "--time", "time", "--speed", speed, "--partitions", "2", "--key", "id",
    ], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@pytest.mark.long
def test_a_file_s_labels_are_the_same_live_and_from_what_is_there(nats: NatsServer, tmp_path: Path) -> None:
    shown, clicks = tmp_path / "shown.parquet", tmp_path / "clicks.parquet"
    data = Synthetic(ids=100, rows_per_day=2000 * 48, start=START)
    list(write(data, Target(shown, labels=clicks, delay_s=WINDOW_S), rows=2000))
    times = dict(zip(*pq.read_table(shown, columns=["id", "time"]).to_pydict().values(), strict=True))
    clicked = {row["id"] for row in pq.read_table(clicks).to_pylist() if row["time"] <= times[row["id"]] + WINDOW_S}
    truth = {key: int(key in clicked) for key in times}
    assert 50 < len(clicked) < 0.9 * pq.read_metadata(clicks).num_rows
    for name, speed in (("there", "max"), ("live", "150")):
        path = spec(
            tmp_path, nats, name=name, topic={"topic": name}, late_topic=None,
            samples={"topic": f"{name}-shown", "key": "id"}, labels={"topic": f"{name}-clicks", "key": "id"},
        )
        replays = [replayed(nats, shown, f"{name}-shown", speed), replayed(nats, clicks, f"{name}-clicks", speed)]
        if speed != "max":
            until(lambda: count_of(nats, "live-shown") and count_of(nats, "live-clicks"), timeout_s=60)
            process = started(path)
            until(lambda: count_of(nats, "live", partitions=1) > 100, timeout_s=120)
            process.terminate()
            ended(process, path)
        assert [each.wait(120) for each in replays] == [0, 0]
        ended(started(path, "--to-end"), path)
        rows = rows_of(nats, name)
        assert {row["id"]: row["click"] for row in rows} == truth and len(rows) == len(truth)


def test_a_join_of_a_topic_that_is_not_there_says_which(nats: NatsServer, tmp_path: Path) -> None:
    path = spec(tmp_path, nats)
    process = started(path)
    process.communicate(timeout=60)
    assert process.returncode == 4 and "samples.topic: there is no topic shown" in path.with_suffix(".log").read_text()
