"""A clock that is set makes nobody wait or hurry: it is followed slowly, and never backwards."""

import time
from pathlib import Path

import pytest

from recmesh.runtime import clock, gates
from recmesh.runtime.clock import SLEW, LeaseClock, SystemClock


class Machine:
    """Its clock can be set."""

    def __init__(self) -> None:
        self.elapsed, self.ahead = 100.0, 1_000_000.0

    def wall(self) -> float:
        return self.elapsed + self.ahead


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def followed(machine: Machine) -> SystemClock:
    made = SystemClock()
    made.follow(machine.wall, elapsed=lambda: machine.elapsed)
    return made


def test_it_tells_the_time_of_the_machine(machine: Machine, followed: SystemClock) -> None:
    assert followed.now() == machine.wall()
    machine.elapsed += 3_600.0
    assert followed.now() == machine.wall()


@pytest.mark.parametrize("jump_s", [3_600.0, -3_600.0])
def test_a_jump_is_made_up_for_slowly(machine: Machine, followed: SystemClock, jump_s: float) -> None:
    before = followed.now()
    machine.ahead += jump_s
    assert followed.now() == before
    machine.elapsed += 10.0
    assert followed.now() - before == pytest.approx(10.0 + 10.0 * SLEW * (1 if jump_s > 0 else -1))
    for _ in range(1_000):
        last, machine.elapsed = followed.now(), machine.elapsed + 100.0
        assert followed.now() > last
    assert followed.now() == pytest.approx(machine.wall())


def test_only_a_chaos_run_shifts_a_clock(tmp_path: Path) -> None:
    clock.shift_file(tmp_path, "jobmaster").write_text("3600")
    plain = clock.system_clock.now()
    clock.install({}, who="jobmaster")
    assert clock.system_clock.now() - plain < 60
    try:
        clock.install({gates.FOLDER: str(tmp_path)}, who="jobmaster")
        assert 3_600 <= clock.system_clock.now() - plain < 3_660
        clock.install({gates.FOLDER: str(tmp_path)}, who="ckptcache")
        assert clock.system_clock.now() - plain < 60
    finally:
        clock.shift_file(tmp_path, "jobmaster").unlink()
        clock.install({gates.FOLDER: str(tmp_path)}, who="jobmaster")


def test_a_lease_goes_on_while_the_machine_sleeps(machine: Machine, followed: SystemClock) -> None:
    leases = LeaseClock(followed, elapsed=lambda: machine.elapsed)
    began, awake = leases.monotonic(), followed.monotonic()
    machine.elapsed += 3_600.0
    assert leases.monotonic() - began == 3_600.0 and followed.monotonic() - awake < 3_600.0
    assert leases.now() == followed.now()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system does not tell the time that it slept")
def test_leases_are_counted_from_the_boot(followed: SystemClock) -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= LeaseClock(followed).monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)
