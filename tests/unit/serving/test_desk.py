"""Admission between a CN and an HN over real connections: who asks is granted, who may not is told, nothing leaks."""

from pathlib import Path

import pytest

from recmesh.runtime.errors import Aborted, MeshError, ResourceExhausted
from recmesh.serving.admission.settings import Settings
from recmesh.serving.cn.dispatch import MOST_ASKS
from recmesh.serving.hn.desk import Desk
from tests.support.serving import Calls, hn_link, running_cn, running_hn, until


def desk(**settings: float) -> Desk:
    """Grants that do not expire on a slow machine, unless a test says otherwise."""
    return Desk(Settings(**{"grant_min_s": 30.0, **settings}))  # type: ignore[arg-type]  # of the types that they have


def test_requests_are_granted_before_they_are_sent_and_leave_the_window_empty(tmp_path: Path) -> None:
    made = desk()
    with running_hn(tmp_path, desk=made) as hn:
        hn.install()
        with running_cn(tmp_path, hn) as (_, client):
            for x in (1.0, 2.0, 3.0):
                assert client.predict([x]) == [2 * (x + 1) + x]
            until(lambda: made.snapshot().in_flight_bytes == 0)
            seen = made.snapshot()
            assert (seen.asked, seen.granted, seen.arrived, seen.came_too_late) == (3, 3, 3, 0)


def test_a_request_that_cannot_be_in_time_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    made = desk(bandwidth_bytes_per_s=1.0)           # a byte takes a second
    with running_hn(tmp_path, desk=made) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (server, client):
            with pytest.raises(MeshError) as refused:
                client.predict([1, 2], left_s=2.0)
            assert refused.value.reason == "DEADLINE_TOO_SHORT"
            assert program.runs == [] and not server._flights


def test_a_refused_request_is_taken_by_another_hn(tmp_path: Path) -> None:
    drained = desk()
    drained.drain()
    with running_hn(tmp_path, name="a", desk=drained) as first, running_hn(tmp_path, name="b", desk=desk()) as second:
        first.install()
        program = second.install()
        with running_cn(tmp_path, first, second) as (_, client):
            asked = 0
            while not drained.snapshot().refused and asked < 64:     # which of two is asked first is chance
                assert client.predict([1]) == [5.0]
                asked += 1
            assert program.runs == [[2]] * asked
            assert sum(drained.snapshot().refused.values()) > 0


class Slow(Desk):
    """The first requests are on their way for longer than their grants last."""

    def __init__(self, *, late: int) -> None:
        super().__init__(Settings())
        self._late = late

    def arrived(self, peer: str, request: int) -> bool:
        self._late -= 1
        if self._late >= 0:
            self.let_expire()
        return super().arrived(peer, request)

    def let_expire(self) -> None:
        """As if so much time had passed."""
        self._apply(lambda now: self._rules.wake(now + 3600.0))
        assert self.snapshot().in_flight_bytes == 0


def test_a_request_whose_grant_expired_on_its_way_asks_again_until_one_holds(tmp_path: Path) -> None:
    made = Slow(late=8)
    with running_hn(tmp_path, desk=made) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (_, client):
            assert client.predict([1]) == [5.0] and program.runs == [[2]]
            assert made.snapshot().asked == 9


def test_a_request_whose_grants_all_expire_is_given_up(tmp_path: Path) -> None:
    made = Slow(late=1000)
    with running_hn(tmp_path, desk=made) as hn:
        program = hn.install()
        with running_cn(tmp_path, hn) as (server, client):
            with pytest.raises(ResourceExhausted) as refused:
                client.predict([1])
            assert refused.value.reason in ("NOT_GRANTED", "GRANT_EXPIRED")
            assert made.snapshot().asked == MOST_ASKS and program.runs == [] and not server._flights


def test_who_sends_without_asking_is_refused(tmp_path: Path) -> None:
    with running_hn(tmp_path, desk=desk()) as hn, hn_link(hn) as link:
        program = hn.install()
        calls = Calls(link)
        calls.infer("a", [1])
        refused = calls.of("a")
        assert isinstance(refused, ResourceExhausted) and refused.reason == "NOT_GRANTED"
        assert program.runs == []


def test_a_request_that_is_cancelled_while_it_waits_gives_its_place_back(tmp_path: Path) -> None:
    made = desk(window_start_bytes=1, window_min_bytes=1, bandwidth_bytes_per_s=100.0)
    with running_hn(tmp_path, desk=made) as hn:
        hn.install()
        with running_cn(tmp_path, hn) as (server, client):
            calls = [client.send([1] * 8) for _ in range(6)]
            for call in calls:
                client.cancel(call)
            outcomes = []
            for _ in calls:
                try:
                    client.answer()
                    outcomes.append("answered")
                except Aborted:
                    outcomes.append("cancelled")
            assert "cancelled" in outcomes
            until(lambda: made.snapshot().in_flight_bytes == 0 and made.snapshot().waiting == 0)
            assert not server._flights
            assert client.predict([1]) == [5.0]
