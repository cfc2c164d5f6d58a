"""The codec that all families with a chat template share: the template decides everything around the contents.

Contents are rendered as placeholders (see `shielding`), so a template cannot trim or quote them. Probes find
out once what the template does to contents; the codec does the same to each content before it fills the placeholder.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from finqa_cli.contracts import ChatCodec, CodecContext, PlayedTurn, ReplyRole
from finqa_cli.errors import ConfigError
from finqa_cli.types import AssistantTurn, Message, Prompt, ToolCall, ToolSpec
from finqa_plugins.codecs.config import CodecConfig
from finqa_plugins.codecs.history import Replay, play_probes, reader, rewrites_history
from finqa_plugins.codecs.loading import MODEL_REMEDY, plain_coding
from finqa_plugins.codecs.parsing import (
    THINK_CLOSE,
    choose_format,
    opened_reasoning,
    parse_turn,
    render_calls,
    render_reasoning,
    split_reasoning,
)
from finqa_plugins.codecs.shielding import Shield, add_placeholder, control_strings, free_mark

log = structlog.get_logger(__name__)

OPENINGS = 512
"""Encoded openings in the cache: all attempts of a group begin with the same one, which is their longest text."""


def _slot(place: int) -> str:
    """Placeholder of the reply with index `place` in a frame."""
    return f"\ue000{place + 1}\ue000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What distinguishes one family of chat models from another.

    Attributes:
        name: Name in error messages.
        turn_end: Control token that ends an assistant turn in its chat template.
        other_ends: Further control tokens that end a turn, where the tokenizer has them.
        variables: Variables of its chat template.
        thinking: Whether the model reasons before it answers.
    """

    name: str
    turn_end: str
    other_ends: tuple[str, ...]
    variables: Mapping[str, Any]
    thinking: bool = False


class TemplateCodec(ChatCodec):
    """A codec that follows the model's own chat template. It reads the tokenizer only, never the weights."""

    def __init__(self, tokenizer: Any, family: Family, options: CodecConfig, context: CodecContext) -> None:
        """Raises ConfigError when the tokenizer or its chat template is not of this family.

        Args:
            tokenizer: Tokenizer of the model.
            family: The family whose format it has.
            options: How calls are written, and what to do if the template rewrites earlier turns.
            context: Contains the call formats, and names the model in errors.
        """
        self._tokenizer = tokenizer
        self._family = family
        self._model = context.model
        added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
        if family.turn_end not in added:
            raise ConfigError(
                f"The tokenizer of {context.model!r} has no {family.turn_end} token, as {family.name}'s have.",
                remedy="--set codec.name=auto, which chooses by the tokenizer",
            )
        self._stop_ids = tuple(added[text] for text in (family.turn_end, *family.other_ends) if text in added)
        self._encode_valid, self._decode = plain_coding(tokenizer)
        self._known = len(tokenizer)
        self._shield = Shield(control_strings(tokenizer), self._encode)
        self._openings: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._reader = reader(self._read)
        self._template = ChatTemplate(tokenizer, context.model, family.variables)
        self._frames: dict[tuple[ReplyRole, int], str] = {("tool", 1): self._render_frame("tool")}
        self._reasoning_open = self._find_reasoning()
        self._treat = self._template.treatments()
        self._format, self._calls_trusted = choose_format(options.call_format, context, self._render_plain)
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._history_mode = options.history
        self._rewrites = {"tool": self._probe_rewrites("tool")}
        self._several_calls: bool | None = None

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of the token that ends a turn and, where they exist, of the family's other ends."""
        return self._stop_ids

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        """[L] see `ChatCodec.opening`."""
        # A format that writes values as text needs their types; an environment has one schema for each tool name.
        self._schemas.update({tool.name: tool.parameters for tool in prompt.tools})
        if prompt.several_calls and self._several_calls is None:
            self._several_calls = self._renders_several_calls()
        key = repr(prompt)  # the schemas of tools are dictionaries, which have no hash
        if key not in self._openings:
            messages, tools, contents, _ = self._as_chats(prompt)
            self._openings[key] = tuple(self._shield.encode(self._template.render(messages, tools), contents))
            if len(self._openings) > OPENINGS:
                self._openings.popitem(last=False)
        return self._openings[key]

    def rewrites(self, role: ReplyRole) -> bool:
        """See `ChatCodec.rewrites`. Replies of the user are probed when the first episode has one: a template
        that does not support them can still serve episodes with tools.
        """
        if role not in self._rewrites:
            self._rewrites[role] = self._probe_rewrites(role)
        return self._rewrites[role]

    def history(self, prompt: Prompt, turns: Sequence[PlayedTurn]) -> tuple[int, ...]:
        """[L] see `ChatCodec.history`."""
        messages, tools, contents, mark = self._as_chats(prompt)
        replay = Replay(self._reader, self._family.turn_end, self._reasoning_open, contents, mark)
        for turn in turns:
            messages.append({"role": "assistant", "content": replay.add(turn)})
            for text in turn.replies:
                reply = add_placeholder(self._treat[turn.role](text), contents, mark)
                messages.append({"role": turn.role, "content": reply})
        return replay.encode(self._template.render(messages, tools), self._shield)

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
        """[L] see `ChatCodec.assistant`. A thinking model's turn opens with the reasoning block of the content, which
        is empty where the content has none; other turns leave it out.
        """
        mark = free_mark(map(self._format.render, message.calls))
        contents: dict[str, str] = {}
        text = ""
        reasoning, words = split_reasoning(message.content, opened=self._family.thinking)
        if self._family.thinking:
            block = render_reasoning(add_placeholder(reasoning, contents, mark) if reasoning else "")
            text = block.removeprefix(self._reasoning_open)
        text += add_placeholder(words, contents, mark) if words else ""
        if message.calls:
            held = [self._shield.hold([call.name, call.arguments], contents, mark) for call in message.calls]
            calls = [ToolCall(name=name, arguments=arguments) for name, arguments in held]
            text += (self._format.separator if words else "") + render_calls(calls, self._format)
        return tuple(self._shield.encode(text + self._family.turn_end, contents))

    def parse(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Decodes up to the first stop id, drops ids outside the vocabulary, and finds the one tool call."""
        return self._parse(completion_ids, several=False)

    def parse_calls(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Parse as `parse` does, and find all tool calls, where the chat template can render several of one turn."""
        return self._parse(completion_ids, several=bool(self._several_calls))

    def _parse(self, completion_ids: tuple[int, ...], *, several: bool) -> AssistantTurn:
        end = next((at for at, token in enumerate(completion_ids) if token in self._stop_ids), len(completion_ids))
        reasoning = bool(self._reasoning_open) and THINK_CLOSE not in self._reasoning_open
        text = self._read(completion_ids[:end])
        return parse_turn(text, self._format, self._schemas, reasoning=reasoning, several=several)

    def _as_chats(self, prompt: Prompt) -> tuple[list[dict[str, Any]], list[Any] | None, dict[str, str], str]:
        """Messages and tools for the template, the values of their placeholders, and a mark for more of them."""
        tools = [tool.as_function() for tool in prompt.tools]
        calls = [_parts(call) for message in prompt.messages for call in message.calls]
        mark = free_mark(json.dumps(part, ensure_ascii=False) for part in (tools, calls))
        contents: dict[str, str] = {}
        messages = [self._as_chat(message, contents, mark) for message in prompt.messages]
        return messages, self._shield.hold(tools, contents, mark) or None, contents, mark

    def _as_chat(self, message: Message, contents: dict[str, str], mark: str) -> dict[str, Any]:
        treat = self._treat[message.role]
        content = treat(message.content)
        # A template may test for content, beside a call or after trimming, and a placeholder is never empty.
        empty = not content and (message.tool_call is not None or treat is not as_is)
        chat: dict[str, Any] = {"role": message.role}
        chat["content"] = "" if empty else add_placeholder(content, contents, mark)
        if message.calls:
            held = (self._shield.hold(_parts(call), contents, mark) for call in message.calls)
            chat["tool_calls"] = [_as_chat_call(*parts) for parts in held]
        return chat

    def _render_plain(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The template's rendering with the contents themselves, not placeholders."""
        chats: list[dict[str, Any]] = []
        for message in messages:
            chats.append({"role": message.role, "content": message.content})
            if message.calls:
                chats[-1]["tool_calls"] = [_as_chat_call(*_parts(call)) for call in message.calls]
        return self._template.render(chats, [tool.as_function() for tool in tools] or None)

    def _probe_rewrites(self, role: ReplyRole, *, calls_a_turn: int = 1) -> bool:
        probes = play_probes(
            self,
            self._render_plain,
            self._decode,
            role=role,
            thinking=self._family.thinking,
            calls=calls_a_turn if self._calls_trusted else 0,
        )
        if rewrites := rewrites_history(probes, self._history_mode):
            log.warning(
                "the chat template rewrites earlier turns: there, the next turn starts a new "
                "sequence, so its whole prompt is computed again, in rollouts and updates",
                model=self._model,
                instead="codec.options.history=append, if the template only drops reasoning",
            )
        return rewrites

    def _renders_several_calls(self) -> bool:
        try:
            self._rewrites["tool"] |= self._probe_rewrites("tool", calls_a_turn=2)
        except ConfigError as error:  # Llama's templates refuse to; the environment accepts single calls too
            log.warning("turns have one call each: " + error.message, model=self._model)
            return False
        return True

    def _reply(self, role: ReplyRole, texts: Sequence[str], *, stopped: bool) -> tuple[int, ...]:
        key = role, len(texts)
        if key not in self._frames:
            self._frames[key] = self._render_frame(*key)
        frame = self._frames[key]
        frame = frame.removeprefix(self._family.turn_end) if stopped else frame
        return tuple(self._shield.encode(frame, {_slot(at): self._treat[role](text) for at, text in enumerate(texts)}))

    def _render_frame(self, role: ReplyRole, replies: int = 1) -> str:
        """The template's text from the end of an assistant turn to the start of the next, with slots for replies."""
        said = "\ue0000\ue000"
        messages = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": said},
            *({"role": role, "content": _slot(at)} for at in range(replies)),
        ]
        _, found, frame = self._template.render(messages, tools=None).partition(said)
        slots = all(frame.count(_slot(at)) == 1 for at in range(replies))
        if not found or not frame.startswith(self._family.turn_end) or not slots:
            missing = "no second message of the user" if role == "user" else "no tool messages"
            raise ConfigError(
                f"The chat template of {self._model!r} is not {self._family.name}'s: it has {missing}.",
                remedy=MODEL_REMEDY,
            )
        return frame

    def _find_reasoning(self) -> str:
        """The reasoning block at the end of the template's generation prompt; see `opened_reasoning`.

        Raises:
            ConfigError: The template does not support the family's `thinking`.
        """
        opened = opened_reasoning(self._frames["tool", 1])
        if self._family.thinking and "<think>" not in str(self._tokenizer.chat_template):
            problem, fix = "does not support thinking", "codec.options.thinking=false"
        elif not self._family.thinking and opened and THINK_CLOSE not in opened:
            problem, fix = "cannot switch thinking off", "codec.options.thinking=true"
        elif self._family.thinking and THINK_CLOSE in opened:
            problem, fix = "cannot switch thinking on", "codec.options.thinking=false"
        else:
            return opened
        raise ConfigError(f"The chat template of {self._model!r} {problem}.", remedy=f"--set {fix}")

    def _encode(self, text: str) -> list[int]:
        valid = text.encode("utf-8", errors="replace").decode()  # lone surrogates would make the tokenizer raise
        return self._encode_valid(valid)

    def _read(self, ids: Sequence[int]) -> str:
        """The text of sampled ids; a model may know more ids than its tokenizer."""
        return self._decode([token for token in ids if 0 <= token < self._known])


def _parts(call: ToolCall) -> tuple[str, Mapping[str, Any]]:
    return call.name, dict(call.arguments)


def _as_chat_call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


Treatment = Callable[[str], str]


class ChatTemplate:
    """Renders chats with the generation prompt and fixed template variables."""

    def __init__(self, tokenizer: Any, model: str, variables: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._variables = dict(variables)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: list[Any] | None) -> str:
        """The text of a chat that the assistant is to continue.

        Raises:
            ConfigError: The template refuses these messages.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tools=tools, add_generation_prompt=True, tokenize=False, **self._variables
            )
        except Exception as error:  # a template may raise anything that jinja or its own expressions do
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ConfigError(
                f"The chat template of {self._model!r} cannot render a chat of {roles}: {error}", remedy=MODEL_REMEDY
            ) from error
        return str(text)

    def treatments(self) -> dict[str, Treatment]:
        """What the template does to contents: a function for each role.

        Raises:
            ConfigError: The template changes the contents of a role in an unknown way.
        """
        probes = {role: f'\n {role} "quoted" \\ \u00e9<&>\t. \n' for role in ("system", "user", "assistant", "tool")}
        # The assistant's probe is in an earlier turn, where a template does not look for reasoning.
        middle = [{"role": "user", "content": "more"}, {"role": "assistant", "content": "said"}]
        told = [{"role": role, "content": probe} for role, probe in probes.items()]
        text = self.render([*told[:3], *middle, told[3]], tools=None)
        found = {role: self._treatment(probe, text) for role, probe in probes.items()}
        if unknown := [role for role, treatment in found.items() if treatment is None]:
            raise ConfigError(
                f"The chat template of {self._model!r} rewrites {' and '.join(unknown)} messages in an unknown way.",
                remedy=MODEL_REMEDY,
            )
        return {role: treatment for role, treatment in found.items() if treatment is not None}

    @staticmethod
    def _treatment(probe: str, text: str) -> Treatment | None:
        known = (as_is, as_json, str.strip, _trimmed_json)
        return next((treatment for treatment in known if treatment(probe) in text), None)


def as_is(content: str) -> str:
    """The content unchanged."""
    return content


def as_json(content: str) -> str:
    """The content as the inside of a JSON string, as `tojson` of chat templates writes it."""
    return json.dumps(content, ensure_ascii=False)[1:-1]


def _trimmed_json(content: str) -> str:
    return as_json(content.strip())
