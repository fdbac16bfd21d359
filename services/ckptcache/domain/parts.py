"""What a parameter server hands over: named byte ranges with checksums."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from recmesh.runtime.errors import Violation

PART_DOCUMENT = "part.json"
RECEIPT = "receipt.json"
"""Written last into a part's folder: with it the part is complete."""

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_FILES = 10_000


@dataclass(frozen=True, slots=True)
class PartFile:
    """One file of a part: `size_bytes` bytes at `offset` of the part's memory."""

    name: str
    offset: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Part:
    """All of one parameter server's slots at the cut."""

    ps: int
    files: tuple[PartFile, ...]
    document: str = field(default="", repr=False)
    """part.json as the PS wrote it."""

    @property
    def base(self) -> int:
        """The snapshot that it builds on, as part.json says; 0: none."""
        try:
            found = json.loads(self.document).get("base", 0)
        except (ValueError, AttributeError):
            return 0
        return found if isinstance(found, int) else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def file(self, name: str) -> PartFile | None:
        """The file of that name."""
        return next((file for file in self.files if file.name == name), None)


def packed(part: Part) -> Part:
    """The same files one behind the other from offset 0, as they go over a stream."""
    files, offset = [], 0
    for file in part.files:
        files.append(PartFile(file.name, offset, file.size_bytes, file.sha256))
        offset += file.size_bytes
    return Part(part.ps, tuple(files), part.document)


def part_violations(part: Part, *, memory_bytes: int) -> list[Violation]:
    """What is wrong with a part that lies in `memory_bytes` bytes; empty when nothing is."""
    found: list[Violation] = []
    if not part.files:
        found.append(Violation("files", "a part has at least one file"))
    if len(part.files) > MAX_FILES:
        found.append(Violation("files", f"{len(part.files)} files; at most {MAX_FILES}"))
    names: set[str] = set()
    for index, file in enumerate(part.files[:MAX_FILES]):
        path = f"files[{index}]"
        if not _FILE.fullmatch(file.name) or file.name == RECEIPT:
            found.append(Violation(f"{path}.name", f"{file.name!r} is not a file name for a part"))
        if file.name in names:
            found.append(Violation(f"{path}.name", f"{file.name!r} occurs twice"))
        names.add(file.name)
        if not _SHA256.fullmatch(file.sha256):
            found.append(Violation(f"{path}.sha256", "not 64 lower-case hexadecimal digits"))
        if file.offset + file.size_bytes > memory_bytes:
            reason = f"[{file.offset}, {file.offset + file.size_bytes}) is beyond the part's {memory_bytes} bytes"
            found.append(Violation(path, reason))
    if not part.document and PART_DOCUMENT not in names:
        found.append(Violation("part_json", "is empty"))
    return found


def job_violations(job_id: str) -> list[Violation]:
    """Job ids become folder names and catalogue keys."""
    if _JOB.fullmatch(job_id):
        return []
    return [Violation("job_id", f"{job_id!r} is not a job id")]


def part_folder(ps: int) -> str:
    """Folder of a part inside its snapshot's folder."""
    return f"ps-{ps:03d}"


def snapshot_folder(job_id: str, number: int) -> str:
    """Folder of a snapshot below the storage's root."""
    return f"checkpoints/{job_id}/{number:08d}"


_PART_PATH = re.compile(rf"checkpoints/({_JOB.pattern})/(\d{{8}})/ps-(\d{{3,}})")


def parse_part_path(path: str) -> tuple[str, int, int] | None:
    """(job id, snapshot, ps) of a part's path below the storage's root."""
    match = _PART_PATH.fullmatch(path)
    return (match[1], int(match[2]), int(match[3])) if match else None


def missing(expected: Sequence[int], stored: Sequence[int]) -> tuple[int, ...]:
    """Parts that are expected and not stored yet, ascending."""
    return tuple(sorted(set(expected) - set(stored)))
