"""Control groups: where new ones go, on fake trees of v1 and v2."""

from pathlib import Path

import pytest

from recmesh.runtime.process import cgroup


def machine(tmp_path: Path, *, own: str, mounts: str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
    (tmp_path / "proc/self/mountinfo").write_text(mounts.format(root=tmp_path))
    return tmp_path / "proc"


def v2_group(folder: Path, *, gives: str = "", **limits: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.subtree_control").write_text(gives)
    for name, value in limits.items():
        (folder / f"{name}.max").write_text(value)
    return folder


V2 = "30 20 0:27 / {root}/fs rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_v2_limits_are_set_below_the_own_group(tmp_path: Path) -> None:
    proc = machine(tmp_path, own="0::/a/b\n", mounts=V2)
    own = v2_group(tmp_path / "fs/a/b", gives="cpu memory")
    limits = cgroup.apply("x", cpu_cores=1.5, memory_bytes=1000, proc=proc)
    assert limits.enforced and limits.folders == (own / "x",)
    assert (own / "x/cpu.max").read_text() == "150000 100000"
    assert (own / "x/memory.max").read_text() == "1000"


def test_v2_without_controllers_uses_the_nearest_ancestor_that_gives_them(tmp_path: Path) -> None:
    proc = machine(tmp_path, own="0::/user/session\n", mounts=V2)
    user = v2_group(tmp_path / "fs/user", gives="cpu memory")
    own = v2_group(user / "session", memory="max", cpu="max 100000")
    (own / "cgroup.subtree_control").unlink()
    (own / "cgroup.subtree_control").mkdir()  # cannot be written, as in a group with members
    limits = cgroup.apply("x", cpu_cores=None, memory_bytes=1000, proc=proc)
    assert limits.folders == (user / "x",)


def test_v2_never_escapes_a_limit_of_the_own_group(tmp_path: Path) -> None:
    proc = machine(tmp_path, own="0::/user/session\n", mounts=V2)
    user = v2_group(tmp_path / "fs/user", gives="cpu memory")
    own = v2_group(user / "session", memory="5000")
    (own / "cgroup.subtree_control").unlink()
    (own / "cgroup.subtree_control").mkdir()
    limits = cgroup.apply("x", cpu_cores=None, memory_bytes=1000, proc=proc)
    assert not limits.enforced and "memory controller" in limits.reason


def test_v1_makes_one_group_per_controller(tmp_path: Path) -> None:
    mounts = (
        "31 20 0:28 / {root}/fs/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 20 0:29 / {root}/fs/memory rw - cgroup cgroup rw,memory\n"
        "33 20 0:30 / {root}/fs/unified rw - cgroup2 cgroup2 rw\n"
    )
    proc = machine(tmp_path, own="9:memory:/box\n3:cpu,cpuacct:/\n0::/\n", mounts=mounts)
    (tmp_path / "fs/cpu").mkdir(parents=True)
    (tmp_path / "fs/memory/box").mkdir(parents=True)
    limits = cgroup.apply("x", cpu_cores=0.5, memory_bytes=1000, proc=proc)
    assert limits.folders == (tmp_path / "fs/cpu/x", tmp_path / "fs/memory/box/x")
    assert (tmp_path / "fs/cpu/x/cpu.cfs_quota_us").read_text() == "50000"
    assert (tmp_path / "fs/memory/box/x/memory.limit_in_bytes").read_text() == "1000"


def test_in_a_container_the_own_group_is_the_mounts_root(tmp_path: Path) -> None:
    mounts = "30 20 0:27 /docker/abc {root}/fs rw - cgroup2 cgroup2 rw\n"
    proc = machine(tmp_path, own="0::/docker/abc\n", mounts=mounts)
    v2_group(tmp_path / "fs", gives="cpu memory")
    limits = cgroup.apply("x", cpu_cores=1, memory_bytes=None, proc=proc)
    assert limits.folders == (tmp_path / "fs/x",)


@pytest.mark.parametrize("mounts", ["", V2], ids=["no control groups", "groups that are not there"])
def test_a_machine_that_cannot_limit_says_why_and_leaves_nothing(tmp_path: Path, mounts: str) -> None:
    proc = machine(tmp_path, own="0::/a\n", mounts=mounts)
    limits = cgroup.apply("x", cpu_cores=1, memory_bytes=1000, proc=proc)
    assert not limits.enforced and not limits.folders and limits.reason


def test_no_limit_asked_for_makes_no_group(tmp_path: Path) -> None:
    assert cgroup.apply("x", cpu_cores=None, memory_bytes=None, proc=tmp_path) is cgroup.UNLIMITED
