"""Options of the `tatqa` environment."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TatQAConfig(BaseModel):
    """How files are read and split."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    skip_bad: bool = Field(default=False, description="Skip malformed pages with a warning, instead of failing")
    split: Literal["auto", "train", "dev", "test"] = Field(
        default="auto", description="Split of a single file; auto: determined by its name (test.json, dev.json, others)"
    )
    holdout: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the pages of a single training file that becomes `dev`"
    )
    seed: int = Field(default=0, ge=0, description="Seed of the split by page")
