"""Rows come from the nearest tier that has them, and Valkey's troubles are nobody's but its own."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from recmesh.formats import tables as files
from recmesh.runtime.errors import InvalidArgument, NotFound
from recmesh.serving.fresh.lookup import Lookup
from recmesh.serving.fresh.version import Overlay, Version, mean
from recmesh.serving.settings import EmbeddingSettings
from tests.support.servers import ValkeyServer, valkey_server
from tests.support.waiting import until

pytestmark = pytest.mark.integration
ROWS, DIM = 500, 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with valkey_server(tmp_path_factory.mktemp("valkey")) as made:
        yield made


@pytest.fixture
def version(tmp_path: Path) -> Version:
    """Rows of ids 0, 2, 4, ... tell their ids; id 2 has changed since, and id 4 is gone."""
    ids = np.arange(0, 2 * ROWS, 2)
    rows = np.repeat(ids[:, None], DIM, axis=1).astype(np.float32)
    files.write(tmp_path / "tables", job_id="j", gen=1, snapshot=7, tables={"item": (ids, rows)}, dense={})
    base = files.read(tmp_path / "tables")
    changed = Overlay(
        np.array([2, 4]), np.array([[-2.0] * DIM, [0.0] * DIM], np.float32), np.array([True, False])
    )
    return Version(9, 1, 0.0, base.tables, 7, {"item": changed}, {}, {"item": mean(base.tables["item"])})


def lookup(name: str, *, cache_bytes: int = 0, **settings: object) -> Lookup:
    made = Lookup(
        EmbeddingSettings.model_validate({"cache_bytes": cache_bytes, **settings}), dims={"item": DIM}, name=name
    )
    made.begin()
    return made


def first(made: Lookup, version: Version, *ids: int) -> list[float]:
    rows = made.rows(version, "item", np.array(ids, np.int64))
    assert (rows == rows[:, :1]).all()
    found: list[float] = rows[:, 0].tolist()
    return found


def tiers(made: Lookup) -> dict[str, int]:
    told = made.status()["tables"]["item"]
    return {tier: told[tier] for tier in ("fresh", "cache", "valkey", "disk", "absent") if told[tier]}


def test_each_row_is_of_the_nearest_tier(version: Version, server: ValkeyServer) -> None:
    one = lookup("near", valkey={"url": server.url, "deadline_ms": 1000})
    try:
        assert first(one, version, 2, 4, 6, 7) == [-2, 0, 6, 0]
        assert tiers(one) == {"fresh": 1, "disk": 1, "absent": 2}
        other = lookup("near", cache_bytes=1 << 16, valkey={"url": server.url, "deadline_ms": 1000})
        assert first(other, version, 6) == [6]
        assert first(other, version, 6, 8) == [6, 8]
        assert tiers(other)["cache"] == 1
        other.close()
    finally:
        one.close()


def test_what_another_process_has_read_comes_from_valkey(version: Version, server: ValkeyServer) -> None:
    ids = list(range(10, 110, 2))
    one = lookup("shared", valkey={"url": server.url, "deadline_ms": 1000})
    first(one, version, *ids)

    def shared() -> bool:
        other = lookup("shared", valkey={"url": server.url, "deadline_ms": 1000})
        assert first(other, version, *ids) == ids
        found = tiers(other)
        other.close()
        return found == {"valkey": len(ids)}

    until(shared, timeout_s=30)
    one.close()


def test_rows_of_another_snapshot_are_not_taken_from_valkey(version: Version, server: ValkeyServer) -> None:
    one = lookup("named", valkey={"url": server.url, "deadline_ms": 1000})
    first(one, version, 8)
    until(lambda: _in_valkey(version, server, 8), timeout_s=30)
    later = Version(12, 1, 0.0, version.base, 12, {"item": Overlay.empty(DIM)}, {})
    first(one, later, 8)
    assert "valkey" not in tiers(one)
    one.close()


def _in_valkey(version: Version, server: ValkeyServer, id_: int) -> bool:
    made = lookup("named", valkey={"url": server.url, "deadline_ms": 1000})
    first(made, version, id_)
    found = "valkey" in tiers(made)
    made.close()
    return found


def test_when_valkey_hangs_or_dies_the_disk_answers(version: Version, tmp_path: Path) -> None:
    with valkey_server(tmp_path / "own") as server:
        made = lookup("ill", valkey={"url": server.url, "deadline_ms": 50})
        assert first(made, version, 6) == [6]
        os.kill(server.pid, signal.SIGSTOP)
        for id_ in range(20, 60, 2):
            assert first(made, version, id_) == [id_]
        told = made.status()["valkey"]
        assert (told["up"], told["errors"]) == (False, 1), "it is left alone after the first time"
        os.kill(server.pid, signal.SIGCONT)
        server.kill()
        again = lookup("ill", valkey={"url": server.url, "deadline_ms": 50})
        assert first(again, version, 6, 8) == [6, 8]
        assert not again.status()["valkey"]["up"]
        again.close()
        made.close()


def test_ids_without_a_row_read_as_their_tables_policy_says(version: Version) -> None:
    assert first(lookup("p"), version, 1, 6) == [0, 6]
    assert first(lookup("p", miss={"*": {"kind": "default", "value": [5.0] * DIM}}), version, 1, 4, 6) == [5, 5, 6]
    assert first(lookup("p", miss={"item": "mean", "*": "fail"}), version, 1, 6) == [ROWS - 1, 6]
    with pytest.raises(NotFound, match="no row of id 1"):
        first(lookup("p", miss={"*": "fail"}), version, 6, 1)


def test_a_miss_policy_that_cannot_be_is_refused_before_any_request() -> None:
    dims = {"item": DIM, "user": 2}
    miss = {"itm": "fail", "item": {"kind": "default", "value": [1.0]}, "*": {"kind": "default", "value": [5.0, 5.0]}}
    with pytest.raises(InvalidArgument) as caught:
        Lookup(EmbeddingSettings.model_validate({"miss": miss}), dims=dims, name="p")
    assert [(each.path, each.reason) for each in caught.value.violations] == [
        ("serving.embeddings.miss.itm", "the model has no such table; it has item, user"),
        ("serving.embeddings.miss.item.value", "has 1 numbers, and table 'item' 3 columns"),
    ]
