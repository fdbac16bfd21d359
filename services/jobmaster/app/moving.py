"""Parameter servers join and leave, and slots move between them, while training goes on: PROTOCOL §7.

The run record says what is under way, so that whoever comes next completes it or takes it back. From the freeze to
the published map pushes to these slots wait: nothing stands between but the target's answer and one write.
"""

from recmesh.runtime.errors import CallerError, DeadlineExceeded, FailedPrecondition, MeshError, Unavailable
from recmesh.runtime.events import catalog
from recmesh.runtime.gates import gate
from recmesh.runtime.telemetry import Metrics, get_logger
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import conclude
from services.jobmaster.domain import fleet, moves, placement
from services.jobmaster.domain.placement import Shift
from services.jobmaster.domain.record import Member, Refused, RunRecord, SlotMove
from services.jobmaster.peers import Copied, Frozen, JoinOrder, MoveOrder, TakenOver

logger = get_logger(__name__)

_metrics = Metrics("jobmaster")
_slots_moved = _metrics.counter("slots_moved", "Slots that have another parameter server")
_pauses = _metrics.histogram("move_pause_seconds", "From the freeze of slots to the published map")

MATTERS = frozenset({"hot ps", "replacement", "termination"})
"""Decisions after which slots move."""
POLL_S = 0.05
"""Between looks at a copy; bulk copies take seconds."""
FREEZE_CALL_S = 1.0
FAULTS_BORNE_S = 5.0
"""A source may leave questions about its copy unanswered for so long."""
FIRST_DELAY_S, LONGEST_DELAY_S = 0.002, 0.5


class MoveFailed(Exception):
    """The slots are where they were; the message says why."""


async def step(run: Run) -> None:
    """The next step towards the parameter servers and the placement that are wanted; nothing when there is none."""
    record, intent = run.record, run.job.intent
    following = fleet.next_step(
        record, run.status, count=fleet.wanted(run.spec, intent, run.status, record), now=run.context.clock.now(),
        limits=run.context.limits.model_copy(update={"move_slots": run.handoff.slots}),
        only_mend=fleet.ends_soon(intent, record),
    )
    match following:
        case fleet.Settle():
            await settle(run)
        case fleet.Join(member):
            await _join(run, member)
        case fleet.Part(ps):
            await run.change_record(lambda now: moves.left(now, term=now.term, gen=record.gen, ps=ps))
            role = run.status.role(("ps", ps))
            if role is not None:
                run.put_role(role.model_copy(update={"left_at": run.context.clock.now()}))
            logger.info("job %s: PS %d has left generation %d", run.job_id, ps, record.gen)
        case Shift():
            await _shift(run, following)
        case fleet.Arrived(places):
            slots_placed(run, places)


def slots_placed(run: Run, places: tuple[int, ...]) -> None:
    """What was decided about parameter servers is done."""
    run.slots_placed(places)
    done = f"slots were placed on PS {', '.join(map(str, places))}"
    for item in run.status.timeline:
        if item.matter in MATTERS and item.place.startswith("ps ") and not item.done:
            conclude(run, item.number, done=done)


async def _join(run: Run, member: Member) -> None:
    """First the server takes part, then the record names it: whoever is a member can answer as one."""
    record = run.record
    order = JoinOrder(run.job_id, record.gen, record.term, member, record.map_version, record.voids)
    try:
        await run.context.peers.servers.join(member.address, order)
    except CallerError as error:
        # It has a past that does not fit: another process comes in its place.
        role = run.status.role(("ps", member.ps))
        if role is not None and role.incarnation == member.incarnation:
            run.put_role(role.model_copy(update={"leaving": f"it cannot join: {error.message}"}))
        raise
    await run.change_record(lambda now: moves.joined(now, term=now.term, gen=record.gen, member=member))
    logger.info("job %s: PS %d has joined generation %d", run.job_id, member.ps, record.gen)


# -- one move --------------------------------------------------------------------------------------------


async def _shift(run: Run, shift: Shift) -> None:
    record = await run.change_record(
        lambda now: moves.begun(
            now, term=now.term, gen=now.gen, source=shift.source, target=shift.target, slots=shift.slots
        )
    )
    move = record.move
    if move is None:
        raise RuntimeError("a move that was begun is in the record")
    run.copied = 0.0
    logger.info(
        "job %s: move %d: %d slots go from PS %d to PS %d", run.job_id, move.number, len(shift.slots), shift.source,
        shift.target,
    )
    try:
        await _clear_both(run, record, move)
        copied = await _copy_and_reserve(run, record, move)
        await _hand_over(run, record, move, copied)
    except (MeshError, MoveFailed) as error:
        logger.warning("job %s: move %d is in doubt: %s", run.job_id, move.number, error)
        if not await settle(run):
            run.handoff = run.handoff.failed(len(shift.slots))
            raise


async def _clear_both(run: Run, record: RunRecord, move: SlotMove) -> None:
    """A move of before, of whose end a server has not heard, is ended first: a source has one move at a time, and a
    target may have kept rows of slots that come back."""
    for ps in (move.source, move.target):
        member = _member(record, ps)
        found = await run.context.peers.servers.takeover(
            member.address, job_id=run.job_id, gen=record.gen, term=record.term
        )
        await clear(run, member, found)


async def _copy_and_reserve(run: Run, record: RunRecord, move: SlotMove) -> Copied:
    """M1, and the write of M2: the copy is fresh, and nothing else is pending any more."""
    while True:
        copied = await _copy(run, record, move)
        try:
            await run.change_record(
                lambda now: moves.freezing(now, term=record.term, gen=record.gen, number=move.number)
            )
        except Refused:
            if not run.record.pending or run.record.gen != record.gen:
                raise
            continue  # a mark was faster; the copy goes on meanwhile
        return copied


async def _copy(run: Run, record: RunRecord, move: SlotMove) -> Copied:
    """M1: until the changes that wait at the source are few, and no mark or void is pending."""
    clock, limits, servers = run.context.clock, run.context.limits, run.context.peers.servers
    source, target = _member(record, move.source), _member(record, move.target)
    began = answered = clock.monotonic()
    while True:
        try:
            copied = await servers.migrate(
                source.address, _order(run, record, move.number), slots=move.slots_bytes, target=target
            )
            answered = clock.monotonic()
        except (DeadlineExceeded, Unavailable) as fault:
            if fault.reason in ("NOT_DECLARED", "BUSY"):
                answered = clock.monotonic()
            if clock.monotonic() - answered > FAULTS_BORNE_S:
                raise
            copied = Copied(caught_up=False)
            logger.info("job %s: move %d: PS %d: %s", run.job_id, move.number, source.ps, fault.message)
        run.copied = copied.share * len(placement.slots_of(move.slots_bytes))
        if copied.error:
            raise MoveFailed(f"PS {source.ps} cannot copy slots to PS {target.ps}: {copied.error}")
        if copied.caught_up and not run.record.pending:
            return copied
        if clock.monotonic() - began > limits.copy_timeout_s:
            raise MoveFailed(f"the copy to PS {target.ps} is not done after {limits.copy_timeout_s:g} s")
        await run.record_news(timeout_s=POLL_S)


async def _hand_over(run: Run, record: RunRecord, move: SlotMove, copied: Copied) -> None:
    """M2 to M4; the seconds of this are the pause of training."""
    clock, version = run.context.clock, run.record.reserved_version
    began = clock.monotonic()
    gate("jobmaster.freeze", f"move {move.number}")
    frozen = await _freeze(run, record, move, version=version)
    gate("jobmaster.publish", f"move {move.number}")
    await run.change_record(lambda now: moves.moved(now, term=record.term, gen=record.gen, number=move.number))
    pause_ms = 1000.0 * (clock.monotonic() - began)
    measured = {
        "rows": copied.rows, "base_bytes": frozen.base_bytes, "delta_bytes": frozen.delta_bytes + frozen.last_bytes,
        "pause_ms": pause_ms, "frozen_ms": frozen.frozen_ms, "latch_ms": frozen.latch_ms,
    }
    event = _event(run, move).model_copy(update=measured)
    _slots_moved.inc(event.slots)
    _pauses.observe(pause_ms / 1000.0)
    run.telling.slots_moved(event)
    logger.info("job %s: move %d is done; pause %.1f ms", run.job_id, move.number, pause_ms)
    run.handoff = run.handoff.done(pause_ms / 1000.0)
    await _free(run, record, move)


def _event(run: Run, move: SlotMove) -> catalog.JobSlotsMoved:
    source = run.status.role(("ps", move.source))
    return catalog.JobSlotsMoved(
        move=move.number, source=move.source, target=move.target, slots=len(placement.slots_of(move.slots_bytes)),
        reason=run.status.rebalance or (source.leaving if source is not None else ""),
    )


async def _freeze(run: Run, record: RunRecord, move: SlotMove, *, version: int) -> Frozen:
    """M2 and M3, as the source sees them. MoveFailed when the target has not answered in time."""
    clock, source = run.context.clock, _member(record, move.source)
    deadline, delay_s = clock.monotonic() + run.handoff.freeze_s, FIRST_DELAY_S
    why = "the target does not answer"
    while True:
        try:
            frozen = await run.context.peers.servers.freeze(
                source.address, _order(run, record, move.number), map_version=version, timeout_s=FREEZE_CALL_S
            )
            if frozen.installed:
                return frozen
        except (DeadlineExceeded, Unavailable) as fault:
            why = fault.message
        if clock.monotonic() > deadline:
            raise MoveFailed(f"PS {move.target} has not installed its slots: {why}")
        await clock.sleep(delay_s)
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)


async def _free(run: Run, record: RunRecord, move: SlotMove) -> None:
    """The source's rows are of no more use. It begins no other move before it has heard so."""
    source, order = _member(record, move.source), _order(run, record, move.number)
    delay_s = FIRST_DELAY_S
    while _is_there(run, source):
        try:
            await run.context.peers.servers.free(source.address, order)
            return
        except (DeadlineExceeded, Unavailable) as fault:
            logger.warning("job %s: PS %d keeps rows of move %d: %s", run.job_id, source.ps, move.number, fault.message)
        await run.context.clock.sleep(delay_s)
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)


# -- a move in doubt -------------------------------------------------------------------------------------


async def settle(run: Run) -> bool:
    """The move under way is done (True) or taken back when this returns; whose it was does not matter.

    It ends by cancellation when a server that it asks dies; what follows then, a rollback or another way to settle
    it, is decided by the rules.
    """
    record, move = run.record, run.record.move
    if move is None:
        return False
    if not record.moving:
        await _drop(run, record, move)
        return False
    if not move.back_version and await _is_installed(run, record, move):
        await run.change_record(lambda now: moves.moved(now, term=now.term, gen=record.gen, number=move.number))
        logger.info("job %s: move %d was installed, and is done", run.job_id, move.number)
        run.telling.slots_moved(_event(run, move))
        await _free(run, record, move)
        return True
    decided = await run.change_record(
        lambda now: moves.taking_back(now, term=now.term, gen=record.gen, number=move.number)
    )
    version = decided.move.back_version if decided.move is not None else 0
    if _is_there(run, _member(record, move.source)):
        await _take_back(run, record, move, version=version)
    return False


async def _take_back(run: Run, record: RunRecord, move: SlotMove, *, version: int) -> None:
    following = moves.taken_back
    try:
        await _resume(run, record, move, version=version)
    except FailedPrecondition as error:
        if error.reason != "MOVE_INSTALLED":
            raise
        following = moves.sunk
    await run.change_record(lambda now: following(now, term=now.term, gen=record.gen, number=move.number))
    logger.info("job %s: move %d: %s", run.job_id, move.number, following.__name__.replace("_", " "))


async def _is_installed(run: Run, record: RunRecord, move: SlotMove) -> bool:
    """False: it never will be. A target that has died never installs, and had applied nothing under a map that
    nobody was told of."""
    target, order = _member(record, move.target), _order(run, record, move.number)
    delay_s = FIRST_DELAY_S
    while _is_there(run, target):
        try:
            return await run.context.peers.servers.abort_install(target.address, order)
        except (DeadlineExceeded, Unavailable) as fault:
            logger.warning("job %s: is move %d installed? %s", run.job_id, move.number, fault.message)
        await run.context.clock.sleep(delay_s)
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)
    return False


async def _resume(run: Run, record: RunRecord, move: SlotMove, *, version: int) -> None:
    source, order = _member(record, move.source), _order(run, record, move.number)
    delay_s = FIRST_DELAY_S
    while True:
        try:
            return await run.context.peers.servers.resume(source.address, order, map_version=version)
        except (DeadlineExceeded, Unavailable) as fault:
            logger.warning("job %s: PS %d takes move %d back: %s", run.job_id, source.ps, move.number, fault.message)
        await run.context.clock.sleep(delay_s)
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)


async def _drop(run: Run, record: RunRecord, move: SlotMove) -> None:
    """A copy that was never frozen is forgotten, at both ends."""
    source, target = _member(record, move.source), _member(record, move.target)
    if _is_there(run, target):
        try:
            await run.context.peers.servers.abort_install(target.address, _order(run, record, move.number))
        except MeshError as error:
            logger.info("job %s: PS %d keeps a copy: %s", run.job_id, target.ps, error.message)
    if _is_there(run, source):
        await _resume(run, record, move, version=0)
    await run.change_record(lambda now: moves.dropped(now, term=now.term, gen=record.gen, number=move.number))
    logger.info("job %s: move %d was given up before its freeze", run.job_id, move.number)


async def clear(run: Run, member: Member, found: TakenOver) -> None:
    """What an earlier jobmaster left at a server of moves that the record knows no more.

    One that was frozen is done, for else the record would still name it: its rows are freed. One that was not can
    only be a copy of which nothing came.
    """
    record, servers = run.record, run.context.peers.servers
    for number in found.sending:
        if record.move is not None and number == record.move.number:
            continue
        order = _order(run, record, number)
        if number in found.frozen:
            await servers.free(member.address, order)
        else:
            await servers.resume(member.address, order, map_version=0)


def _is_there(run: Run, member: Member) -> bool:
    role = fleet.present(run.status).get(member.ps)
    return role is not None and role.incarnation == member.incarnation


def _member(record: RunRecord, ps: int) -> Member:
    member = record.member(ps)
    if member is None:
        raise RuntimeError(f"PS {ps} takes part in a move and is no member")
    return member


def _order(run: Run, record: RunRecord, number: int) -> MoveOrder:
    return MoveOrder(run.job_id, record.gen, record.term, number)
