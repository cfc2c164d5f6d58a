"""The model card of a policy that leaves this machine: what it is made of, how, and how well it did, with intervals.

Front matter as the Hugging Face hub reads it (huggingface.co/docs/hub/model-cards). Names of folders of this machine
are not in it: of local data and models the last part of the path is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from finqa_cli.evaluation.compare.markdown import table
from finqa_cli.runs.run_folder import versions

Relation = Literal["adapter", "finetune"]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One evaluation. `low` and `high` bound the accuracy at 95 %, clustered by company or task."""

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
    """What is said about a policy.

    Attributes:
        title: `<folder>_step-<N>`.
        base_model: Hub id, or the name of a local folder; empty where it is not known.
        relation: How it was made of its base.
        licence: SPDX name as the hub knows it; empty where nobody said.
        method: In words; empty for what was not trained here.
        facts: What it was trained in and on, name -> value.
        settings: Dotted name -> value.
        scores: Of this very policy.
        evaluation_only: Training was allowed on data that is for evaluation only.
    """

    title: str
    base_model: str
    relation: Relation
    licence: str = ""
    method: str = ""
    facts: Mapping[str, str]
    settings: Mapping[str, Any]
    scores: Sequence[Score]
    evaluation_only: bool = False

    def text(self) -> str:
        """The content of README.md."""
        head = yaml.safe_dump(self._front_matter(), sort_keys=False, allow_unicode=True, width=1000)
        parts = [
            f"# {self.title}",
            self._summary(),
            "## Scores\n\n" + self._scores(),
            *(["## Training\n\n" + table(("", ""), list(self.facts.items()))] if self.facts else []),
            *(["## Settings\n\n" + self._settings()] if self.settings else []),
            "## Licence\n\n" + self._licence(),
            "## Versions\n\n" + ", ".join(f"{name} {version}" for name, version in versions().items()),
        ]
        return f"---\n{head}---\n\n" + "\n\n".join(parts) + "\n"

    def _front_matter(self) -> dict[str, Any]:
        on_hub = is_hub_id(self.base_model)
        found: dict[str, Any] = {
            **({"base_model": self.base_model, "base_model_relation": self.relation} if on_hub else {}),
            "library_name": "peft" if self.relation == "adapter" else "transformers",
            "pipeline_tag": "text-generation",
            **({"license": self.licence} if self.licence else {}),
            "tags": ["finqa", *(["lora"] if self.relation == "adapter" else []), *self._method_tags()],
        }
        if self.scores:
            found["model-index"] = [{"name": self.title, "results": [_result(score) for score in self.scores]}]
        return found

    def _method_tags(self) -> list[str]:
        name = self.facts.get("method", "")
        return [name] if name else []

    def _summary(self) -> str:
        kind = "A LoRA adapter for" if self.relation == "adapter" else "A whole model made of"
        base = f"`{self.base_model}`" if self.base_model else "a base model that is not recorded"
        how = f", trained by {self.method} with finqa" if self.method else ""
        warning = (
            "\n\nTraining was allowed on data that its owner gives for evaluation only; scores on it mean nothing."
        )
        return f"{kind} {base}{how}.{warning if self.evaluation_only else ''}"

    def _scores(self) -> str:
        if not self.scores:
            return "This policy was not evaluated."
        rows = [
            (
                f"{score.data}, {score.split}",
                f"{score.accuracy:.3f} [{score.low:.3f}, {score.high:.3f}]",
                f"{score.reward_mean:.3f}",
                score.episodes,
                score.clusters,
                "-" if score.temperature is None else f"{score.temperature:g}",
            )
            for score in self.scores
        ]
        headers = ("data", "accuracy, 95 % interval", "mean reward", "episodes", "clusters", "temperature")
        scores = table(headers, rows)
        return (
            scores + "\n\nIntervals are clustered: questions of one cluster, such as a company, stand or fall together."
        )

    def _settings(self) -> str:
        return table(("setting", "value"), [(name, _shown(value)) for name, value in self.settings.items()])

    def _licence(self) -> str:
        if self.licence:
            return f"{self.licence}. The licence of the base model holds as well."
        return "Not stated. The licence of the base model holds."


def is_hub_id(model: str) -> bool:
    """Whether a model's name is that of a repository on the hub, `owner/name`, and no folder here."""
    return _HUB_ID.fullmatch(model) is not None and not Path(model).exists()


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


def _shown(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
