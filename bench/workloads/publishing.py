"""`python -m bench.workloads.publishing FILE URL ROWS`: rows, made ahead, by nats-py's asynchronous publishing."""

import asyncio
import json
import sys
import time

from nats.aio.client import Client
from nats.js import api

from recmesh.replay.rows import as_json, open_rows

IN_FLIGHT = 4096


async def published(url: str, payloads: list[bytes]) -> float:
    """Seconds until all are acknowledged."""
    client = Client()
    await client.connect(url)
    js = client.jetstream(publish_async_max_pending=IN_FLIGHT)
    await js.add_stream(api.StreamConfig(name="peer-0", subjects=["peer.0"], duplicate_window=120))
    began = time.monotonic()
    for n, payload in enumerate(payloads):
        await js.publish_async("peer.0", payload, headers={"Nats-Msg-Id": f"peer:0:{n}", "Recmesh-Time": f"{n}.0"})
    await js.publish_async_completed()
    seconds = time.monotonic() - began
    stored = (await js.stream_info("peer-0")).state.messages
    await client.close()
    if stored != len(payloads):
        raise RuntimeError(f"{stored} of {len(payloads)} messages are stored")
    return seconds


def main(file: str, url: str, most: int) -> None:
    """Prints rows and seconds."""
    rows = open_rows([file])
    payloads = [text for chunk in rows.chunks() for text in as_json(chunk.table, rows.columns)][:most]
    print(json.dumps({"rows": len(payloads), "seconds": asyncio.run(published(url, payloads))}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
