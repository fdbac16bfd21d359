"""Messages of topics: the log of predictions, and labels."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from recmesh.partitions import EVENT_TIME, Limits, count_of, ensure, fnv1a32, subject_of
from recmesh.runtime import telemetry
from recmesh.runtime.bus import Bus, Link, Publisher
from recmesh.runtime.deadline import bounded
from recmesh.runtime.errors import CallerError, DeadlineExceeded, InvalidArgument, MeshError, NotFound
from recmesh.runtime.events import Event, encode, serving
from recmesh.runtime.lifecycle import Component
from services.gateway.app.labels import Labels
from services.gateway.domain.predictions import Label, Prediction, rows_of

WAITING = 1024
"""Requests whose log waits to be sent; one more is dropped."""
WAITING_BYTES = 64 << 20
IN_FLIGHT = 1024
AGAIN_S = 1.0
LABELS_S = 30.0
STOP_S = 2.0

Message = tuple[str, bytes, str, dict[str, str]]
"""Key, body, id, headers."""

_log = telemetry.get_logger(__name__)
_metrics = telemetry.Metrics("gateway")
_logged = _metrics.counter("predictions_logged", "Samples that went out to logs of predictions")
_dropped = _metrics.counter(
    "predictions_dropped", "Requests, or samples on their way, that are in no log, by reason", labels=("reason",)
)
_labels = _metrics.counter("labels_posted", "Labels that were stored; known: they had been before", labels=("known",))


@dataclass(frozen=True, slots=True)
class Retention:
    """Of topics that the gateway makes; one that is there keeps its own."""

    partitions: int = 1
    max_age_s: float = 7 * 86_400.0
    max_bytes: int = 1 << 30
    """Of each partition; the oldest messages go first."""


class Topics:
    """Topics by name, made when they are first needed."""

    def __init__(self, link: Link, retention: Retention) -> None:
        self._link = link
        self._retention = retention
        self._partitions: dict[str, int] = {}

    async def subject(self, topic: str, key: str, *, make: bool = True) -> str:
        """The subject of the key's partition. NotFound naming `topic` where there is none and none is to be made."""
        if topic not in self._partitions:
            found = await count_of(self._link, topic)
            if not found and not make:
                raise NotFound(
                    f"topic: there is no topic {topic}, and the rights to run models make none", reason="UNKNOWN_TOPIC"
                )
            if not found:
                kept = self._retention
                limits = Limits(kept.max_age_s, kept.max_bytes, unsynced=True)
                found = await ensure(self._link, topic, kept.partitions, limits=limits, field="topic")
            self._partitions[topic] = found
        return subject_of(topic, fnv1a32(key.encode()) % self._partitions[topic])

    def forget(self) -> None:
        """Look again: what was known may be wrong."""
        self._partitions.clear()


class PredictionSender:
    """Sends logs of predictions to their topics. Whoever offers one never waits; what cannot be sent is counted."""

    name = "prediction log"

    def __init__(self, bus: Bus, topics: Topics, *, patience_s: float = 60.0) -> None:
        self._bus = bus
        self._topics = topics
        self._patience_s = patience_s
        self._waiting: deque[Prediction] = deque()
        self._current: Prediction | None = None
        self._refused: dict[str, tuple[float, str]] = {}
        """Topics that cannot be: until when they are not asked for again, and why."""
        self._bytes = 0
        self._came = asyncio.Event()
        self._publisher: Publisher | None = None
        self._sent = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Requests whose log is not on its way."""
        return len(self._waiting) + (self._current is not None)

    def offer(self, prediction: Prediction) -> bool:
        """Log it when there is time; False when so much waits already that it is dropped."""
        size = prediction.size_bytes
        if len(self._waiting) >= WAITING or self._bytes + size > WAITING_BYTES:
            _dropped.labels("QUEUE_FULL").inc()
            return False
        self._waiting.append(prediction)
        self._bytes += size
        self._came.set()
        return True

    async def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """What is under way gets a moment; what is not sent then is counted."""
        if self._task is not None:
            with contextlib.suppress(TimeoutError, MeshError):
                async with asyncio.timeout(STOP_S):
                    while self.waiting and self._bus.connected:  # noqa: ASYNC110 (at the end, nobody is told of each)
                        await asyncio.sleep(0.02)
                    if self._publisher is not None and self._bus.connected:
                        await self._publisher.flush()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._give_up()
        if self.waiting:
            _dropped.labels("STOPPED").inc(self.waiting)
            _log.warning("the log of %d requests was not sent before the end", self.waiting)

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._came.clear()
                await self._came.wait()
            prediction = self._current = self._waiting.popleft()
            self._bytes -= prediction.size_bytes
            try:
                await self._send(prediction)
            except MeshError as error:           # NATS stays away, or refused what was sent before
                _dropped.labels(error.reason or "UNKNOWN").inc()
                _log.warning("predictions of %s cannot be logged: %s", prediction.model, error)
                if self._publisher is None or self._publisher.has_failed:
                    await self._give_up()
                await asyncio.sleep(AGAIN_S)
            except Exception:
                _dropped.labels("UNKNOWN").inc()
                _log.exception("a prediction of %s cannot be logged", prediction.model)
            self._current = None

    async def _send(self, prediction: Prediction) -> None:
        refused = self._refused.get(prediction.log.topic)
        if refused is not None and time.monotonic() < refused[0]:
            _dropped.labels(refused[1]).inc()
            return
        try:
            messages = await asyncio.to_thread(messages_of, prediction)
        except ValueError as error:
            _dropped.labels("NO_TEXT").inc()
            _log.warning("a prediction of %s is no JSON: %s", prediction.model, error)
            return
        if self._publisher is None:
            publisher = Publisher(self._bus.link, in_flight=IN_FLIGHT, patience_s=self._patience_s)
            await publisher.start()
            self._publisher, self._sent = publisher, 0
        for key, body, id_, headers in messages:
            try:
                subject = await self._topics.subject(prediction.log.topic, key)
            except CallerError as error:         # this topic cannot be; others can
                self._refuse(prediction, error)
                return
            try:
                await self._publisher.send(subject, body, message_id=id_, headers=headers)
            except InvalidArgument as error:     # too large: it alone is not sent
                if self._publisher.has_failed:
                    raise
                _dropped.labels(error.reason or "TOO_LARGE").inc()
                _log.warning("a sample of %s cannot be logged: %s", prediction.model, error)
                continue
            self._sent += 1
            _logged.inc()

    def _refuse(self, prediction: Prediction, error: CallerError) -> None:
        now, reason = time.monotonic(), error.reason or "UNKNOWN"
        self._refused = {topic: entry for topic, entry in self._refused.items() if now < entry[0]}
        self._refused[prediction.log.topic] = (now + AGAIN_S, reason)
        _dropped.labels(reason).inc()
        _log.warning("predictions of %s cannot be logged: %s", prediction.model, error)

    async def _give_up(self) -> None:
        """Begin anew with the next one; what had no answer counts as lost."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.stop()
            _dropped.labels("NO_ANSWER").inc(max(0, self._sent - publisher.stored))
        self._topics.forget()


def messages_of(prediction: Prediction) -> list[Message]:
    """A message for each sample: CloudEvents in binary mode, whose data are a flat row."""
    source = "/recmesh/gateway"
    made: list[Message] = []
    for sample, row in rows_of(prediction):
        data = serving.PredictionLogged.model_construct(
            recmesh_id=sample, recmesh_model=prediction.model, recmesh_version=prediction.version,
            recmesh_time=prediction.at, recmesh_raw=bool(prediction.form), recmesh_outputs={},
        )  # fmt: skip
        event = Event(
            serving.PREDICTION_LOGGED, prediction.model, data, id=f"{prediction.model}/{sample}", time=prediction.at,
            source=source,
        )
        headers, _ = encode(event)
        id_ = headers.pop("Nats-Msg-Id")
        made.append((sample, orjson.dumps(row), id_, {**headers, EVENT_TIME: repr(prediction.at)}))
    return made


class LabelSender:
    """Stores labels in a topic."""

    def __init__(self, bus: Bus, topics: Topics) -> None:
        self._bus = bus
        self._topics = topics

    async def post(self, topic: str, labels: Sequence[Label], at: float, make: bool) -> int:
        """Returns when all are stored; how many of them were there already, as far as the server remembers (2 min).

        Any may be stored when it fails: posting all of them again is right. NotFound: without `make` no topic is made.
        """
        limit_s = bounded(None, default_s=LABELS_S, method="labels") or LABELS_S
        publisher = Publisher(self._bus.link, in_flight=IN_FLIGHT, patience_s=limit_s)
        try:
            async with asyncio.timeout(limit_s):
                await publisher.start()
                for label in labels:
                    subject = await self._topics.subject(topic, label.id, make=make)
                    body, id_, headers = label_message(label, at=at)
                    await publisher.send(subject, body, message_id=id_, headers=headers)
                await publisher.flush()
        except TimeoutError:
            self._topics.forget()
            raise DeadlineExceeded(
                f"{publisher.stored} of {len(labels)} labels were stored in {limit_s:.1f} s; post all of them again",
                reason="LABELS_TOO_SLOW",
            ) from None
        except MeshError:
            self._topics.forget()
            raise
        finally:
            await publisher.stop()
        _labels.labels("no").inc(publisher.stored - publisher.doubles)
        _labels.labels("yes").inc(publisher.doubles)
        return publisher.doubles


def label_message(label: Label, *, at: float) -> tuple[bytes, str, dict[str, str]]:
    """Body, id and headers; a label without a time happens at `at`."""
    time = at if label.time is None else label.time
    data = serving.LabelPosted(id=label.id, value=label.value, time=time)
    event = Event(serving.LABEL_POSTED, label.id, data, id=label.message_id, time=time, source="/recmesh/gateway")
    headers, body = encode(event)
    return body, headers.pop("Nats-Msg-Id"), {**headers, EVENT_TIME: repr(time)}


class LabelCommands:
    """Handles `label.post`."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels

    async def handle(self, event: Event[serving.LabelPost]) -> None:
        """InvalidArgument sends labels that are wrong to the dead letters."""
        entries = [item.model_dump() for item in event.data.labels]
        await self._labels.post(event.data.topic, entries)


def consumer(bus: Bus, labels: Labels) -> Component:
    """The component that listens for labels."""
    return bus.consume("gateway-labels", [serving.LABEL_POST], LabelCommands(labels).handle, max_in_flight=4)
