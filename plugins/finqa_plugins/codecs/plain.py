"""The codec of models without a chat template, such as DialoGPT and GPT-2.

Its turn format is Zephyr's, which TinyLlama-Chat uses (Tunstall et al., arXiv 2310.16944), with one more role for
tools. A turn is its role in a line of text, the content, and the tokenizer's own end token:

    <|user|>
    What was the revenue?</s>
    <|assistant|>

Roles are ordinary text in most tokenizers, so a tool's reply may look like a turn of the user. Turns are
separated by the end token, which is an id of its own: a role counts only after it, and no content can contain it (see
`shielding`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from finqa_cli.contracts import ChatCodec, CodecContext, ReplyRole
from finqa_cli.errors import ConfigError
from finqa_cli.types import AssistantTurn, Message, Prompt
from finqa_plugins.codecs.chat_template import Adaptations, adapted_source, tools_text
from finqa_plugins.codecs.config import PlainCodecConfig
from finqa_plugins.codecs.loading import load_tokenizer
from finqa_plugins.codecs.parsing import named_format, parse_turn, render_calls, split_reasoning
from finqa_plugins.codecs.shielding import Shield, add_placeholder, control_strings, free_mark

_TEMPLATE = (
    "{{- 'INDENT' }}{%- for message in messages %}"
    "{{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + 'GAP\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)
"""This format as a chat template, for exports."""

_MARK = free_mark([])  # any mark will do: the text around the placeholders is from this file


class PlainCodec(ChatCodec):
    """A codec that does not use a chat template (see above). It reads the tokenizer only, never the weights."""

    def __init__(self, config: PlainCodecConfig | None, context: CodecContext, tokenizer: Any = None) -> None:
        """Raises ConfigError when the model has no tokenizer, or its tokenizer has no end token or changes text."""
        options = config or PlainCodecConfig()
        tokenizer = tokenizer or load_tokenizer(context.model, template=False)
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                f"The tokenizer of {context.model!r} has no end token (eos_token) which codec 'plain' "
                "needs to end turns.",
                remedy='name it in tokenizer_config.json: "eos_token": "..."',
            )
        self._format_name = "hermes" if options.call_format == "auto" else options.call_format
        self._format = named_format(self._format_name, context)
        self._tokenizer = tokenizer
        self._text = ExactText(tokenizer, context.model)
        self._shield = Shield(control_strings(tokenizer), self._text.encode)
        self._end = str(tokenizer.eos_token)
        self._stop_ids = (int(tokenizer.eos_token_id),)
        self._begin = _begin(tokenizer)
        self._indent = _space_in_front(tokenizer, self._text, "")
        self._gap = _space_in_front(tokenizer, self._text, self._end) + "\n"
        self._schemas: dict[str, Mapping[str, Any]] = {}

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokenizer's end token."""
        return self._stop_ids

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        """[L] see `ChatCodec.opening`. The system text lists the tools and shows how to write a call."""
        # A format that writes values as text needs their types; an environment has one schema for each tool name.
        self._schemas.update({tool.name: tool.parameters for tool in prompt.tools})
        contents: dict[str, str] = {}
        turns = (self._turn(role, content, contents) for role, content in self._chat(prompt))
        text = self._indent + self._gap.join([*turns, "<|assistant|>\n"])
        return (*self._begin, *self._shield.encode(text, contents))

    def tool_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        """[L] see `ChatCodec.tool_reply`."""
        return self._reply("tool", [text], stopped=stopped)

    def tool_replies(self, texts: Sequence[str], *, stopped: bool) -> tuple[int, ...]:
        """[L] see `ChatCodec.tool_replies`."""
        return self._reply("tool", texts, stopped=stopped)

    def user_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        """[L] see `ChatCodec.user_reply`."""
        return self._reply("user", [text], stopped=stopped)

    def assistant(self, message: Message) -> tuple[int, ...]:
        """[L] see `ChatCodec.assistant`. A reasoning block of another model's demonstration is left out."""
        return (*self._shield.encode_content(self._spoken(message)), *self._stop_ids)

    def parse(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Decodes up to the end token, drops ids outside the vocabulary, and finds the one tool call."""
        return self._parse(completion_ids, several=False)

    def parse_calls(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Parse as `parse` does, and find all tool calls."""
        return self._parse(completion_ids, several=True)

    def facts(self) -> dict[str, Any]:
        """See `ChatCodec.facts`."""
        return {
            "prompts": "roles as text",
            "tools": "text in the system message",
            "calls": self._format_name,
            "ends of turns": self._end,
        }

    def chat_template(self) -> str | None:
        """See `ChatCodec.chat_template`; None if the tokenizer does not encode such a text as this codec does."""
        roles: tuple[Literal["system", "user", "assistant"], ...] = ("system", "user", "assistant", "user")
        messages = tuple(Message(role=role, content="How much, in $?") for role in roles)
        prompt = Prompt(messages=messages, tools=())
        chat = [{"role": message.role, "content": message.content} for message in messages]
        begin = "{{- bos_token }}" if self._begin else ""
        # Some tokenizers put a space in front of a text, and after each special token, themselves.
        for indent, gap in (("", ""), (self._indent, self._gap.removesuffix("\n"))):
            own = begin + _TEMPLATE.replace("INDENT", indent).replace("GAP", gap)
            source = adapted_source(own, self._format, Adaptations(tools=True), replies_as_user=False)
            text = self._tokenizer.apply_chat_template(
                chat, chat_template=source, add_generation_prompt=True, tokenize=False
            )
            if tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]) == self.opening(prompt):
                return source
        return None

    def _parse(self, completion_ids: tuple[int, ...], *, several: bool) -> AssistantTurn:
        end = next((at for at, token in enumerate(completion_ids) if token in self._stop_ids), len(completion_ids))
        return parse_turn(self._text.decode(completion_ids[:end]), self._format, self._schemas, several=several)

    def _chat(self, prompt: Prompt) -> Iterator[tuple[str, str]]:
        """Role and content of each turn. The system message lists the tools; if there is none, one is added."""
        messages = list(prompt.messages)
        if prompt.tools:
            told = messages.pop(0).content if messages and messages[0].role == "system" else ""
            yield "system", "\n\n".join(part for part in (told, tools_text(prompt, self._format)) if part)
        for message in messages:
            yield message.role, self._spoken(message) if message.role == "assistant" else message.content

    def _reply(self, role: ReplyRole, texts: Sequence[str], *, stopped: bool) -> tuple[int, ...]:
        contents: dict[str, str] = {}
        replies = [self._turn(role, text, contents) for text in texts]
        turns = ["" if stopped else self._end, *replies, "<|assistant|>\n"]
        return tuple(self._shield.encode(self._gap.join(turns), contents))

    def _turn(self, role: str, content: str, contents: dict[str, str]) -> str:
        """A turn with a placeholder as its content."""
        return f"<|{role}|>\n{add_placeholder(content, contents, _MARK)}{self._end}"

    def _spoken(self, message: Message) -> str:
        _, words = split_reasoning(message.content, opened=False)
        if message.tool_call is None:
            return words
        return words + (self._format.separator if words else "") + render_calls(message.calls, self._format)


def _begin(tokenizer: Any) -> tuple[int, ...]:
    """The ids that the tokenizer itself puts in front of a text, such as Llama's `<s>`."""
    whole, bare = tokenizer.encode("x"), tokenizer.encode("x", add_special_tokens=False)
    at = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    return tuple(whole[:at])


def _space_in_front(tokenizer: Any, text: ExactText, before: str) -> str:
    """The space, if any, that the tokenizer puts in front of a text that begins behind `before`."""
    whole = tokenizer.encode(before + "<|user|>", add_special_tokens=False)
    return " " if whole == text.encode(before) + text.encode(" <|user|>") else ""


_PROBE = ' two  spaces\n\n{"Name": "Caf\u00e9", "year": -2024.5}\n<|user|>\n'
_CHILDREN = ("normalizers", "pretokenizers", "decoders")


class ExactText:
    """A tokenizer's vocabulary and merges, applied to each piece of text without changing its whitespace.

    SentencePiece tokenizers put a space in front of every text that they encode and take one off when they decode;
    some added tokens swallow the space around them. That is right for whole texts and wrong for pieces of an episode.

    Attributes:
        size: Number of ids that the tokenizer knows.
    """

    def __init__(self, tokenizer: Any, model: str) -> None:
        """`model` is the name of the model in error messages.

        Raises:
            ConfigError: The tokenizer is not a fast one, or loses or changes plain text.
        """
        from tokenizers import Tokenizer

        if not tokenizer.is_fast:
            raise ConfigError(
                f"The tokenizer of {model!r} has no fast form (tokenizer.json), which codec 'plain' reads.",
                remedy="name another model, a folder or hub id",
            )
        facts = json.loads(tokenizer.backend_tokenizer.to_str())
        facts |= {name: _as_it_stands(facts[name]) for name in ("normalizer", "pre_tokenizer", "decoder")}
        facts["added_tokens"] = [token | {"lstrip": False, "rstrip": False} for token in facts["added_tokens"]]
        self._backend = Tokenizer.from_str(json.dumps(facts | {"truncation": None, "padding": None}))
        self.size: int = self._backend.get_vocab_size(with_added_tokens=True)
        read = self.decode(self.encode(_PROBE))
        if read != _PROBE:
            raise ConfigError(
                f"The tokenizer of {model!r} does not keep text as it is: {_PROBE!r} becomes {read!r}.",
                remedy="name another model, a folder or hub id",
            )

    def encode(self, text: str) -> list[int]:
        """Ids; strings of added tokens become those tokens."""
        valid = text.encode("utf-8", errors="replace").decode()  # lone surrogates would make the tokenizer raise
        return list(self._backend.encode(valid, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text, added tokens included; ids outside the vocabulary are left out."""
        return str(self._backend.decode([i for i in ids if 0 <= i < self.size], skip_special_tokens=False))


def _as_it_stands(part: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The part (normalizer, pre-tokenizer, decoder) without steps that change the edges of a text, or None."""
    if part is None or part["type"] in ("Prepend", "Strip"):
        return None
    changed = dict(part)
    for children in _CHILDREN:
        if children in part:
            left = [kept for child in part[children] if (kept := _as_it_stands(child)) is not None]
            if not left:
                return None
            changed[children] = left
    if "prepend_scheme" in part:
        changed["prepend_scheme"] = "never"
    elif "add_prefix_space" in part:
        changed["add_prefix_space"] = False
    return changed
