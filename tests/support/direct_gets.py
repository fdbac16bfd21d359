"""Between a reader of JetStream and the server: answers to direct gets that are late, lost or changed."""

import asyncio
import json
from collections.abc import Callable
from typing import TypeVar

import nats as client
from nats.aio.msg import Msg

T = TypeVar("T")
Reply = tuple[dict[str, str], bytes]


class Between:
    """Stands between a reader and the server's direct gets, and changes what is answered."""

    def __init__(self, change: Callable[[int, list[Reply]], list[Reply]]) -> None:
        """`change`: from the number of the request and the server's replies to those that are passed on."""
        self._change = change
        self.asked: list[int] = []
        """Where each request began."""

    def run(self, url: str, stream: str, call: Callable[[], T]) -> T:
        return asyncio.run(self._run(url, stream, call))

    async def _run(self, url: str, stream: str, call: Callable[[], T]) -> T:
        connection = await client.connect(url)

        async def answer(request: Msg) -> None:
            number, inbox = len(self.asked), connection.new_inbox()
            self.asked.append(json.loads(request.data)["seq"])
            replies: list[Reply] = []
            there = await connection.subscribe(inbox)
            await connection.publish(f"$JS.API.DIRECT.GET.{stream}", request.data, reply=inbox)
            while not replies or "Status" not in replies[-1][0]:
                reply = await there.next_msg(5)
                replies.append((dict(reply.headers or {}), reply.data))
            for headers, data in self._change(number, replies):
                await connection.publish(request.reply, data, headers=headers)
            await there.unsubscribe()

        await connection.subscribe(f"between.{stream}", cb=answer)
        await connection.flush()
        try:
            return await asyncio.to_thread(call)
        finally:
            await connection.close()


def behind(end: int, replies: list[Reply]) -> list[Reply]:
    """What a replica answers that has not yet got the messages from `end` on."""
    there = [reply for reply in replies if int(reply[0].get("Nats-Sequence", end)) < end]
    if not there:
        return [({"Status": "404", "Description": "Message Not Found"}, b"")]
    last = {"Status": "204", "Nats-Num-Pending": "0", "Nats-Last-Sequence": there[-1][0]["Nats-Sequence"]}
    return [*there, (last, b"")]
