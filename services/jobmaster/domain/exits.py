"""What the end of a process means for its job."""

from dataclasses import dataclass
from typing import Literal

from recmesh.spec.policies import FailureAction
from services.jobmaster.domain.job import RoleState
from services.jobmaster.domain.ledgers import Interval

EXIT_MISTAKE = 64
"""The user's mistake: a retry would end the same way."""
EXIT_RETRY = 75
"""The process lost its place (an old generation, a service away for too long); another may go on."""

Kind = Literal["commanded", "done", "mistake", "retry", "oom", "crash"]
Cause = Literal["", "evicted", "preempted", "node lost", "deleted", "refused"]
"""What others did to a process, through no fault of its own: its node ran short, a process of higher priority needed
the room, its node is gone, somebody deleted it, or the cluster would not take it for now."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended; all None or empty when that is not known."""

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    reason: str = ""
    """For people: `killed by SIGKILL`."""
    last_line: str = ""
    """The last line that it wrote; a role's own message comes last."""
    knows_batch: bool = False
    """`batch` is what the process itself wrote down; otherwise nothing is known of its batch."""
    batch: Interval | None = None
    """What the model computed at the end; None: nothing."""
    cause: Cause = ""
    """Empty: its own doing, or not known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to make of an end."""

    kind: Kind
    text: str
    action: FailureAction | Literal[""] = ""
    """Of the rule of the job's `pod_failure_policy` that fits; empty: none does."""
    rule: int = 0
    """Which one it is."""

    @property
    def is_uncommanded(self) -> bool:
        """Nobody asked it to end, and it had not finished."""
        return self.kind not in ("commanded", "done")

    @property
    def counts(self) -> bool:
        """Counts against the job's backoff limit."""
        if self.action:
            return self.action != "Ignore"
        return self.kind in ("oom", "crash", "mistake")

    @property
    def is_mistake(self) -> bool:
        """Another try would end in the same way, as far as is known."""
        return self.kind == "mistake" and not self.action


def judge(role: RoleState, exit: Exit) -> Verdict:
    """The verdict on the end of a role's process."""
    how = exit.reason or _how(exit)
    if exit.oom:
        return Verdict("oom", how)
    if role.stage == "draining" and (exit.code in (0, EXIT_RETRY) or exit.signal is not None):
        return Verdict("commanded", "asked to go")
    if exit.code == 0:
        return Verdict("done", "nothing left to do")
    if exit.code == EXIT_MISTAKE:
        return Verdict("mistake", exit.last_line or how)
    if exit.cause:
        return Verdict("commanded" if role.stage == "draining" else "retry", how)
    if exit.code == EXIT_RETRY:
        return Verdict("retry", _told(how, exit.last_line))
    return Verdict("crash", _told(how, exit.last_line if exit.signal is None else ""))


def _told(how: str, last_line: str) -> str:
    return f"{how}: {last_line}" if last_line else how


def _how(exit: Exit) -> str:
    if exit.signal is not None:
        return f"killed by signal {exit.signal}"
    return "gone, and nobody saw how" if exit.code is None else f"exit code {exit.code}"


def retry_delay_s(streak: int, *, base_s: float = 1.0, ceiling_s: float = 60.0) -> float:
    """How long the next start waits after `streak` failures in a row: at once, then 1, 2, 4 ... 60 s."""
    return 0.0 if streak <= 1 else min(base_s * 2.0 ** (streak - 2), ceiling_s)
