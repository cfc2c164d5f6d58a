"""The words of a `finqa train` command that pass the settings of this machine to another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.extend import registry
from finqa_cli.masking import MASK
from finqa_cli.settings import Loaded, to_stated_dict
from finqa_cli.settings.declarations import PREFIX
from finqa_cli.settings.layers import CHOICES, assignment_text
from finqa_cli.wiring.cluster_nodes import name_on_cluster

_OF_THIS_MACHINE = ("default", "profile", "auto")
"""Origins of values that the other machine determines itself."""
_LEFT_OUT = ("run.dir", "cluster.address", "data.home")
"""Settings that are not passed on: the recipe sets the first two itself, and the data folder is of this machine."""


@dataclass(frozen=True, slots=True)
class TrainWords:
    """A training command as it is typed.

    Attributes:
        words: `--set`, `path=value`, ... without folders and addresses of this machine.
        variables: Names of environment variables with secrets that the settings need.
    """

    words: tuple[str, ...]
    variables: tuple[str, ...]


def train_words(loaded: Loaded, replicas: int, processes: int) -> TrainWords:
    """Return the settings that the user gave as words, with engine and learner on the nodes of a Ray cluster.

    Values of files, variables and flags all become `--set`, so that the other machine needs none of them.

    Args:
        loaded: The settings of this machine.
        replicas: Number of engine replicas.
        processes: Number of learner processes.

    Raises:
        ConfigError: The engines and learners on Ray do not support this training.
        UsageError: The address of a cluster is given.
    """
    settings = loaded.settings
    if settings.cluster.address != "auto":
        raise UsageError(
            "The recipe starts a cluster of its own, so --cluster-address would have no effect.",
            remedy="leave --cluster-address out",
        )
    component = registry().find("engine", settings.engine.name)
    if component.modelless or component.remote:
        raise ConfigError(
            f"Engine {component.name!r} runs no model, so a cluster has nothing to place.",
            remedy="--engine vllm, or --engine transformers",
        )
    if settings.lora.rank == 0:
        raise ConfigError(
            "Engines and learners on a Ray cluster exchange adapters, not whole models (lora.rank 0).",
            remedy="--lora-rank 16",
        )
    stated = to_stated_dict(settings)
    found = {
        path: value
        for path, origin in loaded.origins.items()
        if not origin.startswith(_OF_THIS_MACHINE) and (value := _value_at(stated, path)) is not None
    }
    engine = name_on_cluster("engine", settings.engine.name)
    learner = name_on_cluster("learner", settings.learner.name)
    options = registry().config_class(registry().find("engine", engine))
    if options is not None and "lockstep" in options.model_fields:
        found.setdefault("engine.options.lockstep", False)  # lockstep batches would wait for episodes of one process
    found |= {
        "model.name": settings.model.name,
        "engine.name": engine,
        "learner.name": learner,
        "generation.engine_replicas": replicas,
        "train.learner_processes": processes,
    }
    for path in _LEFT_OUT:
        found.pop(path, None)
    words: list[str] = []
    variables: list[str] = []
    for path, value in sorted(found.items(), key=lambda each: (each[0].partition(".")[0] not in CHOICES, each[0])):
        if _is_masked(value):
            variables.append(PREFIX + path.replace(".", "__").upper())
            continue
        if path.endswith("_env") and isinstance(value, str) and value:
            variables.append(value)
        words += ["--set", f"{path}={assignment_text(path, value)}"]
    return TrainWords(tuple(words), tuple(variables))


def _value_at(tree: Mapping[str, Any], path: str) -> Any:
    section, _, rest = path.partition(".")
    node: Any = tree[section]
    if rest.startswith("options."):
        keys = ["options", *rest.removeprefix("options.").split(".")]
    else:
        keys = [rest] if rest else []
    for key in keys:
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node


def _is_masked(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_masked, value.values()))
    if isinstance(value, list):
        return any(map(_is_masked, value))
    return isinstance(value, str) and MASK in value
