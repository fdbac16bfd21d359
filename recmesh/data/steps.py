"""What becomes of a feature's columns before they are ids: the user's function, crosses, boundaries, vocabularies.

Training, evaluation and requests for predictions come through here, so what a model serves on is what it learned from.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recmesh.data.faults import wrong
from recmesh.data.records import Int64
from recmesh.formats import MISSING_ID, splitmix64
from recmesh.spec.dataset import Feature


def crossed(columns: Sequence[Int64]) -> Int64:
    """int64 [B]: one id for each combination, in this order: h = SplitMix64(h) + next, and SplitMix64 of the last."""
    first, *others = columns
    mixed = np.ascontiguousarray(first).view(np.uint64)
    for ids in others:
        mixed = splitmix64(mixed) + np.ascontiguousarray(ids).view(np.uint64)      # wraps, as arrays of integers do
    return splitmix64(mixed).view(np.int64)


def bucketised(values: Any, boundaries: Sequence[float]) -> Int64:
    """int64 [N]: how many boundaries each float64 reaches; NaN is the missing id."""
    found = np.searchsorted(np.asarray(boundaries, np.float64), values, side="right").astype(np.int64)
    return np.where(np.isnan(values), MISSING_ID, found)


def placed(array: Any, vocabulary: Sequence[str | int]) -> Int64:
    """int64 [N]: the place of each value, by its text, from 1 on; 0 for another one, the missing id for none."""
    text = array.cast(pa.string())
    found = pc.fill_null(pc.add(pc.index_in(text, value_set=_texts(tuple(map(str, vocabulary)))), 1), 0)
    ids = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(text.is_valid().to_numpy(zero_copy_only=False), ids, MISSING_ID)


@lru_cache(maxsize=256)
def _texts(vocabulary: tuple[str, ...]) -> Any:
    return pa.array(vocabulary, pa.string())


def called(feature: Feature, columns: Sequence[Any], *, where: str) -> Any:
    """What the feature's function makes of its columns: an Arrow array as long as they are."""
    assert feature.function is not None
    path, rows = f"data.features.{feature.name}.function", len(columns[0])
    try:
        made = _function(feature.function)(*columns)
    except Exception as error:              # whatever the user's code raises
        hint = "; it must be where Python looks (PYTHONPATH)" if isinstance(error, ModuleNotFoundError) else ""
        told = f"{feature.function} failed on {where}: {type(error).__name__}: {error}{hint}"
        raise wrong(path, told) from error
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    if not isinstance(made, pa.Array):
        try:
            made = pa.array(made)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise wrong(path, f"{feature.function} gave a {type(made).__name__}, no array: {error}") from None
    if len(made) != rows:
        raise wrong(path, f"{feature.function} gave {len(made)} values for {rows} rows of {where}")
    return made


@lru_cache(maxsize=256)
def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function
