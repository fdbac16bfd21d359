"""What is where, and what is about to be.

A scheduler asks for the next pod before its last decision has come back by the watch, so that a node which was told to
be the best one counts as taken at once: for a while, or until the watch knows better.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from services.brain.domain.topology.model import Machine, Tenant

EMPTY: Mapping[str, float] = {}


class Fleet:
    """Nodes and the pods on them. Time is an argument."""

    def __init__(self, *, assumed_s: float = 30.0, most_assumed: int = 10_000) -> None:
        """assumed_s: so long a pod counts where it is expected, without a word of the watch."""
        self.machines: dict[str, Machine] = {}
        self._assumed_s, self._most_assumed = assumed_s, most_assumed
        self._tenants: dict[str, Tenant] = {}
        self._watched: set[str] = set()
        """Those that the watch has told of; others are known from questions alone."""
        self._assumed: dict[str, float] = {}
        """Until when, by uid; the oldest first."""
        self._apps: dict[str, dict[str, Tenant]] = {}
        self._used: dict[str, dict[str, float]] = {}
        """By node and resource."""

    def __len__(self) -> int:
        return len(self._tenants)

    # -- what the watch tells ----------------------------------------------------------------------------

    def take_machines(self, machines: Iterable[Machine]) -> None:
        """All there are."""
        self.machines = {machine.name: machine for machine in machines}

    def take_tenants(self, tenants: Iterable[Tenant]) -> None:
        """All that the watch knows; others that it knew are gone."""
        listed = {tenant.uid: tenant for tenant in tenants}
        for uid in self._watched - listed.keys():
            self.drop(uid)
        for tenant in listed.values():
            self.take(tenant)

    def take(self, tenant: Tenant) -> str:
        """One that is new, or has changed. The node where it was expected, when it has got another; else ''."""
        uid = tenant.uid
        self._watched.add(uid)
        known = self._tenants.get(uid)
        expected = known.node if known is not None and uid in self._assumed else ""
        if not tenant.node and expected:
            return ""  # still expected there
        self._assumed.pop(uid, None)
        self._put(tenant)
        return expected if expected not in ("", tenant.node) else ""

    def drop(self, uid: str) -> None:
        """It has ended, or was deleted."""
        self._watched.discard(uid)
        self._assumed.pop(uid, None)
        self._remove(uid)

    # -- what is about to be -----------------------------------------------------------------------------

    def assume(self, tenant: Tenant, node: str, *, now: float) -> None:
        """It is expected on the node; of too many the oldest is not expected any more."""
        self._assumed.pop(tenant.uid, None)
        self._assumed[tenant.uid] = now + self._assumed_s
        self._put(_at(tenant, node))
        while len(self._assumed) > self._most_assumed:
            self._give_up(next(iter(self._assumed)))

    def asks_again(self, tenant: Tenant, *, now: float) -> None:
        """Who asks has no node yet; and what was expected too long ago has not come."""
        if tenant.uid in self._assumed:
            self._give_up(tenant.uid)
        while self._assumed and next(iter(self._assumed.values())) <= now:
            self._give_up(next(iter(self._assumed)))

    def _give_up(self, uid: str) -> None:
        del self._assumed[uid]
        if uid in self._watched:
            self._put(_at(self._tenants[uid], ""))
        else:
            self._remove(uid)

    # -- questions ---------------------------------------------------------------------------------------

    def instances(self, app: str) -> Counter[str]:
        """Of an application, by node."""
        return Counter(tenant.node for tenant in self._apps.get(app, {}).values() if tenant.node)

    def waiting(self, app: str) -> Iterator[Tenant]:
        """Its instances without a node."""
        return (tenant for tenant in self._apps.get(app, {}).values() if not tenant.node)

    def of_app(self, app: str) -> Collection[Tenant]:
        """Its instances, with and without a node."""
        return self._apps.get(app, {}).values()

    def on_nodes(self, nodes: Collection[str]) -> Iterator[Tenant]:
        """All that are there, of any application."""
        return (tenant for tenant in self._tenants.values() if tenant.node in nodes)

    def others(self, app: str) -> Iterator[Collection[Tenant]]:
        """All instances of each other application."""
        return (members.values() for name, members in self._apps.items() if name != app)

    def free(self, machine: Machine, resource: str) -> float:
        """What is left of a resource."""
        return machine.allocatable.get(resource, 0.0) - self._used.get(machine.name, EMPTY).get(resource, 0.0)

    def used(self, node: str) -> Mapping[str, float]:
        """What pods have requested, by resource."""
        return self._used.get(node, EMPTY)

    # -- one tenant --------------------------------------------------------------------------------------

    def _put(self, tenant: Tenant) -> None:
        self._remove(tenant.uid)
        self._tenants[tenant.uid] = tenant
        if tenant.app:
            self._apps.setdefault(tenant.app, {})[tenant.uid] = tenant
        if tenant.node:
            used = self._used.setdefault(tenant.node, {})
            for resource, amount in tenant.requests.items():
                used[resource] = used.get(resource, 0.0) + amount

    def _remove(self, uid: str) -> None:
        tenant = self._tenants.pop(uid, None)
        if tenant is None:
            return
        if tenant.app:
            peers = self._apps[tenant.app]
            del peers[uid]
            if not peers:
                del self._apps[tenant.app]
        if tenant.node:
            used = self._used[tenant.node]
            for resource, amount in tenant.requests.items():
                used[resource] -= amount
            if used.get("pods", 0.0) < 0.5:  # the last one: sums of floats would not come back to nothing
                del self._used[tenant.node]


def _at(tenant: Tenant, node: str) -> Tenant:
    return Tenant(
        tenant.uid,
        tenant.name,
        tenant.app,
        tenant.requests,
        node,
        tenant.most_per_node,
        tenant.most_per_switch,
        tenant.instances,
    )
