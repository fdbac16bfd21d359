"""How kernels are compiled: without the GIL, ahead of the first call, cached on disk.

Each kernel states its signature, so importing it compiles it once for this kind of CPU and loads it from the
cache ever after. The cache lies beside the source; where that is read-only, numba uses NUMBA_CACHE_DIR or the
user's cache folder. `python -m recmesh.store.warm` fills it, as an image build should.

numba dates a cached kernel by the file that holds it, and would go on with an old optimizer step after
`arithmetic` changed. So the date is replaced by a hash of all sources that kernels are made of.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

NONE, INT, WORD, REAL = types.void, types.int64, types.uint64, types.float64
I64, U64, U32, U8 = types.int64[::1], types.uint64[::1], types.uint32[::1], types.uint8[::1]
F32, F32_2D = types.float32[::1], types.float32[:, ::1]
# What kernels only read may be a view of a received message.
IDS = types.Array(types.int64, 1, "C", readonly=True)
COUNTS = types.Array(types.uint32, 1, "C", readonly=True)
STEPS = types.Array(types.uint64, 1, "C", readonly=True)
OWNERS = types.Array(types.uint16, 1, "C", readonly=True)
GRADS = types.Array(types.float32, 1, "C", readonly=True)
GRADS_2D = types.Array(types.float32, 2, "C", readonly=True)


_SOURCES = (
    "store/jit.py", "store/arithmetic.py", "store/probing.py", "store/row_kernels.py", "store/kernels.py",
    "store/batch_kernels.py",
    "formats/hashing.py", "formats/initial.py")


def _fingerprint() -> str:
    root = Path(__file__).parent.parent
    return hashlib.sha256(b"".join((root / source).read_bytes() for source in _SOURCES)).hexdigest()


_FINGERPRINT = _fingerprint()


def kernel(result: Any, *arguments: Any) -> Callable[[F], Callable[..., Any]]:
    """Compile a function of these argument types now, to be called without the GIL.

    Its parameters are not kept for the type checker: callers spread tuples of arrays over them.
    """

    def decorate(function: F) -> Callable[..., Any]:
        dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
        dispatcher.enable_caching()
        cache_file = getattr(dispatcher._cache, "_cache_file", None)   # no public way to the stamp
        if cache_file is not None:
            cache_file._source_stamp = _FINGERPRINT
        dispatcher.compile(result(*arguments))
        dispatcher.disable_compile()
        compiled: Callable[..., Any] = dispatcher
        return compiled

    return decorate


def inline(function: F) -> F:
    """A part of kernels; LLVM inlines it."""
    decorated: F = numba.njit(nogil=True, inline="never", error_model="numpy")(function)
    return decorated


@intrinsic  # type: ignore[untyped-decorator]  # numba is untyped
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of array[index]; never faults, returns at once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte_pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        line = builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32]), "llvm.prefetch.p0")
        builder.call(function, [line, i32(0), i32(3), i32(1)])     # read, keep in all levels, data
        return context.get_dummy_value()

    return types.void(array, index), generate
