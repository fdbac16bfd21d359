"""What a session in the store says of its process."""

import os

import orjson
import pytest

from services.jobmaster.app.members import Member, decoded, encoded, own_process

MEMBER = Member("one.1", "one:1", 3)
NOBODYS_PID = 2**22 + 1


def test_a_session_of_a_process_that_lives_is_read_and_that_of_a_dead_neighbour_is_left_out() -> None:
    assert decoded(encoded(MEMBER, own_process())) == MEMBER
    assert decoded(encoded(MEMBER, own_process() | {"pid": NOBODYS_PID})) is None
    assert decoded(encoded(MEMBER, own_process() | {"created": 1.0})) is None


@pytest.mark.parametrize("other", [{"host": "elsewhere"}, {"boot": 1}, {"pids": "pid:[1]"}], ids=str)
def test_nobody_is_taken_for_dead_whose_pids_are_not_known_here(other: dict[str, object]) -> None:
    """Another machine, a machine that was started again, a container of its own under the same host name."""
    assert decoded(encoded(MEMBER, own_process() | other | {"pid": NOBODYS_PID})) == MEMBER


def test_a_session_of_an_older_release_is_read() -> None:
    older = {name: value for name, value in own_process().items() if name != "pids"}
    assert decoded(encoded(MEMBER, older)) == MEMBER
    assert decoded(encoded(MEMBER, older | {"pid": NOBODYS_PID})) is None
    assert orjson.loads(encoded(MEMBER, older))["pid"] == os.getpid()


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"session": "a"}', b"7"])
def test_what_is_no_session_is_left_out(value: bytes) -> None:
    assert decoded(value) is None
