"""Finds policies to export or push, and writes them in a form that other tools read: `--to peft|merged|gguf-ready`.

A source is a run, one of its checkpoints, an adapter, a model, or the checkpoint tree of a verl trainer:
`DIR/global_step_N/actor` with FSDP shards, and `DIR/latest_checkpointed_iteration.txt` next to it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.extend import registry
from finqa_cli.placement.known_models import text_settings
from finqa_cli.publishing.served_format import write_format
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import new_folder, storage, write_json, write_text
from finqa_cli.runs.run_folder import MANIFEST, SETTINGS, policy_inputs, write_manifest
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.policies import check_on_hub, of_checkpoint, resolve, run_of

Form = Literal["peft", "merged", "gguf-ready"]
Dtype = Literal["float32", "bfloat16", "float16"]
Relation = Literal["adapter", "finetune"]

CONVERTER = "convert_hf_to_gguf.py"
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("tokenizer.model", "vocab.json", "merges.txt"),
)
_OUT_TYPES = {"bfloat16": "bf16", "float16": "f16"}
_STEP = re.compile(r"global_step_(\d+)")
_ACTOR = "actor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One policy to export.

    Attributes:
        policy: The policy as `policies.resolve` returns it; the model may be a folder of FSDP shards.
        name: Name of its run or folder.
        step: Its iteration or optimizer step; None if it has none.
        run: The finqa run that made it, or None.
    """

    policy: PolicyVersion
    name: str
    step: int | None
    run: Path | None

    @property
    def title(self) -> str:
        """The name in the form `<folder>_step-<N>`, or the folder's name alone without a step."""
        return self.name if self.step is None else f"{self.name}_step-{self.step}"


def find_source(reference: str, step: int | None = None) -> Source:
    """Finds one policy: that of the given step, else the newest of a run or tree, else what the reference names.

    Raises:
        UsageError: A step is given for something that has no steps.
        DataError: There is no such step, the checkpoint is damaged, or there is no checkpoint.
        ConfigError: The reference is neither a run, a checkpoint, an adapter, a model nor a tree.
    """
    steps = steps_of(reference)
    if step is None and not steps:
        return _named(reference)
    if step is None:
        step = _newest(Path(reference), steps)
    elif not steps:
        raise UsageError(f"{reference} has no checkpoints, so it has no step {step}.", remedy="leave out --step")
    if step not in steps:
        told = ", ".join(map(str, steps[-8:]))
        raise DataError(f"{reference} has no checkpoint of step {step}.", remedy=f"--step with one of: {told}")
    path = Path(reference)
    name = path.resolve().name
    if _is_tree(path):
        return Source(policy=_sharded(path / f"global_step_{step}"), name=name, step=step, run=None)
    try:
        checkpoint = checkpoints.verified(checkpoints.folder_of(path, step))
    except DataError as error:
        others = ", ".join(str(each) for each in steps if each != step)
        remedy = f"--step with one of: {others}" if others else "name another run; this one has no other checkpoint"
        raise DataError(error.message, remedy=remedy) from error
    return Source(policy=of_checkpoint(checkpoint), name=name, step=step, run=path)


def find_sources(reference: str, count: int) -> list[Source]:
    """Finds the newest policies of a run or tree, oldest first; fewer where there are fewer.

    Raises:
        UsageError: The reference has no numbered checkpoints.
        DataError: A checkpoint is damaged.
    """
    steps = steps_of(reference)
    if not steps:
        raise UsageError(
            f"{reference} has no checkpoints, so the newest {count} cannot be selected.", remedy="leave out --num"
        )
    return [find_source(reference, step) for step in steps[-count:]]


def steps_of(reference: str) -> Sequence[int]:
    """Returns the steps of the checkpoints of a run or a verl tree, oldest first; empty for anything else."""
    path = Path(reference)
    if (path / "run.json").is_file():
        return checkpoints.iterations(path)
    return sorted(int(match[1]) for folder in _steps(path) if (match := _STEP.fullmatch(folder.name)))


def is_hub_id(model: str) -> bool:
    """Returns whether a model's name is that of a repository on the hub, `owner/name`, and not of a local folder."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", model) is not None and not Path(model).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The form to export a policy in.

    Attributes:
        form: `peft`: the adapter alone; `merged`: one whole model; `gguf-ready`: one that llama.cpp's converter takes.
        dtype: Precision of a whole model's weights; None is float32, or bfloat16 for `gguf-ready`.
        base_model: Name of the base model on the hub; empty keeps the name that the policy records.
    """

    form: Form
    dtype: Dtype | None = None
    base_model: str = ""

    @property
    def precision(self) -> Dtype:
        """The precision of a whole model."""
        return self.dtype or ("bfloat16" if self.form == "gguf-ready" else "float32")

    @property
    def relation(self) -> Relation:
        """How the export relates to its base."""
        return "adapter" if self.form == "peft" else "finetune"


def check_wish(source: Source, wish: Wish) -> None:
    """Checks that a policy can be exported in a form, before anything is written.

    Raises:
        UsageError: A precision is given for an adapter, or float32 for llama.cpp's converter.
        ConfigError: The adapter is requested of a policy that has none.
    """
    if wish.form == "peft" and source.policy.adapter is None:
        raise ConfigError(
            f"{source.title} is a complete model and not an adapter, so it cannot be written in PEFT's format.",
            remedy="--to merged",
        )
    if wish.form == "peft" and wish.dtype is not None:
        raise UsageError("Adapters are written unchanged; --dtype applies to complete models.", remedy="--to merged")
    if wish.form == "gguf-ready" and wish.precision not in _OUT_TYPES:
        raise UsageError("gguf-ready needs half precision.", remedy="--dtype bfloat16 or --dtype float16")


def local_base(source: Source, wish: Wish) -> str:
    """Returns a warning for an adapter whose base is a local folder; empty for any other export."""
    if wish.form != "peft" or is_hub_id(wish.base_model or source.policy.model):
        return ""
    return (
        f"The base of this adapter is {source.policy.model}, a folder on this machine: give its name "
        "on the hub with --base-model, or use --to merged."
    )


def export_weights(source: Source, wish: Wish, out: Path, card: str) -> list[Path]:
    """Writes weights, README.md (the model card) and manifest.json into a new folder, which is complete or absent.

    Returns:
        The files that were written.

    Raises:
        UsageError, ConfigError: As for `check_wish`; or files are damaged, do not fit together, or contain values
            outside the range of the precision.
        DataError: Shards are missing, or the files of a checkpoint were removed in the meantime.
        StorageError: The disk is full or may not be written to.
    """
    check_wish(source, wish)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder.", remedy="choose another --out")
    with new_folder(out) as folder:
        if wish.form == "peft":
            _copy_adapter(source, wish, folder)
        else:
            _write_model(source, wish, folder)
        write_format(source.policy, folder, marks=wish.form != "gguf-ready")  # llama.cpp reads templates without marks
        if wish.form == "gguf-ready":
            prepare_for_llama_cpp(folder)
        write_text(folder / "README.md", card)
        outputs = sorted(path for path in folder.iterdir() if path.is_file())
        parameters = {"form": wish.form, "dtype": wish.precision, "base_model": wish.base_model, "step": source.step}
        write_manifest(folder, "export", parameters=parameters, inputs=policy_inputs(source.policy), outputs=outputs)
    return sorted(path for path in out.iterdir() if path.is_file())


def gguf_command(out: Path, precision: Dtype) -> str:
    """Returns the command that makes the GGUF file of a folder that is ready for it."""
    return f"python {CONVERTER} {out} --outfile {out}.gguf --outtype {_OUT_TYPES[precision]}"


def prepare_for_llama_cpp(folder: Path) -> None:
    """Adds values to config.json that some converters look for, and checks that llama.cpp's converter has all it reads.

    The two values are added under the names that they had before transformers 5.

    Raises:
        ConfigError: Something is missing or has another form.
    """
    path = folder / "config.json"
    config: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    theta = (config.get("rope_parameters") or {}).get("rope_theta")
    old = {"torch_dtype": config.get("dtype"), "rope_theta": theta}
    write_json(path, {name: value for name, value in old.items() if value is not None} | config)
    if lacking := _lacking(folder, config):
        raise ConfigError(
            f"llama.cpp's converter could not read this model: {'; '.join(lacking)}.", remedy="--to merged"
        )


def _lacking(folder: Path, config: dict[str, Any]) -> list[str]:
    names = {path.name for path in folder.iterdir()}
    weights = {name for name in names if name.endswith((".safetensors", ".bin", ".pt"))}
    tokenizers = ({"tokenizer.json"}, {"tokenizer.model"}, {"vocab.json", "merges.txt"})
    found = []
    if not config.get("architectures"):
        found.append("config.json names no architecture")
    if not weights or any(not name.startswith("model") or not name.endswith(".safetensors") for name in weights):
        found.append(f"weights are in {', '.join(sorted(weights)) or 'no file'} instead of model*.safetensors")
    if not any(files <= names for files in tokenizers):
        found.append("there is no tokenizer.json, tokenizer.model, or vocab.json with merges.txt")
    if "tokenizer_config.json" not in names:
        found.append("there is no tokenizer_config.json")
    known = _largest_id(folder)
    if known >= int(text_settings(config).get("vocab_size", known + 1)):
        found.append(f"the tokenizer has the id {known}, which is outside of the model's vocabulary")
    return found


def _largest_id(folder: Path) -> int:
    """Returns the largest token id of the tokenizer; -1 if the form of its file is not known."""
    try:
        facts = parse_json((folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = facts["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        return max([*ids, *(token["id"] for token in facts["added_tokens"])], default=-1)
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _copy_adapter(source: Source, wish: Wish, folder: Path) -> None:
    adapter = source.policy.adapter
    assert adapter is not None, "checked before"
    for name in _ADAPTER:
        if not (adapter / name).is_file():
            raise DataError(f"{adapter} has no {name}.", remedy=f"copy {name} to {adapter}, or export another adapter")
        with storage(folder / name):
            shutil.copyfile(adapter / name, folder / name)
    try:
        config = dict(parse_json((folder / _ADAPTER[0]).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"{adapter / _ADAPTER[0]} is damaged: {error}.") from error
    write_json(folder / _ADAPTER[0], config | {"base_model_name_or_path": wish.base_model or source.policy.model})
    for file in _tokenizer_files(str(adapter)) or _tokenizer_files(source.policy.model):
        with storage(folder / file.name):
            shutil.copyfile(file, folder / file.name)


def _tokenizer_files(model: str) -> list[Path]:
    """Returns the tokenizer files of a model that are on this machine: in its folder, or in the hub's cache."""
    if Path(model).is_dir():
        return [file for name in _TOKENIZER if (file := Path(model) / name).is_file()]
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return []
    found = (try_to_load_from_cache(model, name) for name in _TOKENIZER)
    return [Path(file) for file in found if isinstance(file, str)]


def _write_model(source: Source, wish: Wish, folder: Path) -> None:
    check_on_hub(source.policy)
    written: PolicyVersion | None = registry().first(
        "write_model", PolicyVersion, policy=source.policy, folder=folder / "model", dtype=wish.precision
    )
    if written is None:
        raise ConfigError(
            f"No plugin writes {source.policy.adapter or source.policy.model} as a complete model.",
            remedy="pip install 'finqa[train]'; finqa plugins",
        )
    with storage(folder):
        for path in (folder / "model").iterdir():
            path.replace(folder / path.name)
        (folder / "model").rmdir()


def uploaded(folder: Path) -> list[Path]:
    """Returns the files of an export to upload: all except those that name folders of this machine."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name not in (MANIFEST, SETTINGS))


def _newest(path: Path, steps: Sequence[int]) -> int:
    """Returns the step of a finqa run's newest complete checkpoint, or the step that a tree's pointer file names."""
    if not _is_tree(path):
        newest = checkpoints.latest(path)
        assert newest is not None, "there are steps"
        return newest.iteration
    pointer = path / checkpoints.LATEST
    try:
        return int(pointer.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return steps[-1]
    except (OSError, ValueError) as error:
        raise DataError(f"{pointer} does not name a step: {error}.", remedy=f"--step {steps[-1]}") from error


def _named(reference: str) -> Source:
    path = Path(reference)
    if _STEP.fullmatch(path.name) or (path.name == _ACTOR and _STEP.fullmatch(path.resolve().parent.name)):
        step_folder = path.resolve() if path.name != _ACTOR else path.resolve().parent
        match = _STEP.fullmatch(step_folder.name)
        assert match is not None
        return Source(policy=_sharded(step_folder), name=step_folder.parent.name, step=int(match[1]), run=None)
    if path.is_dir() and any(path.glob("model_world_size_*_rank_*.pt")):
        return Source(policy=PolicyVersion(number=0, model=str(path)), name=path.resolve().name, step=None, run=None)
    policy, run = resolve(reference), run_of(reference)
    if run is None:
        if policy.adapter is None:  # an adapter's base model is needed only when the two are merged
            check_on_hub(policy)
        return Source(policy=policy, name=path.resolve().name, step=None, run=None)
    step = int(path.name[5:]) if path.parent.name == "checkpoints" and path.name[5:].isdigit() else None
    named = run.name if step is not None or path.resolve() == run else f"{run.name}_{path.resolve().name}"
    return Source(policy=policy, name=named, step=step, run=run)


def _sharded(folder: Path) -> PolicyVersion:
    actor = folder / _ACTOR
    if not actor.is_dir():
        raise ConfigError(f"{folder} is not a step of a verl trainer: it has no {_ACTOR} folder.")
    return PolicyVersion(number=0, model=str(actor))


def _is_tree(path: Path) -> bool:
    return not (path / "run.json").is_file() and bool(_steps(path))


def _steps(path: Path) -> list[Path]:
    return [folder for folder in path.glob("global_step_*") if folder.is_dir()] if path.is_dir() else []
