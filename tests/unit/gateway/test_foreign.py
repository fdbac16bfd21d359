"""Programs without a `model.json`: adopted once, left as they are, kept where they may be."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from services.gateway.app.ports import Document
from services.gateway.domain.callers import Caller
from services.gateway.domain.models import Registration, State
from services.gateway.store.folders import ModelFolders
from tests.support.gateway import CARD, gateway

pytestmark = pytest.mark.asyncio


class Reader:
    """Says the same of every program."""

    def __init__(self, card: Document = CARD) -> None:
        self.read: list[tuple[str, str]] = []
        self.card = card

    async def inspect(self, framework: str, program: Path) -> Document:
        self.read.append((framework, program.name))
        return self.card


def saved(root: Path, where: str) -> str:
    (root / where).parent.mkdir(parents=True, exist_ok=True)
    (root / where).write_bytes(b"program")
    return where


@pytest.mark.parametrize(("file", "uri", "framework", "name"), [
    ("bought/ctr.pt2", "bought/ctr.pt2", "torch", "ctr.pt2"),
    ("bought/ctr/any.pt2", "bought/ctr", "torch", "any.pt2"),
    ("bought/ctr/saved_model.pb", "bought/ctr", "tensorflow", "ctr"),
    ("bought/ctr/saved_model/saved_model.pb", "bought/ctr", "tensorflow", "saved_model"),
])
async def test_a_program_is_served_from_a_folder_that_links_to_it(
    tmp_path: Path, file: str, uri: str, framework: str, name: str
) -> None:
    reader = Reader(CARD | {"framework": framework})
    made = gateway(tmp_path, inspect=reader.inspect)
    await made.models.start()
    saved(tmp_path, file)
    wanted = Registration("ctr", "1", uri, framework, load=True)
    records = [await made.models.register(wanted) for _ in range(2)]
    await made.settled()
    assert (await made.models.get("ctr")).state is State.READY
    assert records[0].uri == records[1].uri
    assert reader.read == [(framework, name)], "once"
    folder = Path(records[0].uri)
    link = "saved_model" if framework == "tensorflow" else "model.pt2"
    assert (folder / link).resolve() == (tmp_path / uri if name == "ctr" else tmp_path / file).resolve() or (
        (folder / link / "saved_model.pb").resolve() == (tmp_path / file).resolve()
    )
    assert json.loads((folder / "model.json").read_text())["inputs"] == CARD["inputs"]
    assert sorted(os.listdir((tmp_path / file).parent)) == [Path(file).name], "nothing was written beside it"


async def test_a_program_that_was_exchanged_is_read_again(tmp_path: Path) -> None:
    reader = Reader()
    made = gateway(tmp_path, inspect=reader.inspect)
    uri = saved(tmp_path, "ctr.pt2")
    first = await made.models.register(Registration("ctr", "", uri, "torch"))
    (tmp_path / uri).write_bytes(b"another program")
    second = await made.models.register(Registration("ctr", "", uri, "torch"))
    assert (first.version, second.version, len(reader.read)) == ("1", "2", 2)
    assert first.uri != second.uri


async def test_what_is_no_program_or_of_another_framework_is_refused(tmp_path: Path) -> None:
    made = gateway(tmp_path, inspect=Reader({"framework": "torch", "inputs": []}).inspect)
    saved(tmp_path, "empty/notes.txt")
    for number in range(2):
        saved(tmp_path, f"two/{number}.pt2")
    cases: list[tuple[str, str, type[Exception], str]] = [
        ("empty", "torch", InvalidArgument, r"no model.json, and no saved_model.pb, saved_model/ or .pt2 file"),
        ("two", "torch", InvalidArgument, r"2 files .pt2"),
        ("two/0.pt2", "tensorflow", FailedPrecondition, r"registered as tensorflow, but 0.pt2 is of torch"),
        ("two/0.pt2", "torch", InvalidArgument, r"model.json.inputs: is not a list"),
    ]
    for uri, framework, error, why in cases:
        with pytest.raises(error, match=why):
            await made.models.register(Registration("ctr", "", uri, framework))
    assert not list((tmp_path / "foreign").glob("*")), "nothing of it stays"


async def test_a_namespace_s_program_is_adopted_within_it(tmp_path: Path) -> None:
    made = gateway(tmp_path, inspect=Reader().inspect)
    ads = Caller("ads", frozenset({"models"}), namespaces=("ads",))
    uri = saved(tmp_path, "namespaces/ads/ctr.pt2")
    record = await made.models.register(Registration("ads--ctr", "", uri, "torch"), caller=ads)
    assert Path(record.uri).is_relative_to(tmp_path / "namespaces" / "ads" / "foreign")
    with pytest.raises(InvalidArgument, match="lies outside namespaces/ads"):
        await made.models.register(Registration("ads--ctr", "", saved(tmp_path, "ctr.pt2"), "torch"), caller=ads)


async def test_links_are_looked_into_behind_links(tmp_path: Path) -> None:
    root = tmp_path / "storage"
    saved(root, "shared/saved_model.pb")
    (root / "shared" / "weights").symlink_to("/etc/hostname")
    (root / "shared" / "round").symlink_to(root / "shared")
    (root / "model").mkdir()
    (root / "model" / "saved_model").symlink_to(root / "shared")
    with pytest.raises(InvalidArgument, match="link out of the storage root: weights"):
        ModelFolders(root).resolve("model")
    (root / "shared" / "weights").unlink()
    found: Any = ModelFolders(root).resolve("model")
    assert found == root / "model"


@pytest.mark.parametrize("when", ["before it is registered", "after"])
async def test_halves_beside_a_program_are_taken_up(tmp_path: Path, when: str) -> None:
    made = gateway(tmp_path, inspect=Reader().inspect)
    await made.models.start()
    uri = saved(tmp_path, "bought/ctr/model.pt2")

    def split() -> None:
        saved(tmp_path, "bought/ctr/split/split.json")

    if when != "after":
        split()
    record = await made.models.register(Registration("ctr", "", "bought/ctr", "torch", load=True))
    await made.settled()
    home = Path(record.uri)
    if when == "after":
        assert not (home / "split").exists()
        split()
        await made.models.load("ctr")
    assert (home / "split").resolve() == tmp_path / "bought" / "ctr" / "split"
    again = await made.models.register(Registration("ctr", "1", uri, "torch"))
    assert again.uri == record.uri


async def test_halves_that_link_out_of_the_storage_are_not_taken_up(tmp_path: Path) -> None:
    root = tmp_path / "storage"
    made = gateway(root, inspect=Reader().inspect)
    uri = saved(root, "ctr/model.pt2")
    saved(root, "ctr/split/split.json")
    (root / "ctr" / "split" / "dense").symlink_to("/etc")
    with pytest.raises(InvalidArgument, match="link out of the storage root: dense"):
        await made.models.register(Registration("ctr", "", uri, "torch"))


async def test_the_framework_is_that_of_the_files_unless_there_are_two(tmp_path: Path) -> None:
    made = gateway(tmp_path, inspect=Reader().inspect)
    saved(tmp_path, "ctr/model.pt2")
    assert (await made.models.register(Registration("ctr", "", "ctr", ""))).framework == "torch"
    assert (await made.models.register(Registration("tiny", "", made.folder(), ""))).framework == "torch"
    saved(tmp_path, "ctr/saved_model/saved_model.pb")
    with pytest.raises(InvalidArgument, match="framework: which one is meant: tensorflow or torch"):
        await made.models.register(Registration("both", "", "ctr", ""))
    assert (await made.models.register(Registration("both", "", "ctr", "torch"))).framework == "torch"
    with pytest.raises(InvalidArgument, match="framework: 'onnx' is none of tensorflow, torch, ensemble"):
        await made.models.register(Registration("both", "", "ctr", "onnx"))


async def test_a_folder_elsewhere_is_refused_with_the_root_and_how_it_is_changed(tmp_path: Path) -> None:
    made = gateway(tmp_path / "storage", inspect=Reader().inspect)
    saved(tmp_path, "ctr/model.pt2")
    with pytest.raises(InvalidArgument) as refused:
        await made.models.register(Registration("ctr", "", str(tmp_path / "ctr"), ""))
    assert str(tmp_path / "storage") in str(refused.value) and "RECMESH_STORAGE_URI" in str(refused.value)


def configure(folder: Path, **serving: str) -> None:
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(card | {"serving": serving}))


async def test_two_names_of_one_program_have_settings_of_their_own(tmp_path: Path) -> None:
    made = gateway(tmp_path, inspect=Reader().inspect)
    uri = saved(tmp_path, "ctr.pt2")
    one, other = [await made.models.register(Registration(name, "", uri, "torch")) for name in ("one", "other")]
    assert one.uri != other.uri
    configure(Path(one.uri), split="never")
    settings = [ModelFolders(tmp_path).settings(Path(record.uri), {}) for record in (one, other)]
    assert [each.split for each in settings] == ["never", "auto"]
