"""Calls of vLLM's development routes: weights in place, sleep and wake (vllm/entrypoints/serve/dev, rl/online).

Also checks a model folder before a server loads its weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.placement.known_models import text_settings
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.refusals import ControlError
from finqa_plugins.engines.vllm.vllm_command import model_path

SLEEP_LEVEL = "1"
"""Weights are moved to main memory and back; level 2 would drop them."""


class Control:
    """Control calls of a run to a server; each raises EngineError if the server refuses or does not answer."""

    def __init__(self, client: Client, *, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def check(self) -> None:
        """Proves that the server has these routes.

        Raises:
            ConfigError: The server does not have them.
            EngineError: The server does not answer.
        """
        try:
            await self._post("/resume")
        except ControlError as error:
            raise ConfigError(
                f"The server at {self._client.config.base_url} has no endpoints to sleep or to load weights: "
                f"{error.refusal.text} (HTTP {error.refusal.status})",
                remedy="start it with VLLM_SERVER_DEV_MODE=1 in its environment and with --enable-sleep-mode, or train "
                "adapters (--lora-rank 16) without model.sleep",
            ) from error

    async def sleep(self) -> None:
        """Frees the GPU once no request is in progress."""
        await self._post("/sleep", query={"level": SLEEP_LEVEL, "mode": "wait"})

    async def wake(self) -> None:
        """Moves the weights back to the GPU."""
        await self._post("/wake_up")

    async def load_weights(self, folder: str) -> None:
        """Replaces all weights by those of a model folder of the same architecture, and drops the cached prefixes.

        Args:
            folder: Absolute path, or hub id.

        Raises:
            EngineError: The server failed; it may then have a mixture of old and new weights.
        """
        await self._post("/pause", query={"mode": "wait"})
        try:
            arguments = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
            await self._post("/collective_rpc", arguments)
            if not (await self._post("/reset_prefix_cache")).get("success"):
                raise EngineError("The vLLM server kept the prefix cache of the previous weights.")
        finally:
            await self._post("/resume")

    async def _post(
        self, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        return await self._client.post(path, body, timeout_s=self._timeout_s, query=query, root=True)


class Weights:
    """The weights that a server has, for runs that train all weights.

    Attributes:
        folder: Folder or hub id that they were loaded from.
    """

    def __init__(self, control: Control, model: str, *, gpu: bool) -> None:
        self._control = control
        self._gpu = gpu
        self.folder = model_path(model)

    async def replace(self, folder: str) -> None:
        """Loads the weights of another folder in place; no request may be in progress.

        Raises:
            EngineError: The folder is incomplete, or the server cannot load it; the server keeps the old weights.
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
    """Checks that a model folder is complete: vLLM would report it only after half a minute.

    Raises:
        ConfigError: The folder is incomplete.
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
            remedy="--model with a folder written by save_pretrained, or with a hub id",
        )


def check_replaceable(model: str, *, gpu: bool) -> None:
    """Checks that a server can load other weights in place.

    Without a GPU vLLM keeps a packed copy of the output matrix. If that matrix is tied to the embeddings, the copy is
    not updated (seen in 0.32): the server would continue with parts of both versions and report nothing.

    Raises:
        ConfigError: The server cannot.
    """
    if gpu:
        return
    try:
        config = parse_json((Path(model) / "config.json").read_text(encoding="utf-8"))
        tied = config.get("tie_word_embeddings", text_settings(config).get("tie_word_embeddings"))
    except (OSError, ValueError, AttributeError):
        return
    if tied:
        raise ConfigError(
            f"vLLM without a GPU cannot take new weights for {model}: its embeddings are tied, and "
            "the output matrix would not be updated.",
            remedy="--lora-rank 16 to train an adapter, or --engine transformers",
        )
