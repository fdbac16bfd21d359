"""The example of mixed training, from the table that is shipped to batches."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml

from examples.flights.by_hour import HERE, write
from recmesh.data.loading import Loader
from recmesh.spec.dataset import DatasetSpec


def test_the_example_gives_the_stream_at_once_and_what_is_right_a_day_later(tmp_path: Path) -> None:
    table = pq.read_table(HERE / "flights.parquet").slice(0, 9000)
    assert write(table, tmp_path, days=2) == 96
    text = (HERE / "mixed.yaml").read_text().replace("examples/flights/by_hour", str(tmp_path))
    data = yaml.safe_load(text)["data"]
    for source, days in zip(data["streams"][0]["sources"], (2, 1), strict=True):
        source["end"] = f"2001-01-0{days + 1}"
    late: dict[str, list[float]] = {"stream": [], "batch": []}
    for batch in Loader(DatasetSpec.parse(data), batch_size=512):
        assert batch.kind == "stream" or late["stream"], "batches come after the stream of a day before"
        late[batch.kind] += batch.labels[:, 0].tolist()
    days = (table["date"].to_numpy() - np.datetime64("2001-01-01T00")) // np.timedelta64(1, "D")
    true = table["late"].to_numpy()
    assert len(late["stream"]) == (days < 2).sum() and sum(late["batch"]) == true[days < 1].sum()
    assert 0.6 < sum(late["stream"]) / true[days < 2].sum() < 0.8
