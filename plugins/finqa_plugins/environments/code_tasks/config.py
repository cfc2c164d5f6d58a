"""Options of the `code` environment."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CodeConfig(BaseModel):
    """Which tasks are embedded, and how code is executed and judged."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    family: Literal["seed", "functions"] = Field(
        default="seed", description="Embedded tasks: the two of the seed, or simple functions made from `seed`"
    )
    tasks: int = Field(default=400, ge=10, le=1800, description="Embedded functions, of all splits together")
    seed: int = Field(default=0, ge=0, description="Of the embedded functions, and of random numbers in tests")
    careless: float = Field(
        default=0.0, ge=0, le=1, description="Share of the demonstrated functions that forget to return their result"
    )
    raising: Literal["error", "failed"] = Field(
        default="error", description="A test in which the function raises: an error (reward -1), or a failed test"
    )
    time_limit_s: float = Field(default=1.0, gt=0, le=600, description="Processor seconds of one execution")
    fresh_sandboxes: bool = Field(default=False, description="A sandbox of its own for every episode")
