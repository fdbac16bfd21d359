"""How a model is served: the object `serving` of its `model.json`, or of its registration, which goes before it.

Names and meaning of batching are Triton's (`max_batch_size`, `dynamic_batching` of its model configuration).
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import quote, unquote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation
from recmesh.serving.transport.endpoints import Endpoint
from recmesh.spec.join import TopicName

Count = Annotated[int, Field(ge=0, le=1 << 30)]
Processes = Annotated[int, Field(ge=1, le=64)]
MOST_LEVELS = 64
MOST_HNS = 64
HIDDEN = "***"
"""Stands for a password where settings are shown."""
VALKEY_VARIABLES = "RECMESH_VALKEY_"
"""Only variables that begin so are given to whoever may say how a model is served."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def is_own_subject(topic: str) -> bool:
    """Whether the topic's subjects would be among the mesh's own."""
    return topic.partition(".")[0] in ("recmesh", "tasks")


def _no_topic_of_ours(name: str) -> str:
    if is_own_subject(name):
        raise ValueError(f"{name} would be among the mesh's own subjects")
    return name


NO_PRIORITY = 100
"""What a request counts as that has none: 1 goes first."""


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class QueuePolicy(_Fields):
    """What happens to requests of a priority level that wait."""

    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    """When the timeout is over: refuse the request, or run it after all others."""
    default_timeout_microseconds: Count = 0
    """For how long a request may wait; 0: no bound but its deadline, after which it is refused in any case."""
    allow_timeout_override: bool = False
    """Whether a request may bring a timeout of its own, if it is shorter."""
    max_queue_size: Count = 0
    """Requests that may wait; 0: as many as the process holds at all."""


class DynamicBatching(_Fields):
    """When requests that wait are run together."""

    preferred_batch_size: tuple[Annotated[int, Field(gt=0)], ...] = Field(default=(), strict=False)
    """Sizes at which a batch is run at once; without them, `max_batch_size`."""
    max_queue_delay_microseconds: Count = 0
    """For how long a request may be held back for a batch of such a size; 0: what waits is run."""
    priority_levels: Annotated[int, Field(ge=0, le=MOST_LEVELS)] = 0
    """Levels 1 (first) to this, with policies of their own; 0: one level, in which any priority counts."""
    default_priority_level: Count = 0
    """Of a request without a priority; must be a level where there are levels."""
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[Annotated[int, Field(strict=False)], QueuePolicy] = {}
    """By level; the default policy is for the others."""

    @model_validator(mode="after")
    def _levels_exist(self) -> Self:
        if self.priority_levels and not 1 <= self.default_priority_level <= self.priority_levels:
            raise ValueError(f"default_priority_level must be from 1 to priority_levels ({self.priority_levels})")
        wrong = sorted(level for level in self.priority_queue_policy if not 1 <= level <= self.priority_levels)
        if wrong:
            raise ValueError(f"priority_queue_policy is for levels 1 to {self.priority_levels}, not {wrong[0]}")
        return self

    def level(self, priority: int) -> int:
        """The level of a request: its own; the default where it has none, or one that there is not, as in Triton."""
        if not self.priority_levels:
            return 1
        return priority if 1 <= priority <= self.priority_levels else self.default_priority_level

    def policy(self, level: int) -> QueuePolicy:
        """Of a level."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)


class PredictionLog(_Fields):
    """Which predictions are logged, and where."""

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of requests; which ones follows from their ids alone."""
    topic: Annotated[TopicName, AfterValidator(_no_topic_of_ours)] = "predictions"
    features: bool = True
    """With the features, as they were sent: raw columns, or inputs."""


class MissPolicy(_Fields):
    """What an id reads as that has no row."""

    kind: Literal["zero", "default", "mean", "fail"] = "zero"
    """`zero`: as in training's evaluation. `mean`: of the table's rows. `fail`: the request is refused."""
    value: tuple[float, ...] = Field(default=(), strict=False)
    """Of `default`: the vector, of the table's dimension."""

    @model_validator(mode="after")
    def _value_is_of_default(self) -> Self:
        if (self.kind == "default") != bool(self.value):
            raise ValueError("value is given with kind default, and only there")
        return self


def _kind_alone(given: Any) -> Any:
    return {"kind": given} if isinstance(given, str) else given


def _url_of_valkey(url: str) -> str:
    from redis.connection import parse_url  # only where one is given: most who read settings need no client

    parse: Any = parse_url                       # it has no annotations
    try:
        password = parse(url).get("password")
    except ValueError as error:
        raise ValueError(f"is no URL of a server: {error}") from None
    if "@" in urlsplit(url).path:
        raise ValueError("has an @ behind the host: a password is percent-encoded")
    if password == HIDDEN:
        raise ValueError("has its password hidden, as it is shown: give the password itself")
    if foreign := [name for name in _VARIABLE.findall(url) if not name.startswith(VALKEY_VARIABLES)]:
        raise ValueError(f"{', '.join(foreign)}: only variables that begin with {VALKEY_VARIABLES} are given")
    return url


def _password_in(url: str) -> str:
    """Of a checked URL; empty: there is none."""
    parts = urlsplit(url)
    fields = [unquote(field).removeprefix("password=") for field in parts.query.split("&")
              if unquote(field).startswith("password=")]
    return unquote(fields[-1] if fields else parts.netloc.rpartition("@")[0].partition(":")[2])


def _shown_url(url: str) -> str:
    try:
        if _VARIABLE.fullmatch(_password_in(url)):
            return url                           # it names the password, and does not tell it
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}:{HIDDEN}{at}{host}" if colon else parts.netloc
    fields = (f"password={HIDDEN}" if unquote(field).startswith("password=") else field
              for field in parts.query.split("&"))
    query = f"?{'&'.join(fields)}" if parts.query else ""
    return f"{parts.scheme}://{netloc}{parts.path}{query}"


class ValkeySettings(_Fields):
    """Rows of mapped snapshots, shared by processes."""

    url: Annotated[str, Field(pattern="^(redis|rediss|unix)://"), AfterValidator(_url_of_valkey)]
    deadline_ms: Annotated[float, Field(gt=0, le=1000, strict=False)] = 5.0
    """For the rows of one table in one request; afterwards the disk answers."""
    ttl_s: Annotated[int, Field(gt=0)] = 3600


class EmbeddingSettings(_Fields):
    """Of models whose tables lie beside their program."""

    cache_bytes: Annotated[int, Field(ge=0)] = 64 << 20
    """For all tables together, in equal parts; 0: none."""
    valkey: ValkeySettings | None = None
    miss: Mapping[str, Annotated[MissPolicy, BeforeValidator(_kind_alone)]] = {}
    """By table; `*` stands for all others. A kind alone may be given as a string."""

    def miss_of(self, table: str) -> MissPolicy:
        """The policy of a table."""
        return self.miss.get(table) or self.miss.get("*") or MissPolicy()


class FreshnessSettings(_Fields):
    """How such a model follows its job."""

    follow: bool = True
    """False: the exported snapshot is served, for good."""
    poll_s: Annotated[float, Field(ge=0.01, le=3600, strict=False)] = 0.25
    """How often it is looked for a newer snapshot."""
    held: Count = 0
    """Stay at this version, which was rolled back to; 0: follow."""
    overlay_bytes: Annotated[int, Field(ge=0)] = 64 << 20
    """Changed rows that are kept in memory; with more of them the mapped tables are written anew."""
    halves: bool = False
    """With `split: auto`: rows in CNs, the program in HNs. Else it is served whole."""


class Replicas(_Fields):
    """How many processes there may be of one kind."""

    min: Processes = 1
    max: Processes = 1

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


class Scaling(_Fields):
    """A model with this has processes of its own, as many as its requests need."""

    cn: Replicas = Replicas()
    """Of a model in halves: those that run the sparse one."""
    hn: Replicas = Replicas()
    """Those that run the dense half, or the whole model where it is not split."""
    target_utilisation: Annotated[float, Field(gt=0.0, le=0.95)] = 0.7
    """Share of a process' time that requests are to take. Above .95 a queue would hardly ever be empty."""
    quantile: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.9
    """Of the forecast of requests: so often what comes is not above what is planned for."""
    hold_s: Annotated[float, Field(ge=0.0, le=86_400.0)] = 300.0
    """For so long fewer processes must have been enough before one is taken away."""
    dry_run: bool = False
    """Decide and tell, and change nothing."""


_MIG = re.compile(r"([1-9][0-9]*c\.)?[1-9][0-9]*g\.[1-9][0-9]*gb(\+me)?")


def _profile_of_mig(text: str) -> str:
    if not _MIG.fullmatch(text):
        raise ValueError(f"{text!r} is no profile of MIG slices, such as 2g.20gb")
    return text


class HnResources(_Fields):
    """What each process of a dense half, or of a whole model, has for itself."""

    gpu: Annotated[int, Field(ge=0, le=64)] = 0
    """Accelerators; with `mig` slices of them."""
    mig: Annotated[str, AfterValidator(_profile_of_mig)] | None = None
    """Profile of the slices as the driver names it (`2g.20gb`); none: whole GPUs."""
    or_cpu: bool = False
    """Run on the CPU where no such device is free; else that is refused."""

    @model_validator(mode="after")
    def _slices_are_counted(self) -> Self:
        if (self.mig or self.or_cpu) and not self.gpu:
            raise ValueError("gpu must be at least 1 with mig or or_cpu")
        if self.mig and self.gpu > 1:
            raise ValueError("a process can use one MIG slice, not several")     # CUDA enumerates no more than one
        return self


class Resources(_Fields):
    """Of each process."""

    hn: HnResources = HnResources()


def _address_of_hn(text: str) -> str:
    try:
        Endpoint.parse(text)
    except InvalidArgument as error:
        raise ValueError(error.violations[0].reason if error.violations else error.message) from None
    return text


class ServingSettings(_Fields):
    """All of `serving`."""

    split: Literal["auto", "never", "always"] = "auto"
    """`auto`: in halves where the model's folder has a usable `split/`. `always`: refused without one."""
    max_batch_size: Count = 0
    """Samples that are run together at most; 0: each request by itself. A larger request is run by itself."""
    dynamic_batching: DynamicBatching = DynamicBatching()
    hns: tuple[Annotated[str, Field(max_length=200), AfterValidator(_address_of_hn)], ...] = Field(
        default=(), strict=False, max_length=MOST_HNS
    )
    """Addresses of HNs, `tcp:host:port`, which run the dense half instead of the gateway's own."""
    log: PredictionLog | None = None
    """None: its predictions are not logged."""
    embeddings: EmbeddingSettings = EmbeddingSettings()
    freshness: FreshnessSettings = FreshnessSettings()
    scaling: Scaling | None = None
    resources: Resources = Resources()

    @property
    def has_own_processes(self) -> bool:
        """Whether the model shares its processes with no other."""
        return self.scaling is not None or self.resources.hn.gpu > 0

    @model_validator(mode="after")
    def _batches_fit(self) -> Self:
        too_large = [size for size in self.dynamic_batching.preferred_batch_size if size > self.max_batch_size]
        if too_large:
            raise ValueError(f"preferred_batch_size {too_large[0]} is above max_batch_size ({self.max_batch_size})")
        return self

    def with_secrets(self, env: Mapping[str, str]) -> Self:
        """With what variables in the URL of Valkey stand for. FailedPrecondition: one of them is not set."""
        valkey = self.embeddings.valkey
        if valkey is None or not (names := _VARIABLE.findall(valkey.url)):
            return self
        if missing := [name for name in names if not env.get(name)]:
            raise FailedPrecondition(
                f"serving.embeddings.valkey.url names {', '.join(missing)}, and the environment has no such variable",
                reason="NO_SECRET",
            )
        url = _VARIABLE.sub(lambda found: quote(env[found[1]], safe=""), valkey.url)
        embeddings = self.embeddings.model_copy(update={"valkey": valkey.model_copy(update={"url": url})})
        return self.model_copy(update={"embeddings": embeddings})

    @classmethod
    def parse(cls, document: Mapping[str, Any], *, path: str = "serving") -> Self:
        """InvalidArgument names each wrong field below `path`."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            wrong = [
                Violation(
                    ".".join([path, *map(str, item["loc"])]),
                    _no_such_field(cls, item["loc"]) if item["type"] == "extra_forbidden"
                    else item["msg"].removeprefix("Value error, "),
                )
                for item in error.errors()
            ]
            raise InvalidArgument(
                f"{path} is wrong", reason="BAD_SERVING_SETTINGS", violations=wrong
            ) from None


def _no_such_field(model: type[BaseModel], path: tuple[int | str, ...]) -> str:
    """Why a field of this path is refused, with the one that may be meant."""
    *above, name = path
    for part in above:
        field = model.model_fields.get(str(part))
        if field is not None:                    # else it is a key of a mapping
            model = next(_models_in(field.annotation), model)
    close = get_close_matches(str(name), list(model.model_fields), n=1)
    return f"there is no such field{f'; did you mean {close[0]}?' if close else ''}"


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for each in get_args(kind):
        yield from _models_in(each)


def check_stored(settings: ServingSettings, *, path: str) -> None:
    """InvalidArgument where they hold a secret in the clear: they are to be stored and shown as they are."""
    valkey = settings.embeddings.valkey
    password = "" if valkey is None else _password_in(valkey.url)
    if password and not _VARIABLE.fullmatch(password):
        why = f"a password must be a variable (${{{VALKEY_VARIABLES}NAME}}): the specification is stored and shown"
        wrong = [Violation(f"{path}.embeddings.valkey.url", why)]
        raise InvalidArgument(f"{path} is wrong", reason="BAD_SERVING_SETTINGS", violations=wrong)


def shown(document: Mapping[str, Any]) -> dict[str, Any]:
    """Checked settings, as a document, for whoever may see the model: without the password of its Valkey."""
    embeddings = document.get("embeddings") or {}
    valkey = embeddings.get("valkey")
    if not valkey:
        return dict(document)
    return {**document, "embeddings": {**embeddings, "valkey": {**valkey, "url": _shown_url(valkey["url"])}}}
