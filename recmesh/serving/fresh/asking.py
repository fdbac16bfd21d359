"""What may be asked of a model that follows its job, over a connection of the process that has its rows."""

import threading
from collections.abc import Callable
from typing import Any

from recmesh.runtime.errors import InvalidArgument, ResourceExhausted
from recmesh.serving.failures import describe
from recmesh.serving.frames import Header
from recmesh.serving.fresh.sparse import Sparse

ACTS = ("status", "rollback", "resume")


def answer(
    sparse: Sparse, header: Header, told: Callable[[Header], None], *, status: Callable[[], dict[str, Any]]
) -> None:
    """Do `act` to the model, then tell `status`, and `versions` that it may be rolled back to; or why not.

    A version may have to be read from storage, and be held by other processes: that is a thread's work.
    ResourceExhausted: storage is slow, and as many are waiting for it as may.
    """
    act, version = str(header["act"]), int(header["version"])
    if act not in ACTS:
        raise InvalidArgument(f"act {act!r} is none of {', '.join(ACTS)}", reason="BAD_OPERATION")
    if not sparse.asked.acquire(blocking=False):
        raise ResourceExhausted("others are asking for the model's versions already", reason="QUEUE_FULL")

    def work() -> None:
        try:
            if act == "rollback":
                sparse.follower.roll_back(version)
            elif act == "resume":
                sparse.follower.resume()
            told({"status": status(), "versions": sparse.follower.versions()})
        except Exception as error:               # of storage, too
            told(describe(error))
        finally:
            sparse.asked.release()

    threading.Thread(target=work, name=f"{act} {header['model']}", daemon=True).start()
