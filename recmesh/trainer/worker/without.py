"""A worker that lacks one rule (see recmesh.trainer.breaking)."""

import threading
from collections.abc import Callable
from typing import TypeVar

from recmesh.trainer.layout import Placement
from recmesh.trainer.ports import ParameterServer, PushAck
from recmesh.trainer.worker.fleet import Fleet

T = TypeVar("T")


def fleet_without(rule: str) -> type[Fleet]:
    """The class to call servers with; of any other rule, the real one."""
    return _KeepsAcks if rule == "forget_acks" else Fleet


class _KeepsAcks(Fleet):
    """A server that has acknowledged a batch under any map is not sent it again."""

    def each(
        self, call: Callable[[int, ParameterServer], T], *, placement: Placement, what: str, gone: threading.Event
    ) -> dict[int, T]:
        """See Fleet.each."""
        acks: dict[tuple[str, int], T] = self.__dict__.setdefault("_acks", {})

        def once(ps: int, server: ParameterServer) -> T:
            if (what, ps) in acks:
                return acks[what, ps]
            answer = call(ps, server)
            if isinstance(answer, PushAck) and answer.status == "applied":
                acks[what, ps] = answer
            return answer

        return super().each(once, placement=placement, what=what, gone=gone)
