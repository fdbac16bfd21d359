"""Keeps a model at its job's newest committed snapshot: a thread that looks, reads, and installs whole versions.

Versions only go up. Where a snapshot builds on the one that is served, what changed since is put over it; where it
does not (one was missed that is gone, a generation began, slots moved) all of it is read: a gap is mended by the whole.
Rows and dense blocks become one `Version`, which is installed by one assignment: whatever ends this process, and
whenever, no request is answered by half of it. What cannot be read is not installed; the version before it serves on.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from recmesh.formats import tables as files
from recmesh.formats.snapshot import SnapshotError
from recmesh.formats.tables import Dense, Ids, Rows, Tables, TablesError
from recmesh.runtime.errors import DataLoss, FailedPrecondition, MeshError, NotFound
from recmesh.serving.apart import FOLDER, Apart
from recmesh.serving.fresh.source import Manifest, NotThere, Snapshots
from recmesh.serving.fresh.version import Overlay, Version, mean
from recmesh.serving.settings import FreshnessSettings

HELD = "held"
"""Beside `tables`: versions that were rolled back to. All processes of the model share them."""
MOST_HELD = 2
"""The newest of them: the one that is held, and the one before, which another process may hold yet."""
SHOWN = 8
"""Of versions, where a message names them."""
MOST_LISTED = 256
"""Versions that may be rolled back to."""
STALE_S = 3600.0
"""What was begun to be written so long ago, and is not finished, is nobody's."""

_UNREADABLE = (NotThere, SnapshotError, TablesError, OSError)

Proposed = Callable[[Version], AbstractContextManager[None]]
"""Entered with a version that is to serve, left when it does, or when it never will. Enters once whoever computes with
its dense blocks elsewhere has them; raises a MeshError where nobody has."""


def alone(_: Version) -> AbstractContextManager[None]:
    """Nobody else needs the version."""
    return nullcontext()


class Follower:
    """Of one model in one process. `version` may be read from any thread."""

    def __init__(
        self, folder: Path, apart: Apart, settings: FreshnessSettings, *, log: Callable[[str], None],
        clock: Callable[[], float] = time.time, means: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`means`: tables whose versions need the means of their rows; not taken while a request waits."""
        self._folder, self._apart, self._settings = folder, apart, settings
        self._log, self._clock, self._means = log, clock, means
        self._names = [table.name for table in apart.tables]
        self._snapshots = Snapshots(apart.checkpoints) if apart.checkpoints and settings.follow else None
        self._looking = threading.Lock()             # one look at a time; storage is read under it
        self._lock = threading.Lock()                # who changes the version: a rollback does not wait for a look
        self._wanted, self._stopped = threading.Event(), False
        self._held = settings.held
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._deltas = self._spanned = self._wholes = self._written = 0
        self._installed, self._lag_s, self._took_s, self._error = 0.0, 0.0, 0.0, ""
        self._newest = 0
        self._proposed: Proposed = alone
        self.version = self._first()
        self._thread = threading.Thread(target=self._work, name="follower", daemon=True)

    def start(self, proposed: Proposed = alone) -> None:
        """Follow from now on; no version is installed but within `proposed`."""
        self._proposed = proposed
        if self._snapshots is not None:
            self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        self._wanted.set()

    def look(self) -> bool:
        """One look: whether a newer version was installed. What cannot be read is told in `status`."""
        with self._looking:
            now = self.version
            if self._snapshots is None or self._held:
                return False
            try:
                target = self._snapshots.newest(above=now.number)
                if target is None:
                    self._error = ""
                    return False
                self._newest = target.number
                began = time.monotonic()
                made = self._next(now, target)
                with self._proposed(made), self._lock:
                    if self.version is not now:
                        return False                 # it was rolled back meanwhile
                    self._install(made, target)
                    self._took_s = time.monotonic() - began
                return True
            except (*_UNREADABLE, MeshError) as error:
                text = f"{type(error).__name__}: {error}"
                if text != self._error:
                    self._log(f"model of job {self._apart.job_id}: no newer version: {text}")
                self._error = text
                return False

    def roll_back(self, number: int) -> Version:
        """Serve an earlier version, and no later one until `resume`. NotFound when its snapshot is no more."""
        with self._lock:
            made = self._version_at(number)
            self._keep(made)
            with self._proposed(made):
                self._held = number
                self.version, self._installed, self._error = made, self._clock(), ""
            return made

    def resume(self) -> Version:
        """Follow again, from the newest version on."""
        with self._lock:
            self._held = 0                       # what was held stays on disk: other processes may hold it yet
        self.look()
        self._wanted.set()
        return self.version

    def status(self) -> dict[str, Any]:
        """For people and programs: which version serves, since when, how far behind, and what happened."""
        version = self.version
        return {
            "version": version.number, "generation": version.gen, "job_id": self._apart.job_id,
            "held": bool(self._held), "follows": self._snapshots is not None and not self._held,
            "newest_seen": max(self._newest, version.number), "committed_at": version.committed,
            "installed_at": self._installed, "commit_to_install_s": self._lag_s, "install_s": self._took_s,
            "deltas": self._deltas, "snapshots_spanned": self._spanned, "wholes": self._wholes,
            "tables_written": self._written, "overlay_bytes": version.overlay_bytes, "error": self._error,
        }

    def versions(self) -> list[int]:
        """Those that may be rolled back to, the newest `MOST_LISTED`."""
        return self._snapshots.committed(most=MOST_LISTED) if self._snapshots is not None else [self.version.number]

    # ---- inside

    def _work(self) -> None:
        while not self._stopped:
            self._wanted.wait(self._settings.poll_s)
            self._wanted.clear()
            if not self._stopped:
                try:
                    self.look()
                except Exception as error:           # a thread that ends would leave the model stale for ever
                    self._error = f"{type(error).__name__}: {error}"
                    self._log(f"model of job {self._apart.job_id}: {self._error}")

    def _first(self) -> Version:
        """The exported snapshot, or the version that is held; then whatever is newer."""
        exported = self._mapped(self._folder / FOLDER, check=True)
        self._shapes = {name: block.shape for name, block in exported.dense.items()}
        if missing := sorted(set(self._apart.dense) - set(self._shapes)):
            why = f"{self._folder / FOLDER} lacks dense blocks: {', '.join(missing)}"
            raise DataLoss(why, reason="BAD_MODEL_FOLDER")
        self.version = self._version(exported)
        if self._held:
            return self._version_at(self._held)
        if self._snapshots is not None:
            self.look()
        return self.version

    def _version_at(self, number: int) -> Version:
        kept = self._folder / HELD / str(number)
        if (kept / files.FILE).is_file():
            return self._version(self._mapped(kept, check=True))
        if self._snapshots is not None:
            try:
                return self._read_whole(self._snapshots.manifest(number))
            except NotThere:
                pass
            except _UNREADABLE as error:
                raise DataLoss(f"snapshot {number} cannot be read: {error}", reason="SNAPSHOT_DAMAGED") from None
        exported = self._mapped(self._folder / FOLDER, check=True)
        if exported.snapshot == number:
            return self._version(exported)
        versions = self.versions()
        known = ", ".join(map(str, versions[-SHOWN:]))
        older = f", and {len(versions) - SHOWN} older ones from {versions[0]} on" if len(versions) > SHOWN else ""
        raise NotFound(f"there is no version {number} (any more); there are {known}{older}", reason="UNKNOWN_VERSION")

    def _next(self, now: Version, target: Manifest) -> Version:
        assert self._snapshots is not None, "only who follows has a next version"
        delta = None
        if target.gen == now.gen:
            delta = self._snapshots.delta(target, since=now.number, tables=self._names)
        if delta is None:
            made = self._read_whole(target)
            self._wholes += 1
            return made
        self._check(delta.dense)
        overlays = {name: now.overlays[name].with_changes(delta.changes[name]) for name in self._names}
        self._deltas += 1
        self._spanned += delta.levels
        made = Version(
            target.number, target.gen, target.committed, now.base, now.base_number, overlays, delta.dense, now.means
        )
        if made.overlay_bytes <= self._settings.overlay_bytes:
            return made
        return self._rewritten(
            {name: made.whole(name) for name in self._names}, delta.dense, target.number, target.gen, target.committed
        )

    def _read_whole(self, target: Manifest) -> Version:
        assert self._snapshots is not None, "only who follows reads snapshots"
        whole = self._snapshots.whole(target, tables=self._names)
        self._check(whole.dense)
        return self._rewritten(whole.tables, whole.dense, target.number, target.gen, target.committed)

    def _rewritten(
        self, tables: Mapping[str, tuple[Ids, Rows]], dense: Dense, number: int, gen: int, committed: float
    ) -> Version:
        """Mapped from files that have no name any more: they go with the last version that has them."""
        self._written += 1
        with tempfile.TemporaryDirectory(prefix="recmesh-tables-", ignore_cleanup_errors=True) as scratch:
            folder = Path(scratch) / "tables"
            files.write(folder, job_id=self._apart.job_id, gen=gen, snapshot=number, tables=tables, dense=dense)
            return self._version(self._mapped(folder, check=False), committed=committed)

    def _keep(self, version: Version) -> None:
        """On disk, under the version's name, so that a new process finds it when the snapshot is gone."""
        kept = self._folder / HELD / str(version.number)
        if not kept.is_dir():
            with contextlib.suppress(FileExistsError):       # another process of the model was faster
                files.write(
                    kept, job_id=self._apart.job_id, gen=version.gen, snapshot=version.number,
                    tables={name: version.whole(name) for name in self._names}, dense=version.dense,
                )
        os.utime(kept)
        self._prune(kept)

    def _prune(self, kept: Path) -> None:
        """Remove versions that were rolled back to long before this one."""
        since: dict[Path, float] = {}
        for folder in kept.parent.iterdir():
            with contextlib.suppress(FileNotFoundError):     # another process is at it, too
                since[folder] = folder.stat().st_mtime
        done = sorted((folder for folder in since if folder.name.isdecimal() and folder != kept), key=since.__getitem__)
        begun = [folder for folder in since if not folder.name.isdecimal() and since[kept] - since[folder] > STALE_S]
        for folder in (*done[: -(MOST_HELD - 1)], *begun):
            shutil.rmtree(folder, ignore_errors=True)

    def _install(self, made: Version, target: Manifest) -> None:
        self.version = made
        self._installed, self._error = self._clock(), ""
        self._lag_s = max(0.0, self._installed - target.committed)

    def _check(self, dense: Dense) -> None:
        found = {name: block.shape for name, block in dense.items() if name in self._shapes}
        if found != self._shapes:
            raise FailedPrecondition("the snapshot's dense blocks are another model's", reason="OTHER_MODEL")

    def _mapped(self, folder: Path, *, check: bool) -> Tables:
        try:
            found = files.read(folder, check=check)
        except TablesError as error:
            raise DataLoss(f"the model's tables cannot be read: {error}", reason="BAD_MODEL_FOLDER") from None
        if found.job_id != self._apart.job_id:       # keys in Valkey name the job: another's rows would be found there
            why = f"{folder} is of job {found.job_id!r}, and model.json of {self._apart.job_id!r}"
            raise DataLoss(why, reason="BAD_MODEL_FOLDER")
        for table in self._apart.tables:
            held = found.tables.get(table.name)
            if held is None or held.rows.shape[1] != table.dim:
                why = f"{folder} has no table {table.name!r} of {table.dim} columns"
                raise DataLoss(why, reason="BAD_MODEL_FOLDER")
        return found

    def _version(self, tables: Tables, *, committed: float = 0.0) -> Version:
        overlays = {name: Overlay.empty(table.rows.shape[1]) for name, table in tables.tables.items()}
        means = {name: mean(tables.tables[name]) for name in self._means}
        return Version(
            tables.snapshot, tables.gen, committed, tables.tables, tables.snapshot, overlays, tables.dense, means
        )
