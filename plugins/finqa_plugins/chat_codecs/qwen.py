"""The codec for ChatML models that call tools as JSON between `<tool_call>` tags: Qwen2.5, Qwen3, the embedded policy.

Format: the chat template of the model's own tokenizer decides everything around the contents; the assistant's turns
are written as Qwen3's template writes them with thinking off.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from finqa_cli.contracts import CodecContext
from finqa_cli.errors import ConfigError
from finqa_cli.types import AssistantTurn, Message, Prompt
from finqa_plugins.chat_codecs.parsing import parse_turn, render_call
from finqa_plugins.chat_codecs.shielding import Shield, add_placeholder, free_mark

TURN_END = "<|im_end|>"
TEXT_END = "<|endoftext|>"
_LOOKS_LIKE_CONTROL = re.compile(r"<[^<>\s]+>")
_REMEDY = "Give --model a folder or hub id of a chat model with tokenizer.json and a chat template."


class QwenCodec:
    """See `ChatCodec`. Loading reads the tokenizer only, never the weights."""

    def __init__(self, config: None, context: CodecContext) -> None:
        """Raises ConfigError when the model has no tokenizer, no chat template, or does not speak ChatML."""
        self._tokenizer = load_tokenizer(context.model)
        added = {token.content: (number, token) for number, token in self._tokenizer.added_tokens_decoder.items()}
        if TURN_END not in added:
            raise ConfigError(f"The tokenizer of {context.model!r} has no {TURN_END} token.", remedy=_REMEDY)
        self._stop_ids = tuple(added[text][0] for text in (TURN_END, TEXT_END) if text in added)
        # Qwen3 adds <tool_call> as an ordinary token, so `special` alone does not tell what controls the format.
        control = [text for text, (_, token) in added.items() if token.special or _LOOKS_LIKE_CONTROL.fullmatch(text)]
        self._shield = Shield(control, self._encode)
        self._reply_frame, self._reply_slot = self._render_reply_frame(context.model)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of `<|im_end|>` and, where it exists, `<|endoftext|>`."""
        return self._stop_ids

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        """[L] see `ChatCodec.opening`."""
        tools = [tool.as_function() for tool in prompt.tools]
        calls = [dict(message.tool_call.arguments) for message in prompt.messages if message.tool_call]
        mark = free_mark(json.dumps(part, ensure_ascii=False) for part in (tools, calls))
        contents: dict[str, str] = {}
        messages = [self._as_chat(message, contents, mark) for message in prompt.messages]
        text = self._render(messages, tools=self._shield.hold(tools, contents, mark) or None)
        return tuple(self._shield.encode(text, contents))

    def tool_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        """[L] see `ChatCodec.tool_reply`."""
        frame = self._reply_frame.removeprefix(TURN_END) if stopped else self._reply_frame
        return tuple(self._shield.encode(frame, {self._reply_slot: text}))

    def assistant(self, message: Message) -> tuple[int, ...]:
        """[L] see `ChatCodec.assistant`."""
        if message.tool_call is None:
            return tuple(self._shield.encode("\ue000" + TURN_END, {"\ue000": message.content}))
        mark = free_mark([render_call(message.tool_call)])
        contents: dict[str, str] = {}
        spoken = add_placeholder(message.content, contents, mark) + "\n" if message.content else ""
        held = self._held_call(message, contents, mark)
        return tuple(self._shield.encode(spoken + held + TURN_END, contents))

    def parse(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Decodes up to the first stop id, drops ids outside the vocabulary, and finds the one tool call."""
        end = next((at for at, token in enumerate(completion_ids) if token in self._stop_ids), len(completion_ids))
        known = [token for token in completion_ids[:end] if 0 <= token < len(self._tokenizer)]
        return parse_turn(self._decode(known))

    def _held_call(self, message: Message, contents: dict[str, str], mark: str) -> str:
        assert message.tool_call is not None
        call = message.tool_call
        held = type(call)(
            name=self._shield.hold(call.name, contents, mark),
            arguments=self._shield.hold(call.arguments, contents, mark),
        )
        return render_call(held)

    def _as_chat(self, message: Message, contents: dict[str, str], mark: str) -> dict[str, Any]:
        chat: dict[str, Any] = {"role": message.role, "content": add_placeholder(message.content, contents, mark)}
        if message.tool_call is not None:
            function = {"name": message.tool_call.name, "arguments": dict(message.tool_call.arguments)}
            chat["content"] = chat["content"] if message.content else ""
            chat["tool_calls"] = [{"type": "function", "function": self._shield.hold(function, contents, mark)}]
        return chat

    def _render_reply_frame(self, model: str) -> tuple[str, str]:
        """What the template puts between an assistant's last word and its next, around the slot for the reply."""
        said, slot = "\ue0000\ue000", "\ue0001\ue000"
        messages = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": said},
            {"role": "tool", "content": slot},
        ]
        _, found, frame = self._render(messages, tools=None).partition(said)
        if not found or not frame.startswith(TURN_END) or frame.count(slot) != 1:
            raise ConfigError(f"The chat template of {model!r} is not Qwen's: it has no tool messages.", remedy=_REMEDY)
        return frame, slot

    def _render(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
        text = self._tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, tokenize=False, enable_thinking=False
        )
        return str(text)

    def _encode(self, text: str) -> list[int]:
        valid = text.encode("utf-8", errors="replace").decode()  # lone surrogates would make the tokenizer raise
        # verbose: transformers would warn about the model limit, which the engine checks by itself
        return list(self._tokenizer.encode(valid, add_special_tokens=False, verbose=False))

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a folder or hub id.

    Raises:
        ConfigError: The folder or the hub has none, or it has no chat template.
    """
    from transformers import AutoTokenizer

    folder = Path(model)
    if folder.is_dir():
        names = ("tokenizer.json", "tokenizer_config.json")
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise ConfigError(f"The model folder {model} has no {' and no '.join(missing)}.", remedy=_REMEDY)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError or plain Exception
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"The tokenizer of {model!r} cannot be loaded: {reason}", remedy=_REMEDY) from error
    if not tokenizer.chat_template:
        raise ConfigError(f"The tokenizer of {model!r} has no chat template.", remedy=_REMEDY)
    return tokenizer
