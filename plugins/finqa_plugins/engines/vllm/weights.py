"""Model folders: whether one is complete, and a server's weights replaced by those of another."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from finqa_cli.errors import ConfigError, EngineError
from finqa_plugins.engines.vllm.vllm_command import model_path
from finqa_plugins.engines.vllm.vllm_control import Control


class Weights:
    """Which weights a server has, where a run trains all of them.

    Attributes:
        folder: What they were loaded from.
    """

    def __init__(self, control: Control, model: str, *, gpu: bool) -> None:
        self._control = control
        self._gpu = gpu
        self.folder = model_path(model)

    async def replace(self, folder: str) -> None:
        """Loads the weights of another folder in place; no request may be under way.

        Raises:
            EngineError: The folder is incomplete, or the server cannot take it; it has the old weights.
        """
        try:
            await asyncio.to_thread(check_folder, folder)
            await asyncio.to_thread(check_replaceable, folder, gpu=self._gpu)
        except ConfigError as error:
            raise EngineError(error.message) from error
        try:
            await self._control.load_weights(folder)
        except EngineError as error:
            await self._control.load_weights(self.folder)  # what failed may have left parts of both
            raise EngineError(f"The server cannot load the weights in {folder}: {error.message}") from error
        self.folder = folder


def check_folder(model: str) -> None:
    """Looks whether a model folder is complete: vLLM would say so after half a minute only.

    Raises:
        ConfigError: It is not.
    """
    folder = Path(model)
    if not folder.is_dir():
        return  # a hub id
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        missing.append("model.safetensors")
    if missing:
        raise ConfigError(
            f"The model folder {folder} is incomplete: it has no {', '.join(missing)}.",
            remedy="--model with a folder as save_pretrained writes it, or with a hub id",
        )


def check_replaceable(model: str, *, gpu: bool) -> None:
    """Looks whether a server can take other weights in place.

    Without a GPU vLLM keeps a packed copy of the output matrix, and of one that is tied to the embeddings it keeps the
    old (seen in 0.32): it would go on with parts of both versions and say nothing.

    Raises:
        ConfigError: It cannot.
    """
    if gpu:
        return
    try:
        tied = json.loads((Path(model) / "config.json").read_text(encoding="utf-8")).get("tie_word_embeddings")
    except (OSError, ValueError, AttributeError):
        return
    if tied:
        raise ConfigError(
            f"vLLM without a GPU cannot take new weights for {model}: its embeddings are tied, and the output matrix "
            "would stay as it was.",
            remedy="--lora-rank 16 to train an adapter, or --engine transformers",
        )
