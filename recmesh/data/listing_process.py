"""A process that lists folders for its parent, `recmesh.data.listing_processes`; it ends when that does.

Asked and answered in turn, over pipes. A question is 4 bytes of length and JSON: `fs` (a file system as fsspec writes
it down), `way` (`folder` or `pattern`), `path`, and `witness`, a file that the parent has seen: who does not see it as
well sees another file system. An answer is 8 bytes of length and the stream of `Files.to_ipc`; without
one, the parent has to look for itself: -1 in place of the length, or -2, on all of this file system. Numbers are
little-endian.
"""

import gc
import os
import select
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa
from fsspec import AbstractFileSystem

from recmesh.data.filecolumns import WAYS
from recmesh.data.files import tag_of
from recmesh.data.listing_processes import ANSWERED, ASKED, FAILED, NOT_HERE


def main() -> None:
    """Answers until there is nobody to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)            # Ctrl-C is for the parent
    asked, answered = os.dup(0), os.dup(1)
    os.dup2(2, 1)                                           # what libraries print is no answer
    threading.Thread(target=_end_with_the_parent, args=[asked], daemon=True).start()
    # Listings make many objects and hardly a cycle. What is there by now is never looked at again.
    gc.disable()
    gc.freeze()
    opened: dict[bytes, Any] = {}
    with open(asked, "rb") as questions, open(answered, "wb", buffering=0) as answers:
        while len(head := questions.read(ASKED.size)) == ASKED.size:
            answer = _answer(orjson.loads(questions.read(*ASKED.unpack(head))), opened)
            if isinstance(answer, int):
                answers.write(ANSWERED.pack(answer))
            else:
                answers.write(ANSWERED.pack(len(answer)))
                rest = memoryview(answer)
                while rest:
                    rest = rest[answers.write(rest) :]
                del rest
            del answer
            gc.collect()


def _end_with_the_parent(asked: int) -> None:
    """The parent may be killed while a store is waited for."""
    poll = select.poll()
    poll.register(asked, 0)
    poll.poll()
    os._exit(0)


def _answer(question: Mapping[str, Any], opened: dict[bytes, Any]) -> pa.Buffer | int:
    key = b""
    try:
        key = orjson.dumps(question["fs"])
        if key not in opened:
            opened[key] = None
            fs = AbstractFileSystem.from_dict(question["fs"])
            if _sees(fs, **question["witness"]):
                opened[key] = fs
        fs = opened[key]
        if fs is None:
            return NOT_HERE
        files = WAYS[question["way"]](fs, question["path"])
        fs.invalidate_cache()                               # many folders are listed here, each once
        return files.to_ipc()
    except Exception as error:                              # the parent finds out, and tells it by its own means
        print(f"{question['path']} cannot be listed beside: {error!r}", file=sys.stderr)
        return FAILED if opened.get(key) is not None else NOT_HERE


def _sees(fs: Any, uri: str, size_bytes: int, etag: str) -> bool:
    path = fs._strip_protocol(uri)
    info = fs.info(path)
    return (int(info["size"] or 0), tag_of(fs, path, info)) == (size_bytes, etag)


if __name__ == "__main__":
    main()
