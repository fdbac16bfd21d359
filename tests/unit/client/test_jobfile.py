"""Job files: what is checked, and where relative paths lead."""

from pathlib import Path

import pytest
import yaml

from recmesh.client import load_job
from recmesh.client.jobfile import load_dataset
from recmesh.runtime.errors import InvalidArgument, NotFound

JOB = {
    "name": "flights",
    "model": {"zoo": "torch_dcn_v2"},
    "data": {"source": {"files": ["rows.parquet"]}, "features": [{"name": "origin"}]},
}


def write(path: Path, values: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))
    return path


def test_data_beside_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "jobs/job.yaml", JOB)
    (tmp_path / "jobs/rows.parquet").touch()
    assert load_job(file)["data"]["source"]["files"] == [str(tmp_path / "jobs/rows.parquet")]


def test_data_in_the_current_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "jobs/job.yaml", JOB)
    (tmp_path / "jobs/rows.parquet").touch()
    (tmp_path / "rows.parquet").touch()
    assert load_job("jobs/job.yaml")["data"]["source"]["files"] == [str(tmp_path / "rows.parquet")]
    assert load_job(file) == load_job("jobs/job.yaml")


def test_patterns_and_urls_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = {**JOB["data"], "source": {"files": ["day-*.parquet", "s3://bucket/x.parquet"]}}  # type: ignore[dict-item]  # a plain mapping
    file = write(tmp_path / "jobs/job.yaml", JOB | {"data": data})
    (tmp_path / "jobs/day-1.parquet").touch()
    found = load_job(file)["data"]["source"]["files"]
    assert found == [str(tmp_path / "jobs/day-*.parquet"), "s3://bucket/x.parquet"]


def test_the_code_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "jobs/job.yaml", JOB | {"model": {"entrypoint": "train:main", "code": "."}})
    assert load_job(file)["model"]["code"] == str(tmp_path)


def test_every_wrong_field_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "job.yaml", JOB | {"traning": {}, "training": {"epochs": 0}})
    with pytest.raises(InvalidArgument) as caught:
        load_job(file)
    assert {violation.path for violation in caught.value.violations} == {"traning", "training.epochs"}


def test_fields_may_be_set_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "job.yaml", JOB)
    job = load_job(file, overrides={"training.epochs": 3, "name": "other"})
    assert job["training"] == {"epochs": 3} and job["name"] == "other"
    with pytest.raises(InvalidArgument, match=r"name\.x cannot be set"):
        load_job(file, overrides={"name.x": 1})


def test_numbers_that_json_has_not_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(JOB) + "training: {optimizer: {lr: .inf}, clip_norm: 1e309}\n")
    with pytest.raises(InvalidArgument) as caught:
        load_job(file)
    assert {violation.path for violation in caught.value.violations} == {"training.optimizer.lr", "training.clip_norm"}
    file = write(file, JOB)
    with pytest.raises(InvalidArgument) as caught:
        load_job(file, overrides={"training.optimizer": {"lr": float("1e309")}})
    assert [violation.path for violation in caught.value.violations] == ["training.optimizer.lr"]


def test_broken_yaml_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: [1, 2\nmodel: {}")
    with pytest.raises(InvalidArgument) as caught:
        load_job(tmp_path / "job.yaml")
    assert caught.value.violations[0].path == "line 2, column 6"


def test_yaml_cannot_make_objects(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: !!python/object/apply:os.getcwd []")
    with pytest.raises(InvalidArgument, match="is not YAML"):
        load_job(tmp_path / "job.yaml")


@pytest.mark.parametrize("content", ["", "- a", "text"])
def test_a_file_without_fields_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "job.yaml").write_text(content)
    with pytest.raises(InvalidArgument, match="no mapping"):
        load_job(tmp_path / "job.yaml")


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no file"):
        load_job(tmp_path / "job.yaml")


def test_a_dataset_file_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_dataset(write(tmp_path / "data.yaml", {"source": {"files": []}, "features": []}))
    assert {violation.path for violation in caught.value.violations} == {"source.files", "features"}
