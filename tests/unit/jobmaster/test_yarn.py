"""YARN's services, ends and room: what is pure of its controller, and its notes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from recmesh.runtime.yarn.board import Board
from recmesh.runtime.yarn.client import log_of
from recmesh.runtime.yarn.container import application_of
from recmesh.runtime.yarn.errors import error_of
from recmesh.spec.job import TrainingJob
from services.jobmaster.__main__ import check, role_environment
from services.jobmaster.cluster import Amounts, StartOrder
from services.jobmaster.cluster.yarn.known import Instance, KnownServices, Service
from services.jobmaster.cluster.yarn.reading import end_of, end_without_note, note_of
from services.jobmaster.cluster.yarn.room import free
from services.jobmaster.cluster.yarn.service import (
    KEEPER,
    YarnSettings,
    components,
    fitting,
    read_components,
    refusals,
    service_name,
    service_of,
)
from services.jobmaster.config import JobmasterSettings
from services.jobmaster.domain.exits import Exit

GIB = 1 << 30
SETTINGS = YarnSettings(python="/opt/venv/bin/python")
SIZES = {"worker": Amounts(1.5, 2 * GIB), "ps": Amounts(0, GIB), "data": Amounts(0, 0), "evaluator": Amounts(1, GIB, 1)}


def order(role: str = "worker", **more: Any) -> StartOrder:
    return StartOrder("ads", f"{role}-0-1", role, 0, {}, **more)


def test_a_service_has_a_component_for_each_role_and_size_and_no_container_yet() -> None:
    made = service_of("ads", components(SIZES, SETTINGS), folder="/board/a b", settings=SETTINGS)
    assert made["name"] == "recmesh-ads"
    by_name = {each["name"]: each for each in made["components"]}
    assert {each["number_of_containers"] for each in by_name.values()} == {0}
    assert {name for name in by_name if name.startswith("ps")} == {
        "ps", "ps-m2", "ps-m4", "ps-c2", "ps-c2-m2", "ps-c2-m4", "ps-c4", "ps-c4-m2", "ps-c4-m4",
    }
    assert by_name["worker"]["resource"] == {"cpus": 2, "memory": "2048"}
    assert by_name["worker-c2-m4"]["resource"] == {"cpus": 4, "memory": "8192"}
    assert by_name["data"]["resource"] == {"cpus": 1, "memory": "1024"}
    assert by_name["evaluator"]["resource"]["additional"] == {"yarn.io/gpu": {"value": 1, "unit": ""}}
    assert by_name["finisher"]["resource"] == by_name["worker"]["resource"]     # nothing was said of it
    assert by_name["worker"]["restart_policy"] == "NEVER"
    assert by_name[KEEPER]["restart_policy"] == "ALWAYS"
    assert by_name["worker"]["launch_command"] == (
        "exec /opt/venv/bin/python -m recmesh.runtime.yarn.container '/board/a b' recmesh-ads "
        "${COMPONENT_INSTANCE_NAME}"
    )
    assert read_components(made) == components(SIZES, SETTINGS)


def test_an_order_gets_the_smallest_component_that_has_what_it_asks_for() -> None:
    made = components(SIZES, SETTINGS)
    assert fitting(order(cpu=1.5, memory_bytes=2 * GIB), made, SETTINGS).name == "worker"
    assert fitting(order(cpu=0.5, memory_bytes=GIB), made, SETTINGS).name == "worker"
    assert fitting(order(cpu=1.5, memory_bytes=2 * GIB + 1), made, SETTINGS).name == "worker-m2"
    assert fitting(order(cpu=2.5, memory_bytes=6 * GIB), made, SETTINGS).name == "worker-c2-m4"
    assert fitting(order("evaluator", cpu=1, memory_bytes=GIB, gpu=1), made, SETTINGS).name == "evaluator"
    with pytest.raises(FailedPrecondition, match=r"worker of 2 vcores, 8193 MiB and 0 GPUs: .* up to 4 times"):
        fitting(order(cpu=2, memory_bytes=8 * GIB + 1), made, SETTINGS)
    with pytest.raises(FailedPrecondition):     # it began without
        fitting(order(cpu=1, memory_bytes=GIB, gpu=1), made, SETTINGS)


def test_a_long_name_is_cut_and_stays_its_jobs_own() -> None:
    long = "a" * 60
    names = {service_name(long + end, SETTINGS) for end in ("b", "c")}
    assert {len(name) for name in names} == {63} and len(names) == 2
    assert service_name("ads", SETTINGS) == "recmesh-ads"


def test_what_containers_cannot_have_is_refused_at_submit() -> None:
    spec = {
        "name": "ads", "model": {"zoo": "wide_deep"},
        "data": {"source": {"files": ["a.parquet"]}, "features": [{"name": "user"}]},
        "roles": {
            "worker": {"gpu": 1, "gpu_kind": "a100"}, "ps": {"pod_template": {"spec": {"nodeSelector": {"a": "b"}}}},
        },
    }
    assert [item.path for item in refusals(TrainingJob.parse(spec), SETTINGS)] == [
        "roles.ps.pod_template", "roles.worker.gpu_kind",
    ]


@pytest.mark.parametrize(("told", "asked", "lost", "expected"), [
    ({"exitCode": -104, "diagnostics": "beyond the 'PHYSICAL'\n memory limit"}, 0, False,
     Exit(signal=9, oom=True, reason="killed by YARN: out of memory: beyond the 'PHYSICAL' memory limit")),
    ({"exitCode": -104}, 9, False, Exit(signal=9, oom=True, reason="killed by YARN: out of memory: ")),
    ({"exitCode": 137}, 9, False, Exit(signal=9, reason="ended by SIGKILL, as it was told")),
    ({"exitCode": -106}, 15, False, Exit(signal=15, reason="ended by SIGTERM, as it was told")),
    ({"exitCode": -102, "diagnostics": "for prod"}, 0, False, Exit(cause="preempted", reason="preempted: for prod")),
    ({"exitCode": -101}, 0, False, Exit(cause="node lost", reason="node lost")),
    ({"exitCode": 137}, 0, False, Exit(signal=9, reason="killed by SIGKILL")),
    ({"exitCode": 2, "diagnostics": "no python"}, 0, False, Exit(code=2, last_line="no python")),
    (None, 0, True, Exit(cause="node lost", reason="node lost: YARN does not hear of it")),
    (None, 0, False, Exit(cause="deleted", reason="its container is gone, and its node does not tell how")),
])  # fmt: skip
def test_ends_that_a_container_could_not_note_are_told_apart(
    told: dict[str, Any] | None, asked: int, lost: bool, expected: Exit
) -> None:
    end = end_without_note(told, asked=asked, node_lost=lost)
    assert end == expected
    assert end_of(note_of(end)).cause == end.cause and end_of(note_of(end)).oom == end.oom


def test_a_noted_end_has_its_batch_and_its_last_line() -> None:
    end = end_of({"code": 1, "signal": None, "last_line": "no such column", "in_hand": "3 10 20\n"})
    assert end == Exit(code=1, last_line="no such column", knows_batch=True, batch=(3, 10, 20))
    assert end_of({"signal": 11}).reason == "killed by SIGSEGV"
    assert end_of({"signal": 200, "cause": "bored"}) == Exit(signal=200, reason="killed by signal 200")


def test_room_is_what_running_nodes_have_free() -> None:
    def node(state: str, cores: int, memory: int, gpus: int) -> dict[str, Any]:
        others = [{"name": "memory-mb", "value": memory}, {"name": "yarn.io/gpu", "value": gpus}]
        return {"state": state, "availableVirtualCores": cores, "availMemoryMB": memory,
                "availableResource": {"resourceInformations": {"resourceInformation": others}}}  # fmt: skip

    nodes = [node("RUNNING", 3, 4096, 2), node("LOST", 8, 8192, 4), node("RUNNING", -1, -5, 1), {"state": "RUNNING"}]
    found = free(nodes, {"gpu": "yarn.io/gpu", "a100": "yarn.io/gpu"})
    assert (found.cpu, found.memory_bytes, found.gpus) == (3.0, 4 * GIB, {"gpu": 3.0, "a100": 3.0})


def test_counts_are_of_instances_that_yarn_was_not_told_to_take_away() -> None:
    service = Service("ads", "recmesh-ads", "application_1_1")
    for number in range(3):
        each = Instance("ads", f"worker-{number}-1", service.name, service.application, "worker", number)
        service.instances[each.instance] = each
    assert (service.following_number("worker"), service.wanted("worker"), service.wanted("ps")) == (3, 3, 0)
    service.dropped |= {"worker-0", "worker-7"}
    assert (service.following_number("worker"), service.wanted("worker")) == (3, 2)


def test_the_first_truth_of_an_end_stays_and_is_told_once() -> None:
    known, told = KnownServices(), list[str]()
    known.on_change = told.append
    service = known.add(Service("ads", "recmesh-ads", "application_1_1"))
    instance = Instance("ads", "worker-0-1", service.name, service.application, "worker", 0)
    service.instances[instance.instance] = instance
    assert known.current("ads") is service and known.jobs() == ["ads"]
    known.ended(instance, Exit(code=0))
    known.ended(instance, Exit(signal=9))
    assert (instance.view().exit, told) == (Exit(code=0), ["ads"])
    service.over = True
    assert known.current("ads") is None
    again = known.add(Service("ads", "recmesh-ads", "application_1_2"))
    assert known.current("ads") is again


@pytest.mark.parametrize(("status", "body", "kind", "words"), [
    (500, b'{"diagnostics": "Service Instance dir already exists: x"}', AlreadyExists, "already exists"),
    (400, b'{"diagnostics": "x is at ACCEPTED state, flex can only be invoked when service is running"}',
     FailedPrecondition, "create: x is at ACCEPTED"),
    (400, b'{"diagnostics": "Service x doesn\'t exist"}', NotFound, "doesn't exist"),
    (404, b'{"RemoteException": {"message": "app with id 1 not found"}}', NotFound, "app with id 1 not found"),
    (503, b"<html>away</html>", Unavailable, "away"),
    (418, b"", FailedPrecondition, "HTTP 418"),
])  # fmt: skip
def test_refusals_of_yarn_keep_its_own_words(status: int, body: bytes, kind: type, words: str) -> None:
    error = error_of(status, body, doing="create")
    assert type(error) is kind and words in error.message


def test_a_log_is_told_without_its_nodes_own_words() -> None:
    told = (
        "Container: container_1_1_01_2 on a:1\nLogType:stdout.txt\nLogLength:6\nLogContents:\nhello\nLogContents:\n"
        "End of LogType:stdout.txt.This log file belongs to a running container\n****\n\n"
    )
    assert log_of(told, "stdout.txt") == "hello\nLogContents:\n"
    assert log_of("", "stdout.txt") == ""


def test_containers_of_a_resourcemanager_that_was_started_again_have_an_epoch() -> None:
    assert application_of("container_1700_0001_01_000002") == "application_1700_0001"
    assert application_of("container_e17_1700_0001_01_000002") == "application_1700_0001"


# -- what a container runs ------------------------------------------------------------------------------


def run(board: Board, folder: Path, instance: str = "worker-0") -> int:
    env = os.environ | {"CONTAINER_ID": "container_1_1_01_000002", "NM_HOST": "10.0.0.7", "NM_HTTP_PORT": "8042"}
    command = [sys.executable, "-m", "recmesh.runtime.yarn.container", board.uri, "recmesh-ads", instance]
    with (folder / "stdout.txt").open("wb") as output:
        return subprocess.run(command, stdout=output, env=env, cwd=folder, timeout=60).returncode


def test_a_container_runs_its_order_once_and_notes_the_end(tmp_path: Path) -> None:
    board, place = Board(str(tmp_path / "board")), ("recmesh-ads", "application_1_1", "worker-0")
    script = (
        'echo at $RECMESH_PS_ADDRESS >> "$HOME/ran"; printf "3 10 20\\n" > "$RECMESH_IN_HAND"; '
        "echo $WORD; echo no such column >&2; exit 64"
    )
    board.write(*place, "order", {"name": "worker-0-1", "command": ["sh", "-c", script], "env": {"WORD": "hello"}})
    assert run(board, tmp_path) == 64
    assert (tmp_path / "ran").read_text() == "at 10.0.0.7:0\n"
    assert board.read(*place, "begun") == {"container": "container_1_1_01_000002", "node": "10.0.0.7:8042"}
    assert board.notes(*place[:2]) == {"worker-0": {"order", "begun", "end"}}
    note = board.read(*place, "end") or {}
    assert note["tail"] == "hello\nno such column\n"
    assert end_of(note) == Exit(code=64, last_line="no such column", knows_batch=True, batch=(3, 10, 20))
    assert run(board, tmp_path) == 0        # YARN starts one again for it
    assert (tmp_path / "ran").read_text() == "at 10.0.0.7:0\n"


def test_a_container_that_is_not_wanted_any_more_runs_nothing(tmp_path: Path) -> None:
    board, place = Board(str(tmp_path / "board")), ("recmesh-ads", "application_1_1", "worker-0")
    board.write(*place, "order", {"name": "worker-0-1", "command": ["touch", str(tmp_path / "ran")], "env": {}})
    board.write(*place, "stop", {"signal": 9})
    assert run(board, tmp_path) == 0
    assert not (tmp_path / "ran").exists() and not board.has(*place, "end")


def test_a_command_that_cannot_be_started_is_an_end_with_its_reason(tmp_path: Path) -> None:
    board, place = Board(str(tmp_path / "board")), ("recmesh-ads", "application_1_1", "worker-0")
    board.write(*place, "order", {"name": "worker-0-1", "command": ["/no/python"], "env": {}})
    assert run(board, tmp_path) == 127
    end = end_of(board.read(*place, "end") or {})
    assert end.code == 127 and end.last_line.startswith("/no/python cannot be started: ")


def test_notes_are_for_their_owner_alone_and_go_with_their_service(tmp_path: Path) -> None:
    board, place = Board(str(tmp_path / "board")), ("recmesh-ads", "application_1_1", "worker-0")
    assert (board.services(), board.notes(*place[:2]), board.read(*place, "end")) == ({}, {}, None)
    board.write(*place, "order", {"env": {"RECMESH_TOKEN": "secret"}})
    path = tmp_path / "board" / "recmesh-ads" / "application_1_1" / "worker-0.order"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path.with_name("worker-0.end").write_text("half of")
    assert board.read(*place, "end") is None
    assert board.services() == {"recmesh-ads": ["application_1_1"]}
    board.remove("recmesh-ads")
    board.remove("recmesh-ads")
    assert board.services() == {}


def test_yarn_needs_its_address_and_one_that_containers_reach() -> None:
    env = {"RECMESH_JOBMASTER_CLUSTER": "yarn", "PATH": "/bin", "RECMESH_LOG_LEVEL": "info", "RECMESH_API_KEY": "k"}
    settings = JobmasterSettings.from_env(env, "RECMESH_")
    with pytest.raises(InvalidArgument) as raised:
        check(settings)
    assert [item.path for item in raised.value.violations] == ["RECMESH_YARN_URL", "RECMESH_JOBMASTER_RPC"]
    assert role_environment(env, settings).keys() == {"RECMESH_LOG_LEVEL", "RECMESH_TOKEN"}
