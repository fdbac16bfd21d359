"""What is lent and returned when."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.brain.domain.loans.ledger import Cause, Loan, State, sums
from services.brain.domain.loans.planning import Outlook, Rules, decide

RULES = Rules(own=4, most=8, most_draining=2, drain_s=60, start_s=60, return_s=60, hold_s=300, notice_s=120)


def lent(*names: str, due: float = 10_000.0) -> list[Loan]:
    return [Loan(name, "job", due, 0.0, State.LENT) for name in names]


def test_nothing_is_lent_long_before_a_peak_and_enough_in_time() -> None:
    """One round drains 60 s, and the HN starts for 60: asked for at the last look before that."""
    far = Outlook([4] * 10 + [6] * 10, 60.0, measured=4)
    assert decide([], far, RULES, available=8, now=0.0).lend == 0
    near = Outlook([4] * 3 + [6] * 10, 60.0, measured=4)
    verdict = decide([], near, RULES, available=8, now=0.0)
    assert (verdict.lend, verdict.cause) == (2, Cause.FORECAST)


def test_a_large_peak_is_begun_for_earlier_because_few_may_drain_at_a_time() -> None:
    """Eight units in rounds of two: four times 60 s of draining, and 60 of start."""
    for lead, expected in ((4, 2), (6, 2), (7, 0)):
        outlook = Outlook([4] * lead + [12] * 10, 60.0, measured=4)
        assert decide([], outlook, RULES, available=8, now=0.0).lend == expected, lead


def test_what_comes_is_believed_against_the_forecast() -> None:
    """At once, and it says so."""
    verdict = decide([], Outlook([4] * 20, 60.0, measured=6), RULES, available=8, now=0.0)
    assert (verdict.lend, verdict.cause) == (2, Cause.MEASURED)


def test_a_unit_goes_back_only_when_it_is_not_needed_for_a_while_the_first_due_first() -> None:
    """A dip shorter than a way there and back changes nothing."""
    loans = [*lent("late", due=5000.0), *lent("early", due=2000.0)]
    dip = Outlook([4] * 3 + [6] * 20, 60.0, measured=4)
    assert decide(loans, dip, RULES, available=8, now=0.0).give_back == ()
    over = Outlook([5] * 60, 60.0, measured=5)
    assert decide(loans, over, RULES, available=8, now=0.0).give_back == ("early",)


def test_a_plan_that_nobody_needs_any_more_is_cancelled_before_a_loan_is_returned() -> None:
    """Its lender has not heard of it."""
    loans = [*lent("a"), Loan("b", "job", 900.0, 0.0, State.PLANNED)]
    verdict = decide(loans, Outlook([5] * 60, 60.0, measured=5), RULES, available=8, now=0.0)
    assert (verdict.cancel, verdict.give_back) == (("b",), ())


def test_a_longer_peak_renews_in_time_for_a_notice_and_not_after_it() -> None:
    """Afterwards the loan is late, and is kept while it is needed."""
    outlook = Outlook([5] * 60, 60.0, measured=5)
    in_time = decide(lent("a", due=400.0), outlook, RULES, available=8, now=0.0)
    assert [name for name, _ in in_time.renew] == ["a"]
    assert in_time.renew[0][1] > 3600.0
    too_late = decide(lent("a", due=150.0), outlook, RULES, available=8, now=0.0)
    assert (too_late.renew, too_late.give_back) == ((), ())


def test_where_the_need_is_not_known_a_loan_goes_back_when_it_is_due_and_nothing_more_is_lent() -> None:
    unknown = Outlook((), 60.0, measured=5, is_known=False)
    assert decide(lent("a", due=400.0), unknown, RULES, available=8, now=0.0).give_back == ()
    due = decide(lent("a", due=400.0), unknown, RULES, available=8, now=340.0)
    assert (due.give_back, due.lend, due.renew) == (("a",), 0, ())
    assert "not known" in due.why


def test_the_due_time_covers_the_need_and_the_way_back() -> None:
    """Of two units the one that is needed for a shorter time is due earlier."""
    outlook = Outlook([6] * 10 + [5] * 10 + [4] * 20, 60.0, measured=6)
    verdict = decide([], outlook, RULES, available=8, now=0.0)
    assert verdict.lend == 2
    first, second = verdict.dues
    assert first > second >= 600.0 + RULES.return_s


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 30), min_size=10, max_size=80),
    st.integers(0, 6), st.integers(0, 10), st.integers(1, 4), st.integers(0, 12), st.integers(0, 8),
    st.sampled_from((0.0, 300.0)),
)  # fmt: skip
def test_budgets_are_never_passed_and_no_unit_goes_two_ways(
    needs: list[int], own: int, most: int, draining: int, available: int, drain_steps: int, slack_s: float
) -> None:
    """Over a whole day of decisions, whatever is needed and however long drains take."""
    rules = replace(RULES, own=own, most=most, most_draining=draining, slack_s=slack_s)
    loans: dict[str, Loan] = {}
    ready: dict[str, int] = {}
    made = 0
    for minute in range(len(needs)):
        now = minute * 60.0
        for name, loan in list(loans.items()):
            if ready.get(name, 10**9) <= minute:
                loans[name] = loan.moved(State.LENT if loan.state is State.DRAINING else State.RETURNED, now)
                del ready[name]
        open_loans = [loan for loan in loans.values() if loan.is_open]
        outlook = Outlook(needs[minute : minute + 20], 60.0, measured=needs[minute])
        left = max(0, available - len(open_loans))
        verdict = decide(open_loans, outlook, rules, available=left, now=now)
        assert not (verdict.lend and verdict.give_back)
        assert len(verdict.dues) == verdict.lend
        assert not {*verdict.give_back} & {*verdict.cancel}
        assert all(loans[name].state is State.LENT for name in verdict.give_back)
        assert all(loans[name].state is not State.RETURNING and due > loans[name].due for name, due in verdict.renew)
        for due in verdict.dues:
            made += 1
            assert due > now
            loans[str(made)] = Loan(str(made), "job", due, now).moved(State.DRAINING, now)
            ready[str(made)] = minute + drain_steps
        for name in verdict.give_back:
            loans[name] = loans[name].moved(State.RETURNING, now)
            ready[name] = minute + 1
        for name, due in verdict.renew:
            loans[name] = loans[name].renewed(due)
        has = sums(loans.values(), now)
        assert has.coming <= draining
        assert has.opened <= min(most, available)
        assert has.opened + has.returned + has.cancelled == made
