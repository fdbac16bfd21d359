"""`recmesh model register`, `load`, `unload`: what is asked of the mesh, what is said, and how they end."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from recmesh.cli import main, registry_verbs
from recmesh.cli.exit_codes import ExitCode
from recmesh.client import Model
from recmesh.runtime.errors import Aborted, MeshError, NotFound

Recmesh = Callable[..., tuple[int, str, str]]


class FakeMesh:
    """A model whose newest version changes at each look; the last look stays."""

    def __init__(self, looks: Sequence[Model] = (), error: MeshError | None = None) -> None:
        self.looks, self.error = list(looks), error
        self.asked: list[tuple[Any, ...]] = []

    def __enter__(self) -> "FakeMesh":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.asked.append(("closed",))

    def register_model(self, body: Mapping[str, Any]) -> Model:
        return self._answer("register", dict(body))

    def load_model(self, name: str, version: str = "", *, timeout_s: float = 0.0) -> Model:
        return self._answer("load", name, version, timeout_s)

    def unload_model(self, name: str, version: str = "") -> list[Model]:
        self._answer("unload", name, version)
        return [each for each in self.looks if version in ("", each.version)]

    def model(self, name: str) -> list[Model]:
        older = Model(name=name, version="1", state="failed", reason="of the older one")
        return [older, self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]]

    def _answer(self, *asked: Any) -> Model:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return self.looks[0]


def version(state: str, reason: str = "") -> Model:
    return Model(name="tiny", version="2", state=state, reason=reason)


@pytest.fixture
def recmesh(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Recmesh:
    """Runs `recmesh model` against a mesh: exit code, stdout, stderr."""

    def run(mesh: FakeMesh, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(registry_verbs, "connect", lambda home: mesh)
        monkeypatch.setattr(registry_verbs, "LOOK_S", 0.0)
        monkeypatch.setattr(sys, "argv", ["recmesh", "model", *arguments])
        code = main._run()
        return code, *capsys.readouterr()

    return run


def test_register_sends_what_was_typed_and_waits_until_the_version_serves(
    recmesh: Recmesh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mesh = FakeMesh([version("registered"), version("loading"), version("ready")])
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    code, said, _ = recmesh(
        mesh, "register", "tiny", "tiny", "--version", "2", "--framework", "torch", "--serving",
        '{"idle": 1}',
    )
    assert (code, said) == (0, "tiny version 2 serves.\n")
    body = {"name": "tiny", "uri": str(tmp_path / "tiny"), "version": "2", "framework": "torch",
            "serving": {"idle": 1}, "load": True}  # fmt: skip
    assert mesh.asked == [("register", body), ("closed",)], "a folder here is meant as it lies here"


def test_a_folder_of_the_mesh_s_storage_goes_as_it_was_typed(recmesh: Recmesh) -> None:
    mesh = FakeMesh([version("registered")])
    code, said, _ = recmesh(mesh, "register", "tiny", "models/tiny/2", "--no-load", "-o", "json")
    assert code == 0 and json.loads(said)["state"] == "registered"
    assert (mesh.asked[0][1]["uri"], mesh.asked[0][1]["load"]) == ("models/tiny/2", False)
    assert mesh.looks == [version("registered")], "nobody waits for what is not to be loaded"


@pytest.mark.parametrize(("looks", "arguments", "code", "words"), [
    ([version("loading"), version("failed", "no such operator")], [], ExitCode.REFUSED, "no such operator"),
    ([version("loading")], ["--timeout", "0.1"], ExitCode.FAILED, "is loading after 0.1 s"),
])  # fmt: skip
def test_a_version_that_does_not_come_to_serve_says_why(
    looks: list[Model], arguments: list[str], code: ExitCode, words: str, recmesh: Recmesh
) -> None:
    ended, _, wrong = recmesh(FakeMesh(looks), "register", "tiny", "models/tiny/2", *arguments)
    assert ended == code and words in wrong and "of the older one" not in wrong


@pytest.mark.parametrize(("text", "words"), [("{", "serving: "), ("[1]", "must be an object")])
def test_serving_that_is_no_object_is_refused_before_the_mesh_is_asked(
    text: str, words: str, recmesh: Recmesh
) -> None:
    mesh = FakeMesh()
    code, _, wrong = recmesh(mesh, "register", "tiny", "models/tiny/2", "--serving", text)
    assert code == ExitCode.USAGE and words in wrong and mesh.asked == []


def test_load_says_which_version_serves(recmesh: Recmesh) -> None:
    mesh = FakeMesh([version("ready")])
    code, said, _ = recmesh(mesh, "load", "tiny", "--version", "2", "--timeout", "7")
    assert (code, said) == (0, "tiny version 2 serves.\n")
    assert mesh.asked[0] == ("load", "tiny", "2", 7.0)


@pytest.mark.parametrize(("error", "code"), [
    (NotFound("there is no model 'tiny'", reason="UNKNOWN_MODEL"), ExitCode.NOT_FOUND),
    (Aborted("model tiny/2 was unloaded meanwhile", reason="NOT_WANTED"), ExitCode.FAILED),
])  # fmt: skip
@pytest.mark.parametrize("verb", ["load", "unload"])
def test_what_the_mesh_refuses_ends_with_its_words_and_code(
    verb: str, error: MeshError, code: ExitCode, recmesh: Recmesh
) -> None:
    ended, said, wrong = recmesh(FakeMesh(error=error), verb, "tiny")
    assert ended == code and error.message in wrong and said == ""


@pytest.mark.parametrize(("arguments", "words"), [
    ([], "Served no more: tiny version 2.\n"),
    (["--version", "1"], "Served no more: tiny: none.\n"),
])  # fmt: skip
def test_unload_says_what_is_served_no_more(
    arguments: list[str], words: str, recmesh: Recmesh
) -> None:
    code, said, _ = recmesh(FakeMesh([version("unloaded")]), "unload", "tiny", *arguments)
    assert (code, said) == (0, words)
