"""A stream planner for recmesh: the fewest workers that meet the largest demand of the next hour."""

import math

import numpy as np

from recmesh.plugins.streams import Schedule, StreamView


class HourPeak:
    """Looks ahead, and never changes within the hour: the shape of a stream planner, in twenty lines."""

    name = "hour-peak"

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        """One count per hour."""
        counts = np.arange(stream.least, stream.most + 1)
        rates = stream.rates(counts.astype(np.float64))
        hour = max(1, round(3600.0 / stream.step_s))
        workers: list[int] = []
        for begin in range(0, len(stream.demand), hour):
            peak = float(stream.demand[begin : begin + hour].max())
            enough = np.flatnonzero(rates >= peak)
            best = int(counts[enough[0]] if len(enough) else counts[int(rates.argmax())])
            workers += [best] * len(stream.demand[begin : begin + hour])
        ratio = stream.workers_per_ps
        return Schedule(
            workers=tuple(workers),
            reasons=tuple(f"{count} workers meet the peak of their hour, if any number does" for count in workers),
            unmet=tuple(bool(demand > rates.max()) for demand in stream.demand),
            ps=tuple(math.ceil(count / ratio) for count in workers) if ratio > 0 else (),
        )
