"""Early stopping: whether an evaluation is an improvement."""

from recmesh.spec.job import EarlyStopping


def judged(rule: EarlyStopping, value: float, *, best: float | None, stale: int) -> tuple[float, int]:
    """(the best value so far, evaluations in a row without an improvement by more than `min_delta`)."""
    if best is None:
        return value, 0
    gain = value - best if rule.metric == "auc" else best - value
    return (value, 0) if gain > rule.min_delta else (best, stale + 1)
