"""CRC-32C (Castagnoli, RFC 3720) as framed snappy and TFRecord mask it; compiled, and so imported only for these."""

import numba
import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78                   # reflected
_MASK_DELTA = 0xA282EAD8
_SLICES = 8


def _tables() -> npt.NDArray[np.uint32]:
    """[8, 256]: table k advances a byte by k more bytes (slicing-by-8)."""
    tables = np.zeros((_SLICES, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, _SLICES):
        tables[k] = tables[k - 1] >> 8 ^ tables[0][tables[k - 1] & 0xFF]
    return tables


_TABLES = _tables()


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]  # numba ships no types
def _crc(data: npt.NDArray[np.uint8], tables: npt.NDArray[np.uint32]) -> np.uint32:
    crc = np.uint32(0xFFFFFFFF)
    at, n = 0, len(data)
    while n - at >= 8:
        low = crc ^ (
            np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
        )
        crc = (
            tables[7, low & 0xFF] ^ tables[6, low >> 8 & 0xFF] ^ tables[5, low >> 16 & 0xFF] ^ tables[4, low >> 24]
            ^ tables[3, data[at + 4]] ^ tables[2, data[at + 5]] ^ tables[1, data[at + 6]] ^ tables[0, data[at + 7]]
        )
        at += 8
    while at < n:
        crc = np.uint32(crc >> np.uint32(8)) ^ tables[0, (crc ^ np.uint32(data[at])) & 0xFF]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


def crc32c(data: npt.NDArray[np.uint8]) -> int:
    """Of all bytes."""
    return int(_crc(data, _TABLES))


def masked_crc32c(data: npt.NDArray[np.uint8]) -> int:
    """Rotated and shifted, so that the checksum of data that holds checksums is a good one."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
