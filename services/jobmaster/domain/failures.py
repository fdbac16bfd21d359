"""What a user's `pod_failure_policy` makes of an end. Pure."""

from dataclasses import replace

from recmesh.spec.policies import FailureRule, PodFailurePolicy
from services.jobmaster.domain.exits import Cause, Exit, Verdict

SIGNALS = 128
_DISRUPTIONS: frozenset[Cause] = frozenset({"evicted", "preempted", "node lost"})
"""Causes that Kubernetes tells by the condition DisruptionTarget; a pod that somebody deleted has none."""


def shell_code(exit: Exit) -> int | None:
    """As containers and shells count: a signal n is 128 + n."""
    return SIGNALS + exit.signal if exit.signal is not None else exit.code


def ruled(policy: PodFailurePolicy, role: str, exit: Exit, verdict: Verdict) -> Verdict:
    """The verdict as the first rule that fits has it; as it is where none does, or where the end was asked for."""
    if not verdict.is_uncommanded:
        return verdict
    for place, rule in enumerate(policy.rules):
        if _fits(rule, role, exit):
            return replace(verdict, action=rule.action, rule=place)
    return verdict


def _fits(rule: FailureRule, role: str, exit: Exit) -> bool:
    if rule.roles and role not in rule.roles:
        return False
    if rule.on_exit_codes is None:
        return exit.cause in _DISRUPTIONS
    code = shell_code(exit)
    if not code:        # nobody saw it, or it is no failure
        return False
    return (code in rule.on_exit_codes.values) == (rule.on_exit_codes.operator == "In")
