"""Kernels that an image has compiled: in pods its file system is read-only, and numba reads no cache that it cannot
write."""

import shutil
from collections.abc import MutableMapping
from pathlib import Path

KEPT = "RECMESH_KERNELS"
"""Where an image has them (infra/Dockerfile)."""
CACHE = "NUMBA_CACHE_DIR"


def unpack_kernels(env: MutableMapping[str, str]) -> None:
    """Copies them to the role's own folder, and tells numba, not yet imported. Without them or without room, and
    on another kind of CPU than the builder's, each role compiles for itself: most of a minute of a core."""
    kept = env.get(KEPT, "")
    if not kept or env.get(CACHE):
        return
    place = Path(env.get("RECMESH_WORK_DIR") or ".") / "kernels"
    try:
        shutil.copytree(kept, place, copy_function=shutil.copyfile, dirs_exist_ok=True)
    except OSError:
        return
    env[CACHE] = str(place.absolute())
