"""A real model server follows a job: whatever ends it, an answer is of one version, and versions do not go back."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from recmesh.runtime.errors import MeshError
from services.gateway.config import child_environment
from services.gateway.domain.models import Registration
from services.gateway.domain.tensors import Tensor
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from tests.support.fresh_models import fresh_torch_model
from tests.support.gateway import FakeBucket, Gateway, gateway, http
from tests.support.snapshots import Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
VERSIONS, KILLED_AT = 40, (14, 27)


@pytest_asyncio.fixture
async def runtimes() -> AsyncIterator[Runtimes]:
    made = Runtimes(environment=child_environment(os.environ), limits=Limits(backoff_s=(0.05,)), log=print)
    yield made
    await made.stop()


async def served(
    root: Path, runtimes: Runtimes, bucket: FakeBucket, *, halves: bool = False
) -> tuple[Gateway, Snapshots]:
    """The model `sum`, which follows a job at its first snapshot."""
    job = Snapshots(root / "checkpoints" / "job")
    job.commit(1, {1: 1.0}, -1.0)
    (root / "models" / "sum").mkdir(parents=True)
    await asyncio.to_thread(fresh_torch_model, root / "models" / "sum" / "1", job)
    made = gateway(root, runtimes=runtimes, bucket=bucket)
    serving = {"freshness": {"poll_s": 0.01, "halves": halves}}
    await made.models.register(Registration("sum", "1", "models/sum/1", "torch", load=True, serving=serving))
    await made.settled()
    return made, job


async def ask(made: Gateway, *ids: int) -> tuple[list[float], int]:
    """Predictions, and the version that made them."""
    item = Tensor.of("item", np.array(ids, np.int64))
    tensors, times = await made.runtimes.infer(
        "torch", "sum/1", [item], ["predictions"], timeout_s=30.0, priority=100
    )
    return tensors[0].array.tolist(), times.fresh_version


async def answered(made: Gateway, version: int) -> list[float]:
    """Predictions for id 1 and one without a row, once that version answers."""
    async with asyncio.timeout(60.0):
        while True:
            with contextlib.suppress(MeshError):     # its process comes back
                values, number = await ask(made, 1, 99)
                if number == version:
                    return values
            await asyncio.sleep(0.01)


@pytest.mark.long
@pytest.mark.parametrize("halves", [False, True], ids=["whole", "halves"])
async def test_a_kill_in_the_middle_leaves_old_or_new_and_never_a_mixture(
    tmp_path: Path, runtimes: Runtimes, *, halves: bool
) -> None:
    made, job = await served(tmp_path, runtimes, FakeBucket(), halves=halves)
    assert [each.kind for each in runtimes.status()] == (["cn", "hn"] if halves else ["hn"])
    assert await ask(made, 1, 99) == ([0.0, -1.0], 1)
    seen: list[int] = []

    async def watch() -> None:
        while not seen or seen[-1] < VERSIONS:
            try:
                (known, unknown), version = await ask(made, 1, 99)
            except MeshError:
                await asyncio.sleep(0.01)
                continue
            assert known == 0.0, f"row and parameter are of two versions: {known}"
            assert unknown == -version, "the answer says which version made it"
            assert not seen or version >= seen[-1], "a version that was served is not taken back"
            seen.append(version)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(240.0):
        for number in range(2, VERSIONS + 1):
            base = 0 if number % 7 == 0 else number - 1
            await asyncio.to_thread(job.commit, number, {1: float(number), number: 1.0}, -float(number), base=base)
            if number in KILLED_AT:              # while it reads, or just before or after
                await asyncio.sleep(0.005 * (number % 4))
                victims = runtimes.status()      # in halves the CN, then the HN
                os.kill(victims[KILLED_AT.index(number) % len(victims)].pid, signal.SIGKILL)
            # Another process is what is waited for.
            while not watching.done() and (not seen or seen[-1] < number - 2):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        await watching
    assert len(set(seen)) > VERSIONS // 4
    assert sum(each.restarts for each in runtimes.status()) == 2


@pytest.mark.long
@pytest.mark.parametrize("halves", [False, True], ids=["whole", "halves"])
async def test_a_rollback_by_rest_holds_over_restarts_until_it_is_resumed(
    tmp_path: Path, runtimes: Runtimes, *, halves: bool
) -> None:
    bucket = FakeBucket()
    made, job = await served(tmp_path, runtimes, bucket, halves=halves)
    job.commit(2, {1: 2.0}, -2.0, base=1)
    job.commit(3, {1: 3.0}, -3.0, base=2)
    assert await answered(made, 3) == [0.0, -3.0]
    async with http(made) as client:
        told = (await client.get("/v1/models/sum/freshness")).json()
        assert (told["fresh_version"], told["versions"], told["held"]) == (3, [1, 2, 3], False)
        assert told["tables"]["item"]["absent"] > 0
        answer = await client.post("/v1/models/sum/rollback", json={"fresh_version": 2})
        assert (answer.status_code, answer.json()["fresh_version"], answer.json()["held"]) == (200, 2, True)
        wrong = await client.post("/v1/models/sum/rollback", json={"fresh_version": 77})
        assert (wrong.status_code, wrong.json()["reason"]) == (404, "UNKNOWN_VERSION")
        inputs = [{"name": "item", "datatype": "INT64", "shape": [1], "data": [1]}]
        answer = await client.post("/v2/models/sum/infer", json={"inputs": inputs})
        assert answer.json()["parameters"] == {"fresh_version": 2}
        job.commit(4, {1: 4.0}, -4.0, base=3)
        os.kill(runtimes.status()[0].pid, signal.SIGKILL)
        assert await answered(made, 2) == [0.0, -2.0]
        await runtimes.unload("torch", "sum/1")
        after = gateway(made.root, runtimes=runtimes, bucket=bucket)     # the gateway starts again
        await after.models.start()
        await after.models.loading.restored.wait()
        assert await answered(after, 2) == [0.0, -2.0]
    async with http(after) as client:
        answer = await client.post("/v1/models/sum/resume")
        assert (answer.status_code, answer.json()["held"]) == (200, False)
    assert await answered(after, 4) == [0.0, -4.0]
    await after.freshness.measure()


@pytest.mark.long
async def test_a_model_may_only_follow_snapshots_below_the_storage_root(tmp_path: Path, runtimes: Runtimes) -> None:
    made, _ = await served(tmp_path / "root", runtimes, FakeBucket())
    card = made.root / "models" / "sum" / "1" / "model.json"
    card.write_text(card.read_text().replace("/root/checkpoints", "/elsewhere/checkpoints"))
    with pytest.raises(MeshError, match="outside the storage root"):
        await made.models.register(Registration("other", "1", "models/sum/1", "torch", load=True))
