"""The resource controller of Kubernetes: one watch of all pods, and one call for most of what it is asked to do."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, get_args

from recmesh.runtime.errors import (
    AlreadyExists,
    CallerError,
    FailedPrecondition,
    MeshError,
    NotFound,
    PermissionDenied,
    Unavailable,
    Violation,
)
from recmesh.runtime.kube import NODES, PODS, SECRETS, KubeClient, Listing, Object, follow
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.job import RoleName, TrainingJob
from recmesh.spec.template import CONTAINER
from services.jobmaster.cluster import Capacity, RoleProcess, StartOrder
from services.jobmaster.cluster.kubernetes import room
from services.jobmaster.cluster.kubernetes.groups import KINDS, scheduler_of
from services.jobmaster.cluster.kubernetes.known import KnownPods
from services.jobmaster.cluster.kubernetes.pods import (
    JOB,
    SELECTOR,
    TRAINING_JOBS,
    PodSettings,
    gpu_violations,
    group_object,
    owner_reference,
    pod_name,
    pod_of,
    secret_of,
)
from services.jobmaster.cluster.kubernetes.pods import size as quantities
from services.jobmaster.cluster.kubernetes.reading import Pod, Size, is_gone, read

logger = get_logger(__name__)

START_S = 60.0
"""Of a start that waits for its turn among thousands; one that is not sent by then is tried again by the rules."""
LISTED_S = 60.0
ROOM_S = 10.0
"""What nodes have free is asked for this often at most: it takes a list of all pods."""
LOOK_S = 10.0
FORCED_LOOKS = 12
"""A pod that a node which says it is ready has not ended after so many looks is given up, too."""
GROUP = "group"
_LOGS_AT_ONCE = 16
_LOGS_S = 5.0
_LIVING = "status.phase!=Succeeded,status.phase!=Failed"


class KubernetesController:
    """`find_again` begins to watch; `stop_watching` ends that, and pods go on. The client is the caller's to close."""

    def __init__(self, client: KubeClient, settings: PodSettings) -> None:
        self._client, self._settings = client, settings
        self._known = KnownPods(lambda pod: self._in_background(lambda: self._ask_last_line(pod)))
        self._making: dict[tuple[str, str], asyncio.Task[Any]] = {}
        """What pods of a job share, by job and name."""
        self._groups: dict[str, tuple[str, int]] = {}
        """By job: the scheduler of its group, and how many pods it holds at least."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._logs = asyncio.Semaphore(_LOGS_AT_ONCE)
        self._watcher: asyncio.Task[None] | None = None
        self._listed = asyncio.Event()
        self._room: tuple[float, Capacity] | None = None
        self._room_lock = asyncio.Lock()
        self._nodes: tuple[float, frozenset[str]] | None = None
        self._nodes_lock = asyncio.Lock()

    # -- what there is -----------------------------------------------------------------------------------

    def watch(self, on_change: Callable[[str], None]) -> None:
        """See `Controller`."""
        self._known.on_change = on_change

    async def find_again(self) -> None:
        """See `Controller`. Unavailable when the cluster does not answer."""
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._follow())
            try:
                async with asyncio.timeout(LISTED_S):
                    await self._listed.wait()
            except TimeoutError:
                raise Unavailable(f"Kubernetes has not listed its pods within {LISTED_S:g} s") from None
            return
        objects, version = await self._client.list(PODS, namespace=self._settings.namespace, labels=SELECTOR)
        self._known.take_all(objects, int(version))

    async def stop_watching(self) -> None:
        """See `Controller`."""
        tasks = [*self._tasks, *self._making.values(), *([self._watcher] if self._watcher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watcher = None

    async def _follow(self) -> None:
        async with aclosing(follow(
            self._client, PODS, namespace=self._settings.namespace, labels=SELECTOR, on_trouble=self._forget_room
        )) as news:
            async for item in news:
                if isinstance(item, Listing):
                    self._known.take_all(item.objects, int(item.version))
                    self._listed.set()
                else:
                    self._known.take(item.object, gone=item.kind == "DELETED")

    def _forget_room(self) -> None:
        """Of a cluster that is away nobody knows what it has free, though it told moments ago."""
        self._room = None

    async def _ask_last_line(self, pod: Pod) -> None:
        """The end is told with what the process wrote last, and without it when nobody knows."""
        last = ""
        with suppress(MeshError):
            async with self._logs:
                lines = await self._log(pod.pod, lines=20, timeout_s=_LOGS_S)
            last = next((line.strip()[:2000] for line in reversed(lines) if line.strip()), "")
        self._known.ended(pod, last)

    async def processes(self, job_id: str) -> list[RoleProcess]:
        """See `Controller`."""
        return [_view(pod) for pod in self._known.of(job_id)]

    async def jobs(self) -> list[str]:
        """See `Controller`."""
        return self._known.jobs()

    # -- starts ------------------------------------------------------------------------------------------

    def refusals(self, spec: TrainingJob) -> list[Violation]:
        """See `Controller`."""
        found = []
        for name in get_args(RoleName):
            role = getattr(spec.roles, name)
            found += gpu_violations(name, gpu=role.gpu, kind=role.gpu_kind, settings=self._settings)
        return found

    async def start(self, order: StartOrder) -> RoleProcess:
        """See `Controller`. The API server's own refusals; Unavailable while an older pod of this name is going."""
        known = self._known.find(order.job_id, order.name)
        if known is not None and known.exit is None and not known.leaving:
            return _view(known)
        owner = await self._once(order.job_id, "owner", lambda: self._owner(order))
        group = group_object(order, self._settings, owner)
        if group is not None and order.group is not None:
            self._group_ahead(order.job_id, (scheduler_of(order.group), order.group.least))
            await self._once(order.job_id, GROUP, lambda: self._apply_group(group))
        secret = secret_of(order, self._settings, owner)
        name = secret["metadata"]["name"] if secret else ""
        if secret is not None:
            await self._once(order.job_id, name, lambda: self._create_secret(secret))
        pod = pod_of(order, self._settings, owner=owner, secret=name)
        try:
            made = await self._client.create(PODS, pod, namespace=self._settings.namespace, timeout_s=START_S)
        except AlreadyExists:
            made = await self._client.get(PODS, pod["metadata"]["name"], namespace=self._settings.namespace)
            found = read(made)
            if found is None or (found.job_id, found.name) != (order.job_id, order.name):
                raise
            if found.leaving:
                raise Unavailable(f"an older pod {found.pod} is still going", reason="STILL_GOING") from None
        self._known.take(made)
        taken = self._known.find(order.job_id, order.name)
        if taken is None:
            raise Unavailable(f"job {order.job_id} is being forgotten", reason="STILL_GOING")
        return _view(taken)

    async def _once(self, job_id: str, name: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """All pods of a job share what was made; what failed is made again."""
        key = job_id, name
        task = self._making.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._making[key] = asyncio.create_task(make())
        return await asyncio.shield(task)

    async def _owner(self, order: StartOrder) -> Object | None:
        """The job's object, where there is one: when it is deleted, its pods go with it. An owner in another namespace
        owns nothing (Kubernetes' garbage collector deletes what says so)."""
        if order.owner is None:
            try:
                job = await self._client.get(TRAINING_JOBS, order.job_id, namespace=self._settings.namespace)
            except (NotFound, PermissionDenied):
                return None
            return owner_reference(job["metadata"]["name"], job["metadata"]["uid"])
        if order.owner.namespace != self._settings.namespace:
            return None
        return owner_reference(order.owner.name, order.owner.uid)

    def _group_ahead(self, job_id: str, group: tuple[str, int]) -> None:
        """It is written again where another number of pods is to be placed together."""
        if self._groups.get(job_id) != group:
            self._groups[job_id] = group
            self._making.pop((job_id, GROUP), None)

    async def _apply_group(self, group: Object) -> None:
        kind = next(item for item in KINDS.values() if item.api_version == group["apiVersion"])
        try:
            await self._client.apply(kind, group, namespace=self._settings.namespace, timeout_s=START_S)
        except NotFound as error:
            raise FailedPrecondition(
                f"this cluster has no {kind.kind} of {kind.group}: its scheduler is not installed (pod_group_policy)",
                reason="NO_SUCH_SCHEDULER",
            ) from error

    async def _create_secret(self, secret: Object) -> None:
        with suppress(AlreadyExists):
            await self._client.create(SECRETS, secret, namespace=self._settings.namespace, timeout_s=START_S)

    # -- ends --------------------------------------------------------------------------------------------

    async def stop(self, job_id: str, name: str, *, grace_s: float) -> None:
        """See `Controller`. With no grace SIGKILL comes a second after SIGTERM: a node confirms no end sooner."""
        await self._delete(job_id, name, grace_s=max(1, math.ceil(grace_s)))

    async def drain(self, job_id: str, name: str) -> None:
        """See `Controller`. SIGKILL comes after `PodSettings.grace_s`."""
        await self._delete(job_id, name, grace_s=self._settings.grace_s)

    async def _delete(self, job_id: str, name: str, *, grace_s: int) -> None:
        pod = self._known.find(job_id, name)
        if pod is None or pod.exit is not None:
            return
        self._known.told_to_go(pod)
        try:
            going = await self._client.delete(
                PODS, pod.pod, namespace=self._settings.namespace, grace_s=grace_s, uid=pod.uid
            )
        except NotFound:
            self._known.lose(pod)
            return
        if is_gone(going):
            self._known.lose(pod)
            return
        if going.get("kind") == "Pod":
            self._known.take(going)
        self._in_background(lambda: self._force_later(pod, grace_s + self._settings.force_after_s))

    async def _force_later(self, pod: Pod, delay_s: float) -> None:
        for wait_s in (delay_s, *[LOOK_S] * FORCED_LOOKS):
            await asyncio.sleep(wait_s)
            known = self._known.find(pod.job_id, pod.name)
            if known is None or known.uid != pod.uid or known.exit is not None:
                return
            if known.node not in await self._ready_nodes():
                break
        logger.warning("pod %s: node %s does not confirm its end; it is taken for dead", pod.pod, pod.node)
        with suppress(NotFound):
            await self._client.delete(PODS, pod.pod, namespace=self._settings.namespace, grace_s=0, uid=pod.uid)

    async def _ready_nodes(self) -> frozenset[str]:
        """As of some seconds ago; none where nodes may not be read."""
        now = asyncio.get_running_loop().time()
        async with self._nodes_lock:
            if self._nodes is None or now - self._nodes[0] > LOOK_S:
                try:
                    nodes, _ = await self._client.list(NODES)
                except PermissionDenied:
                    nodes = []
                self._nodes = now, frozenset(node["metadata"]["name"] for node in nodes if room.is_ready(node))
            return self._nodes[1]

    async def forget(self, job_id: str) -> None:
        """See `Controller`. FailedPrecondition while one of them runs."""
        pods = self._known.of(job_id)
        for pod in pods:
            if pod.exit is None:
                raise FailedPrecondition(f"pod {pod.pod} has not ended")
        schedulers = {pod.group for pod in pods} | {self._groups.get(job_id, ("", 0))[0]}
        namespace, labels = self._settings.namespace, f"{SELECTOR},{JOB}={job_id}"
        await self._client.delete_all(PODS, namespace=namespace, labels=labels)
        await self._client.delete_all(SECRETS, namespace=namespace, labels=labels)
        for scheduler in schedulers - {""}:
            with suppress(NotFound):
                await self._client.delete(KINDS[scheduler], job_id, namespace=namespace)
        self._groups.pop(job_id, None)
        self._known.forget(job_id)
        for key in [key for key in self._making if key[0] == job_id]:
            del self._making[key]

    # -- sizes -------------------------------------------------------------------------------------------

    async def resize(self, job_id: str, name: str, *, cpu: float | None, memory_bytes: int) -> bool:
        """See `Controller`. By the subresource `resize`; a size that the kubelet finds infeasible, or has not given
        within `PodSettings.resize_wait_s`, is taken back."""
        pod = self._known.find(job_id, name)
        if pod is None or pod.exit is not None or pod.leaving:
            return False
        before = pod.wanted
        size = Size(before.cpu if cpu is None else round(cpu * 1000) / 1000, memory_bytes)
        if bool(size.cpu) != bool(before.cpu) or bool(size.memory_bytes) != bool(before.memory_bytes):
            return False        # the class of service of a pod is for its life
        if size == before:
            return True
        try:
            await self._give(pod, size)
        except CallerError as error:
            logger.info("pod %s cannot be resized: %s", pod.pod, error)
            return False
        if await self._has(pod, size):
            return True
        with suppress(CallerError):
            await self._give(pod, before)
        return False

    async def _give(self, pod: Pod, size: Size) -> None:
        amounts = quantities(size.cpu, size.memory_bytes)
        body = {"spec": {"containers": [{"name": CONTAINER, "resources": {"requests": amounts, "limits": amounts}}]}}
        self._known.take(await self._client.patch(
            PODS, pod.pod, body, namespace=self._settings.namespace, subresource="resize", kind="strategic"
        ))  # fmt: skip

    async def _has(self, pod: Pod, size: Size) -> bool:
        """True once the kubelet has given it the size."""

        def decided() -> bool:
            known = self._known.find(pod.job_id, pod.name)
            return known is None or known.given == size or known.infeasible or known.leaving or known.exit is not None

        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.resize_wait_s):
                await self._known.until(decided)
        known = self._known.find(pod.job_id, pod.name)
        if known is not None and known.given == size:
            return True
        logger.info("pod %s has not got its size: %s", pod.pod, (known.refusal if known else "") or "no answer in time")
        return False

    # -- the rest ----------------------------------------------------------------------------------------

    async def tail(self, job_id: str, name: str, *, lines: int) -> list[str]:
        """See `Controller`. Of a pod that was deleted nothing is left."""
        try:
            return await self._log(pod_name(job_id, name), lines=lines) if lines > 0 else []
        except CallerError:     # not there, or not started yet
            return []

    async def _log(self, pod: str, *, lines: int, timeout_s: float | None = None) -> list[str]:
        text = await self._client.logs(
            pod, namespace=self._settings.namespace, lines=lines, container=CONTAINER, timeout_s=timeout_s
        )
        return text.splitlines()

    async def capacity(self, job_id: str = "", spec: TrainingJob | None = None) -> Capacity:
        """See `Controller`. As of some seconds ago; nothing where nodes may not be read."""
        now = asyncio.get_running_loop().time()
        async with self._room_lock:
            if self._room is None or now - self._room[0] > ROOM_S:
                self._room = now, await self._measure()
            return self._room[1]

    async def _measure(self) -> Capacity:
        try:
            nodes, _ = await self._client.list(NODES)
            pods, _ = await self._client.list(PODS, fields=_LIVING)
        except PermissionDenied as error:
            if self._room is None:
                logger.warning("what nodes have free is not known, so jobs do not grow by themselves: %s", error)
            return Capacity(0.0, 0)
        return room.free(nodes, pods, self._settings.gpus)

    def _in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        async def quietly() -> None:
            try:
                await work()
            except MeshError as error:
                logger.warning("%s", error)

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _view(pod: Pod) -> RoleProcess:
    waits = pod.exit is None and not pod.begun
    return RoleProcess(
        pod.job_id, pod.name, pod.pod, pod.exit, waiting=pod.waiting if waits else "", begun=not waits,
        node=pod.node,
    )  # fmt: skip
