"""Terms from the parts of a step."""

from dataclasses import replace

import pytest

from recmesh.plugins.planning import Allocation
from services.brain.domain.throughput.breakdown import Parts, from_breakdown
from services.brain.domain.throughput.forms import DLROVER, PUBLISHED
from services.brain.domain.throughput.learn import learn, rows_of
from services.brain.domain.throughput.learned import Learned
from services.brain.domain.throughput.observations import Breakdown, Observation
from tests.unit.brain.throughput.jobs import VARIED, observed, predicted, true_rate

ALWAYS = [(w, p, wc, 8.0) for w, p, wc, _ in VARIED[:6]]


def with_parts(observations: list[Observation], *, scale: float = 1.0) -> list[Observation]:
    """compute: the gradient; pull and push: the rest, of which the update is the PS's own; data: β."""
    terms = scale * DLROVER.columns(rows_of(observations)) * PUBLISHED
    gradient, update, sync, lookup, constant = terms.T
    return [
        replace(
            each,
            breakdown=Breakdown(
                data_s=constant[i],
                pull_s=lookup[i],
                compute_s=gradient[i],
                push_s=sync[i] + update[i],
                ps_busy_s=update[i],
            ),
        )
        for i, each in enumerate(observations)
    ]


def test_parts_identify_what_the_total_cannot() -> None:
    seen = with_parts(observed(ALWAYS))
    found = from_breakdown(seen, rows_of(seen))
    assert isinstance(found, Parts)
    assert found.coefficients == pytest.approx(PUBLISHED, rel=1e-4, abs=1e-6)
    assert found.disagreement == pytest.approx(0, abs=1e-9)


def test_without_the_time_of_the_ps_its_update_is_sought_in_pull_and_push() -> None:
    seen = with_parts(observed(VARIED))
    bare = [replace(each, breakdown=replace(each.breakdown, ps_busy_s=0.0)) for each in seen if each.breakdown]
    found = from_breakdown(bare, rows_of(bare))
    assert isinstance(found, Parts)
    assert found.coefficients == pytest.approx(PUBLISHED, rel=1e-3, abs=1e-3)


def test_parts_that_do_not_add_up_to_the_step_are_not_used() -> None:
    seen = with_parts(observed(ALWAYS), scale=0.5)
    assert from_breakdown(seen, rows_of(seen)) == "the parts of a step miss its whole by 100%"


def test_a_configuration_without_parts_leaves_the_total() -> None:
    seen = with_parts(observed(ALWAYS))
    bare = [*seen[:-1], replace(seen[-1], breakdown=None)]
    assert from_breakdown(bare, rows_of(bare)) == "the parts of a step were not measured"


def test_a_model_learned_from_parts_knows_cores_that_were_never_varied() -> None:
    model = learn(with_parts(observed(ALWAYS, noise=0.02)), now=0.0)
    blind = learn(observed(ALWAYS, noise=0.02), now=0.0)
    assert isinstance(model, Learned) and isinstance(blind, Learned)
    assert model.form == "dlrover, by parts of a step"
    small = Allocation(8, 2, 4.0, 2.0)
    truth = true_rate(small)
    assert predicted(model, small) == pytest.approx(truth, rel=0.1)
    assert abs(predicted(blind, small) / truth - 1) > 0.15
    assert model.unidentified == ()
    assert model.doubt(small) == "2 cores per PS: only 8 was measured"


def test_a_part_that_was_never_varied_is_unknown_in_itself() -> None:
    same = [(w, p, 8.0, 8.0) for w, p, _, _ in VARIED[:6]]
    seen = with_parts(observed(same))
    mixed = [
        replace(each, breakdown=replace(part, compute_s=part.compute_s + part.data_s, data_s=0.0))
        for each in seen
        if (part := each.breakdown)
    ]
    model = learn(mixed, now=0.0)
    assert isinstance(model, Learned)
    assert model.unidentified == ("'gradient' and 'constant' cannot be told apart",)
