"""Rules of the registry, of model cards and of requests."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from recmesh.serving.card import ModelCard
from services.gateway.domain import inference
from services.gateway.domain.inference import InferRequest, RequestedOutput
from services.gateway.domain.models import (
    TRANSITIONS,
    ModelVersion,
    Registration,
    State,
    moved,
    newest,
    register,
    to_load_at_start,
)
from services.gateway.domain.tensors import Tensor
from services.gateway.domain.traffic import Traffic
from tests.support.gateway import CARD

WANTED = Registration("tiny", "", "models/tiny/1", "torch")


def version(number: int, state: State = State.REGISTERED, name: str = "tiny") -> ModelVersion:
    return ModelVersion(name, str(number), f"models/{name}/{number}", "torch", state=state)


@given(
    st.lists(st.integers(1, 9), unique=True, max_size=5),
    st.lists(st.one_of(st.none(), st.integers(1, 12)), max_size=6),
)
def test_versions_only_grow(present: list[int], asked: list[int | None]) -> None:
    records = [version(number) for number in present]
    for number in asked:
        before = max((item.number for item in records), default=0)
        wanted = replace(WANTED, version="" if number is None else str(number), uri=f"new/{number}")
        try:
            made, is_new = register(records, wanted, now=1.0)
        except (AlreadyExists, FailedPrecondition):
            continue
        if is_new:
            assert made.number > before
            records.append(made)


def test_the_same_request_gets_the_same_version() -> None:
    first, _ = register([], replace(WANTED, request_id="r1"), now=1.0)
    again, is_new = register([first, version(2)], replace(WANTED, request_id="r1"), now=2.0)
    assert (again, is_new) == (first, False)


def test_an_equal_version_is_answered_and_another_content_refused() -> None:
    first, _ = register([], replace(WANTED, version="3"), now=1.0)
    assert register([first], replace(WANTED, version="3"), now=2.0) == (first, False)
    with pytest.raises(AlreadyExists, match="other content"):
        register([first], replace(WANTED, version="3", uri="elsewhere"), now=2.0)


def test_a_record_in_which_a_rollback_was_written_is_still_what_was_asked_for() -> None:
    wanted = replace(WANTED, version="3", serving={"max_batch_size": 8, "freshness": {"poll_s": 1}})
    first, _ = register([], wanted, now=1.0)
    written = {"follow": True, "poll_s": 1, "held": 41, "overlay_bytes": 1 << 26}
    old = replace(first, serving={"max_batch_size": 8, "freshness": written})
    for same in (wanted, replace(wanted, serving={"max_batch_size": 8})):
        assert register([old], same, now=2.0) == (old, False)
    for other in ({"freshness": {"poll_s": 1}}, {"max_batch_size": 8, "freshness": {"poll_s": 2}}):
        with pytest.raises(AlreadyExists, match="other content"):
            register([old], replace(wanted, serving=other), now=2.0)


def test_a_lower_version_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match="not above"):
        register([version(5)], replace(WANTED, version="4"), now=1.0)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": "Tiny"}, "name"), ({"name": "-a"}, "name"), ({"name": ""}, "name"), ({"name": "a" * 64},
        "name"),
        ({"name": "a.b"}, "name"), ({"version": "0"}, "version"), ({"version": "v1"}, "version"),
        ({"version": "01"}, "version"), ({"version": "-1"}, "version"), ({"uri": ""}, "uri"),
        ({"framework": "onnx"}, "framework"),
    ],
)  # fmt: skip
def test_a_wrong_registration_names_its_field(change: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        register([], replace(WANTED, **change), now=1.0)
    assert [item.path for item in caught.value.violations] == [path]


@given(st.sampled_from(State), st.sampled_from(State))
def test_only_the_table_s_transitions_are_made(before: State, after: State) -> None:
    record = version(1, before)
    if after in TRANSITIONS[before]:
        assert moved(record, after, reason="why").state is after
    else:
        with pytest.raises(FailedPrecondition):
            moved(record, after)


def test_what_served_is_loaded_before_what_was_on_its_way() -> None:
    records = [
        version(1, State.UNLOADED), version(2, State.READY), version(3, State.LOADING), version(4,
        State.FAILED),
        version(1, State.REGISTERED, "other"), version(7, State.LOADING, "third"),
    ]  # fmt: skip
    assert [item.key for item in to_load_at_start(records, lambda _name: Traffic())] == ["third/7", "tiny/2", "tiny/3"]


def test_the_newest_version_is_by_number_not_by_letters() -> None:
    found = newest([version(9), version(10)])
    assert found is not None and found.version == "10"


def test_a_card_gives_ragged_features_their_lengths() -> None:
    card = ModelCard.parse({**CARD, "inputs": [{"name": "tags", "kind": "bag", "dtype": "int64"}]})
    assert [(item.name, item.shape) for item in card.inputs] == [("tags", (-1, -1)), ("tags.lengths", (-1,))]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"framework": "onnx"}, "model.json.framework"),
        ({"inputs": []}, "model.json.inputs"),
        ({"outputs": None}, "model.json.outputs"),
        ({"inputs": [{"name": "x", "dtype": "complex64"}]}, "model.json.inputs[0].dtype"),
        ({"inputs": [{"dtype": "int64"}]}, "model.json.inputs[0]"),
        ({"inputs": [{"name": "x", "dtype": "int64", "shape": [-2]}]}, "model.json.inputs[0].shape"),
        ({"inputs": [{"name": "x", "dtype": "int64", "shape": "all"}]}, "model.json.inputs[0].shape"),
        ({"inputs": [{"name": "x", "dtype": "int64", "max_length": -1}]}, "model.json.inputs[0].max_length"),
        ({"inputs": [{"name": "x", "dtype": "int64"}] * 2}, "model.json.inputs"),
    ],
)
def test_a_wrong_card_names_its_entry(change: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ModelCard.parse({**CARD, **change})
    assert path in [item.path for item in caught.value.violations]


def tensor(name: str, values: Any, dtype: str) -> Tensor:
    return Tensor.of(name, np.array(values, dtype=dtype))


X, ID = tensor("x", [1.0, 2.0], "float32"), tensor("id", [1, 2], "int64")
CHECKED = ModelCard.parse(CARD)


def test_fitting_inputs_tell_the_batch_size() -> None:
    assert inference.check_inputs(CHECKED, [X, ID]) == 2


@pytest.mark.parametrize(
    ("inputs", "path", "why"),
    [
        ([X], "inputs.id", "missing"),
        ([X, ID, X], "inputs.x", "twice"),
        ([X, ID, tensor("y", [1], "int64")], "inputs.y", "no such input"),
        ([tensor("x", [1, 2], "int64"), ID], "inputs.x", "FP32"),
        ([tensor("x", [[1.0], [2.0]], "float32"), ID], "inputs.x", "shape"),
        ([tensor("x", [1.0], "float32"), ID], "inputs.id", "batch of 2"),
        ([tensor("x", [], "float32"), tensor("id", [], "int64")], "inputs.x", "empty batch"),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs: list[Tensor], path: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        inference.check_inputs(CHECKED, inputs)
    found = {item.path: item.reason for item in caught.value.violations}
    assert why in found[path]


def test_more_ids_than_the_model_s_longest_are_refused() -> None:
    card = ModelCard.parse(
        {**CARD, "inputs": [{"name": "tags", "kind": "sequence", "dtype": "int64", "max_length": 2}]}
    )
    lengths = tensor("tags.lengths", [3], "int64")
    with pytest.raises(InvalidArgument, match="at most 2"):
        inference.check_inputs(card, [tensor("tags", [[1, 2, 3]], "int64"), lengths])


def test_an_unknown_output_is_refused() -> None:
    request = InferRequest("tiny", "", (X, ID), (RequestedOutput("scores"),))
    with pytest.raises(InvalidArgument, match="unknown outputs") as caught:
        inference.chosen_outputs(CHECKED, request)
    assert caught.value.violations[0].path == "outputs.scores"


@pytest.mark.parametrize(
    ("parameters", "expected"), [({}, 30.0), ({"timeout": 5_000_000}, 5.0), ({"timeout": 10**12}, 60.0)]
)
def test_the_timeout_is_the_caller_s_within_the_limit(parameters: dict[str, Any], expected: float) -> None:
    assert inference.timeout_s(parameters, default_s=30.0, max_s=60.0) == expected


@pytest.mark.parametrize("value", [-1, 1.5, True, "5"])
def test_a_timeout_or_priority_that_is_no_count_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        inference.timeout_s({"timeout": value}, default_s=1.0, max_s=1.0)
    with pytest.raises(InvalidArgument, match="priority"):
        inference.priority({"priority": value})


def test_a_request_without_priority_comes_after_those_that_have_a_high_one() -> None:
    assert inference.priority({"priority": 1}) < inference.priority({})
