"""Options of the environments `code` and `mbpp`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from finqa_cli.types import ExecutionLimits
from finqa_cli.types.executions import MIB

WAITING_S = 10.0
"""Wall time of `code` on top of three times the processor time, for code that waits instead of computing."""


class CodeConfig(BaseModel):
    """Options of `code`: which tasks are embedded, and how code is executed and judged."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    family: Literal["seed", "functions"] = Field(
        default="seed", description="Embedded tasks: the two of the seed, or simple functions made from `seed`"
    )
    tasks: int = Field(default=400, ge=10, le=1800, description="Embedded functions, of all splits together")
    seed: int = Field(default=0, ge=0, description="Seed of the embedded functions, and of random numbers in tests")
    careless: float = Field(
        default=0.0, ge=0, le=1, description="Share of the demonstrated functions that forget to return their result"
    )
    raising: Literal["error", "failed"] = Field(
        default="error", description="A test in which the function raises: an error (reward -1), or a failed test"
    )
    time_limit_s: float = Field(default=1.0, gt=0, le=600, description="Processor seconds of one execution")
    fresh_sandboxes: bool = Field(default=False, description="A sandbox of its own for every episode")

    @property
    def limits(self) -> ExecutionLimits:
        """Limits of one execution."""
        return ExecutionLimits(cpu_s=self.time_limit_s, wall_s=3 * self.time_limit_s + WAITING_S)


class MbppConfig(BaseModel):
    """Options of `mbpp`: how problems are asked, and what their solutions may use."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    family: Literal["embedded", "functions"] = Field(
        default="embedded", description="Embedded problems: forty of our own, or simple functions made from `seed`"
    )
    tasks: int = Field(default=400, ge=10, le=1800, description="Embedded functions, of all splits together")
    seed: int = Field(default=0, ge=0, description="Seed of the embedded functions and their careless demonstrations")
    careless: float = Field(
        default=0.0, ge=0, le=1, description="Share of demonstrated first attempts that forget to return their result"
    )
    careless_again: float = Field(
        default=0.0, ge=0, le=1, description="Share of demonstrated later attempts that forget it in spite of feedback"
    )
    max_attempts: int = Field(default=3, ge=1, le=100, description="Solutions that may be tried at one problem")
    dataset_limit: int = Field(
        default=0, ge=0, description="Take only the first so many problems of each split; 0: all"
    )
    shown_tests: int = Field(default=2, ge=0, le=100, description="Tests of a problem that the prompt shows")
    fresh_sandboxes: bool = Field(default=False, description="Give each episode a sandbox that hosted no other")
    time_limit_s: float = Field(default=5.0, gt=0, le=600, description="Processor seconds of one execution")
    wall_s: float = Field(default=30.0, gt=0, le=3600, description="Seconds of one execution, for code that waits")
    memory_mib: int = Field(default=512, ge=64, le=65536, description="Memory of one execution, in MiB")

    @model_validator(mode="after")
    def _shows_functions(self) -> Self:
        if self.family != "functions" and (self.careless or self.careless_again):
            raise ValueError("careless demonstrations are of family = functions only")
        return self

    @property
    def limits(self) -> ExecutionLimits:
        """Limits of one execution."""
        return ExecutionLimits(cpu_s=self.time_limit_s, wall_s=self.wall_s, memory_bytes=self.memory_mib * MIB)
