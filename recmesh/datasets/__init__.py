"""Datasets outside the mesh: the same files, order and features on a laptop, in a notebook, under any training loop."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recmesh.client.jobfile import load_mapping, resolve_data
from recmesh.data.faults import wrong
from recmesh.data.loading import Loader, Share
from recmesh.datasets.definition import DataStream, Source
from recmesh.spec.dataset import DatasetSpec

if TYPE_CHECKING:
    from recmesh.datasets.tensors import TensorLoader

__all__ = ["DataStream", "Dataset", "Source"]


class Dataset:
    """What a job's `data` says, as batches.

        loader = Dataset("dataset.yaml").torch(batch_size=4096, epochs=2, seed=7)
        for inputs, labels, weight in loader:
            ...
            state = loader.state_dict()
    """

    def __init__(
        self, spec: DatasetSpec | Mapping[str, Any] | str | os.PathLike[str] | DataStream, *more: DataStream,
        **fields: Any,
    ) -> None:
        """A specification, a mapping, or a YAML or JSON file that holds one (or a job, whose `data` is then taken); or
        streams, with the other fields of a specification by name.

        Paths in a file count as for `recmesh submit`: from the current folder, or from the file's own.
        """
        if isinstance(spec, DataStream):
            modes = {stream.mode for stream in (spec, *more)} - {None}
            if len(modes) > 1:
                raise wrong("streams", f"have different modes: {', '.join(sorted(map(str, modes)))}")
            given = {"mode": modes.pop()} if modes else {}
            spec = {"streams": [stream.mapping for stream in (spec, *more)]} | given | fields
        elif more or fields:
            raise TypeError("streams and fields go with streams; a specification is given alone")
        if isinstance(spec, (str, os.PathLike)):
            path = Path(spec)
            values = load_mapping(path)
            spec = values if {"source", "streams"} & values.keys() else values.get("data", values)
            resolve_data(spec, path.parent)
        self.spec = spec if isinstance(spec, DatasetSpec) else DatasetSpec.parse(spec)

    def batches(
        self, batch_size: int, *, epochs: int = 1, seed: int = 0, rank: int = 0, world: int = 1
    ) -> Loader:
        """Columns as numpy arrays (`recmesh.data.Batch`). `rank` of `world` workers gets its part of each epoch."""
        return Loader(self.spec, batch_size=batch_size, epochs=epochs, seed=seed, share=Share(rank, world))

    def torch(
        self, batch_size: int, *, epochs: int = 1, seed: int = 0, rank: int = 0, world: int = 1
    ) -> "TensorLoader[Any]":
        """(inputs by name, labels float32 [B, labels], weights float32 [B] or None) as torch tensors.

        Inputs are those of an exported model (docs/reference/exported-models.md).
        """
        from recmesh.datasets.tensors import TensorLoader, to_torch

        loader = self.batches(batch_size, epochs=epochs, seed=seed, rank=rank, world=world)
        return TensorLoader(loader, self.spec, to_torch)

    def tf(
        self, batch_size: int, *, epochs: int = 1, seed: int = 0, rank: int = 0, world: int = 1
    ) -> "TensorLoader[Any]":
        """The same as TensorFlow tensors; `recmesh.datasets.tensors.as_tf_dataset` makes a `tf.data.Dataset` of it."""
        from recmesh.datasets.tensors import TensorLoader, to_tf

        loader = self.batches(batch_size, epochs=epochs, seed=seed, rank=rank, world=world)
        return TensorLoader(loader, self.spec, to_tf)
