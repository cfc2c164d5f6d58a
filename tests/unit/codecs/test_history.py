"""Chat templates that rewrite earlier turns: what the next prompt is, and where an episode forks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("transformers")

from chat_families import FORKING, as_prompt, codec_of, controls, decode, rendered
from fixtures.toy_environment import ToyTokenEngine

from finqa_cli.contracts import PlayedTurn
from finqa_cli.rollout.conversation import TokenConversation
from finqa_cli.types import Completion, GenerateRequest, Message, Observation, Sampling, ToolCall

CALL = ToolCall(name="sql_query", arguments={"query": "SELECT \u00e9 FROM t"})
PROMPT = as_prompt("You analyse.", "How much?")


def said(codec: Any, words: str, *, thought: str = "") -> Message:
    reasoning = f"<think>\n{thought}\n</think>\n\n" if thought and codec._thinking else ""
    return Message(role="assistant", content=reasoning + words, tool_call=CALL)


def played(codec: Any, *turns: tuple[Message, str]) -> list[PlayedTurn]:
    return [PlayedTurn(completion_ids=codec.assistant(turn), stopped=True, reply=reply) for turn, reply in turns]


@pytest.mark.parametrize("name", list(FORKING))
def test_history_is_what_the_template_renders(name: str) -> None:
    codec = codec_of(name)
    assert codec.rewrites("tool")
    # Llama's template leaves out the words beside a call, so there are none here.
    turns = [(said(codec, "", thought=f"weigh {place}"), f"[[{place}]]") for place in range(3)]
    for count in (1, 2, 3):
        messages = [*PROMPT.messages]
        for turn, reply in turns[:count]:
            messages += [turn, Message(role="tool", content=reply)]
        ids = codec.history(PROMPT, played(codec, *turns[:count]))
        assert decode(codec, ids) == rendered(codec, messages, PROMPT.tools)


def test_dropped_reasoning_takes_nothing_else_with_it() -> None:
    codec = codec_of("qwen3 forgets")
    text = "<think>\nweigh\n</think>\n\n"
    # No tokenizer would cut the words so: one id for each byte.
    odd = [codec._encode(letter)[0] for letter in "So it is"]
    sampled = (*codec._encode(text), *odd, codec.stop_ids[1])
    (turn,) = [PlayedTurn(completion_ids=sampled, stopped=True, reply="<|im_end|>")]
    ids = codec.history(PROMPT, [turn])
    frame = codec.tool_reply("<|im_end|>", stopped=True)
    assert ids == (*codec.opening(PROMPT), *odd, codec.stop_ids[1], *frame)


@pytest.mark.parametrize("cut", ["<think>\nwei", "<think>\nweigh\n</think>\n\nSo it"])
def test_a_turn_that_was_cut_is_closed(cut: str) -> None:
    codec = codec_of("qwen3 forgets")
    ids = codec.history(PROMPT, [PlayedTurn(completion_ids=tuple(codec._encode(cut)), stopped=False, reply="r")])
    kept = cut if "</think>" not in cut else "So it"
    assert ids == (*codec.opening(PROMPT), *codec._encode(kept), *codec.tool_reply("r", stopped=False))


def test_reasoning_that_was_closed_in_plain_letters_is_dropped_too() -> None:
    codec = codec_of("qwen3 forgets")
    spelled = [number for letter in "weigh</think>\n\nSo" for number in codec._encode(letter)]
    ids = codec.history(PROMPT, [PlayedTurn(completion_ids=tuple(spelled), stopped=False, reply="r")])
    assert "</think>" not in controls(codec, spelled)
    assert ids == (*codec.opening(PROMPT), *spelled[-2:], *codec.tool_reply("r", stopped=False))


class Script(ToyTokenEngine):
    """Answers with the given completions."""

    def __init__(self, completions: Sequence[tuple[int, ...]], max_context: int = 10_000) -> None:
        super().__init__()
        self.max_context = max_context
        self.asked: list[tuple[int, ...]] = []
        self._completions = list(completions)

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked.append(request.token_ids)
        ids = self._completions.pop(0)
        return Completion(token_ids=ids, logprobs=(-1.0,) * len(ids), stop="stop", policy_version=0)


def converse(codec: Any, engine: Any) -> TokenConversation:
    return TokenConversation(engine, codec, PROMPT, key="k", sampling=Sampling())


async def test_an_episode_forks_only_where_history_changes() -> None:
    """A turn without reasoning loses none, so the next one is appended."""
    codec = codec_of("qwen3 forgets")
    plain, thought = said(codec, "So:"), said(codec, "", thought="weigh")
    completions = [tuple(codec._encode(f"{turn.content}.")) + codec.stop_ids[:1] for turn in (plain, thought, plain)]
    engine = Script([*completions, codec.assistant(plain)])
    conversation = converse(codec, engine)
    restarts = []
    for reply in ("[1]", "[2]", "[3]", "[4]"):
        restarts.append((await conversation.respond()).restarts)
        conversation.observe(Observation(text=reply), tools=["sql_query"])
    assert restarts == [False, False, True, False]
    assert engine.asked[1][: len(engine.asked[0])] == engine.asked[0]
    assert "weigh" in decode(codec, completions[1]) and "weigh" not in decode(codec, engine.asked[2])


async def test_a_fork_makes_room_in_the_context() -> None:
    """Kept, the reasoning would fill it; dropped, the episode continues until what is left does."""
    codec = codec_of("qwen3 forgets")
    thinking = codec.assistant(said(codec, "", thought="weigh " * 60))
    conversation = converse(codec, Script([thinking] * 99, max_context=len(codec.opening(PROMPT)) + len(thinking)))
    replies = 0
    while not (await conversation.respond()).full:
        replies += 1
        conversation.observe(Observation(text="[1]"), tools=["sql_query"])
    assert replies > 5
