"""Jobs of one model, taken together."""

from services.brain.domain.throughput.observations import Observation
from services.brain.domain.throughput.pool import pooled


def test_sizes_of_several_jobs_are_related_by_what_they_have_in_common() -> None:
    def seen(workers: int, rate: float, at: float) -> Observation:
        return Observation(workers, 1, rate, batch=512, at=at, windows=2)

    found = pooled([
        [seen(1, 100.0, 1.0), seen(2, 180.0, 4.0)],
        [seen(1, 300.0, 2.0), seen(4, 900.0, 3.0)],       # thrice as fast
        [seen(8, 50.0, 5.0)],                             # nothing in common
    ])
    assert [(each.workers, round(each.samples_per_s), each.windows) for each in found] == [
        (1, 100, 4), (4, 300, 2), (2, 180, 2), (8, 50, 2)
    ]
