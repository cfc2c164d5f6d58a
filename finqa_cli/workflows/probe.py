"""Proof after a sync: what the engine serves is what the learner published."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.contracts import ChatCodec, Learner, Probed, TokenEngine
from finqa_cli.errors import EngineError
from finqa_cli.rollout.seeds import derive
from finqa_cli.settings import Settings
from finqa_cli.types import Completion, GenerateRequest, Message, PolicyVersion, Prompt, Sample, Sampling, Task

PROBE_TOKENS = 16
FEWEST_TOKENS = 8
LONGEST_PROMPT = 512
"""Of the opening, so that a probe costs the learner little however long the questions are."""

LOOK_AT = (
    "compare model, revision and dtype of the engine with the learner's, and see the engine's log for this version"
)


def probe_request(codec: ChatCodec, task: Task, settings: Settings, *, max_context: int) -> GenerateRequest:
    """The completion to ask for after every sync: how a task begins, at the run's temperature and under one seed.

    No id ends it early, and it is drawn from the whole distribution, which is what the learner scores.

    Args:
        codec: Of the engine's model.
        task: One to train on.
        settings: Of the run.
        max_context: Of the engine.
    """
    opening = codec.opening(Prompt(messages=(Message(role="user", content=task.prompt),), tools=()))
    seed = derive(settings.train.seed, "probe")
    return GenerateRequest(
        key="probe#0000",
        token_ids=opening[: max(1, min(LONGEST_PROMPT, max_context - PROBE_TOKENS))],
        sampling=Sampling(temperature=settings.generation.temperature, max_tokens=PROBE_TOKENS, seed=seed),
    )


async def prove(engine: TokenEngine, learner: Learner, policy: PolicyVersion, request: GenerateRequest) -> float | None:
    """Has every replica answer the request, and the learner score the answers under the weights it has now.

    Returns:
        The largest difference of a log-probability (nats); None for an engine that is not to be probed.

    Raises:
        EngineError: A replica failed, serves another version, or differs by more than the engine's tolerance.
    """
    if not isinstance(engine, Probed) or (tolerance := engine.probe_tolerance) is None:
        return None
    completions = await engine.probe(request)
    if not completions:
        raise EngineError(f"No replica answered the probe of policy version {policy.number}.", remedy=LOOK_AT)
    for replica, completion in enumerate(completions):
        _check_form(replica, completion, policy)
    samples = [_sample(request.token_ids, completion) for completion in completions]
    scores = await asyncio.to_thread(learner.logprobs, samples)
    begin = len(request.token_ids)
    found = [largest(completion.logprobs, row[begin:]) for completion, row in zip(completions, scores, strict=True)]
    for replica, difference in enumerate(found):
        if not difference.nats <= tolerance:
            raise EngineError(
                f"Replica {replica} says that it serves policy version {policy.number}, but its log-probabilities "
                f"differ from the learner's by up to {difference.nats:.3g} nats, at token {difference.token} of the "
                f"probe; rounding explains {tolerance:.3g}. It serves other weights or computes otherwise.",
                remedy=LOOK_AT,
            )
    return max(difference.nats for difference in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two rows of log-probabilities differ most, and by how much; infinite where a value is not finite."""

    nats: float
    token: int


def largest(left: Sequence[float], right: Sequence[float]) -> Difference:
    """The largest difference of two rows of equal length [Lc], which is at least 1."""
    gaps = [abs(one - other) for one, other in zip(left, right, strict=True)]
    finite = [gap if math.isfinite(gap) else math.inf for gap in gaps]
    nats = max(finite)
    return Difference(nats=nats, token=finite.index(nats))


def _check_form(replica: int, completion: Completion, policy: PolicyVersion) -> None:
    if completion.policy_version != policy.number:
        raise EngineError(
            f"Replica {replica} serves policy version {completion.policy_version} after version {policy.number} was "
            "loaded.",
            remedy=LOOK_AT,
        )
    tokens, logprobs = len(completion.token_ids), len(completion.logprobs)
    if tokens < FEWEST_TOKENS or tokens != logprobs:
        raise EngineError(
            f"Replica {replica} answered the probe of policy version {policy.number} with {tokens} tokens and "
            f"{logprobs} log-probabilities; {PROBE_TOKENS} of each were asked for.",
            remedy=LOOK_AT,
        )


def _sample(prompt: tuple[int, ...], completion: Completion) -> Sample:
    length = len(completion.token_ids)
    nothing = (0.0,) * (len(prompt) + length)
    return Sample(
        token_ids=prompt + completion.token_ids,
        loss_mask=(False,) * len(prompt) + (True,) * length,
        logprobs=nothing,
        advantages=nothing,
    )
