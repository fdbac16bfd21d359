"""Models in halves: CN and HN processes of a framework, supervised, and seen from outside as one model server."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from recmesh.runtime.errors import MeshError
from recmesh.serving.settings import Replicas, Scaling
from services.gateway.domain.devices import NOTHING, Grant
from services.gateway.runtimes.fleet import Fleet
from services.gateway.runtimes.group import Group
from services.gateway.runtimes.link import Link
from services.gateway.runtimes.places import Places
from services.gateway.runtimes.process import Limits, Lost, ModelServer, started_here

HN_MODULE = "recmesh.serving.hn"
CN_MODULE = "recmesh.serving.cn"
TELL_S = 8.0
"""A CN answers when it has reached the HNs, which it gives itself less time for."""
TELL_AGAIN_S = 1.0


def queue_of(limits: Limits) -> list[str]:
    """Of the command of a CN or HN: how many requests of one model may wait."""
    return ["--queue", str(limits.queue)]


def first_count(kind: str, wanted: Replicas, *, pods: Places | None) -> int:
    """How many there are at first: pods that a gateway before this one left are taken over."""
    left = 0 if pods is None else pods.left(kind)
    return max(wanted.min, min(wanted.max, left))


async def _silence(_link: Link) -> None:
    """HNs need to know nothing."""


async def _nobody() -> None:
    """Nobody depends on CNs."""


class SplitServer(Group):
    """Loads each model's dense half in the HNs and the rest in the CNs; requests go to a CN."""

    def __init__(
        self,
        framework: str,
        *,
        environment: Mapping[str, str],
        limits: Limits,
        lost: Lost,
        log: Callable[[str], None],
        scaling: Scaling,
        take: Callable[[], Grant],
        give_back: Callable[[Grant], None],
        pods: Places | None = None,
    ) -> None:
        """`pods`: where the processes are started; None: as children of this one."""
        super().__init__(lost)
        self._pods = pods
        self._framework, self._limits = framework, limits
        self._telling: set[asyncio.Task[None]] = set()
        self._folder = Path(tempfile.mkdtemp(prefix="recmesh-serving-"))    # nobody else may enter it

        def made(kind: str, command: Sequence[str], lost: Lost, grant: Grant = NOTHING) -> ModelServer:
            place = started_here if pods is None else pods.starter(kind.lower())
            return ModelServer(
                f"{framework} {kind}", command=command, environment={**environment, **grant.environment},
                limits=limits, lost=lost, log=log, start=place,
                greet=self._greet if pods is not None and kind == "CN" else _silence,
                renewed=self._hns_changed if kind == "HN" else _nobody,
            )  # fmt: skip

        def hn(number: int, grant: Grant, lost: Lost) -> ModelServer:
            needs = ["--accelerator"] if grant.devices else []
            listen = ["--listen", self._address(number)] if pods is None else []
            return made("HN", [HN_MODULE, "--framework", framework, *queue_of(limits), *listen, *needs], lost, grant)

        first = partial(first_count, pods=pods)

        self.hns = Fleet(
            hn, part="dense", count=first("hn", scaling.hn), take=take, give_back=give_back,
            lost=self._none_left, log=log, changed=self._hns_changed,
        )  # fmt: skip
        self.cns = Fleet(
            lambda _number, _grant, lost: made("CN", self._cn_command(), lost), part="sparse",
            count=first("cn", scaling.cn), take=lambda: NOTHING, give_back=lambda _grant: None,
            lost=self._none_left, log=log,
            changed=self._hns_changed,
        )  # fmt: skip
        self.fleets = {"cn": self.cns, "hn": self.hns}

    async def stop(self) -> None:
        """End all; calls in flight fail."""
        for task in self._telling:
            task.cancel()
        await super().stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _address(self, number: int) -> str:
        return f"shm:{self._folder / f'hn-{number}.sock'}"

    def _addresses(self) -> list[str]:
        """Of HNs, those of pods as far as they run."""
        if self._pods is not None:
            return [server.address for server in self.hns.servers if server.address]
        return [self._address(number) for number in self.hns.numbers]

    def _cn_command(self) -> list[str]:
        """A pod's says nothing of HNs: it outlives them, and is told where they are."""
        asked = [part for each in self._addresses() for part in ("--hn", each)] if self._pods is None else []
        return [CN_MODULE, "--framework", self._framework, *queue_of(self._limits), *asked]

    async def _hns_changed(self) -> None:
        """CNs that run are told, and have reached the HNs when this returns; those that are silent, or start with their
        former command, are told when they answer; those that start later find it in their command."""
        servers = list(self.cns.servers)
        for server in servers:
            server.command = self._cn_command()
        told = await asyncio.gather(*map(self._told, servers))
        for server, heard in zip(servers, told, strict=True):
            if not heard:
                task = asyncio.create_task(self._tell(server))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)

    async def _tell(self, server: ModelServer) -> None:
        while server in self.cns.servers and not await self._told(server):  # noqa: ASYNC110 (another process is asked)
            await asyncio.sleep(TELL_AGAIN_S)

    async def _told(self, server: ModelServer) -> bool:
        """Whether it knows the HNs of now."""
        if not server.pid:
            return True                          # it is started with its new command
        if not server.is_up:
            return False                         # nothing depends on it yet: whoever tells need not wait for it
        try:
            await server.ask({"op": "hns", "addresses": self._addresses()}, timeout_s=TELL_S)
        except (MeshError, TimeoutError):
            return False
        return True

    async def _greet(self, link: Link) -> None:
        await link.call({"op": "hns", "addresses": self._addresses()}, timeout_s=TELL_S)
