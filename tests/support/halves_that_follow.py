"""A model that follows a job, in halves: a CN and HNs in this process, over real sockets.

Its prediction for id 1 is 0 where row and parameter are of one version, and minus the version for an id without a row.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.formats import tables as files
from recmesh.serving.apart import Apart, ApartTable, places_input, rows_input
from recmesh.serving.card import ModelCard
from recmesh.serving.cn.alarms import Alarms
from recmesh.serving.cn.fleet import Fleet
from recmesh.serving.cn.following import Following
from recmesh.serving.cn.loaded import Loaded
from recmesh.serving.cn.model import CnModel
from recmesh.serving.cn.peers import Hns
from recmesh.serving.cn.server import Server as Cn
from recmesh.serving.fresh.follower import Follower
from recmesh.serving.fresh.lookup import Lookup
from recmesh.serving.fresh.sparse import Sparse
from recmesh.serving.hn.followed import Followed
from recmesh.serving.programs import Arrays
from recmesh.serving.settings import EmbeddingSettings, FreshnessSettings, ServingSettings
from recmesh.serving.split.manifest import Stage
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport.endpoints import Endpoint, Listener, dial, dialling
from tests.support.serving import CnClient, RunningHn, until
from tests.support.snapshots import BLOCK, DIM, TABLE, Snapshots

KEY, DIGEST = "m/1", "one program"
ROWS, PLACES = rows_input(0), places_input(0, "item")


@dataclass(slots=True)
class Summing:
    """predictions = row + w. While `gate` is clear it takes no parameters; while `hold` is, it does not compute."""

    gate: threading.Event = field(default_factory=threading.Event)
    hold: threading.Event = field(default_factory=threading.Event)
    running: threading.Event = field(default_factory=threading.Event)
    sizes: list[int] = field(default_factory=list)
    w: float = np.nan

    def __post_init__(self) -> None:
        self.gate.set()
        self.hold.set()

    def placed(self, values: Mapping[str, Any]) -> Any:
        assert self.gate.wait(60.0)
        return float(values["model.w"][0])

    def use(self, placed: Any) -> None:
        self.w = placed

    def run(self, inputs: Arrays) -> Arrays:
        self.running.set()
        assert self.hold.wait(60.0)
        self.sizes.append(len(inputs[PLACES]))
        return {"predictions": inputs[ROWS][inputs[PLACES], 0] + np.float32(self.w)}


class World:
    """A job at its first snapshot, and its model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = Snapshots(folder / "checkpoints" / "job")
        self.commit(1)
        self.apart = Apart("job", str(self.job.root), (ApartTable(TABLE, DIM, ("item",)),), {BLOCK: "model.w"})
        self.card = ModelCard.parse({
            "framework": "torch", "apart": self.apart.document(),
            "inputs": [{"name": "item", "dtype": "int64", "shape": [-1]}],
            "outputs": [{"name": "predictions", "dtype": "float32", "shape": [-1]}],
        })
        files.write(
            folder / "model" / "tables", job_id="job", gen=1, snapshot=1,
            tables={TABLE: (np.array([1], np.int64), np.ones((1, 1), np.float32))},
            dense={BLOCK: np.full(1, -1.0, np.float32)},
        )

    def commit(self, number: int) -> None:
        self.job.commit(number, {1: float(number)}, -float(number), base=number - 1)

    def install(self, hn: RunningHn, **settings: Any) -> tuple[Summing, Followed]:
        """The dense half."""
        program = Summing()
        half = Followed(program, self.apart)
        hn.server.install(KEY, half, ServingSettings.parse(settings), can_batch=True, digest=DIGEST)
        return program, half

    @contextmanager
    def cn(self, *hns: RunningHn, patience_s: float = 60.0, most_s: float = 60.0) -> "Iterator[RunningCn]":
        """It follows once an HN holds the first version."""
        alarms = Alarms()
        known = Hns([hn.endpoint for hn in hns], dial=dialling(token=None), alarms=alarms, log=print)
        server = Cn(known, alarms=alarms, log=print)
        follower = Follower(self.folder / "model", self.apart, FreshnessSettings(poll_s=0.01), log=print)
        sparse = Sparse(self.card, self.apart, follower, Lookup(EmbeddingSettings(), dims={TABLE: DIM}, name="job"))
        fleet = Fleet(known.usual)
        following = Following(
            KEY, DIGEST, sparse, fleet, known, log=print, patience_s=patience_s, most_s=most_s
        )
        dense = Stage("dense", "hn", ".", (PLACES, ROWS), ("predictions",), DIGEST)
        loaded = Loaded(CnModel(KEY, self.card, (), dense, ()), fleet, True, following)
        server.admit(loaded, {}, until=time.monotonic() + 60.0)
        listener = Listener(Endpoint.parse(f"unix:{self.folder}/cn"), token=None, log=print)
        thread = threading.Thread(target=listener.accept, args=(server.serve,), daemon=True)
        thread.start()
        client = CnClient(dial(listener.endpoint, token=None, timeout_s=5.0))
        try:
            yield RunningCn(server, following, fleet, client)
        finally:
            client.close()
            listener.close()
            thread.join()
            server.unload(KEY)
            known.close()


@dataclass(frozen=True, slots=True)
class RunningCn:
    """A CN with the model, and a connection to it."""

    server: Cn
    following: Following
    fleet: Fleet
    client: CnClient

    def send(self) -> None:
        """Ask for id 1 and one that has no row."""
        self.client.send_tensors([Tensor.of("item", np.array([1, 99], np.int64))])

    def answer(self) -> int:
        """The version of the next answer, which it says itself and by what it is."""
        message = self.client.answer()
        known, unknown = message.tensors[0].array.tolist()
        assert known == 0.0, f"row and parameter are of two versions: {known}"
        assert message.header["fresh_version"] == -unknown
        return int(-unknown)

    def ask(self) -> int:
        """The version that answers."""
        self.send()
        return self.answer()

    def serves(self, version: int) -> None:
        """Returns once it answers by this version; none before is later than one after it."""
        last = 0

        def answered() -> bool:
            nonlocal last
            made = self.ask()
            assert made >= last
            last = made
            return made == version

        until(answered)
