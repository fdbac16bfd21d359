"""Messages of admission as frames between CN and HN: `op: admission`, the message's bytes (`codec`) as a tensor."""

import numpy as np

from recmesh.serving.admission import codec
from recmesh.serving.admission.messages import ToCn, ToHn
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import Message

OPERATION = "admission"


def written(message: ToCn | ToHn) -> tuple[Header, list[Tensor]]:
    """A message of admission as header and tensors of a frame."""
    data = np.frombuffer(codec.encode(message), np.uint8)
    return {"op": OPERATION}, [Tensor.of("message", data)]


def read(message: Message) -> ToCn | ToHn:
    """The inverse; InvalidArgument when it is none."""
    if len(message.tensors) != 1:
        raise FrameError("a frame of admission holds no message")
    return codec.decode(message.tensors[0].array.tobytes())
