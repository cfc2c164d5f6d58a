"""How an episode continues from turn to turn: by appending, or by rendering the conversation again for each turn.

Appending is right when the chat template preserves prefixes, so that its rendering of a longer chat begins with that
of the shorter one. Probes prove this at start-up. Otherwise the codec renders the whole conversation for each turn
(`history`), and the probes prove that this gives what the template would.

`Replay` renders sampled turns without decoding and encoding what the template keeps. The template sees a turn as
placeholders, one for its reasoning and one for what follows. Where it leaves the turn whole, the sampled ids take its
place; where it drops the reasoning, those after it; the text between turns is encoded as the template writes it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from finqa_cli.contracts import ChatCodec, PlayedTurn, ReplyRole
from finqa_cli.errors import ConfigError
from finqa_cli.types import Message, Prompt, ToolCall, ToolSpec
from finqa_plugins.codecs.config import HistoryMode
from finqa_plugins.codecs.parsing import (
    THINK_CLOSE,
    THINK_OPEN,
    render_reasoning,
    without_empty_reasoning,
    without_reasoning,
)
from finqa_plugins.codecs.shielding import Shield, add_placeholder

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
    rerendered: str


def play_probes(
    codec: ChatCodec,
    render: Callable[[Sequence[Message], Sequence[ToolSpec]], str],
    decode: Callable[[Sequence[int]], str],
    *,
    role: ReplyRole,
    thinking: bool,
    calls: int,
) -> list[Probe]:
    """Plays probe episodes, with and without tools, or for replies of the user without them; a probe for each turn.

    Args:
        codec: Appends and renders again.
        render: The template's own rendering of a chat, generation prompt included.
        decode: Ids to text.
        role: Role of the replies.
        thinking: Turns contain reasoning.
        calls: Tool calls of a turn; 0 where the user chose a format that is not the template's.
    """
    probes: list[Probe] = []
    for tools in ((_TOOL,), ()) if role == "tool" else ((),):
        opening = (Message(role="system", content="Be brief."), Message(role="user", content="How much?"))
        prompt = Prompt(messages=opening, tools=tools)
        messages, played, ids = list(opening), list[PlayedTurn](), list(codec.opening(prompt))
        for turn in range(3):
            said = _said(turn, thinking=thinking, calls=calls if tools else 0)
            texts = [f"[{turn}]", *(f"[{turn}.{call}]" for call in range(1, len(said.calls)))]
            name = _TOOL.name if role == "tool" else ""
            messages += [said, *(Message(role=role, content=text, name=name) for text in texts)]
            sampled = codec.assistant(said)
            first, *further = texts
            turn_played = PlayedTurn(completion_ids=sampled, stopped=True, reply=first, role=role)
            played.append(replace(turn_played, further_replies=tuple(further)))
            tools_reply = role == "tool"
            ids += sampled
            ids += codec.tool_replies(texts, stopped=True) if tools_reply else codec.user_reply(first, stopped=True)
            rerendered = codec.history(prompt, played)
            probes.append(Probe(appended=decode(ids), rendered=render(messages, tools), rerendered=decode(rerendered)))
    return probes


def rewrites_history(probes: Sequence[Probe], mode: HistoryMode) -> bool:
    """Whether episodes are to be rendered again for each turn, because the template rewrites earlier turns.

    Args:
        probes: What `play_probes` saw.
        mode: `append` keeps reasoning that the template drops, `template` follows the template, and `auto`
            appends where the template does. An empty reasoning block that it drops is no reason for `auto` to fork.

    Raises:
        ConfigError: The template rewrites more than `append` may ignore, or in a way that cannot be followed.
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
        if probe.rerendered != probe.rendered:
            problem = "rewrites history in an unsupported way"
            raise _refusal(problem, probe.rerendered, probe.rendered, remedy=_OTHER_TEMPLATE)
    return True


def _said(turn: int, *, thinking: bool, calls: int) -> Message:
    reasoning = render_reasoning(f"weigh {turn}") if thinking else ""
    if not calls:
        return Message(role="assistant", content=f"{reasoning}Turn {turn}.")
    first, *further = (ToolCall(name=_TOOL.name, arguments={"what": f"table {turn}.{call}"}) for call in range(calls))
    return Message(role="assistant", content=reasoning, tool_call=first, further_calls=tuple(further))


def _refusal(problem: str, read: str, rendered: str, *, remedy: str) -> ConfigError:
    pairs = zip(read, rendered, strict=False)
    at = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(read), len(rendered)))
    return ConfigError(
        f"The chat template {problem}: an episode reads {read[max(0, at - 20) : at + 30]!r} "
        f"where the template renders {rendered[max(0, at - 20) : at + 30]!r}.",
        remedy=remedy,
    )


Ids = tuple[int, ...]
Reader = Callable[[Ids], tuple[str, Ids | None]]


class Replay:
    """The sampled turns of one rendering."""

    def __init__(self, read: Reader, turn_end: str, reasoning_open: str, contents: dict[str, str], mark: str) -> None:
        """Placeholders are added to `contents`. See `TemplateCodec` for the rest."""
        self._read = read
        self._turn_end = turn_end
        self._reasoning_open = reasoning_open
        self._contents = contents
        self._mark = mark
        self._ids: dict[str, Ids] = {}
        self._turns: list[tuple[str, str, str, Ids]] = []

    def add(self, turn: PlayedTurn) -> str:
        """The content in place of the turn."""
        said, stop = (turn.completion_ids[:-1], turn.completion_ids[-1:]) if turn.stopped else (turn.completion_ids, ())
        whole = self._place(said)
        text, rest = self._read(said)
        thought, closing, spoken = text.rpartition(THINK_CLOSE)
        if not closing:
            self._turns.append((whole, whole, whole, stop))
            return whole
        words = add_placeholder(spoken.lstrip("\n"), self._contents, self._mark) if rest is None else self._place(rest)
        reasoning = thought.lstrip().removeprefix(THINK_OPEN).strip("\n")
        content = render_reasoning(add_placeholder(reasoning, self._contents, self._mark)) + words
        self._turns.append((whole, content.removeprefix(self._reasoning_open), words, stop))
        return content

    def encode(self, text: str, shield: Shield) -> Ids:
        """[L] ids of what the template rendered."""
        for whole, kept, words, stop in self._turns:
            # What the policy ended the turn with may be another stop id than the template's.
            last = whole if kept in text else words
            text = text.replace(kept, whole)
            if stop and last in self._ids and last + self._turn_end in text:
                text = text.replace(last + self._turn_end, last)
                self._ids[last] += stop
        found: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, self._ids))})", text):
            found += self._ids[piece] if piece in self._ids else shield.encode(piece, self._contents)
        return tuple(found)

    def _place(self, ids: Ids) -> str:
        placeholder = add_placeholder("", self._contents, self._mark)
        self._ids[placeholder] = ids
        return placeholder


def reader(decode: Callable[[Sequence[int]], str]) -> Reader:
    """Reads sampled ids: their text, and those after the last `</think>` and the empty lines behind it.

    The latter are all ids where there is no `</think>`, and None where one id reaches across the end. An episode reads
    its turns again and again, so what was read is remembered.
    """

    @lru_cache(maxsize=1024)
    def read(ids: Ids) -> tuple[str, Ids | None]:
        text = decode(ids)
        closings = text.count(THINK_CLOSE)
        if not closings:
            return text, ids
        at = bisect_left(range(len(ids) + 1), closings, key=lambda end: decode(ids[:end]).count(THINK_CLOSE))
        if decode(ids[:at]).rpartition(THINK_CLOSE)[2].strip("\n"):
            return text, None
        while at < len(ids) and not decode(ids[at : at + 1]).strip("\n"):
            at += 1
        return text, ids[at:]

    return read
