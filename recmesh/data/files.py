"""Files on any fsspec file system: patterns resolved, identities taken, and checked at every open."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from recmesh.data.faults import wrong
from recmesh.data.records import FileSlice
from recmesh.runtime.errors import (
    DataLoss,
    InvalidArgument,
    MeshError,
    NotFound,
    PermissionDenied,
    Unavailable,
    Violation,
)
from recmesh.spec.dataset import Source

FILES = "data.source.files"
_TAGS = (
    "ETag", "etag", "md5Hash", "content_md5", "checksum", "generation", "mtime", "LastModified", "modified",
)
"""Where file systems put what changes with the content, the surest first."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as it is now."""

    uri: str
    size_bytes: int
    etag: str
    """Changes when the content does, as far as the file system can tell."""


def resolve_files(source: Source) -> list[FileInfo]:
    """The files of a source: as written, patterns in name order. Nothing found, or no file: an error."""
    found: list[FileInfo] = []
    for pattern in source.files:
        with naming(pattern):
            found.extend(_matches(pattern))
    seen = {info.uri for info in found}
    if len(seen) != len(found):
        twice = next(info.uri for i, info in enumerate(found) if info.uri in {f.uri for f in found[:i]})
        raise wrong(FILES, f"{twice} is named twice")
    return found


def _matches(pattern: str) -> list[FileInfo]:
    fs, path = fsspec.core.url_to_fs(pattern)
    if not any(mark in path for mark in "*?["):
        return [_info(fs, path)]
    details = fs.glob(path, detail=True)
    files = sorted(name for name, info in details.items() if info.get("type") != "directory")
    if not files:
        raise _missing(f"no file matches {pattern}")
    if not tells_all(fs, details[files[0]]):
        return [_info(fs, name) for name in files]
    return [_file(fs, name, details[name]) for name in files]


def _info(fs: Any, path: str) -> FileInfo:
    info = fs.info(path)
    if info.get("type") == "directory":
        raise wrong(FILES, f"{path} is a folder; name its files, for example {path.rstrip('/')}/*")
    return _file(fs, path, info)


def _file(fs: Any, path: str, info: Mapping[str, Any]) -> FileInfo:
    uri = path if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(path)
    return FileInfo(uri, int(info["size"] or 0), tag_of(fs, path, info))


def tag_of(fs: Any, path: str, info: Mapping[str, Any]) -> str:
    """What changes with the content, as far as the file system can tell."""
    if isinstance(fs, LocalFileSystem):
        return f"{int(info['mtime'] * 1e6):x}-{info['ino']:x}"
    key = tag_key(fs, info)
    return str(info[key]).strip('"') if key else str(fs.ukey(path))


def tells_all(fs: Any, listed: Mapping[str, Any]) -> bool:
    """Whether a listing tells of a file what asking for it alone would: sizes and tags are compared at every open."""
    if isinstance(fs, LocalFileSystem):
        return True
    alone, key = fs.info(listed["name"]), tag_key(fs, listed)
    return bool(key) and (key, alone.get("size"), alone[key]) == (tag_key(fs, alone), listed.get("size"), listed[key])


def tag_key(fs: Any, info: Mapping[str, Any]) -> str:
    """Under which name a file system tells that; empty: under none."""
    return "" if isinstance(fs, LocalFileSystem) else next((key for key in _TAGS if info.get(key)), "")


def describe(uri: str) -> FileInfo:
    """The file as it is now."""
    with naming(uri):
        return _info(*fsspec.core.url_to_fs(uri))


@contextmanager
def opened(file: FileInfo | FileSlice) -> Iterator[Any]:
    """The file for reading bytes. DataLoss when it is no longer the file that was indexed."""
    with naming(file.uri):
        fs, path = _unchanged(file)
        with fs.open(path, "rb") as stream:
            yield stream


def check_unchanged(file: FileInfo | FileSlice) -> None:
    """DataLoss when it is no longer the file that was indexed; for who has its content at hand."""
    with naming(file.uri):
        _unchanged(file)


def _unchanged(file: FileInfo | FileSlice) -> tuple[Any, str]:
    """Its file system, and its path there."""
    fs, path = fsspec.core.url_to_fs(file.uri)
    try:
        now = _info(fs, path)
    except FileNotFoundError:
        raise DataLoss(f"{file.uri} is gone since it was indexed", reason="FILE_CHANGED") from None
    if (now.size_bytes, now.etag) != (file.size_bytes, file.etag):
        raise DataLoss(
            f"{file.uri} changed since it was indexed: {file.size_bytes} bytes with tag {file.etag} "
            f"then, {now.size_bytes} with {now.etag} now",
            reason="FILE_CHANGED",
        )
    return fs, path


@contextmanager
def naming(uri: str) -> Iterator[None]:
    """Turns what a file system raises into errors that name the file and the field."""
    try:
        yield
    except MeshError:
        raise
    except FileNotFoundError:
        raise _missing(f"there is no file {uri}") from None
    except PermissionError:
        reason = f"{uri} may not be read"
        raise PermissionDenied(reason, violations=[Violation(FILES, reason)]) from None
    except (ImportError, ValueError) as error:
        raise wrong(FILES, f"{uri} cannot be opened: {error}") from error
    except OSError as error:
        raise Unavailable(f"reading {uri} failed: {error}") from error


def _missing(reason: str) -> NotFound:
    return NotFound(reason, violations=[Violation(FILES, reason)])


def unreadable(uri: str, reason: str) -> InvalidArgument:
    """The file is not of the format that the specification names."""
    return wrong(FILES, f"{uri} cannot be read: {reason}")
