"""Options of the chat codecs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

HistoryMode = Literal["auto", "append", "template"]
LLAMA_DATE = "26 Jul 2024"


class TemplateCodecConfig(BaseModel):
    """Options of codec `template`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_format: str = Field(
        "auto",
        description="How calls are written and found; auto: as the model's chat template writes them, else as its "
        "family does, else hermes",
    )
    history: HistoryMode = Field(
        "auto",
        description="Earlier turns: append keeps them as sampled; template uses the chat template's rendering, in "
        "a new sequence wherever it changes them; auto: append if the template only appends",
    )
    thinking: bool | None = Field(
        None,
        description="Let the model reason between <think> tags before it speaks; not set: only models whose chat "
        "template always opens a reasoning block",
    )
    date: str = Field(
        LLAMA_DATE, description="Date that chat templates read; fixed, so that prompts do not depend on the current day"
    )


class AutoCodecConfig(TemplateCodecConfig):
    """Options of codec `auto`."""

    version: Literal[1, 2] = Field(
        2,
        description="2: every chat template is followed. 1: codec plain where the chat template has no tools, as runs "
        "of earlier versions have it",
    )


class PlainCodecConfig(BaseModel):
    """Options of codec `plain`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_format: str = Field("auto", description="How calls are written and found; auto: hermes")
