"""What a CN tells of itself and of its HNs; docs/reference/serving.md has the document's shape."""

import threading
import time
from collections.abc import Callable
from typing import Any

from recmesh.runtime.errors import MeshError
from recmesh.serving.cn.asking import ByHn
from recmesh.serving.cn.peers import Hns
from recmesh.serving.transport import Message

PATIENCE_S = 1.0
"""An HN that has not told its state by then is shown without."""


def status_of(own: dict[str, Any], hns: Hns, asking: ByHn, *, told: Callable[[dict[str, Any]], None]) -> None:
    """Ask all HNs that are connected for theirs, then call `told` with the document, in a thread of its own."""
    threading.Thread(
        target=lambda: told({**own, "hns": _gathered(hns, asking)}), name="status", daemon=True
    ).start()


def _gathered(hns: Hns, asking: ByHn) -> dict[str, Any]:
    links = hns.links()
    states: dict[str, Any] = {}
    answers = 0
    came = threading.Condition()

    def answered(name: str, outcome: Message | MeshError) -> None:
        nonlocal answers
        with came:
            if isinstance(outcome, Message):
                states[name] = outcome.header.get("status")
            answers += 1
            came.notify()

    deadline = time.monotonic() + PATIENCE_S
    for link in links:
        try:
            link.call(
                {"op": "status"}, (), deadline=deadline,
                done=lambda outcome, name=link.name: answered(name, outcome),  # type: ignore[misc]  # bound to this one
            )
        except MeshError as error:
            answered(link.name, error)
    with came:
        came.wait_for(lambda: answers == len(links), PATIENCE_S + 1.0)
        found = dict(states)
    return {
        link.name: {
            "connected": link.connected, "why": "" if link.connected else link.refusal, "in_flight": link.in_flight,
            "admits": link.admits, "asks": asking.waiting(link.name), "status": found.get(link.name),
        }
        for link in links
    }  # fmt: skip
