"""A counting job: gradient 1 per sample, so that each row ends at its frequency in the data."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np

from recmesh.formats import CHUNK, SlotMap, mix, slots_of
from recmesh.formats.intervals import Triple
from recmesh.store import DenseSchema, Init, Optimizer, TableSchema, dedup, scatter_add, split_by_owner
from recmesh.trainer.ps.copying import Written
from recmesh.trainer.ps.messages import Declaration, DenseValues, Part, RestoreOrder, RowGrads
from recmesh.trainer.ps.refusals import Overlap
from recmesh.trainer.ps.server import ParameterServer

COUNT = Optimizer("accumulate", lr=1.0)
MODEL = Declaration(
    (TableSchema("item", 2, COUNT, Init("zeros")), TableSchema("user", 1, COUNT, Init("zeros"))),
    (DenseSchema("w", (CHUNK + 3,), COUNT),))
MEMORY_BYTES = 64 << 20


def item_of(position: int) -> list[int]:
    """A bag of ids, a pure function of the position."""
    return [mix(position) % 11 - 5, mix(position * 31) % 300]


def user_of(position: int) -> int:
    return mix(position * 7919) % 50


def truth(positions: Sequence[int]) -> tuple[Counter[int], Counter[int], int]:
    items = Counter(id_ for p in positions for id_ in item_of(p))
    return items, Counter(user_of(p) for p in positions), len(positions)


def parts_of(
    pieces: Sequence[Triple], slot_map: SlotMap, *, gen: int, n_ps: int, epoch: int = 0
) -> list[Part]:
    """The one logical part for each server."""
    positions = [p for _, lo, hi in pieces for p in range(lo, hi)]
    tables = {0: np.array([i for p in positions for i in item_of(p)], np.int64),
              1: np.array([user_of(p) for p in positions], np.int64)}
    dense = [np.full(CHUNK, len(positions), np.float32), np.full(3, len(positions), np.float32)]
    owner_of_chunk = slot_map.owners[slots_of(np.arange(2), "w")]
    rows: list[list[RowGrads]] = [[] for _ in range(n_ps)]
    for number, ids in tables.items():
        unique, schema = dedup(ids), MODEL.tables[number]
        grads = scatter_add(np.ones((len(ids), schema.dim), np.float32), unique.inverse, rows=len(unique.ids))
        for ps, places in enumerate(split_by_owner(unique.ids, schema.name, slot_map)):
            rows[ps].append(RowGrads(number, unique.ids[places], grads[places], unique.counts[places]))
    return [Part(gen, slot_map.version, tuple(pieces), epoch, rows[ps],
                 [(0, chunk, dense[chunk]) for chunk in range(2) if owner_of_chunk[chunk] == ps], f"w{ps}")
            for ps in range(n_ps)]


def initial_chunks(slot_map: SlotMap, ps: int) -> list[DenseValues]:
    owners = slot_map.owners[slots_of(np.arange(2), "w")]
    sizes = (CHUNK, 3)
    return [(0, chunk, np.zeros(sizes[chunk], np.float32)) for chunk in range(2) if owners[chunk] == ps]


@dataclass
class Mesh:
    """Servers of one job, and a folder that stands for ckptcache."""

    folder: Path
    n_ps: int = 2
    model: Declaration = MODEL
    gen: int = 0
    version: int = 0
    snapshot: int = 0
    committed: int = 0
    committed_ps: int = 0
    committed_gen: int = 0
    bases: dict[int, int] = field(default_factory=dict)
    """What each snapshot builds on."""
    servers: list[ParameterServer] = field(default_factory=list)

    @property
    def slot_map(self) -> SlotMap:
        return SlotMap.even(self.version, self.n_ps)

    def begin(self, n_ps: int, *, voids: Sequence[Triple] = (), fresh: bool = False) -> None:
        """A new generation of new processes, from the last committed snapshot."""
        self.close()
        self.gen, self.version, self.n_ps = self.gen + 1, self.version + 1, n_ps
        self.servers = [self.server(f"inc-{self.gen}-{ps}") for ps in range(n_ps)]
        for ps, server in enumerate(self.servers):
            server.restore(self.order(ps, voids=voids, fresh=fresh))
            server.declare(self.gen, self.model, initial_chunks(self.slot_map, ps))

    def server(self, incarnation: str) -> ParameterServer:
        return ParameterServer(incarnation, shm_dir=self.folder, memory_bytes=MEMORY_BYTES,
                               deliver=self.deliver, fail=_raise)

    def order(self, ps: int, *, voids: Sequence[Triple] = (), fresh: bool = False) -> RestoreOrder:
        return RestoreOrder(
            self.gen, 1, f"inc-{self.gen}-{ps}", ps, self.slot_map, "job", self.committed,
            self.chain_uris(self.committed, self.committed_ps), tuple(voids), "", fresh)

    def chain_uris(self, snapshot: int, n_ps: int) -> tuple[str, ...]:
        """Of a snapshot and all that it builds on, which had as many servers."""
        below = self.bases.get(snapshot, 0)
        return self.part_uris(snapshot, n_ps) + (self.chain_uris(below, n_ps) if below else ())

    def part_uris(self, snapshot: int, n_ps: int) -> tuple[str, ...]:
        return tuple(str(self.folder / f"{snapshot:08d}" / f"ps-{ps:03d}") for ps in range(n_ps))

    def deliver(self, written: Written, cancelled: threading.Event) -> bool:
        folder = self.folder / f"{written.order.snapshot:08d}" / f"ps-{written.order.ps:03d}"
        folder.mkdir(parents=True)
        with written.path.open("rb") as container:
            for file in written.files:
                container.seek(file.offset)
                (folder / file.name).write_bytes(container.read(file.size_bytes))
        (folder / "part.json").write_text(written.document)
        return False

    def mark(self, ps: int) -> None:
        """A delta on the last committed snapshot, where it is of this generation."""
        base = self.committed if self.committed_gen == self.gen else 0
        result = self.servers[ps].mark(self.gen, 1, self.snapshot, base=base)
        self.bases[self.snapshot] = max(result.base, self.bases.get(self.snapshot, 0))

    def commit(self) -> None:
        for server in self.servers:
            assert server._copy is not None
            server._copy.join()
            assert server._copy.error is None
        self.committed, self.committed_ps, self.committed_gen = self.snapshot, self.n_ps, self.gen

    def push(self, pieces: Sequence[Triple], ps: Sequence[int]) -> None:
        """A batch to some servers, re-cut where a server has a part of it."""
        parts = parts_of(pieces, self.slot_map, gen=self.gen, n_ps=self.n_ps)
        for server in ps:
            try:
                self.servers[server].push(parts[server])
            except Overlap as refusal:
                for smaller in cut(pieces, refusal.cuts):
                    self.push([smaller], [server])

    def finish(self, total: int) -> None:
        """What reconcile does: everything that some server lacks is trained again, on all of them."""
        for ps, server in enumerate(self.servers):
            for lo, hi in server.ledgers(self.gen).by_all.missing_within(0, 0, total):
                self.push([(0, lo, hi)], [ps])

    def counts(self) -> tuple[dict[int, float], dict[int, float], list[float]]:
        """Item rows, user rows, dense values, over all servers; each id must live on one."""
        found: list[dict[int, float]] = [{}, {}]
        dense: list[float] = []
        for server in self.servers:
            for number in range(2):
                table = server.model.store.tables[server.model.store_table(number)]
                rows = table.read(0, table.rows)
                assert (rows.values == rows.values[:, :1]).all()
                assert (rows.frequency == rows.values[:, 0]).all()
                for id_, value in zip(rows.ids.tolist(), rows.values[:, 0].tolist(), strict=True):
                    assert id_ not in found[number]
                    found[number][id_] = value
            for _, _, values in server.model.pull_dense(since=0, owned=server.books.owned)[0]:
                dense += np.unique(values).tolist()
        return found[0], found[1], dense

    def close(self) -> None:
        copies = [server._copy for server in self.servers if server._copy]
        for server in self.servers:
            server.close()
        for copy in copies:
            copy.join()                      # a delivery under way lasts longer than its copy
        self.servers = []


def cut(pieces: Sequence[Triple], cuts: Sequence[Triple]) -> list[Triple]:
    """The pieces between all ends of the cuts."""
    made = []
    for line, lo, hi in pieces:
        inner = {end for where, *ends in cuts if where == line for end in ends if lo < end < hi}
        made += [(line, a, b) for a, b in pairwise(sorted({lo, hi, *inner}))]
    return made


def _raise(error: BaseException) -> NoReturn:
    raise error


