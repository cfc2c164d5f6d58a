"""Which format a model's calls are written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from finqa_cli.contracts import CallFormat, CodecContext
from finqa_cli.errors import ConfigError
from finqa_cli.types import Message, ToolCall, ToolSpec

Render = Callable[[Sequence[Message], Sequence[ToolSpec]], str]

_OWN = ("hermes", "llama3_json", "xml")


def named_format(name: str, context: CodecContext) -> CallFormat:
    """The format of that name.

    Raises:
        ConfigError: There is none.
    """
    if name not in context.call_formats:
        raise ConfigError(
            f"There is no call format named {name!r}. Known: auto, {', '.join(_known(context))}.",
            remedy="finqa plugins",
        )
    return context.call_formats[name]()


def choose_format(name: str, context: CodecContext, render: Render) -> tuple[CallFormat, bool]:
    """The format, and whether the chat template writes calls in it.

    Args:
        name: Name of a call format, or `auto` for the first that the template writes; those of this plugin come first.
        context: Holds the formats and names the model.
        render: The chat template.

    Raises:
        ConfigError: There is no such format, or the template writes none of the known ones.
    """
    probe = ToolCall(name="look_up", arguments={"what": "table"})
    messages = [Message(role="user", content="question"), Message(role="assistant", content="", tool_call=probe)]
    text = render(messages, ())
    if name != "auto":
        chosen = named_format(name, context)
        return chosen, chosen.render(probe) in text
    known = _known(context)
    for one in known:
        form = context.call_formats[one]()
        if form.render(probe) in text:
            return form, True
    raise ConfigError(
        f"The chat template of {context.model!r} writes tool calls in none of the known formats.",
        remedy=f"--set codec.options.call_format=NAME, where NAME is one of {', '.join(known)}",
    )


def _known(context: CodecContext) -> list[str]:
    return sorted(context.call_formats, key=lambda one: (one not in _OWN, one))
