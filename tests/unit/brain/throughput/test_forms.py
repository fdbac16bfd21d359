"""Golden numbers of the papers' forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.plugins.planning import Shapes
from services.brain.domain.throughput.forms import (
    BARRIER,
    DLROVER,
    KALE_ASYNC,
    KALE_SYNC,
    KALE_SYNC_RATIO,
    PUBLISHED,
    Form,
    Rows,
    at_fixed_ratio,
)
from tests.unit.brain.throughput.jobs import rows

M = 16384.0
A10 = np.array([0.00035, 2.5726, 0.9824, 0.02786])


def kale_at_fixed_ratio(workers: int) -> float:
    shape = Shapes(*(np.array([value]) for value in (float(workers), workers / 2, 1.0, 1.0)))
    return float(KALE_SYNC_RATIO.rate(Rows.of(shape, M / workers), A10)[0])


def test_the_published_coefficients_give_the_papers_step_time_and_speed() -> None:
    row = rows([(8, 4, 8, 8)])
    assert DLROVER.step_s(row, PUBLISHED)[0] == pytest.approx(5.4475, abs=1e-12)
    assert DLROVER.rate(row, PUBLISHED)[0] == pytest.approx(1.468564, abs=5e-7)


def test_a_dimension_of_four_makes_the_lookup_a_third_of_the_step() -> None:
    row = rows([(8, 4, 8, 8)], dim=4)
    total = DLROVER.step_s(row, PUBLISHED)[0]
    lookup = row.term("lookup")[0] * PUBLISHED[DLROVER.terms.index("lookup")]
    assert total == pytest.approx(7.285, abs=1e-12)
    assert DLROVER.rate(row, PUBLISHED)[0] == pytest.approx(1.098147, abs=5e-7)
    assert lookup / total == pytest.approx(0.336, abs=5e-4)


@pytest.mark.parametrize(("workers", "samples_per_s"), [(8, 29249.05), (9, 29839.94), (10, 30005.46), (11, 29854.13)])
def test_kales_example_at_a_fixed_ratio(workers: int, samples_per_s: float) -> None:
    assert kale_at_fixed_ratio(workers) == pytest.approx(samples_per_s, abs=0.01)


def test_kales_example_is_fastest_with_ten_workers() -> None:
    assert max(range(1, 41), key=kale_at_fixed_ratio) == 10


@given(
    st.lists(st.floats(0, 10), min_size=7, max_size=7).map(np.array),
    st.integers(1, 20),
    st.integers(1, 8),
)
def test_the_form_in_w_and_p_is_the_form_in_w_where_the_ratio_is_fixed(
    coefficients: np.ndarray, ps: int, ratio: int
) -> None:
    row = rows([(ratio * ps, ps, 1, 1)])
    narrow = KALE_SYNC_RATIO.step_s(row, at_fixed_ratio(coefficients, ratio))
    assert KALE_SYNC.step_s(row, coefficients) == pytest.approx(narrow, rel=1e-12)


def test_asynchronous_speed_counts_every_workers_batch() -> None:
    row = rows([(6, 2, 1, 1)], batch=100)
    assert KALE_ASYNC.rate(row, np.array([1.0, 2.0, 0.5, 0.25]))[0] == pytest.approx(6 * 100 / (1 + 1 + 1 + 1.5))


@pytest.mark.parametrize("form", [DLROVER, BARRIER, KALE_SYNC, KALE_ASYNC], ids=lambda form: form.name)
def test_no_term_is_negative(form: Form) -> None:
    assert (form.columns(rows([(1, 1, 0.5, 0.5), (40, 30, 16, 16)], batch=512)) >= 0).all()
