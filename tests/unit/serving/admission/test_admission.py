"""The rules of admission on a made-up link that carries what is granted one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.admission.domain.admission import Admission, Effects
from recmesh.serving.admission.messages import Ask, Cancel, Done, Grant, Reason, Refuse, Sent, ToCn
from recmesh.serving.admission.settings import Settings

RATE = 1e6
"""Bytes per second."""
KB = 1000


def settings_of(**changes: object) -> Settings:
    fields: dict[str, object] = {
        "bandwidth_bytes_per_s": RATE, "window_start_bytes": 20 * KB, "window_min_bytes": 10 * KB,
        "window_max_bytes": 200 * KB, **changes,
    }
    return Settings(**fields)  # type: ignore[arg-type]  # whatever the test gives


@dataclass
class Link:
    """An HN and its link: first granted, first there; what is in `dead` is never sent."""

    admission: Admission
    rate: float = RATE
    now: float = 0.0
    busy_until: float = 0.0
    coming: list[tuple[float, str, int]] = field(default_factory=list)
    sizes: dict[tuple[str, int], int] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    heard: list[tuple[float, str, ToCn]] = field(default_factory=list)

    def ask(self, peer: str, ask: Ask) -> None:
        self.sizes[peer, ask.request] = ask.size_bytes
        self._hear(self.admission.receive(peer, ask, self.now))

    def run(self, until: float) -> None:
        while True:
            wake = self.admission.next_wake(self.now)
            moments = [at for at in (wake, self.coming[0][0] if self.coming else None) if at is not None]
            if not moments or min(moments) > until:
                break
            self.now = max(self.now, min(moments))
            if self.coming and self.coming[0][0] <= self.now:
                _, peer, request = self.coming.pop(0)
                self._hear(self.admission.arrived(peer, request, self.now)[1])
            else:
                self._hear(self.admission.wake(self.now))
        self.now = until

    def answers(self, peer: str, request: int) -> list[ToCn]:
        return [message for _, to, message in self.heard if (to, message.request) == (peer, request)]

    def granted_in_order(self) -> list[int]:
        return [message.request for _, _, message in self.heard if isinstance(message, Grant)]

    def _hear(self, effects: Effects) -> None:
        for peer, message in effects:
            self.heard.append((self.now, peer, message))
            if isinstance(message, Grant) and peer not in self.dead:
                self.busy_until = max(self.busy_until, self.now) + self.sizes[peer, message.request] / self.rate
                self.coming.append((self.busy_until, peer, message.request))


def link_of(**changes: object) -> Link:
    return Link(Admission(settings_of(**changes)))


asks = st.lists(
    st.tuples(
        st.floats(0, 0.05), st.integers(1, 40 * KB), st.none() | st.floats(0.0, 0.3), st.sampled_from("ab"),
        st.integers(0, 1),
    ),
    min_size=1, max_size=40,
)
Asks = Sequence[tuple[float, int, float | None, str, int]]


def played(link: Link, given_asks: Asks) -> None:
    for request, (gap_s, size, left_s, model, priority) in enumerate(given_asks):
        link.run(link.now + gap_s)
        link.ask(f"cn{request % 3}", Ask(request, model, size, left_s, priority=priority))


@given(asks)
@settings(deadline=None)
def test_every_ask_has_one_fate_and_all_bytes_come_back(given_asks: Asks) -> None:
    link = link_of()
    played(link, given_asks)
    link.run(link.now + 60)
    for request in range(len(given_asks)):
        kinds = [type(each) for each in link.answers(f"cn{request % 3}", request)]
        assert kinds in ([Grant, Done], [Refuse])
    state = link.admission.snapshot()
    assert (state.in_flight_bytes, state.waiting, state.waiting_bytes) == (0, 0, 0)
    assert link.admission.next_wake(link.now) is None


@given(asks)
@settings(deadline=None)
def test_what_is_granted_fits_the_window_or_is_alone(given_asks: Asks) -> None:
    link = link_of()
    under_way: dict[tuple[str, int], int] = {}
    played(link, given_asks)
    link.run(link.now + 60)
    for _, peer, message in link.heard:
        if isinstance(message, Grant):
            under_way[peer, message.request] = link.sizes[peer, message.request]
            assert sum(under_way.values()) <= 200 * KB or len(under_way) == 1
        elif isinstance(message, Done):
            del under_way[peer, message.request]


@given(st.lists(st.integers(1, 30 * KB), min_size=1, max_size=30))
def test_in_flight_never_exceeds_the_window_of_the_moment(sizes: list[int]) -> None:
    admission = Admission(settings_of())
    for request, size in enumerate(sizes):
        admission.receive("cn", Ask(request, "a", size), 0.0)
        state = admission.snapshot()
        alone = state.granted == 1 and state.in_flight_bytes > state.window_bytes
        assert state.in_flight_bytes <= state.window_bytes or alone


@given(asks)
@settings(deadline=None)
def test_on_a_steady_link_whoever_is_granted_is_in_time(given_asks: Asks) -> None:
    link = link_of(undated_share=0.0)
    asked: dict[int, float] = {}
    for request, (gap_s, size, left_s, _, _) in enumerate(given_asks):
        link.run(link.now + gap_s)
        asked[request] = link.now + (left_s or 0.1)
        link.ask("cn", Ask(request, "a", size, left_s or 0.1))
    link.run(link.now + 60)
    for at, _, message in link.heard:
        if isinstance(message, Done):
            assert at <= asked[message.request] + 1e-4
    assert Reason.GRANT_EXPIRED not in link.admission.snapshot().refused


@given(st.lists(st.tuples(st.integers(1, 20 * KB), st.floats(0.001, 0.2)), min_size=2, max_size=25))
def test_refused_exactly_when_no_order_serves_all(wanted: list[tuple[int, float]]) -> None:
    """All at one moment, behind a message that fills the window; earliest due first is optimal (Jackson)."""
    admission = Admission(settings_of())
    admission.receive("cn", Ask(999, "a", 20 * KB), 0.0)
    free_at = 20 * KB / RATE
    accepted: list[tuple[float, int]] = []
    for request, (size, left_s) in enumerate(wanted):
        effects = admission.receive("cn", Ask(request, "a", size, left_s), 0.0)
        trial, at, feasible = sorted([*accepted, (left_s, size)]), free_at, True
        for due, each in trial:
            at += each / RATE
            feasible = feasible and at <= due + 1e-9
        at_the_limit = abs(at - trial[-1][0]) < 1e-6
        refused = any(isinstance(message, Refuse) for _, message in effects)
        if not at_the_limit:
            assert refused == (not feasible)
        if not refused:
            accepted = trial


def test_earliest_due_first_and_equal_ones_in_turn() -> None:
    link = link_of(window_start_bytes=10 * KB)
    for request, left_s in enumerate([1.0, 0.9, 0.5, 0.9, 0.5]):
        link.ask("cn", Ask(request, "a", 10 * KB, left_s))
    link.run(2.0)
    assert link.granted_in_order() == [0, 2, 4, 1, 3]


def test_sizes_do_not_change_the_order_of_deadlines() -> None:
    """By latest start (due − bytes/B) the large one would go first, and the small one be late."""
    link = link_of(window_start_bytes=10 * KB)
    link.ask("cn", Ask(0, "a", 10 * KB, 1.0))
    link.ask("cn", Ask(1, "a", 100 * KB, 0.13))
    link.ask("cn", Ask(2, "a", 10 * KB, 0.05))
    link.run(2.0)
    assert link.granted_in_order() == [0, 2, 1]
    assert not link.admission.snapshot().refused


def test_a_refusal_comes_at_once_with_its_reason_and_what_is_short() -> None:
    link = link_of()
    link.ask("cn", Ask(1, "a", 50 * KB, 0.03))
    (alone,) = link.answers("cn", 1)
    assert isinstance(alone, Refuse) and alone.reason is Reason.DEADLINE_TOO_SHORT
    assert alone.short_s == pytest.approx(0.02)
    link.ask("cn", Ask(2, "a", 20 * KB))
    link.ask("cn", Ask(3, "a", 20 * KB, 0.03))
    (behind,) = link.answers("cn", 3)
    assert isinstance(behind, Refuse) and behind.reason is Reason.DEADLINE_BEHIND_QUEUE
    assert behind.short_s == pytest.approx(0.01)


def test_compute_and_return_are_taken_from_the_deadline() -> None:
    link = link_of()
    link.admission.computed("slow", 0.08)
    link.ask("cn", Ask(1, "slow", 10 * KB, 0.1, return_bytes=5 * KB))
    link.ask("cn", Ask(2, "slow", 10 * KB, 0.1, return_bytes=15 * KB))
    assert isinstance(link.answers("cn", 1)[0], Grant)
    assert isinstance(link.answers("cn", 2)[0], Refuse)


def test_a_dead_node_leaks_no_window() -> None:
    link = link_of(window_start_bytes=10 * KB)
    link.dead.add("dead")
    link.ask("dead", Ask(1, "a", 10 * KB))
    link.ask("cn", Ask(2, "a", 10 * KB))
    assert link.granted_in_order() == [1]
    link.run(1.0)
    assert link.granted_in_order() == [1, 2]
    assert [type(each) for each in link.answers("dead", 1)] == [Grant, Refuse]
    assert link.admission.snapshot().in_flight_bytes == 0
    assert link.admission.arrived("dead", 1, link.now) == (False, [])


def test_a_lost_link_gives_back_all_and_leaves_the_queue() -> None:
    link = link_of(window_start_bytes=10 * KB)
    link.dead.add("gone")
    for request in range(3):
        link.ask("gone", Ask(request, "a", 10 * KB))
    link.ask("cn", Ask(9, "a", 10 * KB))
    assert [message.request for _, message in link.admission.lost("gone", 0.0)] == [9]
    assert link.admission.snapshot().waiting == 0


def test_cancelled_asks_leave_queue_and_window() -> None:
    link = link_of(window_start_bytes=10 * KB)
    for request in range(3):
        link.ask("cn", Ask(request, "a", 10 * KB))
    link.admission.receive("cn", Cancel(1), 0.0)
    effects = link.admission.receive("cn", Cancel(0), 0.0)
    assert [message.request for _, message in effects] == [2]
    assert link.admission.receive("cn", Cancel(0), 0.0) == []
    assert link.admission.snapshot().cancelled == 2


def test_repeating_an_ask_changes_nothing() -> None:
    link = link_of(window_start_bytes=10 * KB)
    for _ in range(2):
        link.ask("cn", Ask(1, "a", 10 * KB))
        link.ask("cn", Ask(2, "a", 10 * KB))
    state = link.admission.snapshot()
    assert (state.asked, state.granted, state.waiting) == (2, 1, 1)
    assert [type(each) for each in link.answers("cn", 1)] == [Grant, Grant]


def test_sent_is_an_arrival() -> None:
    link = link_of()
    link.dead.add("cn")
    link.ask("cn", Ask(1, "a", 10 * KB))
    assert link.admission.receive("cn", Sent(1), 0.01) == [("cn", Done(1))]
    assert link.admission.snapshot().in_flight_bytes == 0


def test_a_slower_link_refuses_who_waits_once_it_is_known() -> None:
    link = link_of(window_start_bytes=10 * KB, grant_patience=100.0)
    link.rate = RATE / 10
    for request in range(5):
        link.ask("cn", Ask(request, "a", 10 * KB, 0.06))
    link.run(0.2)
    late = [(at, m) for at, _, m in link.heard if isinstance(m, Refuse)]
    assert len(late) == 4 and {m.reason for _, m in late} == {Reason.LINK_SLOWED}
    assert max(at for at, _ in late) <= 0.06


def test_lower_priority_makes_room_and_not_the_other_way() -> None:
    link = link_of(window_start_bytes=10 * KB)
    link.ask("cn", Ask(0, "a", 10 * KB, 1.0))
    link.ask("cn", Ask(1, "a", 20 * KB, 0.035, priority=5))
    link.ask("cn", Ask(2, "a", 20 * KB, 0.034, priority=6))
    assert [each.reason for each in link.answers("cn", 2) if isinstance(each, Refuse)] == [
        Reason.DEADLINE_BEHIND_QUEUE
    ]
    link.ask("cn", Ask(3, "a", 20 * KB, 0.036, priority=1))
    assert [each.reason for each in link.answers("cn", 1) if isinstance(each, Refuse)] == [Reason.SHED_FOR_PRIORITY]
    link.run(1.0)
    assert link.granted_in_order() == [0, 3]


def test_a_model_that_floods_makes_room_for_another() -> None:
    link = link_of(window_start_bytes=10 * KB)
    for request in range(10):
        link.ask("cn", Ask(request, "flood", 10 * KB, 0.1))
    link.ask("cn", Ask(10, "other", 10 * KB, 0.1))
    assert link.admission.snapshot().refused == {Reason.SHED_FOR_FAIRNESS: 1}
    link.run(1.0)
    assert 10 in link.granted_in_order()


def test_one_model_alone_is_never_shed_for_fairness() -> None:
    link = link_of(window_start_bytes=10 * KB)
    for request in range(30):
        link.ask("cn", Ask(request, "a", 10 * KB, 0.1))
    assert set(link.admission.snapshot().refused) == {Reason.DEADLINE_BEHIND_QUEUE}


def test_models_without_deadlines_share_by_weight() -> None:
    link = link_of(window_start_bytes=10 * KB, shares={"heavy": 3.0})
    for request in range(0, 400, 2):
        link.ask("cn", Ask(request, "heavy", 5 * KB))
        link.ask("other", Ask(request + 1, "light", 5 * KB))
    link.run(0.8)
    granted = link.granted_in_order()
    heavy = sum(each % 2 == 0 for each in granted)
    assert heavy / len(granted) == pytest.approx(0.75, abs=0.03)


def test_messages_without_deadline_are_not_starved_by_those_with_one() -> None:
    link = link_of(window_start_bytes=10 * KB, undated_share=0.1)
    link.ask("cn", Ask(0, "batch", 10 * KB))
    for request in range(1, 20):
        link.ask("cn", Ask(request, "batch", 10 * KB))
    for step in range(500):                     # dated asks at twice the link's rate, all the time
        link.run(step * 0.01)
        link.ask("cn", Ask(1000 + 2 * step, "live", 10 * KB, 0.1))
        link.ask("cn", Ask(1001 + 2 * step, "live", 10 * KB, 0.1))
    link.run(5.0)
    done = [message.request for _, _, message in link.heard if isinstance(message, Done)]
    assert sum(each < 1000 for each in done) == 20
    assert len(done) > 475                      # and the link was not idle for it


def test_a_message_without_deadline_waits_no_longer_than_it_may() -> None:
    link = link_of(window_start_bytes=10 * KB, undated_patience_s=0.2, grant_min_s=60.0)
    link.dead.add("stuck")
    link.ask("stuck", Ask(0, "a", 10 * KB))
    link.ask("cn", Ask(1, "a", 10 * KB))
    link.run(1.0)
    assert [(at, each.reason) for at, _, each in link.heard if isinstance(each, Refuse)] == [
        (0.2, Reason.WAITED_TOO_LONG)
    ]


def test_the_queue_is_bounded_by_count_bytes_and_peer() -> None:
    link = link_of(window_start_bytes=10 * KB, waiting_most=4, waiting_most_bytes=35 * KB, peer_waiting_most=2)
    for request in range(4):
        link.ask("cn", Ask(request, "a", 10 * KB))
    link.ask("other", Ask(4, "a", 10 * KB))
    link.ask("third", Ask(5, "a", 10 * KB))
    link.ask("third", Ask(6, "a", 1))
    link.ask("third", Ask(7, "a", 1))
    assert link.admission.snapshot().refused == {Reason.PEER_QUEUE_FULL: 1, Reason.QUEUE_FULL: 2}


def test_draining_refuses_the_new_and_serves_the_old() -> None:
    link = link_of(window_start_bytes=10 * KB)
    link.ask("cn", Ask(0, "a", 10 * KB))
    link.ask("cn", Ask(1, "a", 10 * KB))
    link.admission.drain()
    link.ask("cn", Ask(2, "a", 10 * KB))
    link.run(1.0)
    assert link.granted_in_order() == [0, 1]
    assert link.admission.snapshot().refused == {Reason.DRAINING: 1}


def test_a_message_larger_than_allowed_is_refused_and_one_larger_than_the_window_goes_alone() -> None:
    link = link_of(message_most_bytes=100 * KB)
    link.ask("cn", Ask(0, "a", 101 * KB))
    link.ask("cn", Ask(1, "a", 100 * KB))
    link.ask("cn", Ask(2, "a", 1))
    assert link.admission.snapshot().refused == {Reason.TOO_LARGE: 1}
    assert link.granted_in_order() == [1]
    link.run(1.0)
    assert link.granted_in_order() == [1, 2]


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InvalidArgument, match=r"window_start_bytes.*\n.*congestion_low"):
        settings_of(window_start_bytes=1, congestion_low=3.0)
    with pytest.raises(InvalidArgument, match=r"shares\.ads"):
        settings_of(shares={"ads": 0.0})
    with pytest.raises(InvalidArgument, match="grant_min_s"):
        settings_of(grant_min_s=float("nan"))
