"""Schedules are a function of their seed, and hit every target at a gate."""

from collections import Counter

import pytest

from recmesh.chaos.schedule import (
    GATES,
    NEED_A_MOVE,
    NEED_A_ROLLBACK,
    REQUESTS,
    REWIND_S,
    SHIFTED,
    TARGETS,
    USURPED,
    schedule,
)
from recmesh.runtime import gates


@pytest.mark.parametrize(("kills", "at_gates"), [(7, 1), (21, 3), (200, 20)])
def test_every_target_is_killed_at_gates(kills: int, at_gates: int) -> None:
    strikes = schedule(kills, seed=5)
    assert sum(strike.how == "kill" for strike in strikes) == kills
    gated = Counter(strike.target for strike in strikes if strike.how == "kill" and strike.gate)
    assert gated == dict.fromkeys(TARGETS, at_gates)
    assert sum(strike.how == "stop" for strike in strikes) == kills // 7


def test_a_seed_gives_one_schedule() -> None:
    assert schedule(30, seed=1) == schedule(30, seed=1)
    assert schedule(30, seed=1) != schedule(30, seed=2)
    assert schedule(0, seed=1) == []


def test_gates_exist_and_belong_to_their_target() -> None:
    for target, names in GATES.items():
        assert all(name == REQUESTS or (name in gates.GATES and name.startswith(f"{target}.")) for name in names)
    assert {name for names in GATES.values() for name in names} - {REQUESTS} == set(gates.GATES)
    assert set(gates.GATES) >= NEED_A_ROLLBACK | NEED_A_MOVE


def test_a_gate_behind_a_rollback_names_who_dies_for_it() -> None:
    for strike in schedule(200, seed=3):
        assert bool(strike.trigger) == (strike.gate in NEED_A_ROLLBACK)
        assert strike.trigger != strike.who


def test_a_long_run_has_other_jobmasters_older_writes_and_other_times() -> None:
    strikes = schedule(200, seed=2)
    rare = [strike for strike in strikes if strike.is_rare]
    assert Counter(strike.how for strike in rare) == {"usurp": 7, "rewind": 7, "shift": 7, "hold": 7, "last": 1}
    assert strikes[-1].how == "last"
    assert {strike.gate for strike in rare if strike.how == "usurp"} == set(USURPED) <= set(gates.GATES)
    assert {strike.stop_s for strike in rare if strike.how == "rewind"} == set(REWIND_S)
    assert {strike.who for strike in rare if strike.how == "shift"} == set(SHIFTED)
    assert not any(strike.is_rare for strike in schedule(20, seed=2))
    assert {strike.how for strike in schedule(21, seed=2) if strike.is_rare} == {"usurp", "rewind", "shift", "last"}
