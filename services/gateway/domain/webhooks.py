"""Webhooks: who wants to be told of which events, where, and how; what was sent, and what comes next."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.events import EVENTS, SUBJECT_ROOT, Event, EventType, token
from recmesh.spec.namespaces import NAMESPACE_END, unfit
from services.gateway.domain.addresses import wrong_url
from services.gateway.domain.signing import key_of

Mode = Literal["structured", "binary"]

MAX_URL = 2048
MAX_FILTERS = 64
"""Of each kind."""
OF_JOBS = frozenset({"job", "run", "snapshot", "plan", "topic", "lease"})
"""Entities of events whose id is a job's."""
OF_PEOPLE = frozenset({"audit", "webhook"})
"""What people did: told to those who may do everything."""
ROTATION_S = 24 * 3600.0
"""For so long a secret that was replaced signs, too."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Webhook:
    """One receiver."""

    name: str
    url: str
    types: tuple[str, ...]
    """Patterns of event types, as in a shell: `job.*`."""
    secret: str = field(repr=False)
    """`whsec_...`; never shown again."""
    namespaces: tuple[str, ...] = ()
    """Of models, and of jobs by the namespace that they export to; empty: all."""
    jobs: tuple[str, ...] = ()
    """Ids; empty: all."""
    mode: Mode = "structured"
    description: str = ""
    created: float = 0.0
    owner: str = ""
    """Who made it."""
    sees_people: bool = False
    """Its maker may do everything, and so is told who did what."""
    after: int = 0
    """The newest event when it was made."""
    earlier_secret: str = field(default="", repr=False)
    earlier_until: float = 0.0
    """Until then the secret before the last rotation signs, too."""
    disabled: str = ""
    """Why nothing is sent any more; empty: it is."""

    def secrets(self, now: float) -> list[str]:
        """Those that sign now."""
        return [self.secret, *([self.earlier_secret] if self.earlier_secret and now < self.earlier_until else [])]

    def rotated(self, secret: str, now: float) -> "Webhook":
        """With another secret; the one before signs for a day, too."""
        return replace(self, secret=secret, earlier_secret=self.secret, earlier_until=now + ROTATION_S)

    def is_sent_as(self, other: "Webhook") -> bool:
        """Whether all but secrets and words is the same, so that a delivery under way need not begin anew."""
        return replace(
            self, secret=other.secret, earlier_secret=other.earlier_secret, earlier_until=other.earlier_until,
            description=other.description,
        ) == other

    def kinds(self) -> list[EventType[Any]]:
        """Types of events that it may be sent."""
        return [
            kind for kind in EVENTS
            if not kind.anyone and not kind.topic and (self.sees_people or kind.name.partition(".")[0] not in OF_PEOPLE)
            and any(fnmatch.fnmatchcase(kind.name, pattern) for pattern in self.types)
        ]

    def subjects(self) -> list[str]:
        """Where its events are, and perhaps others, too."""
        if self.jobs:
            return [f"{SUBJECT_ROOT}.*.*.*.{token(job)}" for job in self.jobs]
        return [kind.subject for kind in self.kinds()]

    def wants(self, event: Event[Any], namespace: str | None) -> bool:
        """Whether an event is for it; `namespace` is that of the event's model or job, None where it has none."""
        if event.type not in self.kinds() or (self.jobs and event.entity_id not in self.jobs):
            return False
        return not self.namespaces or namespace in self.namespaces

    def document(self) -> dict[str, Any]:
        """As REST shows it: without secrets."""
        return {
            "name": self.name, "url": self.url, "types": list(self.types), "namespaces": list(self.namespaces),
            "jobs": list(self.jobs), "mode": self.mode, "description": self.description, "created": self.created,
            "owner": self.owner, "disabled": self.disabled,
        }


def namespace_of_model(name: str) -> str:
    """`ads` of `ads--ctr`; empty where it is in none."""
    namespace, found, _ = name.partition(NAMESPACE_END)
    return namespace if found else ""


def check(hook: Webhook) -> None:
    """InvalidArgument names every wrong field."""
    wrong: list[Violation] = []
    if not _NAME.fullmatch(hook.name):
        wrong.append(Violation("name", "is not up to 63 lower-case letters, digits and hyphens inside"))
    if not hook.types:
        wrong.append(Violation("types", "is empty: name types of events, or patterns such as job.*"))
    elif len(hook.types) <= MAX_FILTERS:
        every = replace(hook, sees_people=True)
        wrong += [
            Violation(f"types[{index}]", f"no event that is sent is {pattern!r}")
            for index, pattern in enumerate(hook.types) if not replace(every, types=(pattern,)).kinds()
        ]
        if not wrong and not hook.kinds():
            wrong.append(Violation("types", "are told to those alone who hold the scope admin"))
    wrong += [
        Violation(name, f"has more than {MAX_FILTERS} entries")
        for name in ("types", "namespaces", "jobs") if len(getattr(hook, name)) > MAX_FILTERS
    ]
    wrong += [
        Violation(f"{name}[{index}]", "is not a name of 1 to 128 characters")
        for name in ("namespaces", "jobs")
        for index, each in enumerate(getattr(hook, name)) if not 0 < len(each) <= 128
    ]
    wrong += [
        Violation(f"namespaces[{index}]", reason) for index, each in enumerate(hook.namespaces[:MAX_FILTERS])
        if (reason := unfit(each))
    ]
    if len(set(hook.jobs)) < len(hook.jobs):
        wrong.append(Violation("jobs", "names a job twice"))
    for part in (lambda: check_url(hook.url), lambda: key_of(hook.secret)):
        try:
            part()
        except InvalidArgument as error:
            wrong += error.violations
    if wrong:
        raise InvalidArgument(
            f"the webhook has {len(wrong)} wrong field(s)", reason="BAD_WEBHOOK", violations=wrong
        )


def check_url(url: str) -> tuple[str, int, bool]:
    """Host, port, and whether by TLS; InvalidArgument says what is wrong."""
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise wrong_url(f"is longer than {MAX_URL} characters, or has others than printable ASCII")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise wrong_url(f"cannot be read: {error}") from None
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise wrong_url("is not https://host/path")
    if parts.username is not None or parts.password is not None:
        raise wrong_url("holds a user or a password: whoever may list webhooks would see it")
    if parts.fragment:
        raise wrong_url("has a fragment, which is never sent")
    secure = parts.scheme == "https"
    return parts.hostname, port or (443 if secure else 80), secure


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an attempt."""

    status: int = 0
    """Of HTTP; 0: there was none."""
    error: str = ""
    """Why there was none; or the beginning of what was answered."""
    seconds: float = 0.0
    retry_after_s: float = 0.0

    @property
    def is_taken(self) -> bool:
        """The receiver has it."""
        return 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        """The receiver wants nothing any more."""
        return self.status == 410

    @property
    def is_final(self) -> bool:
        """This very message is refused for what it is: sent again it would be again."""
        return self.status in (413, 415)

    def __str__(self) -> str:
        text = " ".join(self.error.split())[:300]
        return f"HTTP {self.status}{f': {text}' if text else ''}" if self.status else text or "no answer"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long, and how often, an event is sent again."""

    first_s: float = 1.0
    factor: float = 4.0
    most_s: float = 900.0
    give_up_s: float = 24 * 3600.0
    """After the event; it is tried once in any case."""

    def pause_s(self, attempt: int, *, luck: float, retry_after_s: float = 0.0) -> float:
        """Until the attempt after the `attempt`-th (from 1): 1 s, 4 s, 16 s, ... 15 min, each off by a quarter by
        `luck` (0 to 1), so that many do not come back at once; not before a receiver wishes."""
        grown = self.first_s * self.factor ** min(attempt - 1, 20)
        wished = min(max(0.0, retry_after_s), self.most_s)
        return max(min(self.most_s, grown) * (0.75 + 0.5 * luck), wished)


@dataclass(slots=True)
class Progress:
    """How far all before is settled, where later ones may be before earlier ones."""

    floor: int
    """Everything up to here is settled."""
    _open: set[int] = field(default_factory=set)
    _newest: int = 0

    def begin(self, sequence: int) -> None:
        """It was read; sequences grow."""
        self._open.add(sequence)
        self._newest = sequence

    def settle(self, sequence: int) -> None:
        """It was taken, or given up."""
        self._open.discard(sequence)
        self.floor = max(self.floor, min(self._open) - 1 if self._open else self._newest)

    @property
    def waiting(self) -> int:
        """Read, and not settled."""
        return len(self._open)


@dataclass(slots=True)
class Record:
    """What one gateway has seen of a webhook since it delivers."""

    delivered: int = 0
    failures: int = 0
    """Attempts."""
    dead: int = 0
    waiting: int = 0
    """Read from the bus, and not settled."""
    behind: int = 0
    """Events that wait on the bus, and may be for it."""
    last_at: float = 0.0
    last: str = ""
    """What was answered last."""
    failing_since: float = 0.0
    """0: the last attempt was taken."""

    def note(self, answer: Answer, at: float) -> None:
        """One attempt more."""
        self.last_at, self.last = at, str(answer)
        if answer.is_taken:
            self.delivered += 1
            self.failing_since = 0.0
        else:
            self.failures += 1
            self.failing_since = self.failing_since or at

    def document(self) -> dict[str, Any]:
        """As REST shows it."""
        return {
            "state": "failing" if self.failing_since else "ok" if self.delivered else "idle",
            "delivered": self.delivered, "failed_attempts": self.failures, "dead": self.dead,
            "waiting": self.waiting, "behind": self.behind, "last_at": self.last_at, "last": self.last,
            "failing_since": self.failing_since,
        }


def parse(document: Mapping[str, Any]) -> Webhook:
    """A stored webhook; KeyError, TypeError or ValueError when it is damaged."""
    values = dict(document)
    for name in ("types", "namespaces", "jobs"):
        values[name] = tuple(values[name])
    known = {name for name in Webhook.__dataclass_fields__ if name in values}
    return Webhook(**{name: values[name] for name in known})


def stored(hook: Webhook) -> dict[str, Any]:
    """With its secrets, for the store."""
    return {name: getattr(hook, name) for name in Webhook.__dataclass_fields__}


def sees(namespaces: Sequence[str], hook: Webhook) -> bool:
    """Whether somebody confined to these namespaces (empty: nobody is) may see and change a webhook."""
    return not namespaces or (bool(hook.namespaces) and set(hook.namespaces) <= set(namespaces))
