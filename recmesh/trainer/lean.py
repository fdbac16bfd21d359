"""Keeping a role's start short."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def keep_pandas_out() -> None:
    """Stops pyarrow from importing pandas by itself, which costs two seconds and serves nothing here.

    pyarrow tries once, at its first Python scalar; told that there is none, it asks again only where pandas is
    really wanted, such as `to_pandas`. Before other threads start: for a moment nobody can import it.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ImportError("not now")
        return None
