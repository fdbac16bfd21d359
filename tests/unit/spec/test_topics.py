"""What a job may not ask of topics."""

from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import TrainingJob

TOPIC = {"jetstream": "clicks-*", "start": "earliest", "end": "2026-11-22", "types": {"item": "int", "label": "int"}}
DATA = {"streams": [{"sources": [TOPIC]}], "features": [{"name": "item"}]}


@pytest.mark.parametrize(
    ("changes", "path"),
    [({"evaluation": {"data": DATA}}, "evaluation.data.streams"), ({"training": {"epochs": 2}}, "training.epochs")],
)
def test_topics_are_not_evaluated_on_nor_trained_twice(changes: dict[str, Any], path: str) -> None:
    job = {"name": "ads", "model": {"zoo": "torch_dcn_v2"}, "data": DATA}
    assert TrainingJob.parse(job)
    with pytest.raises(InvalidArgument) as caught:
        TrainingJob.parse(job | changes)
    assert [item.path for item in caught.value.violations] == [path]
