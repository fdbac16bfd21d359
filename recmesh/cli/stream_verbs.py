"""replay, join."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recmesh.cli import output
from recmesh.cli.exit_codes import ExitCode
from recmesh.cli.options import FileArgument, HomeOption, ShapeOption
from recmesh.cli.output import Shape
from recmesh.runtime.errors import InvalidArgument, Violation

if TYPE_CHECKING:
    from recmesh.join.process import JoinProcess
    from recmesh.partitions import Limits
    from recmesh.replay.rows import Rows
    from recmesh.replay.run import Options
    from recmesh.replay.run import Progress as Done
    from recmesh.runtime.bus import Link
    from recmesh.runtime.ops import OpsServer
    from recmesh.runtime.progress import Progress
    from recmesh.runtime.settings import ServiceSettings
    from recmesh.spec.join import LabelJoin

OPEN_S = 30.0
"""For a connection to the server."""


def register(app: typer.Typer) -> None:
    """Adds the verbs of this module."""
    app.command()(replay)
    app.command()(join)


def replay(
    files: Annotated[list[str], typer.Argument(help="Files of one format, in this order.", metavar="FILE...")],
    to: Annotated[
        str, typer.Option(help="Topic of the mesh's NATS, or nats://host:4222/topic, or kafka://host:9092/topic.",
                          metavar="TOPIC"),
    ],
    time: Annotated[
        str, typer.Option(help="Event time: unix s, ms, µs or ns, timestamps, ISO 8601.", metavar="COLUMN")
    ] = "",
    speed: Annotated[str, typer.Option(help="60: an hour in a minute; `max`, or 0: as fast as it goes.")] = "1",
    partitions: Annotated[
        int | None, typer.Option(help="Of a new topic (1 by default); one that is there must have as many.",
                                 min=1, max=4096),
    ] = None,
    key: Annotated[
        str, typer.Option(help="Its value chooses the partition; else each in turn.", metavar="COLUMN")
    ] = "",
    columns: Annotated[str, typer.Option(help="Only these, with commas between.", metavar="COLUMNS")] = "",
    begin: Annotated[str, typer.Option("--from", help="Only rows from this time on.", metavar="TIME")] = "",
    until: Annotated[str, typer.Option("--until", help="Only rows before this time.", metavar="TIME")] = "",
    limit: Annotated[int | None, typer.Option(help="So many rows at most.", min=0)] = None,
    loop: Annotated[bool, typer.Option("--loop", help="Again and again; event times go on.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Pass over what the topic has already.")] = False,
    format: Annotated[str, typer.Option(help="Of the files, else by their ending.")] = "",
    max_age: Annotated[str, typer.Option(help="Of a new topic: how long messages are kept, 7d.")] = "",
    max_bytes: Annotated[str, typer.Option(help="Of each new partition, 10Gi; the oldest go first.")] = "",
    replicas: Annotated[int, typer.Option(help="Of a new topic.", min=1, max=5)] = 1,
    unsynced: Annotated[
        bool, typer.Option("--unsynced", help="Of a new topic: acknowledged before it is on disk; much faster.")
    ] = False,
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Send the rows of a time-stamped file to a topic, as they once happened."""
    from recmesh.partitions import Limits
    from recmesh.replay.run import Options
    from recmesh.spec.quantity import memory_bytes, moment, seconds

    def of(option: str, text: str, parse: Callable[[Any], Any]) -> float:
        try:
            return float(parse(float(text) if text.replace(".", "", 1).isdigit() else text))
        except ValueError as error:
            raise InvalidArgument(f"--{option}: {error}", violations=[Violation(option, str(error))]) from None

    pace = 0.0 if speed == "max" else of("speed", speed, float)
    if pace and not time:
        raise InvalidArgument("--time must name the column of event time, or --speed be max")
    if (begin or until) and not time:
        raise InvalidArgument("--from and --until need --time")
    if unsynced and replicas > 1:
        raise InvalidArgument("--unsynced is for topics of one replica")
    options = Options(
        time=time, key=key, speed=pace, begin=of("from", begin, moment) if begin else None,
        end=of("until", until, moment) if until else None, limit=limit, loop=loop, resume=resume,
    )
    limits = Limits(
        of("max-age", max_age, seconds) if max_age else 0.0,
        int(of("max-bytes", max_bytes, memory_bytes)) if max_bytes else 0, replicas, unsynced,
    )
    from recmesh.replay.rows import open_rows

    rows = open_rows(files, format=format, columns=[c for c in columns.split(",") if c], also=[time, key])
    done = asyncio.run(_replay(rows, to, options, partitions, limits, home, quiet=shape.is_document))
    if shape.is_document:
        output.print_document({name: getattr(done, name) for name in done.__dataclass_fields__}, shape)
    else:
        output.print_fields(_summary(done))
    if done.stopped:
        raise typer.Exit(ExitCode.INTERRUPTED)


async def _replay(
    rows: "Rows", to: str, options: "Options", partitions: int | None, limits: "Limits", home: str | None, *,
    quiet: bool,
) -> "Done":
    from recmesh.cli.topics import link_to, server_and_topic
    from recmesh.partitions import topic_name
    from recmesh.replay.kafka import KafkaSink
    from recmesh.replay.run import Replay
    from recmesh.replay.sinks import JetStreamSink, Sink
    from recmesh.runtime.progress import Progress

    server, name = server_and_topic(to, home)
    topic = topic_name(name, field="to")
    link = None if server.is_kafka else link_to(server, "replay")
    sink: Sink
    if link is None:
        sink = KafkaSink(server.url, topic, partitions=partitions, limits=limits)
    else:
        await link.open(OPEN_S)
        sink = JetStreamSink(link, topic, partitions=partitions, limits=limits)
    progress = Progress("replay", total=_total(rows.total, options), unit="rows", quiet=quiet)
    try:
        await sink.start()
        run = Replay(rows, sink, options, tell=lambda done: _tell(progress, done))
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, run.stop)
        with progress:
            return await run.run()
    finally:
        await sink.stop()
        if link is not None:
            await link.close()


def join(
    file: FileArgument,
    to_end: Annotated[
        bool, typer.Option("--to-end", help="Join what is there now, as if nothing came after it, and end.")
    ] = False,
    http: Annotated[
        str, typer.Option(help="Where metrics, health and a page are; port 0: any.", metavar="HOST:PORT")
    ] = "127.0.0.1:0",
    home: HomeOption = None,
    shape: ShapeOption = Shape.TABLE,
) -> None:
    """Join samples with labels that come later, by id, within a window, until it is stopped."""
    from recmesh.client.jobfile import load_mapping
    from recmesh.spec.join import LabelJoin

    values = load_mapping(file)
    files = values.get("files")
    if isinstance(files, dict) and isinstance(files.get("folder"), str) and "://" not in files["folder"]:
        files["folder"] = os.path.abspath(files["folder"])
    counts = asyncio.run(_join(LabelJoin.parse(values), to_end, http, home, quiet=shape.is_document))
    if shape.is_document:
        output.print_document(counts, shape)
    else:
        output.print_fields({name: f"{count:,}" for name, count in counts.items()})


async def _join(spec: "LabelJoin", to_end: bool, http: str, home: str | None, *, quiet: bool) -> dict[str, int]:
    from recmesh.cli.topics import Server, link_to, mesh_nats
    from recmesh.join.process import JoinProcess
    from recmesh.runtime import telemetry
    from recmesh.runtime.progress import Progress
    from recmesh.runtime.settings import ServiceSettings

    settings = ServiceSettings.from_env(os.environ, "RECMESH_")
    telemetry.setup("join", settings)
    server = Server(spec.server, os.environ.get("RECMESH_NATS_TOKEN")) if spec.server else mesh_nats(home)
    link = link_to(server, f"join {spec.name}")
    ops = ops_of_join(spec.name, http, lambda: dict(process.counts), settings, readiness=link_objection(link))
    await link.open(OPEN_S)
    progress = Progress(f"join {spec.name}", unit="messages", quiet=quiet)
    process = JoinProcess(spec, link, to_end=to_end, tell=lambda process: _tell_join(progress, process))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, process.stop)
    try:
        await ops.start()
        print(f"join {spec.name}: {ops.address}", file=sys.stderr, flush=True)
        ops.set_ready(True)
        with progress:
            await process.run()
    finally:
        await ops.stop()
        await link.close()
    return process.counts


def ops_of_join(
    name: str, address: str, counts: Callable[[], dict[str, Any]], settings: "ServiceSettings", *,
    readiness: Callable[[], str],
) -> "OpsServer":
    """Its page, metrics and probes; beyond loopback by the keys of services (RECMESH_API_KEY), without which there is
    none."""
    from recmesh.runtime.ops import OpsServer, Page, Tiles

    return OpsServer(
        "join", address, Page(f"join {name}", [Tiles("Messages", counts)]), readiness=readiness, token=settings.token,
        tls=settings.http_tls, metrics_token=settings.metrics_token,
    )


def link_objection(link: "Link") -> Callable[[], str]:
    """Why nothing can be joined now, or ''."""
    return lambda: "" if link.connected else "no connection to NATS"


def _tell_join(progress: "Progress", process: "JoinProcess") -> None:
    from recmesh.join.domain import Fate

    counts = process.counts
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    settled = sum(counts.get(fate.value, 0) for fate in Fate)
    progress.update(settled, note=told or "nothing yet")


def _total(rows: int, options: "Options") -> int | None:
    """Rows that a replay passes over or sends; None where it is without an end."""
    if options.limit is not None:
        return options.limit if options.loop else min(rows, options.limit)
    return None if options.loop else rows


def _tell(progress: "Progress", done: "Done") -> None:
    at = [f"at {output.moment(done.event_time)}"] if done.event_time is not None else []
    lag = [f"{done.lag_s:.1f} s behind"] if done.lag_s >= 0.1 else []
    rounds = [f"round {done.rounds + 1}"] if done.rounds else []
    passed = done.sent + done.skipped + (0 if done.rounds else done.left_out)
    progress.update(passed, note=", ".join([*rounds, *at, *lag]))


def _summary(done: "Done") -> dict[str, str]:
    per_s = done.sent / done.seconds if done.seconds else 0.0
    return {
        "rows sent": f"{done.sent:,} in {done.seconds:.1f} s, {per_s:,.0f} rows/s, {output.size(done.size_bytes)}",
        "were there": f"{done.doubles:,}" if done.doubles else "",
        "passed over": f"{done.skipped:,}" if done.skipped else "",
        "of other times": f"{done.left_out:,}" if done.left_out else "",
        "most behind": f"{done.most_lag_s:.1f} s" if done.most_lag_s >= 0.05 else "",
        "rounds": f"{done.rounds:,}" if done.rounds > 1 else "",
        "ended": "as asked; --resume goes on" if done.stopped else "",
    }
