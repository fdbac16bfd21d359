"""Messages between processes that are one version apart."""

from pathlib import Path

import pytest

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.runtime.contract import read
from recmesh.runtime.rpc import contract
from tests.support import next_version
from tests.support.overlays import ROOT

CONTRACT = ROOT / "docs" / "formats" / "wire.v1.txt"


def test_nothing_that_processes_of_this_version_rely_on_is_gone() -> None:
    written = read(CONTRACT)
    assert len(written) > 500, f"run: {contract.COMMAND}"
    assert contract.broken(written, contract.lines()) == []
    assert contract.lines() == written, f"run: {contract.COMMAND}"


def test_the_file_is_not_written_where_it_would_break(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wire.txt"
    assert contract.main(path) == 0 and path.read_text(encoding="utf-8") == CONTRACT.read_text(encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        file.write("recmesh.v1.Job 99 gone string\n")
    before = path.read_bytes()
    assert contract.main(path) == 1 and path.read_bytes() == before
    assert "is gone, or another: recmesh.v1.Job 99 gone string" in capsys.readouterr().err


@pytest.mark.parametrize("change", [
    ("SubmitRequest 1 ", "SubmitRequest 2 "), ("string", "bytes"), ("Submit ", "Send "),
])  # fmt: skip
def test_another_number_type_or_name_breaks_it(change: tuple[str, str]) -> None:
    written = contract.lines()
    at = next(n for n, line in enumerate(written) if change[0] in line)
    after = [*written[:at], written[at].replace(*change), *written[at + 1 :], "recmesh.v1.Job 99 new string"]
    assert contract.broken(written, after) == [f"is gone, or another: {written[at]}"]


def test_what_a_newer_sender_adds_to_a_message_is_left_unread() -> None:
    job = pb.Job(job_id="j", phase="Running")
    read = pb.Job.FromString(job.SerializeToString() + next_version.UNKNOWN)
    assert (read.job_id, read.phase) == ("j", "Running")
    assert read.SerializeToString() != job.SerializeToString(), "the field is unknown, and kept for who knows it"
