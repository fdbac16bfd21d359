"""What `python -m bench freshness` makes of its probes."""

import numpy as np

from bench.freshness import delays, percentile


def test_probes_that_were_never_seen_changed_are_in_the_percentiles() -> None:
    took = delays({number: float(number) for number in range(100)}, {number: number + 1.5 for number in range(98)})
    assert (percentile(took, 50), percentile(took, 97), percentile(took, 99)) == (1.5, 1.5, -1.0)
    assert np.isinf(took).sum() == 2
