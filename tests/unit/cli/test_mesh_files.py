"""Files of the data folder: configuration, ports, state, exits."""

import shutil
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest

from recmesh.cli.connect import connect
from recmesh.cli.mesh import config, exits, ports, servers, start, state, table
from recmesh.cli.mesh.component import Component, Probe
from recmesh.cli.mesh.home import Home, write_private
from recmesh.cli.mesh.rounds import Round
from recmesh.cli.mesh.rounds import load as load_round
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from recmesh.runtime.process import ExitRecord


def ended(name: str) -> ExitRecord:
    return ExitRecord(name, 1, 2, 3.0, 4.0, 0, None, False, "done")


def test_no_file_is_a_valid_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert config.check(config.read(path), path) == config.MeshConfig()


@pytest.mark.parametrize("listen", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_loopback_needs_no_key(tmp_path: Path, listen: str) -> None:
    assert not config.check({"listen": listen}, tmp_path).beyond_loopback


@pytest.mark.parametrize("listen", ["0.0.0.0", "::", "10.0.0.1"])
def test_beyond_loopback_a_key_is_needed(tmp_path: Path, listen: str) -> None:
    for key in ({}, {"api_key": ""}):
        with pytest.raises(FailedPrecondition, match="without an API key"):
            config.check({"listen": listen, **key}, tmp_path)
    assert config.check({"listen": listen, "api_key": "k"}, tmp_path).beyond_loopback


def test_wrong_toml_and_wrong_fields_are_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("listen = ")
    with pytest.raises(InvalidArgument, match=r"config.toml cannot be read"):
        config.read(path)
    with pytest.raises(InvalidArgument) as caught:
        config.check(tomllib.loads('[ports]\nnats = 0\n[nats]\nurls = ""'), path)
    assert {violation.path for violation in caught.value.violations} == {"ports.nats", "nats.urls"}


def test_secrets_do_not_show_in_the_configuration() -> None:
    values = {"api_key": "k3y", "nats": {"token": "t0ken"}, "database": {"url": "postgresql://u:p4ss@h/d"}}
    shown = repr(config.MeshConfig.parse(values))
    assert not any(secret in shown for secret in ("k3y", "t0ken", "p4ss"))


def test_ports_are_distinct_fixed_first_then_kept() -> None:
    found = ports.choose(["a", "b", "c", "d"], fixed={"a": 1}, kept={"a": 2, "b": 3}, seed="x")
    assert found["a"] == 1 and found["b"] == 3 and len(set(found.values())) == 4


def test_a_taken_port_is_passed_over() -> None:
    first = ports.choose(["a"], fixed={}, kept={}, seed="x")["a"]
    with socket.create_server(("127.0.0.1", first)):
        assert ports.choose(["a"], fixed={}, kept={}, seed="x")["a"] != first
        assert not ports.is_free("127.0.0.1", first)


def test_the_state_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    mesh = state.MeshState(
        ports={"a": 1}, components={"a": state.ComponentState(state="ready", pid=3)}, round="r"
    )
    mesh.save(tmp_path / "mesh.json")
    assert state.load(tmp_path / "mesh.json") == mesh and mesh.ready


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 99}', '{"format": 1, "components": {"a": 1}}']
)
def test_a_state_file_that_cannot_be_read_is_no_state(tmp_path: Path, content: str) -> None:
    (tmp_path / "mesh.json").write_text(content)
    assert state.load(tmp_path / "mesh.json") == state.MeshState()


def test_exits_are_bounded_and_keep_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "exits.jsonl"
    for number in range(exits.MAX_LINES + 1):
        exits.append(path, ended(f"p{number}"))
    found = exits.read(path, last=10_000)
    assert len(found) == exits.MAX_LINES // 2 and found[-1]["name"] == f"p{exits.MAX_LINES}"


def test_a_line_cut_off_by_a_crash_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "exits.jsonl"
    exits.append(path, ended("a"))
    path.write_text(path.read_text() + '{"name": "b"')
    assert [item["name"] for item in exits.read(path, last=5)] == ["a"]
    assert exits.read(tmp_path / "none", last=5) == []


def test_a_round_comes_back_with_its_components(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.make()
    component = Component(
        "a", 0, ("x",), Probe("nats", "h:1", password="p"), {"url": "u"}, {"E": "v"}, "/", {"f": "t"}
    )
    asked = Round("r", {"listen": "::1"}, {"a": 1}, [component], {})
    assert load_round(home) is None
    asked.save(home)
    assert load_round(home) == asked
    assert asked.components[0].tag == component.tag


def test_a_components_tag_changes_with_all_it_is_started_with() -> None:
    base: dict[str, Any] = {"name": "a", "stage": 0, "command": ("x",), "addresses": {}}
    base["probe"] = Probe("http", "h:1")
    variants: list[dict[str, Any]] = [
        {},
        {"command": ("y",)},
        {"env": {"E": "v"}},
        {"cwd": "/"},
        {"files": {"f": "t"}},
    ]
    tags = {Component(**{**base, **variant}).tag for variant in variants}
    assert len(tags) == len(variants)


def test_a_full_data_folder_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recmesh.cli.mesh.home.MIN_FREE_BYTES", 2**62)
    with pytest.raises(ResourceExhausted, match="is full"):
        Home(tmp_path / "mesh").make()


def test_private_files_are_the_owners_alone(tmp_path: Path) -> None:
    write_private(tmp_path / "f", "text")
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def real_components(tmp_path: Path, **values: object) -> dict[str, Component]:
    home, settings = Home(tmp_path), config.MeshConfig.parse(values)
    chosen = {name: 1000 + n for n, name in enumerate(table.address_names(settings))}
    secrets = {"mesh": "m", "nats": "n", "valkey": "v"}
    return {item.name: item for item in table.components(home, settings, chosen, secrets)}


def test_the_mesh_is_two_stores_and_six_services(tmp_path: Path) -> None:
    found = real_components(tmp_path)
    assert set(found) == {"nats", "valkey", *table.SERVICES}
    assert [found[name].stage for name in ("nats", "brain")] == [0, 1]
    assert "sync_interval: always" in "".join(found["nats"].files.values())
    assert "appendonly yes" in "".join(found["valkey"].files.values())


def test_external_stores_are_not_started_and_their_addresses_given(tmp_path: Path) -> None:
    found = real_components(
        tmp_path,
        nats={"url": "nats://far:4222", "token": "t"},
        valkey={"url": "redis://far:6379/0"},
        database={"url": "postgresql://u:p@far/d"},
    )
    assert set(found) == set(table.SERVICES)
    env = found["brain"].env
    assert env["RECMESH_NATS_URL"] == "nats://far:4222" and env["RECMESH_NATS_TOKEN"] == "t"
    assert env["RECMESH_VALKEY_URL"] == "redis://far:6379/0"
    assert env["RECMESH_DATABASE_URL"] == "postgresql://u:p@far/d"


def test_only_gateway_listens_beyond_loopback_and_only_it_gets_the_key(tmp_path: Path) -> None:
    found = real_components(tmp_path, listen="0.0.0.0", api_key="k")
    open_ones = {
        name for name, item in found.items() if "0.0.0.0" in item.env.get("RECMESH_HTTP_ADDRESS", "")
    }
    assert open_ones == {"gateway"}
    keyed = {name for name, item in found.items() if item.env.get("RECMESH_PUBLIC_API_KEY")}
    assert keyed == {"gateway"}
    assert found["gateway"].addresses["http"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize("asks", ["RECMESH_GATEWAY_JWKS_FILE", "RECMESH_GATEWAY_KEYS_FILE"])
def test_where_callers_show_keys_or_tokens_of_a_file_the_folder_s_owner_has_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    home = Home(tmp_path)
    home.make()
    found = real_components(tmp_path, env={asks: "/somewhere"})
    key = found["gateway"].env["RECMESH_PUBLIC_API_KEY"]
    again = real_components(tmp_path, env={asks: "/elsewhere"})["gateway"].env
    assert len(key) == 64 and again["RECMESH_PUBLIC_API_KEY"] == key
    assert not any("RECMESH_PUBLIC_API_KEY" in item.env for name, item in found.items() if name != "gateway")
    Round("r", {}, {}, list(found.values()), {}).save(home)
    ready = state.ComponentState(state="ready", addresses={"http": "http://127.0.0.1:1"})
    state.MeshState(components={"gateway": ready}, round="r").save(home.mesh_file)
    for given, shown in (({}, key), ({"RECMESH_API_KEY": ""}, key), ({"RECMESH_API_KEY": "a.token.of"}, "a.token.of")):
        monkeypatch.delenv("RECMESH_API_KEY", raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        with connect(str(tmp_path)) as mesh:
            assert mesh._http.headers["Authorization"] == f"Bearer {shown}"


def test_where_nobody_is_asked_for_a_key_there_is_none(tmp_path: Path) -> None:
    assert "RECMESH_PUBLIC_API_KEY" not in real_components(tmp_path)["gateway"].env
    named = real_components(tmp_path, api_key="k", env={"RECMESH_GATEWAY_JWKS_FILE": "/x"})
    assert named["gateway"].env["RECMESH_PUBLIC_API_KEY"] == "k"
    own = real_components(tmp_path, env={"RECMESH_GATEWAY_JWKS_FILE": "/x", "RECMESH_PUBLIC_API_KEY": "own"})
    assert Round("r", {}, {}, list(own.values()), {}).gateway_key == "own"


def test_addresses_that_are_printed_hold_no_secret(tmp_path: Path) -> None:
    home = Home(tmp_path)
    settings = config.MeshConfig()
    chosen = dict.fromkeys(table.address_names(settings), 1)
    secrets = {"mesh": "s3cret", "nats": "s3cret", "valkey": "s3cret"}
    for item in table.components(home, settings, chosen, secrets):
        assert "s3cret" not in str(item.addresses) and "s3cret" not in repr(item)
        assert "s3cret" not in " ".join(item.command)


@pytest.mark.parametrize(
    "values",
    [
        {"database": {"url": "postgresql://user:p4ss@127.0.0.1/x"}},
        {"database": {"url": "postgresql://user:p4ss/word@127.0.0.1/x"}},
        {"nats": {"url": "nats://p4ss@127.0.0.1"}},
        {"valkey": {"url": "redis://:p4ss@127.0.0.1"}},
    ],
)
def test_an_external_server_that_is_away_is_told_without_its_password(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises((Unavailable, InvalidArgument)) as caught:
        start._check_external(config.MeshConfig.parse(values))
    assert "p4ss" not in str(caught.value)


def test_an_address_of_another_machine_is_told_before_anything_starts() -> None:
    start.check_listen("127.0.0.1")
    with pytest.raises(InvalidArgument, match=r"192\.0\.2\.7 is not an address of this machine"):
        start.check_listen("192.0.2.7")


def test_what_a_process_logged_last_is_told_with_its_reason() -> None:
    line = '{"level": "error", "message": "bus cannot start", "error": "NATS is too full"}'
    assert start._message(line) == "bus cannot start: NATS is too full"
    assert start._message("plain words") == "plain words"


def test_streams_are_promised_a_share_of_the_disk_whatever_is_free(tmp_path: Path) -> None:
    made = servers.nats(tmp_path / "nats", port=1, token="t", name="n")
    megabytes = int(shutil.disk_usage(tmp_path).total * servers.STORE_SHARE) >> 20
    assert f"max_file_store: {megabytes}MB" in next(iter(made.files.values()))
