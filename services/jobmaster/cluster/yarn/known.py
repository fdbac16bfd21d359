"""The instances that this jobmaster knows of, by job."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from services.jobmaster.cluster import RoleProcess
from services.jobmaster.cluster.yarn.service import Component
from services.jobmaster.domain.exits import Exit


@dataclass(slots=True)
class Instance:
    """One process of a role, in one container at most."""

    job_id: str
    name: str
    service: str
    application: str
    component: str
    number: int
    container: str = ""
    """Empty until it has begun."""
    node: str = ""
    """Of its NodeManager's REST API."""
    seen: bool = False
    """The ResourceManager was asked for it after it had begun."""
    asked: int = 0
    """The signal that it was ended with, by this or another jobmaster."""
    waiting: str = ""
    exit: Exit | None = None

    @property
    def instance(self) -> str:
        """YARN's name of it."""
        return f"{self.component}-{self.number}"

    @property
    def handle(self) -> str:
        """The same for its whole life, wherever its container comes to be."""
        return f"{self.application}/{self.instance}"

    def view(self) -> RoleProcess:
        """As controllers tell of it."""
        waits = self.exit is None and not self.container
        return RoleProcess(
            self.job_id, self.name, self.handle, self.exit, waiting=self.waiting if waits else "", begun=not waits
        )


@dataclass(slots=True)
class Service:
    """A job's service, in one application."""

    job_id: str
    name: str
    application: str
    components: Sequence[Component] = ()
    """Empty until they were asked for."""
    instances: dict[str, Instance] = field(default_factory=dict)
    """By YARN's name."""
    attempt: str = ""
    """Of its master, in which containers are listed; empty: to be asked for."""
    over: bool = False
    """The application has ended."""
    dropped: set[str] = field(default_factory=set)
    """Instances whose end YARN was told of (decommissioned)."""

    @property
    def living(self) -> list[Instance]:
        """Those that have not ended."""
        return [each for each in self.instances.values() if each.exit is None]

    def following_number(self, component: str) -> int:
        """Of the next instance: YARN counts on from the last one."""
        return 1 + max((each.number for each in self.instances.values() if each.component == component), default=-1)

    def wanted(self, component: str) -> int:
        """Containers: one for each instance that YARN has not been told to take away."""
        dropped = sum(self.instances[each].component == component for each in self.dropped if each in self.instances)
        return self.following_number(component) - dropped


class KnownServices:
    """All services, and whom to tell of changes."""

    def __init__(self) -> None:
        self._by_job: dict[str, dict[str, Service]] = {}
        self.on_change: Callable[[str], None] = lambda job_id: None

    def __iter__(self) -> Iterator[Service]:
        return iter([each for services in self._by_job.values() for each in services.values()])

    def jobs(self) -> list[str]:
        """Those that have instances, living or ended."""
        return sorted(job for job in self._by_job if self.instances(job))

    def instances(self, job_id: str) -> list[Instance]:
        """All of a job."""
        return [each for service in self._by_job.get(job_id, {}).values() for each in service.instances.values()]

    def find(self, job_id: str, name: str) -> Instance | None:
        """The one of that name, or None; where it was started twice, the one that lives."""
        found = [each for each in self.instances(job_id) if each.name == name]
        return max(found, key=lambda each: each.exit is None, default=None)

    def current(self, job_id: str) -> Service | None:
        """The service that takes more processes: the newest one, where it has not ended."""
        newest = next(reversed(self._by_job.get(job_id, {}).values()), None)
        return newest if newest is not None and not newest.over else None

    def add(self, service: Service) -> Service:
        """The one that is kept: what is known already stays as it is."""
        return self._by_job.setdefault(service.job_id, {}).setdefault(service.application, service)

    def service(self, name: str, application: str) -> Service | None:
        """By YARN's names."""
        return next((each for each in self if (each.name, each.application) == (name, application)), None)

    def ended(self, instance: Instance, end: Exit) -> None:
        """Once: the first truth of an end stays."""
        if instance.exit is None:
            instance.exit = end
            self.on_change(instance.job_id)

    def waits(self, instance: Instance, why: str) -> None:
        """For this reason now."""
        if instance.waiting != why:
            instance.waiting = why
            self.on_change(instance.job_id)

    def drop(self, service: Service) -> None:
        """It is not there any more."""
        self._by_job.get(service.job_id, {}).pop(service.application, None)

    def forget(self, job_id: str) -> None:
        """Nothing of it is known any more."""
        self._by_job.pop(job_id, None)
