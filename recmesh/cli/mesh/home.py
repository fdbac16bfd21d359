"""The data folder of a mesh: where everything is, and the locks and secrets in it."""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recmesh.runtime.errors import FailedPrecondition, ResourceExhausted
from recmesh.runtime.room import Room

MIN_FREE_BYTES = 256 * 2**20
"""Below this `up` refuses to start: JetStream and the append-only file stop taking writes soon after."""


@dataclass(frozen=True, slots=True)
class Home:
    """Paths under one data folder; nothing is created by naming it."""

    root: Path

    @classmethod
    def at(cls, folder: str | None, env: Mapping[str, str]) -> "Home":
        """The folder given, else $RECMESH_HOME, else `.recmesh` here."""
        return cls(Path(folder or env.get("RECMESH_HOME") or ".recmesh").expanduser().absolute())

    @property
    def mesh_file(self) -> Path:
        """Addresses and states."""
        return self.root / "mesh.json"

    @property
    def config_file(self) -> Path:
        """The user's settings."""
        return self.root / "config.toml"

    @property
    def run(self) -> Path:
        """Records of processes; those of jobs are in folders below."""
        return self.root / "run"

    @property
    def components(self) -> Path:
        """Records of the supervisor's own processes."""
        return self.run / "mesh"

    @property
    def exits_file(self) -> Path:
        """How processes ended, one JSON object a line."""
        return self.run / "exits.jsonl"

    @property
    def logs(self) -> Path:
        """One file per component."""
        return self.root / "logs"

    def log(self, name: str) -> Path:
        """The log of a component."""
        return self.logs / f"{name}.log"

    @property
    def storage(self) -> Path:
        """Checkpoints, models, code."""
        return self.root / "storage"

    @property
    def shm(self) -> Path:
        """Shared memory of this mesh; by hash, because the folder's own path may be long."""
        return Path("/dev/shm") / f"recmesh-{hashlib.sha256(str(self.root).encode()).hexdigest()[:12]}"

    @property
    def room(self) -> Room:
        """What a mesh that runs needs; it starts with `MIN_FREE_BYTES` only."""
        return Room(self.root)

    def make(self) -> None:
        """Creates the folder and proves that it can be written; one clear error when it cannot."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.run, self.components, self.logs, self.root / "db", self.root / "nats",
                           self.root / "valkey", self.storage):  # fmt: skip
                folder.mkdir(exist_ok=True, mode=0o700)
            probe = self.run / f".probe-{os.getpid()}"
            try:
                with probe.open("wb") as file:
                    file.write(bytes(2**20))
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise FailedPrecondition(
                f"the data folder {self.root} cannot be written: {error.strerror}", reason="DATA_FOLDER"
            ) from error
        free = shutil.disk_usage(self.root).free
        if free < MIN_FREE_BYTES:
            raise ResourceExhausted(
                f"the data folder {self.root} is full: {free / 2**20:.0f} MiB free, "
                f"at least {MIN_FREE_BYTES / 2**20:.0f} MiB are needed",
                reason="DATA_FOLDER",
            )

    def secrets(self) -> dict[str, str]:
        """Tokens of this mesh, generated at the first call: mesh, nats, valkey."""
        path = self.root / "secrets.json"
        try:
            return {str(key): str(value) for key, value in json.loads(path.read_bytes()).items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, AttributeError) as error:
            raise FailedPrecondition(f"{path} cannot be read: {error}", reason="DATA_FOLDER") from error
        values = {name: secrets.token_urlsafe(32) for name in ("mesh", "nats", "valkey")}
        write_private(path, json.dumps(values))
        return values

    @contextmanager
    def lock(self, name: str, busy: str) -> Iterator[None]:
        """Holds `run/<name>.lock`, released by the kernel if we die; FailedPrecondition when taken."""
        with (self.run / f"{name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FailedPrecondition(f"{busy} (data folder {self.root})", reason="LOCKED") from None
            yield


def write_private(path: Path, text: str) -> None:
    """Written whole or not at all, durable, readable by the owner alone."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
