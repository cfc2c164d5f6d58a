"""A model's chat template, the adaptations that it needs, and what a rendering shows of the format of turns.

A template that does not write tools in a known format gets them as text in the system message, in the call format that
its tokenizer suggests. Then replies of tools are messages of the user between `<tool_response>` tags, as Qwen2.5 and
Hermes write them. A template without a system role gets the system text in the first message of the user. One that
requires roles to alternate gets neighbouring messages of one role as one. All adaptations are Jinja in front of the
model's own template (`own_messages.jinja`), so an export can carry them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from finqa_cli.contracts import CallFormat, ReplyRole
from finqa_cli.documents import OutOfBoundsError, call_bounded
from finqa_cli.errors import ConfigError
from finqa_cli.types import Prompt, ToolCall, ToolSpec
from finqa_plugins.codecs.loading import MODEL_REMEDY

LONGEST_S, MOST_MB = 5.0, 500.0
"""Most that a template may take to render a chat. Real ones take milliseconds and less than a megabyte."""

SAID = "\ue0000\ue000"
"""Placeholder of an assistant's turn in a frame."""

_FOLDER = Path(__file__).parent
_SYSTEM, _QUESTION, _ANSWER, _MORE = "Be brief.", "How much?", "Much.", "And then?"
_PROBE_TOOL = ToolSpec(
    name="look_up",
    description="Looks up.",
    parameters={"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
)
_PROBE_CALL = ToolCall(name="look_up", arguments={"what": "table"})
_PROBE_REPLY = "\n 'it' \"quoted\" \\ \u00e9<&>\t. \n"
_DATE_FORMAT = "%d %b %Y"
_VARIABLE = re.compile(r"\b(enable_thinking|date_string)\b")

Treatment = Callable[[str], str]
Chats = Sequence[Mapping[str, Any]]


def slot(place: int) -> str:
    """Placeholder of the reply with index `place` in a frame."""
    return f"\ue000{place + 1}\ue000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptations:
    """What is put in front of a model's own template.

    Attributes:
        tools: Tools, calls and replies of tools are text.
        folds_system: When the system text is part of the first message of the user: `tools`: beside tools as text,
            because the template would move it to the user's last message, and rewrite the prompt at each turn.
        merges: Neighbouring messages of one role become one.
        parts: Contents are lists of parts, as templates of models that read images require.
    """

    tools: bool = False
    folds_system: Literal["never", "tools", "always"] = "never"
    merges: bool = False
    parts: bool = False


class ChatTemplate:
    """Renders chats by a tokenizer's template, with its adaptations and fixed template variables."""

    def __init__(self, tokenizer: Any, model: str, variables: Mapping[str, Any], date: str) -> None:
        """`date` is what the template reads as the current day, so that prompts do not depend on it."""
        self._tokenizer = tokenizer
        self._model = model
        self.variables = {**variables, "date_string": date}
        self.adaptations = Adaptations()
        self._exceeds = ""
        self._own = str(tokenizer.get_chat_template())
        self._dated = _in_front(_fixed_clock(self._own, date), self._own)
        self._source: str | None = self._dated if self._dated != self._own else None

    def adapt(self, form: CallFormat, *, tools_as_text: bool) -> None:
        """Find the adaptations that this template needs.

        Args:
            form: Format of the calls.
            tools_as_text: The template does not write tools, or not in this format.
        """
        system, user = _message("system", _SYSTEM), _message("user", _QUESTION)
        assistant, more = _message("assistant", _ANSWER), _message("user", _MORE)
        self._use(form, Adaptations())
        self._use(form, Adaptations(parts=not self._shows([user], _QUESTION)))
        folds: Literal["never", "tools", "always"] = "never"
        if not self._shows([system, user], _SYSTEM, _QUESTION):
            folds = "always"
        elif tools_as_text and not self._shows([system, user, assistant, more], _SYSTEM, _QUESTION, _MORE):
            folds = "tools"
        opening = [user] if folds == "always" else [system, user]
        merges = self._shows([*opening, assistant, more], _MORE) and not self._shows([*opening, more], _QUESTION, _MORE)
        self._use(form, replace(self.adaptations, tools=tools_as_text, folds_system=folds, merges=merges))

    def _use(self, form: CallFormat, adaptations: Adaptations) -> None:
        self.adaptations = adaptations
        source = adapted_source(self._dated, form, adaptations) if adaptations != Adaptations() else self._dated
        self._source = source if source != self._own else None

    def render(
        self, messages: Chats, tools: Sequence[Any] | None, *, several: bool = False, prompt: bool = True
    ) -> str:
        """The text of a chat, with the start of the assistant's next turn if `prompt`.

        Raises:
            ConfigError: The template refuses these messages, or takes too much time or memory.
        """
        more: dict[str, Any] = {"chat_template": self._source} if self._source is not None else {}
        if several:
            more["parallel_tool_calls"] = True
        try:
            text = call_bounded(  # a template is sandboxed, but may run for ever
                lambda: self._tokenizer.apply_chat_template(
                    list(messages),
                    tools=list(tools) if tools else None,
                    add_generation_prompt=prompt,
                    tokenize=False,
                    **self.variables,
                    **more,
                ),
                seconds=LONGEST_S,
                megabytes=MOST_MB,
            )
        except OutOfBoundsError as error:
            self._exceeds = f"The chat template of {self._model!r} {error}."
            raise ConfigError(self._exceeds, remedy=MODEL_REMEDY) from error
        except Exception as error:  # a template may raise anything that jinja or its own expressions do
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ConfigError(
                f"The chat template of {self._model!r} cannot render a chat of {roles}: {error}", remedy=MODEL_REMEDY
            ) from error
        return str(text)

    def writes_tools(self, form: CallFormat) -> bool:
        """Whether the template writes tools, calls of them in this format, and their replies."""
        user = _message("user", _QUESTION)
        tools = [_PROBE_TOOL.as_function()]
        return (
            self._shows([user], _PROBE_TOOL.name, tools=tools)
            and self.writes_calls(form)
            and self.treatment("tool") is not None
        )

    def writes_calls(self, form: CallFormat) -> bool:
        """Whether the template writes calls in this format."""
        call = {"type": "function", "function": {"name": _PROBE_CALL.name, "arguments": dict(_PROBE_CALL.arguments)}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        return self._shows([_message("user", _QUESTION), said], form.render(_PROBE_CALL))

    def frame(self, role: ReplyRole, texts: Sequence[str]) -> tuple[str, str]:
        """The text before an assistant's earlier turn, and that from its end to the start of the next turn.

        Args:
            role: Role of the replies to the turn.
            texts: The replies.

        Raises:
            ConfigError: The template does not render such replies.
        """
        replies = (_message(role, text) for text in texts)
        messages = [_message("user", _QUESTION), _message("assistant", SAID), *replies]
        tools = [_PROBE_TOOL.as_function()] if role == "tool" and not self.adaptations.tools else None
        before, found, frame = self.render(messages, tools).partition(SAID)
        if not found:
            raise self.refusal("drops turns of the assistant")
        return before, frame

    def treatment(self, role: ReplyRole) -> Treatment | None:
        """What the template does to the contents of replies; None if that is unknown, or it renders no such replies."""
        try:
            _, frame = self.frame(role, [_PROBE_REPLY])
        except ConfigError:
            return None
        known: tuple[Treatment, ...] = (as_is, as_json, str.strip, _trimmed_json)
        return next((treat for treat in known if treat(_PROBE_REPLY) in frame), None)

    def exported(self) -> str:
        """The template with which others render the same text: adaptations, and the variables unless given."""
        source = self._source if self._source is not None else self._own
        used = dict.fromkeys(_VARIABLE.findall(source))
        values = {name: self.variables[name] for name in used if name in self.variables}
        presets = (
            f"{{%- if {name} is not defined %}}{{%- set {name} = {_literal(value)} %}}{{%- endif %}}"
            for name, value in values.items()
        )
        return _in_front("".join(presets), source)

    def _shows(self, messages: Chats, *texts: str, tools: Sequence[Any] | None = None) -> bool:
        """Whether a rendering has these texts in this order."""
        try:
            rendered = self.render(messages, tools)
        except ConfigError:
            if self._exceeds:  # each further trial would take as long
                raise
            return False
        places = [rendered.find(text) for text in texts]
        return places == sorted(places) and -1 not in places

    def refusal(self, problem: str) -> ConfigError:
        """The error of a template that this codec cannot follow."""
        return ConfigError(f"The chat template of {self._model!r} {problem}.", remedy=MODEL_REMEDY)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnForm:
    """How a template begins and ends turns of the assistant.

    Attributes:
        lead: Text between the generation prompt and the content, as Mistral's space.
        ends: Role of the next message -> text that ends the turn, up to and including its last control token.
        sampled: Role of the next message -> text with which the policy ends a turn: that of `ends`, with the token that
            stops a turn in place of another one that the template writes in earlier turns.
        rendered: Whether the template writes these ends; otherwise they are the tokenizer's end token, added to it.
        stops: Control tokens that end a turn, the template's own first.
    """

    lead: str
    ends: Mapping[ReplyRole, str]
    sampled: Mapping[ReplyRole, str]
    rendered: bool
    stops: tuple[str, ...]


def read_turns(
    template: ChatTemplate, controls: re.Pattern[str], eos: Sequence[str], roles: Iterable[ReplyRole]
) -> TurnForm:
    """Reads the form of turns from renderings.

    Args:
        template: The template, adapted.
        controls: Matches the strings of control tokens.
        eos: Strings of the model's end tokens, its most common end first.
        roles: Roles of replies that the template renders.

    Raises:
        ConfigError: No token ends a turn.
    """
    user, said = _message("user", _QUESTION), _message("assistant", SAID)
    tail = template.render([user, said], None, prompt=False).partition(SAID)[2]
    frames = {role: template.frame(role, [slot(0)]) for role in roles}
    before = next(iter(frames.values()))[0]
    asked = template.render([user], None)
    ends: dict[ReplyRole, str] = {}
    sampled: dict[ReplyRole, str] = {}
    stops: list[str] = []
    rendered, lead = True, before.removeprefix(asked) if before.startswith(asked) else ""
    closing = controls.match(tail.lstrip())
    for role, (_, frame) in frames.items():
        shared = _through_end(controls, eos, _common(tail, frame))
        start = list(controls.finditer(frame.partition(slot(0))[0]))
        first = start[0] if start and not frame[: start[0].start()].strip() else None
        if shared:
            ends[role] = shared
            stops.append(list(controls.finditer(shared))[-1].group())
        elif first and closing and len(start) > 1:
            # gpt-oss ends the last turn with another token than earlier ones: the model samples the former.
            ends[role] = frame[: first.end()]
            stops.append(closing.group() if closing.group() in eos else first.group())
            sampled[role] = frame[: first.start()] + stops[-1]
        elif first and first.group() in eos:
            # GLM has no end of its own: a turn ends with the token of the next role.
            ends[role] = frame[: first.end()]
            stops.append(first.group())
        elif closing or eos:
            ends[role], rendered = closing.group() if closing else eos[0], False
            stops.append(ends[role])
        else:
            raise ConfigError(
                "The chat template ends no turn with a control token, and the tokenizer has no end token (eos_token).",
                remedy='name it in tokenizer_config.json: "eos_token": "..."',
            )
    return TurnForm(
        lead=lead, ends=ends, sampled={**ends, **sampled}, rendered=rendered, stops=tuple(dict.fromkeys((*stops, *eos)))
    )


def _common(one: str, other: str) -> str:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _through_end(controls: re.Pattern[str], eos: Sequence[str], text: str) -> str:
    """The text up to its last end token, else up to its last control token; empty without one.

    Cohere's Command A begins the next turn even where no generation prompt is asked for.
    """
    matches = list(controls.finditer(text))
    ends = [match for match in matches if match.group() in eos]
    return text[: (ends or matches)[-1].end()] if matches else ""


def missing_parts(prompt: Prompt, text: str) -> list[str]:
    """What of a prompt is not in its rendering: messages, names of tools, calls.

    An earlier turn's reasoning may be missing, as templates leave it out by design.
    """
    missing = []
    for message in prompt.messages:
        words = message.content.rpartition("</think>")[2] if message.role == "assistant" else message.content
        if not contains(text, words):
            missing.append(f"the message of the {message.role} {message.content[:40]!r}")
        for call in message.calls:
            values = [value for value in call.arguments.values() if isinstance(value, str)]
            if not all(contains(text, part) for part in (call.name, *values)):
                missing.append(f"the call of {call.name}")
    return missing + [f"the tool {tool.name}" for tool in prompt.tools if not contains(text, tool.name)]


def contains(text: str, part: str) -> bool:
    """Whether a rendering contains a text, as it is or as the inside of a JSON string; white space is not compared."""
    squeezed = _squeeze(text)
    return any(_squeeze(form) in squeezed for form in (part, as_json(part)))


def _squeeze(text: str) -> str:
    return "".join(text.split())


ONE_CALL = "Call one tool per turn and wait for its reply. A call is written like this:"
SEVERAL_CALLS = "Call one or several tools per turn and wait for their replies. Each call is written like this:"


def tools_text(prompt: Prompt, form: CallFormat) -> str:
    """A line for each tool and each described argument, and how a call is written."""
    tools = [tool.as_function() for tool in prompt.tools]
    how_to_call = _how_to_call(SEVERAL_CALLS if prompt.several_calls else ONE_CALL, form)
    return str(_tools_macro()(tools, how_to_call))


@cache
def _tools_macro() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(_read("tools_as_text.jinja")).module.tools_as_text  # type: ignore[attr-defined]


def _how_to_call(sentence: str, form: CallFormat) -> str:
    return f"{sentence}\n{form.render(ToolCall(name='tool', arguments={'argument': 'value'}))}"


def adapted_source(own: str, form: CallFormat, adaptations: Adaptations, *, replies_as_user: bool = True) -> str:
    """A template that changes the messages and tools as the adaptations say, and then is the model's own.

    Args:
        own: Source of the model's template.
        form: Format of the calls.
        adaptations: The changes.
        replies_as_user: Replies of tools become messages of the user where tools are text.
    """
    values = {
        "$TOOLS": _literal(adaptations.tools),
        "$REPLIES": _literal(adaptations.tools and replies_as_user),
        "$FOLDS": {"never": "false", "tools": "(tools and true)", "always": "true"}[adaptations.folds_system],
        "$PARTS": _literal(adaptations.parts),
        "$MERGES": _literal(adaptations.merges),
        "$SINGLE": _literal(_how_to_call(ONE_CALL, form)),
        "$SEVERAL": _literal(_how_to_call(SEVERAL_CALLS, form)),
        "$SEPARATOR": _literal(form.separator),
    }
    messages = re.sub(r"\$[A-Z]+", lambda match: values[match.group()], _read("own_messages.jinja"))
    unknown = "{{- raise_exception('calls in this format can only be written by finqa') }}"
    write = f"{{%- macro write_call(name, arguments) %}}{form.jinja or unknown}{{%- endmacro %}}"
    return _in_front(_read("tools_as_text.jinja") + write + "\n" + messages, own)


def _in_front(head: str, source: str) -> str:
    """Both as one template. The line break after a tag is dropped, so one that begins `source` is written twice."""
    head = head.rstrip("\n")
    return head + ("\n" if head and source.startswith("\n") else "") + source


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _literal(value: object) -> str:
    """The value as a literal of Jinja."""
    return json.dumps(value, ensure_ascii=False)


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _fixed_clock(source: str, date: str) -> str:
    """Jinja that makes `strftime_now`, by which templates read the current day, return a fixed one."""
    forms = dict.fromkeys(re.findall(r"strftime_now\(\s*[\"'](.*?)[\"']\s*\)", source))
    if not forms:
        return ""
    try:
        day = datetime.strptime(date, _DATE_FORMAT)
    except ValueError:
        texts = dict.fromkeys(forms, date)
    else:
        texts = {form: day.strftime(form) for form in forms}
    return f"{{%- macro strftime_now(form) %}}{{{{- {_literal(texts)}[form] }}}}{{%- endmacro %}}"


def as_is(content: str) -> str:
    """The content unchanged."""
    return content


def as_json(content: str) -> str:
    """The content as the inside of a JSON string, as `tojson` of chat templates writes it."""
    return json.dumps(content, ensure_ascii=False)[1:-1]


def _trimmed_json(content: str) -> str:
    return as_json(content.strip())
