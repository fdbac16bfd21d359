"""Real processes through the real shim."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from recmesh.runtime.process import ProcessHandle, ProcessId, StartRecord, cgroup, find, launch, terminate_all
from recmesh.runtime.process.records import START_SUFFIX
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "run"
    yield folder
    for handle in find(folder):
        handle.kill()


def start(run_dir: Path, *command: str, name: str = "p", **options: Any) -> ProcessHandle:
    return launch(name, command, run_dir=run_dir, log_path=run_dir.parent / "log", **options)


def python(run_dir: Path, code: str, **options: Any) -> ProcessHandle:
    return start(run_dir, sys.executable, "-S", "-E", "-c", code, **options)


def test_the_exit_code_is_recorded(run_dir: Path) -> None:
    record = python(run_dir, "raise SystemExit(70)").wait(30)
    assert record and (record.exit_code, record.signal, record.reason) == (70, None, "exit code 70")
    assert not record.ok


def test_a_signal_is_recorded_by_name(run_dir: Path) -> None:
    handle = start(run_dir, "sleep", "600")
    handle.kill()
    record = handle.wait(30)
    assert record and (record.exit_code, record.signal, record.reason) == (None, 9, "killed by SIGKILL")


def test_terminate_asks_before_it_kills(run_dir: Path) -> None:
    polite = python(
        run_dir,
        "import os, signal; signal.signal(15, lambda *_: os._exit(3)); print(1, flush=True); signal.pause()",
    )
    until(lambda: "1" in (run_dir.parent / "log").read_text())
    record = polite.terminate(30)
    assert record and record.exit_code == 3


def test_terminate_kills_what_does_not_listen(run_dir: Path) -> None:
    deaf = python(
        run_dir, "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    )
    until(lambda: "deaf" in (run_dir.parent / "log").read_text())
    record = deaf.terminate(0.1)
    assert record and record.signal == signal.SIGKILL


def test_a_sigterm_to_the_shim_reaches_the_command(run_dir: Path) -> None:
    handle = start(run_dir, "sleep", "600")
    os.kill(handle.start.shim_pid, signal.SIGTERM)
    record = handle.wait(30)
    assert record and record.signal == signal.SIGTERM


def test_processes_outlive_their_starter_and_are_found_with_the_truth(run_dir: Path) -> None:
    code = (
        "import os, pathlib, sys; from recmesh.runtime.process import launch;"
        f"run = pathlib.Path({str(run_dir)!r});"
        "launch('lives', ['sleep', '600'], run_dir=run, log_path=run / 'log');"
        "launch('ends', ['sh', '-c', 'sleep 0.2; exit 5'], run_dir=run, log_path=run / 'log');"
        "os.kill(os.getpid(), 9)"
    )
    starter = subprocess.run([sys.executable, "-c", code], check=False)
    assert starter.returncode == -9
    ends, lives = find(run_dir)
    assert lives.alive() and lives.exit() is None
    record = ends.wait(30)
    assert record and record.exit_code == 5


def test_without_its_shim_the_end_is_seen_but_the_reason_is_unknown(run_dir: Path) -> None:
    handle = start(run_dir, "sleep", "600")
    os.kill(handle.start.shim_pid, signal.SIGKILL)
    assert handle.alive() and handle.exit() is None
    handle.kill()
    record = handle.wait(30)
    assert record and record.exit_code is None and record.signal is None and "unknown" in record.reason


def test_a_reused_pid_is_neither_alive_nor_signalled() -> None:
    mine = ProcessId.of(os.getpid())
    assert mine
    other = ProcessId(mine.pid, mine.start_ticks + 1, mine.boot_id)
    assert mine.alive() and not other.alive()
    assert not other.send(signal.SIGKILL)


def test_after_a_restart_of_the_machine_nothing_is_alive(run_dir: Path) -> None:
    handle = start(run_dir, "sleep", "600")
    path = run_dir / f"p{START_SUFFIX}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boot_id": "another"}))
    (found,) = find(run_dir)
    record = found.exit()
    assert not found.alive() and record and record.reason == "the machine was restarted"
    handle.kill()


def test_what_the_command_leaves_behind_is_killed(run_dir: Path) -> None:
    handle = start(run_dir, "sh", "-c", "sleep 600 & echo $! && exit 0")
    assert handle.wait(30)
    left = int((run_dir.parent / "log").read_text())
    until(lambda: ProcessId.of(left) is None)


def test_a_name_is_unique_among_the_living_only(run_dir: Path) -> None:
    first = start(run_dir, "sleep", "600")
    with pytest.raises(AlreadyExists):
        start(run_dir, "sleep", "600")
    with pytest.raises(FailedPrecondition):
        first.forget()
    first.terminate(10)
    second = start(run_dir, "sleep", "600")
    assert second.alive() and find(run_dir) == [second]


def test_what_cannot_be_executed_is_an_error_and_leaves_no_record(run_dir: Path) -> None:
    with pytest.raises(FailedPrecondition, match="No such file or directory: /no/such"):
        start(run_dir, "/no/such", memory_bytes=2**30)
    assert find(run_dir) == []


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden"])
def test_a_name_cannot_leave_the_run_folder(run_dir: Path, name: str) -> None:
    with pytest.raises(InvalidArgument):
        start(run_dir, "true", name=name)


def test_a_run_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match="cannot be started"):
        start(tmp_path / "file/run", "true")


def test_the_environment_is_given_and_never_written_down(run_dir: Path) -> None:
    env = {"SECRET": "s3cret", "PATH": os.environ["PATH"]}
    handle = start(run_dir, "sh", "-c", "echo got $SECRET", env=env)
    assert handle.wait(30)
    assert (run_dir.parent / "log").read_text() == "got s3cret\n"
    assert not any("s3cret" in path.read_text() for path in run_dir.iterdir())


def test_a_process_above_its_memory_limit_is_recorded_as_out_of_memory(run_dir: Path) -> None:
    handle = python(run_dir, HUNGRY, memory_bytes=64 << 20, cpu_cores=1)
    record = handle.wait(60)
    assert record and record.oom and record.reason == "OOMKilled: out of memory, limit 64 MiB"
    assert not any(Path(folder).exists() for folder in handle.start.cgroups)


HUNGRY = """
import time
kept = []
for _ in range(60):
    kept.append(bytearray(b"x") * (5 << 20))
    time.sleep(0.05)
"""


@pytest.fixture
def no_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    none_here = cgroup.Limits((), False, "control groups cannot be used here: none")
    monkeypatch.setattr(cgroup, "apply", lambda *_, **__: none_here)


@pytest.mark.usefixtures("no_cgroups")
def test_where_no_control_group_can_be_made_memory_is_watched_and_a_process_above_its_limit_killed(
    run_dir: Path,
) -> None:
    handle = python(run_dir, HUNGRY, memory_bytes=64 << 20)
    record = handle.wait(60)
    assert record and record.oom and record.signal == 9
    assert record.reason == "OOMKilled: out of memory, limit 64 MiB"
    assert not handle.limits_enforced and "looked at ten times a second" in handle.limits_reason


@pytest.mark.usefixtures("no_cgroups")
def test_the_watched_memory_is_that_of_the_whole_process_group(run_dir: Path) -> None:
    child = f"kept = b'x' * ({40 << 20}); time.sleep(60)"
    code = f"import os, time\nfor _ in range(2):\n    if not os.fork():\n        {child}\ntime.sleep(20)"
    record = python(run_dir, code, memory_bytes=64 << 20).wait(60)
    assert record and record.oom, record


@pytest.mark.usefixtures("no_cgroups")
def test_what_a_process_shares_with_its_children_counts_once(run_dir: Path) -> None:
    code = f"import os, time\nkept = b'x' * ({40 << 20})\nfor _ in range(3):\n    os.fork()\ntime.sleep(3)"
    record = python(run_dir, code, memory_bytes=64 << 20).wait(60)
    assert record and record.ok, record


@pytest.mark.usefixtures("no_cgroups")
def test_memory_that_is_reserved_and_not_touched_does_not_count(run_dir: Path) -> None:
    flags = "mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000"   # MAP_NORESERVE
    code = f"import mmap, time; kept = mmap.mmap(-1, 8 << 30, flags={flags}); time.sleep(1)"
    record = python(run_dir, code, memory_bytes=64 << 20).wait(60)
    assert record and record.ok


def test_a_quota_can_be_changed_while_the_process_runs(run_dir: Path) -> None:
    busy = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until:\n    pass\n"
    handle = python(run_dir, busy, cpu_cores=0.2)
    if not handle.limits_enforced:
        assert not handle.set_cpu(0.5)
        handle.kill()
        pytest.skip(f"control groups cannot be used here: {handle.limits_reason}")
    assert handle.set_cpu(0.05)
    texts = [(Path(folder) / name) for folder in handle.start.cgroups for name in ("cpu.max", "cpu.cfs_quota_us")]
    assert [path.read_text().split()[0] for path in texts if path.exists()] == ["5000"]
    handle.kill()
    assert handle.wait(30)
    assert not handle.set_cpu(0.5), "it has ended"


@pytest.mark.parametrize("watched", [False, True], ids=["control group", "watched"])
def test_a_memory_limit_can_be_raised_while_the_process_runs(
    run_dir: Path, watched: bool, request: pytest.FixtureRequest
) -> None:
    if watched:
        request.getfixturevalue("no_cgroups")
    raised = run_dir.parent / "raised"
    waiting = f"import os, time\nwhile not os.path.exists({str(raised)!r}):\n    time.sleep(0.01)\n"
    handle = python(run_dir, waiting + HUNGRY, memory_bytes=64 << 20)
    assert handle.raise_memory(1 << 30)
    raised.touch()
    record = handle.wait(60)
    assert record and record.ok, record
    assert not handle.raise_memory(2 << 30), "it has ended"


def test_all_are_terminated_within_one_grace(run_dir: Path) -> None:
    handles = [start(run_dir, "sleep", "600", name=f"p{n}") for n in range(3)]
    ended: list[str] = []
    terminate_all(handles, grace_s=10, on_exit=lambda handle: ended.append(handle.name))
    assert sorted(ended) == ["p0", "p1", "p2"] and not any(handle.alive() for handle in handles)


def test_usage_tells_memory_and_cpu_of_the_living(run_dir: Path) -> None:
    handle = start(run_dir, "sleep", "600")
    usage = handle.usage()
    assert usage and usage.memory_bytes > 0 and usage.threads == 1
    handle.terminate(10)
    assert handle.usage() is None


def test_a_record_from_a_newer_version_with_more_fields_is_read(run_dir: Path) -> None:
    handle = start(run_dir, "sleep", "600")
    path = run_dir / f"p{START_SUFFIX}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"a_new_field": 1}))
    assert StartRecord.load(path) == handle.start
