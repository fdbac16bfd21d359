"""Schedules are a function of their seed, and hit every target at a gate."""

from collections import Counter

import pytest

from recmesh.chaos.schedule import GATES, NEED_A_MOVE, NEED_A_ROLLBACK, REQUESTS, TARGETS, schedule
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
