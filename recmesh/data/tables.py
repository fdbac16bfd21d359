"""Delta and Iceberg tables: the data files of a snapshot, by the tables' own libraries. They are Parquet."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import fsspec

from recmesh.data.faults import wrong
from recmesh.data.files import FileInfo, describe, naming
from recmesh.runtime.errors import FailedPrecondition, NotFound, Unavailable, Violation
from recmesh.spec.dataset import Source

FILES, PARTITION = "data.source.files", "data.source.partition"
_THREADS = 8


def table_files(source: Source, *, partition: Mapping[str, str] | None = None) -> list[FileInfo]:
    """The files of the table's snapshot in name order, only those of `partition` (else the source's own); maybe none.

    NotFound: there is no such table or version. InvalidArgument: a key is no partition column, or rows were deleted
    without rewriting their files, so that a file holds more than the table.
    """
    only = source.partition if partition is None else partition
    with naming(source.files[0]):
        uris = (_delta if source.format == "delta" else _iceberg)(source.files[0], source.version, dict(only))
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(describe, sorted(uris)))


def _delta(uri: str, version: int | None, only: dict[str, str]) -> list[str]:
    deltalake, errors = _library("deltalake"), _library("deltalake.exceptions")
    try:
        table = deltalake.DeltaTable(uri, version=version)
    except errors.DeltaError as error:
        if version is None and not isinstance(error, errors.TableNotFoundError):
            raise Unavailable(f"reading the table {uri} failed: {error}") from error
        raise _absent(uri, version, error) from None
    if "deletionVectors" in (table.protocol().reader_features or ()):
        raise wrong(FILES, f"{uri} may mark rows as deleted (deletion vectors), which cannot be read; rewrite it")
    _check_partition(uri, only, table.metadata().partition_columns)
    return list(table.file_uris(file_pruning_predicate=[(key, "=", value) for key, value in only.items()] or None))


def _iceberg(uri: str, version: int | None, only: dict[str, str]) -> list[str]:
    expressions, tables = _library("pyiceberg.expressions"), _library("pyiceberg.table")
    table = tables.StaticTable.from_metadata(_newest_metadata(uri))
    identities = {
        table.schema().find_column_name(field.source_id)
        for field in table.spec().fields if str(field.transform) == "identity"
    }
    _check_partition(uri, only, sorted(name for name in identities if name))
    if version is not None and table.snapshot_by_id(version) is None:
        raise _absent(uri, version, "it has no such snapshot")
    chosen: Any = expressions.AlwaysTrue()
    for key, value in only.items():
        chosen = expressions.And(chosen, expressions.EqualTo(key, value))
    found = []
    try:
        tasks = list(table.scan(row_filter=chosen, snapshot_id=version).plan_files())
    except (_library("pyiceberg.exceptions").ValidationError, TypeError, ValueError) as error:
        raise wrong(PARTITION, f"{uri} cannot be asked for {only}: {error}") from None
    for task in tasks:
        if task.delete_files:
            raise wrong(FILES, f"{uri} has delete files, which cannot be read yet; rewrite its data files")
        if not isinstance(task.residual, expressions.AlwaysTrue):
            raise wrong(PARTITION, f"{task.file.file_path} of {uri} was written before it was partitioned so")
        found.append(task.file.file_path)
    return found


def _newest_metadata(uri: str) -> str:
    """As a catalogue would know it: the file that is named, the table's hint, or the highest number."""
    if uri.endswith(".json"):
        return uri
    fs, path = fsspec.core.url_to_fs(uri)
    folder = f"{path.rstrip('/')}/metadata"
    if fs.exists(hint := f"{folder}/version-hint.text"):
        number = fs.cat_file(hint).decode().strip()
        for name in (f"v{number}.metadata.json", f"{number}.metadata.json"):
            if fs.exists(f"{folder}/{name}"):
                return str(fs.unstrip_protocol(f"{folder}/{name}"))
    numbered = {}
    for each in fs.glob(f"{folder}/*.metadata.json"):
        name = each.rpartition("/")[2].removesuffix(".metadata.json")
        number = name.removeprefix("v").partition("-")[0]
        if number.isdecimal():
            numbered[int(number)] = each
    if not numbered:
        raise _absent(uri, None, f"there is no metadata in {folder}")
    return str(fs.unstrip_protocol(numbered[max(numbered)]))


def _check_partition(uri: str, only: Mapping[str, str], columns: list[str]) -> None:
    unknown = [key for key in only if key not in columns]
    if unknown:
        known = ", ".join(columns) or "none"
        raise wrong(PARTITION, f"{uri} is not partitioned by {unknown[0]} itself; its partition columns: {known}")


def _absent(uri: str, version: int | None, error: object) -> NotFound:
    which = uri if version is None else f"{uri} at version {version}"
    reason = f"there is no table {which}: {str(error).splitlines()[0]}"
    return NotFound(reason, violations=[Violation(FILES, reason)])


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise FailedPrecondition(
            f"tables of this kind need the package {package}: pip install 'recmesh[tables]'", reason="NO_PACKAGE"
        ) from None
