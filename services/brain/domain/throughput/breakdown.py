"""Every term from the part of a step that it is: what cannot be told apart in the total can be in its parts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recmesh.plugins.planning import Floats
from services.brain.domain.throughput.fit import rmsle_fit, unknown_directions
from services.brain.domain.throughput.forms import DLROVER, Rows
from services.brain.domain.throughput.observations import Observation

LEAST_AGREEMENT = 0.2
"""Parts whose sum is further from the measured step time than this share are not those of the step (they overlap, or
something else waits), and are not used."""

_PARTS = ("compute_s", "ps_busy_s", "wire_s", "data_s")


@dataclass(frozen=True, slots=True)
class Parts:
    """DLRover's form with coefficients that were fitted part by part."""

    coefficients: Floats
    """In the order of `DLROVER`."""
    disagreement: float
    """Median |ln| of Σ parts against the measured step time: the total is the check."""
    directions: Floats
    """Unknown directions of coefficients, (directions, 5): of each part by itself."""
    name: str = "dlrover, by parts of a step"
    terms: tuple[str, ...] = DLROVER.terms

    def columns(self, rows: Rows) -> Floats:
        """Those of `DLROVER`."""
        return DLROVER.columns(rows)


def from_breakdown(observations: Sequence[Observation], rows: Rows) -> Parts | str:
    """compute → gradient and β, time of the PS → update, pull and push → sync, lookup and β, data → β; or why not."""
    if any(each.breakdown is None for each in observations):
        return "the parts of a step were not measured"
    parts = [each.breakdown for each in observations if each.breakdown is not None]
    measured = {
        "compute_s": np.array([part.compute_s for part in parts]),
        "ps_busy_s": np.array([part.ps_busy_s for part in parts]),
        "wire_s": np.array([part.pull_s + part.push_s - part.ps_busy_s for part in parts]),
        "data_s": np.array([part.data_s for part in parts]),
    }
    step_s = np.array([each.step_s for each in observations])
    disagreement = float(np.median(np.abs(np.log(np.array([part.total_s for part in parts]) / step_s))))
    if disagreement > LEAST_AGREEMENT:
        return f"the parts of a step miss its whole by {np.expm1(disagreement):.0%}"
    explained_by = {
        "compute_s": ("gradient", "constant"),
        "ps_busy_s": ("update",),
        "wire_s": ("sync", "lookup", "constant") if measured["ps_busy_s"].any() else DLROVER.terms[1:],
        "data_s": ("constant",),
    }
    coefficients = np.zeros(len(DLROVER.terms))
    directions = [np.zeros((0, len(DLROVER.terms)))]
    for name in _PARTS:
        seen = measured[name] > 0
        if not seen.any():
            continue
        places = [DLROVER.terms.index(term) for term in explained_by[name]]
        columns = DLROVER.columns(rows)[seen][:, places]
        coefficients[places] += rmsle_fit(columns, measured[name][seen])
        unknown = unknown_directions(columns)
        directions.append(np.zeros((len(unknown), len(DLROVER.terms))))
        directions[-1][:, places] = unknown
    return Parts(coefficients, disagreement, np.concatenate(directions))
