"""Verbs about topics: what they refuse, and where they find their server."""

import json
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr

from recmesh.cli.exit_codes import ExitCode
from recmesh.cli.stream_verbs import ops_of_join
from recmesh.cli.topics import Server, mesh_nats, server_and_topic
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.runtime.settings import ServiceSettings
from tests.unit.cli.test_command import recmesh


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"t": [1, 2], "id": ["a", "b"]}), path)
    return str(path)


@pytest.mark.parametrize(("options", "code", "text"), [
    ([], ExitCode.USAGE, "--time must name the column of event time, or --speed be max"),
    (["--time", "t", "--speed", "fast"], ExitCode.USAGE, "speed: could not convert"),
    (["--speed", "max", "--max-age", "soon"], ExitCode.USAGE, "max-age: 'soon' is no duration"),
    (["--speed", "max", "--from", "2026"], ExitCode.USAGE, "--from and --until need --time"),
    (["--time", "when"], ExitCode.USAGE, "has no column when; there are t, id"),
    (["--time", "t"], ExitCode.UNREACHABLE, "there is no mesh in"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_replay_that_cannot_be_says_why(
    tmp_path: Path, rows: str, options: list[str], code: ExitCode, text: str
) -> None:
    result = recmesh("replay", rows, "--to", "shown", *options, home=tmp_path)
    assert result.returncode == code and text in result.stderr and result.stdout == ""


def test_a_wrong_join_names_every_field(tmp_path: Path) -> None:
    (tmp_path / "join.yaml").write_text("name: ads\nwindow: soon\nsamples: {topic: s, key: id}\nlabels: {topic: l}\n")
    result = recmesh("join", str(tmp_path / "join.yaml"), home=tmp_path)
    assert result.returncode == ExitCode.USAGE
    assert all(f"\n  {path}: " in result.stderr for path in ("window", "labels.key", "topic"))


def test_generated_data_tell_the_best_auc(tmp_path: Path) -> None:
    result = recmesh(
        "generate", "--out", str(tmp_path / "rows.csv"), "--rows", "2000", "--drift", "1.5", "--json", home=tmp_path
    )
    done = json.loads(result.stdout)
    assert done["rows"] == 2000 and 0.5 < done["frozen_auc"] < done["best_auc"] < 1.0
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 2001


def test_a_target_names_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECMESH_NATS_TOKEN", "secret")
    monkeypatch.setenv("RECMESH_NATS_URL", "nats://other:4222")
    assert server_and_topic("nats://a:1,b:2/x.y", None) == (Server("nats://a:1,b:2", "secret"), "x.y")
    assert server_and_topic("kafka://a:9092/x", None) == (Server("a:9092", is_kafka=True), "x")
    assert server_and_topic("x", None) == (Server("nats://other:4222", "secret"), "x")
    assert "secret" not in repr(server_and_topic("x", None))
    for wrong in ("http://a/x", "nats:///x", "nats://a"):
        with pytest.raises(InvalidArgument):
            server_and_topic(wrong, None)


def test_without_a_mesh_there_is_no_nats(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="recmesh up"):
        mesh_nats(str(tmp_path))


def test_the_mesh_s_own_nats_is_found_with_its_token(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    values = {"id": "1", "config": {}, "ports": {"nats": 4333}, "components": [], "told": {}}
    (tmp_path / "run/round.json").write_text(json.dumps(values))
    found = mesh_nats(str(tmp_path))
    assert found.url == "nats://127.0.0.1:4333" and found.token


def test_a_mesh_with_another_nats_names_that(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    config = {"nats": {"url": "nats://far:4222", "token": "t"}}
    values = {"id": "1", "config": config, "ports": {}, "components": [], "told": {}}
    (tmp_path / "run/round.json").write_text(json.dumps(values))
    assert mesh_nats(str(tmp_path)) == Server("nats://far:4222", "t")


@pytest.mark.asyncio
async def test_the_page_of_a_join_is_seen_from_elsewhere_by_the_key_alone() -> None:
    with pytest.raises(InvalidArgument, match="RECMESH_API_KEY"):
        ops_of_join("ads", "0.0.0.0:0", dict, ServiceSettings(), readiness=str)
    settings = ServiceSettings(api_key=SecretStr("key"), metrics_key=SecretStr("scrape"))
    ops = ops_of_join("ads", "0.0.0.0:0", dict, settings, readiness=str)
    await ops.start()
    try:
        base = ops.address.replace("0.0.0.0", "127.0.0.1")
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client:
            found = {
                (path, key): (await client.get(path, headers={"authorization": f"Bearer {key}"})).status_code
                for path in ("/", "/metrics") for key in ("other", "key", "scrape")
            }
    finally:
        await ops.stop()
    assert found == {
        ("/", "other"): 401, ("/", "key"): 200, ("/", "scrape"): 401,
        ("/metrics", "other"): 401, ("/metrics", "key"): 200, ("/metrics", "scrape"): 200,
    }
