"""CPU and memory limits by control groups, v1 or v2, where this process may make them.

New groups are made *below* the own group, so that nothing leaves the limits it already lives under. On v2
a group with members cannot give controllers to its children; then the nearest ancestor that may is used, but
only when no limit of the own group would be escaped by that. Where neither works, limits are not enforced
and the caller is told why: training without a limit is better than not training.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CPU_PERIOD_US = 100_000
"""The kernel's default: a quota is this many microseconds of CPU per core wanted, per 0.1 s."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The groups that a process joins to be limited, and what they hold it to."""

    folders: tuple[Path, ...]
    enforced: bool
    reason: str
    """Why not, when `enforced` is False."""


UNLIMITED = Limits((), False, "no limit was asked for")


@dataclass(frozen=True, slots=True)
class _Mount:
    point: Path
    root: str
    version: int
    controllers: frozenset[str]


def apply(
    name: str, *, cpu_cores: float | None, memory_bytes: int | None, proc: Path = Path("/proc")
) -> Limits:
    """Makes the groups for one process; on failure nothing is left behind and the reason is told."""
    wanted = {"cpu": cpu_cores, "memory": memory_bytes}
    wanted = {controller: value for controller, value in wanted.items() if value is not None}
    if not wanted:
        return UNLIMITED
    made: list[Path] = []
    try:
        for controller, parent, version in _parents(frozenset(wanted), proc):
            folder = parent / name
            if folder not in made:
                folder.mkdir()
                made.append(folder)
            for file, text in _settings(controller, version, cpu_cores, memory_bytes):
                _write(folder / file, text)
    except (OSError, LookupError) as error:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()
        return Limits((), False, f"control groups cannot be used here: {error}")
    return Limits(tuple(made), True, "")


def raise_memory(folders: Sequence[Path], memory_bytes: int) -> bool:
    """Another memory limit for the members of these groups, while they run; False when none of them can have it."""
    changed = False
    for folder in folders:
        # v1 keeps memory below memory and swap together: the larger of the two goes up first.
        for name in ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max"):
            with suppress(OSError):
                if (folder / name).exists():
                    (folder / name).write_text(str(memory_bytes))
                    changed = changed or name != "memory.memsw.limit_in_bytes"
    return changed


def set_cpu(folders: Sequence[Path], cores: float) -> bool:
    """Another CPU quota for the members of these groups, while they run; False when none of them has one."""
    changed = False
    for folder in folders:
        for version, name in ((2, "cpu.max"), (1, "cpu.cfs_quota_us")):
            with suppress(OSError):
                if (folder / name).exists():
                    for file, text in _settings("cpu", version, cores, None):
                        _write(folder / file, text)
                    changed = True
    return changed


def remove(folder: Path) -> None:
    """Removes a group whose members have gone; silently keeps one that still has some."""
    with suppress(OSError):
        folder.rmdir()


def _settings(
    controller: str, version: int, cpu_cores: float | None, memory_bytes: int | None
) -> Iterator[tuple[str, str]]:
    if controller == "cpu" and cpu_cores is not None:
        quota_us = max(1000, int(cpu_cores * CPU_PERIOD_US))  # the kernel refuses less than 1 ms
        if version == 2:
            yield "cpu.max", f"{quota_us} {CPU_PERIOD_US}"
        else:
            yield "cpu.cfs_period_us", str(CPU_PERIOD_US)
            yield "cpu.cfs_quota_us", str(quota_us)
    if controller == "memory" and memory_bytes is not None:
        if version == 2:
            yield "memory.max", str(memory_bytes)
            yield "memory.swap.max?", "0"
        else:
            yield "memory.limit_in_bytes", str(memory_bytes)
            yield "memory.memsw.limit_in_bytes?", str(memory_bytes)


def _write(path: Path, text: str) -> None:
    """A name that ends in ? is an optional control: kernels without swap accounting have none."""
    if path.name.endswith("?"):
        with suppress(OSError):
            path.with_name(path.name[:-1]).write_text(text)
    else:
        path.write_text(text)


def _parents(controllers: frozenset[str], proc: Path) -> Iterator[tuple[str, Path, int]]:
    """For each controller the folder below which a new group has it, and the version."""
    mounts = list(_mounts(proc))
    own = _own_groups(proc)
    for controller in sorted(controllers):
        v1 = next((m for m in mounts if m.version == 1 and controller in m.controllers), None)
        if v1 is not None:
            yield controller, _below(v1, own.get(controller, "/")), 1
            continue
        v2 = next((m for m in mounts if m.version == 2), None)
        if v2 is None:
            raise LookupError(f"no control group file system has the {controller} controller")
        yield controller, _parent_v2(v2, own.get("", "/"), controllers), 2


def _parent_v2(mount: _Mount, own_path: str, controllers: frozenset[str]) -> Path:
    own = _below(mount, own_path)
    if _gives(own, controllers):
        return own
    if all(_is_free(own, controller) for controller in controllers):
        for ancestor in own.parents:
            if not ancestor.is_relative_to(mount.point):
                break
            if _gives(ancestor, controllers) and os.access(ancestor, os.W_OK):
                return ancestor
            if not all(_is_free(ancestor, controller) for controller in controllers):
                break
    raise LookupError(f"{own} gives its children no {' and '.join(sorted(controllers))} controller")


def _gives(folder: Path, controllers: frozenset[str]) -> bool:
    """True when children of the folder have the controllers, if need be by switching them on."""
    control = folder / "cgroup.subtree_control"
    try:
        missing = controllers - set(control.read_text().split())
        if missing:
            control.write_text(" ".join(f"+{controller}" for controller in sorted(missing)))
        return True
    except OSError:
        return False


def _is_free(folder: Path, controller: str) -> bool:
    """True when the folder itself sets no limit of this kind."""
    try:
        return (folder / f"{controller}.max").read_text().split()[0] == "max"
    except OSError:
        return True  # no such file: the root, or the controller is not on here


def _mounts(proc: Path) -> Iterator[_Mount]:
    for line in (proc / "self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        fields = before.split(" ")
        if kind in ("cgroup", "cgroup2"):
            version = 2 if kind == "cgroup2" else 1
            yield _Mount(Path(fields[4]), fields[3], version, frozenset(options.split(" ")[-1].split(",")))


def _own_groups(proc: Path) -> dict[str, str]:
    """Controller to path of the own group; the key of v2 is empty."""
    groups: dict[str, str] = {}
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    return groups


def _below(mount: _Mount, path: str) -> Path:
    """Where a group is seen through the mount; in a container the mount's root is the container's group."""
    inside = os.path.relpath(path, mount.root) if mount.root != "/" else path.lstrip("/")
    return mount.point if inside.startswith("..") else mount.point / inside
