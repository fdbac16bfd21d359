"""Which mesh is meant, and what the file of named ones may hold."""

import json
import stat
from pathlib import Path

import pytest

from recmesh.client import Client
from recmesh.client.contexts import Context, Contexts
from recmesh.client.find import meant
from recmesh.runtime.errors import InvalidArgument, NotFound


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    return {"RECMESH_CONTEXTS": str(tmp_path / "config" / "contexts.json")}


def test_the_first_that_is_said_is_meant(env: dict[str, str], tmp_path: Path) -> None:
    known = Contexts.read(env)
    known.add("prod", Context(url="https://prod:1"))
    known.add("laptop", Context(home=str(tmp_path / "there")))
    assert meant(None, env).url == "https://prod:1"                      # the first one added
    Path(".recmesh").mkdir()
    assert meant(None, env).url == "https://prod:1"                      # a folder in which nothing was started
    Path(".recmesh/mesh.json").write_text("{}")
    assert meant(None, env).home == ".recmesh"
    env |= {"RECMESH_HOME": "own"}
    assert meant(None, env).home == "own"
    env |= {"RECMESH_CONTEXT": "laptop"}
    assert meant(None, env).home == str(tmp_path / "there")
    env |= {"RECMESH_URL": "http://direct"}
    assert meant(None, env).url == "http://direct"
    assert meant("typed", env).home == "typed"


def test_a_context_that_there_is_not_names_those_that_there_are(env: dict[str, str]) -> None:
    Contexts.read(env).add("prod", Context(url="https://prod:1"))
    with pytest.raises(NotFound, match="no context production; there are: prod "):
        meant(None, env | {"RECMESH_CONTEXT": "production"})


def test_its_key_goes_to_it_and_not_that_of_the_shell(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("of-prod\n")
    Contexts.read(env).add("prod", Context(url="https://prod:1", api_key_file=str(tmp_path / "key")))
    with Client.find(env=env | {"RECMESH_API_KEY": "of-the-laptop"}) as mesh:
        assert mesh._http.headers["authorization"] == "Bearer of-prod"


def test_the_file_is_the_owners_and_holds_no_key(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    known = Contexts.read(env)
    known.add("prod", Context(url="https://prod:1", api_key_file=str(tmp_path / "key")))
    assert stat.S_IMODE(known.path.stat().st_mode) == 0o600 and "secret" not in known.path.read_text()
    assert Contexts.read(env) == known
    known.remove("prod")
    assert json.loads(known.path.read_text()) == {"current": "", "contexts": {}}


@pytest.mark.parametrize(("name", "context", "field"), [
    ("a b", Context(url="http://x"), "NAME"), ("a", Context(), "--url"), ("a", Context(url="x:1"), "--url"),
    ("a", Context(url="http://x", home="y"), "--url"),
])
def test_what_is_no_context_is_refused_and_nothing_written(
    env: dict[str, str], name: str, context: Context, field: str
) -> None:
    known = Contexts.read(env)
    with pytest.raises(InvalidArgument) as refused:
        known.add(name, context)
    assert refused.value.violations[0].path == field and not known.path.exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"contexts": {"a": {"password": "x"}}}'])
def test_a_file_that_is_none_is_named(env: dict[str, str], text: str) -> None:
    path = Path(env["RECMESH_CONTEXTS"])
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        meant(None, env)
    assert refused.value.violations[0].path == str(path)


def test_certificates_that_are_none_are_named_before_any_call(env: dict[str, str], tmp_path: Path) -> None:
    Contexts.read(env).add("prod", Context(url="https://prod:1", ca_file=str(tmp_path / "none.pem")))
    with pytest.raises(InvalidArgument) as refused:
        Client.find(env=env)
    assert refused.value.violations[0].path == "ca_file"


def test_certificates_that_are_typed_go_before_the_context_s_and_these_before_the_shell_s(
    env: dict[str, str], tmp_path: Path
) -> None:
    context, shell, typed = (str(tmp_path / f"{name}.pem") for name in ("context", "shell", "typed"))
    known = Contexts.read(env)
    known.add("prod", Context(url="https://prod:1", ca_file=context))
    known.add("bare", Context(url="https://bare:1"))
    for name, given, meant_ in (
        ("prod", typed, typed), ("prod", "", context), ("bare", typed, typed), ("bare", "", shell),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument) as refused:
            Client.find(env=env | {"RECMESH_CONTEXT": name, "RECMESH_CA_FILE": shell}, ca_file=given)
        assert meant_ in str(refused.value), (name, given)
