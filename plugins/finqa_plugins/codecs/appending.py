"""Proves at start-up how an episode may go on from turn to turn, by playing probes through the model's chat template.

Appending is right when the template preserves prefixes, so that its rendering of a longer chat begins with that of the
shorter one. Otherwise the codec renders the conversation anew (`history`), and the probes prove that this gives what
the template would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from finqa_cli.contracts import PlayedTurn, ReplyRole, RewritingCodec
from finqa_cli.errors import ConfigError
from finqa_cli.types import Message, Prompt, ToolCall, ToolSpec
from finqa_plugins.codecs.config import HistoryMode
from finqa_plugins.codecs.reasoning import render_reasoning, without_empty_reasoning, without_reasoning

_TOOL = ToolSpec(
    name="look_up",
    description="Looks up.",
    parameters={"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
)
_OTHER_TEMPLATE = "Choose the codec of this model's family (finqa plugins), or give it a template that only appends."


@dataclass(frozen=True, slots=True)
class Probe:
    """One chat three times: as appending gives it, as the template renders it, and as `history` does."""

    appended: str
    rendered: str
    anew: str


def play_probes(
    codec: RewritingCodec,
    render: Callable[[Sequence[Message], Sequence[ToolSpec]], str],
    decode: Callable[[Sequence[int]], str],
    *,
    role: ReplyRole,
    thinking: bool,
    calls: bool,
) -> list[Probe]:
    """Plays probe episodes, with and without tools, or for replies of the user without them; a probe for each turn.

    Args:
        codec: Appends and renders anew.
        render: The template's own rendering of a chat, generation prompt included.
        decode: Ids to text.
        role: Of the replies.
        thinking: Turns hold reasoning.
        calls: Turns may be compared as tool calls; False where the user chose a format that is not the template's.
    """
    probes: list[Probe] = []
    encode = codec.tool_reply if role == "tool" else codec.user_reply
    for tools in ((_TOOL,), ()) if role == "tool" else ((),):
        opening = (Message(role="system", content="Be brief."), Message(role="user", content="How much?"))
        prompt = Prompt(messages=opening, tools=tools)
        messages, played, ids = list(opening), list[PlayedTurn](), list(codec.opening(prompt))
        for turn in range(3):
            said = _said(turn, thinking=thinking, call=calls and bool(tools))
            reply = Message(role=role, content=f"[{turn}]", name=_TOOL.name if role == "tool" else "")
            messages += [said, reply]
            sampled = codec.assistant(said)
            played.append(PlayedTurn(completion_ids=sampled, stopped=True, reply=reply.content, role=role))
            ids += [*sampled, *encode(reply.content, stopped=True)]
            anew = codec.history(prompt, played)
            probes.append(Probe(appended=decode(ids), rendered=render(messages, tools), anew=decode(anew)))
    return probes


def rewrites_history(probes: Sequence[Probe], mode: HistoryMode) -> bool:
    """Whether episodes are to be rendered anew for each turn, because the template rewrites earlier turns.

    Args:
        probes: What `play_probes` saw.
        mode: `append` keeps reasoning that the template drops, `template` does whatever the template does, and `auto`
            appends where the template does. An empty reasoning block that it drops is no reason for `auto` to fork.

    Raises:
        ConfigError: The template rewrites more than `append` may pass over, or in a way that cannot be followed.
    """
    if mode == "append":
        for probe in probes:
            appended, rendered = without_reasoning(probe.appended), without_reasoning(probe.rendered)
            if appended != rendered:
                raise _refusal(
                    "is not prefix-preserving", appended, rendered, remedy="--set codec.options.history=auto"
                )
        return False
    same = without_empty_reasoning if mode == "auto" else str
    if all(same(probe.appended) == same(probe.rendered) for probe in probes):
        return False
    for probe in probes:
        if probe.anew != probe.rendered:
            problem = "rewrites history in a way that cannot be followed"
            raise _refusal(problem, probe.anew, probe.rendered, remedy=_OTHER_TEMPLATE)
    return True


def _said(turn: int, *, thinking: bool, call: bool) -> Message:
    reasoning = render_reasoning(f"weigh {turn}") if thinking else ""
    words = "" if call else f"Turn {turn}."
    arguments: dict[str, Any] = {"what": f"table {turn}"}
    tool_call = ToolCall(name=_TOOL.name, arguments=arguments) if call else None
    return Message(role="assistant", content=reasoning + words, tool_call=tool_call)


def _refusal(problem: str, read: str, rendered: str, *, remedy: str) -> ConfigError:
    pairs = zip(read, rendered, strict=False)
    at = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(read), len(rendered)))
    return ConfigError(
        f"The chat template {problem}: an episode reads {read[max(0, at - 20) : at + 30]!r} "
        f"where the template renders {rendered[max(0, at - 20) : at + 30]!r}.",
        remedy=remedy,
    )
