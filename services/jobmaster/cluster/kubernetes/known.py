"""The pods that this jobmaster knows of, kept by lists, events and answers in whatever order they come."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from recmesh.runtime.kube import Object
from recmesh.spec.template import CONTAINER
from services.jobmaster.cluster.kubernetes.pods import ATTEMPT, INDEX, JOB, ROLE
from services.jobmaster.cluster.kubernetes.reading import Pod, read
from services.jobmaster.domain.exits import EXIT_RETRY, Exit


class KnownPods:
    """What is kept of each, by job and name. One that was deleted stays until its job is forgotten: the truth of its
    end is nowhere else. `on_end` gets pods whose last line is to be asked for; `ended` takes the answer in."""

    def __init__(self, on_end: Callable[[Pod], None]) -> None:
        self._by_job: dict[str, dict[str, Pod]] = {}
        self._on_end = on_end
        self._asking: set[str] = set()
        self._forgotten: set[str] = set()
        """Uids of pods on their way out, of jobs that are no more."""
        self._told: set[str] = set()
        """Uids of pods whose end was asked for here."""
        self._changed = asyncio.Event()
        self.on_change: Callable[[str], None] = lambda job_id: None

    def of(self, job_id: str) -> list[Pod]:
        """All of a job."""
        return list(self._by_job.get(job_id, {}).values())

    def find(self, job_id: str, name: str) -> Pod | None:
        """One, or None."""
        return self._by_job.get(job_id, {}).get(name)

    def jobs(self) -> list[str]:
        """Those that have pods."""
        return sorted(self._by_job)

    def take(self, thing: Object, *, gone: bool = False) -> None:
        """A pod as the API shows it; gone: as it was when it was deleted. Older news than what is known are nothing."""
        uid = thing["metadata"]["uid"]
        if uid in self._forgotten:
            if gone:
                self._forgotten.discard(uid)
            return
        pod = read(thing, gone=gone, ours=uid in self._told)
        if pod is None or uid in self._asking:
            return
        known = self.find(pod.job_id, pod.name)
        if known is None and gone:
            return              # its job is forgotten
        if known is not None and (known.version > pod.version or (known.uid == uid and known.exit is not None)):
            return
        end = pod.exit
        if end is not None:
            self._told.discard(uid)
            if _says_why(end):
                self._asking.add(uid)
                self._by_job.setdefault(pod.job_id, {})[pod.name] = replace(pod, exit=None)
                self._on_end(pod)
                return
        self._by_job.setdefault(pod.job_id, {})[pod.name] = pod
        if known is None or replace(known, version=pod.version) != pod:
            self._tell(pod.job_id)

    def take_all(self, objects: Iterable[Object], version: int) -> None:
        """A list as of `version`: what was known by then and is not in it is gone."""
        seen = set()
        for thing in objects:
            seen.add(thing["metadata"]["uid"])
            self.take(thing)
        self._forgotten &= seen
        for job_id in self.jobs():
            for pod in self.of(job_id):
                if pod.exit is None and pod.uid not in seen and pod.version <= version:
                    self.lose(pod)

    def lose(self, pod: Pod) -> None:
        """It is not there any more, and nobody saw how it ended."""
        role, index, attempt = pod.name.split("-")
        labels = {JOB: pod.job_id, ROLE: role, INDEX: index, ATTEMPT: attempt}
        self.take({
            "metadata": {"name": pod.pod, "uid": pod.uid, "labels": labels, "resourceVersion": str(pod.version)},
            "spec": {"containers": [{"name": CONTAINER}]},
        }, gone=True)   # fmt: skip

    def ended(self, pod: Pod, last_line: str) -> None:
        """The end of a pod that `on_end` got, with what it wrote last."""
        self._asking.discard(pod.uid)
        known, end = self.find(pod.job_id, pod.name), pod.exit
        if known is not None and known.uid == pod.uid and end is not None:
            self._by_job[pod.job_id][pod.name] = replace(pod, exit=replace(end, last_line=last_line))
            self._tell(pod.job_id)

    def told_to_go(self, pod: Pod) -> None:
        """Its end was asked for here."""
        self._told.add(pod.uid)

    def forget(self, job_id: str) -> None:
        """News of its pods are of no interest from now on."""
        self._forgotten |= {pod.uid for pod in self._by_job.pop(job_id, {}).values()}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when it holds, which is looked at whenever a pod has changed."""
        while not condition():
            await self._changed.wait()

    def _tell(self, job_id: str) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change(job_id)


def _says_why(end: Exit) -> bool:
    """Its last line says more than its exit code."""
    return end.code not in (None, 0, EXIT_RETRY) and not end.oom and not end.cause
