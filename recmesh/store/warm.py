"""`python -m recmesh.store.warm`: compile every kernel into numba's cache, so that no process waits."""

import sys
import time


def main() -> int:
    """Import what compiles at import."""
    started = time.perf_counter()
    import recmesh.formats.fnv
    import recmesh.store.batch_kernels
    import recmesh.store.kernels  # noqa: F401  # importing compiles
    print(f"kernels are ready after {time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
