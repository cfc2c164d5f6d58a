"""Options of the `finqa-text` environment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from finqa_cli.grading import STRICT, Profile, versioned
from finqa_cli.grading.program_reply import Counted

Kind = Literal[
    "ratio", "growth", "change", "row", "sum", "growth_gap", "average", "comparison", "price", "projection", "share"
]


class FinQATextConfig(BaseModel):
    """How files are read, and which tasks are generated without files."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    skip_bad: bool = Field(default=False, description="Skip malformed rows with a warning, instead of failing")
    split: Literal["auto", "train", "dev", "test"] = Field(
        default="auto", description="Split of a single file; auto: determined by its name (test.json, dev.json, others)"
    )
    holdout: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the companies of a single training file that becomes `dev`"
    )
    companies: int = Field(default=30, ge=3, le=2000, description="Companies of the embedded tasks")
    questions: int = Field(default=12, ge=1, le=24, description="Embedded tasks per company")
    kinds: tuple[Kind, ...] = Field(default=(), description="Kinds of embedded questions; default: all")
    counts: Counted = Field(
        default="program",
        description="What makes a reply correct: its program's result (the answer where it has none), or its answer",
    )
    grader: Annotated[Profile, AfterValidator(versioned)] = Field(
        default=STRICT, description="Grading profile of the stated answer"
    )
    careless: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the demonstrations without the last step, or with the average of a row for any "
        "question about it",
    )
    seed: int = Field(
        default=0, ge=0, description="Seed of the embedded tasks, of mistakes in demonstrations, and of splits"
    )
