"""Model folders: confined to the storage root."""

import json
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from recmesh.runtime.errors import InvalidArgument, NotFound
from services.gateway.store.folders import ModelFolders
from tests.support.gateway import CARD


@pytest.fixture
def root(tmp_path: Path) -> Path:
    model = tmp_path / "storage" / "models" / "tiny" / "1"
    model.mkdir(parents=True)
    (model / "model.json").write_text(json.dumps(CARD))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "model.json").write_text(json.dumps(CARD))
    return tmp_path / "storage"


@pytest.mark.parametrize("form", ["models/tiny/1", "{root}/models/tiny/1", "file://{root}/models/tiny/1"])
def test_a_folder_is_found_in_every_form_of_its_uri(root: Path, form: str) -> None:
    folders = ModelFolders(root)
    folder = folders.resolve(form.format(root=root))
    assert folder == root / "models/tiny/1"
    assert folders.card(folder).framework == "torch"


@pytest.mark.parametrize(
    "form",
    [
        "../secret", "models/../../secret", "{root}/../secret", "file://{root}/../secret",
        "file://{root}/%2e%2e/secret", "/etc", "", ".", "models/link", "s3://bucket/model", "file://host/share",
    ],
)  # fmt: skip
def test_what_lies_outside_the_storage_root_is_refused(root: Path, form: str) -> None:
    (root / "models" / "link").symlink_to(root.parent / "secret")
    with pytest.raises(InvalidArgument) as caught:
        ModelFolders(root).resolve(form.format(root=root))
    assert caught.value.reason == "OUTSIDE_STORAGE"


def test_a_folder_with_a_link_out_of_the_storage_is_refused(root: Path) -> None:
    (root / "models/tiny/1/model.pt2").symlink_to("/etc/hostname")
    with pytest.raises(InvalidArgument, match="link out"):
        ModelFolders(root).resolve("models/tiny/1")


def test_a_missing_folder_is_not_found(root: Path) -> None:
    with pytest.raises(NotFound, match="models/tiny/2"):
        ModelFolders(root).resolve("models/tiny/2")


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_without_a_usable_card_is_refused(root: Path, content: str | None) -> None:
    path = root / "models/tiny/1/model.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(InvalidArgument):
        ModelFolders(root).card(path.parent)


@pytest.mark.parametrize(("place", "why"), [
    ("{root}/checkpoints/j", ""), ("file://{root}/checkpoints/j", ""), ("{root}/../secret", "outside the storage root"),
    ("~/checkpoints", "neither an absolute path"), ("file://~/checkpoints", "neither an absolute path"),
    ("checkpoints/j", "neither an absolute path"), ("dir::{root}/../secret", "neither an absolute path"),
    ("{root}/a::{root}/../secret", "neither an absolute path"), ("local:///etc", "neither an absolute path"),
    ("simplecache::file:///etc", "neither an absolute path"), ("{root}/%2e%2e/secret", ""),
])
def test_what_is_followed_is_the_folder_that_will_be_read(root: Path, place: str, why: str) -> None:
    apart = {"job_id": "j", "checkpoints": place.format(root=root), "dense": {}, "tables": []}
    folder = root / "models/tiny/1"
    (folder / "model.json").write_text(json.dumps({**CARD, "apart": apart}))
    if not why:
        taken = ModelFolders(root).card(folder).apart
        assert taken is not None
        assert Path(url_to_fs(taken.checkpoints)[1]).resolve().is_relative_to(root)
        return
    with pytest.raises(InvalidArgument, match=why) as caught:
        ModelFolders(root).card(folder)
    assert caught.value.violations[0].path == "model.json.apart.checkpoints"
