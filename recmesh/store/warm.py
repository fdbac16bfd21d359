"""`python -m recmesh.store.warm`: compile every kernel into numba's cache, so that no process waits."""

import sys


def main() -> int:
    """Import what compiles at import."""
    import recmesh.formats.fnv
    import recmesh.store.batch_kernels
    import recmesh.store.kernels  # noqa: F401  # importing compiles
    print("kernels are compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
