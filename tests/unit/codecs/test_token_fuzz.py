"""Random episodes through the real conversation: what was sampled is what later turns see and what is trained on.

The engine samples canonical and non-canonical segmentations of texts, any ids of the vocabulary and pieces of
characters, and reasoning; questions and tool replies are hostile. After five turns every sampled id must stand where it
was sampled. Where the chat template rewrites earlier turns an episode forks; then every sampled id must stand in one of
its sequences, and what the template keeps of a turn must be in every later prompt id by id.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("transformers")

from chat_families import CASES, CONTROL_STRINGS, FORKING, THINKING, as_prompt, codec_of, controls
from fixtures.toy_environment import ToyTokenEngine

from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.contracts import PlayedTurn
from finqa_cli.rollout.conversation import Reply, TokenConversation
from finqa_cli.types import (
    Completion,
    GenerateRequest,
    Observation,
    Prompt,
    Sample,
    Sampling,
    Status,
    Task,
    Trajectory,
    Turn,
)

TURNS = 5
WORDS = [
    *CONTROL_STRINGS,
    "SELECT revenue FROM income_statement",
    "12,345 (6.7) %",
    " \n\n\t",
    '{"name": "f',
    "\\u00e9\\",
]
UNICODE = [
    "\u00e9",
    "e\u0301",
    "\u4e2d\u6587",
    "\U0001f600\U0001f3fd",
    "\u202e",
    "\ufeff",
    "\u0000",
    "\u2028",
    "\ue0000\ue000",
]


@cache
def id_bytes(name: str) -> list[bytes]:
    """What each id of the vocabulary writes, by id."""
    tokenizer = codec_of(name)._tokenizer
    added = tokenizer.added_tokens_decoder
    to_byte = {letter: byte for byte, letter in _byte_letters().items()}
    texts: list[bytes] = []
    for number in range(len(tokenizer)):
        token = tokenizer.convert_ids_to_tokens(number)
        texts.append(token.encode() if number in added else bytes(to_byte[letter] for letter in token))
    return texts


def _byte_letters() -> dict[int, str]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


@cache
def ids_by_bytes(name: str) -> dict[bytes, int]:
    """Ordinary ids by what they write: no control tokens."""
    added = codec_of(name)._tokenizer.added_tokens_decoder
    return {text: number for number, text in enumerate(id_bytes(name)) if number not in added}


def text_of(rng: random.Random) -> str:
    return "".join(rng.choice(rng.choice([WORDS, UNICODE])) for _ in range(rng.randrange(8)))


def segment(name: str, text: str, rng: random.Random) -> list[int]:
    """Any segmentation of the text into the vocabulary, mostly not the tokenizer's own."""
    left, ids, known = text.encode(), [], ids_by_bytes(name)
    while left:
        lengths = [length for length in range(1, min(12, len(left)) + 1) if left[:length] in known]
        length = rng.choice(lengths)
        ids.append(known[left[:length]])
        left = left[length:]
    return ids


class FuzzEngine(ToyTokenEngine):
    """Samples by a seed and keeps what it was asked and what it answered."""

    max_context = 1_000_000

    def __init__(self, name: str, rng: random.Random) -> None:
        super().__init__()
        self._name, self._rng = name, rng
        self.asked: list[tuple[int, ...]] = []
        self.sampled: list[tuple[int, ...]] = []
        self.written: list[bytes] = []
        self.kept: list[tuple[int, ...]] = []
        self.twisted = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        rng, codec = self._rng, codec_of(self._name)
        kind, text = rng.randrange(4 if self._name in FORKING else 3), text_of(rng)
        if kind == 0:
            ids = [rng.randrange(len(codec._tokenizer)) for _ in range(rng.randrange(30))]
            ids = [number for number in ids if number not in codec.stop_ids]
            written = b"".join(id_bytes(self._name)[number] for number in ids)
        elif kind == 3:
            thought, words = (segment(self._name, part, rng) for part in ("weigh\n", f"so {text}"))
            ids = [*codec._encode("<think>\n"), *thought, *codec._encode("</think>\n\n"), *words]
            written = f"<think>\nweigh\n</think>\n\nso {text}".encode()
        else:
            ids = codec._encode(text) if kind == 1 else segment(self._name, text, rng)
            written = b"".join(id_bytes(self._name)[number] for number in ids) if kind == 1 else text.encode()
            self.twisted += ids != codec._encode(text)
        stopped = rng.random() < 0.8
        if stopped:
            ids.append(rng.choice(codec.stop_ids))
            written += id_bytes(self._name)[ids[-1]]
        ids = ids or [codec.stop_ids[0]]
        self.asked.append(request.token_ids)
        self.sampled.append(tuple(ids))
        behind = ids[-len(words) - stopped :] if kind == 3 and "</think>" not in text else ids
        self.kept.append(tuple(behind) if "</think>" not in codec._decode(behind) else ())
        self.written.append(written or id_bytes(self._name)[ids[0]])
        logprobs = tuple(-rng.random() - 0.01 for _ in ids)
        return Completion(
            token_ids=tuple(ids), logprobs=logprobs, stop="stop" if stopped else "length", policy_version=0
        )


@dataclass(frozen=True)
class Played:
    """Of one episode: turns that were not what the tokenizer would write, and turns that began a new sequence."""

    twisted: int
    forks: int


async def play(name: str, seed: int) -> Played:
    """Plays one episode and checks it."""
    rng = random.Random(seed)
    engine: Any = FuzzEngine(name, rng)
    codec = codec_of(name)
    tool = rng.choice(["sql_query", None])
    prompt = _prompt(tool, text_of(rng), text_of(rng))
    conversation = TokenConversation(engine, codec, prompt, key="fuzz", sampling=Sampling(seed=seed))
    replies: list[Reply] = []
    for _ in range(TURNS):
        replies.append(await conversation.respond())
        conversation.observe(Observation(text=text_of(rng)), tools=None if tool is None else [tool])
    _check_ids(engine, replies)
    if codec.rewrites("tool" if tool else "user"):
        _check_prompts(codec, engine, replies, tool)
    else:
        _check_controls(codec, replies, tool)
    _check_samples(name, engine, replies)
    return Played(twisted=engine.twisted, forks=sum(reply.restarts for reply in replies))


def _prompt(tool: str | None, system: str, question: str) -> Prompt:
    prompt = as_prompt(system, question)
    return prompt if tool else Prompt(messages=prompt.messages, tools=())


def _check_ids(engine: FuzzEngine, replies: Sequence[Reply]) -> None:
    """Each prompt is the one before it, what was sampled then, and new ids; or all of it is new."""
    history: tuple[int, ...] = ()
    for asked, sampled, reply in zip(engine.asked, engine.sampled, replies, strict=True):
        assert asked == (() if reply.restarts else history) + reply.prompt_ids
        assert not reply.restarts or asked[: len(history)] != history
        assert reply.completion_ids == sampled
        history = asked + sampled


def _check_controls(codec: Any, replies: Sequence[Reply], tool: str | None) -> None:
    """No question and no reply brought a control token in."""
    encode = codec.tool_reply if tool else codec.user_reply
    assert controls(codec, replies[0].prompt_ids) == controls(codec, codec.opening(_prompt(tool, "x", "x")))
    for before, after in pairwise(replies):
        assert controls(codec, after.prompt_ids) == controls(codec, encode("x", stopped=before.stop == "stop"))


def _check_prompts(codec: Any, engine: FuzzEngine, replies: Sequence[Reply], tool: str | None) -> None:
    """What the template keeps of earlier turns is in each prompt as it was sampled, and nothing else controls it."""
    for number, asked in enumerate(engine.asked[1:], start=1):
        played = [
            PlayedTurn(
                completion_ids=reply.completion_ids,
                stopped=reply.stop == "stop",
                reply="x",
                role="tool" if tool else "user",
            )
            for reply in replies[:number]
        ]
        assert controls(codec, asked) == controls(codec, codec.history(_prompt(tool, "x", "x"), played))
        prompt, place = "".join(map(chr, asked)), 0
        for kept in engine.kept[:number]:
            place = prompt.index("".join(map(chr, kept)), place) + len(kept)


def _check_samples(name: str, engine: FuzzEngine, replies: Sequence[Reply]) -> None:
    """Each sequence is what the engine was last asked in it and answered; every turn is sampled in one of them."""
    turns = tuple(
        Turn(
            prompt_ids=reply.prompt_ids,
            restarts=reply.restarts,
            completion_ids=reply.completion_ids,
            logprobs=reply.logprobs,
            stop=reply.stop,
            observation=Observation(text=""),
        )
        for reply in replies
    )
    task = Task(id="t", prompt="q", split="train", cluster="c")
    trajectory = Trajectory(id="e", task=task, member=0, seed=0, status=Status.COMPLETED, turns=turns)
    samples = trajectory_samples(trajectory, 2.0)
    starts = [number for number, reply in enumerate(replies) if number == 0 or reply.restarts]
    assert len(samples) == len(starts)
    for sample, start, end in zip(samples, starts, [*starts[1:], len(replies)], strict=True):
        assert tuple(sample.token_ids) == engine.asked[end - 1] + engine.sampled[end - 1]
        _check_sample(name, sample, engine, replies, range(start, end))


def _check_sample(name: str, sample: Sample, engine: FuzzEngine, replies: Sequence[Reply], turns: range) -> None:
    """Loss on every id sampled in these turns and on no other; the bytes there are the bytes that were sampled."""
    spans = [(len(engine.asked[turn]), len(engine.asked[turn]) + len(engine.sampled[turn])) for turn in turns]
    sampled = {place for start, end in spans for place in range(start, end)}
    assert sample.loss_mask.tolist() == [place in sampled for place in range(len(sample.token_ids))]
    assert sample.advantages.tolist() == [2.0 if chosen else 0.0 for chosen in sample.loss_mask]
    assert [sample.logprobs[place] for place in sorted(sampled)] == [
        p for turn in turns for p in replies[turn].logprobs
    ]
    assert all(sample.logprobs[place] == 0 for place in range(len(sample.token_ids)) if place not in sampled)
    known = id_bytes(name)
    written = [b"".join(known[number] for number in sample.token_ids[start:end]) for start, end in spans]
    assert written == [engine.written[turn] for turn in turns]


async def fuzz(episodes: int) -> None:
    names = [*CASES, *FORKING]
    played = [await play(names[seed % len(names)], seed) for seed in range(episodes)]
    assert sum(one.twisted for one in played) > episodes  # the fuzz does sample what no tokenizer would write
    for place, name in enumerate(names):
        forks = sum(one.forks for one in played[place :: len(names)])
        # A message of the user takes reasoning away, which these sample now and then.
        assert (forks > 0) == (name in FORKING) or name in THINKING, name


async def test_sampled_tokens_survive_random_episodes() -> None:
    await fuzz(320)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_sampled_tokens_survive_ten_thousand_random_episodes() -> None:
    await fuzz(10_000)
