"""The proxy forwards bytes as they are, and does to pushes what its script says, over real gRPC."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from recmesh.chaos.proxy import PUSH, Proxy, Script, _Call
from recmesh.runtime.errors import FailedPrecondition, Unavailable
from recmesh.runtime.rpc import sync_server
from recmesh.runtime.rpc.detour import detour
from recmesh.runtime.rpc.options import channel_options
from tests.support.waiting import until


class Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Answers every method with its request, and remembers them."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: Any) -> bytes:
            if request == b"refuse":
                raise FailedPrecondition("not like this", reason="WRONG_MAP", metadata={"since": "7"})
            self.seen.append(request)
            return request[::-1]

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def target() -> Iterator[tuple[Echo, str]]:
    echo = Echo()
    server = sync_server("echo", "127.0.0.1:0", [lambda grpc_server: grpc_server.add_generic_rpc_handlers((echo,))],
                         token="secret")
    yield echo, server.address
    server.stop(0.1)


def through(script: Script, address: str, requests: list[bytes], *, method: str = PUSH) -> tuple[list[Any], Proxy]:
    proxy = Proxy(script, seed=1)
    proxy_address = proxy.start()
    proxy.rouse()
    channel = detour(proxy_address, address, token="secret")
    call = channel.unary_unary(method)

    def one(request: bytes) -> Any:
        try:
            return call(request, timeout=10.0)
        except (Unavailable, FailedPrecondition) as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(one, requests))
    channel.close()
    return answers, proxy


def test_other_calls_and_refusals_pass_as_they_are(target: tuple[Echo, str]) -> None:
    _, address = target
    nothing = Script(1.0, 0.0, 0.0, 0.0, replay=0.0)
    answers, proxy = through(nothing, address, [b"abc", b"refuse"], method="/some.Service/Pull")
    assert answers[0] == b"cba" and not proxy.done
    assert answers[1].reason == "WRONG_MAP" and answers[1].metadata["since"] == "7"
    proxy.stop()


@pytest.mark.parametrize(("script", "seen", "answered"), [
    (Script(1.0, 0.0, 0.0, 0.0, replay=0.0), 0, False),
    (Script(0.0, 1.0, 0.0, 0.0, replay=0.0), 1, False),
    (Script(0.0, 0.0, 1.0, 0.0, replay=0.0), 2, True),
    (Script(0.0, 0.0, 0.0, 1.0, hold_s=(0.01, 0.02), replay=0.0), 1, True),
    (Script(0.0, 0.0, 0.0, 0.0, replay=1.0, replay_after_s=(0.05,)), 2, True),
], ids=["request dropped", "answer dropped", "doubled", "held", "replayed"])
def test_pushes_meet_what_the_script_says(target: tuple[Echo, str], script: Script, seen: int, answered: bool) -> None:
    echo, address = target
    [answer], proxy = through(script, address, [b"part"])
    assert (answer == b"trap") if answered else isinstance(answer, Unavailable)
    until(lambda: len(echo.seen) >= seen, timeout_s=5.0)       # gRPC itself may repeat what seems unavailable
    assert bool(echo.seen) == bool(seen)
    proxy.stop()


def test_a_calm_proxy_only_forwards(target: tuple[Echo, str]) -> None:
    _, address = target
    proxy = Proxy(Script(1.0, 0.0, 0.0, 0.0, replay=0.0), seed=1)
    channel = detour(proxy.start(), address, token="secret")
    assert channel.unary_unary(PUSH)(b"ab", timeout=10.0) == b"ba"
    channel.close()
    proxy.stop()


def test_doubles_for_a_server_that_is_gone_hold_nobody_up_and_do_not_count() -> None:
    proxy = Proxy(Script(), seed=1)
    gone = _Call(grpc.insecure_channel("127.0.0.1:1", options=channel_options(None)), PUSH, b"part", [])
    for _ in range(8):
        proxy._send_again(gone, "double", after_s=0.0)
    until(lambda: proxy._kept_bytes == 0, timeout_s=10.0)
    assert proxy.done["double"] == 0
    proxy.stop()
