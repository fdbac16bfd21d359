"""Submit, watch and stop jobs by events: `jobs.py submit FILE | watch JOB | stop JOB`, with nats-py alone."""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api

SOURCE = "/examples/events/python"
OVER = ("Succeeded", "Failed", "Stopped")
WAIT_S = 60.0


def token(text: str) -> str:
    """An id as one token of a subject."""
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E")


async def send(client: Client, event: str, entity: str, data: dict[str, Any]) -> str:
    """Publish a command to jobmaster; its id. Returns when JetStream has stored it."""
    id_ = uuid.uuid4().hex
    headers = {
        "ce-specversion": "1.0", "ce-id": id_, "ce-source": SOURCE, "ce-type": f"dev.recmesh.{event}.v1",
        "ce-subject": quote(entity), "content-type": "application/json", "Nats-Msg-Id": f"{SOURCE}/{id_}",
    }
    subject = f"recmesh.v1.jobmaster.{event}.{token(entity)}"
    await client.jetstream().publish(subject, json.dumps(data).encode(), headers=headers)
    return id_


async def answers(client: Client, *events: str) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """Event, entity and data of what jobmaster tells from now on. Ask for the first one before you send."""
    found: asyncio.Queue[Msg] = asyncio.Queue()

    async def put(message: Msg) -> None:
        found.put_nowait(message)

    for event in events:
        await client.subscribe(f"recmesh.v1.jobmaster.{event}.*", cb=put)
    await client.flush()
    yield "listening", "", {}
    while True:
        message = await found.get()
        event = ".".join(message.subject.split(".")[3:5])
        yield event, unquote((message.headers or {})["ce-subject"]), json.loads(message.data)


async def submit(client: Client, file: str) -> int:
    """`file`: its content. Prints the new job's id; 1 and the wrong fields when it is refused."""
    spec = json.loads(file)
    listening = answers(client, "job.submitted", "job.refused")
    await anext(listening)
    request = uuid.uuid4().hex
    id_ = await send(client, "job.submit", spec["name"], {"spec": spec, "request_id": request})
    async for event, entity, data in listening:
        if event == "job.submitted" and data["request_id"] == request:
            print(entity)
            return 0
        if event == "job.refused" and data["refused_id"] == id_:
            return refused(data)
    return 1


async def watch(client: Client, job: str) -> int:
    """Prints each event of the job until it ends."""
    order = api.ConsumerConfig(deliver_policy=api.DeliverPolicy.ALL)
    reading = await client.jetstream().subscribe(
        f"recmesh.v1.*.*.*.{token(job)}", stream="RECMESH", ordered_consumer=True, config=order
    )
    async for message in reading.messages:
        event = ".".join(message.subject.split(".")[3:5])
        data = json.loads(message.data)
        print(event, json.dumps(data), flush=True)
        if event == "job.transitioned" and data["to_phase"] in OVER:
            return 0 if data["to_phase"] == "Succeeded" else 2
    return 1


async def stop(client: Client, job: str) -> int:
    """Returns when the job has stopped; 1 with the reason when it cannot be."""
    listening = answers(client, "job.transitioned", "job.refused")
    await anext(listening)
    id_ = await send(client, "job.stop", job, {"reason": "by events"})
    async for event, entity, data in listening:
        if event == "job.transitioned" and entity == job and data["to_phase"] in OVER:
            print(data["to_phase"])
            return 0
        if event == "job.refused" and data["refused_id"] == id_:
            return refused(data)
    return 1


def refused(data: dict[str, Any]) -> int:
    """Tells why."""
    print(f"refused: {data['reason']}: {data['message']}", file=sys.stderr)
    for wrong in data["violations"]:
        print(f"  {wrong['path']}: {wrong['reason']}", file=sys.stderr)
    return 1


async def main(verb: str, what: str) -> int:
    """The exit code."""
    url = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
    client = await nats.connect(url, token=os.environ.get("NATS_TOKEN"))
    try:
        if verb == "watch":
            return await watch(client, what)
        async with asyncio.timeout(WAIT_S):
            return await {"submit": submit, "stop": stop}[verb](client, what)
    finally:
        await client.close()


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("submit", "watch", "stop"):
        sys.exit(__doc__)
    verb, what = sys.argv[1:]
    sys.exit(asyncio.run(main(verb, Path(what).read_text() if verb == "submit" else what)))
