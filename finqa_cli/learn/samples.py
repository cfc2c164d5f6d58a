"""One token sequence per episode, with loss on the tokens that the policy chose (or a demonstrator would have)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from finqa_cli.contracts import ChatCodec
from finqa_cli.errors import DataError
from finqa_cli.types import Message, Prompt, Sample, Trajectory

_Segment = tuple[tuple[int, ...], tuple[float, ...] | None]
"""Ids [L] and, where the policy chose them, their log-probabilities [L]; None for ids that it was given."""


def trajectory_sample(trajectory: Trajectory, advantage: float) -> Sample | None:
    """The episode exactly as it was sampled: prompt, completion, tool reply, completion, ...

    Only completion ids carry loss, each with `advantage`; nothing is decoded and encoded again.

    Returns:
        None when the policy sampled nothing, as when the opening alone filled the context.

    Raises:
        DataError: A turn has not one log-probability per sampled id, or the sequence starts with a sampled id.
    """
    segments: list[_Segment] = []
    for number, turn in enumerate(trajectory.turns):
        if len(turn.completion_ids) != len(turn.logprobs):
            raise DataError(
                f"Trajectory {trajectory.id!r}, turn {number}: {len(turn.completion_ids)} sampled ids but "
                f"{len(turn.logprobs)} log-probabilities, so it cannot be trained on."
            )
        segments.append((turn.prompt_ids, None))
        segments.append((turn.completion_ids, turn.logprobs))
    return _join(segments, advantage, name=trajectory.id)


def demonstration_sample(prompt: Prompt, messages: Sequence[Message], codec: ChatCodec, *, name: str = "") -> Sample:
    """A conversation to imitate: what a policy would have had to sample, stop ids included, carries loss.

    Args:
        prompt: How the episode opens.
        messages: What follows: assistant messages, each but the last followed by one tool message.
        codec: Encodes for the model that is trained.
        name: What an error calls the demonstration.

    Raises:
        DataError: Assistant and tool messages do not alternate, or there is none.
    """
    roles = [message.role for message in messages]
    if not messages or roles != ["assistant", "tool"] * (len(messages) // 2) + ["assistant"] * (len(messages) % 2):
        raise DataError(f"Demonstration {name!r}: assistant and tool messages must alternate, but they are {roles}.")
    segments: list[_Segment] = [(codec.opening(prompt), None)]
    last_assistant = len(messages) - 1 - (len(messages) + 1) % 2
    for message in messages[: last_assistant + 1]:
        if message.role == "assistant":
            chosen = codec.assistant(message)
            segments.append((chosen, (0.0,) * len(chosen)))
        else:
            segments.append((codec.tool_reply(message.content, stopped=True), None))
    sample = _join(segments, 1.0, name=name)
    if sample is None:
        raise DataError(f"Demonstration {name!r}: the codec encoded every assistant message as nothing.")
    return sample


def demonstration_messages(trajectory: Trajectory) -> tuple[Message, ...]:
    """The turns of an episode as messages to imitate.

    The text of a turn that holds a call is the call as it was written, so the call alone stands for both.
    """
    messages: list[Message] = []
    for turn in trajectory.turns:
        content = "" if turn.tool_call is not None else turn.text
        messages.append(Message(role="assistant", content=content, tool_call=turn.tool_call))
        if turn.observation is not None:
            name = turn.tool_call.name if turn.tool_call is not None else ""
            messages.append(Message(role="tool", content=turn.observation.text, name=name))
    return tuple(messages)


def _join(segments: Iterable[_Segment], advantage: float, *, name: str) -> Sample | None:
    token_ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for ids, chosen in segments:
        token_ids.extend(ids)
        mask.extend([chosen is not None] * len(ids))
        logprobs.extend(chosen if chosen is not None else (0.0,) * len(ids))
    if not any(mask):
        return None
    if mask[0]:
        raise DataError(f"{name!r} starts with a sampled id; nothing before it could have predicted it.")
    return Sample(
        token_ids=tuple(token_ids),
        loss_mask=tuple(mask),
        logprobs=tuple(logprobs),
        advantages=tuple(advantage if chosen else 0.0 for chosen in mask),
    )
