"""The user's code on its way into a role."""

import errno
import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from recmesh.runtime.errors import DataLoss, FailedPrecondition, InvalidArgument, Unavailable
from recmesh.spec.job import Model
from recmesh.trainer.exits import BUG, MISTAKE, UserMistake, exit_code_of
from recmesh.trainer.role import Identity
from recmesh.trainer.usercode import fetch, last_line, resolve

ENV = {"RECMESH_ROLE": "worker", "RECMESH_JOB_ID": "j", "RECMESH_JOBMASTER": "127.0.0.1:1"}


@pytest.fixture(autouse=True)
def own_path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def packed(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def stored(tmp_path: Path, archive: bytes) -> Model:
    digest = hashlib.sha256(archive).hexdigest()
    (tmp_path / "storage" / "code").mkdir(parents=True)
    (tmp_path / "storage" / "code" / f"{digest}.tar.gz").write_bytes(archive)
    return Model(entrypoint="my_model_a:main", code=f"sha256:{digest}")


def test_packed_code_is_fetched_and_its_main_found(tmp_path: Path) -> None:
    model = stored(tmp_path, packed({"my_model_a.py": "def main(job):\n    job.append(1)\n"}))
    fetch(model, storage_uri=str(tmp_path / "storage"), work_dir=tmp_path / "work")
    seen: list[int] = []
    resolve(model)(seen)
    assert seen == [1]
    fetch(model, storage_uri="nowhere", work_dir=tmp_path / "work")   # unpacked before: not fetched again


def test_packed_code_is_unpacked_by_a_python_without_filters_and_nothing_outside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    good = stored(tmp_path / "good", packed({"my_model_a.py": "def main(job): pass", "part/of_it.py": "x = 1"}))
    fetch(good, storage_uri=str(tmp_path / "good" / "storage"), work_dir=tmp_path / "work")
    assert [file.read_text() for file in (tmp_path / "work").rglob("of_it.py")] == ["x = 1"]
    bad = stored(tmp_path / "bad", packed({"../outside.py": "x = 1"}))
    with pytest.raises(UserMistake, match="outside"):
        fetch(bad, storage_uri=str(tmp_path / "bad" / "storage"), work_dir=tmp_path / "other")
    assert not list(tmp_path.rglob("outside.py"))


def test_code_that_another_process_unpacked_first_is_used_and_nothing_stays_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stored(tmp_path, packed({"paced.py": "def main(job): pass"}))

    def lose(scratch: Path, target: Path) -> None:
        target.mkdir()
        raise OSError("the folder is not empty")

    monkeypatch.setattr(Path, "rename", lose)
    fetch(model, storage_uri=f"file://{tmp_path}/storage", work_dir=tmp_path / "work")
    assert len(list((tmp_path / "work").iterdir())) == 1


def test_an_archive_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    model = stored(tmp_path, packed({"my_model_a.py": ""}))
    path = next((tmp_path / "storage" / "code").iterdir())
    path.write_bytes(packed({"my_model_a.py": "evil = True"}))
    with pytest.raises(DataLoss):
        fetch(model, storage_uri=str(tmp_path / "storage"), work_dir=tmp_path / "work")


def test_an_archive_does_not_write_outside_its_folder(tmp_path: Path) -> None:
    model = stored(tmp_path, packed({"../outside.py": ""}))
    with pytest.raises(tarfile.FilterError):
        fetch(model, storage_uri=str(tmp_path / "storage"), work_dir=tmp_path / "work")
    assert not (tmp_path / "outside.py").exists()


@pytest.mark.parametrize(("entry", "text", "reason"), [
    ("no_such_module_b:main", None, "there is no module no_such_module_b"),
    ("my_model_c:main", "import no_such_library_d", "imports no_such_library_d, which is not installed"),
    ("my_model_e:main", "x = 1", "my_model_e has no function main"),
    ("my_model_f:main", "1/0", "importing my_model_f failed: ZeroDivisionError"),
])
def test_what_is_wrong_with_the_entry_point_is_said(tmp_path: Path, entry: str, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / f"{entry.partition(':')[0]}.py").write_text(text)
    sys.path.insert(0, str(tmp_path))
    with pytest.raises(UserMistake) as caught:
        resolve(Model(entrypoint=entry))
    assert reason in str(caught.value)
    assert "model.entrypoint" in str(caught.value)


def test_exit_codes_tell_whose_fault_it_is() -> None:
    mistake, poison, outage = TypeError("no"), ValueError("row 7"), Unavailable("away")
    assert exit_code_of(OSError(errno.ENOSPC, "full"), in_user_code=True, stepped=False) == BUG
    assert exit_code_of(mistake, in_user_code=True, stepped=True) == MISTAKE
    assert exit_code_of(poison, in_user_code=True, stepped=False) == MISTAKE
    assert exit_code_of(poison, in_user_code=True, stepped=True) == BUG
    assert exit_code_of(poison, in_user_code=False, stepped=False) == BUG
    assert exit_code_of(InvalidArgument("no"), in_user_code=False, stepped=False) == MISTAKE
    assert exit_code_of(FailedPrecondition("no", reason="STALE_GEN"), in_user_code=False, stepped=True) == BUG
    gone = DataLoss("a.parquet is gone since it was indexed", reason="FILE_CHANGED")
    assert exit_code_of(gone, in_user_code=True, stepped=True) == MISTAKE
    assert exit_code_of(outage, in_user_code=False, stepped=True) == BUG
    assert exit_code_of(outage, in_user_code=True, stepped=False) == BUG


def test_an_error_fits_one_line_with_its_place() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        line = last_line(error)
    assert line.startswith("ValueError: a b (test_usercode.py:")


def test_each_variable_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        Identity.from_env({"RECMESH_ROLE": "boss"})
    text = str(caught.value)
    assert "RECMESH_JOB_ID" in text and "RECMESH_JOBMASTER" in text and "'boss' is none of" in text


def test_a_worker_is_named_by_index_and_incarnation() -> None:
    identity = Identity.from_env(ENV | {"RECMESH_ROLE_INDEX": "3"})
    assert identity.worker == f"3-{identity.incarnation[:8]}"
    assert Identity.from_env(ENV).incarnation != identity.incarnation


def test_a_role_without_its_environment_ends_with_one_clear_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recmesh.trainer"], env={"PATH": ""}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == MISTAKE
    assert "RECMESH_JOB_ID: is not set" in done.stderr.splitlines()[-1]


def test_a_parameter_server_that_reads_a_snapshot_imports_no_pandas() -> None:
    code = (
        f"from recmesh.trainer.ps.role import main; assert main({{}}) == {MISTAKE}\n"
        "import sys, pyarrow as pa\n"
        "assert len(pa.array([1.5]).to_numpy()) == 1\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_reading_data_imports_no_pandas() -> None:
    code = (
        "from recmesh.trainer.lean import keep_pandas_out; keep_pandas_out()\n"
        "import sys, pyarrow as pa, pyarrow.compute as pc\n"
        "pc.fill_null(pa.chunked_array([[1, None]]), 0)\n"
        "assert 'pandas' not in sys.modules\n"
        "assert len(pa.table({'a': [1]}).to_pandas()) == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
