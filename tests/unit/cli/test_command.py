"""The command line: verbs, texts, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from recmesh.cli import advice, checkpoint_verbs, completion, data_verbs, job_verbs, log_verbs, main, narration, output
from recmesh.cli.exit_codes import ExitCode, exit_code
from recmesh.client.contexts import Context, Contexts
from recmesh.client.views import Checkpoint, Event, Job, Role, RoleLog
from recmesh.runtime.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MeshError,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)

EXAMPLE = Path(__file__).parents[3] / "examples" / "flights" / "job.yaml"


def recmesh(
    *arguments: str, home: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recmesh.cli.main", *arguments]
    environment = {"RECMESH_HOME": str(home), "PATH": "/usr/bin:/bin", **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


def test_the_command_starts_without_heavy_imports() -> None:
    heavy = ("numpy", "pandas", "grpc", "pyarrow", "torch", "tensorflow", "httpx", "pydantic")
    code = f"import recmesh.cli.main, sys; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [["jobs"], ["logs", "ads"], ["submit", str(EXAMPLE)]], ids=lambda c: c[0])
def test_without_a_mesh_verbs_say_how_to_start_one(tmp_path: Path, command: list[str]) -> None:
    result = recmesh(*command, home=tmp_path)
    assert result.returncode == ExitCode.UNREACHABLE and result.stdout == ""
    assert result.stderr == f"error: there is no mesh in {tmp_path}: start one with `recmesh up`\n"


def test_certificates_that_are_typed_go_before_the_context_s(tmp_path: Path) -> None:
    env = {"RECMESH_CONTEXTS": str(tmp_path / "contexts.json")}
    Contexts.read(env).add("prod", Context(url="https://prod:1", ca_file="of-the-context.pem"))
    for typed, meant in (("typed.pem", "typed.pem"), ("", "of-the-context.pem")):
        words = ["--ca-file", typed] if typed else []
        result = recmesh("--context", "prod", *words, "jobs", home=tmp_path, env=env)
        assert (result.returncode, meant in result.stderr) == (ExitCode.USAGE, True), result.stderr


def test_a_wrong_job_is_one_block_with_every_field(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: UPPER\nmodel: {}\n")
    result = recmesh("submit", str(tmp_path / "job.yaml"), home=tmp_path)
    assert result.returncode == ExitCode.USAGE
    assert result.stderr.startswith("error: the TrainingJob has 3 wrong field(s)\n  name: ")
    assert "\n  model: give either zoo or entrypoint\n" in result.stderr


def test_a_refused_start_has_its_own_exit_code_and_starts_nothing(tmp_path: Path) -> None:
    result = recmesh("up", "--listen", "0.0.0.0", home=tmp_path)
    assert result.returncode == ExitCode.REFUSED and "without an API key" in result.stderr
    assert not (tmp_path / "run/supervisor.process.json").exists()


def test_status_and_down_without_a_mesh(tmp_path: Path) -> None:
    assert recmesh("status", home=tmp_path).returncode == ExitCode.UNREACHABLE
    result = recmesh("down", home=tmp_path)
    assert result.returncode == 0 and "not running" in result.stdout


def test_doctor_tells_what_it_found_as_json(tmp_path: Path) -> None:
    result = recmesh("doctor", "--json", home=tmp_path)
    found = {item["check"]: item for item in json.loads(result.stdout)}
    assert {"python", "packages", "nats-server", "valkey-server", "memory", "disk", "limits"} <= set(found)
    assert all(item["mend"] for item in found.values() if item["verdict"] != "ok")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("x"), ExitCode.USAGE),
        (NotFound("x"), ExitCode.NOT_FOUND),
        (Unavailable("x"), ExitCode.UNREACHABLE),
        (Unavailable("x", reason="NOT_STARTING"), ExitCode.FAILED),
        (FailedPrecondition("x"), ExitCode.REFUSED),
        (Internal("x"), ExitCode.FAILED),
    ],
)
def test_errors_have_exit_codes(error: Exception, code: ExitCode) -> None:
    assert exit_code(error) is code  # type: ignore[arg-type]  # all are MeshErrors


def test_tables_in_a_pipe_are_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name", "state"], [["a", "ready"], ["longer", ""]])
    assert capsys.readouterr().out == "NAME    STATE\na       ready\nlonger\n"
    output.print_table(["name"], [], empty="There are none.")
    assert capsys.readouterr().out == "There are none.\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172800, "2d"), (-5, "0s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_sizes_and_numbers() -> None:
    assert [output.size(n) for n in (0, 1023, 1536, 200 * 2**20, 3 * 2**40)] == [
        "0 B", "1023 B", "1.5 KiB", "200 MiB", "3072 GiB",
    ]  # fmt: skip
    assert [output.number(n) for n in (0, 12, 1234567, 0.12345)] == ["0", "12", "1,234,567", "0.123"]


def test_json_log_lines_become_readable_and_others_stay() -> None:
    line = json.dumps(
        {"time": "12:00", "level": "info", "logger": "a.b", "message": "hello", "job": "j", "trace_id": "x"}
    )
    assert log_verbs.readable(line) == "12:00 INFO    a.b: hello job=j"
    for other in ("plain text", "{not json", '{"no": "message"}'):
        assert log_verbs.readable(other) == other


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        (["a", "b"], ["a", "b", "c"], ["c"]),
        (["a", "b"], ["b", "c", "d"], ["c", "d"]),
        (["a", "b"], ["a", "b"], []),
        ([], ["a"], ["a"]),
        (["x", "x"], ["x", "x", "x"], ["x"]),
        (["a"], ["y", "z"], ["y", "z"]),
    ],
)
def test_only_new_lines_of_a_growing_text_are_shown(
    before: list[str], now: list[str], new: list[str]
) -> None:
    assert log_verbs._new(before, now) == new


def test_an_event_is_one_line_of_what_is_known() -> None:
    data = {
        "role": "ps", "index": 0, "incarnation": "054f31ec81cd4205b287e5879dc23587", "exit_code": None, "reason": "",
        "expected": True, "metrics": {"auc": 0.58516}, "rate": 5219.37, "job_id": "j",
    }
    line = narration.line(Event(type="role.seen", time="12:00:00", data=data))
    assert line == (
        "12:00:00  role.seen                 "
        "role ps, index 0, incarnation 054f31ec, expected yes, metrics auc 0.585, rate 5,219"
    )


class FakeMesh:
    """Answers of a mesh with one job that has had a worker and a parameter server."""

    def __init__(self) -> None:
        self.registered: list[tuple[str, dict[str, Any]]] = []
        self.verified: list[int] = []

    def __enter__(self) -> "FakeMesh":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def find_job(self, job: str) -> str:
        return job

    def job(self, job_id: str) -> Job:
        return Job(job_id=job_id, roles=[Role(role="worker", index=0), Role(role="ps", index=0)])

    def checkpoints(self, job_id: str, *, verify: bool = False, snapshot: int = 0) -> list[Checkpoint]:
        self.verified += [snapshot] if verify else []
        return [Checkpoint(snapshot=7, state="committed"),
                Checkpoint(snapshot=8, state="damaged", reason="ps-000/part.json is not what was stored")]

    def logs(self, job_id: str, *, role: str, index: int, tail: int) -> list[RoleLog]:
        lines = {"worker": ["hello"], "ps": []}
        return [RoleLog(role=role, index=index, lines=lines[role])] if role in lines else []

    def delete(self, job_id: str, *, force: bool) -> None:
        raise FailedPrecondition(f"{job_id} is Running; delete it with force=true", reason="JOB_LIVE")

    def register_dataset(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        self.registered.append((name, spec))
        return {}


@pytest.fixture
def fake_mesh(monkeypatch: pytest.MonkeyPatch) -> FakeMesh:
    mesh = FakeMesh()
    for verbs in (checkpoint_verbs, data_verbs, job_verbs, log_verbs):
        monkeypatch.setattr(verbs, "connect", lambda home: mesh)
    return mesh


def test_a_log_that_is_empty_and_one_that_never_was_are_told(
    fake_mesh: FakeMesh, capsys: pytest.CaptureFixture[str]
) -> None:
    log_verbs.logs("ads", follow=False)
    assert capsys.readouterr() == ("hello\n", "")
    log_verbs.logs("ads", role="ps", follow=False)
    assert capsys.readouterr() == ("", "ps-0 of ads has written nothing yet.\n")
    with pytest.raises(NotFound, match="has had no evaluator-0; it has had worker-0, ps-0"):
        log_verbs.logs("ads", role="evaluator", follow=False)


def test_a_damaged_checkpoint_is_listed_with_the_reason(
    fake_mesh: FakeMesh, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint_verbs.checkpoints("ads")
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["7", "committed"], ["8", "damaged"]]
    assert out.endswith("\n\n8 is damaged: ps-000/part.json is not what was stored\n")
    with pytest.raises(typer.Exit) as ended:
        checkpoint_verbs.checkpoints("ads", verify=True)
    assert ended.value.exit_code == ExitCode.FAILED and "8 is damaged" in capsys.readouterr().out
    assert fake_mesh.verified == [7], "one after the other, and none that is known to be damaged"


def test_a_live_job_is_deleted_by_the_option_that_the_message_names(fake_mesh: FakeMesh) -> None:
    with pytest.raises(FailedPrecondition, match=r"with --force$"):
        job_verbs.delete("ads")


@pytest.mark.parametrize(("named", "given", "name"), [
    ("d1", "d2", "d2"), ("d1", "", "d1"), (None, "", "rows"), (None, "d2", "d2"),
])
def test_a_dataset_has_the_name_given_else_that_in_its_file_else_the_files_own(
    fake_mesh: FakeMesh, tmp_path: Path, named: str | None, given: str, name: str
) -> None:
    spec = {"source": {"files": ["/rows.csv"], "format": "csv"}, "features": [{"name": "user"}]}
    (tmp_path / "rows.json").write_text(json.dumps(spec | ({"name": named} if named else {})))
    data_verbs.register_dataset(tmp_path / "rows.json", name=given)
    ((registered, sent),) = fake_mesh.registered
    assert registered == name and "name" not in sent


@pytest.mark.parametrize(("job", "finish", "line"), [
    (Job(job_id="ads", name="ads", phase="Running"), False, "ads is being stopped."),
    (Job(job_id="ads-x7", name="ads", phase="Running"), True, "ads (ads-x7) will succeed at its next checkpoint."),
    (Job(job_id="ads", name="ads", phase="Stopped"), False, "ads is Stopped."),
])
def test_stop_says_what_comes_of_it(job: Job, finish: bool, line: str) -> None:
    assert job_verbs.stopped_line(job, finish=finish) == line


def test_documents_are_json_or_yaml_and_the_old_word_is_short_for_the_first(tmp_path: Path) -> None:
    said = {name: recmesh("version", *words, home=tmp_path).stdout for name, words in {
        "json": ["-o", "json"], "short": ["--json"], "yaml": ["--output", "yaml"],
    }.items()}  # fmt: skip
    assert said["json"] == said["short"] and yaml.safe_load(said["yaml"]) == json.loads(said["json"])
    result = recmesh("version", "-o", "xml", home=tmp_path)
    assert result.returncode == ExitCode.USAGE and "'table', 'json', 'yaml'" in result.stderr


def test_documents_of_a_stream_can_be_told_apart() -> None:
    events = [{"type": "a", "n": 1}, {"type": "b"}]
    lines = "\n".join(output.line(each, output.Shape.YAML) for each in events)
    assert list(yaml.safe_load_all(lines)) == events
    assert [json.loads(output.line(each, output.Shape.JSON)) for each in events] == events


@pytest.mark.long
def test_contexts_are_named_used_and_forgotten(tmp_path: Path) -> None:
    def context(*words: str, code: int = 0) -> str:
        result = recmesh("context", *words, home=tmp_path, env={"RECMESH_CONTEXTS": str(tmp_path / "c.json")})
        assert result.returncode == code, result.stderr
        return result.stdout or result.stderr

    made = context("add", "prod", "--url", "http://127.0.0.1:9")
    assert made == "prod is http://127.0.0.1:9 and the current context.\n"
    context("add", "here", "--home", str(tmp_path / "mesh"))
    context("use", "here")
    listed = json.loads(context("list", "--json"))
    assert [(each["name"], each["current"]) for each in listed] == [("here", True), ("prod", False)]
    assert "there are: here, prod" in context("use", "other", code=ExitCode.NOT_FOUND)
    env = {"RECMESH_CONTEXTS": str(tmp_path / "c.json")}
    asked = recmesh("--context", "prod", "jobs", home=tmp_path, env=env)
    assert asked.returncode == ExitCode.UNREACHABLE and "http://127.0.0.1:9 cannot be reached" in asked.stderr
    assert asked.stderr.count("; trying again for ") == 1, "nobody waits in silence"
    for verb in ("up", "down", "status", "doctor"):
        refused = recmesh("--context", "prod", verb, home=tmp_path, env=env)
        assert refused.returncode == ExitCode.REFUSED and "is the mesh at http://127.0.0.1:9" in refused.stderr, verb
    logs = recmesh("--context", "prod", "logs", "ads", home=tmp_path, env=env)
    assert logs.returncode == ExitCode.UNREACHABLE, "a job's logs are asked of the mesh itself"
    there = recmesh("--context", "here", "status", home=tmp_path, env=env)
    assert f"no mesh in {tmp_path / 'mesh'}" in there.stdout
    context("remove", "prod")
    assert "prod" not in context("list")


def test_names_of_contexts_complete_and_a_mesh_that_is_away_completes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECMESH_CONTEXTS", str(tmp_path / "c.json"))
    monkeypatch.setenv("RECMESH_HOME", str(tmp_path))
    Contexts.read({"RECMESH_CONTEXTS": str(tmp_path / "c.json")}).add("prod", Context(url="http://x"))
    assert completion.contexts("p") == ["prod"] and completion.contexts("q") == []
    assert completion.jobs("") == []


def test_what_shells_complete_are_the_verbs(tmp_path: Path) -> None:
    asked = {"_RECMESH_COMPLETE": "complete_bash", "COMP_WORDS": "recmesh con", "COMP_CWORD": "1"}
    words = [sys.executable, "-c", "from recmesh.cli.main import main; import sys; sys.argv = ['recmesh']; main()"]
    said = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=120, env={"PATH": "/usr/bin:/bin", **asked}
    )
    assert said.stdout.split() == ["context"]


def test_the_reference_names_every_verb_and_exit_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    verbs = {each.name or each.callback.__name__ for each in main.app.registered_commands if each.callback}
    assert verbs and verbs <= set(re.findall(r"`([a-z]+)`", page))
    assert all(f"| {code.value} |" in page for code in ExitCode)


def test_every_verb_that_prints_what_it_found_or_did_has_a_document() -> None:
    def without(command: Any, path: str) -> list[str]:
        if found := getattr(command, "commands", None):
            return [each for name, item in found.items() for each in without(item, f"{path} {name}".strip())]
        return [] if any(parameter.name == "shape" for parameter in command.params) else [path]

    assert without(typer.main.get_command(main.app), "") == ["simulate"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {"RECMESH_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": unbuffered}
    with os.fdopen(writing, "w") as out:
        ended = subprocess.run(
            [sys.executable, "-m", "recmesh.cli.main", "version"], stdout=out, stderr=subprocess.PIPE, text=True,
            env=environment, timeout=120, check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(("error", "place", "told"), [
    (NotFound("there is no job ads"), None, "`recmesh jobs` lists jobs."),
    (NotFound("there is no file job.yaml"), None, ""),
    (Unauthenticated("no key"), Context(url="http://x"), "context add NAME --url http://x --api-key-file FILE`"),
    (Unauthenticated("no key"), Context(url="http://x", api_key_file="/key"), "does not know the key in /key"),
    (Unavailable("http://x cannot be reached"), Context(url="http://x"), "`recmesh context list` shows others"),
    (Unavailable("http://x cannot be reached"), Context(home="/m"), "`recmesh status --home /m`"),
    (Unavailable("it cannot be reached"), Context(namespace="lab"), "`kubectl -n lab get pods`"),
    (Unavailable("there is no mesh: start one with `recmesh up`"), Context(home="/m"), ""),
    (InvalidArgument("x"), Context(url="http://x"), ""),
    (PermissionDenied("not yours"), Context(url="http://x"), "whoever keeps gateway's keys gives it the scope"),
    (PermissionDenied("10.0.0.1 is no public one", reason="ADDRESS_REFUSED"), Context(url="http://x"), ""),
])
def test_errors_say_what_to_do_next_where_their_words_do_not(
    error: MeshError, place: Context | None, told: str
) -> None:
    said = advice.next_step(error, place)
    assert told in said and bool(told) == bool(said)


@pytest.mark.long
def test_a_mesh_that_does_not_answer_is_one_block_with_the_next_step(tmp_path: Path) -> None:
    result = recmesh("jobs", home=tmp_path, env={"RECMESH_URL": "http://127.0.0.1:9"})
    *_, said, then = result.stderr.splitlines()  # before them, on a slow machine: that it tries again
    assert result.returncode == ExitCode.UNREACHABLE and said.startswith("error: http://127.0.0.1:9 cannot be reached")
    assert "`recmesh context list`" in then
