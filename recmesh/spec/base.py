"""The base of every specification: strict, closed, and clear about what is wrong where."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from recmesh.runtime.errors import InvalidArgument, Violation

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A DNS label, so that a name may become a subject token, a file name or a Kubernetes object."""

Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]{0,61}[A-Za-z0-9])?$")]
EntryPoint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""`package.module:function`"""

PositiveInt = Annotated[int, Field(gt=0)]

Fault = tuple[str, str]
"""A dotted path from the specification that has the rule (empty: itself), and the reason."""
S = TypeVar("S")


def rule(check: Callable[[S], Iterator[Fault]]) -> Callable[[S], Iterator[Fault]]:
    """Marks a method of a Spec that tells which of its fields do not fit together.

    It is asked even when other fields are wrong: these are then absent, and a rule that needs one of them is left out.
    """
    check.is_rule = True  # type: ignore[attr-defined]
    return check


def json_faults(path: str, value: Any) -> Iterator[Fault]:
    """What JSON cannot hold in the value of a field of any shape; `path` leads to it."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(name, str):
                yield from json_faults(f"{path}.{name}", item)
            else:
                yield path, f"the key {name!r} is no string"
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from json_faults(f"{path}.{place}", item)
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, f"must be a finite number, not {value}"
    elif value is not None and not isinstance(value, str | int | float):
        yield path, f"a {type(value).__name__} is nothing that JSON has"


class Spec(BaseModel):
    """Unknown fields are refused: a misspelt limit must not silently be no limit."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False   # JSON has no such numbers
    )

    @classmethod
    def parse(cls, value: Any) -> Self:
        """The checked specification; InvalidArgument names every wrong field and its reason."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InvalidArgument(
                f"the {cls.__name__} has {error.error_count()} wrong field(s)",
                violations=[_violation(item) for item in error.errors()],
            ) from None

    @model_validator(mode="wrap")
    @classmethod
    def _with_rules(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Rules are asked even where fields are wrong, so that a user sees everything at once."""
        try:
            made = handler(value)
            errors: list[InitErrorDetails] = []
        except ValidationError as error:
            made = cls._rightly(value, error.errors(include_url=False))
            errors = [_detail(item["type"], item["loc"], item["msg"]) for item in error.errors(include_url=False)]
        errors += [_detail("rule", tuple(path.split(".")) if path else (), why) for path, why in made._faults()]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return made

    def _faults(self) -> Iterator[Fault]:
        for check in _rules(type(self)):
            try:
                yield from check(self)
            except AttributeError:
                if not _has_gaps(self):  # nothing is wrong that could be absent: the rule itself is
                    raise

    @classmethod
    def _given(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """With what a field that is not given is, where that depends on others."""
        return values

    @classmethod
    def _rightly(cls, value: Any, errors: list[Any]) -> Self:
        """What is right in a wrong specification; wrong fields are no attributes of it."""
        values = cls._given(value) if isinstance(value, Mapping) else {}
        right: dict[str, Any] = {}
        wrong = set(cls.model_fields) if not isinstance(value, Mapping) else set()
        for name, field in cls.model_fields.items():
            inside = [item | {"loc": item["loc"][1:]} for item in errors if item["loc"][:1] == (name,)]
            kind = _spec_in(field.annotation)
            if inside and kind and isinstance(values.get(name), Mapping):
                right[name] = kind._rightly(values[name], inside)
            elif inside:
                wrong.add(name)
            elif name in values:
                typed: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
                right[name] = TypeAdapter(typed).validate_python(values[name])
        made = cls.model_construct(None, **right)
        for name in wrong:
            made.__dict__.pop(name, None)
        return made


@cache
def _rules(kind: type[Spec]) -> tuple[Callable[[Spec], Iterator[Fault]], ...]:
    """In the order in which they are written."""
    found = (item for base in reversed(kind.__mro__) for item in vars(base).values())
    return tuple(item for item in found if getattr(item, "is_rule", False))


def _spec_in(annotation: Any) -> type[Spec] | None:
    """The Spec in `Spec` or `Spec | None`."""
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type) and issubclass(kind, Spec)]
    return kinds[0] if kinds and get_args(annotation)[1:] in ((), (type(None),)) else None


def _has_gaps(spec: Spec) -> bool:
    """Whether a field, or one of a part, is absent because it is wrong."""
    parts = [value for value in spec.__dict__.values() if isinstance(value, Spec)]
    return any(name not in spec.__dict__ for name in type(spec).model_fields) or any(map(_has_gaps, parts))


def _detail(kind: str, path: tuple[int | str, ...], reason: str) -> InitErrorDetails:
    words = PydanticCustomError(kind, "{reason}", {"reason": reason})
    return InitErrorDetails(type=words, loc=path, input=None)


def _violation(item: Any) -> Violation:
    path = ".".join(str(part) for part in item["loc"]) or "(root)"
    reason = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        reason = "there is no such field"
    return Violation(path, reason)
