"""Processes that hang, die, or answer in vain; models that are not there."""

import asyncio
import time

import numpy as np
import psutil
import pytest

from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from services.forecaster.domain.fitting import Asked
from services.forecaster.domain.history import History
from services.forecaster.runtimes.pool import SPARED_S, ModelPool, _Lane

pytestmark = pytest.mark.asyncio
SHORT_S = 1.0


def hangs() -> None:
    """A model's C code that never comes back."""
    time.sleep(600)


async def test_a_lane_whose_process_hangs_is_killed_and_answers_the_next() -> None:
    lane = _Lane("hangs")
    late: list[int] = []
    try:
        assert await lane.submit(abs, -1, limit_s=60.0) == 1        # the process is up: its start is no part of it
        hanging = lane.submit(hangs, limit_s=SHORT_S, late=lambda: late.append(1))
        following = lane.submit(abs, -3, limit_s=60.0)
        with pytest.raises(DeadlineExceeded, match="did not end within"):
            await hanging
        assert late == [1]
        assert await asyncio.wait_for(following, 120) == 3
        again = lane.submit(hangs, limit_s=SHORT_S)
        again.cancel()                                              # nobody waits for it any more: killed all the same
        assert await asyncio.wait_for(lane.submit(abs, -4, limit_s=60.0), 120) == 4
    finally:
        await lane.stop()


async def test_a_series_whose_models_hang_is_spared_and_others_are_answered() -> None:
    pool = ModelPool(timeout_s=60.0)
    await pool.start()
    try:
        past = History(np.arange(48.0) % 7, 0, 3600.0)
        assert pool._warming is not None
        await pool._warming
        await pool.predict(Asked("fine", past, 2))
        worker = pool._lanes[0]._worker
        assert worker is not None
        process = psutil.Process(worker._process.pid)
        process.suspend()                                           # as if it hung
        pool._timeout_s = SHORT_S
        with pytest.raises(DeadlineExceeded):
            await pool.predict(Asked("hangs", past, 2))
        pool._timeout_s = 60.0
        assert (await pool.predict(Asked("fine", past, 2))).mean.shape == (2,)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        with pytest.raises(Unavailable, match="tried again later"):
            await pool.predict(Asked("hangs", past, 2))
        pool._spared["hangs"] -= SPARED_S + 60                      # a while later
        assert (await pool.predict(Asked("hangs", past, 2))).mean.shape == (2,)
    finally:
        await pool.stop()


async def test_a_model_of_the_settings_that_is_not_there_is_named_to_who_asks() -> None:
    """By an error that scalers know, so that they go on by what was measured."""
    pool = ModelPool(wanted=("lagged", "oracle"))
    await pool.start()
    try:
        with pytest.raises(FailedPrecondition, match=r"RECMESH_FORECAST_MODELS: no 'oracle'.*lagged"):
            await pool.predict(Asked("any", History(np.arange(48.0) % 7, 0, 3600.0), 2))
    finally:
        await pool.stop()
