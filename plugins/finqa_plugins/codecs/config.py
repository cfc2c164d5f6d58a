"""Options of the chat codecs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

HistoryMode = Literal["auto", "append", "template"]
LLAMA_DATE = "26 Jul 2024"


class CodecConfig(BaseModel):
    """Options that all codecs with a chat template have, and all options of codec `qwen2.5`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_format: str = Field(
        "auto", description="How calls are written and found; auto: as the model's chat template writes them"
    )
    history: HistoryMode = Field(
        "auto",
        description="Earlier turns: append keeps them as sampled; template uses the chat template's rendering, in "
        "a new sequence wherever it changes them; auto: append if the template only appends",
    )


class ThinkingCodecConfig(CodecConfig):
    """Options of the codecs `qwen3` and `auto`."""

    thinking: bool = Field(False, description="Let the model reason between <think> tags before it speaks")


class PlainCodecConfig(BaseModel):
    """Options of codec `plain`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_format: str = Field("auto", description="How calls are written and found; auto: hermes")


class LlamaCodecConfig(CodecConfig):
    """Options of codec `llama3`."""

    date: str = Field(
        LLAMA_DATE, description="Date in the system text; fixed, so that prompts do not depend on the current day"
    )
