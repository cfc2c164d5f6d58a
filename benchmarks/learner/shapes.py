"""Episodes of given sizes as samples, every number from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from finqa_cli.types import Sample

OWN_TOKENS = 2
"""Padding and the end of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Tokens of an episode. The episodes of a group share their first prompt, and every other one of them is rewarded.

    Attributes:
        prompt: Tokens of the first prompt.
        shortest_prompt: Where it is above 0, the groups' prompts have all lengths from this one to `prompt`.
        turns: Turns of the policy.
        sampled: Tokens of the policy a turn.
        tool: Tokens of the tool's reply between two turns.
        group: Episodes of a group; even.
        vocabulary: Ids are below it and above those of the tokenizer's own tokens.
    """

    prompt: int
    shortest_prompt: int = 0
    turns: int = 1
    sampled: int
    tool: int = 0
    group: int
    vocabulary: int = 2000


def episodes(shape: Shape, count: int, seed: int = 0) -> list[Sample]:
    """So many episodes, with advantages 1 and -1 and no log-probabilities yet; the first ones of more are the same."""
    if shape.group % 2 or count % shape.group:
        raise ValueError(f"{count} episodes are not whole groups of an even number ({shape.group})")
    return [_episode(shape, place, seed) for place in range(count)]


def turns_of(sample: Sample) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each run of sampled ids with all ids that stand before it: prompt and completion of one turn."""
    ids = tuple(sample.token_ids.tolist())
    mask = (*sample.loss_mask.tolist(), False)
    starts = [place for place in range(1, len(mask)) if mask[place] and not mask[place - 1]]
    ends = [place for place in range(1, len(mask)) if mask[place - 1] and not mask[place]]
    return [(ids[:start], ids[start:end]) for start, end in zip(starts, ends, strict=True)]


def _episode(shape: Shape, place: int, seed: int) -> Sample:
    group, own = random.Random(f"{seed}/g{place // shape.group}"), random.Random(f"{seed}/e{place}")
    prompt = group.randint(shape.shortest_prompt, shape.prompt) if shape.shortest_prompt else shape.prompt
    ids, mask = _ids(group, prompt, shape), [False] * prompt
    for turn in range(shape.turns):
        reply = shape.tool if turn else 0
        ids += _ids(own, reply + shape.sampled, shape)
        mask += [False] * reply + [True] * shape.sampled
    advantage = 1.0 if place % 2 else -1.0
    return Sample(
        token_ids=tuple(ids),
        loss_mask=tuple(mask),
        logprobs=(0.0,) * len(ids),
        advantages=tuple(advantage if masked else 0.0 for masked in mask),
    )


def _ids(rng: random.Random, count: int, shape: Shape) -> list[int]:
    return [rng.randrange(OWN_TOKENS, shape.vocabulary) for _ in range(count)]
