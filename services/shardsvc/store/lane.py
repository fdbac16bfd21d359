"""A connection to Valkey that one exchange at a time has for itself.

The client's pool takes a connection, looks whether it still lives, and starts a task to write with a timeout, for each
exchange: more than half of what a lease cost shardsvc in Valkey's client.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as ValkeyLate


class Lane:
    """Commands and their answers. It connects when it is first used, and again after it broke."""

    def __init__(self, client: Redis, *, timeout_s: float) -> None:
        """Where, as whom and how often tried: as the client. `timeout_s`: for an exchange, each time it is tried."""
        pool: Any = client.connection_pool                  # its types leave this method out
        self._connection = pool.make_connection()
        self._connection.socket_timeout = None              # one timeout is around everything
        self._timeout_s = timeout_s

    async def exchange(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """An answer to each command; refusals are answers, too. Commands may run twice when the connection breaks."""
        found: list[Any] = await self._connection.retry.call_with_retry(
            lambda: self._exchange(commands), lambda _: self._connection.disconnect(nowait=True)
        )
        return found

    async def close(self) -> None:
        """It connects again when it is used again."""
        await self._connection.disconnect()

    async def _exchange(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        connection = self._connection
        try:
            async with asyncio.timeout(self._timeout_s):
                if not connection.is_connected:
                    await connection.connect_check_health(check_health=False, retry_socket_connect=False)
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                return [await self._answer() for _ in commands]
        except TimeoutError:
            raise ValkeyLate(f"no answer within {self._timeout_s:g} s") from None
        except BaseException:                               # answers may be under way: nobody must take them for others
            await connection.disconnect(nowait=True)
            raise

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()   # given a timeout it tells of a dead peer as None
        except ResponseError as refusal:
            return refusal
