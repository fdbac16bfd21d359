"""Files of windows: whole, numbered, and marked when nothing goes into them any more."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from recmesh.join.domain import Fate, Joined, Position, Sample
from recmesh.join.files import Files
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.spec.join import LabelJoin

HOUR = 3600.0


def spec(folder: Path, **files: Any) -> LabelJoin:
    return LabelJoin.parse({
        "name": "ads", "window": 60, "samples": {"topic": "s", "key": "id"}, "labels": {"topic": "l", "key": "id"},
        "files": {"folder": f"{folder}/{{YYYY}}{{MM}}{{DD}}/{{HH}}", "rows": 2, "format": "jsonl", **files},
    })


def joined(n: int, time: float, **row: Any) -> Joined:
    body = orjson.dumps({"id": n, **row})
    return Joined(Sample(Position("samples", 0, n), time, str(n), body), 1.0, Fate.LABELLED)


def there(folder: Path) -> dict[str, list[int]]:
    """Ids, by file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            lines = path.read_bytes().splitlines()
            found[str(path.relative_to(folder))] = [orjson.loads(line)["id"] for line in lines]
    return found


def run(files: Files, rows: list[Joined], frontier: float, *, finish: bool = True) -> list[int]:
    """Ids that are stored then."""

    async def work() -> list[int]:
        for row in rows:
            await files.join(row)
        await files.advance(frontier)
        stored = [each.sample.at.sequence for each in await files.flush()]
        if finish:
            await files.finish()
        return stored

    return asyncio.run(work())


def test_rows_are_stored_when_their_file_is_and_a_window_ends_with_its_marker(tmp_path: Path) -> None:
    files = Files(spec(tmp_path))
    assert run(files, [joined(1, 0.0), joined(2, 10.0), joined(3, 20.0), joined(4, HOUR)], 30.0) == [1, 2]
    assert there(tmp_path) == {"19700101/00/ads-00000.jsonl": [1, 2]}
    assert run(files, [], HOUR) == [3]
    assert there(tmp_path) == {
        "19700101/00/_SUCCESS": [], "19700101/00/ads-00000.jsonl": [1, 2], "19700101/00/ads-00001.jsonl": [3],
    }


def test_windows_without_samples_have_their_marker_too(tmp_path: Path) -> None:
    files = Files(spec(tmp_path))
    run(files, [joined(1, 0.0), joined(2, 2 * HOUR)], float("inf"))
    assert {path for path in there(tmp_path) if path.endswith("_SUCCESS")} == {
        f"19700101/0{hour}/_SUCCESS" for hour in range(3)
    }


def test_a_life_that_ended_before_its_note_leaves_nothing(tmp_path: Path) -> None:
    first = Files(spec(tmp_path))
    run(first, [joined(1, 0.0), joined(2, 1.0)], 2.0)
    noted = first.state()
    run(first, [joined(n, 2.0) for n in range(3, 8)], 3.0)     # two more files that nobody noted
    again = Files(spec(tmp_path))
    again.restore(orjson.loads(orjson.dumps(noted)))
    assert run(again, [joined(3, 2.0), joined(4, 2.0)], HOUR) == [3, 4]
    assert there(tmp_path) == {
        "19700101/00/_SUCCESS": [], "19700101/00/ads-00000.jsonl": [1, 2], "19700101/00/ads-00001.jsonl": [3, 4],
    }


def test_the_marker_comes_after_the_note_and_in_the_next_life_at_the_latest(tmp_path: Path) -> None:
    files = Files(spec(tmp_path))
    run(files, [joined(1, 0.0)], HOUR, finish=False)
    assert "19700101/00/_SUCCESS" not in there(tmp_path)
    again = Files(spec(tmp_path))
    again.restore(files.state())
    run(again, [], HOUR)
    assert "19700101/00/_SUCCESS" in there(tmp_path)


def test_a_sample_that_comes_after_its_window_is_in_the_next_one(tmp_path: Path) -> None:
    files = Files(spec(tmp_path))
    run(files, [joined(1, 0.0)], HOUR)
    run(files, [joined(2, 1.0)], 2 * HOUR)
    assert there(tmp_path)["19700101/01/ads-00000.jsonl"] == [2] and files.late_samples == 1


def test_parquet_has_declared_types(tmp_path: Path) -> None:
    files = Files(spec(tmp_path, format="parquet", types={"age": "int"}))
    run(files, [joined(1, 0.0, age=None), joined(2, 0.0, age=None)], 1.0)
    table = pq.read_table(tmp_path / "19700101/00/ads-00000.parquet")
    assert table.to_pylist() == [{"age": None, "id": n, "label": 1} for n in (1, 2)]
    assert str(table.schema.field("age").type) == "int64"
    with pytest.raises(InvalidArgument, match=r"files\.types"):
        run(files, [joined(3, 0.0, age="old"), joined(4, 0.0)], 1.0)


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "19700101").write_text("no folder")
    with pytest.raises(Unavailable, match="cannot be written"):
        run(Files(spec(tmp_path)), [joined(1, 0.0), joined(2, 0.0)], 1.0)


@pytest.mark.parametrize(("fields", "path"), [
    ({"window": 0}, "window"), ({"files": None}, "topic"), ({"topic": {"topic": "j"}}, "topic"),
    ({"files": {"folder": "/x/{YYYY}"}}, "files.folder"), ({"late_topic": "s"}, "labels.topic"),
    ({"labels": {"topic": "s", "key": "id"}}, "labels.topic"),
    ({"samples": {"topic": "a b", "key": "id"}}, "samples.topic"),
    ({"labels": {"topic": "l", "key": "id", "several": "sum"}}, "labels.several"), ({"windov": 1}, "windov"),
])
def test_a_wrong_join_names_its_fields(tmp_path: Path, fields: dict[str, Any], path: str) -> None:
    values = spec(tmp_path).model_dump(exclude_unset=True) | fields
    with pytest.raises(InvalidArgument) as refused:
        LabelJoin.parse(values)
    assert path in [violation.path for violation in refused.value.violations]
