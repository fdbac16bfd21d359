"""Messages of one role to another."""

from types import SimpleNamespace

import numpy as np
import pytest

from recmesh.pb import ps_pb2 as pb
from recmesh.runtime.errors import Unavailable
from recmesh.trainer.ports import Piece, TableGrads
from recmesh.trainer.wire import RemoteServer
from recmesh.trainer.wire import servers as wire_servers


def test_portions_that_the_server_let_go_are_all_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_servers, "MESSAGE_BYTES", 40)
    channel = SimpleNamespace(unary_unary=lambda *_, **__: lambda *_, **__: None)
    server, sent = RemoteServer(channel, job_id="job"), []

    def push(request: pb.PushRequest, *, timeout: float) -> pb.PushReply:
        sent.append((request.chunk, request.chunks))
        return pb.PushReply(status=pb.PushReply.CHUNK_KEPT if len(sent) < 6 else pb.PushReply.APPLIED)

    monkeypatch.setattr(server, "_stub", SimpleNamespace(Push=push))
    part = TableGrads(0, np.arange(6), np.ones((6, 2), np.float32), np.ones(6, np.uint32))

    def once() -> str:
        return server.push(1, map_version=1, batch=[Piece(0, 0, 6)], epoch=0, tables=[part], dense=[],
                           worker="0").status

    with pytest.raises(Unavailable, match="lacks portions"):
        once()
    assert once() == "applied"
    assert sent == [(0, 3), (1, 3), (2, 3), (0, 3), (1, 3), (2, 3)]
