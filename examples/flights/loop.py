"""The loop closed: a model is asked with raw columns, learns what became of its flights, and is trained on them.

    recmesh up
    recmesh submit examples/flights/job.yaml --wait        # a model to begin with
    python -m examples.flights.loop                        # asks it about flights that came after, and tells how late
    recmesh join examples/flights/join.yaml --to-end       # predictions and labels become samples
    recmesh submit examples/flights/loop_job.yaml          # trains on them, until
    recmesh stop late-flights-again --finish               # which exports the next version
"""

import argparse
import uuid
from pathlib import Path

import pyarrow.parquet as pq

from recmesh.client import Client

FLIGHTS = Path(__file__).with_name("flights.parquet")
COLUMNS = ["origin", "destination", "route", "hour", "weekday", "day", "distance"]
MODEL, SHOWN, LANDED = "late-flights", "flights-shown", "flights-landed"


def main() -> None:
    """Ask, then post the labels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--flights", type=int, default=20, help="in each request")
    given = parser.parse_args()
    count = given.requests * given.flights
    table = pq.read_table(FLIGHTS, columns=[*COLUMNS, "late"])
    table = table.slice(table.num_rows - count)
    rows, late = table.select(COLUMNS).to_pylist(), table["late"].to_pylist()
    run = uuid.uuid4().hex[:8]
    with Client.find() as mesh:
        newest = max(mesh.model(MODEL), key=lambda item: int(item.version))
        mesh.register_model({
            "name": MODEL, "uri": newest.uri, "framework": newest.framework, "job_id": newest.job_id,
            "snapshot": newest.snapshot, "serving": {"log": {"topic": SHOWN}},
        })
        mesh.load_model(MODEL)
        labels = []
        for number in range(given.requests):
            at = number * given.flights
            answer = mesh.predict(MODEL, rows[at : at + given.flights], request_id=f"{run}-{number}")
            labels += [
                {"id": f"{answer['id']}/{place}", "value": late[at + place]} for place in range(given.flights)
            ]
        for at in range(0, count, 5_000):
            mesh.post_labels(labels[at : at + 5_000], topic=LANDED)
    print(f"{count} flights were predicted and have landed: topics {SHOWN} and {LANDED}")


if __name__ == "__main__":
    main()
