"""Kernels of an image's own, in a role whose file system is read-only."""

import subprocess
import sys
from pathlib import Path

from recmesh.trainer.kernels import unpack_kernels


def test_an_images_kernels_are_where_numba_can_write(tmp_path: Path) -> None:
    kept = tmp_path / "image" / "store_ab"
    kept.mkdir(parents=True)
    (kept / "gather.nbi").write_bytes(b"index")
    env = {"RECMESH_KERNELS": str(tmp_path / "image"), "RECMESH_WORK_DIR": str(tmp_path / "work")}
    unpack_kernels(env)
    assert env["NUMBA_CACHE_DIR"] == str(tmp_path / "work" / "kernels")
    assert (tmp_path / "work" / "kernels" / "store_ab" / "gather.nbi").read_bytes() == b"index"


def test_a_cache_that_was_given_and_an_image_without_kernels_stay_as_they_are(tmp_path: Path) -> None:
    for env in ({}, {"RECMESH_KERNELS": str(tmp_path), "NUMBA_CACHE_DIR": "/x"}, {"RECMESH_KERNELS": "/nowhere"}):
        before = dict(env)
        unpack_kernels(env)
        assert env == before


def test_they_are_unpacked_before_numba_is_imported() -> None:
    told = "import sys; import recmesh.trainer.__main__, recmesh.trainer.kernels; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], check=False, timeout=60).returncode == 0
