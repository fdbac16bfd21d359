"""What a job gets when nothing like it has run: docs/reference/plan.md says why."""

from services.brain.domain.model import RolePlan

GIB = 1 << 30

DEFAULTS = {
    "ps": RolePlan("ps", replicas=1, cpu=1.0, memory_bytes=2 * GIB),
    "worker": RolePlan("worker", replicas=2, cpu=1.0, memory_bytes=2 * GIB),
    "data": RolePlan("data", replicas=0, cpu=1.0, memory_bytes=2 * GIB),
    "evaluator": RolePlan("evaluator", replicas=0, cpu=1.0, memory_bytes=2 * GIB),
}
"""Small on purpose: a plan that is too small costs time until brain has a profile, one that is too large
takes from others what it does not use.

- two workers: the least number with which a dead worker does not stop training;
- one PS: every batch is pushed to every PS, so a second one costs before it gains;
- one core each: roles are single-threaded but for their kernels;
- no data executor and no evaluator unless the job's limits ask for one.
"""


def default(role: str) -> RolePlan:
    """A role that is not in the table starts with one process of a worker's size."""
    return DEFAULTS.get(role) or RolePlan(role, replicas=1, cpu=1.0, memory_bytes=2 * GIB)
