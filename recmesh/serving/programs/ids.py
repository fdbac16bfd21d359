"""Ids that a table of a model does not have: whoever asks is at fault, and no other failure of a program is meant."""

import re

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.programs import Arrays

_SAID = (
    re.compile(r"indices\[[\d,\s]*\] = (?P<id>-?\d+) is not in \[0, \d+\)"),                     # TensorFlow: gathers
    re.compile(r"index (?P<id>-?\d+) is out of bounds for dimension \d+ with size \d+"),         # torch: a table
    re.compile(r"of input takes value (?P<id>-?\d+) which is not in the valid range \[0, \d+\)"),  # torch: a bag
    re.compile(r"index out of range in self"),                                                   # torch: an embedding
)


def refused(said: str, inputs: Arrays) -> InvalidArgument | None:
    """What to answer where a framework says this of an id that is out of range; None of any other failure.

    It names the input where only one can be meant: one that holds the id that is told, or is the only one of integers.
    """
    for pattern in _SAID:
        found = pattern.search(said)
        if found is None:
            continue
        names = [name for name, array in inputs.items() if array.dtype.kind in "iu"]
        if "id" in pattern.groupindex:
            told = int(found["id"])
            names = [name for name in names if (inputs[name] == told).any()] or names
        wrong = [Violation(f"inputs.{names[0]}", found[0])] if len(names) == 1 else []
        return InvalidArgument(
            f"an id is out of its table's range: {found[0]}", reason="ID_OUT_OF_RANGE", violations=wrong
        )
    return None
