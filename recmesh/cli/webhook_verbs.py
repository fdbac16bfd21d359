"""webhook create, list, get, change, test, rotate, dead, retry, delete: events by HTTP."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recmesh.cli import completion, output
from recmesh.cli.connect import connect
from recmesh.cli.exit_codes import ExitCode
from recmesh.cli.options import HomeOption, ShapeOption
from recmesh.cli.output import Shape
from recmesh.cli.verbs import group as group_of
from recmesh.runtime.errors import InvalidArgument

NameArgument = Annotated[
    str, typer.Argument(help="Name of the webhook.", metavar="NAME", autocompletion=completion.webhooks)
]
_RETRIED_AT_ONCE = 10
NewNameArgument = Annotated[str, typer.Argument(help="What to call it.", metavar="NAME")]
SecretOption = Annotated[
    Path | None, typer.Option("--secret-file", help="File with its secret, whsec_...; else one is made.")
]


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    group = group_of(name="webhook", help="Events of the mesh by HTTP, signed.")
    for verb in (create, list_webhooks, get, change, test, rotate, dead, retry, delete):
        group.command(verb.__name__.removesuffix("_webhooks"))(verb)
    app.add_typer(group)


def create(
    name: NewNameArgument,
    url: Annotated[str, typer.Argument(help="Where events go.", metavar="URL")],
    types: Annotated[
        list[str],
        typer.Option(
            "--type", help="Type of event, or a pattern such as job.* (repeat for more).",
            autocompletion=completion.event_types,
        ),
    ],
    namespace: Annotated[list[str] | None, typer.Option(help="Only of this namespace (repeat for more).")] = None,
    job: Annotated[list[str] | None, typer.Option(help="Only of this job, by id (repeat for more).")] = None,
    binary: Annotated[
        bool, typer.Option("--binary", help="Attributes as headers, data as body; headers are not signed.")
    ] = False,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    secret_file: SecretOption = None,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Send events to an address, from now on. The secret is shown once."""
    body = {
        "name": name, "url": url, "types": types, "namespaces": namespace or [], "jobs": job or [],
        "mode": "binary" if binary else "structured", "description": description, "secret": _secret(secret_file),
    }  # fmt: skip
    with connect(home) as mesh:
        made = mesh.create_webhook(body)
    _told(made, shape, given=secret_file is not None)


def list_webhooks(home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """List webhooks, and how their deliveries go."""
    with connect(home) as mesh:
        found = mesh.webhooks()
    if shape.is_document:
        output.print_document(found, shape)
        return
    rows = [
        [
            each["name"], _state(each), ",".join(each["types"]), str(each["delivery"]["delivered"]),
            str(each["delivery"]["failed_attempts"]), str(each["delivery"]["dead"]),
            output.ago(each["delivery"]["last_at"]), each["url"],
        ]
        for each in found
    ]  # fmt: skip
    columns = ["name", "state", "types", "delivered", "failed", "dead", "last", "url"]
    output.print_table(columns, rows, empty="There are no webhooks.")


def get(name: NameArgument, home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """Show one webhook."""
    with connect(home) as mesh:
        found = mesh.webhook(name)
    if shape.is_document:
        output.print_document(found, shape)
        return
    delivery = found["delivery"]
    output.print_fields({
        "name": found["name"], "url": found["url"], "types": ", ".join(found["types"]),
        "namespaces": ", ".join(found["namespaces"]), "jobs": ", ".join(found["jobs"]), "mode": found["mode"],
        "owner": found["owner"], "description": found["description"], "state": _state(found),
        "disabled": found["disabled"], "delivered": str(delivery["delivered"]),
        "failed": str(delivery["failed_attempts"]), "dead": str(delivery["dead"]),
        "waiting": str(delivery["waiting"] + delivery["behind"]), "last": delivery["last"],
    })


def test(name: NameArgument, home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """Send one event to try a webhook out; exit code 1 when it is not taken."""
    with connect(home) as mesh:
        found = mesh.test_webhook(name)
    if shape.is_document:
        output.print_document(found, shape)
    else:
        print(f"{found['answer']}, after {found['seconds']:.2f} s")
    if not found["taken"]:
        raise typer.Exit(ExitCode.FAILED)


def rotate(
    name: NameArgument, secret_file: SecretOption = None, home: HomeOption = None, shape: ShapeOption = Shape.TABLE
) -> None:
    """Give it another secret; for a day the one before signs, too."""
    with connect(home) as mesh:
        found = mesh.rotate_webhook(name, _secret(secret_file))
    _told(found, shape, given=secret_file is not None)


def dead(name: NameArgument, home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """List events that were given up, and why."""
    with connect(home) as mesh:
        found = mesh.webhook_dead_letters(name)
    if shape.is_document:
        output.print_document(found, shape)
        return
    rows = [
        [output.clock(each["at"]), each["id"], each["type"], each["subject"], str(each["attempts"]), each["reason"]]
        for each in found
    ]
    output.print_table(["given up", "id", "type", "of", "attempts", "why"], rows, empty="None was given up.")


def change(
    name: NameArgument,
    url: Annotated[str | None, typer.Option(help="Where events go.", metavar="URL")] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", help="Type of event, or a pattern such as job.* (repeat for more), in place of all before.",
            autocompletion=completion.event_types,
        ),
    ] = None,
    namespace: Annotated[list[str] | None, typer.Option(help="In place of all before (repeat for more).")] = None,
    job: Annotated[list[str] | None, typer.Option(help="By id, in place of all before (repeat for more).")] = None,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on, where its receiver had stopped it.")] = False,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Send it elsewhere, or other events; it goes on from where it is."""
    given = {"url": url, "types": types, "namespaces": namespace, "jobs": job, "description": description}
    body = {key: value for key, value in given.items() if value is not None} | ({"resume": True} if resume else {})
    if not body:
        raise InvalidArgument("say what is to be another: --url, --type, --namespace, --job, --description or --resume")
    with connect(home) as mesh:
        found = mesh.change_webhook(name, body)
    output.print_done(found, shape, f"{found['name']} sends {', '.join(found['types'])} to {found['url']}.")


def retry(
    name: NameArgument,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Of events, as `dead` lists them; else all.", metavar="[ID...]")
    ] = None,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Send events again that were given up, oldest first, until one is not taken; exit code 1 then."""
    from recmesh.runtime.progress import Progress

    taken: list[str] = []
    found: dict[str, Any] = {"left": 0, "answer": "", "failed": ""}
    with connect(home) as mesh, Progress(f"retry {name}", unit="events", quiet=shape.is_document) as progress:
        wanted = ids or [str(each["id"]) for each in mesh.webhook_dead_letters(name, limit=1000)]
        for at in range(0, len(wanted), _RETRIED_AT_ONCE):
            progress.update(len(taken), total=len(wanted))
            found = mesh.retry_webhook(name, wanted[at : at + _RETRIED_AT_ONCE])
            taken += found["taken"]
            if found["answer"]:
                break
    left = len(wanted) - len(taken)
    document = {"taken": taken, "left": left, "answer": found["answer"], "failed": found["failed"]}
    why = f"; {left} are left, as {found['failed']} was answered with {found['answer']}" if found["answer"] else ""
    output.print_done(document, shape, f"{len(taken)} were taken{why}." if wanted else "None was given up.")
    if found["answer"]:
        raise typer.Exit(ExitCode.FAILED)


def delete(name: NameArgument, home: HomeOption = None, shape: ShapeOption = Shape.TABLE) -> None:
    """Send nothing more."""
    with connect(home) as mesh:
        mesh.delete_webhook(name)
    output.print_done({"deleted": name}, shape, f"{name} is deleted.")


def _secret(file: Path | None) -> str:
    try:
        return file.read_text().strip() if file is not None else ""
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}") from error


def _told(found: dict[str, Any], shape: Shape, *, given: bool) -> None:
    if shape.is_document:
        output.print_document(found, shape)
        return
    print(f"{found['name']} sends {', '.join(found['types'])} to {found['url']}.")
    if not given:
        print(f"Its secret, which is not shown again: {found['secret']}")


def _state(found: dict[str, Any]) -> str:
    return "stopped" if found["disabled"] else str(found["delivery"]["state"])
