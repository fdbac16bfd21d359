"""The world that lives of jobs are tested in."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.job_world import JobWorld


@pytest_asyncio.fixture
async def world() -> AsyncIterator[JobWorld]:
    made = JobWorld()
    await made.jobs.lead()
    yield made
    await made.close()
