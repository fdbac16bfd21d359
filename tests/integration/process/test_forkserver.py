"""A real fork server of a program of a few lines: what it forks is as what is executed, and cannot be told from it."""

import array
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.process import ForkServer, ProcessHandle, ProcessId, find, launch, launcher
from recmesh.runtime.process.forkserver import _Orders
from tests.support.waiting import until

pytestmark = pytest.mark.integration

PROGRAM = '''
import json, os, random, signal, sys
import numpy
if len(sys.argv) > 1:
    from recmesh.runtime.process.forkserver import serve
    serve(int(sys.argv[1]))
print(json.dumps({
    "args": len(sys.argv), "cwd": os.getcwd(), "env": dict(os.environ), "path": sys.path[0], "group": os.getpgid(0),
    "pid": os.getpid(), "draws": [random.random(), float(numpy.random.rand())],
    "signals": [signal.getsignal(each) is signal.SIG_IGN for each in (signal.SIGPIPE, signal.SIGXFSZ)]
               + [signal.getsignal(signal.SIGINT) is signal.default_int_handler],
    "open": sorted(os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in os.listdir("/proc/self/fd")
                   if os.path.exists(f"/proc/self/fd/{n}")),
}), flush=True)
if os.environ.get("THEN") == "wait":
    signal.pause()
sys.exit(int(os.environ.get("THEN", "0")))
'''
ENV = {
    "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LC_ALL": "C.UTF-8",
    "RECMESH_TOKEN": "hidden",
}


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
        self.command = (sys.executable, str(folder / "program.py"))
        self.server = ForkServer(self.command, folder / "server")

    def warm_up(self, **env: str) -> None:
        self.server.warm_up(ENV | env)
        until(lambda: self.server.fits(ENV | env))

    def start(self, name: str = "p", **env: str) -> ProcessHandle:
        (self.folder / "work").mkdir(exist_ok=True)
        return launch(
            name, self.command, run_dir=self.folder / "run", log_path=self.folder / f"{name}.log", env=ENV | env,
            cwd=self.folder / "work", server=self.server,
        )

    def said(self, name: str = "p") -> dict[str, Any]:
        until(lambda: (self.folder / f"{name}.log").read_text().endswith("\n"))
        found: dict[str, Any] = json.loads((self.folder / f"{name}.log").read_text())
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for handle in find(tmp_path / "run"):
        handle.kill()
    made.server.close()


def test_a_fork_is_as_what_is_executed(world: World) -> None:
    executed = world.start("executed", THEN="7")
    world.warm_up()
    forked = world.start("forked", THEN="7")
    ends = [handle.wait(30) for handle in (executed, forked)]
    assert [(end.exit_code, end.reason) for end in ends if end] == [(7, "exit code 7")] * 2
    first, second = world.said("executed"), world.said("forked")
    assert (first["args"], second["args"]) == (1, 2), "one of them was forked by the server"
    for said, handle in ((first, executed), (second, forked)):
        assert (said["pid"], said["group"], said["cwd"]) == (handle.pid, handle.pid, str(world.folder / "work"))
    assert first["env"] == second["env"]
    assert first["signals"] == second["signals"] == [True] * 3, "a peer that leaves kills neither"
    files = [[Path(each).name.replace("forked", "executed") for each in said["open"]] for said in (first, second)]
    assert files[0] == files[1], "nothing of the server's is held open"


def test_forks_draw_numbers_of_their_own(world: World) -> None:
    world.warm_up()
    for name in "ab":
        end = world.start(name).wait(30)
        assert end is not None and end.ok
    one, other = world.said("a")["draws"], world.said("b")["draws"]
    assert one[0] != other[0] and one[1] != other[1]


def test_what_one_process_is_told_no_other_can_read(world: World) -> None:
    world.warm_up(API_KEY="of-one-job")
    assert world.server.pid is not None
    handle = world.start(API_KEY="of-another", THEN="wait")
    assert world.said()["env"]["API_KEY"] == "of-another"
    for pid in (world.server.pid, handle.pid):
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"PATH=" in environ and b"OMP_NUM_THREADS=" in environ and b"API_KEY" not in environ


def test_forks_outlive_their_server_and_how_they_end_is_known(world: World) -> None:
    world.warm_up()
    handle = world.start(THEN="wait")
    assert world.said()["args"] == 2
    world.server.close()
    assert handle.alive()
    handle.kill()
    end = handle.wait(30)
    assert end and (end.signal, end.reason) == (signal.SIGKILL, "killed by SIGKILL")


def test_what_acts_before_the_first_line_is_never_given_late(world: World) -> None:
    world.warm_up()
    assert not world.server.fits(ENV | {"OMP_NUM_THREADS": "4"})
    handle = world.start(PYTHONHASHSEED="1")
    assert handle.wait(30) and world.said()["args"] == 1, "it was executed"


def test_a_server_that_was_killed_costs_no_start(world: World) -> None:
    world.warm_up()
    pid = world.server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    end = world.start().wait(30)
    assert end is not None and end.ok and world.said()["args"] == 1
    assert not world.server.fits(ENV)


def test_what_a_server_that_stands_still_was_asked_for_is_started_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.warm_up()
    assert world.server.pid is not None
    server, close = ProcessId.of(world.server.pid), world.server.close

    def in_time_again() -> None:
        monkeypatch.setattr(launcher, "_START_TIMEOUT_S", 30.0)
        close()

    monkeypatch.setattr(launcher, "_START_TIMEOUT_S", 1.0)
    monkeypatch.setattr(world.server, "close", in_time_again)
    os.kill(world.server.pid, signal.SIGSTOP)
    try:
        end = world.start().wait(30)
        assert end is not None and end.ok and world.said()["args"] == 1, "it was executed"
        assert server is not None and not server.alive(), "it would fork a second one when it wakes"
    finally:
        if server is not None:
            server.send(signal.SIGCONT)


class Reads:
    """A connection whose reads bring these bytes and descriptors."""

    def __init__(self, *reads: tuple[bytes, int]) -> None:
        self.reads = list(reads)

    def recvmsg(self, *_: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        data, descriptor = self.reads.pop(0)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]).tobytes())]
        return data, rights if descriptor else [], 0, None


def test_each_order_has_the_descriptor_that_came_with_it() -> None:
    """What is read last of a long one may hold the first of the next, or all of it, and its descriptor."""
    reads = Reads((b'{"a":', 7), (b'1}\n{"b":', 8), (b'2}\n{"c":3}\n', 9))
    orders = _Orders(reads)     # type: ignore[arg-type]  # what it needs of a socket
    assert [orders.next() for _ in "abc"] == [({"a": 1}, 7), ({"b": 2}, 8), ({"c": 3}, 9)]
    assert not reads.reads


def test_a_starter_with_many_open_files_starts_more(world: World) -> None:
    world.warm_up()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2048:
        pytest.skip("no more than 1024 files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    files: list[int] = []
    try:
        while not files or files[-1] < 1100:
            files.append(os.open(os.devnull, os.O_RDONLY))
        for name, server in (("forked", world.server), ("executed", None)):
            end = launch(
                name, world.command, run_dir=world.folder / "run", log_path=world.folder / "log", env=ENV,
                cwd=world.folder, server=server,
            ).wait(30)
            assert end is not None and end.ok
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_server_that_cannot_begin_costs_no_start(tmp_path: Path) -> None:
    server = ForkServer((sys.executable, "-c", "import sys; sys.exit('no module of that name')"), tmp_path / "server")
    server.warm_up(ENV)
    until(lambda: "no module" in (tmp_path / "server" / "forkserver.log").read_text())
    handle = launch("p", ("true",), run_dir=tmp_path / "run", log_path=tmp_path / "log", env=ENV, server=server)
    end = handle.wait(30)
    assert end is not None and end.ok
    server.close()


def test_a_place_that_is_not_there_is_told_by_a_fork_too(world: World) -> None:
    world.warm_up()
    with pytest.raises(FailedPrecondition, match="nowhere"):
        launch("p", world.command, run_dir=world.folder / "run", log_path=world.folder / "log", env=ENV,
               cwd=world.folder / "nowhere", server=world.server)   # fmt: skip


def test_a_program_with_threads_is_not_forked(tmp_path: Path) -> None:
    code = (
        "import sys, threading; threading.Thread(target=threading.Event().wait, daemon=True).start();"
        "from recmesh.runtime.process.forkserver import serve; serve(int(sys.argv[1]))"
    )
    server = ForkServer((sys.executable, "-c", code), tmp_path)
    server.warm_up(ENV)
    until(lambda: "threads run before the first fork" in (tmp_path / "forkserver.log").read_text())
    assert not server.fits(ENV)
    server.close()


def test_a_server_ends_with_whoever_started_it(tmp_path: Path) -> None:
    made = World(tmp_path)
    code = (
        "import os, pathlib, sys; from recmesh.runtime.process import ForkServer;"
        f"server = ForkServer({made.command!r}, pathlib.Path({str(tmp_path)!r})); server.warm_up(dict(os.environ));"
        "print(server.pid); os.kill(os.getpid(), 9)"
    )
    starter = subprocess.run([sys.executable, "-u", "-c", code], env=ENV, capture_output=True, text=True, check=False)
    assert starter.returncode == -9
    pid = ProcessId.of(int(starter.stdout))
    until(lambda: pid is None or not pid.alive())
