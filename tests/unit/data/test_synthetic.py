"""Generated data: any part by itself, a truth that can be learned, drift and churn as asked for."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import recmesh
from recmesh.data.generating import Target, write
from recmesh.data.synthetic import DAY_S, TABLES, BestAuc, Synthetic
from recmesh.runtime.errors import InvalidArgument

BLOCK = 1 << 16


@cache
def whole() -> Any:
    return Synthetic(seed=3, ids=1000, churn=0.5, drift=0.1, rows_per_day=100_000).table(0, 4 * BLOCK)


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(lo=st.integers(0, 2 * BLOCK), count=st.integers(0, BLOCK + 10))
def test_any_part_is_what_the_whole_has_there(lo: int, count: int) -> None:
    data = Synthetic(seed=3, ids=1000, churn=0.5, drift=0.1, rows_per_day=100_000)
    assert data.table(lo, lo + count).equals(whole().slice(lo, count).combine_chunks())


def test_ids_follow_their_law_and_times_ascend() -> None:
    table = Synthetic(ids=50, rows_per_day=BLOCK, start=1000.0).table(0, BLOCK)
    counts = np.unique(table["C1"].to_numpy(), return_counts=True)[1]
    shares = np.sort(counts)[::-1] / BLOCK
    assert len(counts) == 50 and 0.1 < shares[0] < 0.3 and shares[0] > 1.6 * shares[1]
    times = table["time"].to_numpy()
    assert times[0] == 1000.0 and (np.diff(times) > 0).all() and times[-1] < 1000.0 + DAY_S
    assert len({*table["C1"].unique().to_pylist()} & {*table["C2"].unique().to_pylist()}) == 0


def correlation(data: Synthetic, days: float) -> float:
    """Of the truth at the beginning and after so many days, over the same ids."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 1 << 60, (20_000, TABLES)).astype(np.uint64)
    none = np.zeros((20_000, 13))
    now, then = (data._logit(ids, none, np.full(20_000, day)) for day in (0.0, days))
    return float(np.corrcoef(now, then)[0, 1])


def test_the_truth_turns_by_the_angle() -> None:
    data = Synthetic(drift=0.5)
    for days in (0.0, 1.0, 3.0):
        assert correlation(data, days) == pytest.approx(np.cos(0.5 * days), abs=0.02)
    assert correlation(Synthetic(), 100.0) == pytest.approx(1.0)


def test_ids_are_replaced_at_the_rate() -> None:
    data = Synthetic(ids=2000, zipf=0.0, churn=0.1, rows_per_day=4 * BLOCK)
    first, day_later = (set(data.table(lo, lo + BLOCK)["C1"].to_pylist()) for lo in (0, 4 * BLOCK))
    kept = len(first & day_later) / 2000
    assert kept == pytest.approx(0.9, abs=0.04)
    assert len(first - day_later) == pytest.approx(200, abs=80)


def test_there_is_something_to_learn() -> None:
    """A table of mean labels by the ids of one column, of the first half, ranks the second half better than chance."""
    data = Synthetic(ids=20, zipf=0.0)
    table = data.table(0, 3 * BLOCK)
    half = table.num_rows // 2
    score = np.zeros(table.num_rows - half)
    label = table["label"].to_numpy()
    for column in (f"C{k + 1}" for k in range(TABLES)):
        codes = np.unique(table[column].to_numpy(), return_inverse=True)[1]
        means = np.bincount(codes[:half], label[:half]) / np.bincount(codes[:half])
        score += means[codes[half:]]
    order = np.argsort(score)
    quarter = len(order) // 4
    assert label[half:][order[-quarter:]].mean() > 1.8 * label[half:][order[:quarter]].mean()


def test_files_are_a_dataset_that_can_be_read(tmp_path: Path) -> None:
    data = Synthetic(ids=100, rows_per_day=1000)
    done = [(made.file.name, made.rows) for made in write(data, Target(tmp_path, file_rows=1000), rows=2500)]
    assert done == [
        ("part-00000.parquet", 1000), ("part-00001.parquet", 2000), ("part-00002.parquet", 2500),
    ]
    assert pq.read_table(tmp_path / "part-00001.parquet").equals(data.table(1000, 2000))
    assert len(yaml.safe_load((tmp_path / "dataset.yaml").read_text())["features"]) == 39
    assert sum(batch.size for batch in recmesh.Dataset(tmp_path / "dataset.yaml").batches(512)) == 2500


def test_windows_hold_the_rows_of_their_time_and_are_a_stream(tmp_path: Path) -> None:
    data = Synthetic(ids=100, rows_per_day=24_000, start=1800.0 + 365 * DAY_S)
    target = Target(tmp_path / "{YYYY}{MM}{DD}/{HH}", file_rows=700, done=True)
    made = list(write(data, target, rows=2500))
    assert made[-1].rows == 2500
    folders = sorted(path.parent for path in tmp_path.rglob("_SUCCESS"))
    assert [str(path.relative_to(tmp_path)) for path in folders] == ["19710101/00", "19710101/01", "19710101/02"]
    for hour, folder in enumerate(folders):
        times = pq.read_table(folder)["time"].to_numpy()
        assert ((times - 365 * DAY_S) // 3600 == hour).all() and len(times) == (500, 1000, 1000)[hour]
    spec = yaml.safe_load((tmp_path / "dataset.yaml").read_text())
    assert spec["streams"][0]["sources"][0]["done"].endswith("{YYYY}{MM}{DD}/{HH}/_SUCCESS")
    assert sum(batch.size for batch in recmesh.Dataset(tmp_path / "dataset.yaml").batches(512)) == 2500


def test_labels_come_apart_later_and_in_order(tmp_path: Path) -> None:
    data, delay_s = Synthetic(ids=100, rows_per_day=100_000), 600.0
    target = Target(tmp_path / "shown.parquet", labels=tmp_path / "clicks.csv", delay_s=delay_s)
    made = list(write(data, target, rows=3000))
    shown, clicks = pq.read_table(tmp_path / "shown.parquet"), pv.read_csv(tmp_path / "clicks.csv")
    assert "label" not in shown.column_names and shown["id"].to_pylist() == list(range(3000))
    whole = data.table(0, 3000)
    assert sorted(clicks["id"].to_pylist()) == np.flatnonzero(whole["label"].to_numpy()).tolist()
    assert clicks.num_rows == made[-1].labels
    times = clicks["time"].to_numpy()
    delays = times - whole["time"].to_numpy()[clicks["id"].to_numpy()]
    assert (np.diff(times) >= 0).all() and (delays > 0).all() and delays.mean() == pytest.approx(delay_s, rel=0.1)


@pytest.mark.parametrize("separation", [0.0, 1.0, 3.0])
def test_the_best_auc_is_that_of_the_chances_themselves(separation: float) -> None:
    logit = np.random.default_rng(0).normal(-1.0, separation, 2000)
    chance = 1 / (1 + np.exp(-logit))
    wins = (logit[:, None] > logit) + 0.5 * (logit[:, None] == logit)
    pairs = chance[:, None] * (1 - chance)
    best = BestAuc()
    for part in np.array_split(logit, 3):
        best.add(part, part)
    assert best.value == pytest.approx(float((wins * pairs).sum() / pairs.sum()), abs=2e-3)


def test_under_drift_the_truth_of_the_beginning_gets_worse() -> None:
    data = Synthetic(ids=100, drift=1.0, rows_per_day=BLOCK)
    drawn = data.drawn(BLOCK, 2 * BLOCK)
    now, frozen = BestAuc(), BestAuc()
    now.add(drawn.logit, drawn.logit)
    frozen.add(drawn.first, drawn.logit)
    assert now.value > frozen.value + 0.03
    still = Synthetic(ids=100, rows_per_day=BLOCK).drawn(0, 10)
    assert (still.first == still.logit).all()


@pytest.mark.parametrize(("target", "field"), [
    ({"out": "a.json"}, "out"), ({"out": "x/{YYYY}"}, "out"), ({"out": "a", "file_rows": 0}, "file_rows"),
    ({"out": "a", "labels": "b"}, "labels"), ({"out": "a", "window_s": 61.0}, "window"),
])
def test_wrong_targets_are_named(target: dict[str, Any], field: str) -> None:
    paths: dict[str, Any] = {name: Path(v) if name in ("out", "labels") else v for name, v in target.items()}
    with pytest.raises(InvalidArgument) as refused:
        Target(**paths)
    assert refused.value.violations[0].path == field


@pytest.mark.parametrize("wrong", [{"ids": 0}, {"rows_per_day": 0}, {"drift": -1.0}, {"zipf": float("nan")}])
def test_wrong_numbers_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Synthetic(**wrong)  # type: ignore[arg-type]  # the numbers are what is wrong
    assert refused.value.violations[0].path in wrong
