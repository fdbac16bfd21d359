"""Registered regions of POSIX shared memory, read and written through their files.

By pread and pwrite, not by a mapping: a client that shortens its object under a mapping would end the gateway
by SIGBUS; so it gets an error. The copy costs what any tensor's arrival does.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from recmesh.runtime.errors import InvalidArgument, NotFound, PermissionDenied, Violation
from services.gateway.domain import regions
from services.gateway.domain.regions import Place, Region

FOLDER = Path("/dev/shm")
Access = Literal["off", "loopback", "any"]
"""Who may use shared memory: nobody, callers on this machine, or whoever may call at all."""


class Regions(Protocol):
    """What a caller may do with shared memory."""

    def register(self, wanted: Region) -> None:
        """Make a region known."""
        ...

    def unregister(self, name: str = "") -> None:
        """Forget one, or all."""
        ...

    def status(self, name: str = "") -> Mapping[str, Region]:
        """One, or all."""
        ...

    def read(self, place: Place) -> bytes:
        """What is there now."""
        ...

    def write(self, place: Place, data: bytes) -> None:
        """Put data at the beginning of the place."""
        ...


class SharedRegions:
    """The regions of one gateway process; they are gone when it ends, as clients expect."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._regions: dict[str, Region] = {}
        self._files: dict[str, int] = {}

    def register(self, wanted: Region) -> None:
        """Open the object, which must be a plain file that holds all of the region."""
        name = regions.file_name(wanted.key)
        regions.check_new(self._regions, wanted)
        try:
            file = os.open(self._folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise NotFound(f"there is no shared memory object {wanted.key!r}", reason="NO_OBJECT") from None
        except OSError as error:
            raise PermissionDenied(
                f"shared memory object {wanted.key!r} cannot be opened: {error.strerror}", reason="NO_ACCESS"
            ) from None
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or wanted.offset + wanted.size_bytes > found.st_size:
            os.close(file)
            why = f"has {found.st_size} bytes; {wanted.size_bytes} from {wanted.offset} on are not all there"
            raise InvalidArgument(
                f"shared memory object {wanted.key!r} {why}", reason="BAD_REGION",
                violations=[Violation("byte_size", why)],
            )  # fmt: skip
        self._regions[wanted.name], self._files[wanted.name] = wanted, file

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all; one that is not there is no error."""
        for each in [name] if name else list(self._regions):
            if self._regions.pop(each, None) is not None:
                os.close(self._files.pop(each))

    def status(self, name: str = "") -> Mapping[str, Region]:
        """One region, or all; NotFound for a name that is not registered."""
        if not name:
            return dict(self._regions)
        if name not in self._regions:
            raise NotFound(f"shared memory region {name!r} is not registered", reason="UNKNOWN_REGION")
        return {name: self._regions[name]}

    def read(self, place: Place) -> bytes:
        """What is there now."""
        region, offset = regions.absolute(self._regions, place)
        data = os.pread(self._files[region.name], place.size_bytes, offset)
        if len(data) != place.size_bytes:
            raise _shortened(region)
        return data

    def write(self, place: Place, data: bytes) -> None:
        """Put data at the beginning of the place. An object that was shortened is not made longer again."""
        region, offset = regions.absolute(self._regions, place)
        if len(data) > place.size_bytes:
            why = f"needs {len(data)} bytes, but {place.size_bytes} are given"
            raise InvalidArgument(
                f"an output {why} in shared memory region {region.name!r}", reason="BAD_REGION",
                violations=[Violation(region.name, why)],
            )  # fmt: skip
        file = self._files[region.name]
        if os.fstat(file).st_size < offset + len(data):
            raise _shortened(region)
        view, at = memoryview(data), 0
        while at < len(data):
            at += os.pwrite(file, view[at:], offset + at)


class NoRegions:
    """For callers that share no memory with this machine, or may not use it."""

    def __init__(self, why: str) -> None:
        self._why = why

    def register(self, wanted: Region) -> None:
        """Refused."""
        raise self._refusal()

    def unregister(self, name: str = "") -> None:
        """Refused."""
        raise self._refusal()

    def status(self, name: str = "") -> Mapping[str, Region]:
        """Refused."""
        raise self._refusal()

    def read(self, place: Place) -> bytes:
        """Refused."""
        raise self._refusal()

    def write(self, place: Place, data: bytes) -> None:
        """Refused."""
        raise self._refusal()

    def _refusal(self) -> PermissionDenied:
        return PermissionDenied(f"shared memory is not used here: {self._why}", reason="NO_SHARED_MEMORY")


def _shortened(region: Region) -> InvalidArgument:
    why = "is shorter than it was when it was registered"
    return InvalidArgument(
        f"shared memory object {region.key!r} {why}", reason="BAD_REGION",
        violations=[Violation(region.name, why)],
    )  # fmt: skip


def regions_for(regions: SharedRegions, access: Access, *, local: bool) -> Regions:
    """What a caller gets; `local`: it called from this machine."""
    if access == "any" or (access == "loopback" and local):
        return regions
    return NoRegions("it is switched off" if access == "off" else "only callers on this machine share memory with it")
