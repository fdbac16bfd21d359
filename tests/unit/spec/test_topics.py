"""What a job may not ask of topics."""

from typing import Any

import pytest

import recmesh
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import DatasetSpec
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


def wrong(**source: Any) -> list[tuple[str, str]]:
    try:
        DatasetSpec.parse({"streams": [{"sources": [source]}], "features": [{"name": "item"}]})
    except InvalidArgument as error:
        return [(item.path.removeprefix("streams.0.sources.0."), item.reason) for item in error.violations]
    return []


def test_one_wrong_field_of_a_topic_is_one_error() -> None:
    ((path, _),) = wrong(**TOPIC | {"start": "lastest"})
    assert path == "start"


def test_times_in_paths_and_servers_of_kafka_are_looked_at() -> None:
    files = {"files": ["/x/{YYYY}{MM}{DD}/{HH}/{QQ}"], "start": "2026-11-01", "format": "parquet"}
    assert wrong(**files) == [("files.0", "{QQ}: there are {YYYY}, {MM}, {DD}, {HH}, {mm}")]
    kafka = {"kafka": "clicks", "types": {"item": "int", "label": "int"}, "start": "earliest"}
    assert wrong(**kafka, servers="one:9092, nohost") == [("servers", "nohost is no host:port")]
    assert wrong(**kafka, servers="one:99999") == [("servers", "one:99999 is no host:port")]
    assert wrong(**kafka, servers="one:9092,${RECMESH_TOPICS_TWO}") == []
    table = files | {"files": ["/x"], "format": "delta", "partition": {"day": "{YYYY}-{MM}-{DD}{HH}{QQ}"}}
    assert wrong(**table) == [("partition.day", "{QQ}: there are {YYYY}, {MM}, {DD}, {HH}, {mm}")]


def test_sources_of_a_stream_have_weights_and_executors_a_mode() -> None:
    made = recmesh.Dataset(
        recmesh.DataStream(
            [
                recmesh.Source.files("/x/{YYYY}{MM}{DD}/{HH}/*", start="2026-11-01"),
                recmesh.Source.jetstream("clicks-*", types=TOPIC["types"]),
                recmesh.Source.kafka("clicks", servers="one:9092", types=TOPIC["types"]),
            ],
            window="1h", offsets=["1d", 0, 0], weights=[1, 2, 3], mode="forward",
        ),
        features=[{"name": "item"}],
    )
    assert [source.weight for source in made.spec.streams[0].sources] == [1.0, 2.0, 3.0]
    assert made.spec.mode == "forward" and recmesh.Dataset(made.spec.model_dump()).spec == made.spec
    with pytest.raises(InvalidArgument, match="different modes"):
        streams = [recmesh.DataStream([recmesh.Source.jetstream("a")], mode=mode) for mode in ("forward", "rebalance")]
        recmesh.Dataset(*streams, features=[{"name": "item"}])
