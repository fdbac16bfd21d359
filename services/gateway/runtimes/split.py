"""Models in halves: a CN and an HN process of a framework, supervised, and seen from outside as one model server."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recmesh.runtime.errors import Unavailable
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.domain.statistics import Times
from services.gateway.runtimes.process import Limits, Lost, ModelServer

HN_MODULE = "recmesh.serving.hn"
CN_MODULE = "recmesh.serving.cn"


class SplitServer:
    """Loads each model's dense half in the HN and the rest in the CN; requests go to the CN.

    Either process may die: it is started again with its models, and the other one keeps its own. Meanwhile
    requests are refused at once.
    """

    def __init__(
        self,
        framework: str,
        *,
        environment: Mapping[str, str],
        limits: Limits,
        lost: Lost,
        log: Callable[[str], None],
    ) -> None:
        self._framework = framework
        self._lost = lost
        self._folder = Path(tempfile.mkdtemp(prefix="recmesh-serving-"))    # nobody else may enter it
        address = f"shm:{self._folder / 'hn.sock'}"
        self.hn = ModelServer(
            f"{framework} HN", command=[HN_MODULE, "--framework", framework, "--listen", address],
            environment=environment, limits=limits, lost=self._one_lost, log=log,
        )  # fmt: skip
        self.cn = ModelServer(
            f"{framework} CN", command=[CN_MODULE, "--framework", framework, "--hn", address],
            environment=environment, limits=limits, lost=self._one_lost, log=log,
        )  # fmt: skip

    @property
    def models(self) -> list[str]:
        """Keys of the loaded models."""
        return self.cn.models

    @property
    def processes(self) -> Sequence[ModelServer]:
        """The two."""
        return (self.hn, self.cn)

    def serves(self, key: str) -> bool:
        """True when a request for the model would be run now."""
        return self.hn.serves(key) and self.cn.serves(key)

    async def load(self, key: str, folder: Path, *, settings: ServingSettings, timeout_s: float) -> None:
        """Both halves; returns when a request has gone all the way."""
        await self.hn.load(key, folder, settings=settings, part="dense", timeout_s=timeout_s)
        try:
            await self.cn.load(key, folder, settings=settings, part="sparse", timeout_s=timeout_s)
        except BaseException:
            if key not in self.cn.models:        # else it was served before, and still is if its files are the same
                await self.hn.unload(key)
            raise

    async def unload(self, key: str) -> None:
        """Forget the model."""
        await self.cn.unload(key)
        await self.hn.unload(key)

    async def infer(
        self, key: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout_s: float, priority: int
    ) -> tuple[list[Tensor], Times]:
        """Run the model. Refusals: queue full, deadline over, a process down."""
        if not self.hn.serves(key):
            raise Unavailable(
                f"the dense half of {key} is not there: {self.hn.reason}", reason="RUNTIME_DOWN"
            )
        return await self.cn.infer(key, inputs, outputs, timeout_s=timeout_s, priority=priority)

    async def stop(self) -> None:
        """End both; calls in flight fail."""
        await self.cn.stop()
        await self.hn.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _one_lost(self, key: str, reason: str) -> None:
        """One half could not be brought back: the other is of no use."""
        for process in self.processes:
            process.forget(key)
        self._lost(key, reason)
