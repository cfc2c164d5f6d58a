"""Options of the environments `code` and `mbpp`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from finqa_cli.types import ExecutionLimits
from finqa_cli.types.executions import MIB

WAITING_S = 10.0
"""Wall time of `code` in seconds, added to three times the CPU time, for code that waits instead of computing."""


class CodeConfig(BaseModel):
    """Options of `code`: which tasks are embedded, and how code is executed and judged."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    family: Literal["seed", "functions"] = Field(
        default="seed", description="Embedded tasks: two fixed ones, or simple functions generated from `seed`"
    )
    tasks: int = Field(default=400, ge=10, le=1800, description="Number of embedded functions in all splits")
    seed: int = Field(default=0, ge=0, description="Seed of the embedded functions, and of random numbers in tests")
    careless: float = Field(
        default=0.0, ge=0, le=1, description="Share of the demonstrated functions that do not return their result"
    )
    raising: Literal["error", "failed"] = Field(
        default="error", description="Effect of an exception in a test: an error (reward -1), or a failed test"
    )
    time_limit_s: float = Field(default=1.0, gt=0, le=600, description="Limit of one execution, in processor seconds")
    fresh_sandboxes: bool = Field(default=False, description="Start a new sandbox for every episode")

    @property
    def limits(self) -> ExecutionLimits:
        """Limits of one execution."""
        return ExecutionLimits(cpu_s=self.time_limit_s, wall_s=3 * self.time_limit_s + WAITING_S)


class MbppConfig(BaseModel):
    """Options of `mbpp`: how problems are asked, and what their solutions may use."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    family: Literal["embedded", "functions"] = Field(
        default="embedded", description="Embedded problems: forty fixed ones, or simple functions generated from `seed`"
    )
    tasks: int = Field(default=400, ge=10, le=1800, description="Number of embedded functions in all splits")
    seed: int = Field(default=0, ge=0, description="Seed of the embedded functions and of mistakes in demonstrations")
    careless: float = Field(
        default=0.0, ge=0, le=1, description="Share of demonstrated first attempts that do not return their result"
    )
    careless_again: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of demonstrated later attempts that still do not return it after feedback",
    )
    max_attempts: int = Field(default=3, ge=1, le=100, description="Attempts per problem")
    dataset_limit: int = Field(
        default=0, ge=0, description="Use only the first problems of each split, up to this number; 0: all"
    )
    shown_tests: int = Field(default=2, ge=0, le=100, description="Number of tests that the prompt shows")
    fresh_sandboxes: bool = Field(default=False, description="Start a new sandbox for every episode")
    time_limit_s: float = Field(default=5.0, gt=0, le=600, description="Limit of one execution, in processor seconds")
    wall_s: float = Field(default=30.0, gt=0, le=3600, description="Wall-clock limit of one execution, in seconds")
    memory_mib: int = Field(default=512, ge=64, le=65536, description="Memory of one execution, in MiB")

    @model_validator(mode="after")
    def _shows_functions(self) -> Self:
        if self.family != "functions" and (self.careless or self.careless_again):
            raise ValueError("careless demonstrations need family = functions")
        return self

    @property
    def limits(self) -> ExecutionLimits:
        """Limits of one execution."""
        return ExecutionLimits(cpu_s=self.time_limit_s, wall_s=self.wall_s, memory_bytes=self.memory_mib * MIB)
