"""How a model is served: the object `serving` of its `model.json`, or of its registration, which goes before it.

Names and meaning of batching are Triton's (`max_batch_size`, `dynamic_batching` of its model configuration).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recmesh.runtime.errors import InvalidArgument, Violation

Count = Annotated[int, Field(ge=0, le=1 << 30)]
MOST_LEVELS = 64


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
    """Levels 1 (first) to this; 0: one level, priorities are not looked at."""
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
        """The level of a request: its own, the default where it has none, the last where there are fewer."""
        if not self.priority_levels:
            return 1
        return min(priority or self.default_priority_level, self.priority_levels)

    def policy(self, level: int) -> QueuePolicy:
        """Of a level."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)


class ServingSettings(_Fields):
    """All of `serving`."""

    split: Literal["auto", "never", "always"] = "auto"
    """`auto`: in halves where the model's folder has a usable `split/`. `always`: refused without one."""
    max_batch_size: Count = 0
    """Samples that are run together at most; 0: each request by itself. A larger request is run by itself."""
    dynamic_batching: DynamicBatching = DynamicBatching()

    @model_validator(mode="after")
    def _batches_fit(self) -> Self:
        too_large = [size for size in self.dynamic_batching.preferred_batch_size if size > self.max_batch_size]
        if too_large:
            raise ValueError(f"preferred_batch_size {too_large[0]} is above max_batch_size ({self.max_batch_size})")
        return self

    @classmethod
    def parse(cls, document: Mapping[str, Any], *, path: str = "serving") -> Self:
        """InvalidArgument names each wrong field below `path`."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            wrong = [
                Violation(".".join([path, *map(str, item["loc"])]), item["msg"].removeprefix("Value error, "))
                for item in error.errors()
            ]
            raise InvalidArgument(
                f"{path} is wrong", reason="BAD_SERVING_SETTINGS", violations=wrong
            ) from None
