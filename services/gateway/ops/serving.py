"""The page of serving, of all models or of one: where time goes, who runs them, what failed, how they are cut."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from recmesh.runtime.ops import Bar, Bars, Cell, Page, Picture, Plots, Table, Tile, Tiles, Tone, text
from recmesh.runtime.ops.panels import Choice, Drawing, Value
from recmesh.runtime.ops.plots import Axis, Dot, Dots, Plot, Scale
from recmesh.serving.split.manifest import Manifest
from services.gateway.app.served import Served
from services.gateway.domain.load import Load
from services.gateway.domain.models import ModelVersion, State
from services.gateway.domain.scaling import PHASES, Look
from services.gateway.domain.statistics import ModelStatistics
from services.gateway.ops.view import View
from services.gateway.runtimes.pool import RuntimeStatus

SHOWN = 100
SURPRISES = ("SATURATED", "LIMIT")
Rows = Iterator[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Row:
    """A version that is loaded, or is to be and is not, or was asked for since the start."""

    name: str
    version: str
    served: Served | None
    counted: ModelStatistics
    record: ModelVersion | None = None
    """What the registry says, as it was a few seconds ago."""


def page(view: View) -> Page:
    """Of all models; `?model=NAME` of one."""
    shown = ServingView(view)
    return Page(
        "serving", subtitle="models, their processes, and where requests' time goes", refresh_s=2.0,
        choices=("model",), links={"gateway": "../", "all models": "./"},
        panels=[
            Tiles("Now", shown.tiles),
            Table("Versions", VERSION_COLUMNS, of_choice=shown.versions, empty="no model is loaded"),
            Plots("Where the time of a request goes", shown.phases, empty="no request was answered yet"),
            Plots("Requests and processes", shown.scaling, empty="no such model has `serving.scaling`"),
            Table("Processes", PROCESS_COLUMNS, of_choice=shown.processes, empty="none runs"),
            Table("Windows and queues", QUEUE_COLUMNS, of_choice=shown.queues, empty="no process runs"),
            Table("Choice among HNs", CHOICE_COLUMNS, of_choice=shown.choices, empty="no model is in halves"),
            Table("Embeddings by tier", TIER_COLUMNS, of_choice=shown.tiers, empty="no model looks rows up in tiers"),
            Table("Failures", FAILURE_COLUMNS, of_choice=shown.failures, empty="none since the start"),
            Table("Processes started and ended", CHANGE_COLUMNS, of_choice=shown.changes, empty="none by plan yet"),
            Plots("The cut", shown.cut, empty="choose a model above"),
            Table("What goes between CN and HN", CUT_COLUMNS, of_choice=shown.transfers, empty="choose a model above"),
        ],
    )  # fmt: skip


VERSION_COLUMNS = (
    "model", "version", "state", "weight", "in it", "requests", "errors", "p50", "p90", "p99", "samples", "runs as",
)  # fmt: skip
PROCESS_COLUMNS = (
    "kind", "framework", "pid", "device", "requests in it", "wait", "answered", "busy", "restarts", "models",
)  # fmt: skip
QUEUE_COLUMNS = (
    "process", "waits for the model", "window", "on the way", "wait to be sent", "bandwidth", "granted", "refused",
)  # fmt: skip
CHOICE_COLUMNS = (
    "model", "CN", "HNs", "requests", "asked of two HNs", "left alone", "without the model",
)  # fmt: skip
TIER_COLUMNS = ("model", "table", "hit rate", "rows in the cache", "answered by")
FAILURE_COLUMNS = ("model", "version", "reason", "requests", "share of all")
CHANGE_COLUMNS = ("at", "model", "kind", "processes", "reason", "took", "why")
CUT_COLUMNS = ("version", "from", "to", "tensor", "dtype", "shape", "bytes")


class ServingView:
    """Rows and pictures, of what a viewer chose."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def tiles(self) -> list[Tile]:
        """Of all models together."""
        rows = list(self._rows({}))
        requests = sum(row.counted.success.count + row.counted.fail.count for row in rows)
        errors = sum(row.counted.fail.count for row in rows)
        rate = sum(points[-1][1] for points in self._view.rates().values() if points)
        processes = self._view.runtimes()
        down = sum(not item.pid for item in processes)
        waiting = sum(item.queued for item in processes)
        resting = sum(row.served is not None and row.served.resting for row in rows)
        return [
            Tile("requests per second", text.count(rate), "over the last step"),
            Tile("requests", text.count(requests), "since the start"),
            Tile("errors", errors, text.share(errors / requests) if requests else "", Tone.WARN if errors else Tone.OK),
            Tile("loaded versions", sum(row.served is not None for row in rows), f"{resting} at rest"),
            Tile("processes", len(processes), f"{down} down" if down else "all run", Tone.BAD if down else Tone.OK),
            Tile("requests that wait", waiting, "for a process", Tone.WARN if waiting else Tone.OK),
        ]

    def versions(self, choice: Choice) -> Rows:
        """Loaded ones, those that were, and those that are not, though somebody wants them; these with the reason."""
        for row in self._rows(choice):
            counted, latency = row.counted, row.counted.latency
            errors = Cell(str(counted.fail.count), Tone.WARN if counted.fail.count else Tone.PLAIN)
            yield (
                _link(row.name), row.version, _state(row, serves=self._view.serves(row.name, row.version)),
                self._weight(row), row.served.in_flight if row.served else 0,
                counted.success.count + counted.fail.count, errors,
                *(text.duration(latency.quantile(share)) for share in (0.5, 0.9, 0.99)), counted.samples,
                self._runs_as(row),
            )  # fmt: skip

    def phases(self, choice: Choice) -> list[Drawing]:
        """Mean of each phase, by version."""
        bars = []
        for row in self._rows(choice):
            counted = row.counted
            answered = counted.queue.count
            if not answered:
                continue
            taken = [
                phase.ns / answered / 1e9
                for phase in (counted.queue, counted.compute_input, counted.compute_infer, counted.compute_output)
            ]
            note = ", ".join(f"{name} {text.duration(each)}" for name, each in zip(PHASES, taken, strict=True))
            bars.append(Bar(f"{row.name}/{row.version}", taken, text.duration(sum(taken)), note))
        if not bars:
            return []
        note = "means since the start; in models in halves the way to the HN and back is input, and post is output"
        return [Bars("mean of answered requests", PHASES, bars, note)]

    def scaling(self, choice: Choice) -> list[Drawing]:
        """Of models with processes of their own: what came, how many there were, how busy."""
        found: list[Drawing] = []
        for _, looks in sorted(self._view.scaling.by_processes.items()):
            name, way = looks[-1].model, looks[-1].way
            if choice.get("model", name) == name:
                found += _scaling_plots(f"{name}, {way}" if way else name, looks)
        return found

    async def processes(self, choice: Choice) -> Rows:
        """With what each says of itself."""
        rows = []
        for item, told in await self._told(choice):
            pid = Cell(str(item.pid), Tone.OK) if item.pid else Cell("down", Tone.BAD)
            restarts = Cell(str(item.restarts), Tone.WARN if item.restarts else Tone.PLAIN)
            busy = _total(told.get("busy_s"))
            rows.append((
                _kind(item), item.framework.partition(" ")[0], pid, item.device, item.in_flight, item.queued,
                text.count(_total(told.get("answered"))), text.duration(busy) if told else "", restarts,
                ", ".join(item.models),
            ))  # fmt: skip
        return iter(rows)

    async def queues(self, choice: Choice) -> Rows:
        """What waits for each model in each process, and windows of HNs that are asked before requests are sent.

        HNs of other machines are shown as CNs see them.
        """
        rows: list[Sequence[Value]] = []
        far: dict[str, Mapping[str, Any]] = {}
        for item, told in await self._told(choice):
            if not told:
                continue
            waits, name = _counts(told.get("queued", {})), f"{_kind(item)} {item.pid}"
            if item.kind == "hn":
                rows.append((name, waits, *_window(told.get("admission"))))
                continue
            rows.append((name, waits, *NO_WINDOW))
            if item.way == "remote":
                for address, seen in told.get("status", {}).get("hns", {}).items():
                    if not far.get(address, {}).get("status"):
                        far[address] = seen
        return iter([*rows, *(_far(address, seen) for address, seen in sorted(far.items()))])

    async def choices(self, choice: Choice) -> Rows:
        """Of models in halves, by CN: how many requests it sent, and which HNs it does not ask."""
        rows: list[Sequence[Value]] = []
        for item, told in await self._told(choice):
            for key, seen in told.get("status", {}).get("models", {}).items() if item.kind == "cn" else ():
                if choice.get("model", name := key.partition("/")[0]) != name:
                    continue
                calls, hedges = int(seen["calls"]), int(seen["hedges"])
                rows.append((
                    _link(name), item.pid, ", ".join(seen["hns"]), text.count(calls),
                    f"{text.count(hedges)} ({text.share(hedges / calls)})" if calls else "none",
                    *(Cell(", ".join(away) or "none", Tone.WARN if away else Tone.OK)
                      for away in (seen["ejected"], seen["without"])),
                ))  # fmt: skip
        return iter(rows)

    async def tiers(self, choice: Choice) -> Rows:
        """Of models whose processes tell of `tables`: how many ids each tier answered."""
        rows = []
        for _, told in await self._told(choice):
            for key, status in told.get("fresh", {}).items():
                if choice.get("model", name := key.partition("/")[0]) != name:
                    continue
                for table, seen in status.get("tables", {}).items():
                    counts = {name: seen[name] for name in seen if name not in TIER_FIELDS}
                    rate = seen.get("hit_rate")
                    rows.append((
                        _link(name), table,
                        Cell(text.share(rate), share=rate) if rate is not None else "no id yet",
                        text.count(seen.get("cached_rows", 0)),
                        ", ".join(f"{name} {text.count(count)}" for name, count in counts.items()),
                    ))  # fmt: skip
        return iter(rows)

    def failures(self, choice: Choice) -> Rows:
        """By reason, the most frequent first."""
        found = [
            (count, row, reason) for row in self._rows(choice) for reason, count in row.counted.failures.items()
        ]
        for count, row, reason in sorted(found, key=lambda item: -item[0]):
            share = count / (row.counted.success.count + row.counted.fail.count)
            yield _link(row.name), row.version, Cell(reason, Tone.WARN), count, Cell(text.share(share), share=share)

    def changes(self, choice: Choice) -> Rows:
        """By plan, newest first."""
        for each in list(reversed(self._view.scaling.changes))[:SHOWN]:
            if choice.get("model", each.model) != each.model:
                continue
            tone = Tone.BAD if each.trouble else Tone.WARN if each.reason in SURPRISES else Tone.OK
            yield (
                text.age(each.at, now=self._view.now()), _link(each.model), each.kind.upper(),
                f"{each.before} → {each.after}", Cell("failed" if each.trouble else each.reason, tone),
                text.duration(each.took_s), "; ".join(filter(None, (each.way, each.trouble or each.why))),
            )  # fmt: skip

    def cut(self, choice: Choice) -> list[Drawing]:
        """The picture that `recmesh partition` left with the model that was chosen."""
        found: list[Drawing] = []
        for row in self._rows(choice) if choice.get("model") else ():
            split = self._view.split_of(row.served)
            title = f"{row.name}/{row.version}"
            if split is None:
                if row.served is not None and not row.served.is_ensemble:
                    found.append(Bars(title, (), (), "", empty=f"served whole: {self._view.why_whole(row.served)}"))
                continue
            if self._view.picture_of(row.served) is not None:
                path = f"cut/{quote(row.name, safe='')}/{quote(row.version, safe='')}.svg"
                found.append(Picture(title, path, split.why))
            else:
                found.append(Bars(title, (), (), split.why, empty="its folder has no split/cut.svg"))
        return found

    def transfers(self, choice: Choice) -> Rows:
        """Of the model that was chosen, at the reference batch."""
        for row in self._rows(choice) if choice.get("model") else ():
            split = self._view.split_of(row.served)
            yield from () if split is None else _transfers(row.version, split)

    def _rows(self, choice: Choice) -> Iterator[Row]:
        """By name, newest version first."""
        statistics = self._view.statistics()
        loaded = {(item.record.name, item.record.version): item for item in self._view.loaded()}
        records = {(item.name, item.version): item for item in self._view.versions}
        wanted = [key for key, item in records.items() if item.state in (State.LOADING, State.FAILED)]
        for key in sorted({*statistics, *loaded, *wanted}, key=lambda key: (key[0], -int(key[1]))):
            if choice.get("model", key[0]) == key[0]:
                yield Row(*key, loaded.get(key), statistics.get(key) or ModelStatistics(), records.get(key))

    def _runs_as(self, row: Row) -> str:
        served = row.served
        if served is None:
            return row.record.reason if row.record else ""
        if served.is_ensemble:
            return f"ensemble of {len(served.card.steps)}"
        ways = {item.way for item in self._view.runtimes() if served.record.key in item.models}
        if "remote" in ways:
            way = ", in halves, by HNs of other machines"
        elif "split" in ways:
            way = ", in halves"
        elif ways:
            way = f", whole: {self._view.why_whole(served) or 'its folder was split since; load it again'}"
        else:                                    # at rest, or down
            way = ""
        own = ", processes of its own" if served.settings.has_own_processes else ""
        return served.runtime.partition("#")[0] + own + way

    def _weight(self, row: Row) -> Value:
        rules = self._view.traffic(row.name)
        if rules.shadow == row.version:
            return f"copies of {rules.shadow_share:.0%}"
        total = sum(rules.weights.values())
        share = rules.weights.get(row.version, 0.0) / total if total else None
        return Cell(text.share(share), share=share) if share is not None else ""

    async def _told(self, choice: Choice) -> list[tuple[RuntimeStatus, Mapping[str, Any]]]:
        name = choice.get("model")
        return [
            (item, told) for item, told in await self._view.told()
            if name is None or any(key.partition("/")[0] == name for key in item.models)
        ]  # fmt: skip


TIER_FIELDS = ("hit_rate", "cached_rows", "cache_bytes")


def _link(name: str) -> Cell:
    return Cell(name, href=f"/serving/?model={quote(name, safe='')}")


def _state(row: Row, *, serves: bool) -> Cell:
    if row.served is None:
        state = row.record.state if row.record else State.UNLOADED
        if state in (State.LOADING, State.FAILED):
            return Cell(str(state), Tone.BAD if state is State.FAILED else Tone.WARN)
        return Cell("not loaded", Tone.IDLE)
    if row.served.resting:
        return Cell("at rest", Tone.IDLE)
    if row.served.is_shadow:
        return Cell("shadow", Tone.IDLE)
    return Cell("serving", Tone.OK) if serves else Cell("down", Tone.BAD)


NO_WINDOW = ("", "", "", "", "", "")


def _window(admission: Mapping[str, Any] | None) -> Sequence[Value]:
    """As `status` of an HN tells it."""
    if admission is None:
        return ("none: CNs need not ask", *NO_WINDOW[1:])
    refused = _counts({reason: count for reason, count in admission["refused"].items() if count}, none="none")
    return (
        text.size(admission["window_bytes"]), text.size(admission["in_flight_bytes"]),
        f"{admission['waiting']} ({text.size(admission['waiting_bytes'])})",
        f"{text.size(admission['bandwidth_bytes_per_s'])}/s", f"{admission['granted']} of {admission['asked']}",
        Cell(refused, Tone.OK if refused == "none" else Tone.WARN),
    )  # fmt: skip


def _far(address: str, seen: Mapping[str, Any]) -> Sequence[Value]:
    """An HN of another machine, as a CN tells of it."""
    status = seen.get("status")
    if status is None:
        why = seen.get("why") or "it does not tell its state"
        return f"HN {address}", Cell(why, Tone.WARN if seen.get("connected") else Tone.BAD), *NO_WINDOW
    waits = _counts({key: model["queued"] for key, model in status["models"].items()})
    return f"HN {address}", waits, *_window(status["admission"])


def _counts(found: Mapping[str, Any], *, none: str = "nothing") -> str:
    return ", ".join(f"{name}: {count}" for name, count in found.items()) or none


def _kind(item: RuntimeStatus) -> str:
    if item.kind == "cn":
        return "CN"
    return "HN" if item.way == "split" else "whole"


def _scaling_plots(name: str, looks: Sequence[Look]) -> list[Drawing]:
    time, kinds = Axis("time, UTC", Scale.TIME), sorted({kind for look in looks for kind in look.loads})
    came = [Dot(look.at, look.arrivals_per_s, note=f"{look.arrivals_per_s:,.1f}/s came") for look in looks]
    newest = looks[-1]
    decided = "; ".join(f"{each.kind.upper()} {each.replicas}: {each.reason}, {each.why}" for each in newest.decisions)
    tones = dict(zip(kinds, (Tone.PLAIN, Tone.OK), strict=False))

    def lines(value: Callable[[Load], float]) -> list[Dots]:
        return [
            Dots(
                kind.upper(), [Dot(look.at, value(look.loads[kind])) for look in looks if kind in look.loads],
                tones[kind], is_joined=True,
            )
            for kind in kinds
        ]  # fmt: skip

    counts, busy = lines(lambda load: load.replicas), lines(lambda load: 100 * load.busy)
    return [
        Plot(f"{name}: requests", time, Axis("per second", from_zero=True), [Dots("came", came, is_joined=True)]),
        Plot(f"{name}: processes", time, Axis("", from_zero=True), counts, note=newest.trouble or decided),
        Plot(f"{name}: busy", time, Axis("% of their time", from_zero=True), busy),
    ]


def _transfers(version: str, split: Manifest) -> Rows:
    sides = {stage.name: f"{stage.where.upper()}: {stage.name}" for stage in split.stages}
    for transfer in split.transfers:
        for name in (*transfer.packed, *transfer.plain):
            known = split.tensor(name)
            yield (
                version, sides.get(transfer.sender, transfer.sender), sides.get(transfer.receiver, transfer.receiver),
                name, known.dtype, "×".join(map(str, known.shape)) or "scalar", f"{known.bytes:,}",
            )  # fmt: skip


def _total(value: Any) -> float:
    """Of the process, or of each of its models."""
    return float(sum(value.values())) if isinstance(value, Mapping) else float(value or 0.0)
