"""What brain can say about a job, in words."""

from collections.abc import Mapping, Sequence

from services.brain.domain.model import Change, Look, Plan, Profile

_PARTS = ("data_s", "pull_s", "compute_s", "push_s")


def explain(
    plan: Plan | None, profiles: Sequence[Profile], look: Look | None = None, changes: Sequence[Change] = ()
) -> str:
    """The plan, where the time goes by the newest profile that knows, the last decision, and what came of changes."""
    sentences = []
    if plan is None:
        sentences.append("No plan was asked for.")
    else:
        shape = ", ".join(f"{role.replicas} {role.role} × {role.cpu:g} CPU" for role in plan.roles)
        sentences.append(f"Plan ({plan.source}): {shape}; {plan.explanation}.")
    if not profiles:
        sentences.append("It has sent no profile yet.")
        return " ".join(sentences)
    newest = profiles[-1]
    sentences.append(f"It trains {newest.samples_per_s:,.0f} samples/s on {newest.workers} worker(s), {newest.ps} PS.")
    spent = next(filter(_total, (_spent(each) for each in reversed(profiles))), {})
    total = _total(spent)
    if total > 0:
        shares = ", ".join(f"{name} {value / total:.0%}" for name, value in spent.items())
        longest = max(spent, key=lambda name: spent[name])
        sentences.append(f"Time of a step: {shares}; most goes to {longest}.")
    if look is not None:
        model = look.fit.unknown or f"{look.fit.form}, wrong by {look.fit.error:.1%} on points it had not seen"
        sentences.append(f"Its speed: {model}. Last decision ({look.planner}, {look.reason}): {look.why}.")
    if changes:
        newest_change = changes[0]
        sentences.append(f"Its last change was {newest_change.verdict}: {newest_change.why}.")
    return " ".join(sentences)


def _spent(profile: Profile) -> dict[str, float]:
    """Seconds of a step by part; a profile that only tells a speed has none."""
    return {name.removesuffix("_s"): float(getattr(profile, name)) for name in _PARTS}


def _total(spent: Mapping[str, float]) -> float:
    return sum(spent.values())
