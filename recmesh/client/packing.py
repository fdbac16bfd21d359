"""A folder of user code as one archive: the same bytes for the same content, whoever packs it and when."""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from recmesh.runtime.errors import InvalidArgument, ResourceExhausted, Violation

MAX_BYTES = 100 * 2**20
"""Of the files together: code, not data."""
IGNORE_FILE = ".recmeshignore"
ALWAYS_IGNORED = (
    ".git", ".hg", ".svn", "__pycache__", "*.pyc", ".venv", "venv", "node_modules", ".recmesh", ".mypy_cache",
    ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", "*.egg-info", ".DS_Store", ".env",
)  # fmt: skip


def pack(folder: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The folder's files as a tar.gz without times, owners and umask.

    Left out is what ALWAYS_IGNORED and `.recmeshignore` name (one pattern a line, as in .gitignore without
    negation: a pattern with a slash is relative to the folder, another matches a name at any depth).
    InvalidArgument when there is nothing to pack or a link leaves the folder; ResourceExhausted if too large.
    """
    if not folder.is_dir():
        raise _refused(f"{folder} is not a folder")
    files = list(_files(folder, _patterns(folder)))
    if not any(path.suffix == ".py" for path in files):
        raise _refused(f"{folder} has no Python file")
    size = sum(path.lstat().st_size for path in files)
    if size > max_bytes:
        largest = max(files, key=lambda path: path.lstat().st_size)
        raise ResourceExhausted(
            f"the code in {folder} has {size / 2**20:.0f} MiB, more than {max_bytes / 2**20:.0f} MiB; name "
            f"what is not code in {IGNORE_FILE} (the largest file is {largest.relative_to(folder)})"
        )
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in files:
            _add(archive, path, folder)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as file:
        file.write(raw.getvalue())
    return packed.getvalue()


def _add(archive: tarfile.TarFile, path: Path, folder: Path) -> None:
    info = tarfile.TarInfo(path.relative_to(folder).as_posix())
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        if not path.resolve().is_relative_to(folder.resolve()) or Path(os.readlink(path)).is_absolute():
            raise _refused(f"the link {info.name} leaves the folder")
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        archive.addfile(info)
        return
    content = path.read_bytes()
    info.size, info.mode = len(content), 0o755 if mode & stat.S_IXUSR else 0o644
    archive.addfile(info, io.BytesIO(content))


def _files(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Regular files and links, in name order."""
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        linked = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(
            name for name in folders if name not in linked and not _ignored(here / name, folder, patterns)
        )
        for name in sorted(names + linked):
            path = here / name
            kind = path.lstat().st_mode
            if (stat.S_ISREG(kind) or stat.S_ISLNK(kind)) and not _ignored(path, folder, patterns):
                yield path


def _ignored(path: Path, folder: Path, patterns: Sequence[str]) -> bool:
    relative = PurePosixPath(path.relative_to(folder).as_posix())
    for pattern in patterns:
        if "/" in pattern.rstrip("/"):
            if fnmatch(str(relative), pattern.strip("/")):
                return True
        elif fnmatch(relative.name, pattern.rstrip("/")):
            return True
    return False


def _patterns(folder: Path) -> list[str]:
    try:
        lines = (folder / IGNORE_FILE).read_text().splitlines()
    except FileNotFoundError:
        lines = []
    own = [line.strip() for line in lines]
    return [*ALWAYS_IGNORED, *(line for line in own if line and not line.startswith("#"))]


def _refused(reason: str) -> InvalidArgument:
    return InvalidArgument("the job's code cannot be packed", violations=[Violation("model.code", reason)])
