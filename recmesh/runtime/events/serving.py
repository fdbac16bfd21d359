"""Events of serving, and of the loop from predictions to samples; the others are in `catalog`."""

from typing import Any

from pydantic import ConfigDict, Field

from recmesh.runtime.events.types import EVENTS, EventType, Payload

# --- serving ---------------------------------------------------------------------------------------


class ModelRegistered(Payload):
    """A model version is in the registry."""

    name: str
    version: str
    uri: str
    framework: str = ""
    job_id: str = ""


class ModelRegister(Payload):
    """Please register a model version, as by `POST /v1/models`. The event's id stands for a missing `request_id`."""

    name: str
    version: str = ""
    uri: str
    framework: str
    request_id: str = ""
    load: bool = True
    metrics: dict[str, float] = Field(default_factory=dict)
    serving: dict[str, Any] = Field(default_factory=dict)


class ModelReady(Payload):
    """A model version answers requests."""

    name: str
    version: str
    load_s: float = 0.0


class ModelFailed(Payload):
    """A model version could not be loaded."""

    name: str
    version: str
    reason: str


class ModelUnloaded(Payload):
    """A model version no longer answers."""

    name: str
    version: str
    reason: str = ""


class ProcessLoad(Payload):
    """What all processes of one kind did."""

    replicas: int
    busy: float
    """Mean share of a process' time in which it computed."""
    answered_per_s: float
    waiting: float
    """Requests, at the end of the window."""


class ModelMeasured(Payload):
    """What a model with processes of its own had to do, and how busy they were."""

    name: str
    window_s: float
    arrivals_per_s: float
    phases_s: dict[str, float] = Field(default_factory=dict)
    """Mean seconds of a request: queue, input, infer, output."""
    kinds: dict[str, ProcessLoad] = Field(default_factory=dict)
    """By kind: cn, hn."""
    way: str = ""
    """Which processes, where the model's versions have them in several ways; requests are those for these versions."""


class ScalingDecision(Payload):
    """How many processes of one kind there should be."""

    kind: str
    before: int
    after: int
    reason: str
    why: str
    demand_per_s: float = 0.0
    """Planned for."""
    capacity_per_s: float = 0.0
    """Of one process at the target; 0: not known."""


class ModelScalingDecided(Payload):
    """brain wants another number of a model's processes."""

    name: str
    decisions: list[ScalingDecision]
    dry_run: bool = False
    """Nothing is changed."""
    way: str = ""
    """As of `model.measured`."""


class ModelScaled(Payload):
    """A process of a model was started, and takes requests, or was ended, or could not be."""

    name: str
    kind: str
    before: int
    after: int
    reason: str
    took_s: float
    trouble: str = ""
    """Why it could not be."""
    way: str = ""
    """As of `model.measured`."""


MODEL_REGISTERED = EVENTS.add(
    EventType("model.registered", "gateway", ModelRegistered, "A model version is in the registry.")
)
MODEL_REGISTER = EVENTS.add(
    EventType("model.register", "gateway", ModelRegister, "Register a model version.", anyone=True)
)
MODEL_READY = EVENTS.add(EventType("model.ready", "gateway", ModelReady, "A model version answers."))
MODEL_FAILED = EVENTS.add(EventType("model.failed", "gateway", ModelFailed, "A model could not be loaded."))
MODEL_UNLOADED = EVENTS.add(
    EventType("model.unloaded", "gateway", ModelUnloaded, "A model version no longer answers.")
)
MODEL_MEASURED = EVENTS.add(
    EventType("model.measured", "gateway", ModelMeasured, "Requests, phases and busy shares of a scaled model.")
)
MODEL_SCALING_DECIDED = EVENTS.add(
    EventType("model.scaling_decided", "gateway", ModelScalingDecided, "Another number of a model's processes.")
)
MODEL_SCALED = EVENTS.add(
    EventType("model.scaled", "gateway", ModelScaled, "A model has a process more or less.")
)

# --- the loop: predictions and what became of them -------------------------------------------------


class PredictionLogged(Payload):
    """A sample of an answered request. The features stand beside these fields, under their own names."""

    model_config = ConfigDict(extra="allow")

    recmesh_id: str
    """Of the sample, by which labels name it: the request's id, and `ID/N` where it had several samples."""
    recmesh_model: str
    recmesh_version: str
    recmesh_time: float
    recmesh_raw: bool
    """Whether the features are raw columns; else they are the model's inputs."""
    recmesh_outputs: dict[str, Any]


class LabelPosted(Payload):
    """What became of a sample; to be joined with it by id."""

    id: str
    value: float
    time: float | None = None
    """Unix seconds of the event; else the message's own."""


class LabelEntry(Payload):
    """A label as somebody tells it."""

    id: str
    value: float = 1.0
    time: float | None = None


class LabelPost(Payload):
    """Please store these labels. Anybody may say so, as by `POST /v1/labels`."""

    labels: list[LabelEntry] = Field(min_length=1, max_length=10_000)
    topic: str = "labels"


PREDICTION_LOGGED = EVENTS.add(
    EventType("prediction.logged", "gateway", PredictionLogged, "A model answered; sampled.", topic="predictions")
)
LABEL_POSTED = EVENTS.add(
    EventType("label.posted", "gateway", LabelPosted, "It is known what became of a sample.", topic="labels")
)
LABEL_POST = EVENTS.add(EventType("label.post", "gateway", LabelPost, "Store labels of samples.", anyone=True))
