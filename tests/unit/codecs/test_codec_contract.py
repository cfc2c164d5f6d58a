"""The suite of every codec, on those of all families, over the families' own tokenizers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from chat_families import CASES, EMBEDDED, FORKING, make_codec, make_tokenizer
from plain_families import codec_of, folder_of, tokenizer_of

from finqa_cli.contracts import ChatCodec
from finqa_testing.contract.codec_suite import *  # noqa: F403  the tests themselves

PLAIN_FAMILIES = ("gpt2", "llama", "legacy llama")


@pytest.fixture(params=[*CASES, "qwen3 forgets", "qwen3 exact", *PLAIN_FAMILIES], scope="module")
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def subject(family: str) -> ChatCodec:
    made: ChatCodec = codec_of(family) if family in PLAIN_FAMILIES else make_codec((CASES | FORKING)[family])
    return made


@pytest.fixture(scope="module")
def tokenizer(family: str) -> Any:
    if family in PLAIN_FAMILIES:
        return tokenizer_of(folder_of(family))
    template = (CASES | FORKING)[family].template
    return tokenizer_of(EMBEDDED) if template is None else make_tokenizer(template)
