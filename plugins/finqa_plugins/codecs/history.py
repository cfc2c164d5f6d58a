"""How an episode continues from turn to turn: by appending, or by rendering the conversation again for each turn.

Appending is right when the chat template preserves prefixes, so that its rendering of a longer chat begins with that
of the shorter one. Probes prove this at start-up. Otherwise the codec renders the whole conversation for each turn
(`history`), and the probes prove that this gives what the template would.

`Replay` renders sampled turns without decoding and encoding again what the template keeps. It gives the template each
turn as two placeholders, one for the reasoning and one for the text after it. If the rendering contains both, all
sampled ids replace them. If the template dropped the reasoning, only the ids after the reasoning are inserted. The
text between turns is encoded as the template writes it.
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
    """The text of one chat, built in three ways: by appending, by the template, and by `ChatCodec.history`."""

    appended: str
    rendered: str
    rerendered: str

    def with_end(self, sampled: str, rendered: str) -> Probe:
        """The probe with the template's end of a turn in place of the policy's, as far as they differ by design."""
        return replace(
            self,
            appended=self.appended.replace(sampled, rendered),
            rerendered=self.rerendered.replace(sampled, rendered),
        )


def play_probes(
    codec: ChatCodec,
    render: Callable[[Sequence[Message], Sequence[ToolSpec]], str],
    decode: Callable[[Sequence[int]], str],
    *,
    role: ReplyRole,
    thinking: bool,
    calls: int,
    only_with_tools: bool = False,
) -> list[Probe]:
    """Plays probe episodes and returns one probe for each turn.

    Replies of tools are probed with and without tool schemas in the prompt, replies of the user only without.

    Args:
        codec: The codec to probe.
        render: Renders a chat with the template alone, generation prompt included.
        decode: Converts ids to text.
        role: Role of the replies.
        thinking: Whether turns contain reasoning.
        calls: Tool calls of a turn.
        only_with_tools: Replies of tools are not probed without tools in the prompt.
    """
    probes: list[Probe] = []
    prompts = ((),) if role == "user" else ((_TOOL,),) if only_with_tools else ((_TOOL,), ())
    for tools in prompts:
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
    """Whether episodes must be rendered again for each turn, because the template rewrites earlier turns.

    Args:
        probes: Result of `play_probes`.
        mode: `append` keeps reasoning that the template drops, `template` follows the template, and `auto`
            appends if the template does. `auto` ignores that a template drops empty reasoning blocks.

    Raises:
        ConfigError: The template rewrites more than `append` may ignore, or in a way that `history` does not reproduce.
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
    """Inserts the sampled ids of earlier turns into one rendering of the chat template."""

    def __init__(
        self, read: Reader, turn_end: str, lead: str, reasoning_open: str, contents: dict[str, str], mark: str
    ) -> None:
        """Start without turns.

        Args:
            read: Reads sampled ids; see `reader`.
            turn_end: Text that ends an assistant turn in the template.
            lead: Text that the template writes before the content of a turn; the policy samples it.
            reasoning_open: Reasoning block that the template's generation prompt opens; may be empty.
            contents: Placeholder -> content; new placeholders are added to it.
            mark: Character around the number of a placeholder, see `free_mark`.
        """
        self._read = read
        self._turn_end = turn_end
        self._lead = lead
        self._reasoning_open = reasoning_open
        self._contents = contents
        self._mark = mark
        self._ids: dict[str, Ids] = {}
        self._turns: list[tuple[str, str, str, Ids]] = []

    def add(self, turn: PlayedTurn) -> str:
        """Records a turn, and returns the content that the template gets in its place."""
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
        """[L] ids of the rendered `text`, in which the sampled ids replace the placeholders of turns."""
        for whole, kept, words, stop in self._turns:
            # The policy may have ended the turn with another stop id than the template's.
            last = whole if kept in text else words
            text = text.replace(self._lead + kept, kept).replace(kept, whole)
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
    """Makes a function that reads sampled ids: it returns their text and the ids after the reasoning.

    The ids after the reasoning begin after the last `</think>` and the newlines that follow it. They are all ids if
    there is no `</think>`, and None if one token spans the end of the reasoning. Results are cached, because an episode
    reads each turn again for every later turn.
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
