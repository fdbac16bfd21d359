"""`recmesh replay` against a real server: every row once, in order, after any interruption."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nats.aio.client import Client

from recmesh.partitions import fnv1a32
from tests.support.servers import NatsServer, nats
from tests.support.waiting import until

pytestmark = [pytest.mark.integration]
__all__ = ["nats"]


def written(folder: Path, rows: int) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({
        "at": [1_750_000_000.0 + i for i in range(rows)], "user": [f"u{i % 13}" for i in range(rows)],
        "n": list(range(rows)),
    }), path)
    return path


def command(file: Path, server: NatsServer, *options: str) -> list[str]:
    return [sys.executable, "-m", "recmesh.cli.main", "replay", str(file), "--to", f"{server.url}/clicks", *options]


def replay(file: Path, server: NatsServer, *options: str) -> Any:
    done = subprocess.run(
        [*command(file, server, *options), "--json"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@asynccontextmanager
async def client(server: NatsServer) -> AsyncIterator[Client]:
    made = Client()
    await made.connect(server.url)
    try:
        yield made
    finally:
        await made.close()


async def _stored(server: NatsServer, partitions: int) -> list[list[dict[str, Any]]]:
    found = []
    async with client(server) as made:
        js = made.jetstream()
        for partition in range(partitions):
            info = await js.stream_info(f"clicks-{partition}")
            messages = [await js.get_msg(f"clicks-{partition}", seq=n + 1) for n in range(info.state.last_seq)]
            found.append([
                {**orjson.loads(message.data or b""), "time": float((message.headers or {})["Recmesh-Time"])}
                for message in messages
            ])
    return found


def stored(server: NatsServer, partitions: int) -> list[list[dict[str, Any]]]:
    return asyncio.run(_stored(server, partitions))


async def _count(server: NatsServer, partitions: int) -> int:
    async with client(server) as made:
        js = made.jetstream()
        return sum([(await js.stream_info(f"clicks-{n}")).state.messages for n in range(partitions)])


def test_rows_go_to_their_partitions_in_order_and_once(nats: NatsServer, tmp_path: Path) -> None:
    file = written(tmp_path, 500)
    options = ("--time", "at", "--speed", "max", "--partitions", "3", "--key", "user")
    done = replay(file, nats, *options)
    assert (done["sent"], done["doubles"]) == (500, 0)
    found = stored(nats, 3)
    for partition, rows in enumerate(found):
        expected = [n for n in range(500) if fnv1a32(f"u{n % 13}".encode()) % 3 == partition]
        assert [row["n"] for row in rows] == expected
        assert all(row["time"] == row["at"] == 1_750_000_000.0 + row["n"] for row in rows)
    assert (again := replay(file, nats, *options))["doubles"] == 500 and again["sent"] == 500
    assert stored(nats, 3) == found


@pytest.mark.long
def test_a_replay_that_was_killed_goes_on_where_it_was(nats: NatsServer, tmp_path: Path) -> None:
    file = written(tmp_path, 60_000)
    options = ("--time", "at", "--speed", "max", "--partitions", "2", "--key", "user")
    process = subprocess.Popen(command(file, nats, *options), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until(lambda: _there(nats) > 1000, timeout_s=60)
    finally:
        process.kill()
        process.wait()
    before = _there(nats)
    done = replay(file, nats, *options, "--resume")
    assert done["skipped"] == before and done["sent"] == 60_000 - before and done["doubles"] == 0
    assert replay(file, nats, *options, "--resume")["sent"] == 0
    assert _there(nats) == 60_000


def _there(server: NatsServer) -> int:
    try:
        return asyncio.run(_count(server, 2))
    except Exception:   # the streams are not made yet
        return 0


@pytest.mark.long
def test_a_server_that_dies_meanwhile_loses_nothing(nats: NatsServer, tmp_path: Path) -> None:
    file = written(tmp_path, 60_000)
    options = ("--time", "at", "--speed", "max", "--partitions", "2", "--json")
    process = subprocess.Popen(command(file, nats, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: _there(nats) > 1000, timeout_s=60)
    nats.stop()
    nats.start()
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(output)["sent"] == 60_000 and _there(nats) == 60_000
    first, second = stored_numbers(nats)
    assert first == list(range(0, 60_000, 2)) and second == list(range(1, 60_000, 2))


def stored_numbers(server: NatsServer) -> list[list[int]]:
    async def read() -> list[list[int]]:
        async with client(server) as made:
            found = []
            for n in range(2):
                subscription = await made.jetstream().subscribe(f"clicks.{n}", ordered_consumer=True)
                found.append([orjson.loads((await subscription.next_msg()).data)["n"] for _ in range(30_000)])
            return found

    return asyncio.run(read())


def test_a_signal_ends_it_with_a_summary_and_everything_sent_is_stored(nats: NatsServer, tmp_path: Path) -> None:
    file = written(tmp_path, 1000)
    options = ("--time", "at", "--speed", "5", "--partitions", "2")
    process = subprocess.Popen(
        command(file, nats, *options, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: _there(nats) >= 3, timeout_s=60)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    done = json.loads(output)
    assert done["stopped"] and 3 <= done["sent"] < 1000 and _there(nats) == done["sent"]


def test_another_number_of_partitions_is_refused_by_its_name(nats: NatsServer, tmp_path: Path) -> None:
    file = written(tmp_path, 10)
    replay(file, nats, "--speed", "max", "--partitions", "2")
    done = subprocess.run(
        command(file, nats, "--speed", "max", "--partitions", "3"), capture_output=True, text=True, check=False,
        timeout=60,
    )
    assert done.returncode == 2 and "partitions: clicks has 2 partition(s), not 3" in done.stderr
