"""`finqa export --to trl-sft|trl-preference|openai-jsonl|inspect`: a run's attempts as data for other libraries.

Rows have the form of TRL's conversational data sets (huggingface.co/docs/trl/dataset_formats), or of OpenAI's
fine-tuning messages (platform.openai.com/docs/guides/supervised-fine-tuning), where the arguments of a call are text
and every reply of a tool names its call. For `inspect`, see `inspect_log`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from finqa_cli.algorithms.pairing import Rule
from finqa_cli.deletion import temporary_folder
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.publishing.inspect_log import inspect_log
from finqa_cli.runs.durable_files import new_folder, read_document, sha256_of, storage
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import MANIFEST, read_run, write_manifest
from finqa_cli.runs.trajectory_records import (
    PAIRS,
    Pair,
    demonstrations_file,
    exchange,
    pairs_file,
    read_pairs,
    record_order,
    recorded_prompt,
)
from finqa_cli.statistics import MALFORMED, read_outcome
from finqa_cli.training.preference.build_pairs import PairRules, build_pairs
from finqa_cli.types import Message, Prompt, ToolSpec

Row = dict[str, Any]
Format = Literal["trl-sft", "trl-preference", "openai-jsonl", "inspect"]

_FILES: Mapping[Format, str] = {
    "trl-sft": "train.jsonl",
    "trl-preference": "train.jsonl",
    "openai-jsonl": "messages.jsonl",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which attempts are exported.

    Attributes:
        minimum_reward: Only attempts with at least this reward; None takes all graded attempts.
        split: Only questions of this split; empty takes all.
        step: For `inspect`, the step of the evaluation in a training run; None takes the last evaluation.
        rule: For `trl-preference`, how pairs are chosen from the attempts of a run.
        allow_evaluation_data: Whether data that its owner permits for evaluation only may be exported for training.
    """

    minimum_reward: float | None = None
    split: str = ""
    step: int | None = None
    rule: Rule = "best-worst"
    allow_evaluation_data: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Result of an export.

    Attributes:
        file: Path of the file.
        rows: Number of rows.
        left_out: Number of attempts or pairs that were not selected.
        wrong: Number of training rows whose attempt was not right.
    """

    file: Path
    rows: int
    left_out: int
    wrong: int = 0


@dataclass(slots=True)
class _Found:
    rows: list[Row] = field(default_factory=list)
    left_out: int = 0
    wrong: int = 0


def export_records(source: Path, form: Format, selection: Selection, out: Path) -> Written:
    """Writes one file and manifest.json into a new folder, which is complete or does not exist.

    Raises:
        UsageError: An option does not apply to the format.
        ConfigError: The folder exists already and is not empty, or the data is for evaluation only.
        DataError: There are no attempts, none is selected, or a record is damaged.
        StorageError: The disk is full or may not be written to.
    """
    _check(source, form, selection, out)
    wrong = 0
    if form == "inspect":
        name, text, rows, left_out = _inspect(source, selection)
    else:
        found = _pairs(source, selection) if form == "trl-preference" else _attempts(source, form, selection)
        name, rows, left_out, wrong = _FILES[form], len(found.rows), found.left_out, found.wrong
        text = "".join(json.dumps(row, ensure_ascii=True, allow_nan=False) + "\n" for row in found.rows)
    if not rows:
        raise DataError(
            f"None of the {left_out} attempts of {source} is selected.", remedy="leave out --min-reward and --split"
        )
    read = pairs_file(source) if _is_pairs(source) else demonstrations_file(source)
    with new_folder(out) as folder:
        with storage(folder / name):
            (folder / name).write_text(text, encoding="utf-8")
        parameters = {"form": form, **asdict(selection)}
        inputs = {str(read): sha256_of(read)}
        write_manifest(folder, "export", parameters=parameters, inputs=inputs, outputs=[folder / name])
    return Written(file=out / name, rows=rows, left_out=left_out, wrong=wrong)


def _check(source: Path, form: Format, selection: Selection, out: Path) -> None:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder.", remedy="choose another --out")
    if form != "inspect" and selection.step is not None:
        raise UsageError(f"--step applies to policies and to --to inspect, not to {form}.", remedy="leave out --step")
    if form == "inspect" and selection.minimum_reward is not None:
        raise UsageError("An Inspect log contains every attempt of its evaluation.", remedy="leave out --min-reward")
    if form == "trl-preference" and selection.minimum_reward is not None:
        raise UsageError(
            "Pairs contain a rejected attempt, which --min-reward would exclude.", remedy="leave out --min-reward"
        )
    data = read_document((source if source.is_dir() else source.parent) / "report.json").get("data")
    closed = isinstance(data, Mapping) and bool(data.get("evaluation_only"))
    if form != "inspect" and closed and not selection.allow_evaluation_data:
        raise ConfigError(
            f"The questions of {source} are of {data.get('name')!r}, which is for evaluation only."  # type: ignore[union-attr]
            " Training on them would leak the test questions.",
            remedy="--to inspect, or --allow-evaluation-data",
        )


def _attempts(source: Path, form: Format, selection: Selection) -> _Found:
    as_row = trl_sft_row if form == "trl-sft" else openai_row
    path = demonstrations_file(source)
    trained = read_document(path.parent / "run.json").get("command") == "train"
    found = _Found()
    for record in sorted(_records(path), key=record_order):
        # questions that a training run asks in its evaluations are held out
        if trained and record.get("phase") != "train":
            continue
        if not _is_chosen(record, selection):
            found.left_out += 1
            continue
        answer = [message for turn in record["turns"] for message in exchange(turn)]
        found.rows.append(as_row(recorded_prompt(record), answer))
        found.wrong += not read_outcome(record).correct
    return found


def _is_chosen(record: Mapping[str, Any], selection: Selection) -> bool:
    """Returns whether an attempt is graded, not empty, of the chosen split and has at least the minimum reward."""
    reward, least = record["reward"], selection.minimum_reward
    if reward is None or not record["turns"] or (least is not None and reward < least):
        return False
    return not selection.split or record["task"]["split"] == selection.split


def _pairs(source: Path, selection: Selection) -> _Found:
    """Reads the pairs in a folder of `finqa prefs`, or makes pairs from the attempts of a run."""
    if _is_pairs(source):
        if selection.rule != "best-worst":
            raise UsageError(f"{source} already contains pairs; --rule applies to runs.", remedy="leave out --rule")
        found = list(read_pairs(pairs_file(source)))
        splits = [str(record["task"].get("split", "")) for record in read_jsonl(pairs_file(source))]
    else:
        with temporary_folder("finqa-pairs-") as scratch:
            made = Path(scratch) / "pairs"
            build_pairs([source], PairRules(rule=selection.rule, held_out_share=0.0), made, NullReporter())
            found = list(read_pairs(made / PAIRS))
            splits = [str(record["task"].get("split", "")) for record in read_jsonl(made / PAIRS)]
    chosen: list[Pair] = [
        pair for pair, split in zip(found, splits, strict=True) if not selection.split or split == selection.split
    ]
    return _Found([trl_preference_row(pair) for pair in chosen], left_out=len(found) - len(chosen))


def _is_pairs(source: Path) -> bool:
    return (source / PAIRS).is_file() or source.name == PAIRS


def _inspect(source: Path, selection: Selection) -> tuple[str, str, int, int]:
    path = demonstrations_file(source)
    run = path.parent
    facts = read_run(run)
    settings, report = read_document(run / "settings.json"), read_document(run / "report.json")
    evaluations = [record for record in _records(path) if record.get("phase", "eval") == "eval"]
    if not evaluations:
        raise DataError(
            f"{run} holds no evaluation.", remedy=f"finqa eval {run} --run-dir DIR, then finqa export DIR --to inspect"
        )
    steps = sorted({int(record.get("iteration", 0)) for record in evaluations})
    step = steps[-1] if selection.step is None else selection.step
    if step not in steps:
        raise DataError(
            f"{run} contains no evaluation of step {step}.", remedy=f"--step with one of: {', '.join(map(str, steps))}"
        )
    chosen = [record for record in evaluations if int(record.get("iteration", 0)) == step]
    asked = [record for record in chosen if not selection.split or record["task"]["split"] == selection.split]
    environment = str((settings.get("environment") or {}).get("name", "finqa"))
    # an evaluation names its data in its report, a training run among its inputs
    inputs = read_document(run / MANIFEST).get("inputs")
    data = report.get("data") or (inputs.get("data") if isinstance(inputs, Mapping) else None) or {}
    target = str(report.get("target") or facts["id"])
    log = inspect_log(
        sorted(asked, key=lambda record: str(record["id"])),
        task=environment,
        model=f"finqa/{Path(target).name or target}",
        data=str(data.get("name", "")),
        created=str(facts["created"]),
        metadata={"run": facts["id"], "step": step, "data_digest": data.get("digest", "")},
    )
    stamp = str(facts["created"]).replace(":", "-")
    name = f"{stamp}_{environment}_{log['eval']['task_id']}.json"
    return name, json.dumps(log, ensure_ascii=True, allow_nan=False) + "\n", len(asked), len(chosen) - len(asked)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a file, checked to have the fields that the formats need.

    Raises:
        DataError: A record is malformed; the message names file and row.
    """
    for row, record in enumerate(read_jsonl(path), start=1):
        try:
            json.dumps(record, allow_nan=False)  # finqa writes no NaN, and what is written here must be JSON
            recorded_prompt(record)
            read_outcome(record), record_order(record)
            for turn in record["turns"]:
                list(exchange(turn))
        except MALFORMED as error:
            raise DataError(
                f"{path}, row {row}: not an attempt in the format of finqa ({error!r}).",
                remedy="remove the row, or repeat the run",
            ) from error
        yield record


def trl_sft_row(prompt: Prompt, answer: Sequence[Message]) -> Row:
    """Returns a row with `prompt` and `completion` as messages, and with `tools` where there are any."""
    return {
        "prompt": list(_trl(prompt.messages, prompt)),
        "completion": list(_trl(_up_to_assistant(answer), prompt)),
        **_tools(prompt.tools),
    }


def trl_preference_row(pair: Pair) -> Row:
    """Returns a row with `prompt`, `chosen` and `rejected` as messages, and with `tools` where there are any."""
    return {
        "prompt": list(_trl(pair.prompt.messages, pair.prompt)),
        "chosen": list(_trl(_up_to_assistant(pair.chosen.messages), pair.prompt)),
        "rejected": list(_trl(_up_to_assistant(pair.rejected.messages), pair.prompt)),
        **_tools(pair.prompt.tools),
    }


def openai_row(prompt: Prompt, answer: Sequence[Message]) -> Row:
    """Returns a row with `messages`, the last of which is the assistant's, and with `tools` where there are any."""
    return {"messages": openai_messages(prompt, _up_to_assistant(answer)), **_tools(prompt.tools)}


def openai_messages(prompt: Prompt, answer: Sequence[Message]) -> list[Row]:
    """Returns the messages of an attempt in OpenAI's form.

    Calls have ids, `call_0` and so on, which the replies name. A reply to a turn without a call, such as one whose call
    could not be read, gets the role `user`, because a tool's reply must name a call.
    """
    rows: list[Row] = []
    calls, open_calls = 0, deque[str]()
    for message in (*prompt.messages, *answer):
        if message.role == "tool" and open_calls:
            name = open_calls.popleft()
            rows.append({"role": "tool", "tool_call_id": name, "content": _content(message)})
        elif message.calls:
            tool_calls = []
            open_calls.clear()
            for call in message.calls:
                arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
                function = {"name": call.name, "arguments": arguments}
                tool_calls.append({"id": f"call_{calls}", "type": "function", "function": function})
                open_calls.append(f"call_{calls}")
                calls += 1
            rows.append({"role": "assistant", "content": message.content or None, "tool_calls": tool_calls})
        else:
            role = "user" if message.role == "tool" else message.role
            rows.append({"role": role, "content": _content(message)})
    return rows


def _content(message: Message) -> str | list[Row]:
    """Returns the text, or the parts of a message with images as in OpenAI's chat completions."""
    if not message.images:
        return message.content
    images = ({"type": "image_url", "image_url": {"url": address}} for address in message.images)
    return [{"type": "text", "text": message.content}, *images]


def _trl(messages: Sequence[Message], prompt: Prompt) -> Iterator[Row]:
    """Yields messages as chat templates take them: arguments are objects; without tools, replies are the user's."""
    for message in messages:
        role = "user" if message.role == "tool" and not prompt.tools else message.role
        row: Row = {"role": role, "content": _content(message)}
        if message.calls:
            functions = ({"name": call.name, "arguments": dict(call.arguments)} for call in message.calls)
            row["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        if role == "tool" and message.name:
            row["name"] = message.name
        yield row


def _up_to_assistant(answer: Sequence[Message]) -> Sequence[Message]:
    """Returns the messages up to the last one of the assistant; later ones contain nothing to learn."""
    end = max((place for place, message in enumerate(answer) if message.role == "assistant"), default=-1)
    return answer[: end + 1]


def _tools(tools: Sequence[ToolSpec]) -> Row:
    return {"tools": [tool.as_function() for tool in tools]} if tools else {}
