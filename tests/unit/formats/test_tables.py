"""Tables to be mapped: a folder is there whole, or not at all."""

from pathlib import Path

import numpy as np
import pytest

from recmesh.formats import tables as files
from recmesh.formats.tables import TablesError


def write(folder: Path, *ids: int) -> None:
    rows = np.ones((len(ids), 2), np.float32)
    files.write(folder, job_id="job", gen=1, snapshot=1, tables={"item": (np.array(ids, np.int64), rows)}, dense={})


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TablesError, match="do not ascend"):
        write(tmp_path / "tables", 2, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    write(tmp_path / "tables", 1, 2)
    with pytest.raises(FileExistsError, match="there already"):
        write(tmp_path / "tables", 3)
    assert [item.name for item in tmp_path.iterdir()] == ["tables"]
    assert files.read(tmp_path / "tables").tables["item"].ids.tolist() == [1, 2]
