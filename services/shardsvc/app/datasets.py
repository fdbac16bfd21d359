"""Datasets by name."""

from collections.abc import Callable
from dataclasses import dataclass

from recmesh.data import Index
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
    Violation,
)
from recmesh.runtime.events import Event
from recmesh.runtime.events.catalog import (
    DATASET_REGISTERED,
    DATASET_REMOVED,
    DatasetRegistered,
    DatasetRemoved,
)
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc import wire
from services.shardsvc.app.indexing import Indexer
from services.shardsvc.domain.dataset import Dataset
from services.shardsvc.store.durable import KeyValueStore

Emit = Callable[[Event[DatasetRegistered] | Event[DatasetRemoved]], object]


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a dataset's files hold."""

    index: Index


class Datasets:
    """The registry: names to specifications that were checked against their files."""

    def __init__(self, store: KeyValueStore, indexer: Indexer, *, clock: Clock, emit: Emit) -> None:
        self._store = store
        self._indexer = indexer
        self._clock = clock
        self._emit = emit

    async def inspect(self, spec: DatasetSpec) -> Inspected:
        """Counts and columns; errors as of recmesh.data.index_dataset."""
        return Inspected(await self._index(spec))

    async def _index(self, spec: DatasetSpec) -> Index:
        """Somebody waits for an answer: a source that cannot be reached is wrong as it stands, and not asked again."""
        try:
            return await self._indexer.index(spec)
        except Unavailable as error:
            if not error.violations:
                raise
            raise FailedPrecondition(error.message, reason=error.reason, violations=error.violations) from error

    async def register(self, name: str, spec: DatasetSpec) -> Dataset:
        """A name for a dataset. The same specification again is no new revision, though its files are counted anew;
        another one is."""
        if spec.name not in (None, name):
            reason = f"the specification is named {spec.name!r}, not {name!r}"
            raise InvalidArgument(reason, violations=[Violation("data.name", reason)])
        spec = DatasetSpec.parse(spec.model_dump() | {"name": name})
        index = await self._index(spec)
        while True:
            entry = await self._store.get(name)
            known = wire.dataset_from_bytes(entry.value) if entry else None
            is_same = known is not None and known.same_as(spec)
            counts = (index.rows, len(index.files), index.size_bytes, len(index.slices), len(index.columns))
            if known is not None and is_same:
                dataset = Dataset(name, known.revision, spec, known.created, *counts)
                if dataset == known:
                    return known
            else:
                dataset = Dataset(name, known.revision + 1 if known else 1, spec, self._clock.now(), *counts)
            try:
                if entry is None:
                    await self._store.create(name, wire.dataset_to_bytes(dataset))
                else:
                    await self._store.update(name, wire.dataset_to_bytes(dataset), entry.revision)
            except (Aborted, AlreadyExists):
                continue
            if not is_same:
                self._emit(self._registered(dataset, index))
            return dataset

    async def get(self, name: str) -> Dataset:
        """NotFound when nothing is registered under the name."""
        entry = await self._store.get(name)
        if entry is None:
            raise NotFound(f"there is no dataset {name!r}", violations=[Violation("dataset", f"no {name!r}")])
        return wire.dataset_from_bytes(entry.value)

    async def remove(self, name: str) -> bool:
        """Forget a name; whether there was one. Jobs have taken the specification over, and go on."""
        entry = await self._store.get(name)
        if entry is None:
            return False
        await self._store.delete(name, revision=entry.revision)
        self._emit(self._removed(wire.dataset_from_bytes(entry.value)))
        return True

    async def list(self) -> list[Dataset]:
        """All, by name."""
        return [wire.dataset_from_bytes(entry.value) for entry in await self._store.entries()]

    def _registered(self, dataset: Dataset, index: Index) -> Event[DatasetRegistered]:
        data = DatasetRegistered(
            name=dataset.name, rows=dataset.rows, files=dataset.files, tasks=len(index.slices)
        )
        identity = f"{dataset.name}-{dataset.revision}-{dataset.created:.6f}"
        return Event(DATASET_REGISTERED, dataset.name, data, id=identity)

    def _removed(self, dataset: Dataset) -> Event[DatasetRemoved]:
        identity = f"{dataset.name}-{dataset.revision}-{dataset.created:.6f}-removed"
        data = DatasetRemoved(name=dataset.name, revision=dataset.revision)
        return Event(DATASET_REMOVED, dataset.name, data, id=identity)
