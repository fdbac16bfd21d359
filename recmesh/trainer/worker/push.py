"""One batch to every parameter server. What is acknowledged under one map counts under no other."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recmesh.runtime.gates import gate
from recmesh.trainer.layout import DenseLayout, Placement, Prepared, split
from recmesh.trainer.ports import ParameterServer, Piece, PushAck, PushTerms, TableDeclaration
from recmesh.trainer.stepping import Gradients
from recmesh.trainer.worker.fleet import Fleet, StaleGeneration, WrongMap


@dataclass(frozen=True, slots=True)
class Applied:
    """Every server has it."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Some server has parts of it: train what lies between the cuts as batches of their own."""

    cuts: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class NotOurs:
    """The lease has a newer holder, who trains it."""


@dataclass(frozen=True, slots=True)
class TooOld:
    """Some server has gone on too far since the pull: pull and compute again."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Every server has it or keeps it, and one at least waits for the rest of its step."""


Outcome = Applied | Overlap | NotOurs | TooOld | Waits


def push_everywhere(
    batch: Piece,
    epoch: int,
    prepared: Prepared,
    grads: Gradients,
    *,
    fleet: Fleet,
    tables: Sequence[TableDeclaration],
    layout: DenseLayout,
    worker: str,
    newer_map: Callable[[int], Placement],
    gone: threading.Event,
    terms: Callable[[int], PushTerms],
) -> Outcome:
    """Sends one logical part to every server, empty or not, until all have it under one map version.

    `terms(ps)` are a server's conditions; `newer_map(since)` waits for a map of at least that version.
    StaleGeneration and NoLongerWanted pass.
    """
    placement = fleet.placement
    while True:
        parts = split(prepared, grads.rows, tables, placement)
        under = placement

        def send(ps: int, server: ParameterServer) -> PushAck:
            if ps != under.servers[0]:                                  # noqa: B023  # called before the loop turns
                gate("worker.push", batch)
            return server.push(
                under.gen,                                              # noqa: B023  # called before the loop turns
                map_version=under.version,                              # noqa: B023
                batch=[batch],
                epoch=epoch,
                tables=parts[ps],                                       # noqa: B023
                dense=layout.chunks(grads.dense, under.owners, ps, without=grads.still),     # noqa: B023
                worker=worker,
                terms=terms(ps),
            )

        try:
            acks = fleet.each(send, placement=placement, what=f"push of {batch}", gone=gone)
        except WrongMap as refusal:
            placement = newer_map(refusal.since)
            continue
        statuses = {ack.status for ack in acks.values()}
        if "stale_gen" in statuses:
            raise StaleGeneration
        if "wrong_map" in statuses:
            placement = newer_map(max(ack.since for ack in acks.values()))
            continue
        if "overlap" in statuses:
            return Overlap(tuple(cut for ack in acks.values() for cut in ack.cuts))
        for status, outcome in (("old_lease", NotOurs()), ("stale", TooOld()), ("kept", Waits())):
            if status in statuses:
                return outcome
        return Applied()
