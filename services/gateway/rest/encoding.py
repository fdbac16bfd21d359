"""Compressed bodies: gzip and deflate (which in HTTP is zlib's format), bounded when they are unpacked."""

import asyncio
import gzip
import zlib

from recmesh.runtime.errors import InvalidArgument, ResourceExhausted, Violation

LEVEL = 1
"""Tensors hardly shrink more at higher levels, and a request waits for it."""
MIN_BYTES = 1024
"""Smaller answers fit a packet as they are."""
IN_THREAD_BYTES = 64 << 10
"""Larger bodies are (un)packed beside the event loop, so that other requests go on."""

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_NAMES = {"x-gzip": "gzip"}


async def unpacked(body: bytes, encoding: str, *, limit: int) -> bytes:
    """The body as it was before it was compressed; ResourceExhausted beyond `limit` bytes."""
    name = _NAMES.get(encoding.strip().lower(), encoding.strip().lower())
    if name in ("", "identity"):
        return body
    if name not in _WINDOW:
        raise InvalidArgument(
            f"content encoding {encoding!r} is not read here; gzip and deflate are",
            reason="UNSUPPORTED_MEDIA_TYPE",
        )
    if len(body) > IN_THREAD_BYTES:
        return await asyncio.to_thread(_unpack, body, name, limit)
    return _unpack(body, name, limit)


def _unpack(body: bytes, name: str, limit: int) -> bytes:
    inflater = zlib.decompressobj(_WINDOW[name])
    try:
        result = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise _damaged(name, str(error)) from None
    if len(result) > limit:
        raise ResourceExhausted(f"the unpacked body has more than {limit} bytes", reason="TOO_LARGE")
    if not inflater.eof:
        raise _damaged(name, "it ends too early")
    if inflater.unused_data:
        raise _damaged(name, "something follows after its end")
    return result


def chosen(accept: str) -> str:
    """Of gzip and deflate the one that a client likes more; empty when it names neither."""
    likes: dict[str, float] = {}
    for item in accept.lower().split(","):
        name, _, rest = item.strip().partition(";")
        key, _, value = rest.strip().partition("=")
        try:
            weight = float(value) if key.strip() == "q" else 1.0
        except ValueError:
            weight = 0.0
        likes[_NAMES.get(name.strip(), name.strip())] = weight
    best = max(_WINDOW, key=lambda name: likes.get(name, 0.0))  # gzip where both are liked alike
    return best if likes.get(best, 0.0) > 0 else ""


async def packed(body: bytes, accept: str) -> tuple[bytes, dict[str, str]]:
    """The body as the client accepts it, with the headers that say so."""
    name = chosen(accept) if len(body) >= MIN_BYTES else ""
    if not name:
        return body, {}
    if len(body) > IN_THREAD_BYTES:
        result = await asyncio.to_thread(_pack, body, name)
    else:
        result = _pack(body, name)
    return result, {"Content-Encoding": name, "Vary": "Accept-Encoding"}


def _pack(body: bytes, name: str) -> bytes:
    return gzip.compress(body, LEVEL) if name == "gzip" else zlib.compress(body, LEVEL)


def _damaged(name: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"the body is not {name}: {why}", reason="BAD_BODY", violations=[Violation("body", why)]
    )
