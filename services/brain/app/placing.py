"""Pods of applications onto nodes: a scheduler asks for each pod, and what it made of the answer comes by watches."""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.runtime.telemetry import Metrics, get_logger
from services.brain.app.rechecking import Living, Rechecking
from services.brain.domain.topology.choosing import Ranking, keep, rank
from services.brain.domain.topology.fleet import Fleet
from services.brain.domain.topology.model import Kept, Rules, Tenant
from services.brain.domain.topology.objects import Object, is_over, machine_of, tenant_of

KEPT = 200
LATENCY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)

logger = get_logger(__name__)
_metrics = Metrics("brain")
_seconds = _metrics.histogram(
    "placement_seconds", "Answers to the scheduler, without HTTP", labels=["verb"], buckets=LATENCY
)
_decisions = _metrics.counter("placement_decisions", "Pods given a best node, by reason", labels=["reason"])
_refusals = _metrics.counter("placement_refusals", "Pods that no node was left for, by objection", labels=["objection"])
_overruled = _metrics.counter("placement_overruled", "Pods that the scheduler put on another node than the best one")
_nodes = _metrics.gauge("placement_nodes", "Nodes that brain knows")


@dataclass(frozen=True, slots=True)
class Decision:
    """What was said of a pod."""

    at: float
    pod: str
    app: str
    asked: int
    """Nodes that the scheduler found feasible."""
    kept: int
    node: str
    """The best one; "" when none was left."""
    switch: str
    reason: str
    why: str


class Placing:
    """Everything is in memory, and comes again by the watches after a restart."""

    def __init__(self, rules: Rules, *, clock: Clock, living: Living | None = None) -> None:
        """living: asked before a pod is refused everywhere."""
        self._rules, self._clock = rules, clock
        self._fleet = Fleet()
        self._rechecking = Rechecking(self._fleet, rules, living)
        self._listed: set[str] = set()
        self._asked: dict[str, int] = {}
        """Feasible nodes of the last filters, by the pod's uid: prioritize is told only of those that were kept."""
        self.decisions: deque[Decision] = deque(maxlen=KEPT)
        """Newest last."""
        self.counts: Counter[str] = Counter()
        """placed, refused, overruled; since the start."""

    @property
    def nodes(self) -> int:
        """Known."""
        return len(self._fleet.machines)

    # -- what the scheduler asks -------------------------------------------------------------------------

    async def filter(self, pod: Object, names: Sequence[str]) -> Kept:
        """Nodes that the pod may have. InvalidArgument for what is no pod; Unavailable before all is listed."""
        began = time.perf_counter()
        tenant, now = self._tenant(pod), self._clock.now()
        self._fleet.asks_again(tenant, now=now)
        kept = keep(tenant, names, self._fleet, self._rules)
        if kept.refused and not kept.names:
            await self._rechecking.look(tenant, kept)
            kept = keep(tenant, names, self._fleet, self._rules)
        if tenant.app and kept.names:
            self._asked[tenant.uid] = len(names)
            while len(self._asked) > KEPT:
                self._asked.pop(next(iter(self._asked)))
            if len(kept.names) == 1:  # which of one is best, no scheduler asks
                self._choose(tenant, kept.names, now)
        elif tenant.app and kept.refused:
            self._refuse(tenant, kept, now)
        _seconds.labels("filter").observe(time.perf_counter() - began)
        return kept

    def prioritize(self, pod: Object, names: Sequence[str]) -> Mapping[str, int]:
        """Scores from 0 to 10; the best node counts as taken from now on. Errors as `filter`."""
        began = time.perf_counter()
        ranking = self._choose(self._tenant(pod), names, self._clock.now())
        scores = ranking.scores if ranking else dict.fromkeys(names, 0)
        _seconds.labels("prioritize").observe(time.perf_counter() - began)
        return scores

    def _tenant(self, pod: Object) -> Tenant:
        if self._listed != {"nodes", "pods"}:
            raise Unavailable("brain has not listed the cluster's nodes and pods yet", reason="NOT_LISTED")
        return tenant_of(pod, self._rules)

    def _choose(self, tenant: Tenant, names: Sequence[str], now: float) -> Ranking | None:
        ranking = rank(tenant, names, self._fleet, self._rules)
        if ranking is None:
            return None
        self._fleet.assume(tenant, ranking.best, now=now)
        reason = ranking.reason.name.lower()
        _decisions.labels(reason).inc()
        self.counts["placed"] += 1
        asked = self._asked.pop(tenant.uid, len(names))
        self.decisions.append(Decision(
            now, tenant.name, tenant.app, asked, len(names), ranking.best, ranking.switch, reason, ranking.why
        ))  # fmt: skip
        return ranking

    def _refuse(self, tenant: Tenant, kept: Kept, now: float) -> None:
        """Told by the objection that is most easily mended."""
        objection, why = min(kept.refused.values())
        _refusals.labels(objection.name.lower()).inc()
        self.counts["refused"] += 1
        self.decisions.append(Decision(
            now, tenant.name, tenant.app, len(kept.refused), 0, "", "", objection.name.lower(), why
        ))  # fmt: skip

    # -- what watches tell -------------------------------------------------------------------------------

    def take_nodes(self, nodes: Iterable[Object]) -> None:
        """All there are."""
        self._fleet.take_machines(machine_of(node, self._rules) for node in nodes)
        self._listed.add("nodes")
        self._rechecking.news()
        _nodes.set(len(self._fleet.machines))

    def take_node(self, node: Object, *, gone: bool) -> None:
        """One that is new, has changed, or is gone."""
        machine = machine_of(node, self._rules)
        if gone:
            self._fleet.machines.pop(machine.name, None)
        else:
            self._fleet.machines[machine.name] = machine
            self._rechecking.news()
        _nodes.set(len(self._fleet.machines))

    def take_pods(self, pods: Iterable[Object]) -> None:
        """All that have not ended."""
        found = [self._read(pod) for pod in pods if not is_over(pod)]
        self._fleet.take_tenants(tenant for tenant in found if tenant is not None)
        self._listed.add("pods")

    def take_pod(self, pod: Object, *, gone: bool) -> None:
        """One that is new, has changed, or is gone."""
        tenant = self._read(pod)
        if tenant is None:
            return
        if gone or is_over(pod):
            self._fleet.drop(tenant.uid)
        elif expected := self._fleet.take(tenant):
            _overruled.inc()
            self.counts["overruled"] += 1
            logger.debug("pod %s is on %s, and was expected on %s", tenant.name, tenant.node, expected)

    def _read(self, pod: Object) -> Tenant | None:
        """None for one that cannot be read; the API server has taken it, so that it is ours to bear."""
        try:
            return tenant_of(pod, self._rules)
        except (InvalidArgument, ValueError) as error:
            logger.warning("a pod cannot be read, and takes no room: %s", error)
            return None
