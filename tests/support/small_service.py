"""A tiny HTTP service; standard library only, so that it starts in milliseconds.

    small_service.py PORT BEHAVE

The file BEHAVE tells how it misbehaves: `exit CODE` (dies at once, after a last word), `unready` (answers
503); no file: it is ready.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(BaseHTTPRequestHandler):
    behave: Path

    def do_GET(self) -> None:
        how = self.behave.read_text().strip() if self.behave.exists() else ""
        self.send_response(503 if how == "unready" else 200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


if __name__ == "__main__":
    _Handler.behave = Path(sys.argv[2])
    if _Handler.behave.exists() and _Handler.behave.read_text().startswith("exit"):
        print("the last word of a service", flush=True)
        sys.exit(int(_Handler.behave.read_text().split()[1]))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
