"""A gate does nothing unless it is armed for this process, and then holds until it is let go."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from recmesh.runtime import gates
from tests.support.waiting import until


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    gates.install({gates.FOLDER: str(tmp_path)}, who="ps-0")
    yield tmp_path
    gates.install({}, who="")


def test_an_armed_gate_holds_one_thread_until_it_is_let_go(folder: Path) -> None:
    armed = gates.armed_file(folder, "ps.apply", "ps-0")
    armed.touch()
    went_on: list[int] = []

    def pass_through(number: int) -> None:
        gates.gate("ps.apply", ("batch", number))
        went_on.append(number)

    threads = [threading.Thread(target=pass_through, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(went_on) == 2, timeout_s=5.0)
    held, who = armed.with_suffix(".held"), armed.with_suffix(".who")
    assert held.exists() and not armed.exists()
    until(lambda: who.exists() and "batch" in who.read_text(), timeout_s=5.0)       # written after the gate is held
    held.unlink()
    until(lambda: len(went_on) == 3, timeout_s=5.0)


def test_gates_of_others_and_unarmed_ones_are_open(folder: Path) -> None:
    gates.armed_file(folder, "ps.apply", "ps-1").touch()
    gates.gate("ps.apply")
    gates.gate("ps.ack")


def test_without_a_chaos_run_nothing_holds(tmp_path: Path) -> None:
    gates.install({}, who="ps-0")
    gates.armed_file(tmp_path, "ps.apply", "ps-0").touch()
    gates.gate("ps.apply")


def test_unknown_gates_cannot_be_armed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no gate"):
        gates.armed_file(tmp_path, "ps.nowhere", "ps-0")
