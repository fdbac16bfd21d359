"""Listings by processes beside: the same files, whatever becomes of the processes, and none of them stays."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from recmesh.data import listing_processes
from recmesh.data.files import FileInfo, tag_of
from recmesh.data.listing import Lister
from recmesh.data.listing_processes import ListingProcesses, written
from recmesh.runtime.errors import MeshError

PATIENCE_S = 60.0
LISTS = """
import sys, time
from recmesh.data.listing import Lister
from recmesh.data.listing_processes import ListingProcesses
beside = ListingProcesses(load=lambda: 0.0)
lister = Lister(many_files=1, processes=beside)
for folder in sys.argv[1:]:
    lister.files(folder + "/*")
print(*beside.pids(), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[ListingProcesses]:
    made = ListingProcesses(most=2, load=lambda: 0.0)
    yield made
    made.close()
    assert not made.pids()


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    found = []
    for number in range(6):
        folder = tmp_path / f"{number}"
        (folder / "inside").mkdir(parents=True)
        for name in ("b", "ä", "a"):
            (folder / name).write_text("x" * number)
        found.append(str(folder))
    return found


def told(lister: Lister, pattern: str) -> list[FileInfo]:
    files = lister.files(pattern)
    return files.infos(0, len(files))


def gone(pid: int, *, within_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + within_s
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


def test_processes_tell_the_same_files_as_a_listing_here(folders: list[str], processes: ListingProcesses) -> None:
    far, here = Lister(processes=processes, many_files=1), Lister()
    asked = Counting(processes)
    far.processes = asked
    patterns = [*(f"{folder}/*" for folder in folders), f"{Path(folders[0]).parent}/*/a", f"{folders[0]}-none/*"]
    threads = [threading.Thread(target=far.files, args=[pattern]) for pattern in patterns[1:]]
    far.files(patterns[0])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [told(far, pattern) for pattern in patterns] == [told(here, pattern) for pattern in patterns]
    assert asked.answered == len(patterns) - 1 and 1 <= len(processes.pids()) <= 2
    assert here.calls == far.calls


class Counting(ListingProcesses):
    """How many listings processes beside have made."""

    def __init__(self, real: ListingProcesses) -> None:
        super().__init__()
        self.real, self.answered = real, 0

    def ask(self, *given: Any, **more: Any) -> Any:
        found = self.real.ask(*given, **more)
        self.answered += found is not None
        return found


def test_a_file_system_of_this_process_alone_is_listed_here(processes: ListingProcesses) -> None:
    memory = fsspec.filesystem("memory")
    for folder in "ab":
        memory.pipe(f"/only-here/{folder}/x", b"1")
    asked = Counting(processes)
    lister = Lister(processes=asked, many_files=1)
    assert [len(lister.files(f"memory://only-here/{folder}/*")) for folder in "ab"] == [1, 1]
    assert asked.answered == 0
    memory.rm("/only-here", recursive=True)


def test_few_files_start_no_process(folders: list[str]) -> None:
    none = ListingProcesses()
    lister = Lister(processes=none)
    for folder in folders:
        lister.files(f"{folder}/*")
    assert not none.pids()


def test_a_machine_without_a_core_to_spare_starts_none(folders: list[str]) -> None:
    busy = ListingProcesses(load=lambda: 2.0 * len(os.sched_getaffinity(0)) + 1)
    lister = Lister(processes=busy, many_files=1)
    for folder in folders:
        assert len(lister.files(f"{folder}/*")) == 3
    assert not busy.pids()


def test_a_process_that_is_killed_is_replaced_and_nothing_is_lost(folders: list[str]) -> None:
    own = ListingProcesses(most=1, idle_s=600.0, load=lambda: 0.0)
    asked = Counting(own)
    lister = Lister(processes=asked, many_files=1)
    for folder in folders[:2]:
        lister.files(f"{folder}/*")
    (first,) = own.pids()
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    assert len(lister.files(f"{folders[2]}/*")) == 3 and asked.answered == 1
    assert len(lister.files(f"{folders[3]}/*")) == 3 and asked.answered == 2
    (second,) = own.pids()
    assert second != first
    own.close()


def test_a_process_that_nobody_asks_any_more_ends() -> None:
    own = ListingProcesses(most=1, idle_s=0.05, load=lambda: 0.0)
    process = own._taken()                       # as long as it is, nobody ends it
    assert process is not None and not gone(process.pid, within_s=0.0)
    own._give_back(process)
    assert gone(process.pid) and not own.pids()
    own.close()


def test_whoever_waits_for_a_process_gets_the_one_that_comes_free(folders: list[str]) -> None:
    """And not the thread that ends idle ones, which waits, too."""
    own = ListingProcesses(most=1, load=lambda: 0.0)
    path = f"{folders[1]}/a"
    info = fsspec.filesystem("file").info(path)
    witness = FileInfo(path, info["size"], tag_of(fsspec.filesystem("file"), path, info))
    fs = written(fsspec.filesystem("file"))
    assert fs is not None
    taken = own._taken()
    assert taken is not None
    found: list[Any] = []
    waiter = threading.Thread(
        target=lambda: found.append(own.ask(fs, "folder", folders[1], witness=witness)), daemon=True
    )
    waiter.start()
    while len(own._changed._waiters) < 2:       # type: ignore[attr-defined]  # of threading.Condition
        time.sleep(0.001)
    own._give_back(taken)
    waiter.join(PATIENCE_S)
    assert found and found[0] is not None and len(found[0]) == 3
    own.close()


def test_a_process_whose_asker_was_interrupted_is_ended(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer may still come, and must not be taken for that to the next question."""
    own = ListingProcesses(most=1, load=lambda: 0.0)
    lister = Lister(processes=own, many_files=1)
    for folder in folders[:2]:
        lister.files(f"{folder}/*")
    (pid,) = own.pids()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(listing_processes._Process, "_read", interrupted)
        lister.files(f"{folders[2]}/*")
    assert gone(pid) and len(lister.files(f"{folders[2]}/*")) == 3
    assert own.pids() and own.pids() != [pid]
    own.close()


def test_a_forked_process_has_none_of_its_parent_s() -> None:
    """Two that ask one process would take each other's answers; and a lock may be held at that moment, for ever."""
    beside = listing_processes.beside
    taken = beside._taken()
    assert taken is not None
    beside._give_back(taken)
    with beside._changed:
        child = os.fork()
        if not child:
            os._exit(bool(beside.pids()) + 2 * beside._count)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert beside.pids() == [taken.pid]


def test_an_error_is_told_as_if_it_had_been_listed_here(folders: list[str], processes: ListingProcesses) -> None:
    lister = Lister(processes=processes, many_files=1)
    lister.files(f"{folders[0]}/*")
    with pytest.raises(MeshError, match="too long"):
        lister.files(f"{folders[0]}/{'x' * 300}/*")


def test_processes_end_with_who_started_them(folders: list[str]) -> None:
    parent = subprocess.Popen([sys.executable, "-c", LISTS, *folders], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert pids and all(map(gone, pids))
