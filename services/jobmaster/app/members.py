"""A jobmaster among others, as they see each other: what its session in the store says."""

import os
import socket
from dataclasses import dataclass

import orjson
import psutil

from recmesh.runtime.telemetry import get_logger

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """One that lives."""

    session: str
    """Of this stretch of its life: one whose session has ended comes back under another."""
    address: str
    """Where the others reach it."""
    live_jobs: int = 0
    """By it, as of its last renewal."""


def own_process() -> dict[str, object]:
    """By which other processes of this machine see that this one is gone."""
    return {
        "host": socket.gethostname(), "pid": os.getpid(), "created": psutil.Process().create_time(),
        "boot": int(psutil.boot_time()), "pids": _pid_namespace(),
    }


def _pid_namespace() -> str:
    """In which pids mean what they say: containers may have one host name, and pids of their own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def is_dead_neighbour(holder: dict[str, object]) -> bool:
    """The holder was a process of this machine that is gone: nobody needs to wait for its lease to end."""
    if holder.get("host") != socket.gethostname() or holder.get("boot") != int(psutil.boot_time()):
        return False
    if holder.get("pids", "") not in ("", _pid_namespace()):
        return False
    try:
        process = psutil.Process(int(str(holder.get("pid"))))
        return abs(process.create_time() - float(str(holder.get("created")))) > 0.5
    except (psutil.NoSuchProcess, ValueError):
        return True


def encoded(member: Member, process: dict[str, object]) -> bytes:
    """A session's value."""
    told = {"session": member.session, "address": member.address, "live_jobs": member.live_jobs}
    return orjson.dumps({**told, **process})


def decoded(value: bytes) -> Member | None:
    """None for a process that is known to be dead, and for what is no session."""
    try:
        told = orjson.loads(value)
        if is_dead_neighbour(told):
            return None
        return Member(str(told["session"]), str(told["address"]), int(told.get("live_jobs", 0)))
    except (ValueError, TypeError, KeyError, AttributeError):
        logger.warning("a session cannot be read; it is left out")
        return None
