"""Options of the chat codecs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

HistoryMode = Literal["auto", "append", "template"]
LLAMA_DATE = "26 Jul 2024"


class CodecConfig(BaseModel):
    """What `finqa plugins show qwen2.5` lists."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_format: str = Field(
        "auto", description="how calls are written and found; auto: as the model's chat template writes them"
    )
    history: HistoryMode = Field(
        "auto",
        description="earlier turns: append keeps them as sampled; template uses the chat template's rendering, in "
        "a new sequence wherever it changes them; auto: append if the template only appends",
    )


class ThinkingCodecConfig(CodecConfig):
    """What `finqa plugins show qwen3` lists."""

    thinking: bool = Field(False, description="let the model reason between <think> tags before it speaks")


class PlainCodecConfig(BaseModel):
    """What `finqa plugins show plain` lists."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_format: str = Field("auto", description="how calls are written and found; auto: hermes")


class LlamaCodecConfig(CodecConfig):
    """What `finqa plugins show llama3` lists."""

    date: str = Field(
        LLAMA_DATE, description="date in the system text; fixed, so that prompts do not depend on the current day"
    )
