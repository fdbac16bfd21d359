"""A model follows its job's snapshots: in order, whole versions only, and back again."""

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from recmesh.formats import tables as files
from recmesh.runtime.errors import DataLoss, NotFound
from recmesh.serving.apart import Apart, ApartTable
from recmesh.serving.fresh.follower import Follower
from recmesh.serving.fresh.lookup import Lookup
from recmesh.serving.settings import EmbeddingSettings, FreshnessSettings
from tests.support.snapshots import BLOCK, DIM, TABLE, Snapshots


class World:
    """A job's snapshots, and a model that was exported at snapshot 1: rows 1 and 2 are 1.0, and so is `w`."""

    def __init__(self, folder: Path) -> None:
        self.job = Snapshots(folder / "checkpoints" / "job")
        self.model = folder / "model"
        self.apart = Apart("job", str(self.job.root), (ApartTable(TABLE, DIM, ("item",)),), {BLOCK: f"model.{BLOCK}"})
        ids, rows = np.array([1, 2], np.int64), np.ones((2, DIM), np.float32)
        self.model.mkdir()
        files.write(
            self.model / "tables", job_id="job", gen=1, snapshot=1, tables={TABLE: (ids, rows)},
            dense={BLOCK: np.ones(1, np.float32)},
        )
        self.job.commit(1, {1: 1.0, 2: 1.0}, 1.0)
        self.said: list[str] = []

    def follower(self, **settings: Any) -> Follower:
        """Not started: it looks when it is told to."""
        return Follower(self.model, self.apart, FreshnessSettings(**settings), log=self.said.append)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def read(follower: Follower, *ids: int) -> list[float]:
    """Rows of these ids, then the dense block: all of one version."""
    version = follower.version
    lookup = Lookup(EmbeddingSettings(), dims={TABLE: DIM}, name="job")
    rows = lookup.rows(version, TABLE, np.array(ids, np.int64))
    return [*rows[:, 0].tolist(), float(version.dense[BLOCK][0])]


def test_deltas_are_applied_in_order_rows_and_dense_blocks_together(world: World) -> None:
    follower = world.follower()
    assert read(follower, 1, 2, 3) == [1, 1, 0, 1]
    world.job.commit(2, {2: 2.0, 3: 2.0}, 2.0, base=1)
    assert follower.look()
    assert read(follower, 1, 2, 3) == [1, 2, 2, 2]
    world.job.commit(3, {2: 3.0, 3: 3.0}, 3.0, base=2)
    world.job.commit(5, {2: 5.0}, 5.0, base=3)          # both at once: the later of the two counts
    assert follower.look()
    assert read(follower, 1, 2, 3) == [1, 5, 3, 5]
    told = follower.status()
    assert (told["version"], told["deltas"], told["snapshots_spanned"], told["wholes"]) == (5, 2, 3, 0)
    assert not follower.look(), "a version is applied once"
    assert read(follower, 1, 2, 3) == [1, 5, 3, 5]


def test_what_is_not_committed_cannot_be_rolled_back_to(world: World) -> None:
    follower = world.follower()
    world.job.commit(2, {2: 2.0}, 2.0, base=1)
    world.job.commit(3, {2: 3.0}, 3.0, base=2, mark=False)
    assert follower.versions() == [1, 2]
    world.job.mark(3)
    assert follower.versions() == [1, 2, 3]


def test_what_is_not_committed_is_not_served(world: World) -> None:
    follower = world.follower()
    world.job.commit(2, {1: 2.0}, 2.0, base=1, mark=False)
    assert not follower.look()
    assert read(follower, 1) == [1, 1]
    world.job.mark(2)
    assert follower.look()
    assert read(follower, 1) == [2, 2]


def test_a_gap_is_mended_by_a_whole_snapshot(world: World) -> None:
    follower = world.follower()
    world.job.commit(2, {1: 2.0}, 2.0, base=1)
    world.job.commit(3, {2: 3.0, 7: 3.0}, 3.0)              # whole: the row of 1 is gone
    world.job.commit(4, {7: 4.0}, 4.0, base=3)
    shutil.rmtree(world.job.root / "00000001")
    shutil.rmtree(world.job.root / "00000002")
    assert follower.look()
    assert read(follower, 1, 2, 7) == [0, 3, 4, 4]
    assert (follower.status()["wholes"], follower.status()["version"]) == (1, 4)


def test_a_generation_after_a_rollback_of_training_is_read_whole(world: World) -> None:
    follower = world.follower()
    world.job.commit(2, {1: 2.0, 2: 2.0}, 2.0, gen=2)
    assert follower.look()
    assert read(follower, 1, 2) == [2, 2, 2]
    assert follower.status()["generation"] == 2


def test_removed_and_untrained_rows_read_as_absent(world: World) -> None:
    follower = world.follower()
    world.job.commit(2, {3: 2.0}, 2.0, base=1, removed=(1,))
    world.job.commit(3, {4: 9.0}, 3.0, base=2, frequency=1, updates=0)       # a candidate: rarer than the least
    assert follower.look()
    assert read(follower, 1, 2, 3, 4) == [0, 1, 2, 0, 3]
    world.job.commit(4, {1: 4.0}, 4.0, base=3, removed=(1,))                # removed, and come back since
    assert follower.look()
    assert read(follower, 1, 4) == [4, 0, 4]


def test_a_damaged_snapshot_is_not_installed_and_a_later_one_mends_it(world: World) -> None:
    follower = world.follower()
    part = world.job.commit(2, {1: 2.0}, 2.0, base=1)
    damaged = bytearray((part / "rows.arrow").read_bytes())
    damaged[-200] ^= 1
    (part / "rows.arrow").write_bytes(damaged)
    assert not follower.look()
    assert read(follower, 1) == [1, 1]
    assert "checksum" in follower.status()["error"]
    world.job.commit(3, {1: 3.0}, 3.0)
    assert follower.look()
    assert read(follower, 1, 2) == [3, 0, 3]
    assert not follower.status()["error"]


def test_many_changed_rows_become_mapped_tables_of_their_own(world: World) -> None:
    follower = world.follower(overlay_bytes=0)
    world.job.commit(2, {2: 2.0, 5: 2.0}, 2.0, base=1)
    world.job.commit(3, {5: 3.0}, 3.0, base=2, removed=(1,))
    assert follower.look()
    assert follower.version.overlay_bytes == 0
    assert follower.version.base_number == 3
    assert read(follower, 1, 2, 5) == [0, 2, 3, 3]
    world.job.commit(4, {1: 4.0}, 4.0, base=3)
    assert follower.look()
    assert read(follower, 1, 2, 5) == [4, 2, 3, 4]


def test_a_rollback_holds_until_it_is_resumed_and_outlives_the_process(world: World) -> None:
    follower = world.follower()
    world.job.commit(2, {1: 2.0}, 2.0, base=1)
    world.job.commit(3, {1: 3.0}, 3.0, base=2)
    assert follower.look()
    assert follower.versions() == [1, 2, 3]
    follower.roll_back(2)
    assert read(follower, 1, 2) == [2, 1, 2]
    world.job.commit(4, {1: 4.0}, 4.0)
    assert not follower.look()
    assert read(follower, 1) == [2, 2]
    assert follower.status()["held"]
    for number in (1, 2, 3):
        shutil.rmtree(world.job.root / f"{number:08d}")         # retention does not wait for it
    again = world.follower(held=2)
    assert read(again, 1, 2) == [2, 1, 2]
    with pytest.raises(NotFound, match="no version 3"):
        again.roll_back(3)
    assert read(again, 1) == [2, 2]
    again.resume()
    assert read(again, 1, 2) == [4, 0, 4]
    assert not again.status()["held"]


def test_a_version_that_is_not_there_is_refused_with_how_many_there_are(world: World) -> None:
    follower = world.follower()
    for number in range(2, 12):
        world.job.commit(number, {1: float(number)}, float(number))
    with pytest.raises(NotFound, match="there are 4, 5, 6, 7, 8, 9, 10, 11, and 3 older ones from 1 on"):
        follower.roll_back(99)


def together(*work: Callable[[], object]) -> list[BaseException]:
    """Each in a thread of its own; what they raised."""
    raised: list[BaseException] = []

    def run(each: Callable[[], object]) -> None:
        try:
            each()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return raised


def test_processes_that_roll_back_at_once_agree(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.job.commit(2, {1: 2.0}, 2.0, base=1)
    world.job.commit(3, {1: 3.0}, 3.0, base=2)
    one, other = world.follower(), world.follower()
    both = threading.Barrier(2)

    def in_the_middle(*args: Any) -> None:
        both.wait(30.0)
        save_file(*args)

    monkeypatch.setattr(files, "save_file", in_the_middle)
    assert together(lambda: one.roll_back(2), lambda: other.roll_back(2)) == []
    monkeypatch.undo()
    assert (read(one, 1), read(other, 1)) == ([2, 2], [2, 2])
    assert [item.name for item in (world.model / "held").iterdir()] == ["2"]
    shutil.rmtree(world.job.root / "00000002")
    one.resume()                                            # the other has not been told yet, and is started again
    assert read(world.follower(held=2), 1) == [2, 2]


def test_a_rollback_does_not_wait_for_a_look_and_is_not_undone_by_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = world.follower()
    world.job.commit(2, {1: 2.0}, 2.0, base=1)
    reading, go_on, slow = threading.Event(), threading.Event(), follower._snapshots
    assert slow is not None
    delta, looked = slow.delta, list[bool]()

    def read_slowly(*args: Any, **more: Any) -> Any:
        reading.set()
        assert go_on.wait(60.0)
        return delta(*args, **more)

    monkeypatch.setattr(slow, "delta", read_slowly)
    looking = threading.Thread(target=lambda: looked.append(follower.look()))
    looking.start()
    assert reading.wait(60.0)
    rolling = threading.Thread(target=lambda: follower.roll_back(1))
    rolling.start()
    rolling.join(10.0)
    waited = rolling.is_alive()
    go_on.set()
    looking.join()
    rolling.join()
    assert not waited and looked == [False]
    assert read(follower, 1) == [1, 1] and follower.status()["version"] == 1


def test_versions_that_were_held_long_ago_are_removed(world: World) -> None:
    for number in (2, 3, 4):
        world.job.commit(number, {1: float(number)}, float(number), base=number - 1)
    follower = world.follower()
    abandoned = world.model / "held" / ".2.abandoned"
    abandoned.mkdir(parents=True)
    os.utime(abandoned, (0, 0))
    for number in (1, 2, 3):
        follower.roll_back(number)
    assert sorted(item.name for item in (world.model / "held").iterdir()) == ["2", "3"]
    follower.roll_back(2)
    follower.roll_back(1)
    assert sorted(item.name for item in (world.model / "held").iterdir()) == ["1", "2"]


def test_a_new_process_begins_with_the_newest_version(world: World) -> None:
    world.job.commit(2, {1: 2.0}, 2.0, base=1)
    assert read(world.follower(), 1, 2) == [2, 1, 2]
    assert read(world.follower(follow=False), 1, 2) == [1, 1, 1]


def test_a_snapshot_of_another_model_is_refused(world: World) -> None:
    follower = world.follower()
    part = world.job.commit(2, {1: 2.0}, 2.0, base=1)
    text = (part / "part.json").read_text()
    (part / "part.json").write_text(text.replace('"shape":[1]', '"shape":[1,1]'))
    assert not follower.look()
    assert "another model" in follower.status()["error"]
    assert read(follower, 1) == [1, 1]


def test_damaged_tables_of_the_export_are_refused(world: World) -> None:
    rows = world.model / "tables" / "0.rows.npy"
    data = bytearray(rows.read_bytes())
    data[-1] ^= 1
    rows.write_bytes(data)
    with pytest.raises(DataLoss, match="checksum"):
        world.follower()


def test_the_mean_for_absent_ids_is_of_the_mapped_rows_and_taken_with_them(world: World) -> None:
    follower = Follower(world.model, world.apart, FreshnessSettings(), log=print, means=[TABLE])
    world.job.commit(2, {2: 3.0}, 2.0, base=1)
    assert follower.look()
    absent = Lookup(EmbeddingSettings.model_validate({"miss": {"*": "mean"}}), dims={TABLE: DIM}, name="job")
    assert absent.rows(follower.version, TABLE, np.array([9])).tolist() == [[1.0]]
    world.job.commit(3, {1: 2.0, 2: 4.0}, 3.0)
    assert follower.look()
    assert follower.version.means[TABLE].tolist() == [3.0]
    assert absent.rows(follower.version, TABLE, np.array([9])).tolist() == [[3.0]]
    assert not world.follower().version.means, "who does not need it does not read all rows for it"


def test_tables_of_another_job_are_refused(world: World) -> None:
    world.apart = replace(world.apart, job_id="other")
    with pytest.raises(DataLoss, match=r"is of job 'job', and model\.json of 'other'"):
        world.follower()
