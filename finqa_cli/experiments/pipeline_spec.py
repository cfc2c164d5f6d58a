"""What a pipeline was asked for, as one document: a later call goes on with exactly this, or shows the difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from finqa_cli.algorithms.pairing import Rule
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.evaluation.compare.comparability import flat
from finqa_cli.experiments.pipeline_data import DataSource
from finqa_cli.masking import is_secret
from finqa_cli.settings import RESOLVED, Loaded, Settings, from_public_dict, to_public_dict, to_stated_dict

Method = Literal["ppo", "grpo", "rloo", "dpo"]
METHODS: tuple[str, ...] = get_args(Method)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """What step 03 imitates: the scripted expert, or the gold solutions where the environment has them.

    Attributes:
        limit: Questions; 0 asks all of the training split.
        unquoted_years: Share of the expert's episodes that leave year columns unquoted.
        undivided_percentages: Share of its episodes that answer ratios in percent.
    """

    limit: int
    unquoted_years: float
    undivided_percentages: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """How step 04 samples; `limit` 0 asks all questions of the training split."""

    each: int
    temperature: float
    top_p: float
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """Everything that the steps of a pipeline are made from.

    Attributes:
        method: What trains after imitation.
        imitation: Settings of the steps up to 03.
        training: Settings of all later steps.
        data: Where the questions come from.
        init: Specification of a model to be made from nothing, as `finqa sft --init` takes it; empty: `model.name`.
        demonstrations: What is imitated.
        candidates: What is sampled.
        pair_rule: Which candidates step 08 pairs; of no use to methods without pairs.
        compare_with: Further runs or pipelines of the last step.
        plots: The comparison draws.
    """

    method: Method
    imitation: Settings
    training: Settings
    data: DataSource
    init: str
    demonstrations: Demonstrations
    candidates: Candidates
    pair_rule: Rule
    compare_with: tuple[str, ...]
    plots: bool

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "method": self.method,
            "init": self.init,
            "data": {**asdict(self.data), "files": list(self.data.files)},
            "demonstrations": asdict(self.demonstrations),
            "candidates": asdict(self.candidates),
            "pair_rule": self.pair_rule,
            "compare_with": list(self.compare_with),
            "plots": self.plots,
            "imitation": to_public_dict(self.imitation),
            "training": to_public_dict(self.training),
        }


def read_spec(document: Mapping[str, Any]) -> PipelineSpec:
    """The specification that `PipelineSpec.document` described.

    Raises:
        DataError: It is damaged.
        ConfigError: A setting is not one of this version.
    """
    try:
        return PipelineSpec(
            method=document["method"],
            imitation=from_public_dict(document["imitation"]),
            training=from_public_dict(document["training"]),
            data=DataSource(**{**document["data"], "files": tuple(document["data"]["files"])}),
            init=document["init"],
            demonstrations=Demonstrations(**document["demonstrations"]),
            candidates=Candidates(**document["candidates"]),
            pair_rule=document["pair_rule"],
            compare_with=tuple(document["compare_with"]),
            plots=document["plots"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"What the pipeline was asked for cannot be read ({error!r}).") from error


def differences(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """`training.train.iterations: 24, now 2` for everything that is not as recorded."""
    old, new = flat(recorded), flat(wanted)
    paths = [path for path in dict.fromkeys((*old, *new)) if old.get(path) != new.get(path)]
    return [f"{path}: {old.get(path, 'unset')}, now {new.get(path, 'unset')}" for path in paths]


def with_defaults(loaded: Loaded, defaults: Mapping[str, Any]) -> Settings:
    """The settings with these values, by dotted path, where nobody gave another: no file, variable or flag."""
    document = loaded.settings.model_dump()
    for path, value in defaults.items():
        if loaded.origins.get(path, "default").partition(" ")[0] in ("default", "profile", "auto"):
            *parents, leaf = path.split(".")
            node = document
            for parent in parents:
                node = node[parent]
            node[leaf] = value
    document["run"]["placed"] = [path for path in document["run"]["placed"] if path not in defaults]
    return Settings.model_validate(document)


def check_secrets(loaded: Loaded) -> None:
    """Refuses a key among the settings of files and flags: steps read those from files, and no key is written there.

    Raises:
        ConfigError: There is one; the message does not tell it.
    """
    for path, origin in loaded.origins.items():
        leaf = path.rpartition(".")[2]
        if is_secret(leaf) and not origin.startswith(("environment", ".env", "default")):
            raise ConfigError(
                f"{path} ({origin}) is a secret, and a pipeline writes its settings down.",
                remedy=f"set it as FINQA_{path.replace('.', '__').upper()} in the environment or in .env",
            )


def settings_document(settings: Settings, *, data: Path | None, snapshot: str) -> dict[str, Any]:
    """The settings file of a step: all of them, so that nothing but this file and the environment decides.

    Args:
        settings: Of the step.
        data: File or folder for environments that take no snapshot.
        snapshot: Name of the compiled data, where the environment takes one.
    """
    document = to_stated_dict(settings)  # the step's own command plans for the machine that it runs on
    document["data"] |= {"path": str(data) if data is not None else None, "snapshot": snapshot}
    del document["run"]["dir"]
    return {RESOLVED: True, **{section: _stated(body) for section, body in document.items()}}


def _stated(value: Any) -> Any:
    """Without masked secrets, which come from the environment, and without what is unset."""
    if isinstance(value, Mapping):
        kept = {key: _stated(item) for key, item in value.items() if item is not None}
        return {key: item for key, item in kept.items() if not (isinstance(item, str) and is_secret(key))}
    return value
