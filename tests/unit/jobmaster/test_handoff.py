"""How large handoffs of slots become, and how long they may take."""

from hypothesis import given
from hypothesis import strategies as st

from services.jobmaster.domain.handoff import LONGEST, Handoff

MOST, USUAL_S, SLOTS = 512, 3.0, 2048


def handoffs(fixed_s: float, per_slot_s: float, *, tries: int = 1000) -> tuple[int, int]:
    """How many were tried until all slots had gone, and how many of them failed."""
    now, left, failures = Handoff.first(MOST, USUAL_S), SLOTS, 0
    for number in range(tries):
        if not left:
            return number, failures
        slots = min(now.slots, left)
        pause_s = fixed_s + per_slot_s * slots
        if pause_s > now.freeze_s:
            now, failures = now.failed(slots), failures + 1
        else:
            now, left = now.done(pause_s), left - slots
    raise AssertionError(f"{left} slots are left: {now}")


def test_an_easy_handoff_stays_as_large_as_it_may_be() -> None:
    assert handoffs(0.02, 0.0001) == (SLOTS // MOST, 0)


def test_a_starved_server_that_takes_seconds_for_any_call_gets_time_and_not_ever_smaller_handoffs() -> None:
    tried, failures = handoffs(3.5, 0.0)
    assert failures == 1 and tried <= 2 * SLOTS // MOST + 1


def test_where_rows_take_the_time_handoffs_get_smaller() -> None:
    tried, failures = handoffs(0.05, 0.02)
    assert failures <= 3 and tried <= 20


@given(st.floats(0.0, 0.9 * LONGEST * USUAL_S), st.floats(0.0, 0.03))
def test_all_slots_go_over_in_the_end_wherever_the_smallest_handoff_can(fixed_s: float, per_slot_s: float) -> None:
    if fixed_s + per_slot_s * MOST / 16 < LONGEST * USUAL_S:
        handoffs(fixed_s, per_slot_s, tries=400)


def test_patience_returns_to_what_is_usual() -> None:
    now = Handoff.first(MOST, USUAL_S).failed(MOST)
    assert (now.slots, now.freeze_s) == (256, 6.0)
    assert now.done(2.0) == Handoff(MOST, USUAL_S, MOST, 6.0)
    assert now.done(0.01) == Handoff.first(MOST, USUAL_S)
