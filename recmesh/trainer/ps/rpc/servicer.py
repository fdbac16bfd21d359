"""recmesh.ps.v1.ParameterServer over `server.ParameterServer`."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import grpc

from recmesh.formats.slotmap import to_bitmap
from recmesh.pb import ps_pb2 as pb
from recmesh.pb import ps_pb2_grpc
from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.rpc import Lane
from recmesh.trainer.ps.messages import PushStatus
from recmesh.trainer.ps.refusals import OldLease, Overlap, Stale, StaleGeneration, WrongMap
from recmesh.trainer.ps.rpc import convert, moving
from recmesh.trainer.ps.server import ParameterServer
from recmesh.trainer.ps.synchronous import MOST_WAITERS
from recmesh.trainer.wire import arrays

SERVICE_NAME = "recmesh.ps.v1.ParameterServer"
MOST_WAIT_S = 2.0
_STATUS = {PushStatus.APPLIED: pb.PushReply.APPLIED, PushStatus.CHUNK_KEPT: pb.PushReply.CHUNK_KEPT,
           PushStatus.KEPT: pb.PushReply.KEPT}


Method = TypeVar("Method", bound=Callable[..., Any])


def _order(method: Method) -> Method:
    """An order of jobmaster, or a part of one: it goes before training (`ps.precedence`)."""

    @wraps(method)
    def in_precedence(self: "ParameterServerServicer", request: Any, context: Any) -> Any:
        with self._server.precedence.order():
            return method(self, request, context)

    _ORDERS.add(method.__name__)
    return cast(Method, in_precedence)


_ORDERS: set[str] = set()


class ParameterServerServicer(ps_pb2_grpc.ParameterServerServicer):
    """Refusals of a push that its worker handles are statuses; all others are errors with their reason."""

    def __init__(self, server: ParameterServer, *, job_id: str) -> None:
        self._server, self._job_id = server, job_id

    def Restore(self, request: pb.RestoreRequest, context: Any) -> pb.RestoreReply:
        """See ParameterServer.restore."""
        self._check_job(request.job_id)
        result = self._server.restore(convert.restore_order(request))
        return pb.RestoreReply(rows=result.rows, seconds=result.seconds)

    @_order
    def Takeover(self, request: pb.TakeoverRequest, context: Any) -> pb.TakeoverReply:
        """See ParameterServer.takeover."""
        self._check_job(request.job_id)
        found = self._server.takeover(request.gen, request.term)
        return pb.TakeoverReply(gen=found.gen, term=found.term, since=found.since,
                                slots=to_bitmap(found.slots), marking=found.marking,
                                sending=found.sending, frozen=found.frozen)

    @_order
    def Mark(self, request: pb.MarkRequest, context: Any) -> pb.MarkReply:
        """See ParameterServer.mark."""
        self._check_job(request.job_id)
        return convert.mark_reply(
            self._server.mark(request.gen, request.term, request.snapshot, base=request.base))

    @_order
    def AbortMark(self, request: pb.AbortMarkRequest, context: Any) -> pb.AbortMarkReply:
        """See ParameterServer.abort_mark."""
        self._check_job(request.job_id)
        self._server.abort_mark(request.gen, request.term, request.snapshot)
        return pb.AbortMarkReply()

    @_order
    def Void(self, request: pb.VoidRequest, context: Any) -> pb.VoidReply:
        """See ParameterServer.void."""
        self._check_job(request.job_id)
        partly = self._server.void(request.gen, request.term, convert.triples(request.batches))
        return pb.VoidReply(partly_applied=convert.pieces(partly))

    def Declare(self, request: pb.DeclareRequest, context: Any) -> pb.DeclareReply:
        """See ParameterServer.declare."""
        self._check_job(request.job_id)
        declaration, values = convert.declaration(request)
        return pb.DeclareReply(existed=self._server.declare(request.gen, declaration, values))

    # Pull and Push get their messages as bytes, in which arrays stay where they are.
    def Pull(self, request: bytes, context: Any) -> bytes:  # type: ignore[override]  # see above
        """See ParameterServer.pull."""
        head, tables = arrays.read_pull_request(request)
        self._check_job(head.job_id)
        result = self._server.pull(
            head.gen, head.map_version, tables, dense=head.dense, dense_since=head.dense_since,
            absent_as_zero=head.absent_as_zero)
        head_back = pb.PullReply(step=result.step, group_step=result.group_step, seconds=result.seconds)
        return arrays.pull_reply(head_back, result.rows, result.dense)

    def Push(self, request: bytes, context: Any) -> pb.PushReply:
        """See ParameterServer.push."""
        head, tables, dense = arrays.read_push_request(request)
        self._check_job(head.job_id)
        try:
            result = self._server.push(convert.part(head, tables, dense))
        except StaleGeneration as refusal:
            return pb.PushReply(status=pb.PushReply.STALE_GEN, gen=refusal.gen)
        except WrongMap as refusal:
            return pb.PushReply(status=pb.PushReply.WRONG_MAP, since=refusal.since)
        except Stale:
            return pb.PushReply(status=pb.PushReply.STALE)
        except OldLease:
            return pb.PushReply(status=pb.PushReply.OLD_LEASE)
        except Overlap as refusal:
            return pb.PushReply(status=pb.PushReply.OVERLAP, cuts=convert.pieces(refusal.cuts))
        return pb.PushReply(status=_STATUS[result.status], duplicate=result.duplicate, seconds=result.seconds)

    def Settled(self, request: pb.SettledRequest, context: Any) -> pb.SettledReply:
        """See ParameterServer.settled."""
        self._check_job(request.job_id)
        result = self._server.settled(request.gen, request.map_version, convert.triples(request.pieces),
                                      wait_s=min(request.wait_s, MOST_WAIT_S), others=request.others)
        return pb.SettledReply(applied=result.applied, lost=convert.pieces(result.lost))

    def Ledgers(self, request: pb.LedgersRequest, context: Any) -> pb.LedgersReply:
        """See ParameterServer.ledgers."""
        self._check_job(request.job_id)
        result = self._server.ledgers(request.gen, convert.triples(request.within))
        return pb.LedgersReply(applied_by_all=convert.ledger(result.by_all),
                               applied_by_any=convert.ledger(result.by_any), max_epoch=result.max_epoch)

    def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsReply:
        """See ParameterServer.stats."""
        self._check_job(request.job_id)
        return convert.stats_reply(self._server.stats())

    @_order
    def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        """See ParameterServer.join."""
        self._check_job(request.job_id)
        self._server.join(moving.join_order(request))
        return pb.JoinReply()

    @_order
    def Migrate(self, request: pb.MigrateRequest, context: Any) -> pb.MigrateReply:
        """See ParameterServer.migrate."""
        self._check_job(request.job_id)
        return moving.migrate_reply(self._server.migrate(moving.move_order(request), term=request.term))

    @_order
    def Freeze(self, request: pb.FreezeRequest, context: Any) -> pb.FreezeReply:
        """See ParameterServer.freeze."""
        self._check_job(request.job_id)
        result = self._server.freeze(request.gen, request.term, request.move, map_version=request.map_version)
        return moving.freeze_reply(result)

    @_order
    def AbortInstall(self, request: pb.AbortInstallRequest, context: Any) -> pb.AbortInstallReply:
        """See ParameterServer.abort_install."""
        self._check_job(request.job_id)
        return pb.AbortInstallReply(
            installed=self._server.abort_install(request.gen, request.term, request.move))

    @_order
    def Resume(self, request: pb.ResumeRequest, context: Any) -> pb.ResumeReply:
        """See ParameterServer.resume."""
        self._check_job(request.job_id)
        return pb.ResumeReply(was_frozen=self._server.resume(
            request.gen, request.term, request.move, map_version=request.map_version))

    @_order
    def Free(self, request: pb.FreeRequest, context: Any) -> pb.FreeReply:
        """See ParameterServer.free."""
        self._check_job(request.job_id)
        self._server.free(request.gen, request.term, request.move)
        return pb.FreeReply()

    @_order
    def Stage(self, request: pb.StageRequest, context: Any) -> pb.StageReply:
        """See moves.Target."""
        self._check_job(request.job_id)
        self._server.moves.receiver.stage(moving.stage_order(request))
        return pb.StageReply()

    @_order
    def Install(self, request: pb.InstallRequest, context: Any) -> pb.InstallReply:
        """See moves.Target."""
        self._check_job(request.job_id)
        return pb.InstallReply(installed=self._server.moves.receiver.install(moving.install_order(request)))

    def _check_job(self, job_id: str) -> None:
        """An address may be used again by another job's server."""
        if job_id != self._job_id:
            raise FailedPrecondition(f"this is a server of job {self._job_id!r}", reason="WRONG_JOB")


LANES = (Lane("order", 4, frozenset(_ORDERS)), Lane("settled", MOST_WAITERS + 2, {"Settled"}))
"""Orders never queue behind calls of workers, nor workers' calls behind those that wait for what they bring."""


def add_to_server(servicer: ParameterServerServicer) -> Callable[[grpc.Server], None]:
    """For `recmesh.runtime.rpc.sync_server`."""
    by_hand = {
        "Pull": grpc.unary_unary_rpc_method_handler(servicer.Pull),
        "Push": grpc.unary_unary_rpc_method_handler(
            servicer.Push, response_serializer=pb.PushReply.SerializeToString),
    }

    def add(server: grpc.Server) -> None:
        replacing: Any = _Replacing(server, by_hand)
        ps_pb2_grpc.add_ParameterServerServicer_to_server(servicer, replacing)

    return add


class _Replacing:
    """A server to the generated code, whose handlers for some methods are replaced."""

    def __init__(self, server: Any, by_hand: Mapping[str, Any]) -> None:
        self._server, self._by_hand = server, by_hand

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Made of what `add_registered_method_handlers` gets next."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """All of the service's."""
        chosen = {**handlers, **self._by_hand}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, chosen),))
        self._server.add_registered_method_handlers(service, chosen)
