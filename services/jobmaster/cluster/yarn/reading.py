"""How a container of YARN ended, in the terms of role processes. Pure."""

import signal
from collections.abc import Mapping
from typing import Any

from recmesh.formats import inhand
from services.jobmaster.domain.exits import Cause, Exit

SIGKILL, SIGTERM = 9, 15
_SIGNALS = 128
_MEMORY = frozenset({-103, -104})
"""KILLED_EXCEEDED_VMEM, KILLED_EXCEEDED_PMEM (ContainerExitStatus.java)."""
_CAUSES: Mapping[int, Cause] = {
    -100: "node lost",      # ABORTED: the node was lost, or the container released by the framework
    -101: "node lost",      # DISKS_FAILED
    -102: "preempted",      # PREEMPTED
    -105: "deleted",        # KILLED_BY_APPMASTER
    -106: "preempted",      # KILLED_BY_RESOURCEMANAGER: to a node a preemption is a kill by its ResourceManager
    -107: "deleted",        # KILLED_AFTER_APP_COMPLETION
    -108: "preempted",      # KILLED_BY_CONTAINER_SCHEDULER: room for a guaranteed one
    -109: "evicted",        # KILLED_FOR_EXCESS_LOGS
}
_WORDS = 600


def end_of(note: Mapping[str, Any]) -> Exit:
    """Of a note that a container, or a jobmaster, wrote."""
    known, batch = inhand.parse(str(note.get("in_hand") or ""))
    code, number = _whole(note.get("code")), _whole(note.get("signal"))
    return Exit(
        code=code, signal=number, oom=bool(note.get("oom")), reason=str(note.get("reason") or _killed(number)),
        last_line=str(note.get("last_line") or ""), knows_batch=known, batch=batch,
        cause=_cause(str(note.get("cause") or "")),
    )


def note_of(end: Exit) -> dict[str, Any]:
    """What `end_of` reads, of an end that the container could not note itself."""
    return {"code": end.code, "signal": end.signal, "oom": end.oom, "reason": end.reason, "cause": end.cause}


def end_without_note(told: Mapping[str, Any] | None, *, asked: int, node_lost: bool, over: str = "") -> Exit:
    """Of a container that noted nothing. told: what its node still tells; asked: the signal that jobmaster sent it, 0
    for none; over: why its whole service has ended."""
    code = _whole((told or {}).get("exitCode"))
    words = " ".join(str((told or {}).get("diagnostics") or "").split())[:_WORDS]
    if code in _MEMORY:
        return Exit(signal=SIGKILL, oom=True, reason=f"killed by YARN: out of memory: {words}")
    if asked:
        return Exit(signal=asked, reason=f"ended by {signal.Signals(asked).name}, as it was told")
    if code is not None and code in _CAUSES:
        cause = _CAUSES[code]
        return Exit(cause=cause, reason=f"{cause}: {words}" if words else cause)
    if node_lost:
        return Exit(cause="node lost", reason="node lost: YARN does not hear of it")
    if over:
        return Exit(cause="deleted", reason=f"its service has ended: {over}"[:_WORDS])
    if code is not None and code > _SIGNALS:
        return Exit(signal=code - _SIGNALS, reason=_killed(code - _SIGNALS))
    if code is not None and code >= 0:
        return Exit(code=code, last_line=words)
    return Exit(cause="deleted", reason="its container is gone, and its node does not tell how")


def is_of_others(code: int | None) -> bool:
    """An exit status of YARN that says more than the signal which a container itself noted."""
    return code is not None and (code in _MEMORY or code in _CAUSES)


def _killed(number: int | None) -> str:
    try:
        return f"killed by {signal.Signals(number).name}" if number else ""
    except ValueError:
        return f"killed by signal {number}"


def _whole(value: Any) -> int | None:
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None


def _cause(text: str) -> Cause:
    causes: tuple[Cause, ...] = ("evicted", "preempted", "node lost", "deleted", "refused")
    return next((cause for cause in causes if cause == text), "")
