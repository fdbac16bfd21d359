"""Reading request bodies: JSON or YAML, with errors that name the place."""

from typing import Any, TypeVar

import orjson
import yaml
from fastapi import Request
from pydantic import BaseModel, ValidationError

from recmesh.runtime.errors import InvalidArgument, ResourceExhausted, Violation
from services.gateway.rest.problems import invalid

JSON_TYPES = ("application/json",)
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
MAX_YAML_ALIASES = 100
MAX_YAML_DEPTH = 64
MAX_YAML_BYTES = 512 << 10
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""safe_load's loader, compiled where libyaml is there."""

M = TypeVar("M", bound=BaseModel)


async def read_model(request: Request, model: type[M]) -> M:
    """The JSON body as a checked model; an empty body is one without fields."""
    raw = await request.body()
    try:
        return model.model_validate(_noted(request, orjson.loads(raw) if raw else {}))
    except orjson.JSONDecodeError as error:
        raise _bad(f"is not JSON: {error}") from None
    except ValidationError as error:
        raise invalid(error.errors()) from None


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object, for rules that check its fields themselves."""
    try:
        document = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise _bad(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _bad("is not a JSON object")
    _noted(request, document)
    return document


async def read_document(request: Request) -> Any:
    """The body, JSON or YAML by its content type, as plain data."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    raw = await request.body()
    if not raw.strip():
        raise _bad("is empty")
    if kind in JSON_TYPES:
        try:
            return _noted(request, orjson.loads(raw))
        except orjson.JSONDecodeError as error:
            raise _bad(f"is not JSON: {error}") from None
    if kind in YAML_TYPES:
        return _noted(request, _yaml(raw))
    raise InvalidArgument(
        f"{kind} is not read here; send {', '.join((*JSON_TYPES, *YAML_TYPES[:1]))}",
        reason="UNSUPPORTED_MEDIA_TYPE",
    )


def _noted(request: Request, document: Any) -> Any:
    """The document; what it would name is noted for the audit, which tells of refusals, too."""
    if isinstance(document, dict) and isinstance(name := document.get("name"), str):
        request.scope.get("recmesh.told", {})["asked"] = name
    return document


def _yaml(raw: bytes) -> Any:
    """Plain YAML, of a size and depth that a person may write.

    Events are looked at first: nested aliases make gigabytes of a page, and deep nesting takes the parser
    quadratic time.
    """
    if len(raw) > MAX_YAML_BYTES:
        raise ResourceExhausted(f"YAML may have {MAX_YAML_BYTES} bytes; send JSON", reason="TOO_LARGE")
    aliases = depth = 0
    try:
        for event in yaml.parse(raw, Loader=LOADER):
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if aliases > MAX_YAML_ALIASES or depth > MAX_YAML_DEPTH:
                raise _bad(f"has more than {MAX_YAML_ALIASES} aliases or {MAX_YAML_DEPTH} levels")
        return yaml.load(raw, Loader=LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise _bad(f"is not YAML: {error}") from None


def as_json(document: Any) -> str:
    """JSON text of plain data; InvalidArgument for what JSON cannot hold (YAML knows dates and sets)."""
    try:
        return orjson.dumps(document).decode()
    except TypeError as error:
        raise _bad(f"holds what JSON cannot: {error}") from None


def _bad(why: str) -> InvalidArgument:
    return InvalidArgument(f"the body {why}", reason="BAD_BODY", violations=[Violation("body", why)])
