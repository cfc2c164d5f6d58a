"""Writes an evaluation as a log for Inspect (`inspect view`, `inspect_ai.log.read_eval_log`): JSON, EvalLog version 2.

A sample's target is the right answer if the record contains it. A fault is a sample with an error and without scores.
Events are the calls of the model; each refers to the messages before it in a list that all events share.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finqa_cli import __version__
from finqa_cli.runs.trajectory_records import exchange
from finqa_cli.statistics import clustered_interval, read_outcome
from finqa_cli.types import Message, Status, ToolCall
from finqa_cli.types.token_use import TokenUse, recorded_use, total_use

VERSION = 2

_SCORER = "finqa"
_LIMITS = {Status.MAX_TURNS: "message", Status.MAX_TOKENS: "token", Status.TIMEOUT: "time"}
"""The statuses that Inspect shows as a limit of the sample, and its names for the limits."""


def inspect_log(
    records: Sequence[Mapping[str, Any]], *, task: str, model: str, data: str, created: str, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the log of one evaluation.

    Args:
        records: The evaluation's records in trajectories.jsonl.
        task: The task in Inspect's terms: name of the environment.
        model: Name of the policy.
        data: Name of the data set.
        created: Time in ISO 8601.
        metadata: Further facts about the run.
    """
    outcomes = [read_outcome(record) for record in records]
    graded = [outcome for outcome in outcomes if outcome.correct is not None]
    questions = sorted({outcome.question for outcome in outcomes})
    identity = hashlib.sha256(
        "\n".join(str(record["id"]) for record in records).encode() + created.encode()
    ).hexdigest()
    attempts = max((outcome.member for outcome in outcomes), default=0) + 1
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            "eval_id": identity[:22],
            "run_id": identity[22:44],
            "created": created,
            "task": task,
            "task_id": identity[44:],
            "task_version": 0,
            "dataset": {"name": data, "samples": len(questions), "sample_ids": questions, "shuffled": False},
            "model": model,
            "config": {"epochs": attempts},
            "packages": {"finqa": __version__},
            "metadata": dict(metadata),
        },
        "plan": {"name": "plan", "steps": [{"solver": _SCORER, "params": {}}]},
        "results": {
            "total_samples": len(outcomes),
            "completed_samples": len(graded),
            "scores": list(_scores(graded)),
        },
        "stats": {
            "started_at": created,
            "completed_at": created,
            "model_usage": _model_usage(model, total_use(map(recorded_use, records))),
        },
        "samples": [_sample(record, model, created) for record in records],
    }


def _scores(graded: Sequence[Any]) -> Iterator[dict[str, Any]]:
    if not graded:
        return
    right = [float(bool(outcome.correct)) for outcome in graded]
    interval = clustered_interval(right, [outcome.company for outcome in graded])
    rewards = [float(outcome.reward or 0.0) for outcome in graded]
    accuracy = {"accuracy": interval.mean}
    if not math.isnan(interval.standard_error):  # it is NaN for one question, and JSON has no NaN
        accuracy["stderr"] = interval.standard_error
    for name, metrics in (("correct", accuracy), ("reward", {"mean": statistics.fmean(rewards)})):
        found = {metric: {"name": metric, "value": value, "params": {}} for metric, value in metrics.items()}
        yield {"name": name, "scorer": _SCORER, "params": {}, "metrics": found}


def _sample(record: Mapping[str, Any], model: str, created: str) -> dict[str, Any]:
    outcome, status = read_outcome(record), Status(record["status"])
    asked = [{"role": item["role"], "content": item["content"], "source": "input"} for item in record["messages"]]
    answer = list(_answer(record, model))
    said = [message for message in answer if message["role"] == "assistant"]
    messages = [{"id": f"{record['id']}#{place}", **message} for place, message in enumerate([*asked, *answer])]
    sample: dict[str, Any] = {
        "id": outcome.question,
        "epoch": outcome.member + 1,
        "input": asked,
        "target": str(record.get("truth", "")),
        "messages": messages,
        "output": {"model": model, "choices": [_choice(said[-1], record)] if said else []},
        "metadata": {"split": outcome.split, "cluster": outcome.company, "kind": outcome.kind, "status": status.value},
        "total_time": outcome.seconds,
        "model_usage": _model_usage(model, recorded_use(record)),
        "events": list(_events(record, messages, model, created)),
        "events_data": {"messages": messages, "calls": []},
    }
    if outcome.correct is None:
        message = str(record.get("error") or status.value)
        sample["error"] = {"message": message, "traceback": message, "traceback_ansi": message}
        return sample
    sample["scores"] = {
        "correct": {
            "value": "C" if outcome.correct else "I",
            "answer": outcome.answer,
            "explanation": outcome.explanation,
        },
        "reward": {"value": outcome.reward, "metadata": dict(outcome.components)},
    }
    if status in _LIMITS:
        sample["limit"] = {"type": _LIMITS[status], "limit": len(said)}
    return sample


def _events(
    record: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], model: str, created: str
) -> Iterator[dict[str, Any]]:
    """Yields one model event in Inspect's terms for each message of the policy."""
    tools = [
        {"name": tool["function"]["name"], "description": tool["function"].get("description", "")}
        for tool in record["tools"]
    ]
    seconds = 0.0
    turns = iter(record["turns"])
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        turn = next(turns)
        given, made = turn["prompt_tokens"] or 0, turn["completion_tokens"] or 0
        usage = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
        yield {
            "event": "model",
            "timestamp": created,
            "working_start": seconds,
            "model": model,
            "input": [],
            "input_refs": [[0, place]],
            "tools": tools,
            "tool_choice": "auto",
            "config": {},
            "output": {
                "model": model,
                "choices": [{"message": message, "stop_reason": _stop_reason(message, turn)}],
                **({"usage": usage} if given + made else {}),
            },
        }
        seconds += turn["seconds"]


def _model_usage(model: str, use: TokenUse | None) -> dict[str, dict[str, Any]]:
    """Returns the usage as `inspect_ai.model.ModelUsage` by model, whose input tokens are without cached ones."""
    if use is None:
        return {}
    usage: dict[str, Any] = {
        "input_tokens": use.prompt - use.cached,
        "output_tokens": use.sampled,
        "total_tokens": use.tokens,
    }
    if use.cached:
        usage["input_tokens_cache_read"] = use.cached
    if use.cost_usd is not None:
        usage["total_cost"] = use.cost_usd
    return {model: usage}


def _stop_reason(message: Mapping[str, Any], turn: Mapping[str, Any]) -> str:
    if turn.get("stop") == "length":
        return "max_tokens"
    return "tool_calls" if "tool_calls" in message else "stop"


def _choice(message: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    return {"message": message, "stop_reason": _stop_reason(message, record["turns"][-1])}


def _answer(record: Mapping[str, Any], model: str) -> Iterator[dict[str, Any]]:
    calls, open_calls = 0, deque[str]()
    for message in (message for turn in record["turns"] for message in exchange(turn)):
        if message.role == "assistant":
            row: dict[str, Any] = {
                "role": "assistant",
                "content": message.content,
                "source": "generate",
                "model": model,
            }
            open_calls = deque(f"call_{calls + place}" for place in range(len(message.calls)))
            calls += len(message.calls)
            if message.calls:
                row["tool_calls"] = [_call(*pair) for pair in zip(message.calls, open_calls, strict=True)]
            yield row
        elif open_calls:
            call = open_calls.popleft()
            yield {"role": "tool", "content": _content(message), "tool_call_id": call, "function": message.name}
        else:
            yield {"role": "user", "content": _content(message)}


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Returns the text, or the parts of a message with images in the form of `inspect_ai.model.Content`."""
    if not message.images:
        return message.content
    return [{"type": "text", "text": message.content}, *({"type": "image", "image": each} for each in message.images)]


def _call(call: ToolCall, name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": call.name, "arguments": dict(call.arguments)}
