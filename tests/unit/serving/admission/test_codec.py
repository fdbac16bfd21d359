"""Messages of admission and their bytes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.admission.codec import decode, encode
from recmesh.serving.admission.messages import Ask, Cancel, Done, Grant, Message, Reason, Refuse, Sent

numbers = st.integers(0, (1 << 64) - 1)
durations = st.floats(0, 1e6)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Ask, numbers, st.text("aé/-_1", min_size=1, max_size=40), numbers,
        st.none() | st.floats(-10, 1e6), numbers, st.integers(0, 255),
        st.none() | st.floats(-1e9, 1e9),
    ),
    st.builds(Cancel, numbers), st.builds(Sent, numbers), st.builds(Done, numbers),
    st.builds(Grant, numbers, durations), st.builds(Refuse, numbers, st.sampled_from(Reason), durations, durations),
)


@given(messages)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    assert decode(encode(message)) == message


def test_the_bytes_of_version_1_never_change() -> None:
    assert encode(Ask(7, "ads", 4096, 0.025, 64, 3, 2.0)).hex() == (
        "0101070000000000000000100000000000004000000000000000" "9a9999999999993f" "0000000000000040" "03" "0300616473"
    )
    assert encode(Cancel(1)).hex() == "01020100000000000000"
    assert encode(Grant(1, 0.5)).hex() == "01100100000000000000" "000000000000e03f"
    assert encode(Refuse(1, Reason.DRAINING)).hex() == "01110100000000000000" "5a" + "00" * 16


@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_refused_by_name(data: bytes) -> None:
    try:
        message = decode(data)
    except InvalidArgument as error:
        assert error.violations
    else:
        assert decode(encode(message)) == message


@given(messages, st.integers(1, 200))
def test_a_part_of_a_message_is_none(message: Message, cut: int) -> None:
    data = encode(message)
    with pytest.raises(InvalidArgument):
        decode(data[:-min(cut, len(data))])


def test_another_version_is_named() -> None:
    with pytest.raises(InvalidArgument, match="version: is 2; this process speaks version 1"):
        decode(b"\x02" + encode(Done(1))[1:])


@pytest.mark.parametrize(("ask", "field"), [
    (Ask(1, "", 1), "model"), (Ask(1, "m" * 257, 1), "model"), (Ask(1, "m", -1), "size_bytes"),
    (Ask(-1, "m", 1), "request"), (Ask(1, "m", 1, priority=256), "priority"), (Ask(1, "m", 1, math.inf), "left_s"),
])
def test_a_field_that_has_no_place_is_named(ask: Ask, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        encode(ask)
