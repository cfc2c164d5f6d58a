"""Proves at start-up that appending gives what the model's chat template would render.

Episodes are never rendered again: each turn appends to the ids before it. That is right when the template preserves
prefixes, so that its rendering of a longer chat begins with that of the shorter one. Templates of thinking models may
drop reasoning from earlier turns; appending keeps it, so what was sampled is what later turns see and is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from finqa_cli.errors import ConfigError
from finqa_cli.types import Message, Prompt, ToolCall, ToolSpec
from finqa_plugins.chat_codecs.reasoning import render_reasoning, without_reasoning

_TOOL = ToolSpec(
    name="look_up",
    description="Looks up.",
    parameters={"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
)


class Appender(Protocol):
    """The part of a codec that is checked, decoded."""

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        """See `ChatCodec.opening`."""
        ...

    def tool_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        """See `ChatCodec.tool_reply`."""
        ...

    def assistant(self, message: Message) -> tuple[int, ...]:
        """See `ChatCodec.assistant`."""
        ...


def keeps_history(
    codec: Appender,
    render: Callable[[Sequence[Message], Sequence[ToolSpec]], str],
    decode: Callable[[Sequence[int]], str],
    *,
    thinking: bool,
    calls: bool,
) -> bool:
    """Plays probe episodes by appending and compares each with the template's rendering of it.

    Args:
        codec: Appends.
        render: The template's own rendering of a chat, generation prompt included.
        decode: Ids to text.
        thinking: Turns hold reasoning.
        calls: Turns may be compared as tool calls; False where the user chose a format that is not the template's.

    Returns:
        Whether the template keeps the reasoning of earlier turns, as appending does.

    Raises:
        ConfigError: They differ in more than reasoning: the template is not prefix-preserving.
    """
    keeps = True
    for tools in ((_TOOL,), ()):
        opening = (Message(role="system", content="Be brief."), Message(role="user", content="How much?"))
        history = list(opening)
        ids = list(codec.opening(Prompt(messages=opening, tools=tools)))
        for turn in range(3):
            said, reply = _turn(turn, thinking=thinking, call=calls and bool(tools))
            history += [said, reply]
            ids += [*codec.assistant(said), *codec.tool_reply(reply.content, stopped=True)]
            appended, rendered = decode(ids), render(history, tools)
            keeps = keeps and appended == rendered
            if without_reasoning(appended) != without_reasoning(rendered):
                raise _not_preserving(without_reasoning(appended), without_reasoning(rendered))
    return keeps


def _turn(turn: int, *, thinking: bool, call: bool) -> tuple[Message, Message]:
    reasoning = render_reasoning(f"weigh {turn}") if thinking else ""
    words = "" if call else f"Turn {turn}."
    arguments: dict[str, Any] = {"what": f"table {turn}"}
    tool_call = ToolCall(name=_TOOL.name, arguments=arguments) if call else None
    said = Message(role="assistant", content=reasoning + words, tool_call=tool_call)
    return said, Message(role="tool", content=f"[{turn}]", name=_TOOL.name)


def _not_preserving(appended: str, rendered: str) -> ConfigError:
    pairs = zip(appended, rendered, strict=False)
    at = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(appended), len(rendered)))
    return ConfigError(
        f"The chat template is not prefix-preserving: an episode reads {appended[max(0, at - 20) : at + 30]!r} "
        f"where the template renders {rendered[max(0, at - 20) : at + 30]!r}.",
        remedy="Choose the codec of this model's family (finqa plugins), or give it a template that only appends.",
    )
