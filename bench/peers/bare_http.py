"""`python bare_http.py PORT`: uvicorn and an application that reads a request and answers what does not depend on it.

As the gateway sets it up, with httptools and uvloop; the answer is as long as an inference's of one sample.
"""

import sys
from typing import Any

import uvicorn

ANSWER = b"x" * 180


async def application(scope: Any, receive: Any, send: Any) -> None:
    """ASGI."""
    while (await receive()).get("more_body", False):
        pass
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


if __name__ == "__main__":
    uvicorn.run(
        application, port=int(sys.argv[1]), log_config=None, access_log=False, lifespan="off", ws="none",
        server_header=False,
    )  # fmt: skip
