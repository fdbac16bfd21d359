"""`recmesh up` and its supervisor over a small mesh: a real Valkey and two tiny services."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from recmesh.cli.mesh import exits, servers, state, stop
from recmesh.cli.mesh.component import Component
from recmesh.cli.mesh.config import MeshConfig
from recmesh.cli.mesh.home import Home
from recmesh.cli.mesh.start import UpOptions, UpResult, up
from recmesh.cli.mesh.table import Table
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, MeshError, ResourceExhausted, Unavailable
from recmesh.runtime.events import Event
from recmesh.runtime.events.catalog import JOB_SUBMITTED, JobSubmitted
from recmesh.runtime.process import ProcessHandle, find, launch
from tests.support.small_mesh import SMALL_MESH
from tests.support.waiting import until

pytestmark = pytest.mark.integration

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    folder = Home(tmp_path / "mesh")
    yield folder
    stop.down(folder)


def start(home: Home, *, env: dict[str, str] | None = None, **options: Any) -> UpResult:
    return up(home, ENV | (env or {}), small_options(**options))


def small_options(**options: Any) -> UpOptions:
    values: dict[str, Any] = {"table": SMALL_MESH, "timeout_s": 60.0, **options}
    return UpOptions(**values)


def behave(home: Home, name: str, how: str) -> None:
    folder = home.root / "behave"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(how)


def component(home: Home, name: str) -> ProcessHandle:
    return next(handle for handle in find(home.components) if handle.name == name)


def keeper(home: Home) -> ProcessHandle:
    found = stop.supervisor(home)
    assert found
    return found


def pids(home: Home) -> dict[str, int]:
    return {handle.name: handle.pid for handle in find(home.components) if handle.alive()}


def is_ready(home: Home) -> bool:
    return state.load(home.mesh_file).ready


def test_up_returns_when_everything_is_ready_and_down_leaves_nothing(home: Home) -> None:
    result = start(home)
    assert result.mesh.ready and not result.ran_already
    assert set(pids(home)) == {"valkey", "one", "two"}
    assert stop.down(home)
    assert stop.living(home) == [] and stop.supervisor(home) is None
    assert not stop.down(home)


def test_a_second_up_finds_it_running_and_restarts_nothing(home: Home) -> None:
    start(home)
    before = pids(home)
    result = start(home)
    assert result.ran_already and pids(home) == before


def test_ports_are_kept_over_restarts(home: Home) -> None:
    first = start(home).mesh.ports
    stop.down(home)
    assert start(home).mesh.ports == first


def test_a_disk_that_was_full_is_told_and_nats_takes_writes_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here: needs root and CAP_SYS_ADMIN")
    folder = Home(disk / "mesh")
    try:
        mesh = start(folder, table=Table(lambda config: ["nats"], only_nats)).mesh
        url, token = str(mesh.components["nats"].addresses["url"]), folder.secrets()["nats"]
        asyncio.run(fill_and_free(folder, url, token))
    finally:
        stop.down(folder)
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def only_nats(home: Home, config: MeshConfig, ports: Mapping[str, int], secrets: Mapping[str, str]) -> list[Component]:
    return [servers.nats(home.root / "nats", port=ports["nats"], token=secrets["nats"], name="small")]


async def fill_and_free(folder: Home, url: str, token: str) -> None:
    fill = folder.root / "fill"
    bus = Bus(url, "tests", token=token, room=folder.room)
    careless = Bus(url, "careless", token=token)  # it writes all the same, and breaks the stream
    await bus.start()
    await careless.start()
    kv = bus.kv("some")
    try:
        await kv.put("key", b"value")
        before = pids(folder)["nats"]
        with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 20)) == 1 << 20:
                pass
        with pytest.raises(ResourceExhausted, match=r"is full: \d+ MiB free, at least 4 MiB are needed"):
            await kv.put("key", b"value")
        with pytest.raises(ResourceExhausted, match=r"is full: \d+ MiB free, at least 32 MiB are needed"):
            await bus.publish(Event(JOB_SUBMITTED, "a", JobSubmitted(name="x")), timeout_s=2)
        with pytest.raises(Unavailable):
            await careless.publish(Event(JOB_SUBMITTED, "a", JobSubmitted(name="x" * 100_000)), timeout_s=2)
        fill.unlink()
        await asyncio.to_thread(until, lambda: pids(folder).get("nats", before) != before and is_ready(folder))
        assert await kv.put("key", b"another") > 0
    finally:
        await careless.stop()
        await bus.stop()


def test_what_dies_is_restarted_and_its_exit_written_down(home: Home) -> None:
    start(home)
    component(home, "one").kill()
    until(lambda: state.load(home.mesh_file).components["one"].restarts == 1 and is_ready(home))
    item = state.load(home.mesh_file).components["one"]
    assert item.last_exit == "killed by SIGKILL"
    assert [(end["name"], end["reason"]) for end in exits.read(home.exits_file, last=9)] == [
        ("one", "killed by SIGKILL")
    ]


def test_after_the_supervisors_death_up_adopts_the_living_and_restarts_the_dead(home: Home) -> None:
    start(home)
    before = pids(home)
    keeper(home).kill()
    until(lambda: stop.supervisor(home) is None)
    component(home, "two").kill()
    until(lambda: "two" not in pids(home))
    result = start(home)
    after = pids(home)
    assert result.mesh.ready
    assert (after["valkey"], after["one"]) == (before["valkey"], before["one"])
    assert after["two"] != before["two"]
    assert [end["name"] for end in exits.read(home.exits_file, last=9)] == ["two"]


def test_after_kill_9_of_everything_up_comes_back_with_what_valkey_acknowledged(home: Home) -> None:
    ports = start(home).mesh.ports
    password = home.secrets()["valkey"]
    assert ask_valkey(ports["valkey"], password, "SET key kept") == "+OK"
    everything = [keeper(home), *stop.living(home)]
    for handle in everything:
        os.kill(handle.start.shim_pid, signal.SIGKILL)
    for handle in everything:
        handle.kill()
    until(lambda: not any(handle.alive() for handle in everything))
    assert start(home).mesh.ports == ports
    assert ask_valkey(ports["valkey"], password, "GET key").endswith("kept")


def test_changed_settings_restart_only_what_they_concern(home: Home) -> None:
    start(home)
    before = pids(home)
    home.config_file.write_text('log_level = "debug"\n')
    result = start(home)
    after = pids(home)
    assert result.mesh.ready and not result.ran_already
    assert after["valkey"] == before["valkey"] and after["one"] != before["one"]
    assert (result.changed, result.restarted, result.kept) == (("log_level",), ("one", "two"), ())
    home.config_file.write_text('log_level = "debug"\nrestart_delay_s = 7.0\n')
    result = start(home)
    assert (result.changed, result.restarted, pids(home)) == (("restart_delay_s",), (), after)


def test_a_setting_that_an_earlier_up_was_told_otherwise_is_named(home: Home) -> None:
    start(home, listen="127.0.0.1")
    home.config_file.write_text('listen = "localhost"\n')
    assert start(home).kept == ("listen",)


def test_a_service_that_does_not_start_is_one_error_with_its_last_word(home: Home) -> None:
    behave(home, "two", "exit 78")
    with pytest.raises(Unavailable, match=r"two does not start: exit code 78: the last word of a service"):
        start(home)
    assert stop.living(home) == [] and stop.supervisor(home) is None


def test_a_service_that_never_gets_ready_is_named_at_the_timeout(home: Home) -> None:
    behave(home, "one", "unready")
    with pytest.raises(MeshError, match=r"not ready in time: one \(starting\)"):
        start(home, timeout_s=5.0)
    assert stop.living(home) == []


def test_a_failed_up_over_a_living_mesh_does_not_tear_it_down(home: Home) -> None:
    start(home)
    keeper(home).kill()
    until(lambda: stop.supervisor(home) is None)
    behave(home, "two", "exit 78")
    component(home, "two").kill()
    with pytest.raises(Unavailable):
        start(home)
    assert {"valkey", "one"} <= set(pids(home))


def test_a_fixed_port_that_is_taken_is_one_error_and_nothing_runs(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        home.root.mkdir()
        home.config_file.write_text(f'[ports.services]\n"one.http" = {port}\n')
        with pytest.raises(FailedPrecondition, match=rf"port {port} for one.http is taken"):
            start(home)
    assert stop.living(home) == []


def test_a_kept_port_that_a_stranger_took_is_replaced(home: Home) -> None:
    port = start(home).mesh.ports["one.http"]
    stop.down(home)
    with socket.create_server(("127.0.0.1", port)):
        assert start(home).mesh.ports["one.http"] != port


def test_a_data_folder_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match="cannot be written"):
        start(Home(tmp_path / "file/mesh"))


def test_a_wrong_configuration_names_its_fields_and_nothing_runs(home: Home) -> None:
    home.root.mkdir()
    home.config_file.write_text('log_level = "loud"\nlisen = "0.0.0.0"\n')
    with pytest.raises(InvalidArgument) as caught:
        start(home)
    assert {violation.path for violation in caught.value.violations} == {"log_level", "lisen"}


def test_beyond_loopback_without_an_api_key_is_refused(home: Home) -> None:
    with pytest.raises(FailedPrecondition, match="without an API key"):
        start(home, listen="0.0.0.0")
    assert stop.living(home) == []


def test_a_second_up_at_the_same_time_is_refused(home: Home) -> None:
    home.make()
    with home.lock("up", "held by the test"), pytest.raises(FailedPrecondition, match="at work"):
        start(home)


def test_an_external_valkey_is_used_and_not_started(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    port = start(other).mesh.ports["valkey"]
    try:
        home.root.mkdir()
        home.config_file.write_text(f'[valkey]\nurl = "redis://127.0.0.1:{port}"\n')
        assert set(start(home).mesh.components) == {"one", "two"}
    finally:
        stop.down(other)


def test_an_external_server_that_does_not_answer_is_one_error(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    home.root.mkdir()
    home.config_file.write_text(f'[valkey]\nurl = "redis://user:s3cret@127.0.0.1:{port}"\n')
    with pytest.raises(Unavailable, match=rf"Valkey at 127.0.0.1:{port} cannot be reached") as caught:
        start(home)
    assert "s3cret" not in str(caught.value)


def test_down_also_ends_the_roles_of_jobs(home: Home) -> None:
    start(home)
    log_path = home.logs / "jobs/j/worker-0.log"
    role = launch("worker-0-1", ["sleep", "600"], run_dir=home.run / "jobs/j", log_path=log_path)
    stop.down(home)
    record = role.exit()
    assert record and record.signal == signal.SIGTERM
    assert find(role.run_dir) == [role], "jobmaster must still find how it ended"


def test_down_works_when_the_supervisor_is_dead_or_suspended(home: Home) -> None:
    start(home)
    os.kill(keeper(home).pid, signal.SIGSTOP)
    stop.down(home)
    assert stop.living(home) == []
    start(home)
    keeper(home).kill()
    stop.down(home)
    assert stop.living(home) == []


def test_secrets_are_the_owners_alone_and_in_no_public_file(home: Home) -> None:
    start(home, env={"RECMESH_API_KEY": "k3y"})
    for path in (home.root / "secrets.json", home.run / "round.json", home.root / "valkey/valkey.conf"):
        assert path.stat().st_mode & 0o077 == 0
    hidden = [*home.secrets().values(), "k3y"]
    public = [home.mesh_file, *home.logs.iterdir(), *home.components.iterdir()]
    for path in public:
        text = path.read_text()
        assert not any(secret in text for secret in hidden), path


def test_what_the_command_line_said_holds_until_down(home: Home) -> None:
    start(home, env={"RECMESH_API_KEY": "k3y"})
    keeper(home).kill()
    until(lambda: stop.supervisor(home) is None)
    start(home)
    assert json.loads((home.run / "round.json").read_text())["config"]["api_key"] == "k3y"
    stop.down(home)
    start(home)
    assert "api_key" not in json.loads((home.run / "round.json").read_text())["config"]


def ask_valkey(port: int, password: str, command: str) -> str:
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(f"AUTH {password}\r\n".encode())
        assert connection.recv(100).startswith(b"+OK")
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(1000).decode().strip()
