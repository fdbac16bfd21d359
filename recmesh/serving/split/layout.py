"""What can be sent between the stages of a split model, and which of it travels packed.

How packed tensors lie is the matter of `recmesh.serving.frames`, by which they are sent.
"""

from collections.abc import Mapping

from recmesh.serving.frames import SMALL_BYTES

PACKED_BYTES = SMALL_BYTES
"""Up to this size (at the reference batch) a tensor is packed: of those that production models send, 44 % are under
1 KiB and 11 % over 256 KiB (Prism), and each small one by itself would cost more in messages than in bytes."""
ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2, "uint32": 4, "int32": 4,
    "float32": 4, "uint64": 8, "int64": 8, "float64": 8,
}  # fmt: skip
"""Of the types that can be sent between CN and HN; strings cannot."""
