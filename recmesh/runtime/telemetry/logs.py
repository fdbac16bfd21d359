"""JSON logs on stderr: one object a line, with trace ids, without secrets."""

import logging
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import SecretStr

from recmesh.runtime.telemetry.traces import trace_ids

REDACTED = "[redacted]"
_SECRET_KEY = re.compile(r"(^|_)(token|secret|password|passwd|api_?key|authorization|credentials?)$", re.I)
_SECRET_TEXT = (
    re.compile(r"(?i)(?<=bearer )[^\s\"',;]+"),
    re.compile(r"(?<=://)[^/\s@]+(?=@)"),                                       # user:password@host
    re.compile(r"(?i)(?<=token=)[^&\s\"',;]+|(?<=api_key=)[^&\s\"',;]+|(?<=password=)[^&\s\"',;]+"),
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def get_logger(name: str) -> logging.Logger:
    """The standard library's logger; `extra={...}` becomes fields of the JSON line."""
    return logging.getLogger(name)


def redact(value: Any, *, key: str = "") -> Any:
    """The value with secrets blotted out: SecretStr, token-like keys, credentials inside text."""
    if isinstance(value, SecretStr) or (_SECRET_KEY.search(key) and value):
        return REDACTED
    if isinstance(value, str):
        for pattern in _SECRET_TEXT:
            value = pattern.sub(REDACTED, value)
        return value
    if isinstance(value, Mapping):
        return {str(name): redact(item, key=str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [redact(item) for item in value]
    return value


class JsonFormatter(logging.Formatter):
    """One JSON object per record: at, level, logger, service, message, trace, span, then the extras."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        trace_id, span_id = trace_ids()
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if trace_id:
            line |= {"trace_id": trace_id, "span_id": span_id}
        line |= {
            name: redact(value, key=name)
            for name, value in vars(record).items() if name not in _STANDARD and not name.startswith("_")
        }
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


@dataclass(frozen=True, slots=True)
class LogLine:
    """What an ops page shows of one record."""

    at: float
    level: str
    logger: str
    message: str


class RecentLogs(logging.Handler):
    """The last lines in memory, for the ops page; bounded."""

    def __init__(self, capacity: int = 500) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=capacity)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's text, redacted; the oldest line goes."""
        try:
            message = str(redact(record.getMessage()))
        except Exception:   # a broken format string must not break the caller that logs
            message = str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            message += f" ({type(record.exc_info[1]).__name__}: {redact(str(record.exc_info[1]))})"
        self._lines.append(LogLine(record.created, record.levelname.lower(), record.name, message))

    def lines(self, count: int = 200) -> Sequence[LogLine]:
        """The newest `count` lines, newest last."""
        return list(self._lines)[-count:]


recent_logs = RecentLogs()
"""This process's last lines; `setup` attaches it to the root logger."""
