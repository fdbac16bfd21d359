"""Pods of CNs and HNs: made by server-side apply, followed by one watch, taken over from a gateway that is gone."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from recmesh.runtime.errors import Aborted, MeshError, NotFound, Unavailable
from recmesh.runtime.kube import PODS, KubeClient, Listing, Object, follow
from recmesh.runtime.telemetry import get_logger
from recmesh.runtime.tls import Tls
from services.gateway.domain.devices import Wish
from services.gateway.runtimes.pods import objects
from services.gateway.runtimes.pods.link import PodLink
from services.gateway.runtimes.pods.objects import DIGEST, FLEET, HOLDER, KIND, SELECTOR, PodSettings
from services.gateway.runtimes.process import Start

LISTED_S = 60.0
SWEEP_S = 15.0
UNUSED_S = 300.0
"""Pods that nobody has used for so long are deleted: their gateway is gone, or needs them no more."""

_log = get_logger(__name__)


class ServingPods:
    """A component. `detach` is called before the processes' owners stop: pods then go on, for the next gateway."""

    name = "serving pods"

    def __init__(self, client: KubeClient, settings: PodSettings, *, token: str, tls: Tls | None = None) -> None:
        """`tls`: this gateway's certificates, and the name that pods' are issued for."""
        self._client, self.settings, self._token, self._tls = client, settings, token, tls
        self._pods: dict[str, Object] = {}
        self._used: set[str] = set()
        """Names of pods with a link of this process, or a start that waits for them."""
        self._doomed: set[str] = set()
        """Names of pods that are being deleted from here."""
        self._unused_since: dict[str, float] = {}
        self._gone: dict[str, bool] = {}
        """Whether other gateways are, by name, as of the last look."""
        self._changed = asyncio.Event()
        self._listed = asyncio.Event()
        self._claiming = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        """Of its whole life: the watch and the sweep."""
        self._asides: set[asyncio.Task[None]] = set()
        """Of single pods."""
        self._detached = False

    async def start(self) -> None:
        """Unavailable when the cluster does not list its pods."""
        self._tasks.append(asyncio.create_task(self._follow()))
        try:
            async with asyncio.timeout(LISTED_S):
                await self._listed.wait()
        except TimeoutError:
            raise Unavailable(f"Kubernetes has not listed its pods within {LISTED_S:g} s") from None
        await self._look_for_gateways()
        self._tasks.append(asyncio.create_task(self._sweep()))

    async def wait(self) -> None:
        """Raises when the watch or the sweep ended by itself: a mistake of ours."""
        await asyncio.gather(*map(asyncio.shield, self._tasks))

    async def stop(self) -> None:
        """Pods go on."""
        self._detached = True
        for task in (*self._tasks, *self._asides):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._asides, return_exceptions=True)
        await self._client.close()

    def detach(self) -> None:
        """Whatever is stopped from now on leaves its pod."""
        self._detached = True

    @property
    def detached(self) -> bool:
        """Whether pods outlive their links."""
        return self._detached

    @property
    def pods(self) -> Mapping[str, Object]:
        """All that are known, by name."""
        return self._pods

    def lane(self, lane: Sequence[str], *, wish: Wish) -> "LanePods":
        """Those that run one lane's models."""
        return LanePods(self, hashlib.sha256(" ".join(lane).encode()).hexdigest()[:10], lane, wish)

    def free(self, fleet: str, kind: str, digest: str = "") -> list[Object]:
        """Living pods that were left by this gateway's former life, or by one that is gone; oldest first."""
        found = []
        for name, pod in self._pods.items():
            labels = pod["metadata"]["labels"]
            is_same = labels.get(FLEET) == fleet and labels.get(KIND) == kind and digest in ("", labels.get(DIGEST))
            holder = labels.get(HOLDER, "")
            is_left = holder == self.settings.holder or self._gone.get(holder, False)
            if is_same and is_left and name not in self._used | self._doomed and objects.is_living(pod):
                found.append(pod)
        return sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))

    async def started(self, body: Object, *, told: Callable[[str], None]) -> PodLink:
        """A link to a pod as `body` has it: one that was left, else a new one. Unavailable: it has ended, or does not
        let this gateway in."""
        async with self._claiming:
            name = await self._claimed(body) or await self._made(body)
            self._used.add(name)
        try:
            pod = await self._ready(name, told)
            return await PodLink.open(self, pod, token=self._token, tls=self._tls)
        except BaseException:
            self._used.discard(name)
            if not self._detached and name in self._pods and objects.is_living(self._pods[name]):
                self._doomed.add(name)
                self._aside(self._delete(name, grace_s=None))
            raise

    def let_go(self, name: str, *, end: bool, now: bool = False) -> None:
        """Its link is over; `end`: the pod is needed no more, `now`: nor what is in it."""
        self._used.discard(name)
        if end and not self._detached:
            self._doomed.add(name)
            self._aside(self._delete(name, grace_s=1 if now else None))

    async def until(self, condition: Callable[[], bool], *, timeout_s: float | None = None) -> None:
        """Returns when it holds, which is looked at whenever a pod has changed. TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()

    async def _claimed(self, body: Object) -> str:
        labels = body["metadata"]["labels"]
        await self._look_for_gateways()
        for pod in self.free(labels[FLEET], labels[KIND], labels[DIGEST]):
            metadata = pod["metadata"]
            patch = {"metadata": {
                "resourceVersion": metadata["resourceVersion"], "labels": {HOLDER: self.settings.holder},
            }}  # fmt: skip
            try:
                self._take(await self._client.patch(PODS, metadata["name"], patch, namespace=self.settings.namespace))
            except (Aborted, NotFound):          # it has changed: another gateway may have it by now
                continue
            _log.info("pod %s is taken over", metadata["name"])
            return str(metadata["name"])
        return ""

    async def _made(self, body: Object) -> str:
        made = await self._client.apply(PODS, body, namespace=self.settings.namespace)
        self._take(made)
        return str(made["metadata"]["name"])

    async def _ready(self, name: str, told: Callable[[str], None]) -> Object:
        said = ""

        def decided() -> bool:
            nonlocal said
            pod = self._pods.get(name)
            if pod is None or not objects.is_living(pod) or objects.is_ready(pod):
                return True
            if (why := objects.waits(pod)) != said:
                said = why
                told(why)
            return False

        await self.until(decided)
        pod = self._pods.get(name)
        if pod is None or not objects.is_living(pod):
            why = "it was deleted" if pod is None else objects.outcome(pod)
            raise Unavailable(f"pod {name} did not start: {why}", reason="RUNTIME_DOWN")
        return pod

    async def _delete(self, name: str, *, grace_s: int | None) -> None:
        with suppress(NotFound):
            await self._client.delete(PODS, name, namespace=self.settings.namespace, grace_s=grace_s)

    async def _look_for_gateways(self) -> None:
        """Which of those that hold pods are no more."""
        holders = {pod["metadata"]["labels"].get(HOLDER, "") for pod in self._pods.values()}
        for holder in holders - {self.settings.holder, ""}:
            try:
                pod = await self._client.get(PODS, holder, namespace=self.settings.namespace)
                self._gone[holder] = not objects.is_living(pod)
            except NotFound:
                self._gone[holder] = True
            except MeshError as error:
                _log.warning("whether gateway %s is there is not known: %s", holder, error)

    async def _follow(self) -> None:
        async with aclosing(follow(
            self._client, PODS, namespace=self.settings.namespace, labels=SELECTOR
        )) as news:  # fmt: skip
            async for item in news:
                if isinstance(item, Listing):
                    self._pods = {pod["metadata"]["name"]: pod for pod in item.objects}
                    self._listed.set()
                    self._tell()
                elif item.kind == "DELETED":
                    self._pods.pop(item.object["metadata"]["name"], None)
                    self._tell()
                else:
                    self._take(item.object)

    def _take(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        known = self._pods.get(name)
        if known is None or int(known["metadata"]["resourceVersion"]) <= int(pod["metadata"]["resourceVersion"]):
            self._pods[name] = pod
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _sweep(self) -> None:
        """Pods that have ended, and those that nobody uses, are deleted after a while."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep(asyncio.get_running_loop().time())
            except MeshError as error:
                _log.warning("pods that nobody uses are not deleted now: %s", error)

    async def sweep(self, now: float, *, unused_s: float = UNUSED_S) -> None:
        """One look. Pods of other gateways that live are theirs to delete."""
        await self._look_for_gateways()
        for name, pod in list(self._pods.items()):
            holder = pod["metadata"]["labels"].get(HOLDER, "")
            ours = holder == self.settings.holder or self._gone.get(holder, False)
            if not ours or name in self._used or "deletionTimestamp" in pod["metadata"]:
                self._unused_since.pop(name, None)
            elif now - self._unused_since.setdefault(name, now) >= unused_s:
                _log.info("pod %s is deleted: nobody uses it", name)
                await self._delete(name, grace_s=None)
        self._doomed &= self._pods.keys()
        self._unused_since = {name: since for name, since in self._unused_since.items() if name in self._pods}

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            try:
                await work
            except MeshError as error:
                _log.warning("%s", error)

        task = asyncio.create_task(quietly())
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)


class LanePods:
    """See `Places`."""

    def __init__(self, pods: ServingPods, fleet: str, lane: Sequence[str], wish: Wish) -> None:
        self._pods, self._fleet, self._wish = pods, fleet, wish
        owner = lane[2].partition(" ")[0] if len(lane) > 2 else ""
        self._title = (owner or lane[0].replace("#", "-"))[:30].strip("-")

    def starter(self, kind: str) -> Start:
        """See `Places`."""
        wish = self._wish if kind == "hn" else Wish()

        async def start(
            command: Sequence[str], environment: Mapping[str, str], told: Callable[[str], None]
        ) -> PodLink:
            kept = {name: environment[name] for name in sorted(environment) if name.startswith(("OMP_", "TF_"))}
            body = objects.pod_of(
                command, kept, self._pods.settings, name=f"{self._title}-{kind}-{secrets.token_hex(4)}",
                fleet=self._fleet, kind=kind, wish=wish,
            )
            return await self._pods.started(body, told=told)

        return start

    def left(self, kind: str) -> int:
        """See `Places`."""
        return len(self._pods.free(self._fleet, kind))

