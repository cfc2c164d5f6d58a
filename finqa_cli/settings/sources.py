"""Where settings come from beside files: `.env`, environment variables, flags. Each source becomes one layer."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.settings.layers import CHOICES, SHOW, Layer, Value, canonical

DOTENV_FILE = Path(".env")
PREFIX = "FINQA_"
NEVER_FROM_DOTENV = (
    "CWSANDBOX_BASE_URL",
    "DAYTONA_API_URL",
    "DAYTONA_SERVER_URL",
    "FINQA_ENGINE__OPTIONS__BASE_URL",
    "HF_ENDPOINT",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "WANDB_BASE_URL",
)
"""A `.env` that came with a folder could send the key in the environment to a stranger's host through these, in any
case of letters: an address, or a certificate by which a stranger's proxy passes for the right host."""

LISTS = ("trackers", "lora.target_modules")

BARE_NAMES: Mapping[str, str] = {
    "FINQA_HOME": "data.home",
    "SANDBOX_COUNT": "pool.sandboxes",
    "SESSIONS_PER_SANDBOX": "pool.sessions_per_sandbox",
    "MAX_CONCURRENT_CREATE": "pool.max_concurrent_create",
    "MAX_CONCURRENT_PLAY": "pool.max_concurrent_play",
    "MAX_PLAY_RETRIES": "pool.max_play_retries",
    "MODEL_NAME": "model.name",
    "TENSOR_PARALLEL_SIZE": "model.tensor_parallel_size",
    "GPU_MEMORY_UTILIZATION": "model.gpu_memory_utilization",
    "MAX_GEN_TOKENS": "generation.max_gen_tokens",
    "TEMPERATURE": "generation.temperature",
    "ROLLOUT_DISPATCH_WAIT_MS": "generation.rollout_dispatch_wait_ms",
    "LEARNING_RATE": "train.learning_rate",
    "EPISODES_PER_GROUP": "train.group_size",
    "TRAINING_ITERATIONS": "train.iterations",
    "TARGET_GROUPS_PER_ITER": "train.target_groups_per_iter",
    "MAX_ROLLOUT_ROUNDS": "train.max_rollout_rounds",
    "GRPO_UPDATE_BATCH_SIZE": "train.grpo_update_batch_size",
    "SYNC_EVERY": "train.sync_every",
    "LORA_RANK": "lora.rank",
    "LORA_ALPHA": "lora.alpha",
    "LORA_DROPOUT": "lora.dropout",
    "LORA_TARGET_MODULES": "lora.target_modules",
}
"""Environment variables with a name of their own; every setting also answers to FINQA_SECTION__FIELD."""


def dotenv_variables(file: Path = DOTENV_FILE) -> dict[str, str]:
    """The variables of `.env` that the environment does not set itself.

    Those that are not settings (keys of services, FINQA_HOME) are put into the environment for whoever reads them
    there. Settings are not, so that their origin stays `.env`.
    """
    if not file.is_file():
        return {}
    from dotenv import dotenv_values

    try:
        given = dotenv_values(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {file}: {error}.", remedy=f"Save {file} as UTF-8 text.") from error
    for name, value in given.items():
        if name.upper() in NEVER_FROM_DOTENV and value and not os.environ.get(name):
            raise ConfigError(
                f"{file} sets {name}, which decides who gets your key; only the environment may.",
                remedy=f"remove it from {file}; if you trust the address: export {name}=...",
            )
    variables = {name: value for name, value in given.items() if value and not os.environ.get(name)}
    for name, value in variables.items():
        if variable_path(name, ".env") is None or name == "FINQA_HOME":
            os.environ[name] = value
    return variables


def variables_layer(variables: Mapping[str, str], source: str) -> Layer:
    """The layer of environment variables; an empty value counts as not set.

    Raises:
        ConfigError: A FINQA_SECTION__FIELD variable names no setting.
    """
    layer: Layer = {}
    for name, text in sorted(variables.items()):
        if not text.strip():
            continue
        origin = f"{source} {name}"
        if path := variable_path(name, source):
            layer[path] = Value(_from_text(path, text.strip()), origin)
    return layer


def variable_path(name: str, source: str) -> str | None:
    """The setting that an environment variable sets, or None when it is no setting."""
    if path := BARE_NAMES.get(name):
        return path
    if not name.startswith(PREFIX):
        return None
    rest = name.removeprefix(PREFIX).lower()
    if "__" in rest:
        return canonical(rest.replace("__", "."), f"{source} {name}")
    return canonical(rest, source) if rest in (*CHOICES, "trackers") else None


def flags_layer(flags: Mapping[str, Any]) -> Layer:
    """Typed flags by dotted path; None means that the flag was not given."""
    return {
        canonical(path, "flag"): Value(_split(value) if path in LISTS else value, "flag")
        for path, value in flags.items()
        if value is not None
    }


def assignments_layer(assignments: Sequence[str]) -> Layer:
    """`--set section.key=value`, the value in TOML syntax; what is not valid TOML is taken as plain text.

    Raises:
        UsageError: There is no `=`.
        ConfigError: The key is unknown.
    """
    layer: Layer = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path.strip():
            raise UsageError(f"--set takes section.key=value, not {assignment!r}.", remedy=SHOW)
        path = canonical(path.strip(), "--set")
        layer[path] = Value(_from_text(path, text.strip()), "--set")
    return layer


def _from_text(path: str, text: str) -> Any:
    """A value written as text: lists may be comma separated, quotes are optional, numbers are left to the schema."""
    value = _toml_value(text)
    if path in LISTS:
        return _split(value)
    return value if ".options." in path or isinstance(value, str) else text


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if list(parsed) == ["value"] else text


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return value
