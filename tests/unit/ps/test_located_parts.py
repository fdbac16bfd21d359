"""A part that comes over the wire: what a peer holds is checked, and storage is asked when it is damaged."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recmesh.formats.snapshot import SnapshotError, open_part, read_table
from recmesh.pb import ckptcache_pb2 as pb
from recmesh.runtime.errors import NotFound
from recmesh.trainer.ps.rpc.checkpoints import _LocatedPart

GOLDEN = Path(__file__).parents[1] / "formats/golden/ps-000"


class Cache:
    """ckptcache's answers: the part is at a peer; storage has it, too, unless it is told not to."""

    def __init__(self, *, damaged: bool, gone: bool = False, tier: str = "peer", stored: bool = True) -> None:
        self.damaged, self.gone, self.tier, self.stored = damaged, gone, tier, stored
        self.asked: list[bool] = []

    def Locate(self, request: pb.LocateRequest, timeout: float) -> pb.LocateReply:
        document = open_part(str(GOLDEN)).document
        return pb.LocateReply(tier=self.tier, part_json=document.to_json(), files=[
            pb.PartFile(name=f.name, size_bytes=f.size_bytes, sha256=f.sha256) for f in document.files])

    def FetchPart(self, request: pb.FetchPartRequest, timeout: float) -> Iterator[pb.PartChunk]:
        self.asked.append(request.storage_only)
        if self.gone and not request.storage_only:
            raise NotFound("the peer has let it go")
        data = (GOLDEN / request.file).read_bytes()
        broken = self.damaged and not (request.storage_only and self.stored)
        yield pb.PartChunk(data=bytes([data[0] ^ 1]) + data[1:] if broken else data)


@pytest.mark.parametrize(("damaged", "gone"), [(True, False), (False, True)])
def test_what_the_peer_cannot_give_is_read_from_storage(damaged: bool, gone: bool) -> None:
    cache = Cache(damaged=damaged, gone=gone)
    part = _LocatedPart(cache, "x/ps-000")  # type: ignore[arg-type]  # the two methods it uses
    rows = read_table([part], "item")
    assert rows.ids.tolist() == read_table([open_part(str(GOLDEN))], "item").ids.tolist()
    assert cache.asked == [False, True]


def test_what_is_damaged_everywhere_is_refused() -> None:
    everywhere, stored = Cache(damaged=True, stored=False), Cache(damaged=True, tier="storage")
    for cache, asked in ((everywhere, [False, True]), (stored, [False])):
        with pytest.raises(SnapshotError, match="checksum"):
            read_table([_LocatedPart(cache, "x/ps-000")], "item")  # type: ignore[arg-type]  # as above
        assert cache.asked == asked
