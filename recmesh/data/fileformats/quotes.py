"""Line breaks of CSV with quoted fields; compiled, and so imported only when a file has quotes."""

import numba
import numpy as np
import numpy.typing as npt

from recmesh.data.fileformats.lines import FIELD_START, PLAIN, QUOTED

QUOTE_IN_QUOTED = 3


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator,unused-ignore]  # numba ships no types
def breaks_outside_quotes(
    data: npt.NDArray[np.uint8], delimiter: int, state: int
) -> tuple[npt.NDArray[np.int64], int]:
    """Indices of the line feeds that end records (RFC 4180), and the state after the last byte."""
    found = np.empty(len(data), np.int64)
    n = 0
    for i in range(len(data)):
        c = data[i]
        if state == QUOTED:
            if c == 34:
                state = QUOTE_IN_QUOTED
        elif c == 10:
            found[n] = i
            n += 1
            state = FIELD_START
        elif c == delimiter:
            state = FIELD_START
        elif c == 34 and (state == FIELD_START or state == QUOTE_IN_QUOTED):
            state = QUOTED
        else:
            state = PLAIN
    return found[:n].copy(), state
