"""Coefficients from measurements, and which of them can be had at all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls

from services.brain.domain.throughput import fit
from services.brain.domain.throughput.fit import in_words, reaches, rmsle_fit, told_apart, unknown_directions
from services.brain.domain.throughput.forms import DLROVER, PUBLISHED
from tests.unit.brain.throughput.jobs import VARIED, Configuration, rows

COUNTS = [(w, p) for w in (2, 4, 6, 10, 16) for p in (1, 2, 4, 5)]
CORES = [(1, 2), (2, 8), (4, 1), (8, 4), (2, 2)]


def fitted(configurations: list[Configuration]) -> dict[str, float]:
    table = rows(configurations)
    found = rmsle_fit(DLROVER.columns(table), DLROVER.step_s(table, PUBLISHED))
    return dict(zip(DLROVER.terms, found.tolist(), strict=True))


def groups(configurations: list[Configuration]) -> set[frozenset[str]]:
    columns = DLROVER.columns(rows(configurations))
    return {frozenset(group) for group in told_apart(unknown_directions(columns), columns, DLROVER.terms)}


def test_varied_configurations_give_the_published_coefficients_back() -> None:
    assert list(fitted(list(VARIED)).values()) == pytest.approx(PUBLISHED.tolist(), rel=1e-6)
    assert groups(list(VARIED)) == set()


def test_ps_of_eight_cores_always_hide_the_update_in_the_sync() -> None:
    always = [(w, p, float(c), 8.0) for i, (w, p) in enumerate(COUNTS) for c in [CORES[i % 5][0]]]
    found = fitted(always)
    assert found["update"] == pytest.approx(0, abs=1e-9)
    assert found["sync"] == pytest.approx(0.975, abs=1e-6)
    assert groups(always) == {frozenset({"update", "sync"})}
    assert in_words([("update", "sync")]) == ("'update' and 'sync' cannot be told apart",)


def test_that_fit_is_right_at_eight_cores_and_wrong_at_two() -> None:
    always = [(w, p, float(CORES[i % 5][0]), 8.0) for i, (w, p) in enumerate(COUNTS)]
    found = np.array(list(fitted(always).values()))

    def error(ps_cpu: float) -> float:
        table = rows([(w, p, 8.0, ps_cpu) for w in range(1, 41) for p in range(1, 11)])
        return float(np.median(np.abs(DLROVER.rate(table, found) / DLROVER.rate(table, PUBLISHED) - 1)))

    assert error(8.0) < 1e-6
    assert error(2.0) > 0.15


def test_a_fixed_ratio_of_workers_to_ps_hides_the_constant_in_the_sync() -> None:
    always = [(2 * p, p, float(a), float(b)) for p in (1, 2, 3, 5, 8) for a, b in CORES]
    found = fitted(always)
    assert found["constant"] == pytest.approx(0, abs=1e-9)
    assert found["sync"] == pytest.approx(1.905, abs=1e-6)
    assert groups(always) == {frozenset({"sync", "constant"})}


def test_workers_of_eight_cores_always_hide_the_gradient_in_the_constant() -> None:
    always = [(w, p, 8.0, float(CORES[i % 5][1])) for i, (w, p) in enumerate(COUNTS)]
    found = fitted(always)
    assert found["gradient"] == pytest.approx(0, abs=1e-9)
    assert found["constant"] == pytest.approx(2.885, abs=1e-6)
    assert groups(always) == {frozenset({"gradient", "constant"})}


def test_identifiability_is_not_a_count_of_configurations() -> None:
    assert groups([(w, p, 8.0, 8.0) for w in range(1, 11) for p in range(1, 11)]) == {
        frozenset({"gradient", "constant"}),
        frozenset({"update", "sync"}),
    }


def test_an_unknown_direction_matters_only_where_it_leads() -> None:
    seen = [(w, p, float(CORES[i % 5][0]), 8.0) for i, (w, p) in enumerate(COUNTS)]
    directions = unknown_directions(DLROVER.columns(rows(seen)))
    assert reaches(DLROVER.columns(rows([(30, 3, 4, 8), (4, 2, 4, 2)])), directions).tolist() == [False, True]


@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.2, 0.4]))
@settings(max_examples=15, deadline=None)
def test_the_iteration_finds_the_direct_minimiser(seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    columns = DLROVER.columns(rows(VARIED))
    step_s = columns @ PUBLISHED * np.exp(noise * rng.standard_normal(len(columns)))

    def loss(theta: np.ndarray) -> float:
        return float(np.sum((np.log(np.maximum(columns @ theta, 1e-9)) - np.log(step_s)) ** 2))

    found = rmsle_fit(columns, step_s, rounds=60)
    direct = min(
        minimize(loss, start, bounds=[(0, None)] * 5, method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-10}).fun
        for start in (PUBLISHED, np.ones(5), found)
    )
    assert loss(found) == pytest.approx(direct, rel=1e-4)


def test_it_is_not_biased_as_weighted_least_squares_is() -> None:
    rng = np.random.default_rng(1)
    columns = np.ones((4000, 1))
    step_s = np.exp(0.3 * rng.standard_normal(4000))
    weighted, _ = nnls(columns / step_s[:, None], np.ones(4000))
    assert np.log(weighted[0]) == pytest.approx(-1.5 * 0.3**2, abs=0.02)
    assert np.log(rmsle_fit(columns, step_s)[0]) == pytest.approx(0, abs=0.02)


@given(st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_the_unit_of_time_does_not_matter(scale: float) -> None:
    columns = DLROVER.columns(rows(VARIED))
    step_s = columns @ PUBLISHED * np.exp(0.1 * np.sin(np.arange(len(columns))))
    assert rmsle_fit(columns, scale * step_s) / scale == pytest.approx(rmsle_fit(columns, step_s), rel=1e-3, abs=1e-6)


def test_a_heavier_row_pulls_the_fit_to_itself() -> None:
    columns, step_s = np.ones((2, 1)), np.array([1.0, 4.0])
    even = rmsle_fit(columns, step_s)[0]
    leaning = rmsle_fit(columns, step_s, weights=np.array([1.0, 3.0]))[0]
    assert even == pytest.approx(2.0, rel=1e-4)
    assert leaning == pytest.approx(np.exp(0.75 * np.log(4)), rel=1e-4)


def test_a_fit_goes_on_where_the_active_set_method_goes_in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    design = rng.uniform(0.1, 1.0, (30, 6)) * np.array([1e-4, 1.0, 1e3, 1.0, 1.0, 1.0])
    target = design @ np.array([1e3, 0.5, 0.0, 0.0, 2.0, 1.0]) + rng.normal(0.0, 0.01, 30)
    usual = fit.least_squares(design, target)

    def gives_up(*_: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(fit, "nnls", gives_up)
    found = fit.least_squares(design, target)
    assert (found >= 0.0).all()
    assert np.linalg.norm(design @ found - target) == pytest.approx(np.linalg.norm(design @ usual - target), rel=1e-5)
