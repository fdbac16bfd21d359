"""Reading request bodies: JSON or YAML, with errors that name the place."""

from typing import Any, TypeVar

import orjson
import yaml
from fastapi import Request
from pydantic import BaseModel, ValidationError

from recmesh.runtime.errors import InvalidArgument, Violation
from services.gateway.rest.problems import invalid

JSON_TYPES = ("application/json",)
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
MAX_YAML_ALIASES = 100

M = TypeVar("M", bound=BaseModel)


async def read_model(request: Request, model: type[M]) -> M:
    """The JSON body as a checked model; an empty body is one without fields."""
    raw = await request.body()
    try:
        return model.model_validate(orjson.loads(raw) if raw else {})
    except orjson.JSONDecodeError as error:
        raise _bad(f"is not JSON: {error}") from None
    except ValidationError as error:
        raise invalid(error.errors()) from None


async def read_document(request: Request) -> Any:
    """The body, JSON or YAML by its content type, as plain data."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    raw = await request.body()
    if not raw.strip():
        raise _bad("is empty")
    if kind in JSON_TYPES:
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise _bad(f"is not JSON: {error}") from None
    if kind in YAML_TYPES:
        return _yaml(raw)
    raise InvalidArgument(
        f"{kind} is not read here; send {', '.join((*JSON_TYPES, *YAML_TYPES[:1]))}",
        reason="UNSUPPORTED_MEDIA_TYPE",
    )


def _yaml(raw: bytes) -> Any:
    """Plain YAML. Aliases are counted first: nested ones make gigabytes of a page."""
    try:
        events = yaml.parse(raw, Loader=yaml.SafeLoader)
        aliases = sum(isinstance(event, yaml.AliasEvent) for event in events)
        if aliases > MAX_YAML_ALIASES:
            raise _bad(f"has {aliases} YAML aliases, more than {MAX_YAML_ALIASES}")
        return yaml.safe_load(raw)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(f"is not YAML: {error}") from None


def as_json(document: Any) -> str:
    """JSON text of plain data; InvalidArgument for what JSON cannot hold (YAML knows dates and sets)."""
    try:
        return orjson.dumps(document).decode()
    except TypeError as error:
        raise _bad(f"holds what JSON cannot: {error}") from None


def _bad(why: str) -> InvalidArgument:
    return InvalidArgument(f"the body {why}", reason="BAD_BODY", violations=[Violation("body", why)])
