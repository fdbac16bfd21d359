"""The base of every specification: strict, closed, and clear about what is wrong where."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from recmesh.runtime.errors import InvalidArgument, Violation

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A DNS label, so that a name may become a subject token, a file name or a Kubernetes object."""

Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]{0,61}[A-Za-z0-9])?$")]
EntryPoint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""`package.module:function`"""

PositiveInt = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Spec(BaseModel):
    """Unknown fields are refused: a misspelt limit must not silently be no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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


def _violation(item: Any) -> Violation:
    path = ".".join(str(part) for part in item["loc"]) or "(root)"
    reason = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        reason = "there is no such field"
    return Violation(path, reason)
