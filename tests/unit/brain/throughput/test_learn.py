"""What brain learns of a job, and when it says that it does not know."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.plugins.planning import Allocation, Shapes
from services.brain.domain.throughput.forms import DLROVER, KALE_ASYNC_RATIO, KALE_SYNC, PUBLISHED
from services.brain.domain.throughput.learn import learn, learn_kinds
from services.brain.domain.throughput.learned import Learned, Unknown
from services.brain.domain.throughput.observations import Mode, Observation
from tests.unit.brain.throughput.jobs import VARIED, observed, predicted, true_rate

INSIDE = Allocation(9, 3, 4.0, 4.0)


def known(observations: list[Observation], **context: object) -> Learned:
    model = learn(observations, **{"now": 1e4, **context})  # type: ignore[arg-type]  # keywords of learn
    assert isinstance(model, Learned), model
    return model


def miss(model: Learned, allocation: Allocation, *, slower: float = 1.0) -> float:
    return abs(float(np.log(predicted(model, allocation) / true_rate(allocation, slower=slower))))


def test_a_job_without_noise_is_learned_exactly() -> None:
    model = known(observed(VARIED))
    assert miss(model, INSIDE) < 0.01
    assert miss(model, Allocation(24, 12, 8.0, 8.0)) < 0.05
    assert model.error < 0.03


def test_noise_is_told_in_the_standard_deviation() -> None:
    misses = []
    for seed in range(12):
        model = known(observed(VARIED, noise=0.06, seed=seed))
        told = model.predict(Shapes.of([INSIDE, Allocation(14, 4, 4.0, 4.0), Allocation(5, 2, 2.0, 2.0)]))
        for i, each in enumerate((INSIDE, Allocation(14, 4, 4.0, 4.0), Allocation(5, 2, 2.0, 2.0))):
            misses.append(abs(np.log(told.rate[i] / true_rate(each))) / told.log_sd[i])
    assert np.mean(np.array(misses) <= 2) > 0.85


def test_uncertainty_grows_away_from_what_was_measured() -> None:
    told = known(observed(VARIED, noise=0.05)).predict(Shapes.of([INSIDE, Allocation(60, 1, 0.5, 0.5)]))
    assert told.log_sd[1] > 1.5 * told.log_sd[0]


def test_nothing_measured_is_unknown() -> None:
    assert learn([], now=0.0) == Unknown("nothing was measured")


def test_two_configurations_are_too_few_and_it_says_so() -> None:
    found = learn(observed(VARIED[:2]), now=0.0)
    assert found == Unknown("2 configurations were measured; 3 are needed to tell how speed changes")


def test_the_same_configuration_ten_times_is_one() -> None:
    assert isinstance(learn(observed([VARIED[0]] * 10), now=0.0), Unknown)


def test_kinds_of_hardware_are_not_mixed() -> None:
    both = observed(VARIED) + observed(VARIED, hardware="A10")
    with pytest.raises(ValueError, match="2 kinds"):
        learn(both, now=0.0)


def test_a_form_that_is_right_is_chosen_over_one_that_is_not() -> None:
    theta = np.array([0.2, 3.0, 0.0, 0.1, 0.0, 0.4, 0.0])
    grid = [(w, p, 1.0, 1.0) for w in (1, 2, 4, 8, 12) for p in (1, 3, 6, 12)]
    model = known(observed(grid, form=KALE_SYNC, coefficients=theta, mode=Mode.SYNC), shared_batch=False)
    assert model.errors["kale sync"] < 0.5 * model.errors["dlrover"]
    assert model.form == "kale sync"


def test_at_a_fixed_ratio_kales_narrow_form_is_tried_too() -> None:
    line = [(2 * p, p, 1.0, 1.0) for p in (1, 2, 3, 5, 8)]
    model = known(observed(line, form=KALE_ASYNC_RATIO, coefficients=np.array([1.0, 4.0, 0.05])))
    assert KALE_ASYNC_RATIO.name in model.errors
    assert KALE_ASYNC_RATIO.name not in known(observed(VARIED)).errors


def test_many_allocations_are_doubted_as_each_is_alone() -> None:
    model = known(observed(VARIED[:6]))
    asked = [
        Allocation(w, p, c, 8.0, gpu_kind=kind)
        for w in (3, 8, 40)
        for p in (1, 4)
        for c in (4, 8)
        for kind in ("", "t4")
    ]
    assert model.doubt_each(asked) == [model.doubt(each) for each in asked]
    assert len(set(model.doubt_each(asked))) > 3


def test_within_what_was_measured_there_is_no_doubt() -> None:
    assert known(observed(VARIED)).doubt(INSIDE) == ""


@pytest.mark.parametrize(
    ("allocation", "words"),
    [
        (Allocation(40, 3, 4.0, 4.0), "40 workers: 2 to 16 were measured"),
        (Allocation(9, 9, 4.0, 4.0), "9 PS: 1 to 8 were measured"),
        (Allocation(9, 3, 12.5, 4.0), "12.5 cores per worker: 2 to 8 were measured"),
        (Allocation(2, 8, 2.0, 2.0), "not their combination"),
        (Allocation(9, 3, 4.0, 4.0, gpu_kind="A10"), "A10 was not measured, only CPU"),
    ],
)
def test_what_lies_outside_is_named(allocation: Allocation, words: str) -> None:
    varied = [each for each in VARIED if each[2] > 1]
    assert words in known(observed(varied)).doubt(allocation)


def test_what_cannot_be_told_apart_is_named_where_it_matters() -> None:
    always = [(w, p, wc, 8.0) for w, p, wc, _ in VARIED]
    model = known(observed(always))
    assert any("'update'" in each and "'sync'" in each for each in model.unidentified)
    assert "cannot be told apart" not in model.doubt(Allocation(9, 3, 4.0, 8.0))
    doubt = model.doubt(Allocation(9, 3, 4.0, 2.0))
    assert "2 cores per PS: only 8 was measured" in doubt
    assert "cannot be told apart, and this needs them apart" in doubt


def test_a_cluster_that_gets_twice_as_slow_is_noticed_and_the_old_speed_forgotten() -> None:
    before = observed(VARIED[:8], noise=0.02)
    after = observed(VARIED[4:8], slower=2.0, noise=0.02, start=5000.0, seed=1)
    model = known(before + after)
    assert model.forgotten == 8
    assert "8 older measurements" in model.notes[0]
    assert miss(model, INSIDE, slower=2.0) < 0.15
    assert miss(model, INSIDE) > 0.5


@pytest.mark.parametrize("many", [2, 12])
def test_the_shape_of_the_old_regime_serves_until_the_new_one_is_known(many: int) -> None:
    before = observed(VARIED)
    after = observed(VARIED[:1] * many, slower=2.0, start=5000.0)
    model = known(before + after)
    assert model.forgotten == len(VARIED)
    assert miss(model, INSIDE, slower=2.0) < 0.1


def test_one_odd_measurement_is_not_a_new_regime() -> None:
    assert known(observed(VARIED, noise=0.02) + observed(VARIED[:1], slower=2.0, start=5000.0)).forgotten == 0


@pytest.mark.parametrize("seed", range(6))
def test_noise_alone_is_not_a_new_regime(seed: int) -> None:
    assert known(observed(VARIED, noise=0.12, seed=seed)).forgotten == 0


def test_the_other_kinds_speed_is_the_prior_of_a_kind_with_few_measurements() -> None:
    few = observed(VARIED[2:4], slower=0.2, hardware="A10", start=100.0)
    kinds = learn_kinds(observed(VARIED) + few, now=2000.0)
    assert isinstance(learn(few, now=2000.0), Unknown)
    model = kinds["A10"]
    assert isinstance(model, Learned)
    assert miss(model, INSIDE, slower=0.2) < 0.1
    assert model.form == "like something similar, times a factor"
    assert "times a factor" in model.notes[0]


def test_a_kind_with_measurements_enough_outgrows_its_prior() -> None:
    gpu = PUBLISHED * np.array([0.05, 1, 1, 1, 1])
    many = observed(VARIED, hardware="A10", coefficients=gpu)
    model = learn_kinds(observed([*VARIED, (7, 2, 4, 4)]) + many, now=2000.0)["A10"]
    assert isinstance(model, Learned)
    assert model.form != "like something similar, times a factor"


def test_old_measurements_weigh_less() -> None:
    week = 7 * 86400.0
    old = observed(VARIED[:6], slower=1.1)
    new = observed(VARIED[:6], start=3 * week)
    model = known(old + new, now=3 * week)
    assert miss(model, Allocation(*VARIED[3])) < miss(model, Allocation(*VARIED[3]), slower=1.1)


@given(st.integers(0, 1000), st.integers(3, 12))
@settings(max_examples=15, deadline=None)
def test_predictions_are_finite_and_above_0_wherever_they_are_asked_for(seed: int, many: int) -> None:
    model = learn(observed(VARIED[:many], noise=0.4, seed=seed), now=0.0)
    assert isinstance(model, Learned)
    w, p = (axis.ravel() for axis in np.meshgrid([1.0, 7, 300], [1.0, 5, 100]))
    told = model.predict(Shapes(w, p, np.full(9, 0.1), np.full(9, 64.0)))
    assert (np.isfinite(told.rate) & (told.rate > 0) & np.isfinite(told.log_sd) & (told.log_sd > 0)).all()


def test_the_order_of_the_observations_does_not_matter() -> None:
    seen = observed(VARIED, noise=0.05)
    assert predicted(known(seen), INSIDE) == predicted(known(seen[::-1]), INSIDE)


def test_a_shared_batch_is_divided_among_the_workers() -> None:
    seen = [
        Observation(w, p, 100.0 * w**0.5, batch=256 / w, at=float(w), mode=Mode.SYNC)
        for w, p in ((1, 1), (2, 1), (4, 2), (8, 3), (8, 1))
    ]
    model = known(seen, shared_batch=True)
    assert model.batching.per_worker(np.array([1.0, 4.0])) == pytest.approx([256, 64])
    assert predicted(model, Allocation(4, 2, 1.0, 1.0)) == pytest.approx(200, rel=0.1)


def test_the_published_form_is_among_those_that_are_tried() -> None:
    assert DLROVER.name in known(observed(VARIED)).errors
