"""One rule of exactly-once switched off, in a chaos run that must then go red. Never outside of one."""

from collections.abc import Mapping

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.gates import FOLDER

VARIABLE = "RECMESH_CHAOS_BREAK"

RULES: Mapping[str, str] = {
    "dedup": "a batch that is in the ledger, or claimed, is not applied again",
    "map": "a split by a map older than the slots here is refused",
    "coverage": "a part with a row of a slot that is not owned here is refused",
    "generation": "what is not of this server's generation is refused",
    "incarnation": "a restore that names another process is refused",
    "one_cut": "a mark copies ledgers and rows in one exclusive section",
    "carried": "slots that move bring their own ledger",
    "promise": "a server that has promised never to install a move keeps to it",
    "forget_acks": "a split by a newer map forgets all acks of the batch",
}
"""By name. The last is the workers', the others are the parameter servers'."""


def broken_rule(env: Mapping[str, str]) -> str:
    """The rule that the environment switches off, or ''. InvalidArgument outside of a chaos run."""
    name = env.get(VARIABLE, "")
    if name and not env.get(FOLDER):
        reason = f"breaks training, and is taken in a chaos run only ({FOLDER})"
        raise InvalidArgument(f"{VARIABLE} {reason}", violations=[Violation(VARIABLE, reason)])
    check_rule(name)
    return name


def check_rule(name: str, *, field: str = VARIABLE) -> None:
    """InvalidArgument when there is no such rule; '' stands for none."""
    if name and name not in RULES:
        reason = f"{name!r} is no rule; there are {', '.join(RULES)}"
        raise InvalidArgument("no rule can be switched off", violations=[Violation(field, reason)])
