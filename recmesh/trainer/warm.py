"""`python -m recmesh.trainer.warm`: compile all kernels of store and trainer into the cache, so that no role waits."""

import sys

from recmesh.store import warm
from recmesh.trainer import pooling


def main() -> int:
    """The store's compile at import, the trainer's when they are asked to."""
    for kernel in vars(pooling).values():
        if isinstance(kernel, pooling.Kernel):
            kernel.ready()
    return warm.main()


if __name__ == "__main__":
    sys.exit(main())
