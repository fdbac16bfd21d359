"""Logs of roles on one machine stay bounded, and are removed some time after their job."""

import os
from pathlib import Path

from services.jobmaster.cluster.logs import remove_old, shorten, tail


def log(root: Path, job: str, text: str, *, at: float | None = None) -> Path:
    path = root / job / "worker-0.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if at is not None:
        os.utime(path, (at, at))
    return path


def test_a_log_beyond_its_limit_is_cut_and_its_last_part_is_kept(tmp_path: Path) -> None:
    long, short = log(tmp_path, "a", "x" * 99 + "\n"), log(tmp_path, "b", "y\n")
    with long.open("a") as writer:          # as a process has it
        assert shorten(tmp_path, max_bytes=64) == 1
        writer.write("and on\n")
    assert long.read_text() == "and on\n" and long.with_name("worker-0.log.1").read_text() == "x" * 99 + "\n"
    assert short.read_text() == "y\n"
    assert shorten(tmp_path, max_bytes=64) == 0


def test_the_last_lines_may_be_in_the_older_part(tmp_path: Path) -> None:
    path = log(tmp_path, "a", "1\n2\n3\n")
    shorten(tmp_path, max_bytes=1)
    path.write_text("4\n5\n")
    assert tail(path, 3, most_bytes=1000) == ["3", "4", "5"]
    assert tail(path, 1, most_bytes=1000) == ["5"]
    assert tail(path, 9, most_bytes=1000) == ["1", "2", "3", "4", "5"]
    assert tail(tmp_path / "none.log", 3, most_bytes=1000) == []


def test_old_logs_go_with_their_job_but_not_those_of_one_that_lives(tmp_path: Path) -> None:
    for job, at in (("ended", 100.0), ("silent", 100.0), ("new", 900.0)):
        log(tmp_path, job, "x\n", at=at)
    assert remove_old(tmp_path, before=500.0, living={"silent"}) == ["ended"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "silent"]
