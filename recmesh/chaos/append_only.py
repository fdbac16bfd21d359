"""Valkey's append-only file as it was some time ago: what a disk gives back that lost the writes since."""

import os
from collections.abc import Mapping
from pathlib import Path


def marks(folder: Path) -> dict[Path, int]:
    """By file that is appended to now: its bytes."""
    return {path: path.stat().st_size for path in (folder / "appendonlydir").glob("*.incr.aof")}


def cut(to: Mapping[Path, int]) -> int:
    """Cuts the files to these sizes while their server stands; bytes lost. 0: it writes other files by now."""
    if not all(path.exists() for path in to):
        return 0
    lost = 0
    for path, size in to.items():
        lost += path.stat().st_size - size
        os.truncate(path, size)
    return lost
