"""ckptcache, as a parameter server uses it: hand a part over, fetch parts back."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from recmesh.formats.snapshot import Part, PartDocument, SnapshotError, map_file, open_part, verified
from recmesh.pb import ckptcache_pb2 as pb
from recmesh.pb.ckptcache_pb2_grpc import CheckpointsStub
from recmesh.runtime.errors import CallerError, InvalidArgument, MeshError, ResourceExhausted, Unavailable
from recmesh.trainer.ps.copying import Order, Written
from recmesh.trainer.ps.messages import RestoreOrder

log = logging.getLogger(__name__)

_STREAM_BYTES = 1 << 20
_STORE_DEADLINE_S = 60.0
_STREAM_DEADLINE_S = 3600.0
_ABORT_DEADLINE_S = 30.0
_LOCATE_DEADLINE_S = 30.0
_RETRY_S = 1.0
_PEER = "peer"

Connect = Callable[[str], Any]


class CheckpointClient:
    """Both directions. `address` is where parts go; a restore names where they come from."""

    def __init__(self, connect: Connect, *, address: str) -> None:
        self._connect, self._address = connect, address

    def use(self, address: str) -> None:
        """Where parts go from now on; empty changes nothing."""
        self._address = address or self._address

    def deliver(self, written: Written, cancelled: threading.Event) -> bool:
        """See copying.Deliver: by shared memory when ckptcache can see it, else its bytes.

        An outage is waited out until the snapshot is given up; a refusal ends the attempt.
        """
        stub = CheckpointsStub(self._connect(self._address))
        by_path = True
        while not cancelled.is_set():
            try:
                if by_path:
                    stub.StorePart(_request(written), timeout=_STORE_DEADLINE_S)
                    return True
                stub.StreamPart(_stream(written), timeout=_STREAM_DEADLINE_S)
                return False
            except (InvalidArgument, ResourceExhausted) as error:
                if not by_path:
                    raise
                log.info("ckptcache does not take shared memory (%s); sending bytes", error)
                by_path = False
            except CallerError:
                raise
            except MeshError as error:
                if by_path and not written.path.exists():
                    return True                       # it was taken over, and only the answer was lost
                log.warning("ckptcache did not take snapshot %d yet: %s", written.order.snapshot, error)
                cancelled.wait(_RETRY_S)
        return False

    def give_up(self, order: Order, reason: str, cancelled: threading.Event) -> None:
        """See copying.GiveUp: ckptcache aborts the snapshot, and whoever awaits its parts learns the reason.

        An outage is waited out as in `deliver`.
        """
        stub = CheckpointsStub(self._connect(self._address))
        request = pb.AbortRequest(job_id=order.job_id, snapshot=order.snapshot, reason=reason)
        while not cancelled.is_set():
            try:
                stub.Abort(request, timeout=_ABORT_DEADLINE_S)
                return
            except CallerError as error:
                log.warning("ckptcache does not abort snapshot %d: %s", order.snapshot, error)
                return
            except MeshError as error:
                log.warning("ckptcache has not aborted snapshot %d yet: %s", order.snapshot, error)
                cancelled.wait(_RETRY_S)

    def sources(self, order: RestoreOrder) -> Sequence[Part]:
        """The parts of a restore: from ckptcache, or from their URIs when it names none."""
        if not order.ckptcache:
            return [open_part(uri) for uri in order.parts]
        self.use(order.ckptcache)
        stub = CheckpointsStub(self._connect(order.ckptcache))
        return [_LocatedPart(stub, uri) for uri in order.parts]


class _LocatedPart:
    """A part where it is nearest."""

    def __init__(self, stub: CheckpointsStub, uri: str) -> None:
        self._stub, self._uri = stub, uri
        self._place = stub.Locate(pb.LocateRequest(part_uri=uri), timeout=_LOCATE_DEADLINE_S)
        self._files = {file.name: file for file in self._place.files}
        self.document = PartDocument.from_json(self._place.part_json)

    def open(self, name: str) -> Any:
        """See formats.snapshot.Part. What has left memory meanwhile is fetched."""
        expected = self.document.file(name)
        file = self._files.get(name)
        if file is None:
            raise SnapshotError(f"{self._uri} has no file {name!r}")
        path = Path(self._place.path) if self._place.path else None
        try:
            if path is not None and path.is_dir():
                return verified(map_file(path / name), expected)
            if path is not None and path.is_file():
                return verified(map_file(path, offset=file.offset, size_bytes=file.size_bytes), expected)
        except (OSError, SnapshotError) as error:
            log.warning("the nearest copy of %s is not used: %s", name, error)
        try:
            return verified(pa.py_buffer(self._fetch(name, file.size_bytes)), expected)
        except (SnapshotError, MeshError) as error:
            if self._place.tier != _PEER:
                raise
            log.warning("the peer's copy of %s is not used: %s", name, error)
        return verified(pa.py_buffer(self._fetch(name, file.size_bytes, storage_only=True)), expected)

    def _fetch(self, name: str, size_bytes: int, *, storage_only: bool = False) -> bytearray:
        data = bytearray()
        request = pb.FetchPartRequest(part_uri=self._uri, file=name, storage_only=storage_only)
        for chunk in self._stub.FetchPart(request, timeout=_STREAM_DEADLINE_S):
            data += chunk.data
            if len(data) > size_bytes:
                raise SnapshotError(f"{name} is longer than {size_bytes} bytes")
        return data


def _request(written: Written) -> pb.StorePartRequest:
    order = written.order
    return pb.StorePartRequest(
        job_id=order.job_id, gen=order.gen, snapshot=order.snapshot, ps=order.ps, shm_path=str(written.path),
        size_bytes=written.size_bytes, part_json=written.document,
        files=[pb.PartFile(name=f.name, offset=f.offset, size_bytes=f.size_bytes, sha256=f.sha256)
               for f in written.files])


def _stream(written: Written) -> Iterator[pb.PartChunk]:
    """Header first; then the files, one behind the other without the padding between them."""
    header, offset = _request(written), 0
    header.shm_path = ""
    for file in header.files:
        file.offset = offset
        offset += file.size_bytes
    header.size_bytes = offset
    yield pb.PartChunk(header=header)
    with written.path.open("rb", buffering=0) as container:
        for placed in written.files:
            container.seek(placed.offset)
            left = placed.size_bytes
            while left:
                data = container.read(min(_STREAM_BYTES, left))
                if not data:
                    raise Unavailable(f"{written.path} ended early")
                left -= len(data)
                yield pb.PartChunk(data=data)
