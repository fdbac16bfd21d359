"""Logical parts that come in several messages: kept, within bounds, until they are whole."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from recmesh.runtime.errors import InvalidArgument, ResourceExhausted, Violation

T = TypeVar("T")
Key = tuple[object, ...]
PIECE_BYTES = 1024
"""Counted for each piece beside its size."""
MOST_PIECES = 4096
"""Of one part."""


@dataclass
class _Partial(Generic[T]):
    deadline: float
    size_bytes: int = 0
    pieces: dict[int, T] = field(default_factory=dict)


class Assembly(Generic[T]):
    """Pieces by the identity of their part. One whose pieces stop coming expires; the worker resends all."""

    def __init__(self, *, limit_bytes: int, expiry_s: float, monotonic: Callable[[], float]) -> None:
        self._limit_bytes, self._expiry_s, self._monotonic = limit_bytes, expiry_s, monotonic
        self._parts: dict[Key, _Partial[T]] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()

    def add(self, key: Key, piece: T, *, number: int, count: int, size_bytes: int) -> list[T] | None:
        """All pieces in order once the last has come, else None. A piece that comes twice counts once."""
        if not 0 <= number < count:
            raise InvalidArgument("a part's pieces are numbered from 0",
                                  violations=[Violation("chunk", f"{number} of {count}")])
        if count > MOST_PIECES:
            raise InvalidArgument("a part has too many pieces",
                                  violations=[Violation("chunks", f"{count}; at most {MOST_PIECES}")])
        size_bytes += PIECE_BYTES
        with self._lock:
            self._expire()
            part = self._parts.get(key)
            if part is None or number not in part.pieces:
                if self._size_bytes + size_bytes > self._limit_bytes:
                    raise ResourceExhausted("too many parts in pieces wait here", reason="PIECES_FULL")
                part = self._parts.setdefault(key, _Partial(0.0))
                part.pieces[number] = piece
                part.size_bytes += size_bytes
                self._size_bytes += size_bytes
            part.deadline = self._monotonic() + self._expiry_s
            if len(part.pieces) < count:
                return None
            self._drop(key)
            return [part.pieces[i] for i in range(count)]

    def clear(self) -> None:
        """Forget all: another generation begins."""
        with self._lock:
            self._parts.clear()
            self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Held now."""
        return self._size_bytes

    def _expire(self) -> None:
        now = self._monotonic()
        for key in [key for key, part in self._parts.items() if part.deadline < now]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self._size_bytes -= self._parts.pop(key).size_bytes
