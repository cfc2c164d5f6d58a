"""Episodes of several turns with tools that take time, and what playing them on an engine took.

Openings, questions, replies and their lengths are drawn from a seed: system text and tool schemas are common to all, a
group of 8 shares its question, each turn appends the completion and a tool's reply. Lengths are those of episodes of
the embedded policy, completions have the long tail of sampled ones. No stop id ends a completion, so that every engine
generates the same number of tokens independently of what it samples.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from finqa_cli.types import Completion, GenerateRequest, Sampling

VOCABULARY = 600
SYSTEM_TOKENS = 290
QUESTION_TOKENS = (40, 80)
REPLY_TOKENS = (20, 90)
GROUP = 8
LOCAL_TOOL_S = 0.004
"""Mean time of a tool in a local sandbox; drawn from an exponential distribution."""
SLOW_TOOL_S = 0.3
"""Of one that is far away or works hard."""

Played = tuple[GenerateRequest, Completion]


@dataclass(slots=True, kw_only=True)
class Result:
    """What one play took.

    Attributes:
        seconds: All episodes together.
        processor_seconds: Of this process.
        turn_seconds: Of every turn, from its request to its completion.
        played: Every request with its completion, by key.
    """

    seconds: float = 0.0
    processor_seconds: float = 0.0
    turn_seconds: list[float] = field(default_factory=list)
    played: list[Played] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Generated ones."""
        return sum(len(completion.token_ids) for _, completion in self.played)

    @property
    def tokens_per_second(self) -> float:
        """Generated ones of all episodes together."""
        return self.tokens / self.seconds

    def latency_ms(self, share: int) -> float:
        """Percentile of the turns' times."""
        return statistics.quantiles(self.turn_seconds, n=100, method="inclusive")[share - 1] * 1000


class Generates(Protocol):
    """What playing needs of a token engine."""

    def seat(self) -> AbstractContextManager[None]:
        """One live episode."""
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """One completion."""
        ...


async def play(engine: Generates, *, episodes: int, turns: int, seed: int = 0, tool_s: float = LOCAL_TOOL_S) -> Result:
    """Plays all episodes at once."""
    result = Result()
    system = _ids(random.Random(seed), SYSTEM_TOKENS)

    async def episode(index: int) -> None:
        question, own = random.Random(f"{seed}/q{index // GROUP}"), random.Random(f"{seed}/e{index}")
        ids = system + _ids(question, question.randint(*QUESTION_TOKENS))
        with engine.seat():
            for turn in range(turns):
                limit = min(120, max(8, round(own.lognormvariate(3.2, 0.6))))
                sampling = Sampling(max_tokens=limit, seed=own.getrandbits(31))
                request = GenerateRequest(key=f"{seed}-{index:04}#{turn}", token_ids=tuple(ids), sampling=sampling)
                asked = time.perf_counter()
                completion = await engine.generate(request)
                result.turn_seconds.append(time.perf_counter() - asked)
                result.played.append((request, completion))
                await asyncio.sleep(own.expovariate(1 / tool_s))
                ids += [*completion.token_ids, *_ids(own, own.randint(*REPLY_TOKENS))]

    begin, processor = time.perf_counter(), time.process_time()
    await asyncio.gather(*(episode(index) for index in range(episodes)))
    result.seconds, result.processor_seconds = time.perf_counter() - begin, time.process_time() - processor
    result.played.sort(key=lambda pair: pair[0].key)
    return result


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]
