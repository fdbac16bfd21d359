"""Snapshots as files. What the names in a snapshot's folder say is the truth about its state.

begin.json               written by Begin: generation, expected parts, node
ps-<i>/<files>           the part, as the PS laid it out
ps-<i>/receipt.json      written last: the part is verified and synced
manifest.json            written by Commit
COMMITTED                written last: the manifest's checksum
DELETED                  a deletion has begun; whatever else is there does not count
"""

import hashlib
import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from recmesh.runtime.errors import DataLoss, MeshError, ResourceExhausted
from services.ckptcache.domain.manifest import MANIFEST, MARKER, chain, count
from services.ckptcache.domain.parts import (
    PART_DOCUMENT,
    RECEIPT,
    Part,
    PartFile,
    part_folder,
    snapshot_folder,
)
from services.ckptcache.domain.snapshot import Link, Snapshot, State
from services.ckptcache.store.storage import TEMPORARY, Storage, ending

BEGIN = "begin.json"
TOMBSTONE = "DELETED"


class Cancelled(Exception):
    """The snapshot was given up while its part was being written."""


class SnapshotFiles:
    """Reads and writes snapshots on one storage. Every call blocks; run it in a thread."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def uri(self, job_id: str, number: int) -> str:
        """Where a snapshot lies."""
        return f"{self.storage.uri}/{snapshot_folder(job_id, number)}"

    def begin(self, snapshot: Snapshot) -> None:
        """Make it known that parts are expected."""
        folder = snapshot_folder(snapshot.job_id, snapshot.number)
        document = {
            "job_id": snapshot.job_id,
            "snapshot": snapshot.number,
            "gen": snapshot.gen,
            "ps": list(snapshot.expected),
            "created": snapshot.created,
            "label": snapshot.label,
            "node": snapshot.node,
        }
        self._write_json(f"{folder}/{BEGIN}", document)
        self.storage.sync(folder)

    def write_part(
        self,
        snapshot: Snapshot,
        part: Part,
        chunks: Callable[[PartFile], Iterator[bytes]],
        cancelled: threading.Event,
        *,
        progress: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        """Write and sync all files of a part, then its receipt.

        The checksums are of the bytes that were written, so a PS that still writes into the memory it
        handed over cannot get a damaged part accepted. DataLoss names the file that differs.
        """
        folder = f"{snapshot_folder(snapshot.job_id, snapshot.number)}/{part_folder(part.ps)}"
        for file in part.files:
            self.storage.write(f"{folder}/{file.name}", _checked(file, chunks(file), cancelled, progress))
        if part.file(PART_DOCUMENT) is None:
            self.storage.write(f"{folder}/{PART_DOCUMENT}", [part.document.encode()])
        if cancelled.is_set():
            raise Cancelled
        self._write_json(f"{folder}/{RECEIPT}", {"gen": snapshot.gen, **_receipt(part)})
        self.storage.sync(folder)

    def commit(self, snapshot: Snapshot, manifest: Mapping[str, Any]) -> str:
        """Write manifest and marker; returns the manifest's text."""
        folder = snapshot_folder(snapshot.job_id, snapshot.number)
        text = json.dumps(manifest, indent=1, sort_keys=True)
        self.storage.write(f"{folder}/{MANIFEST}", [text.encode()])
        self.storage.sync(folder)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._write_json(f"{folder}/{MARKER}", {"manifest_sha256": digest, "committed": snapshot.committed})
        self.storage.sync(folder)
        return text

    def manifest(self, job_id: str, number: int) -> str:
        """manifest.json of a committed snapshot; DataLoss when it is not the one that was committed."""
        folder = snapshot_folder(job_id, number)
        try:
            marker = json.loads(self.storage.read(f"{folder}/{MARKER}"))
            text = self.storage.read(f"{folder}/{MANIFEST}")
        except FileNotFoundError as error:
            raise DataLoss(f"{folder}: {error.filename or MANIFEST} is gone") from None
        except ValueError:
            raise DataLoss(f"{folder}: the marker {MARKER} is damaged") from None
        if not isinstance(marker, dict) or hashlib.sha256(text).hexdigest() != marker.get("manifest_sha256"):
            raise DataLoss(f"{folder}: {MANIFEST} is not the one that was committed")
        return text.decode()

    def delete(self, job_id: str, number: int) -> None:
        """Remove a snapshot. The tombstone comes first, so that a crash half-way leaves no snapshot.

        Full storage has no room for a tombstone: there begin.json goes first, without which the rest is garbage.
        """
        folder = snapshot_folder(job_id, number)
        if self.storage.files(folder) or self.storage.folders(folder):
            try:
                self.storage.write(f"{folder}/{TOMBSTONE}", [b"{}"])
            except ResourceExhausted:
                self.storage.remove(f"{folder}/{BEGIN}")
            self.storage.sync(folder)
            for name in (MARKER, BEGIN):
                self.storage.remove(f"{folder}/{name}")
            # The tombstone goes last with its folder; what is left without begin.json is garbage too.
        self.storage.remove_tree(folder)

    def delete_job(self, job_id: str) -> None:
        """Remove the job's folder after its snapshots."""
        self.storage.remove_tree(f"checkpoints/{job_id}")

    def jobs(self) -> list[str]:
        """Jobs that have a folder."""
        return self.storage.folders("checkpoints")

    def numbers(self, job_id: str) -> list[int]:
        """Snapshots that have a folder, ascending."""
        return sorted(int(name) for name in self.storage.folders(f"checkpoints/{job_id}") if name.isdigit())

    def load(self, job_id: str, number: int) -> Snapshot | None:
        """What the files say; None for remains that are no snapshot and may be removed."""
        folder = snapshot_folder(job_id, number)
        names = set(self.storage.files(folder))
        if TOMBSTONE in names or BEGIN not in names:
            return None
        try:
            begun = json.loads(self.storage.read(f"{folder}/{BEGIN}"))
            snapshot = Snapshot(
                job_id=job_id,
                number=number,
                gen=int(begun["gen"]),
                expected=tuple(map(int, begun["ps"])),
                created=float(begun["created"]),
                label=str(begun.get("label", "")),
                node=str(begun.get("node", "")),
            )
        except (ValueError, KeyError, TypeError):
            return None if MARKER not in names else _damaged(job_id, number, f"{BEGIN} is damaged")
        parts = {}
        for ps in snapshot.expected:
            part = self.receipt(job_id, number, ps, gen=snapshot.gen)
            if part is not None:
                parts[ps] = part
        size = sum(part.size_bytes for part in parts.values())
        complete = len(parts) == len(snapshot.expected)
        state = State.STORED if complete else State.COLLECTING
        rows = samples = 0
        committed, reason = 0.0, ""
        links: tuple[Link, ...] = ()
        if MARKER in names:
            state = State.COMMITTED
            try:
                document = json.loads(self.manifest(job_id, number))
                rows, samples = count(document, "rows"), count(document, "samples")
                committed, links = float(document["committed"]), chain(document)
                if not complete:
                    raise DataLoss(f"receipts of parts {sorted(set(snapshot.expected) - set(parts))} are gone")
            except (MeshError, ValueError, KeyError, TypeError) as error:
                state, reason = State.DAMAGED, str(error)
        return Snapshot(
            job_id=job_id,
            number=number,
            gen=snapshot.gen,
            expected=snapshot.expected,
            created=snapshot.created,
            label=snapshot.label,
            node=snapshot.node,
            state=state,
            reason=reason,
            stored=parts,
            committed=committed,
            rows=rows,
            samples=samples,
            size_bytes=size,
            chain=links,
        )

    def receipt(self, job_id: str, number: int, ps: int, *, gen: int | None = None) -> Part | None:
        """A complete part; None when it is not (or of another generation)."""
        folder = f"{snapshot_folder(job_id, number)}/{part_folder(ps)}"
        try:
            found = json.loads(self.storage.read(f"{folder}/{RECEIPT}"))
            if gen is not None and found["gen"] != gen:
                return None
            files = tuple(
                PartFile(str(f["name"]), int(f["offset"]), int(f["size_bytes"]), str(f["sha256"]))
                for f in found["files"]
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return Part(ps, files)

    def part_document(self, job_id: str, number: int, ps: int) -> str:
        """part.json of a stored part; DataLoss when it is not what was stored."""
        folder = f"{snapshot_folder(job_id, number)}/{part_folder(ps)}"
        try:
            text = self.storage.read(f"{folder}/{PART_DOCUMENT}")
            digest = json.loads(self.storage.read(f"{folder}/{RECEIPT}"))["part_json_sha256"]
        except FileNotFoundError as error:
            raise DataLoss(f"{folder}: {error.filename or PART_DOCUMENT} is gone") from None
        except (ValueError, KeyError, TypeError):
            raise DataLoss(f"{folder}/{RECEIPT} is damaged") from None
        if digest and hashlib.sha256(text).hexdigest() != digest:
            raise DataLoss(f"{folder}/{PART_DOCUMENT} is not what was stored")
        return text.decode()

    def read_file(self, job_id: str, number: int, ps: int, file: PartFile) -> Generator[bytes]:
        """A file's bytes, verified: DataLoss after the last of them when they are not what was stored."""
        path = f"{snapshot_folder(job_id, number)}/{part_folder(ps)}/{file.name}"
        try:
            yield from verified(file, self.storage.chunks(path))
        except FileNotFoundError:
            raise DataLoss(f"{path} is gone") from None
        except DataLoss as error:
            raise DataLoss(f"{path}: {error}") from None

    def verify(self, snapshot: Snapshot) -> None:
        """Hash everything again; DataLoss names the first file that is not what was stored."""
        if snapshot.state is State.COMMITTED:
            self.manifest(snapshot.job_id, snapshot.number)
        for ps, part in sorted((snapshot.stored or {}).items()):
            for file in part.files:
                for _ in self.read_file(snapshot.job_id, snapshot.number, ps, file):
                    pass
            self.part_document(snapshot.job_id, snapshot.number, ps)

    def sweep(self, snapshot: Snapshot) -> None:
        """Remove what a crash left between the files of a snapshot that counts."""
        folder = snapshot_folder(snapshot.job_id, snapshot.number)
        for place in (folder, *(f"{folder}/{name}" for name in self.storage.folders(folder))):
            for name in self.storage.files(place):
                if name.startswith(TEMPORARY):
                    self.storage.remove(f"{place}/{name}")

    def _write_json(self, path: str, document: Mapping[str, Any]) -> None:
        self.storage.write(path, [json.dumps(document, sort_keys=True).encode()])


def verified(file: PartFile, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks as they come; DataLoss at the end when size or checksum differ."""
    return _checked(file, chunks, threading.Event(), lambda size_bytes: None)


def _checked(
    file: PartFile, chunks: Iterator[bytes], cancelled: threading.Event, progress: Callable[[int], None]
) -> Iterator[bytes]:
    digest, size = hashlib.sha256(), 0
    with ending(chunks):
        for chunk in chunks:
            if cancelled.is_set():
                raise Cancelled
            digest.update(chunk)
            size += len(chunk)
            yield chunk
            progress(len(chunk))
    if size != file.size_bytes:
        raise DataLoss(f"{file.name} has {size} bytes, not {file.size_bytes}")
    if digest.hexdigest() != file.sha256:
        raise DataLoss(f"{file.name} does not have the checksum {file.sha256}")


def _receipt(part: Part) -> dict[str, Any]:
    own = part.file(PART_DOCUMENT)
    return {
        "ps": part.ps,
        "part_json_sha256": own.sha256 if own else hashlib.sha256(part.document.encode()).hexdigest(),
        "files": [
            {"name": f.name, "offset": f.offset, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in part.files
        ],
    }


def _damaged(job_id: str, number: int, reason: str) -> Snapshot:
    return Snapshot(job_id, number, gen=0, expected=(), created=0.0, state=State.DAMAGED, reason=reason)
