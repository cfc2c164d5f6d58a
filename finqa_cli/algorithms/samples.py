"""Token sequences of episodes, with loss on the tokens that the policy chose (or a demonstrator would have)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from finqa_cli.contracts import ChatCodec
from finqa_cli.errors import DataError
from finqa_cli.types import Message, Prompt, RowLike, Sample, Trajectory

_Segment = tuple[tuple[int, ...], tuple[float, ...] | None]
"""Ids [L] and, where the policy chose them, their log-probabilities [L]; None for ids of the prompt or a tool."""


def trajectory_samples(trajectory: Trajectory, advantage: float) -> tuple[Sample, ...]:
    """The episode exactly as it was sampled: prompt, completion, tool reply, completion, ...

    Only completion ids carry loss, each with `advantage`; nothing is decoded and encoded again. A turn that restarts
    begins a new sequence, in which the earlier turns are context without loss. So every sampled id carries loss exactly
    once. The loss of a batch is divided by its loss tokens, so an episode has the same weight in one sequence or many.

    Returns:
        One sample for each sequence in which the policy sampled something; none if it sampled nothing, for example when
        the opening alone fills the context.

    Raises:
        DataError: A turn does not have one log-probability per sampled id, or a sequence starts with a sampled id.
    """
    sequences: list[list[_Segment]] = [[]]
    for number, turn in enumerate(trajectory.turns):
        if len(turn.completion_ids) != len(turn.logprobs):
            raise DataError(
                f"Trajectory {trajectory.id!r}, turn {number}: {len(turn.completion_ids)} sampled ids but "
                f"{len(turn.logprobs)} log-probabilities, so it cannot be trained on."
            )
        if turn.restarts:
            sequences.append([])
        sequences[-1] += [(turn.prompt_ids, None), (turn.completion_ids, turn.logprobs)]
    joined = (_join(segments, advantage, name=trajectory.id, episode=trajectory.id) for segments in sequences)
    return tuple(sample for sample in joined if sample is not None)


def demonstration_sample(prompt: Prompt, messages: Sequence[Message], codec: ChatCodec, *, name: str = "") -> Sample:
    """A conversation to imitate. The ids that a policy would have had to sample carry loss, stop ids included.

    Args:
        prompt: Opening of the episode.
        messages: The messages after it, which begin with an assistant message. Each assistant message but the last is
            followed by its replies: one message of the user, or one tool message for each of its calls.
        codec: Codec of the model that is trained.
        name: Name of the demonstration in error messages.

    Raises:
        DataError: Assistant messages and replies do not alternate, there is no assistant message, a message has an
            image, or the codec encodes every assistant message as nothing.
    """
    if any(message.images for message in (*prompt.messages, *messages)):
        raise DataError(f"Demonstration {name!r} has images, which codecs cannot encode.")
    segments: list[_Segment] = [(codec.opening(prompt), None)]
    exchanges = _exchanges(messages, name)
    for said, replies in exchanges:
        chosen = codec.assistant(said)
        segments.append((chosen, (0.0,) * len(chosen)))
        if said is exchanges[-1][0]:  # no loss follows the replies to the last message
            break
        texts = [reply.content for reply in replies]
        if len(texts) > 1:
            segments.append((codec.tool_replies(texts, stopped=True), None))
        else:
            reply = codec.tool_reply if replies[0].role == "tool" else codec.user_reply
            segments.append((reply(texts[0], stopped=True), None))
    sample = _join(segments, 1.0, name=name)
    if sample is None:
        raise DataError(f"Demonstration {name!r}: the codec encoded every assistant message as nothing.")
    return sample


def _exchanges(messages: Sequence[Message], name: str) -> list[tuple[Message, Sequence[Message]]]:
    """Each assistant message with its replies: one, or one for each of its calls. The last message may have fewer.

    Raises:
        DataError: The messages do not have this form, or there is no assistant message.
    """
    starts = [place for place, message in enumerate(messages) if message.role == "assistant"]
    bounds = pairwise([*starts, len(messages)])
    exchanges = [(messages[start], messages[start + 1 : end]) for start, end in bounds]
    roles = [message.role for message in messages]
    missing = [max(1, len(said.calls)) - len(replies) for said, replies in exchanges]
    if not exchanges or starts[0] != 0 or "system" in roles or any(missing[:-1]) or missing[-1] < 0:
        raise DataError(f"Demonstration {name!r}: assistant messages and replies must alternate, but they are {roles}.")
    return exchanges


def attach_rows(samples: Sequence[Sample], **rows: Sequence[RowLike]) -> tuple[Sample, ...]:
    """The samples with rows [L] that a learner computed for them, such as `values=learner.values(samples)`.

    Args:
        samples: The samples.
        rows: Name of a field of `Sample` -> one row for each sample, in the same order.

    Raises:
        ValueError: There is not one row per sample.
    """
    for name, own in rows.items():
        if len(own) != len(samples):
            raise ValueError(f"{len(own)} rows of {name} for {len(samples)} samples")
    names = list(rows)
    found = zip(samples, *rows.values(), strict=True)
    return tuple(replace(sample, **dict(zip(names, own, strict=True))) for sample, *own in found)


def masked(sample: Sample, name: str) -> npt.NDArray[np.float64]:
    """[T] the numbers of the row `name` of the sample at its tokens with loss, in float64.

    Raises:
        ValueError: The sample does not carry the row.
    """
    row: npt.NDArray[Any] | None = getattr(sample, name)
    if row is None:
        raise ValueError(f"the sample carries no {name}")
    return row[sample.loss_mask].astype(np.float64)


def _join(segments: Sequence[_Segment], advantage: float, *, name: str, episode: str = "") -> Sample | None:
    mask = np.concatenate([np.full(len(ids), chosen is not None) for ids, chosen in segments] or [np.zeros(0, bool)])
    if not mask.any():
        return None
    if mask[0]:
        raise DataError(f"{name!r} starts with a sampled id; nothing before it could have predicted it.")
    logprobs = np.zeros(len(mask), dtype=np.float32)
    logprobs[mask] = np.concatenate([np.asarray(chosen, dtype=np.float32) for _, chosen in segments if chosen])
    return Sample(
        token_ids=np.concatenate([np.asarray(ids, dtype=np.int32) for ids, _ in segments]),
        loss_mask=mask,
        logprobs=logprobs,
        advantages=np.where(mask, np.float32(advantage), np.float32(0.0)),
        episode=episode,
    )
