"""Options of the `convfinqa` environment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from finqa_cli.grading import STRICT, Profile, versioned


class ConvFinQAConfig(BaseModel):
    """What the history of a dialogue shows of earlier answers, and how files are read and split."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    history: Literal["own", "gold"] = Field(
        default="own",
        description="Answers in the history of later turns: the policy's own, or the right ones, shown after each turn",
    )
    grader: Annotated[Profile, AfterValidator(versioned)] = Field(
        default=STRICT, description="Grading profile of the stated answers"
    )
    skip_bad: bool = Field(default=False, description="Skip malformed dialogues with a warning")
    split: Literal["auto", "train", "dev", "test"] = Field(
        default="auto", description="Split of a single file; auto: determined by its name (test.json, dev.json, others)"
    )
    holdout: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the companies of a single training file that becomes `dev`"
    )
    seed: int = Field(default=0, ge=0, description="Seed of the split by company")
