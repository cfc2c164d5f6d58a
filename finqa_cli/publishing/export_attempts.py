"""`finqa export --to trl-sft|trl-preference|openai-jsonl|inspect`: a run's attempts as data for other libraries."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from finqa_cli.algorithms.pairing import Rule
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.publishing.chat_formats import Row, openai_row, trl_preference_row, trl_sft_row
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

Format = Literal["trl-sft", "trl-preference", "openai-jsonl", "inspect"]

_FILES: Mapping[Format, str] = {
    "trl-sft": "train.jsonl",
    "trl-preference": "train.jsonl",
    "openai-jsonl": "messages.jsonl",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which attempts are taken.

    Attributes:
        minimum_reward: Only those with this reward and more; None takes all that are graded.
        split: Only questions of this split; empty takes all.
        step: For `inspect`, which evaluation of a training run; None is the last one.
        rule: For `trl-preference`, how pairs are made of a run.
        allow_evaluation_data: Data that its owner gives for evaluation only may be written as data to train on.
    """

    minimum_reward: float | None = None
    split: str = ""
    step: int | None = None
    rule: Rule = "best-worst"
    allow_evaluation_data: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written.

    Attributes:
        file: The file.
        rows: Its rows.
        left_out: Attempts or pairs that were not chosen.
        wrong: Rows to train on whose attempt was not right.
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
    """Writes one file and manifest.json into a new folder, complete or absent.

    Raises:
        UsageError: A choice that the format knows nothing of.
        ConfigError: The folder is there already, or the data is for evaluation only.
        DataError: There are no attempts, none is chosen, or a record is damaged.
        StorageError: The disk is full or may not be written to.
    """
    _check(source, form, selection, out)
    wrong = 0
    if form == "inspect":
        name, text, rows, left_out = _inspect(source, selection)
    else:
        found = (_pairs if form == "trl-preference" else _attempts(form))(source, selection)
        name, rows, left_out, wrong = _FILES[form], len(found.rows), found.left_out, found.wrong
        text = "".join(json.dumps(row, ensure_ascii=True, allow_nan=False) + "\n" for row in found.rows)
    if not rows:
        raise DataError(
            f"None of {left_out} attempts of {source} is chosen.", remedy="leave out --min-reward and --split"
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
        raise UsageError(f"--step is of policies and of --to inspect, not of {form}.", remedy="leave out --step")
    if form == "inspect" and selection.minimum_reward is not None:
        raise UsageError("A log has every attempt of its evaluation.", remedy="leave out --min-reward")
    if form == "trl-preference" and selection.minimum_reward is not None:
        raise UsageError(
            "Pairs have a rejected side, which --min-reward would leave out.", remedy="leave out --min-reward"
        )
    data = read_document((source if source.is_dir() else source.parent) / "report.json").get("data")
    closed = isinstance(data, Mapping) and bool(data.get("evaluation_only"))
    if form != "inspect" and closed and not selection.allow_evaluation_data:
        raise ConfigError(
            f"The questions of {source} are of {data.get('name')!r}, which is for evaluation only."  # type: ignore[union-attr]
            " As data to train on they would teach the test.",
            remedy="--to inspect, or --allow-evaluation-data",
        )


def _attempts(form: Format) -> Callable[[Path, Selection], _Found]:
    as_row = trl_sft_row if form == "trl-sft" else openai_row

    def rows(source: Path, selection: Selection) -> _Found:
        path = demonstrations_file(source)
        trained = read_document(path.parent / "run.json").get("command") == "train"
        found = _Found()
        for record in sorted(_records(path), key=record_order):
            # what a training run asks in its evaluations is held out
            if trained and record.get("phase") != "train":
                continue
            if not _is_chosen(record, selection):
                found.left_out += 1
                continue
            answer = [message for turn in record["turns"] for message in exchange(turn)]
            found.rows.append(as_row(recorded_prompt(record), answer))
            found.wrong += not read_outcome(record).correct
        return found

    return rows


def _is_chosen(record: Mapping[str, Any], selection: Selection) -> bool:
    """Graded, of the split, with the reward, and something was said."""
    reward, least = record["reward"], selection.minimum_reward
    if reward is None or not record["turns"] or (least is not None and reward < least):
        return False
    return not selection.split or record["task"]["split"] == selection.split


def _pairs(source: Path, selection: Selection) -> _Found:
    """The pairs of a folder of `finqa prefs`, or those that it would make of a run."""
    if _is_pairs(source):
        if selection.rule != "best-worst":
            raise UsageError(f"{source} holds pairs already; --rule is of runs.", remedy="leave out --rule")
        found = list(read_pairs(pairs_file(source)))
        splits = [str(record["task"].get("split", "")) for record in read_jsonl(pairs_file(source))]
    else:
        with tempfile.TemporaryDirectory(prefix="finqa-pairs-") as scratch:
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
        raise DataError(f"{run} holds no evaluation.", remedy=f"finqa eval {run}")
    steps = sorted({int(record.get("iteration", 0)) for record in evaluations})
    step = steps[-1] if selection.step is None else selection.step
    if step not in steps:
        raise DataError(
            f"{run} holds no evaluation of step {step}.", remedy=f"--step with one of: {', '.join(map(str, steps))}"
        )
    chosen = [record for record in evaluations if int(record.get("iteration", 0)) == step]
    asked = [record for record in chosen if not selection.split or record["task"]["split"] == selection.split]
    environment = str((settings.get("environment") or {}).get("name", "finqa"))
    # an evaluation reports on its data, a training names it among its inputs
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
    """The records of a file, each with what the formats are made of.

    Raises:
        DataError: One is malformed; the message names file and row.
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
                f"{path}, row {row}: not an attempt as finqa writes it ({error!r}).",
                remedy="take the row out, or make the run again",
            ) from error
        yield record
