"""What holds for every test."""

import asyncio


def pytest_configure() -> None:
    """No event loop until a test has its own.

    Before the first test asyncio would make one for whoever asks, and looptime asks in every synchronous test:
    nobody closes that loop, and a later garbage collection fails an innocent test.
    """
    asyncio.set_event_loop(None)
