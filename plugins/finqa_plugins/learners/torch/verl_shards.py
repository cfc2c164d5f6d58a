"""Merges sharded FSDP checkpoints in the layout of verl's trainers.

A folder contains `model_world_size_W_rank_R.pt` of each of W processes, state dicts of DTensors (or, from one process,
of plain tensors), `fsdp_config.json`, and in `huggingface/` the model's configuration and tokenizer. Sources: verl's
`verl/model_merger/fsdp_model_merger.py` and `utils/checkpoint/fsdp_checkpoint_manager.py`. Files are read with
`weights_only`, so nothing in them is executed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, DataError

_RANK = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_REPLICAS = ("ddp", "dp", "dp_replicate", "replicate")
"""Names of the mesh dimension over which HSDP keeps full copies."""


def is_sharded(folder: Path) -> bool:
    """Whether the folder contains shards."""
    return folder.is_dir() and any(_RANK.fullmatch(path.name) for path in folder.iterdir())


def description_of(folder: Path) -> Path:
    """Folder of configuration and tokenizer: `huggingface/`, or in older checkpoints that of the shards.

    Raises:
        DataError: There is no configuration.
    """
    for place in (folder / "huggingface", folder):
        if (place / "config.json").is_file():
            return place
    raise DataError(
        f"{folder} contains shards of a model, but no huggingface/config.json that describes it.",
        remedy=f"copy config.json and the tokenizer of its base model into {folder / 'huggingface'}",
    )


def load_sharded(folder: Path) -> Any:
    """The complete model in float32 on the CPU.

    Raises:
        DataError: A shard is missing, damaged, of another model, or sharded in a way that cannot be merged.
        ConfigError: transformers cannot build a causal language model from the configuration.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    weights = gathered(folder)
    described = description_of(folder)
    try:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(described), dtype=torch.float32)
    except (ValueError, OSError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"No model can be built from {described / 'config.json'}: {reason}") from error
    own = model.state_dict()
    tied = set(model.all_tied_weights_keys) if model.config.tie_word_embeddings else set()
    for name in sorted(own.keys() | weights.keys()):
        there, wanted = weights.get(name), own.get(name)
        if there is None and name in tied:
            continue
        if there is None or wanted is None or there.shape != wanted.shape:
            shapes = [None if each is None else tuple(each.shape) for each in (there, wanted)]
            raise DataError(
                f"The shards of {folder} do not fit {described / 'config.json'}: {name} has shape {shapes[0]} in the "
                f"shards and {shapes[1]} in the model."
            )
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return model


def gathered(folder: Path) -> dict[str, Tensor]:
    """The tensors of all shards, merged, in float32.

    Raises:
        DataError: A shard is missing, damaged, or sharded in a way that cannot be merged.
    """
    shards = [_read(path) for path in _files(folder)]
    names = shards[0].keys()
    if any(shard.keys() != names for shard in shards):
        raise DataError(
            f"The shards of {folder} do not contain the same weights, so they do not belong to one checkpoint."
        )
    if adapted := next((name for name in names if ".lora_" in name), None):
        raise DataError(
            f"{folder} contains an adapter besides the model ({adapted}).",
            remedy=f"finqa export {folder / 'lora_adapter'} --to merged, where verl keeps it in PEFT's format",
        )
    return {name: _whole(folder, name, [shard.pop(name) for shard in shards]) for name in list(names)}


def _files(folder: Path) -> list[Path]:
    found = {(int(match[1]), int(match[2])) for path in folder.iterdir() if (match := _RANK.fullmatch(path.name))}
    sizes = {size for size, _ in found}
    recorded = _recorded_size(folder)
    if len(sizes) != 1 or (recorded is not None and recorded not in sizes):
        counts = ", ".join(map(str, sorted(sizes | ({recorded} if recorded else set()))))
        raise DataError(f"{folder} contains shards of several checkpoints: of {counts} processes.")
    (size,) = sizes
    if missing := sorted(set(range(size)) - {rank for _, rank in found}):
        raise DataError(
            f"{folder} lacks the shards of {len(missing)} of {size} processes, the first of them rank {missing[0]}.",
            remedy=f"copy model_world_size_{size}_rank_{missing[0]}.pt from the machine that wrote it",
        )
    return [folder / f"model_world_size_{size}_rank_{rank}.pt" for rank in range(size)]


def _recorded_size(folder: Path) -> int | None:
    try:
        return int(parse_json((folder / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # older checkpoints have none; the names of the files give it


def _read(path: Path) -> dict[str, Any]:
    import torch.distributed.tensor  # allows its own classes, and no others, in files of weights

    try:
        shard: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return dict(shard.items())
    except Exception as error:  # torch raises many kinds for damaged and for foreign files
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"The shard {path} cannot be read: {reason}") from error


def _whole(folder: Path, name: str, pieces: Sequence[Any]) -> Tensor:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not all(isinstance(piece, DTensor) for piece in pieces):
        if len(pieces) == 1 and isinstance(pieces[0], Tensor):
            return pieces[0].float()
        raise DataError(f"{name} in {folder} is not a sharded tensor (DTensor), so its shards cannot be merged.")
    first: DTensor = pieces[0]
    names: tuple[str, ...] = first.device_mesh.mesh_dim_names or ()
    mesh, placement = first.device_mesh.mesh, first.placements[-1]
    copies = mesh.ndim == 2 and bool(names) and names[0] in _REPLICAS
    if mesh.ndim != 1 and not copies:
        raise DataError(
            f"{name} in {folder} is cut over a mesh {names or tuple(mesh.shape)}; FSDP and HSDP can be read."
        )
    ranks = (mesh[0] if copies else mesh).tolist()
    local: list[Tensor] = [pieces[rank].to_local().float() for rank in ranks]
    if isinstance(placement, Replicate):
        whole = local[0]
    elif isinstance(placement, Shard):
        whole = torch.cat(local, dim=placement.dim)
    else:
        raise DataError(f"{name} in {folder} is placed as {placement}, which cannot be merged.")
    if whole.shape != first.shape:
        raise DataError(f"The pieces of {name} in {folder} make {tuple(whole.shape)} and not {tuple(first.shape)}.")
    return whole.contiguous()
