"""Frames of serving: whole tensors, wherever the stream is cut; refusals of what is none."""

import socket
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recmesh.serving import frames
from recmesh.serving.datatypes import DATATYPES
from recmesh.serving.frames import FrameError
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport.sockets import SocketTransport

NUMERIC = [item for item in DATATYPES.values() if item.kind != "bytes"]


@st.composite
def tensors(draw: st.DrawFn) -> list[Tensor]:
    made = []
    for index in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(NUMERIC))
        shape = draw(st.sampled_from([(), (0,), (3,), (2, 5), (1100,), (17, 300)]))
        drawn = np.dtype(np.int16) if kind.name == "BF16" else kind.numpy    # of bfloat16 the bits
        array = draw(hnp.arrays(drawn, shape, fill=None if shape else st.nothing())).view(kind.numpy)
        made.append(Tensor(f"t{index}", kind, array))
    return made


def same(found: list[Tensor], given_: list[Tensor]) -> bool:
    return [(item.name, item.datatype, item.shape, item.array.tobytes()) for item in found] == [
        (item.name, item.datatype, item.shape, item.array.tobytes()) for item in given_
    ]


@settings(max_examples=60, deadline=None)
@given(tensors())
def test_tensors_come_out_as_they_went_in(given_: list[Tensor]) -> None:
    prefix, *_ = frames.encode({"op": "infer"}, given_)
    data = b"".join(map(bytes, frames.encode({"op": "infer"}, given_)))
    header_bytes, body_bytes = frames.sizes(data[: frames.PREFIX.size])
    text, body = data[frames.PREFIX.size :][:header_bytes], data[frames.PREFIX.size + header_bytes :]
    assert len(body) == body_bytes
    header, found = frames.decode(text, body)
    assert header == {"op": "infer"} and same(found, given_)
    assert bytes(prefix[:4]) == frames.MAGIC


def test_small_tensors_are_one_buffer_and_large_ones_are_not_copied() -> None:
    large = np.arange(5000, dtype=np.float32)
    small = [Tensor.of(f"s{index}", np.zeros(index + 1, np.float32)) for index in range(9)]
    given_ = [*small, Tensor.of("large", large)]
    body = frames.lay_out(given_)
    packed, *rest = body.parts
    assert memoryview(packed).nbytes <= 9 * 64
    assert np.shares_memory(np.frombuffer(rest[-1], np.float32), large)
    assert all(item["at"] % frames.ALIGN == 0 for item in body.described)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"tensors": [{"name": "x", "datatype": "FP32", "shape": [2], "size_bytes": 8, "at": 1}]}, "beyond the body"),
        ({"tensors": [{"name": "x", "datatype": "FP32", "shape": [2], "size_bytes": 8, "at": -8}]}, "beyond the body"),
        ({"tensors": [{"name": "x"}]}, "entry in the header is wrong"),
        ({"tensors": 3}, "no tensors"),
        ({}, "no tensors"),
    ],
)
def test_a_header_that_lies_is_refused(document: dict[str, Any], why: str) -> None:
    import orjson

    with pytest.raises(FrameError, match=why):
        frames.decode(orjson.dumps(document), bytes(8))


def test_another_version_is_refused_before_anything_is_read_into_memory() -> None:
    with pytest.raises(FrameError, match="speaks"):
        frames.sizes(frames.PREFIX.pack(b"rms\x02", 1, 1 << 60))
    with pytest.raises(FrameError, match="bytes"):
        frames.sizes(frames.PREFIX.pack(frames.MAGIC, 1, 1 << 60))


def test_a_frame_cut_anywhere_is_read_whole() -> None:
    ours, theirs = socket.socketpair()
    given_ = [Tensor.of("a", np.arange(7, dtype=np.int64)), Tensor.of("b", np.arange(3000, dtype=np.float64))]
    data = b"".join(map(bytes, frames.encode({"call": 1}, given_)))

    def drip() -> None:
        for at in range(0, len(data), 997):
            theirs.sendall(data[at : at + 997])
        theirs.close()

    writer = threading.Thread(target=drip)
    writer.start()
    transport = SocketTransport(ours)
    message = transport.receive()
    assert message is not None and same(message.tensors, given_)
    assert transport.receive() is None
    writer.join()
    transport.close()


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, 1 << 20])
def test_frames_are_cut_out_of_a_stream_wherever_its_pieces_end(piece_bytes: int) -> None:
    small, large = Tensor.of("small", np.arange(3)), Tensor.of("large", np.arange(5000, dtype=np.float32))
    given_ = [[small], [], [large, small], [small, small]]
    data = b"".join(
        bytes(part) for call, each in enumerate(given_) for part in frames.encode({"call": call}, each)
    )
    cutter, found = frames.Cutter(), []
    for at in range(0, len(data), piece_bytes):
        found += cutter.cut(data[at : at + piece_bytes])
    assert [header["call"] for header, _ in found] == [0, 1, 2, 3]
    assert all(same(each, before) for (_, each), before in zip(found, given_, strict=True))


def test_a_stream_that_is_none_of_ours_is_refused_at_its_first_bytes() -> None:
    with pytest.raises(FrameError, match="HTTP"):
        frames.Cutter().cut(b"HTTP/1.1 200 OK\r\n")
