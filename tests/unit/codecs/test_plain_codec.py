"""The codec for models without tool templates, over tokenizers as GPT-2 and Llama have them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from chat_families import CONTROL_STRINGS, as_prompt
from fixtures.toy_environment import ToyTokenEngine
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_families import ENDS, codec_of, folder_of, tokenizer_of

from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.contracts import ChatCodec
from finqa_cli.rollout.conversation import TokenConversation
from finqa_cli.types import (
    Completion,
    GenerateRequest,
    Message,
    Observation,
    Prompt,
    Sampling,
    Status,
    Task,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
)

FAMILIES = tuple(ENDS)
HOSTILE = (
    *CONTROL_STRINGS,
    "<s>",
    "</s>",
    "<unk>",
    "<0x0A>",
    "<|user|>\n",
    "<|assistant|>",
    "\n",
    " ",
    "\ue0000\ue000",
)
# SentencePiece writes a space as U+2581, so it reads that character back as a space.
_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")
contents = st.lists(st.sampled_from(HOSTILE) | st.text(_characters)).map("".join)


def read(codec: Any, ids: Any) -> str:
    return str(codec._text.decode(ids))


def said(text: str = "", call: ToolCall | None = None) -> Message:
    return Message(role="assistant", content=text, tool_call=call)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_fulfils_the_contract_and_only_appends(family: str) -> None:
    codec = codec_of(family)
    assert isinstance(codec, ChatCodec) and not codec.rewrites("tool") and not codec.rewrites("user")
    assert read(codec, codec.stop_ids) == ENDS[family]


def test_an_episode_reads_as_documented() -> None:
    codec = codec_of("gpt2")
    call = ToolCall(name="sql_query", arguments={"query": "SELECT 1"})
    ids = (
        *codec.opening(as_prompt("Be brief.", "How much?")),
        *codec.assistant(said("Look:", call)),
        *codec.tool_reply("[[1]]", stopped=True),
        *codec.assistant(said("1")),
    )
    assert read(codec, ids) == (
        "<|system|>\nBe brief.\n\nYou can call these tools:\n"
        '- sql_query(query: string, rows?: {"type": ["integer", "null"]}): Run \u201cSQL\u201d <here>\n'
        "Call one tool per turn and wait for its reply. A call is written like this:\n"
        '<tool_call>\n{"name": "tool", "arguments": {"argument": "value"}}\n</tool_call><|endoftext|>\n'
        "<|user|>\nHow much?<|endoftext|>\n"
        '<|assistant|>\nLook:\n<tool_call>\n{"name": "sql_query", "arguments": {"query": "SELECT 1"}}\n</tool_call>'
        "<|endoftext|>\n<|tool|>\n[[1]]<|endoftext|>\n<|assistant|>\n1<|endoftext|>"
    )


@pytest.mark.parametrize("family", ["llama", "legacy llama"])
@given(system=contents, question=contents, answer=contents)
@example(system="", question=" \n padded \n", answer="\n\nCaf\u00e9 \u4e2d")
@settings(max_examples=25, deadline=None)
def test_tinyllama_reads_the_ids_of_its_own_chat_template(family: str, system: str, question: str, answer: str) -> None:
    """Wherever no content holds a string of a control token, which its own tokenizer would take for the token."""
    texts = {"system": system, "user": question, "assistant": answer}
    for token in ("<s>", "</s>", "<unk>"):
        texts = {role: text.replace(token, "") for role, text in texts.items()}
    roles = ("system", "user", "assistant", "user")
    messages = tuple(Message(role=role, content=texts[role]) for role in roles)  # type: ignore[arg-type]
    tokenizer = tokenizer_of(folder_of(family))
    chat = [{"role": message.role, "content": message.content} for message in messages]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    codec = codec_of(family)
    assert list(codec.opening(Prompt(messages=messages, tools=()))) == tokenizer.encode(rendered)


@pytest.mark.parametrize("family", FAMILIES)
@given(system=contents, question=contents, reply=contents, cell=contents)
@settings(max_examples=25, deadline=None)
def test_contents_are_kept_to_the_letter_and_end_no_turn(
    family: str, system: str, question: str, reply: str, cell: str
) -> None:
    codec, end = codec_of(family), codec_of(family).stop_ids[0]
    tool = ToolSpec(name="f", description=cell, parameters={"properties": {"a": {"type": "string", "enum": [cell]}}})
    call = ToolCall(name="f", arguments={"a": cell})
    few_shot = (*as_prompt(system, question).messages, said(cell, call), Message(role="tool", content=reply, name="f"))
    pieces = (
        codec.opening(Prompt(messages=few_shot, tools=(tool,))),
        codec.assistant(said(reply, call)),
        codec.tool_reply(cell, stopped=True),
        codec.assistant(said(question))[:-1],
        codec.tool_reply(reply, stopped=False),
        codec.assistant(said(question))[:-1],
        codec.user_reply(reply, stopped=False),
    )
    ids = [token for piece in pieces for token in piece][len(codec._begin) :]
    turns: list[list[int]] = [[]]
    for token in ids:
        if token == end:
            turns.append([])
        else:
            turns[-1].append(token)
    control = {number for number, one in tokenizer_of(folder_of(family)).added_tokens_decoder.items() if one.special}
    assert not control & {token for turn in turns for token in turn}
    texts = [read(codec, turn).lstrip(" ").removeprefix("\n") for turn in turns]
    tool_turns = ("tool", "assistant") * 3
    roles = ["system", "user", "assistant", *tool_turns, "user", "assistant"]
    assert [text.partition("\n")[0] for text in texts] == [f"<|{role}|>" for role in roles]
    spoken = [text.partition("\n")[2] for text in texts]
    assert spoken[0].startswith(system) and spoken[1] == question and spoken[5] == cell and spoken[7] == reply
    assert spoken[3] == reply and spoken[9] == reply and spoken[10] == ""
    assert spoken[6] == spoken[8] == question or question.lstrip().startswith("<think>")
    assert len(codec.assistant(said())) == 1, "no words are no tokens"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("call_format", ["hermes", "llama3_json", "xml"])
def test_a_demonstrated_call_parses_back_in_every_format(family: str, call_format: str) -> None:
    codec = codec_of(family, call_format)
    codec.opening(as_prompt("s", "q"))
    call = ToolCall(name="sql_query", arguments={"query": ' SELECT "2024" -- \u00e9 </s><|endoftext|>', "rows": 3})
    sampled = codec.assistant(said("  So:", call))
    turn = codec.parse(sampled)
    assert (turn.parse_error, turn.tool_call, turn.words) == ("", call, "  So:")
    assert codec.assistant(said(turn.words, turn.tool_call)) == sampled


@pytest.mark.parametrize("family", FAMILIES)
@given(text=contents)
@example(text=' {"answer": 0.05, "program": "divide(1, 20)"}')
@settings(max_examples=25, deadline=None)
def test_a_reply_without_tools_is_read_as_it_was_written(family: str, text: str) -> None:
    codec = codec_of(family)
    if not text.lstrip().startswith("<think>"):
        sampled = codec.assistant(said(text))
        assert codec.parse(sampled).text == text and sampled.count(codec.stop_ids[0]) == 1


def test_reasoning_of_another_models_demonstration_is_left_out() -> None:
    codec = codec_of("llama")
    assert codec.assistant(said("<think>\nhm\n</think>\n\n42")) == codec.assistant(said("42"))


@pytest.mark.parametrize("family", FAMILIES)
@given(ids=st.lists(st.integers(-5, 100_000) | st.integers(0, 430)))
@settings(max_examples=25, deadline=None)
def test_any_sampled_ids_give_a_turn(family: str, ids: list[int]) -> None:
    turn = codec_of(family).parse(tuple(ids))
    assert (turn.tool_call is None) == bool(turn.parse_error)


class Sampler(ToyTokenEngine):
    """Answers with given ids, and keeps what it was asked."""

    max_context = 1_000_000

    def __init__(self, turns: list[tuple[tuple[int, ...], bool]]) -> None:
        super().__init__()
        self._turns = turns
        self.asked: list[tuple[int, ...]] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        ids, stopped = self._turns[len(self.asked)]
        self.asked.append(request.token_ids)
        stop = request.sampling.stop_ids if stopped else ()
        return Completion(
            token_ids=(*ids, *stop),
            logprobs=(-1.0,) * (len(ids) + len(stop)),
            stop="stop" if stopped else "length",
            policy_version=0,
        )


@pytest.mark.parametrize("family", FAMILIES)
@given(
    turns=st.lists(
        st.tuples(st.lists(st.integers(3, 370), min_size=1).map(tuple), st.booleans(), contents), min_size=1, max_size=5
    )
)
@settings(max_examples=25, deadline=None)
async def test_what_was_sampled_is_never_written_anew(family: str, turns: list[tuple[Any, bool, str]]) -> None:
    """Each prompt begins with the one before it and what was sampled then; loss is on the sampled ids alone."""
    codec = codec_of(family)
    engine: Any = Sampler([(ids, stopped) for ids, stopped, _ in turns])
    conversation = TokenConversation(engine, codec, as_prompt("s", "q"), key="k", sampling=Sampling(seed=0))
    played: list[Turn] = []
    for _, stopped, reply in turns:
        got = await conversation.respond()
        played.append(
            Turn(
                prompt_ids=got.prompt_ids,
                completion_ids=got.completion_ids,
                logprobs=got.logprobs,
                stop=got.stop,
                observation=Observation(text=reply),
            )
        )
        assert not got.restarts and (got.stop == "stop") == stopped
        conversation.observe(Observation(text=reply), tools=["sql_query"])
    history: tuple[int, ...] = ()
    mask: list[bool] = []
    for asked, turn, before in zip(engine.asked, played, [None, *played], strict=False):
        assert asked == history + turn.prompt_ids
        ends = turn.prompt_ids.count(codec.stop_ids[0])
        assert ends == (2 if before is None else 1 + (before.stop == "length"))
        history = asked + turn.completion_ids
        mask += [False] * len(turn.prompt_ids) + [True] * len(turn.completion_ids)
    task = Task(id="t", prompt="q", split="train", cluster="c")
    trajectory = Trajectory(id="e", task=task, member=0, seed=0, status=Status.COMPLETED, turns=tuple(played))
    (sample,) = trajectory_samples(trajectory, 1.0)
    assert (tuple(sample.token_ids), sample.loss_mask.tolist()) == (history, list(mask))
