"""A hot parameter server: asks what is wanted of whose slots, and notes where they shall go."""

import asyncio
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from recmesh.runtime.errors import MeshError
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import decide
from services.jobmaster.domain import placement
from services.jobmaster.domain.hot import Hot, Load, spread, weights_of
from services.jobmaster.domain.job import Relief
from services.jobmaster.domain.record import Member

logger = get_logger(__name__)

ASK_S = 2.0
"""Decisions of this job wait meanwhile; a server that is too slow to tell counts as asked for all its slots alike."""


async def relieve(run: Run, hot: Hot, loads: Mapping[int, Load]) -> None:
    """Notes the decision; the slots move by the steps that follow from it."""
    owners = run.record.owner_of
    found = spread(hot.ps, loads, owners, await _demand(run))
    now = run.context.clock.now()       # after the question: a slow answer says nothing of how fast slots leave
    decide(run, matter="hot ps", place=f"ps {hot.ps}", seen=hot.seen, decision=found.decided)
    run.update(judged_at=now)
    if (found.goal != owners).any():
        weights = weights_of(found.goal, loads)
        for role in run.status.live("ps"):
            run.put_role(role.model_copy(update={"weight": weights.get(role.index, role.weight)}))
        relief = Relief(ps=hot.ps, since=now, owned=loads[hot.ps].slots, goal=placement.encode(found.goal))
        run.update(rebalance=f"PS {hot.ps} is relieved: {hot.seen}", relief=relief)
    await run.flush()


async def _demand(run: Run) -> NDArray[np.uint32]:
    """uint32 [SLOTS]; a server's slots that nobody told of are like its peers' mean."""
    owners = run.record.owner_of
    told = await asyncio.gather(*(_asked_of(run, member) for member in run.record.owning))
    known = [found[owners == member.ps] for member, found in zip(run.record.owning, told, strict=True)
             if found is not None]
    usual = max(1, round(float(np.concatenate(known).mean()))) if known else 1
    result = np.full(placement.SLOTS, usual, np.uint32)
    for member, found in zip(run.record.owning, told, strict=True):
        if found is not None:
            result[owners == member.ps] = found[owners == member.ps]
    return result


async def _asked_of(run: Run, member: Member) -> NDArray[np.uint32] | None:
    try:
        async with asyncio.timeout(ASK_S):
            return await run.context.peers.servers.demand(member.address, job_id=run.job_id)
    except (MeshError, TimeoutError) as error:
        logger.info("job %s: PS %d does not tell what is asked of it: %s", run.job_id, member.ps, error)
        return None
