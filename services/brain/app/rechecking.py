"""Refusals, looked at again before they are given.

A scheduler tries a refused pod again at once when something has changed, and then not for minutes (kube-scheduler: 5)
unless something else does. It hears of the change by a watch of its own, which may be ahead of brain's: a refusal for
the sake of a pod that is gone would leave the pod waiting though there is room. So those that stand in the way are
asked for from the API server, which answers as of the question's moment or later, and nodes that the scheduler knows
are waited for.
"""

import asyncio
from collections.abc import Callable, Collection, Set
from typing import Protocol

from recmesh.runtime.bucket import Bucket
from recmesh.runtime.errors import MeshError
from recmesh.runtime.telemetry import Metrics, get_logger
from services.brain.domain.topology.fleet import Fleet
from services.brain.domain.topology.model import Kept, Objection, Rules, Tenant

LOOK_S = 1.0
"""At most; the scheduler places nothing else meanwhile, and gives an answer up after 5 s."""
LOOKS_PER_S, LOOKS_AT_ONCE = 20.0, 40.0
"""Where many pods wait in vain, each event wakes all of them: others are then refused by what brain knows, and the next
event wakes them again."""
MOST_NODES = 32

logger = get_logger(__name__)
_looks = Metrics("brain").counter(
    "placement_looks", "Refusals that were looked at again, by outcome", labels=["outcome"]
)


class Living(Protocol):
    """Pods, as of now."""

    async def of_app(self, app: str) -> Set[str]:
        """Uids of its pods that have not ended. MeshError when it cannot be told."""
        ...

    async def on_node(self, node: str) -> Set[str]:
        """Uids of all on it that have not ended. MeshError when it cannot be told."""
        ...


class Rechecking:
    """`living` None: waits for nodes only."""

    def __init__(self, fleet: Fleet, rules: Rules, living: Living | None) -> None:
        self._fleet, self._rules, self._living = fleet, rules, living
        self._bucket = Bucket(per_s=LOOKS_PER_S, burst=LOOKS_AT_ONCE)
        self._changed = asyncio.Event()

    def news(self) -> None:
        """The watch has told something."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def look(self, asked: Tenant, kept: Kept) -> None:
        """Puts right what `kept` rests on, as far as it can be told in time; it is to be judged again after this."""
        if self._bucket.take(asyncio.get_running_loop().time(), patience_s=0.0) is None:
            _looks.labels("skipped").inc()
            return
        unknown = {name for name, (objection, _) in kept.refused.items() if objection is Objection.UNKNOWN_NODE}
        gone = 0
        try:
            async with asyncio.timeout(LOOK_S):
                if len(unknown) < len(kept.refused) and self._living is not None:
                    gone = await self._drop_gone(asked, self._crowded(kept), self._living)
                if unknown and not gone:
                    await self._until(lambda: not unknown.isdisjoint(self._fleet.machines))
        except (MeshError, TimeoutError) as error:
            _looks.labels("failed").inc()
            logger.debug("pod %s is judged by what was known before: %s", asked.name, error)
            return
        _looks.labels("changed" if gone or unknown else "same").inc()

    def _crowded(self, kept: Kept) -> list[str]:
        """Nodes whose pods have what their switch may promise; of very many only some."""
        machines = self._fleet.machines
        closed = {
            machines[name].switch
            for name, (objection, _) in kept.refused.items()
            if objection is Objection.NO_BANDWIDTH and name in machines
        }
        nic = self._rules.nic
        found = [
            name for name, machine in machines.items() if machine.switch in closed and self._fleet.used(name).get(nic)
        ]
        return sorted(found)[:MOST_NODES]

    async def _drop_gone(self, asked: Tenant, nodes: Collection[str], living: Living) -> int:
        """How many are not there any more: who was known before the question and is not in its answer is gone; who came
        since is the watch's to tell."""
        members = {tenant.uid for tenant in self._fleet.of_app(asked.app) if tenant.uid != asked.uid}
        crowd = {tenant.uid for tenant in self._fleet.on_nodes(frozenset(nodes))}
        peers, *found = await asyncio.gather(living.of_app(asked.app), *(living.on_node(node) for node in nodes))
        gone = (members - peers) | (crowd - set().union(*found))
        for uid in gone:
            self._fleet.drop(uid)
        return len(gone)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()
