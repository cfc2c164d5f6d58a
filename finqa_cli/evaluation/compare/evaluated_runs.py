"""Reads the outcomes of a run on held-out questions at its end, and the cost of its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.documents import parse_json
from finqa_cli.errors import DataError
from finqa_cli.runs.durable_files import read_document, sha256_of
from finqa_cli.runs.jsonl import SCHEMA_VERSION, read_jsonl
from finqa_cli.runs.links import follow
from finqa_cli.runs.run_folder import MANIFEST, read_run, read_settings
from finqa_cli.runs.run_summary import PIPELINE_EVALUATION
from finqa_cli.statistics import MALFORMED, Outcome, read_outcome
from finqa_cli.types.token_use import TokenUse, recorded_use, total_use
from finqa_cli.wiring.policies import run_of

INPUTS = ("run.json", "settings.json", "report.json", "metrics.jsonl", "trajectories.jsonl")
"""Files that are read of a run; the manifest of a comparison has their digests."""

_TRAINING = ("train", "sft", "dpo")
"""Commands that train; records of their steps in metrics.jsonl have the command as their `kind`."""

_AGAIN = "run the evaluation again: finqa eval TARGET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a training run, without the cost of its initial policy, its demonstrations or its pairs.

    Attributes:
        iterations: Iterations of rollouts and updates; optimizer steps for methods without rollouts.
        sampled_tokens: Tokens sampled in rollouts, 0 without rollouts; None if they are unknown.
        trained_tokens: Tokens that the learner processed, including prompts.
        hours: Wall time of its iterations in hours, without evaluations.
        curve: Mean reward of the rollouts of each iteration; empty without rollouts.
    """

    iterations: int
    sampled_tokens: int | None
    trained_tokens: int
    hours: float
    curve: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """A run with a held-out evaluation at its end.

    Attributes:
        path: Folder of the run.
        method: The optimizer of the training run of the policy, or `sft`; without one, the name of the policy.
        seed: Seed of that training, else of the evaluation.
        settings: Settings of that training, else of the evaluation.
        asked: Settings of the evaluation itself.
        data_name: Name of the data, as a user knows it.
        data_digest: `sha256:...` of the data with the questions.
        split: Split whose questions were asked.
        outcomes: One outcome per attempt.
        usage: Tokens and cost of all attempts; None if they are unknown.
        cost: Cost of that training; None if there was none or its folder no longer exists.
        finqa: Version that wrote the run.
        files: Name of each input file -> sha256 in hex.
    """

    path: Path
    method: str
    seed: int
    settings: Mapping[str, Any]
    asked: Mapping[str, Any]
    data_name: str
    data_digest: str
    split: str
    outcomes: tuple[Outcome, ...]
    usage: TokenUse | None
    cost: Cost | None
    finqa: str
    files: Mapping[str, str]


def load_run(path: Path) -> EvaluatedRun:
    """Reads a run of `finqa eval`, the last evaluation of a run of `finqa train`, or that at the end of a pipeline.

    Raises:
        DataError: The folder is not a run, or the run is not finished, was never evaluated, is damaged, or has files of
            another version.
    """
    path = _evaluation_of(path)
    if not (path / "run.json").is_file():
        raise DataError(f"{path} is not a run folder: it has no run.json.", remedy="finqa eval TARGET --run-dir FOLDER")
    facts, settings = read_run(path), read_settings(path)
    _check_version(path / "run.json", facts)
    command = str(facts.get("command"))
    if command not in ("eval", "train"):
        again = f"finqa eval {path}" if command in ("sft", "dpo") else "name a run of `finqa eval` instead"
        raise DataError(f"{path} is a run of `finqa {command}`, which does not evaluate a policy.", remedy=again)
    if facts.get("status") != "completed":
        remedy = f"finqa train --resume {path}" if command == "train" else _AGAIN
        raise DataError(f"{path} is not finished: its status is {facts.get('status')!r}.", remedy=remedy)
    try:
        _check_settings(settings)
        read = _of_training if command == "train" else _of_evaluation
        found = read(path, facts, settings)
    except MALFORMED as error:
        raise DataError(f"The files of {path} do not have the format of finqa: {error!r}.", remedy=_AGAIN) from error
    digests = {name: sha256_of(path / name) for name in INPUTS if (path / name).is_file()}
    return EvaluatedRun(path=path, finqa=str(facts.get("finqa")), files=digests, asked=settings, **found)


def _evaluation_of(path: Path) -> Path:
    """Returns the folder itself, or, for a pipeline, the folder of the evaluation of the policy that it trained."""
    if read_document(path / "run.json").get("command") != "pipeline":
        return path
    if not (path / PIPELINE_EVALUATION / "run.json").is_file():
        raise DataError(
            f"{path} is a pipeline that has not evaluated its policy.", remedy=f"finqa pipeline --resume {path}"
        )
    return path / PIPELINE_EVALUATION


def _of_evaluation(path: Path, facts: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    report = _report(path)
    target = str(report["target"])
    place = follow(path, target)
    if place is None and _was_a_path(path, target):
        raise DataError(
            f"{path} evaluated {target}, which does not exist at this path, nor relative to {path}.",
            remedy=f"move it back next to {path}, or evaluate it again: finqa eval TARGET --run-dir FOLDER",
        )
    source = run_of(str(place)) if place is not None else None
    trained = source if source is not None and source != path.resolve() else None
    command = str(read_run(trained).get("command")) if trained else ""
    behind = read_settings(trained) if trained else settings
    name = str(behind["optimizer"]["name"])
    method = {"train": name, "dpo": name, "sft": "sft"}.get(command, Path(target).name or target)
    return {
        "method": method,
        "seed": int(behind["train"]["seed"]),
        "settings": {**behind, "data": settings["data"], "eval": settings["eval"]},
        "data_name": str(report["data"]["name"]),
        "data_digest": str(report["data"]["digest"]),
        **_outcomes(path, iteration=0, episodes=int(report["episodes"])),
        "cost": _cost(trained, command) if trained and command in _TRAINING else None,
    }


def _was_a_path(path: Path, target: str) -> bool:
    """Returns whether the evaluated policy was a folder that the user named, as digests of its files show."""
    policy = read_document(path / MANIFEST).get("inputs", {}).get("policy", {})
    return "/" in target and bool(policy.get("files"))


def _of_training(path: Path, facts: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    evaluations = [record for record in _records(path / "metrics.jsonl") if record["kind"] == "eval"]
    if not evaluations:
        raise DataError(
            f"{path} was trained without an evaluation.",
            remedy=f"finqa eval {path} --run-dir DIR, and compare DIR instead",
        )
    last = evaluations[-1]
    data = settings["data"]
    return {
        "method": str(settings["optimizer"]["name"]),
        "seed": int(settings["train"]["seed"]),
        "settings": settings,
        "data_name": str(data["path"] or data["snapshot"]),
        "data_digest": str(facts["snapshot digest"]),
        **_outcomes(path, iteration=int(last["iteration"]), episodes=int(last["episodes"])),
        "cost": _cost(path, "train"),
    }


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raises a KeyError or TypeError unless the settings name environment and reward, which a comparison needs."""
    for kind in ("environment", "reward"):
        name, options = settings[kind]["name"], settings[kind]["options"]
        if not (isinstance(name, str) and isinstance(options, Mapping)):
            raise TypeError(f"settings.json does not name the {kind}")


def _report(path: Path) -> dict[str, Any]:
    try:
        report = parse_json((path / "report.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} has no report.json.", remedy=_AGAIN) from error
    if not isinstance(report, dict):
        raise TypeError("report.json is not a JSON object")
    return report


def _outcomes(path: Path, *, iteration: int, episodes: int) -> dict[str, Any]:
    """Returns the `outcomes` and `usage` of one evaluation, and the `split` that its attempts name."""
    file = path / "trajectories.jsonl"
    found: dict[tuple[str, int], Outcome] = {}
    uses: list[TokenUse | None] = []
    for row, record in enumerate(_records(file), start=1):
        try:
            if record["phase"] != "eval" or record["iteration"] != iteration:
                continue
            outcome = read_outcome(record)
        except MALFORMED as error:
            raise DataError(f"{file}, row {row}: not a trajectory record ({error!r}).", remedy=_AGAIN) from error
        key = outcome.question, outcome.member
        if key in found:
            raise DataError(f"{file}, row {row}: attempt {key[1]} at question {key[0]!r} occurs twice.", remedy=_AGAIN)
        found[key] = outcome
        uses.append(recorded_use(record))
    if len(found) != episodes:
        raise DataError(f"{file} contains {len(found)} of the {episodes} episodes of its evaluation.", remedy=_AGAIN)
    if not any(outcome.correct is not None for outcome in found.values()):
        raise DataError(f"No episode of the evaluation in {path} was graded.", remedy=_AGAIN)
    splits = sorted({outcome.split for outcome in found.values()})
    return {
        "outcomes": tuple(found[key] for key in sorted(found)),
        "usage": total_use(uses),
        "split": ", ".join(splits),
    }


def _cost(path: Path, command: str) -> Cost:
    records = [record for record in _records(path / "metrics.jsonl") if record["kind"] == command]
    timings = [record["timing"] for record in records]
    played = [recorded_use(record) for record in _records(path / "trajectories.jsonl") if record["phase"] == "train"]
    used = total_use(played)
    return Cost(
        iterations=len(records),
        sampled_tokens=used.sampled if used else None if played else 0,
        trained_tokens=sum(int(record.get("tokens", 0)) for record in records),
        hours=sum(float(timing.get("iteration_s", timing["update_s"])) for timing in timings) / 3600,
        curve=tuple(float(record["reward_mean"]) for record in records if "reward_mean" in record),
    )


def _records(file: Path) -> Iterator[dict[str, Any]]:
    if not file.is_file():
        raise DataError(f"{file.parent} has no {file.name}.", remedy=_AGAIN)
    for record in read_jsonl(file):
        _check_version(file, record)
        yield record


def _check_version(file: Path, record: Mapping[str, Any]) -> None:
    if (version := record.get("schema_version")) != SCHEMA_VERSION:
        raise DataError(
            f"{file} has file version {version}; this finqa reads version {SCHEMA_VERSION}.",
            remedy="compare with the finqa that wrote it, or run the evaluation again with this one",
        )
