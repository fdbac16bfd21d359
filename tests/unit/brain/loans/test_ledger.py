"""The ledger's table of states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.brain.domain.loans.ledger import COMING, HELD, NEXT, OPEN, Loan, State, sums


def test_a_loan_goes_its_way_and_knows_when() -> None:
    """Planned, draining, lent, returning, returned."""
    loan = Loan("1", "job", due=100.0, planned=0.0)
    for now, state in enumerate((State.DRAINING, State.LENT, State.RETURNING, State.RETURNED), start=10):
        loan = loan.moved(state, float(now))
        assert (loan.state, loan.since) == (state, now)
    assert (loan.lent, loan.ended, loan.is_open) == (11.0, 13.0, False)
    assert not loan.is_late(1000.0)      # it was back in time, whatever the time is now


@pytest.mark.parametrize("state", State)
def test_only_steps_of_the_table_are_taken(state: State) -> None:
    """All others are refused, and nothing leaves an end."""
    loan = Loan("1", "job", due=100.0, planned=0.0, state=state)
    for step in State:
        if step in NEXT[state]:
            assert loan.moved(step, 1.0).state is step
        else:
            with pytest.raises(ValueError, match=f"is {state}, and cannot be {step}"):
                loan.moved(step, 1.0)
    assert (state in OPEN) == bool(NEXT[state])
    assert COMING < OPEN and HELD < OPEN


def test_late_is_after_its_due_time_unless_it_came_to_nothing() -> None:
    """One that is not back is late from then on; a renewal moves the time."""
    loan = Loan("1", "job", due=100.0, planned=0.0, state=State.LENT)
    assert not loan.is_late(100.0)
    assert loan.is_late(101.0)
    assert not loan.renewed(200.0).is_late(101.0)
    assert loan.renewed(200.0).renewals == 1
    with pytest.raises(ValueError, match="cannot be due"):
        loan.renewed(100.0)
    back = loan.moved(State.RETURNING, 90.0).moved(State.RETURNED, 120.0)
    assert back.is_late(120.0)
    assert not Loan("2", "job", due=1.0, planned=0.0).moved(State.CANCELLED, 50.0).is_late(60.0)


@given(st.lists(st.sampled_from(State)), st.floats(0, 100), st.floats(0, 100))
def test_sums_count_each_loan_once(states: list[State], due: float, now: float) -> None:
    """Those that are late are counted besides."""
    loans = [Loan(str(place), "job", due, 0.0, state) for place, state in enumerate(states)]
    found = sums(loans, now)
    assert found.opened + found.returned + found.cancelled == len(loans)
    assert found.opened == sum(loan.is_open for loan in loans)
    assert found.late <= len(loans) - found.cancelled
