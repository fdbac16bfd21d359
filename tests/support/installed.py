"""Packages that are not there, but found by their entry points."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def installed(folder: Path, points: Mapping[str, str], *, group: str = "recmesh.controllers") -> Iterator[None]:
    """A package in `folder` that names these entry points, until the block ends."""
    site = folder / "site"
    info = site / "recmesh_tested-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recmesh-tested\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    sys.path.insert(0, str(site))
    try:
        yield
    finally:
        sys.path.remove(str(site))
