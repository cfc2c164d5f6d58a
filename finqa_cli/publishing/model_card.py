"""The model card of a policy: its base, its training, and its scores with confidence intervals.

The front matter has the form that the Hugging Face hub reads (huggingface.co/docs/hub/model-cards). Cards contain no
paths of this machine: local data and models are named by the last part of their path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from finqa_cli.errors import DataError
from finqa_cli.evaluation.markdown import render
from finqa_cli.publishing.export_weights import Relation, Source, is_hub_id
from finqa_cli.publishing.served_format import describe_format
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import MANIFEST, policy_inputs, read_run, read_settings, versions

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
"""Section of the settings -> the settings that a card shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One evaluation. `low` and `high` bound the 95 % interval of the accuracy, clustered by company or task."""

    data: str
    split: str
    episodes: int
    clusters: int
    accuracy: float
    low: float
    high: float
    reward_mean: float
    temperature: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Content of a model card.

    Attributes:
        title: `<folder>_step-<N>`.
        base_model: Hub id, or the name of a local folder; empty if it is not known.
        relation: Relation to its base model in the hub's terms: an adapter, or a fine-tuned model.
        licence: SPDX name as the hub uses it; empty if none is stated.
        method: Training method in words; empty for a policy that finqa did not train.
        facts: Environment, reward and data of its training, name -> value.
        settings: Dotted name -> value.
        format: Facts about its turns, as `ChatCodec.facts` returns them.
        scores: Evaluations of this policy.
        evaluation_only: Whether training was allowed on data that is for evaluation only.
    """

    title: str
    base_model: str
    relation: Relation
    licence: str = ""
    method: str = ""
    facts: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    format: Mapping[str, Any] = field(default_factory=dict)
    scores: Sequence[Score]
    evaluation_only: bool = False

    def text(self) -> str:
        """Returns the content of README.md."""
        front = yaml.safe_dump(self._front_matter(), sort_keys=False, allow_unicode=True, width=1000)
        template = Path(__file__).with_name("model_card.md.j2")
        return render(template, card=self, front_matter=front, versions=versions())

    def _front_matter(self) -> dict[str, Any]:
        adapter, method = self.relation == "adapter", self.facts.get("method")
        found: dict[str, Any] = {
            "library_name": "peft" if adapter else "transformers",
            "pipeline_tag": "text-generation",
            **({"license": self.licence} if self.licence else {}),
            "tags": ["finqa", *(["lora"] if adapter else []), *([method] if method else [])],
        }
        if is_hub_id(self.base_model):
            found = {"base_model": self.base_model, "base_model_relation": self.relation, **found}
        if self.scores:
            found["model-index"] = [{"name": self.title, "results": [_result(score) for score in self.scores]}]
        return found


def card_of(source: Source, relation: Relation, *, base_model: str, licence: str, evaluations: Sequence[Path]) -> Card:
    """Makes the card of a policy from the records of its run and from evaluations of it.

    Args:
        source: The policy.
        relation: An adapter, or a whole model.
        base_model: Name of the base on the hub; empty takes the name that the policy records.
        licence: Licence of the policy; empty if it is not stated.
        evaluations: Folders of `finqa eval` on this policy.

    Raises:
        DataError: An evaluation is of another policy, is not finished, or a record is damaged.
    """
    scores = [_evaluated(source, path) for path in evaluations]
    began = read_settings(source.run) if source.run is not None else {}
    name = source.policy.model
    if source.policy.adapter is None:  # the base of a whole model is the model that its run began from
        name = str((began.get("model") or {}).get("name", ""))
    card = Card(
        title=source.title,
        base_model=base_model or (name if is_hub_id(name) else Path(name).name),
        relation=relation,
        licence=licence,
        facts={} if source.step is None else {"step": str(source.step)},
        format=describe_format(source.policy),
        scores=scores,
    )
    if source.run is None:
        return card
    command = str(read_run(source.run).get("command", ""))
    method = command if command in _METHODS else _name(began.get("optimizer"))
    data = began.get("data") or {}
    facts = {
        "method": method,
        "environment": _name(began.get("environment")),
        "reward": _name(began.get("reward")),
        "data": f"{_data_name(source.run, data)}, {data.get('train_split', '')}" if command == "train" else "",
        **card.facts,
    }
    return replace(
        card,
        method=_METHODS.get(method, f"{method} with rewards of an environment" if method else ""),
        facts={key: value for key, value in facts.items() if value},
        settings=_settings(began, command),
        scores=[*_of_training(source, began), *scores],
        evaluation_only=bool(data.get("allow_evaluation_only")),
    )


def _result(score: Score) -> dict[str, Any]:
    name = f"accuracy, 95 % interval {score.low:.3f} to {score.high:.3f} over {score.clusters} clusters"
    return {
        "task": {"type": "text-generation"},
        "dataset": {"name": f"{score.data}, {score.split}", "type": score.data, "split": score.split},
        "metrics": [
            {"type": "accuracy", "name": name, "value": round(score.accuracy, 6), "verified": False},
            {"type": "reward", "name": "mean reward", "value": round(score.reward_mean, 6), "verified": False},
        ],
    }


def _of_training(source: Source, settings: Mapping[str, Any]) -> list[Score]:
    """Returns the evaluation of this step that training made, if there is one, in a list."""
    assert source.run is not None
    path = source.run / "metrics.jsonl"
    if source.step is None or not path.is_file():
        return []
    data = settings.get("data") or {}
    name, split = _data_name(source.run, data), str(data.get("eval_split", ""))
    try:
        found = [
            _score(record, name, str(record.get("split", split)), record["temperature"])
            for record in read_jsonl(path)
            if _is_of(record, source)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} contains an evaluation that cannot be read ({error!r}).") from error
    return found[-1:]


def _is_of(record: Mapping[str, Any], source: Source) -> bool:
    """Returns whether a record evaluates this policy; its version differs where the engine had an older policy."""
    same = record.get("kind") == "eval" and record.get("iteration") == source.step
    return same and record.get("policy_version") == source.policy.number


def _evaluated(source: Source, run: Path) -> Score:
    if not (run / "report.json").is_file():
        raise DataError(
            f"{run} is not a finished evaluation: it has no report.json.",
            remedy=f"finqa eval {source.run or source.title} --run-dir DIR, and --eval DIR",
        )
    report, manifest = read_document(run / "report.json"), read_document(run / MANIFEST)
    try:
        evaluated, data = manifest["inputs"]["policy"], report["data"]
        temperature = manifest["parameters"]["eval"]["temperature"]
        found = _score(report, _short(str(data["name"])), str(report["split"]), temperature)
    except (KeyError, TypeError, ValueError) as error:
        why = f"its records lack {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{run} is not a finished evaluation: {why}.",
            remedy=f"finqa eval {source.run or source.title} --run-dir DIR, and --eval DIR",
        ) from error
    own = policy_inputs(source.policy)
    if evaluated.get("sha256") != own["sha256"] or (own["sha256"] is None and evaluated.get("model") != own["model"]):
        raise DataError(
            f"{run} evaluated another policy ({report.get('target')}), so its scores do not belong to {source.title}.",
            remedy=f"finqa eval {source.policy.adapter or source.policy.model} --run-dir DIR, and --eval DIR",
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
        for name, value in options.items():  # without paths of this machine
            is_path = isinstance(value, str) and Path(value).is_absolute()
            found[f"{section}.{name}"] = Path(value).name if is_path else value
    for section in sections:
        body = settings.get(section) or {}
        shown = ("rank",) if section == "lora" and body.get("rank") == 0 else _SHOWN[section]  # 0: there is no adapter
        found |= {f"{section}.{name}": body[name] for name in shown if body.get(name) is not None}
    return found


def _data_name(run: Path, data: Mapping[str, Any]) -> str:
    """Returns the name in the manifest if there is one: settings name a snapshot even if the environment takes none."""
    manifest = run / MANIFEST
    read = read_document(manifest)["inputs"].get("data") if manifest.is_file() else None
    return _short(str((read or {}).get("name") or data.get("path") or data.get("snapshot") or ""))


def _short(name: str) -> str:
    return Path(name).name if "/" in name and not is_hub_id(name) else name


def _name(choice: Any) -> str:
    return str(choice.get("name", "")) if isinstance(choice, Mapping) else ""
