"""The note of the batch in work."""

import subprocess
import sys
from pathlib import Path

import pytest

from recmesh.formats.inhand import InHand, read


def test_a_note_names_the_batch_until_it_is_put_down(tmp_path: Path) -> None:
    path = tmp_path / "note"
    note = InHand.at(str(path))
    assert read(path) == (True, None)
    note.take(0, 1_234_567, 9_000_000_000)
    assert read(path) == (True, (0, 1_234_567, 9_000_000_000))
    note.take(0, 5, 6)
    assert read(path) == (True, (0, 5, 6))
    note.put_down()
    assert read(path) == (True, None)


def test_it_outlives_a_process_that_ends_without_a_word(tmp_path: Path) -> None:
    code = (
        "import os, sys; from recmesh.formats.inhand import InHand\n"
        "InHand.at(sys.argv[1]).take(0, 7, 9); os._exit(9)"
    )
    path = tmp_path / "note"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=120).returncode == 9
    assert read(path) == (True, (0, 7, 9))


@pytest.mark.parametrize("text", [None, "", "1 2", "one two three", "1 2 3 4"])
def test_what_is_no_note_tells_nothing(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "note"
    if text is not None:
        path.write_text(text)
    assert read(path) == (False, None)


def test_without_a_place_nothing_is_written(tmp_path: Path) -> None:
    InHand.at("").take(0, 1, 2)
    InHand.at(str(tmp_path / "missing" / "note")).take(0, 1, 2)
    assert list(tmp_path.iterdir()) == []
