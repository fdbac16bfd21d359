"""Where a model's parameters lie: numbers of tables and blocks, dense chunks, owners of a batch's parts."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import CHUNK, chunk_count, slots_of
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.job import TablePolicy, TrainingJob
from recmesh.store import dedup
from recmesh.trainer.memory import aligned
from recmesh.trainer.ports import (
    Chunk,
    Counts,
    Declared,
    DenseDeclaration,
    Owners,
    RunRecord,
    TableDeclaration,
    TableGrads,
)
from recmesh.trainer.session import DenseBlock, EmbeddingTable, Floats, Ints

if TYPE_CHECKING:
    from recmesh.data import Batch


def declaration(spec: TrainingJob, tables: Sequence[EmbeddingTable], dense: Sequence[DenseBlock]) -> Declared:
    """What the parameter servers are told, with the job's optimizers, schedule and seed filled in.

    InvalidArgument names optimizers and policies of tables that the model does not have.
    """
    training = spec.training
    schedule = tuple(training.lr_schedule)
    dense_default = training.optimizer
    if dense_default.kind == "rowwise_adagrad":   # of tables only: dense blocks get it element by element
        dense_default = dense_default.model_copy(update={"kind": "adagrad"})
    others = training.table_optimizers.get("*", training.optimizer)
    policies, other_policy = training.tables, training.tables.get("*", TablePolicy())
    names = [table.name for table in tables]
    _check_tables(training.table_optimizers, names, field="table_optimizers")
    _check_tables(training.tables, names, field="tables")
    return Declared(
        tables=tuple(
            TableDeclaration(
                name=table.name,
                dim=table.dim,
                optimizer=training.table_optimizers.get(table.name) or table.optimizer or others,
                init=table.init,
                seed=training.seed,
                schedule=schedule,
                policy=policies.get(table.name) or table.policy or other_policy,
            )
            for table in tables
        ),
        dense=tuple(
            DenseDeclaration(
                name=block.name,
                shape=block.value.shape,
                optimizer=None if block.kind == "statistic" else block.optimizer or dense_default,
                schedule=() if block.kind == "statistic" else schedule,
            )
            for block in dense
        ),
        initial={block.name: np.ascontiguousarray(block.value, np.float32) for block in dense},
        features={table.name: tuple(table.features) for table in tables},
    )


def _check_tables(given: Iterable[str], tables: Sequence[str], *, field: str) -> None:
    reason = f"the model has no such table; it has {', '.join(tables) or 'none'}"
    wrong = [
        Violation(f"training.{field}.{name}", reason)
        for name in given if name != "*" and name not in tables
    ]
    if wrong:
        raise InvalidArgument(f"training.{field} names a table that is not there", violations=wrong)


class DenseLayout:
    """All dense blocks end to end in one flat float32 array, cut into chunks that have slots."""

    def __init__(self, blocks: Sequence[DenseDeclaration]) -> None:
        self.blocks = tuple(blocks)
        self._range: dict[str, slice] = {}
        keys: list[tuple[int, int, int, int]] = []
        slots: list[NDArray[np.uint16]] = []
        total = 0
        for number, block in enumerate(blocks):
            size = int(np.prod(block.shape, dtype=np.int64))
            count = chunk_count(size)
            self._range[block.name] = slice(total, total + size)
            keys += [
                (number, k, total + k * CHUNK, total + min(size, (k + 1) * CHUNK)) for k in range(count)
            ]
            slots.append(slots_of(np.arange(count), block.name))
            total += size
        self.size = total
        self._keys = keys
        self._slots = np.concatenate(slots) if slots else np.empty(0, np.uint16)

    def chunks(
        self, flat: Floats, owners: Owners, ps: int, *, without: Collection[int] = ()
    ) -> list[Chunk]:
        """The chunks that `ps` owns, but those of the blocks `without`; views of `flat`."""
        mine = np.flatnonzero(owners[self._slots] == ps)
        keys = [self._keys[k] for k in mine]
        return [Chunk(block, chunk, flat[lo:hi]) for block, chunk, lo, hi in keys if block not in without]

    def all_chunks(self, flat: Floats, *, without: Collection[int] = ()) -> list[Chunk]:
        """Every chunk, but those of the blocks `without`; views of `flat`."""
        return [Chunk(block, chunk, flat[lo:hi]) for block, chunk, lo, hi in self._keys if block not in without]

    def put(self, flat: Floats, chunks: Sequence[Chunk]) -> int:
        """Writes pulled chunks to their place; returns how many float32."""
        written = 0
        for block, chunk, values in chunks:
            lo = self._range[self.blocks[block].name].start + chunk * CHUNK
            flat[lo:lo + values.size] = values
            written += values.size
        return written

    def flatten(self, values: Mapping[str, Floats | None]) -> Floats:
        """One flat array; what is missing, or None, is zero."""
        flat = aligned((self.size,))
        for name, where in self._range.items():
            given = values.get(name)
            flat[where] = 0.0 if given is None else np.asarray(given, np.float32).ravel()
        return flat

    def views(self, flat: Floats) -> dict[str, Floats]:
        """By block name, in shape."""
        return {block.name: flat[self._range[block.name]].reshape(block.shape) for block in self.blocks}


@dataclass(frozen=True, slots=True)
class Arena:
    """Rows of all tables of one dimension, end to end, so that one gather serves them together."""

    values: Floats
    offset: Mapping[str, int]
    """By table: its first row."""


def joined(tables: Sequence[EmbeddingTable], rows: Mapping[str, Floats]) -> dict[int, Arena]:
    """Rows end to end by dimension, where they do not come so."""
    made: dict[int, Arena] = {}
    for dim in {table.dim for table in tables}:
        names = [table.name for table in tables if table.dim == dim]
        ends = np.cumsum([0, *(len(rows[name]) for name in names)])
        values = aligned((int(ends[-1]), dim))
        np.concatenate([np.asarray(rows[name], np.float32).reshape(-1, dim) for name in names], out=values)
        made[dim] = Arena(values, {name: int(first) for name, first in zip(names, ends[:-1], strict=True)})
    return made


@dataclass(frozen=True, slots=True)
class Placement:
    """One version of the slot map."""

    gen: int
    version: int
    owners: Owners
    servers: tuple[int, ...]
    """Who owns a slot, ascending: each gets a part of every batch. Members without slots get none."""

    @staticmethod
    def of(record: RunRecord) -> "Placement":
        """As the run record has it."""
        servers = tuple(int(ps) for ps in np.unique(record.owners))
        return Placement(record.gen, record.map_version, record.owners, servers)


@dataclass(slots=True)
class Prepared:
    """A batch with its distinct ids per table, grouped by owner under one placement."""

    batch: "Batch"
    unique: list[Ints]
    counts: list[Counts]
    index: dict[str, Ints]
    placement: Placement
    bounds: list[NDArray[np.int64]]
    """By table [servers + 1]: where each server's ids begin."""


def prepare(batch: "Batch", declared: Declared, placement: Placement) -> Prepared:
    """Deduplicates ids per table over its features, and orders them by owner."""
    index: dict[str, Ints] = {}
    unique: list[Ints] = []
    counts: list[Counts] = []
    bounds: list[NDArray[np.int64]] = []
    for table in declared.tables:
        features = declared.features[table.name]
        columns = [batch.ids[name].values for name in features]
        ids, inverse, count = dedup(columns[0] if len(columns) == 1 else np.concatenate(columns))
        order, bound = by_owner(ids, table.name, placement)
        if order is not None:
            rank = np.empty_like(order)
            rank[order] = np.arange(order.size)
            ids, count, inverse = ids[order], count[order], rank[inverse]
        start = 0
        for name, column in zip(features, columns, strict=True):
            index[name if name not in index else f"{table.name}/{name}"] = inverse[start:start + column.size]
            start += column.size
        unique.append(ids)
        counts.append(count)
        bounds.append(bound)
    return Prepared(batch, unique, counts, index, placement, bounds)


def by_owner(
    ids: Ints, table: str, placement: Placement
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
    """A stable order that groups ids by server (None: any order does), and each server's range in it."""
    if len(placement.servers) == 1:
        return None, np.array([0, ids.size])
    owner = placement.owners[slots_of(ids, table)]
    order = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[order], np.array(placement.servers), side="right")
    return order, np.concatenate(([0], ends))


def arenas(declared: Declared, prepared: Prepared) -> tuple[dict[int, Arena], dict[str, Floats]]:
    """Empty arrays for the batch's rows: by dimension, and by table as views of them."""
    sizes: dict[int, int] = {}
    offset: dict[int, dict[str, int]] = {}
    for table, ids in zip(declared.tables, prepared.unique, strict=True):
        offset.setdefault(table.dim, {})[table.name] = sizes.get(table.dim, 0)
        sizes[table.dim] = sizes.get(table.dim, 0) + ids.size
    made = {dim: Arena(aligned((size, dim)), offset[dim]) for dim, size in sizes.items()}
    rows = {
        table.name: made[table.dim].values[made[table.dim].offset[table.name]:][: ids.size]
        for table, ids in zip(declared.tables, prepared.unique, strict=True)
    }
    return made, rows


def split(
    prepared: Prepared, grads: Sequence[Floats | None], tables: Sequence[TableDeclaration], placement: Placement
) -> dict[int, list[TableGrads]]:
    """Each server's gradients; views where the placement is still the one that ordered the ids. Nothing of tables
    without gradients."""
    parts: dict[int, list[TableGrads]] = {ps: [] for ps in placement.servers}
    for number, table in enumerate(tables):
        ids, count, grad, bound = (
            prepared.unique[number], prepared.counts[number], grads[number], prepared.bounds[number]
        )
        if grad is None:
            continue
        if placement.version != prepared.placement.version:
            order, bound = by_owner(ids, table.name, placement)
            if order is not None:
                ids, count, grad = ids[order], count[order], grad[order]
        for k, ps in enumerate(placement.servers):
            lo, hi = int(bound[k]), int(bound[k + 1])
            if hi > lo:
                parts[ps].append(TableGrads(number, ids[lo:hi], grad[lo:hi], count[lo:hi]))
    return parts
