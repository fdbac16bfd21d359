"""Which archives of user code are taken: a packed folder, and nothing that reaches out of it."""

import posixpath
from dataclasses import dataclass

from recmesh.runtime.errors import InvalidArgument, Violation


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a tar archive, in our words."""

    name: str
    kind: str
    """file | folder | link | other"""
    size_bytes: int
    target: str = ""
    """Of a link: where it points, relative to the archive's root for hard links, to its folder for others."""
    hard: bool = False


@dataclass(slots=True)
class ArchiveRules:
    """Checks members one after another, with their sums; sizes are of the unpacked content."""

    max_members: int
    max_bytes: int
    members: int = 0
    size_bytes: int = 0

    def check(self, member: Member) -> None:
        """InvalidArgument when this member makes the archive one that is not taken."""
        self.members += 1
        self.size_bytes += member.size_bytes
        why = _escape(member) or self._too_much()
        if why:
            raise InvalidArgument(
                f"the archive is not taken: {member.name!r} {why}",
                reason="UNSAFE_ARCHIVE",
                violations=[Violation(member.name or "(archive)", why)],
            )

    def _too_much(self) -> str:
        if self.members > self.max_members:
            return f"is one of more than {self.max_members} members"
        if self.size_bytes > self.max_bytes:
            return f"brings the unpacked size above {self.max_bytes} bytes"
        return ""


def _escape(member: Member) -> str:
    if not member.name or "\0" in member.name:
        return "has no valid name"
    if not _inside(member.name):
        return "lies outside the archive's folder"
    if member.kind == "other":
        return "is neither a file, a folder nor a link"
    if member.kind == "link":
        base = "" if member.hard else posixpath.dirname(member.name)
        if posixpath.isabs(member.target) or not _inside(posixpath.join(base, member.target)):
            return f"links to {member.target!r}, outside the archive's folder"
    return ""


def _inside(path: str) -> bool:
    if posixpath.isabs(path) or "\\" in path:
        return False
    normal = posixpath.normpath(path)
    return normal != ".." and not normal.startswith("../")
