"""Connections between CN and HN: every carrier carries the same, and strangers are kept out."""

import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.runtime.errors import InvalidArgument, MeshError, Unauthenticated, Unavailable
from recmesh.serving import frames
from recmesh.serving.frames import FrameError
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import ConnectionLost, Transport, endpoints, handshake
from recmesh.serving.transport.endpoints import Endpoint, Listener, dial
from recmesh.serving.transport.shared import SharedTransport
from recmesh.serving.transport.sockets import SocketTransport

CARRIERS = ("shm", "unix", "tcp")
TOKEN = "the mesh's"


@contextmanager
def listening(carrier: str, folder: Path, *, token: str | None = None) -> Iterator[tuple[Endpoint, list[Transport]]]:
    """An echo; the transports of its side."""
    place = "127.0.0.1:0" if carrier == "tcp" else str(folder / "s")
    listener = Listener(Endpoint.parse(f"{carrier}:{place}"), token=token, log=print)
    accepted: list[Transport] = []

    def serve(transport: Transport) -> None:
        accepted.append(transport)
        while (message := transport.receive()) is not None:
            transport.send(message.header, message.tensors)
            del message

    thread = threading.Thread(target=listener.accept, args=(serve,))
    thread.start()
    try:
        yield listener.endpoint, accepted
    finally:
        listener.close()
        thread.join()
        for transport in accepted:
            transport.close()


def tensors(count: int = 1 << 18) -> list[Tensor]:
    strings = np.array([b"a", b"", "ö".encode()], dtype=object)
    return [
        Tensor.of("large", np.arange(count, dtype=np.float32).reshape(-1, 4)),
        Tensor.of("small", np.array([2.5])),
        Tensor.of("scalar", np.array(7, np.int64)),
        Tensor.of("text", strings),
    ]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_is_sent_comes_back_the_same(carrier: str, tmp_path: Path) -> None:
    with listening(carrier, tmp_path, token=TOKEN) as (endpoint, _):
        transport = dial(endpoint, token=TOKEN, timeout_s=5.0)
        assert transport.kind == carrier
        for call in range(3):
            given = tensors()
            transport.send({"call": call}, given)
            message = transport.receive()
            assert message is not None and message.header["call"] == call
            for before, after in zip(given, message.tensors, strict=True):
                assert (before.name, before.datatype, before.shape) == (after.name, after.datatype, after.shape)
                assert np.array_equal(before.array, after.array)
        transport.close()


def test_shared_memory_is_free_again_when_the_other_side_uses_it_no_more(tmp_path: Path) -> None:
    with listening("shm", tmp_path) as (endpoint, _):
        transport = dial(endpoint, token=None, timeout_s=5.0)
        assert isinstance(transport, SharedTransport)
        for _ in range(40):                      # 1 MiB each: more than the memory holds, were it not taken back
            transport.send({}, tensors())
            message = transport.receive()
            del message
        gc.collect()
        assert transport.held <= 2
        transport.close()


def test_a_tensor_that_is_kept_is_not_overwritten(tmp_path: Path) -> None:
    with listening("shm", tmp_path) as (endpoint, _):
        transport = dial(endpoint, token=None, timeout_s=5.0)
        transport.send({}, [Tensor.of("t", np.full(1 << 20, 3, np.int64))])
        kept = transport.receive()
        assert kept is not None
        for value in range(20):                  # 8 MiB each, in 64 MiB
            transport.send({}, [Tensor.of("t", np.full(1 << 20, value, np.int64))])
            message = transport.receive()
            assert message is not None and int(message.tensors[0].array[-1]) == value
        assert set(np.unique(kept.tensors[0].array)) == {3}
        transport.close()


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("token", ["another's", None])
def test_who_does_not_know_the_token_is_told_so(carrier: str, token: str | None, tmp_path: Path) -> None:
    with listening(carrier, tmp_path, token=TOKEN) as (endpoint, accepted):
        with pytest.raises(Unauthenticated):
            dial(endpoint, token=token, timeout_s=5.0)
        assert accepted == []


def test_a_server_that_does_not_know_the_token_gets_nothing(tmp_path: Path) -> None:
    with listening("unix", tmp_path, token="a stranger's") as (endpoint, accepted):
        with pytest.raises(Unauthenticated, match="does not know this mesh's token"):
            dial(endpoint, token=TOKEN, timeout_s=5.0)
        assert accepted == []


def test_an_address_that_others_can_reach_needs_the_token() -> None:
    with pytest.raises(InvalidArgument, match="RECMESH_API_KEY"):
        Listener(Endpoint.parse("tcp:0.0.0.0:0"), token=None, log=print)


@pytest.mark.parametrize("text", ["", "shm:", "rdma:/x", "unix:relative", "tcp:host", f"unix:/{'x' * 120}"])
def test_a_wrong_address_is_named(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Endpoint.parse(text)


def test_nobody_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        dial(Endpoint.parse(f"unix:{tmp_path}/none"), token=None, timeout_s=1.0)


def test_a_socket_left_by_a_killed_process_is_taken_over_and_a_living_one_is_not(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "s"))
    left.close()
    with listening("unix", tmp_path) as (endpoint, _):
        dial(endpoint, token=None, timeout_s=5.0).close()
        with pytest.raises(MeshError, match="cannot be listened on"):
            Listener(endpoint, token=None, log=print)


def test_a_peer_that_takes_nothing_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    transport = SocketTransport(ours, stall_s=0.2)
    with pytest.raises(ConnectionLost):
        for _ in range(100):
            transport.send({}, [Tensor.of("t", np.zeros(1 << 20, np.uint8))])
    assert transport.receive() is None
    theirs.close()


def test_memory_that_could_vanish_is_not_taken(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with (tmp_path / "file").open("wb+") as file:
        file.truncate(4096)
        socket.send_fds(theirs, [b"m"], [file.fileno()])
        with pytest.raises((FrameError, OSError)):
            SharedTransport(SocketTransport(ours))
    theirs.close()
    ours.close()


def test_a_stranger_cannot_send_much_before_it_has_shown_the_token(tmp_path: Path) -> None:
    with listening("unix", tmp_path, token=TOKEN) as (endpoint, accepted):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(endpoint.place)
        transport = SocketTransport(sock)
        transport.send({"op": "hello", "nonce": "n", "protocol": 1}, [Tensor.of("t", np.zeros(1 << 16, np.uint8))])
        assert transport.receive() is None
        assert accepted == []
        transport.close()


@contextmanager
def stranger(endpoint: Endpoint) -> Iterator[socket.socket]:
    """Connected, and silent."""
    host, _, port = endpoint.place.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60.0) as sock:
        yield sock


def test_who_sends_a_byte_now_and_then_is_ended_when_a_handshake_should_be_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.5)
    with listening("tcp", tmp_path, token=TOKEN) as (endpoint, accepted), stranger(endpoint) as sock:
        sock.sendall(frames.PREFIX.pack(frames.MAGIC, handshake.MAX_HEADER_BYTES, 0))
        sock.settimeout(0.05)
        end, ended = time.monotonic() + 60.0, False
        while not ended and time.monotonic() < end:
            try:
                sock.sendall(b" ")
                ended = not sock.recv(1)
            except TimeoutError:
                pass
            except ConnectionError:
                ended = True
        assert ended and not accepted


def test_strangers_that_say_nothing_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 600.0)
    monkeypatch.setattr(endpoints, "MOST_PENDING", 3)
    with listening("tcp", tmp_path, token=TOKEN) as (endpoint, accepted), ExitStack() as stack:
        strangers = [stack.enter_context(stranger(endpoint)) for _ in range(10)]
        assert [sock.recv(1) for sock in strangers[:7]] == [b""] * 7
        transport = dial(endpoint, token=TOKEN, timeout_s=60.0)
        transport.send({"call": 1})
        assert transport.receive() is not None and len(accepted) == 1
        transport.close()


LISTENS = """
import os, resource, sys, threading
from recmesh.serving.transport.endpoints import Endpoint, Listener

def serve(transport):
    transport.send(transport.receive().header)

listener = Listener(Endpoint.parse("tcp:127.0.0.1:0"), token=None, log=lambda text: print(text, flush=True))
threading.Thread(target=listener.accept, args=(serve,), daemon=True).start()
print(listener.endpoint, flush=True)
sys.stdin.readline()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    print("full", flush=True)
sys.stdin.readline()
for each in taken:
    os.close(each)
sys.stdin.readline()
"""


def test_a_listener_without_a_file_left_accepts_again_when_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 60.0)
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        endpoint = Endpoint.parse(process.stdout.readline().strip())
        process.stdin.write("\n")
        assert process.stdout.readline() == "full\n"
        found: list[Transport] = []
        dialling = threading.Thread(target=lambda: found.append(dial(endpoint, token=None, timeout_s=60.0)))
        dialling.start()
        assert "cannot accept a connection now" in process.stdout.readline()
        process.stdin.write("\n")
        dialling.join()
        [transport] = found
        transport.send({"call": 7})
        answer = transport.receive()
        assert answer is not None and answer.header["call"] == 7
        transport.close()
    finally:
        process.kill()
        process.communicate(timeout=10)


class Counted(socket.socket):
    """Counts the system's calls."""

    sends = reads = 0

    def sendmsg(self, *arguments: Any) -> int:
        self.sends += 1
        return super().sendmsg(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self.reads += 1
        return super().recv_into(*arguments)


def counted_pair() -> tuple[Counted, Counted]:
    return tuple(Counted(fileno=each.detach()) for each in socket.socketpair())  # type: ignore[return-value]  # of two


def test_what_is_sent_together_is_one_write_and_one_read() -> None:
    ours, theirs = counted_pair()
    sender, receiver = SocketTransport(ours), SocketTransport(theirs)
    with sender.together():
        for call in range(20):
            sender.send({"call": call}, [Tensor.of("t", np.arange(call))])
        assert ours.sends == 0
    assert ours.sends == 1
    for call in range(20):
        message = receiver.receive()
        assert message is not None and message.header == {"call": call}
        assert message.tensors[0].array.tolist() == list(range(call))
    assert theirs.reads == 1
    sender.close()
    assert receiver.receive() is None
    receiver.close()


def test_blocks_of_several_threads_lose_nothing_and_a_lost_connection_is_closed() -> None:
    ours, theirs = counted_pair()
    sender, receiver = SocketTransport(ours), SocketTransport(theirs)

    def send(begin: int) -> None:
        for call in range(begin, begin + 50):
            with sender.together():
                sender.send({"call": call})

    threads = [threading.Thread(target=send, args=(begin,)) for begin in (0, 50, 100)]
    for thread in threads:
        thread.start()
    found = {int(message.header["call"]) for _ in range(150) if (message := receiver.receive()) is not None}
    for thread in threads:
        thread.join()
    assert found == set(range(150))
    receiver.close()
    with sender.together():
        sender.send({"call": 1})
    assert ours.fileno() == -1


def test_a_large_body_behind_small_frames_comes_whole() -> None:
    ours, theirs = counted_pair()
    sender, receiver = SocketTransport(ours), SocketTransport(theirs)
    large = np.arange(1 << 20)
    arrays = (large[:5], large, large[:7])

    def send() -> None:
        for array in arrays:
            sender.send({}, [Tensor.of("t", array)])

    thread = threading.Thread(target=send)
    thread.start()
    for array in arrays:
        message = receiver.receive()
        assert message is not None and np.array_equal(message.tensors[0].array, array)
    thread.join()
    sender.close()
    receiver.close()
