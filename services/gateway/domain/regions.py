"""Shared memory that a client registers: which regions are taken, and where in them a tensor lies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from recmesh.runtime.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted, Violation

MAX_REGIONS = 64
MAX_REGION_BYTES = 1 << 30
MAX_NAME_CHARS = 128
OWN_PREFIX = "recmesh"
"""The mesh's own shared memory (parts of snapshots) is nobody else's."""

REGION, OFFSET, SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


@dataclass(frozen=True, slots=True)
class Region:
    """A registered stretch of a shared memory object."""

    name: str
    key: str
    """The object's name, as `shm_open` takes it; its file is in /dev/shm."""
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's raw contents are: bytes from `offset` of a region on."""

    region: str
    offset: int
    size_bytes: int


class Memory(Protocol):
    """Registered regions, or the refusal to use any."""

    def read(self, place: Place) -> bytes:
        """What is there now."""
        ...

    def write(self, place: Place, data: bytes) -> None:
        """Put data at the beginning of the place."""
        ...


def file_name(key: str) -> str:
    """The file's name in /dev/shm; InvalidArgument for a key that is not a plain name, or is the mesh's own."""
    name = key.removeprefix("/")
    plain = 0 < len(name) <= 255 and "/" not in name and "\0" not in name and name not in (".", "..")
    if not plain:
        _refuse("key", f"{key!r} is not the name of a shared memory object")
    if name.startswith(OWN_PREFIX):
        _refuse("key", f"{key!r} belongs to the mesh")
    return name


def check_new(existing: Mapping[str, Region], wanted: Region) -> None:
    """Refuses a region that is wrong in itself, taken, or one too many."""
    if not 0 < len(wanted.name) <= MAX_NAME_CHARS:
        _refuse("name", f"has {len(wanted.name)} characters; 1 to {MAX_NAME_CHARS} are taken")
    if wanted.offset < 0:
        _refuse("offset", "is negative")
    if not 0 < wanted.size_bytes <= MAX_REGION_BYTES:
        _refuse("byte_size", f"{wanted.size_bytes} is not from 1 to {MAX_REGION_BYTES}")
    if wanted.name in existing:
        raise AlreadyExists(
            f"shared memory region {wanted.name!r} is registered already", reason="REGION_TAKEN"
        )
    if len(existing) >= MAX_REGIONS:
        raise ResourceExhausted(
            f"{MAX_REGIONS} shared memory regions are registered already", reason="TOO_MANY_REGIONS"
        )


def absolute(existing: Mapping[str, Region], place: Place) -> tuple[Region, int]:
    """The region of a place and its first byte in the object; refused when it reaches out of the region."""
    region = existing.get(place.region)
    if region is None:
        raise NotFound(
            f"shared memory region {place.region!r} is not registered", reason="UNKNOWN_REGION"
        )
    if place.offset + place.size_bytes > region.size_bytes:
        _refuse(
            place.region,
            f"has {region.size_bytes} bytes; {place.size_bytes} from {place.offset} on lie outside of it",
        )
    return region, region.offset + place.offset


def place_of(parameters: Mapping[str, Any], path: str) -> Place | None:
    """What a tensor's parameters say of shared memory; None when they say nothing."""
    name = parameters.get(REGION)
    if name is None:
        return None
    if not isinstance(name, str):
        _refuse(f"{path}.{REGION}", "is not a string")
    numbers = []
    for key, default in ((OFFSET, 0), (SIZE, None)):
        value = parameters.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            _refuse(f"{path}.{key}", "is not a whole number of bytes" if value is not None else "is missing")
        numbers.append(value)
    return Place(name, numbers[0], numbers[1])


def _refuse(path: str, why: str) -> NoReturn:
    raise InvalidArgument(
        f"shared memory: {path} {why}", reason="BAD_REGION", violations=[Violation(path, why)]
    )
