"""`finqa export --to peft|merged|gguf-ready`: a policy in the form that other tools read."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.extend import registry
from finqa_cli.publishing.export_sources import Source
from finqa_cli.publishing.model_card import Card, Relation, is_hub_id
from finqa_cli.runs.durable_files import new_folder, storage, write_json, write_text
from finqa_cli.runs.run_folder import MANIFEST, policy_inputs, write_manifest
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.policies import check_on_hub

Form = Literal["peft", "merged", "gguf-ready"]
Dtype = Literal["float32", "bfloat16", "float16"]

CONVERTER = "convert_hf_to_gguf.py"
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_OUT_TYPES = {"bfloat16": "bf16", "float16": "f16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to make of a policy.

    Attributes:
        form: peft: the adapter alone; merged: one whole model; gguf-ready: one that llama.cpp's converter takes.
        dtype: Of a whole model's weights; None is float32, for gguf-ready bfloat16.
        base_model: What the base is called on the hub; empty keeps the name that the policy has.
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
        """How what is made relates to its base."""
        return "adapter" if self.form == "peft" else "finetune"


def check_wish(source: Source, wish: Wish) -> None:
    """Looks whether a policy can be had in a form, before anything is written.

    Raises:
        UsageError: An adapter is asked for in a precision, or llama.cpp's converter is to get float32.
        ConfigError: The adapter of a policy that has none is asked for.
    """
    if wish.form == "peft" and source.policy.adapter is None:
        raise ConfigError(
            f"{source.title} is a whole model and no adapter, so there is nothing to write in PEFT's format.",
            remedy="--to merged",
        )
    if wish.form == "peft" and wish.dtype is not None:
        raise UsageError("Adapters are written as they were trained; --dtype is of whole models.", remedy="--to merged")
    if wish.form == "gguf-ready" and wish.precision not in _OUT_TYPES:
        raise UsageError("gguf-ready is of half precision.", remedy="--dtype bfloat16 or --dtype float16")


def local_base(source: Source, wish: Wish) -> str:
    """What to mind about an adapter whose base others cannot have by its name; empty where they can."""
    if wish.form != "peft" or is_hub_id(wish.base_model or source.policy.model):
        return ""
    return (
        f"The base of this adapter is {source.policy.model}, a folder of this machine: name it as the hub does with "
        "--base-model, or use --to merged."
    )


def export_weights(source: Source, wish: Wish, out: Path, card: Card) -> list[Path]:
    """Writes weights, README.md (the model card) and manifest.json into a new folder, complete or absent.

    Returns:
        Its files.

    Raises:
        UsageError, ConfigError: As `check_wish`; or parts are damaged, do not fit, or leave the range of the precision.
        DataError: Shards are missing, or a checkpoint's files went meanwhile.
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
        if wish.form == "gguf-ready":
            prepare_for_llama_cpp(folder)
        write_text(folder / "README.md", card.text())
        outputs = sorted(path for path in folder.iterdir() if path.is_file())
        parameters = {"form": wish.form, "dtype": wish.precision, "base_model": wish.base_model, "step": source.step}
        write_manifest(folder, "export", parameters=parameters, inputs=policy_inputs(source.policy), outputs=outputs)
    return sorted(path for path in out.iterdir() if path.is_file())


def gguf_command(out: Path, precision: Dtype) -> str:
    """What makes the GGUF file of a folder that is ready for it."""
    return f"python {CONVERTER} {out} --outfile {out}.gguf --outtype {_OUT_TYPES[precision]}"


def prepare_for_llama_cpp(folder: Path) -> None:
    """Says the two values of config.json that converters older than transformers 5 look for under their old names, and
    looks whether everything is there that llama.cpp's converter reads.

    Raises:
        ConfigError: Something is missing or of another form.
    """
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
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
    if known >= int(config.get("vocab_size", known + 1)):
        found.append(f"the tokenizer knows the id {known}, and the model ends before it")
    return found


def _largest_id(folder: Path) -> int:
    """-1 where the tokenizer is in a form of its own."""
    try:
        facts = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
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
            raise DataError(f"{adapter} has no {name}.", remedy="export another checkpoint: --step N")
        with storage(folder / name):
            shutil.copyfile(adapter / name, folder / name)
    try:
        config = dict(json.loads((folder / _ADAPTER[0]).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"{adapter / _ADAPTER[0]} is damaged: {error}.") from error
    write_json(folder / _ADAPTER[0], config | {"base_model_name_or_path": wish.base_model or source.policy.model})


def _write_model(source: Source, wish: Wish, folder: Path) -> None:
    check_on_hub(source.policy)
    written: PolicyVersion | None = registry().hook.write_model(
        policy=source.policy, folder=folder / "model", dtype=wish.precision
    )
    if written is None:
        raise ConfigError(
            f"No plugin writes {source.policy.adapter or source.policy.model} as a whole model.",
            remedy="pip install 'finqa[train]'; finqa plugins",
        )
    with storage(folder):
        for path in (folder / "model").iterdir():
            path.replace(folder / path.name)
        (folder / "model").rmdir()


def uploaded(folder: Path) -> list[Path]:
    """The files of an export that are for others; the manifest names folders of this machine."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
