"""Protobuf in, domain out, and back."""

from collections.abc import Callable, Iterable

from recmesh.pb import ckptcache_pb2 as pb
from services.ckptcache.domain.parts import Part, PartFile, part_folder
from services.ckptcache.domain.snapshot import Link, Snapshot, State


def part_of(request: pb.StorePartRequest) -> Part:
    """What a parameter server hands over."""
    files = tuple(PartFile(f.name, f.offset, f.size_bytes, f.sha256) for f in request.files)
    return Part(request.ps, files, request.part_json)


def part_files(part: Part) -> list[pb.PartFile]:
    """A part's files."""
    return [pb.PartFile(name=f.name, offset=f.offset, size_bytes=f.size_bytes, sha256=f.sha256) for f in part.files]


def header(part: Part) -> pb.StorePartRequest:
    """First message of a part that is sent out."""
    return pb.StorePartRequest(ps=part.ps, size_bytes=part.size_bytes, files=part_files(part), part_json=part.document)


def snapshot(
    value: Snapshot, *, uri: Callable[[int], str], in_memory: bool, at_peer: bool, manifest_json: str = ""
) -> pb.Snapshot:
    """A snapshot as callers see it. uri: of the job's snapshot with a number."""
    links = (Link(value.number, value.expected), *value.chain)
    there = {"memory": in_memory, "peer": at_peer, "storage": value.usable}
    tiers = [tier for tier, held in there.items() if held]
    return pb.Snapshot(
        job_id=value.job_id,
        snapshot=value.number,
        gen=value.gen,
        state=str(value.state),
        reason=value.reason,
        created=value.created,
        committed=value.committed,
        rows=value.rows,
        size_bytes=value.size_bytes,
        samples=value.samples,
        uri=uri(value.number),
        tiers=tiers,
        manifest_json=manifest_json,
        parts=[f"{uri(link.number)}/{part_folder(ps)}" for link in links for ps in link.ps],
        label=value.label,
        bases=value.bases,
    )


_AWAIT = {
    State.COLLECTING: pb.AwaitReply.COLLECTING,
    State.STORED: pb.AwaitReply.STORED,
    State.COMMITTED: pb.AwaitReply.STORED,
    State.DAMAGED: pb.AwaitReply.FAILED,
    State.FAILED: pb.AwaitReply.FAILED,
}


def await_reply(value: Snapshot | None) -> pb.AwaitReply:
    """How far a snapshot is."""
    if value is None:
        return pb.AwaitReply(state=pb.AwaitReply.UNKNOWN, reason="no such snapshot was begun here")
    gone: Iterable[int] = value.missing if value.state is State.COLLECTING else ()
    return pb.AwaitReply(state=_AWAIT[value.state], reason=value.reason, missing=gone)
