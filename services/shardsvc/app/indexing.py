"""Indexes of datasets: reading is slow, so threads do it, and equal requests share the work."""

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from recmesh.data import FileInfo, Index, files_of, index_dataset, preview
from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.telemetry import Metrics
from recmesh.spec.dataset import DatasetSpec

_THREADS = 4
_KEPT = 16
_seconds = Metrics("shardsvc").histogram("index_seconds", "Time to index a dataset")


class Indexer:
    """Indexes by specification and files; a caller that gives up leaves the work to those who ask again."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="index")
        self._known: OrderedDict[str, asyncio.Task[Index]] = OrderedDict()

    async def index(self, spec: DatasetSpec) -> Index:
        """See recmesh.data.index_dataset; never of files that changed since. Of streams, their first windows."""
        loop = asyncio.get_running_loop()
        if spec.streams:                        # their windows come and go: nothing of them is kept
            return await loop.run_in_executor(self._pool, partial(preview, spec, now=self._clock.now()))
        files = await loop.run_in_executor(self._pool, files_of, spec.views()[0].source)
        key = _key(spec, files)
        task = self._known.get(key)
        if task is None:
            task = asyncio.create_task(self._make(spec), name="index")
            self._known[key] = task
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        try:
            return await asyncio.shield(task)
        except Exception:
            self._known.pop(key, None)          # a failure is never remembered
            raise

    async def _make(self, spec: DatasetSpec) -> Index:
        with _seconds.time():
            return await asyncio.get_running_loop().run_in_executor(self._pool, index_dataset, spec)

    def close(self) -> None:
        """Takes no more work; what runs is abandoned with the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _key(spec: DatasetSpec, files: list[FileInfo]) -> str:
    digest = hashlib.sha256(spec.model_dump_json().encode())
    for file in files:
        digest.update(f"\0{file.uri}\0{file.size_bytes}\0{file.etag}".encode())
    return digest.hexdigest()
