"""What a model card says of a policy, out of the records of its run and of evaluations of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.publishing.export_sources import Source
from finqa_cli.publishing.model_card import Card, Relation, Score, is_hub_id
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import MANIFEST, policy_inputs, read_run, read_settings

_METHODS = {"sft": "supervised fine-tuning on graded demonstrations", "dpo": "direct preference optimization (DPO)"}
_SHOWN: Mapping[str, Sequence[str]] = {
    "train": (
        "iterations",
        "group_size",
        "learning_rate",
        "schedule",
        "updates_per_iteration",
        "max_staleness",
        "seed",
    ),
    "sft": ("epochs", "learning_rate", "batch_tokens", "minimum_reward"),
    "lora": ("rank", "alpha", "dropout", "target_modules"),
    "generation": ("temperature", "top_p", "max_gen_tokens", "max_steps"),
}
"""Settings that a reader needs; those of `train` about rollouts mean nothing for sft and dpo."""


def card_of(source: Source, relation: Relation, *, base_model: str, licence: str, evaluations: Sequence[Path]) -> Card:
    """The card of a policy, from the records of its run and from evaluations of it.

    Args:
        source: The policy.
        relation: An adapter, or a whole model.
        base_model: What the base is called on the hub; empty: as the policy names it.
        licence: Of what is handed on; empty: not stated.
        evaluations: Folders of `finqa eval` on this policy.

    Raises:
        DataError: An evaluation is of another policy, is not finished, or a record is damaged.
    """
    scores = [_evaluated(source, path) for path in evaluations]
    base = base_model or _base_name(source)
    if source.run is None:
        return Card(
            title=source.title,
            base_model=base,
            relation=relation,
            licence=licence,
            facts={} if source.step is None else {"step": str(source.step)},
            settings={},
            scores=scores,
        )
    command, settings = str(read_run(source.run).get("command", "")), read_settings(source.run)
    name = command if command in _METHODS else _name(settings.get("optimizer"))
    data = settings.get("data") or {}
    split = data.get("train_split", "")
    facts = {
        "method": name,
        "environment": _name(settings.get("environment")),
        "reward": _name(settings.get("reward")),
        "data": f"{_data_name(source.run, data)}, {split}" if command == "train" else "",
        "step": "" if source.step is None else str(source.step),
    }
    return Card(
        title=source.title,
        base_model=base,
        relation=relation,
        licence=licence,
        method=_METHODS.get(name, f"{name} with rewards of an environment" if name else ""),
        facts={key: value for key, value in facts.items() if value},
        settings=_settings(settings, command),
        scores=[*_of_training(source, settings), *scores],
        evaluation_only=bool(data.get("allow_evaluation_only")),
    )


def _base_name(source: Source) -> str:
    """Of an adapter the model that it is on, of a whole model what its run began from; of folders the name."""
    name = source.policy.model
    if source.policy.adapter is None:
        began = (read_settings(source.run).get("model") or {}).get("name", "") if source.run else ""
        name = str(began)
    return name if is_hub_id(name) else Path(name).name


def _of_training(source: Source, settings: Mapping[str, Any]) -> list[Score]:
    """The evaluation that training made of this step, if it made one."""
    assert source.run is not None
    path = source.run / "metrics.jsonl"
    if source.step is None or not path.is_file():
        return []
    data = settings.get("data") or {}
    name, split = _data_name(source.run, data), str(data.get("eval_split", ""))
    try:
        found = [
            _score(record, name, split, record["temperature"]) for record in read_jsonl(path) if _is_of(record, source)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} holds an evaluation that cannot be read ({error!r}).") from error
    return found[-1:]


def _is_of(record: Mapping[str, Any], source: Source) -> bool:
    """Training evaluates what the engine serves, which may be behind the learner; then the version differs."""
    same = record.get("kind") == "eval" and record.get("iteration") == source.step
    return same and record.get("policy_version") == source.policy.number


def _evaluated(source: Source, run: Path) -> Score:
    if not (run / "report.json").is_file():
        raise DataError(
            f"{run} is no finished evaluation: it has no report.json.",
            remedy=f"finqa eval {source.run or source.title}",
        )
    report, manifest = read_document(run / "report.json"), read_document(run / MANIFEST)
    try:
        evaluated, data = manifest["inputs"]["policy"], report["data"]
        temperature = manifest["parameters"]["eval"]["temperature"]
        found = _score(report, _short(str(data["name"])), str(report["split"]), temperature)
    except (KeyError, TypeError, ValueError) as error:
        why = f"its records lack {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{run} is no finished evaluation: {why}.", remedy=f"finqa eval {source.run or source.title}"
        ) from error
    own = policy_inputs(source.policy)
    if evaluated.get("sha256") != own["sha256"] or (own["sha256"] is None and evaluated.get("model") != own["model"]):
        raise DataError(
            f"{run} evaluated another policy ({report.get('target')}), so its scores are not those of {source.title}.",
            remedy=f"finqa eval {source.policy.adapter or source.policy.model}",
        )
    return found


def _score(record: Mapping[str, Any], data: str, split: str, temperature: float | None) -> Score:
    low, high = record["accuracy_interval"]
    return Score(
        data=data,
        split=split,
        episodes=int(record["episodes"]),
        clusters=int(record["clusters"]),
        accuracy=float(record["accuracy"]),
        low=float(low),
        high=float(high),
        reward_mean=float(record["reward_mean"]),
        temperature=None if temperature is None else float(temperature),
    )


def _settings(settings: Mapping[str, Any], command: str) -> dict[str, Any]:
    sections = {"train": ("train", "lora", "generation"), "sft": ("sft", "lora")}.get(command, ("lora",))
    found: dict[str, Any] = {}
    for section in ("environment", "reward", "optimizer") if command == "train" else ("optimizer",):
        options = (settings.get(section) or {}).get("options") or {}
        found |= {f"{section}.{name}": _public(value) for name, value in options.items()}
    for section in sections:
        body = settings.get(section) or {}
        shown = ("rank",) if section == "lora" and body.get("rank") == 0 else _SHOWN[section]  # 0: there is no adapter
        found |= {f"{section}.{name}": body[name] for name in shown if body.get(name) is not None}
    return found


def _public(value: Any) -> Any:
    """An option's value without the folders of this machine."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _data_name(run: Path, data: Mapping[str, Any]) -> str:
    """What the run found its data to be; settings name a snapshot even where the environment takes none."""
    manifest = run / MANIFEST
    read = read_document(manifest)["inputs"].get("data") if manifest.is_file() else None
    return _short(str((read or {}).get("name") or data.get("path") or data.get("snapshot") or ""))


def _short(name: str) -> str:
    return Path(name).name if "/" in name and not is_hub_id(name) else name


def _name(choice: Any) -> str:
    return str(choice.get("name", "")) if isinstance(choice, Mapping) else ""
