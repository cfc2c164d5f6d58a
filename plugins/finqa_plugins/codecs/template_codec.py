"""The codec that follows a model's own chat template, of any family.

Contents are rendered as they are, so ids are those of `apply_chat_template`; only strings of control tokens in them
become placeholders (see `shielding`). Replies are filled into a frame that is rendered once: a probe finds out what the
template does to contents, and the codec does the same to each. After a prompt was rendered for the first time, it is
checked that nothing of it is missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from finqa_cli.contracts import ChatCodec, CodecContext, PlayedTurn, ReplyRole
from finqa_cli.errors import ConfigError
from finqa_cli.types import AssistantTurn, Message, Prompt, ToolCall, ToolSpec
from finqa_plugins.codecs.chat_template import ChatTemplate, contains, missing_parts, read_turns, slot
from finqa_plugins.codecs.config import TemplateCodecConfig
from finqa_plugins.codecs.history import Replay, play_probes, reader, rewrites_history
from finqa_plugins.codecs.loading import end_tokens, load_tokenizer, plain_coding
from finqa_plugins.codecs.parsing import (
    THINK_CLOSE,
    known_formats,
    named_format,
    opened_reasoning,
    parse_turn,
    render_calls,
    render_reasoning,
    split_reasoning,
    usual_format,
)
from finqa_plugins.codecs.shielding import Shield, add_placeholder, control_strings, free_mark

log = structlog.get_logger(__name__)

OPENINGS = 512
"""Encoded openings in the cache: all attempts of a group begin with the same one, which is their longest text."""

Hold = Callable[[Any], Any]
"""Returns a value (JSON-like) with placeholders for the strings of control tokens in it; see `Shield.hold`."""

_ROLES: tuple[ReplyRole, ...] = ("user", "tool")


class TemplateCodec(ChatCodec):
    """A codec that follows the model's own chat template. It reads the tokenizer only, never the weights."""

    def __init__(self, config: TemplateCodecConfig | None, context: CodecContext, tokenizer: Any = None) -> None:
        """Raises ConfigError when the model has no tokenizer or chat template, or no episode can follow the template.

        Args:
            config: How calls are written, whether the model thinks, and what to do if the template rewrites turns.
            context: Contains the call formats, and names the model in errors.
            tokenizer: Tokenizer of the model, if it is loaded already.
        """
        options = config or TemplateCodecConfig()
        tokenizer = tokenizer or load_tokenizer(context.model)
        self._tokenizer = tokenizer
        self._model = context.model
        self._encode_valid, self._decode = plain_coding(tokenizer)
        self._known = len(tokenizer)
        controls = control_strings(tokenizer)
        self._shield = Shield(controls, self._encode)
        self._reader = reader(self._read)
        self._openings: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._history_mode = options.history
        self._thinking, self._template, self._reasoning_open = self._find_reasoning(options)
        self._controls = controls
        self._joins = self._encode("\nx") != self._encode("\n") + self._encode("x")
        self._several_calls: bool | None = None
        self._format_name, native = self._choose_format(options.call_format, context)
        self._format = named_format(self._format_name, context)
        self._follow(tools_as_text=not native)
        if native and not self._appends_tools():
            self._follow(tools_as_text=True)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of the token that ends a turn in the template, and of the other ends of the model and its tokenizer."""
        return self._stop_ids

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        """[L] see `ChatCodec.opening`.

        Raises:
            ConfigError: The template refuses the prompt, or leaves out a part of it.
        """
        # A format that writes values as text needs their types; an environment has one schema for each tool name.
        self._schemas.update({tool.name: tool.parameters for tool in prompt.tools})
        if prompt.tools:
            self.rewrites("tool")  # a template that no episode can follow is refused before one is played
        if prompt.several_calls and self._several_calls is None:
            self._several_calls = self._renders_several_calls()
        key = repr(prompt)  # the schemas of tools are dictionaries, which have no hash
        if key not in self._openings:
            messages, tools, contents, _ = self._as_chats(prompt)
            text = self._template.render(messages, tools, several=prompt.several_calls)
            if missing := missing_parts(prompt, _filled(text, contents)):
                raise self._template.refusal(f"leaves out {', '.join(missing)}")
            self._openings[key] = tuple(self._shield.encode(text, contents))
            if len(self._openings) > OPENINGS:
                self._openings.popitem(last=False)
        return self._openings[key]

    def rewrites(self, role: ReplyRole) -> bool:
        """See `ChatCodec.rewrites`. A role is probed when the first episode has it."""
        if role not in self._rewrites:
            self._rewrites[role] = False  # the probes themselves render openings
            try:
                self._rewrites[role] = self._probe_rewrites(role)
            except ConfigError:
                del self._rewrites[role]
                raise
        return self._rewrites[role]

    def history(self, prompt: Prompt, turns: Sequence[PlayedTurn]) -> tuple[int, ...]:
        """[L] see `ChatCodec.history`."""
        messages, tools, contents, mark = self._as_chats(prompt)
        end, lead = self._end(turns[0].role), self._turns.lead
        replay = Replay(self._reader, end, lead, self._reasoning_open, contents, mark)
        for turn in turns:
            messages.append({"role": "assistant", "content": replay.add(turn)})
            for text in turn.replies:
                treat = self._treat[turn.role]
                reply = (
                    add_placeholder(treat(text), contents, mark) if treat else self._shield.hold(text, contents, mark)
                )
                messages.append({"role": turn.role, "content": reply})
        return replay.encode(self._template.render(messages, tools, several=prompt.several_calls), self._shield)

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
        text = self._turns.lead
        reasoning, words = split_reasoning(message.content, opened=self._thinking)
        if self._thinking:
            block = render_reasoning(add_placeholder(reasoning, contents, mark) if reasoning else "")
            text += block.removeprefix(self._reasoning_open)
        text += add_placeholder(words, contents, mark) if words else ""
        if message.calls:
            held = [self._shield.hold(_parts(call), contents, mark) for call in message.calls]
            calls = [ToolCall(name=name, arguments=arguments) for name, arguments in held]
            text += (self._format.separator if words else "") + render_calls(calls, self._format)
        end = self._end("tool" if message.calls else "user", sampled=True)
        if not self._joins:
            return tuple(self._shield.encode(text + end, contents))
        return self._encode_after(self._asked_tail, text + end, contents)

    def parse(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Decodes up to the first stop id, drops ids outside the vocabulary, and finds the one tool call."""
        return self._parse(completion_ids, several=False)

    def parse_calls(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Parse as `parse` does, and find all tool calls, where the chat template can render several of one turn."""
        return self._parse(completion_ids, several=bool(self._several_calls))

    @property
    def writes_tools(self) -> bool:
        """Whether the chat template itself writes tools, calls and their replies."""
        return not self._template.adaptations.tools

    def facts(self) -> dict[str, Any]:
        """See `ChatCodec.facts`."""
        adaptations = self._template.adaptations
        folds = {"never": "", "tools": "with tools, ", "always": ""}[adaptations.folds_system]
        place = "as the chat template has it"
        return {
            "prompts": "the model's chat template",
            "tools": "text in the system message" if adaptations.tools else "as the chat template writes them",
            "calls": self._format_name,
            "system text": place if adaptations.folds_system == "never" else f"{folds}in the first message of the user",
            "thinking": "yes" if self._thinking else "no",
            "ends of turns": ", ".join(self._turns.stops),
            "template sha256": hashlib.sha256(self.chat_template().encode()).hexdigest(),
        }

    def chat_template(self) -> str:
        """See `ChatCodec.chat_template`."""
        return self._template.exported()

    def _parse(self, completion_ids: tuple[int, ...], *, several: bool) -> AssistantTurn:
        end = next((at for at, token in enumerate(completion_ids) if token in self._stop_ids), len(completion_ids))
        reasoning = bool(self._reasoning_open) and THINK_CLOSE not in self._reasoning_open
        text = self._read(completion_ids[:end])
        if lead := self._turns.lead:
            text = text.rpartition(lead)[2] if lead.strip() else text.removeprefix(lead)
        for ending in self._turns.sampled.values():  # Cohere's turns end with two tokens, of which the last one stops
            stop = next((stop for stop in self._turns.stops if ending.endswith(stop)), "")
            text = text.removesuffix(ending.removesuffix(stop) or "\0")
        return parse_turn(text, self._format, self._schemas, reasoning=reasoning, several=several)

    def _follow(self, *, tools_as_text: bool) -> None:
        """Adapt the template, and read from its renderings how turns end and what becomes of replies.

        Raises:
            ConfigError: It renders no replies, or no token ends a turn.
        """
        self._template.adapt(self._format, tools_as_text=tools_as_text)
        self._treat = {role: self._template.treatment(role) for role in _ROLES}
        roles = [role for role in _ROLES if self._can_reply(role)]
        if not roles:
            raise self._template.refusal("renders neither a second message of the user nor replies of tools")
        eos = end_tokens(self._tokenizer, self._model)
        strings = sorted({*self._controls, *eos}, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, strings)) or r"(?!)")
        self._turns = read_turns(self._template, pattern, eos, roles)
        self._stop_ids = tuple(int(self._tokenizer.convert_tokens_to_ids(text)) for text in self._turns.stops)
        self._frames: dict[tuple[ReplyRole, int], str] = {}
        self._rewrites: dict[ReplyRole, bool] = {}

    def _appends_tools(self) -> bool:
        """Whether episodes can follow the template's own form of tools.

        Raises:
            ConfigError: They cannot, and the user's options would have to change for them.
        """
        try:
            self.rewrites("tool")
        except ConfigError:
            if self._history_mode == "append":
                raise
            return False
        return True

    def _find_reasoning(self, options: TemplateCodecConfig) -> tuple[bool, ChatTemplate, str]:
        """Whether the model thinks, its template, and the reasoning block that the generation prompt opens.

        Raises:
            ConfigError: The template does not support the chosen `thinking`.
        """
        thinking = bool(options.thinking)
        variables = {"enable_thinking": thinking, "thinking": thinking}
        template = ChatTemplate(self._tokenizer, self._model, variables, options.date)
        asked = template.render([{"role": "user", "content": "question"}], None)
        opened = opened_reasoning(asked)
        always = bool(opened) and THINK_CLOSE not in opened
        self._asked_tail = asked[asked.rfind("question") + len("question") :]
        if thinking and "<think>" not in str(self._tokenizer.chat_template):
            problem, fix = "does not support thinking", "codec.options.thinking=false"
        elif options.thinking is None and always:
            return self._find_reasoning(options.model_copy(update={"thinking": True}))
        elif not thinking and always:
            problem, fix = "cannot switch thinking off", "codec.options.thinking=true"
        elif thinking and THINK_CLOSE in opened:
            problem, fix = "cannot switch thinking on", "codec.options.thinking=false"
        else:
            return thinking, template, opened
        raise ConfigError(f"The chat template of {self._model!r} {problem}.", remedy=f"--set {fix}")

    def _choose_format(self, name: str, context: CodecContext) -> tuple[str, bool]:
        """The name of the format of calls, and whether the template itself writes tools, such calls and their replies.

        Raises:
            ConfigError: There is no format of this name.
        """
        if name != "auto":
            return name, self._template.writes_tools(named_format(name, context))
        formats = {known: context.call_formats[known]() for known in known_formats(context)}
        if written := next((known for known, form in formats.items() if self._template.writes_tools(form)), None):
            return written, True
        written = next((known for known, form in formats.items() if self._template.writes_calls(form)), None)
        return written or usual_format(self._tokenizer), False

    def _can_reply(self, role: ReplyRole) -> bool:
        """Whether replies of a role reach the model, unchanged or in a way that each rendering can be checked for."""
        if self._treat[role] is not None:
            return True
        try:
            _, frame = self._template.frame(role, ["reply"])
        except ConfigError:
            return False
        return "reply" in frame

    def _as_chats(self, prompt: Prompt) -> tuple[list[dict[str, Any]], list[Any] | None, dict[str, str], str]:
        """Messages and tools for the template, the values of their placeholders, and a mark for more of them."""
        tools = [tool.as_function() for tool in prompt.tools]
        calls = [_parts(call) for message in prompt.messages for call in message.calls]
        texts = [message.content for message in prompt.messages]
        mark = free_mark([*texts, *(json.dumps(part, ensure_ascii=False) for part in (tools, calls))])
        contents: dict[str, str] = {}
        hold = partial(self._shield.hold, contents=contents, mark=mark)
        messages = [self._as_chat(message, hold) for message in prompt.messages]
        return messages, hold(tools) or None, contents, mark

    def _as_chat(self, message: Message, hold: Hold) -> dict[str, Any]:
        content = hold(message.content)
        reasoning, words = split_reasoning(message.content, opened=self._thinking)
        if message.role == "assistant" and (reasoning or words != message.content):
            content = render_reasoning(hold(reasoning)) + hold(words)  # templates look for the tags, to drop reasoning
        if not message.calls:
            return {"role": message.role, "content": content}
        held = [hold(_parts(call)) for call in message.calls]
        if self._template.adaptations.tools:
            calls = [ToolCall(name=name, arguments=arguments) for name, arguments in held]
            content += (self._format.separator if words else "") + render_calls(calls, self._format)
            return {"role": message.role, "content": content}
        return {"role": message.role, "content": content, "tool_calls": [_as_chat_call(*parts) for parts in held]}

    def _render_plain(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The template's rendering with the contents themselves, not placeholders, as the tokenizer reads it back."""
        chats = [self._as_chat(message, lambda value: value) for message in messages]
        return self._decode(self._encode(self._template.render(chats, [tool.as_function() for tool in tools] or None)))

    def _probe_rewrites(self, role: ReplyRole, *, calls_a_turn: int = 1) -> bool:
        if not self._can_reply(role):
            missing = "no second message of the user" if role == "user" else "no tool messages"
            raise self._template.refusal(f"has {missing}")
        probes = play_probes(
            self,
            self._render_plain,
            self._decode,
            role=role,
            thinking=self._thinking,
            calls=calls_a_turn,
            only_with_tools=self._template.adaptations.tools,
        )
        rendered = self._end(role) if self._turns.rendered else ""
        probes = [probe.with_end(self._end(role, sampled=True), rendered) for probe in probes]
        if rewrites := rewrites_history(probes, self._history_mode):
            # Log: The model's template drops, for example, earlier reasoning. `instead` names the setting that avoids
            # it.
            log.warning(
                "the chat template rewrites earlier turns: there, the next turn starts a new "
                "sequence, so its whole prompt is computed again, in rollouts and updates",
                model=self._model,
                instead="codec.options.history=append, if the template only drops reasoning",
            )
        return rewrites

    def _renders_several_calls(self) -> bool:
        try:
            self._rewrites["tool"] = self.rewrites("tool") | self._probe_rewrites("tool", calls_a_turn=2)
        except ConfigError as error:  # Llama's templates refuse to; the environment accepts single calls too
            # Log: The model's template refuses several calls in one turn.
            log.warning("turns have one call each: " + error.message, model=self._model)
            return False
        return True

    def _end(self, role: ReplyRole, *, sampled: bool = False) -> str:
        """The text that ends a turn before a reply of `role`, as the template writes it or as the policy samples it."""
        ends = self._turns.sampled if sampled else self._turns.ends
        return ends[role] if role in ends else next(iter(ends.values()))

    def _reply(self, role: ReplyRole, texts: Sequence[str], *, stopped: bool) -> tuple[int, ...]:
        treat = self._treat[role]
        contents: dict[str, str] = {}
        if treat is not None:
            frame = self._frame(role, len(texts))
            contents = {slot(at): treat(text) for at, text in enumerate(texts)}
        else:
            mark = free_mark(texts)
            _, frame = self._template.frame(role, [self._shield.hold(text, contents, mark) for text in texts])
            if missing := [text for text in texts if not contains(_filled(frame, contents), text)]:
                raise self._template.refusal(f"leaves out a reply of the {role}: {missing[0][:40]!r}")
        end = self._end(role)
        frame = frame.removeprefix(end) if self._turns.rendered else frame
        if stopped and not self._joins:
            return tuple(self._shield.encode(frame, contents))
        return (
            self._encode_after(self._turns.stops[0], frame, contents)
            if stopped
            else tuple(self._shield.encode(end + frame, contents))
        )

    def _frame(self, role: ReplyRole, replies: int) -> str:
        key = role, replies
        if key not in self._frames:
            _, frame = self._template.frame(role, [slot(at) for at in range(replies)])
            slots = all(frame.count(slot(at)) == 1 for at in range(replies))
            if not slots or (self._turns.rendered and not frame.startswith(self._end(role))):
                raise self._template.refusal(f"does not render {replies} replies of the {role} in an unchanged way")
            self._frames[key] = frame
        return self._frames[key]

    def _encode_after(self, before: str, text: str, contents: Mapping[str, str]) -> tuple[int, ...]:
        """Ids of a text that follows another: SentencePiece tokenizers put a space in front of each text by itself."""
        start = self._encode(before)
        ids = self._shield.encode(before + text, contents)
        return tuple(ids[len(start) :] if ids[: len(start)] == start else self._shield.encode(text, contents))

    def _encode(self, text: str) -> list[int]:
        valid = text.encode("utf-8", errors="replace").decode()  # lone surrogates would make the tokenizer raise
        return self._encode_valid(valid)

    def _read(self, ids: Sequence[int]) -> str:
        """The text of sampled ids; a model may know more ids than its tokenizer."""
        return self._decode([token for token in ids if 0 <= token < self._known])


def _filled(text: str, contents: Mapping[str, str]) -> str:
    for placeholder, content in contents.items():
        text = text.replace(placeholder, content)
    return text


def _parts(call: ToolCall) -> tuple[str, Mapping[str, Any]]:
    return call.name, dict(call.arguments)


def _as_chat_call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}
