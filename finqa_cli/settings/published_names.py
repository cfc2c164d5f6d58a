"""Flags and settings files of the published scripts, and their equivalents in finqa.

The scripts are those of the RL-LLM FinQA pipeline (`03_sft_train.py --config model.yaml --algo_config ppo.yaml`). Each
name is translated to settings, has no effect in finqa, which a warning says, or is refused with its equivalent because
results would differ. Keys that describe the model are ignored, because the model is read from its own `config.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from finqa_cli.errors import ConfigError, UsageError

FLAGS: Mapping[str, Sequence[str]] = {
    "--algo-config": ("--config {}",),
    "--base-or-sft-ckpt": ("--model {}",),
    "--clip-range": ("--set optimizer.options.clip_low={} --set optimizer.options.clip_high={}",),
    "--data-root": ("--data {}",),
    "--eval-steps": ("--validate-every {}",),
    "--kl-coef": ("--set optimizer.options.kl_coef={}",),
    "--max-new-tokens": ("--max-gen-tokens {}",),
    "--num-samples": ("--num-candidates {}", "--group-size {}"),
    "--num-train-epochs": ("--epochs {}",),
    "--output-dir": ("--run-dir {}", "--output {}"),
    "--policy-ckpt": ("--model {}",),
    "--ppo-epochs": ("--set optimizer.options.epochs={}",),
    "--skip-validation": ("--validation-samples 0",),
    "--test-jsonl": ("--data {}",),
    "--use-openai": ("--engine openai",),
    "--warmup-steps": ("--set sft.warmup_steps={}",),
}
"""Flag of a published script -> its equivalents; the first one whose flags the command has is used. `{}` is its value.
"""

_STEP = "--batch-tokens N of finqa sft, the tokens of a step; micro-batches are sized to fit the memory"
REFUSED_FLAGS: Mapping[str, str] = {
    "--all": "finqa model inspect MODEL, once per model",
    "--base-or-sft-ckpt": "name the policy as the command's argument",
    "--batch-size": _STEP,
    "--bf16": "--set learner.options.dtype=bfloat16, the default on GPUs",
    "--fp16": "--set learner.options.dtype=bfloat16, the default on GPUs",
    "--gradient-accumulation-steps": _STEP,
    "--no-config": "finqa model inspect MODEL without --out, which writes nothing",
    "--per-device-train-batch-size": _STEP,
    "--policy-ckpt": "name the policy as the command's argument",
    "--reward-spec": "--reward NAME, or reward.options in a settings file; finqa rewards show lists them",
    "--run-id": "--run-dir FOLDER, or --output FOLDER of finqa pipeline",
    "--save-steps": "--validate-every N: every validation writes a checkpoint",
}
"""Flag of a published script that no flag of a command replaces -> its equivalent."""

_LOW_AND_HIGH = ("optimizer.options.clip_low", "optimizer.options.clip_high")
KEYS: Mapping[str, Sequence[str]] = {
    "lora.r": ("lora.rank",),
    "training.epochs": ("sft.epochs",),
    "training.learning_rate": ("sft.learning_rate",),
    "training.warmup_steps": ("sft.warmup_steps",),
    "validation.eval_steps": ("sft.validate_every",),
    "generation.max_new_tokens": ("generation.max_gen_tokens",),
    "paths.data_dir": ("data.path",),
    "paths.output_dir": ("run.dir",),
    "clip_range": _LOW_AND_HIGH,
    "kl_coef": ("optimizer.options.kl_coef",),
    "ppo_epochs": ("optimizer.options.epochs",),
    "group_size": ("train.group_size",),
    "num_samples": ("train.group_size",),
    "beta": ("optimizer.options.beta",),
    "loss_type": ("optimizer.options.loss_type",),
    "learning_rate": ("train.learning_rate",),
}
"""Key of a published settings file -> the settings that get its value."""

VALUES: Mapping[tuple[str, Any], Mapping[str, Any]] = {
    ("lora.use_lora", True): {},
    ("lora.use_lora", False): {"lora.rank": 0},
    ("training.fp16", True): {"learner.options.dtype": "auto"},
    ("training.fp16", False): {"learner.options.dtype": "float32"},
    ("use_batch_bonus", False): {},
    ("baseline_type", "loo"): {"optimizer.options.baseline": "leave_one_out"},
    ("baseline_type", "mean"): {"optimizer.options.baseline": "mean"},
}
"""Key and value of a published settings file -> settings. fp16 becomes `auto`, which chooses bfloat16 on GPUs."""

REFUSED_KEYS: Mapping[str, str] = {
    "use_batch_bonus": "not supported: it makes rewards depend on the other questions of a batch",
    "baseline_type": "optimizer.options.baseline, leave_one_out or mean",
}
"""Key of a published settings file that cannot be mapped, and that changes results -> its equivalent."""

IDLE_KEYS: Mapping[str, str] = {
    "validation.save_steps": "every validation writes a checkpoint (sft.validate_every)",
    "validation.logging_steps": "every step is recorded",
}
"""Key of a published settings file that has no effect -> what finqa does instead. Results stay the same."""

_REWARD_SPEC = "paths.reward_spec"

DESCRIPTIONS = ("model.type", "model.architecture", "model.hidden_size", "model.num_layers", "model.vocab_size")
"""Keys that describe the model. Nothing depends on them, in the scripts or in finqa. Nor on a table `metadata`."""

METHODS = ("ppo", "grpo", "rloo", "dpo")
_STEP_KEYS = ("training.batch_size", "training.gradient_accumulation_steps", "training.max_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A published settings file, translated to settings of finqa.

    Attributes:
        values: Dotted path -> value.
        places: Dotted path -> key of the file that sets it.
        idle: Keys of the file that have no effect, with the reason; empty: there are none.
    """

    values: Mapping[str, Any]
    places: Mapping[str, str]
    idle: str = ""


def replace_flags(words: Sequence[str], offered: Collection[str]) -> list[str]:
    """Return a command line with the flags of published scripts replaced by the command's own flags.

    Args:
        words: What was typed after the command.
        offered: Flags of the command.

    Raises:
        UsageError: A published flag has no equivalent among the command's flags, or lacks its value.
    """
    replaced: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*replaced, word, *rest]
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if not flag.startswith("--") or flag in offered or flag not in {*FLAGS, *REFUSED_FLAGS}:
            replaced.append(word)
            continue
        form = next((form for form in FLAGS.get(flag, ()) if _flags_of(form) <= set(offered)), None)
        if form is None:
            remedy = REFUSED_FLAGS.get(flag) or f"{FLAGS[flag][0].replace('{}', 'VALUE')}, of the commands that have it"
            raise UsageError(f"This command has no equivalent of {flag} of the published scripts.", remedy=remedy)
        if "{}" in form and not equals and ((value := next(rest, "")) == "" or value.startswith("--")):
            raise UsageError(f"{flag} needs a value.", remedy=form.replace("{}", "VALUE"))
        replaced += [part.replace("{}", value) for part in form.split()]
    return replaced


def translate_file(tree: Mapping[str, Any], name: str) -> Translation | None:
    """Return the settings of a file of the published scripts, or None for a file of finqa.

    Args:
        tree: The file as it was parsed.
        name: Its name; `ppo.yaml` without a method of its own is of the optimizer `ppo`.

    Raises:
        ConfigError: Some keys cannot be translated; the message lists all of them with the settings to use instead.
    """
    found = dict(_leaves(tree))
    if not any(_is_published(key) for key in found):
        return None
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    refused: list[str] = []
    idle: list[str] = []

    def give(key: str, settings: Mapping[str, Any]) -> None:
        values.update(settings)
        places.update(dict.fromkeys(settings, key))

    give(name, _method(tree, name))
    give(_STEP_KEYS[0], _step(found, refused))
    for key, value in found.items():
        known = _without_method(key)
        if not isinstance(value, list | dict) and (known, value) in VALUES:
            give(key, VALUES[known, value])
        elif known == _REWARD_SPEC:
            settings, reason = _reward(value)
            give(key, settings)
            idle += [f"{key} ({reason})"] if reason else []
        elif known in IDLE_KEYS:
            idle.append(f"{key} ({IDLE_KEYS[known]})")
        elif known in KEYS:
            give(key, dict.fromkeys(KEYS[known], value))
        elif known in REFUSED_KEYS:
            refused.append(f"{key} (here {REFUSED_KEYS[known]})")
        elif not (known in (*DESCRIPTIONS, *_STEP_KEYS, "name", "method", "algorithm") or key.startswith("metadata.")):
            give(key, {key: value})  # a setting of the same name, or an unknown key, which is refused later by its name
    if refused:
        raise ConfigError(
            f"{name} has keys of published scripts that finqa sets differently: {'; '.join(refused)}.",
            remedy=f"remove them from {name}, and set what you need with --set",
        )
    return Translation(values=values, places=places, idle="; ".join(idle))


def _flags_of(form: str) -> set[str]:
    return {part for part in form.split() if part.startswith("--")}


def _leaves(tree: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{head}{key}.")
        else:
            yield f"{head}{key}", value


def _without_method(key: str) -> str:
    head, _, rest = key.partition(".")
    return rest if rest and head in (*METHODS, "algorithm") else key


def _is_published(key: str) -> bool:
    known = _without_method(key)
    names = {*KEYS, *REFUSED_KEYS, *IDLE_KEYS, _REWARD_SPEC, *DESCRIPTIONS, *_STEP_KEYS, *(name for name, _ in VALUES)}
    return known in names or key.startswith("metadata.")


def _reward(value: Any) -> tuple[dict[str, Any], str]:
    """Return the settings for the path of a reward_spec.yaml, or why it has no effect: step 02 writes that file."""
    if isinstance(value, str) and Path(value).is_file():
        return {"reward.name": "weighted", "reward.options.spec": value}, ""
    made = f"finqa rewards show weighted --out {PurePath(str(value)).parent}"
    return {}, f"there is no such file; `{made}` writes it, and until then the environment's own reward applies"


def _method(tree: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the optimizer of an algorithm's file, by its key for the method, its table or its file name."""
    algorithm = tree.get("algorithm")
    words = [tree.get("method"), tree.get("name"), algorithm.get("name") if isinstance(algorithm, dict) else algorithm]
    words += [*(word for word in METHODS if word in tree), PurePath(name).stem]
    return next(({"optimizer.name": str(word).lower()} for word in words if str(word).lower() in METHODS), {})


def _step(found: Mapping[str, Any], refused: list[str]) -> dict[str, int]:
    """Return the tokens of a step: sequences per micro-batch x micro-batches per step x tokens per sequence."""
    given = [key for key in _STEP_KEYS if key in found]
    if not given:
        return {}
    batch, micro_batches, length = (found.get(key) for key in _STEP_KEYS)
    numbers = (batch, micro_batches or 1, length)
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        refused.extend(f"{key} (here sft.batch_tokens, the tokens of a step)" for key in given)
        return {}
    return {"sft.batch_tokens": numbers[0] * numbers[1] * numbers[2]}  # type: ignore[operator]
