"""A job's YAML or JSON file as it is submitted: checked, and its local paths made absolute."""

from collections.abc import Iterator, Mapping
from datetime import date
from glob import has_magic, iglob
from pathlib import Path
from typing import Any

import yaml

from recmesh.runtime.errors import InvalidArgument, NotFound, Violation
from recmesh.spec.dataset import TIME_FIELDS, DatasetSpec
from recmesh.spec.job import TrainingJob


def load_job(path: Path | str, *, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The checked specification as plain values; `overrides` are dotted fields (`training.epochs`: 2).

    Relative paths (data files, code) count from the current folder, or, when there is nothing, from the
    file's own folder. NotFound without a file; InvalidArgument names every wrong field.
    """
    file = Path(path)
    values = load_mapping(file)
    for field, value in (overrides or {}).items():
        _set(values, field, value)
    TrainingJob.parse(values)
    resolve_data(values.get("data"), file.parent)
    resolve_data((values.get("evaluation") or {}).get("data"), file.parent)
    code = (values.get("model") or {}).get("code")
    if code and not code.startswith("sha256:") and "://" not in code:
        values["model"]["code"] = str(resolve(code, file.parent))
    return values


def load_dataset(path: Path | str) -> dict[str, Any]:
    """A dataset's specification from its file; as `load_job`."""
    file = Path(path)
    values = load_mapping(file)
    DatasetSpec.parse(values)
    resolve_data(values, file.parent)
    return values


def load_mapping(file: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file; NotFound, or InvalidArgument with the place of the fault."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise NotFound(f"there is no file {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}") from error
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "(file)"
        problem = getattr(error, "problem", None) or str(error)
        raise InvalidArgument(f"{file} is not YAML", violations=[Violation(where, str(problem))]) from error
    if not isinstance(values, dict):
        raise InvalidArgument(f"{file} holds no mapping of fields")
    plain: dict[str, Any] = _plain(values)
    return plain


def _plain(value: Any) -> Any:
    """As JSON has it: YAML makes dates of what looks like one."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case date():
            return value.isoformat()
    return value


def resolve(path: str, beside: Path) -> Path | str:
    """Absolute form of a local path or pattern: from here when it exists here, else from `beside`."""
    if "://" in path or Path(path).is_absolute():
        return path
    here, there = Path.cwd() / path, (Path.cwd() / beside / path)
    return there if not _exists(here) and _exists(there) else here


def _exists(path: Path) -> bool:
    pattern = str(path)
    for field in TIME_FIELDS:
        pattern = pattern.replace(field, "*")
    if has_magic(pattern):
        return next(iglob(pattern, recursive=True), None) is not None
    return path.exists()


def resolve_data(data: Any, beside: Path) -> None:
    """Makes the paths of a dataset absolute, in place, as far as they are what a specification has there."""
    aside = data.get("bad_records") if isinstance(data, dict) else None
    if isinstance(aside, dict) and aside.get("folder"):
        aside["folder"] = str(resolve(str(aside["folder"]), beside))
    for source in _sources(data):
        if isinstance(source.get("files"), list):
            source["files"] = [str(resolve(str(file), beside)) for file in source["files"]]
        for field in ("descriptors", "done"):
            if source.get(field):
                source[field] = str(resolve(str(source[field]), beside))


def _sources(data: Any) -> Iterator[dict[str, Any]]:
    """The mappings among what stands where sources do."""
    if not isinstance(data, dict):
        return
    streams = data.get("streams")
    found = [data.get("source")]
    for stream in streams if isinstance(streams, list) else ():
        inside = stream.get("sources") if isinstance(stream, dict) else None
        found += inside if isinstance(inside, list) else ()
    yield from (source for source in found if isinstance(source, dict))


def _set(values: dict[str, Any], field: str, value: Any) -> None:
    *parents, last = field.split(".")
    for name in parents:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            violation = Violation(field, f"{name} has no fields")
            raise InvalidArgument(f"{field} cannot be set", violations=[violation])
    values[last] = value
