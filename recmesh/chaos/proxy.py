"""Stands between workers and parameter servers, and does to pushes what a bad network and late timers do.

Each push is forwarded, dropped before or after it had its effect, doubled, or held so that others overtake it; and some
are replayed later, word for word, whatever has happened meanwhile. All by a seeded script; other calls pass untouched.
"""

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from recmesh.runtime.rpc.detour import TARGET
from recmesh.runtime.rpc.options import SERVER_OPTIONS, bind, channel_options

PUSH = "/recmesh.ps.v1.ParameterServer/Push"
_RPC_THREADS = 32
_DEADLINE_S = 30.0
_LATE_DEADLINE_S = 2.0
"""Of doubles and replays, which wait for no server that is gone: they are wanted where one has come back."""
_MOST_KEPT_BYTES = 64 << 20
"""Of messages that wait to be sent once more; above it none is kept."""
_OWN_HEADERS = (TARGET, "user-agent")


@dataclass(frozen=True, slots=True)
class Script:
    """Shares of all pushes; what is left is forwarded as it is."""

    drop_request: float = 0.02
    drop_answer: float = 0.04
    double: float = 0.04
    hold: float = 0.03
    hold_s: tuple[float, float] = (0.05, 0.6)
    replay: float = 0.08
    """Beside whatever else is done to it."""
    replay_after_s: tuple[float, ...] = (0.0, 1.0, 5.0, 15.0, 60.0)

    def action(self, rng: random.Random) -> str:
        """One of drop_request, drop_answer, double, hold, forward."""
        draw = rng.random()
        for name in ("drop_request", "drop_answer", "double", "hold"):
            draw -= getattr(self, name)
            if draw < 0:
                return name
        return "forward"


CALM = Script(0.0, 0.0, 0.0, 0.0, replay=0.0)


class Proxy:
    """Serves from `start` to `stop`; `done` counts what was done, by action: doubles and replays that arrived."""

    def __init__(self, script: Script, *, seed: int) -> None:
        self._script, self._rough, self._rng = CALM, script, random.Random(seed)
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._server = grpc.server(
            ThreadPoolExecutor(_RPC_THREADS, thread_name_prefix="proxy"), options=SERVER_OPTIONS,
            handlers=[_Everything(self._handle)],
        )
        self._later = ThreadPoolExecutor(4, thread_name_prefix="replay")
        self._kept_bytes = 0
        self._ended = threading.Event()
        self.done: Counter[str] = Counter()

    def start(self) -> str:
        """The address."""
        port = bind(self._server, "127.0.0.1:0", tls=None, what="the chaos proxy")
        self._server.start()
        return f"127.0.0.1:{port}"

    def rouse(self) -> None:
        """From now on it follows its script; before, it only forwards."""
        self._script = self._rough

    def calm(self) -> None:
        """From now on everything is forwarded; what waits for its replay still comes."""
        self._script = CALM

    def stop(self) -> None:
        """What waits for its replay is forgotten."""
        self._ended.set()
        self._server.stop(0.5).wait()
        self._later.shutdown(wait=False, cancel_futures=True)
        for channel in self._channels.values():
            channel.close()

    # ---- one call

    def _handle(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = [(key, value) for key, value in context.invocation_metadata() if key not in _OWN_HEADERS]
        target = dict(context.invocation_metadata()).get(TARGET)
        if not isinstance(target, str):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the call has no {TARGET}")
        call = _Call(self._channel(str(target)), method, request, metadata)
        timeout_s = min(context.time_remaining() or _DEADLINE_S, _DEADLINE_S)
        if method != PUSH:
            return self._forward(call, context, timeout_s)
        with self._lock:
            action, hold_s = self._script.action(self._rng), self._rng.uniform(*self._script.hold_s)
            replayed = self._rng.random() < self._script.replay
            after_s = self._rng.choice(self._script.replay_after_s)
            if action != "double":
                self.done[action] += 1
        if replayed:
            self._send_again(call, "replay", after_s=after_s)
        if action == "drop_request":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the request was dropped")
        if action == "hold":
            self._ended.wait(hold_s)
        if action == "double":
            self._send_again(call, "double", after_s=0.0)
        answer = self._forward(call, context, timeout_s)
        if action == "drop_answer":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was dropped")
        return answer

    def _forward(self, call: "_Call", context: grpc.ServicerContext, timeout_s: float) -> bytes:
        try:
            return call(timeout_s)
        except grpc.RpcError as error:
            failed: Any = error
            context.set_trailing_metadata(failed.trailing_metadata() or ())
            context.abort(failed.code(), failed.details())
            raise AssertionError("abort returned") from None

    def _send_again(self, call: "_Call", action: str, *, after_s: float) -> None:
        """Once more, word for word; dropped when too much waits for that already."""
        with self._lock:
            if self._kept_bytes + len(call.request) > _MOST_KEPT_BYTES:
                return
            self._kept_bytes += len(call.request)

        def send() -> None:
            arrived = call.arrives()
            with self._lock:
                self._kept_bytes -= len(call.request)
                self.done[action] += arrived

        def submit() -> None:
            with contextlib.suppress(RuntimeError):     # the run is over
                self._later.submit(send)

        timer = threading.Timer(after_s, submit)
        timer.daemon = True
        timer.start()

    def _channel(self, target: str) -> grpc.Channel:
        with self._lock:
            if target not in self._channels:
                self._channels[target] = grpc.insecure_channel(target, options=channel_options(None))
            return self._channels[target]


@dataclass(frozen=True, slots=True)
class _Call:
    """A recorded message."""

    channel: grpc.Channel
    method: str
    request: bytes
    metadata: list[tuple[str, Any]]

    def __call__(self, timeout_s: float, *, wait_for_ready: bool | None = None) -> bytes:
        """Sends it; RpcError as the target answers."""
        send: Any = self.channel.unary_unary(self.method, None, None)
        answer: bytes = send(
            self.request, timeout=timeout_s, metadata=self.metadata, wait_for_ready=wait_for_ready
        )
        return answer

    def arrives(self) -> bool:
        """Sends it; whether anybody was there, whatever the answer."""
        try:
            self(_LATE_DEADLINE_S, wait_for_ready=False)
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        except ValueError:     # the channel is closed: the run is over
            return False
        return True


class _Everything(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Every method there is, as bytes."""

    def __init__(self, handle: Callable[[str, bytes, grpc.ServicerContext], bytes]) -> None:
        self._handle = handle

    def service(self, details: Any) -> Any:
        """See grpc."""
        method = details.method
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._handle(method, request, context))
