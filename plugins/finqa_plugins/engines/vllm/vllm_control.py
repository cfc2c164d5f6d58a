"""Calls of vLLM's development routes: weights in place, sleep and wake (vllm/entrypoints/serve/dev, rl/online)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.errors import ConfigError, EngineError
from finqa_plugins.engines._http.faults import ControlError
from finqa_plugins.engines._http.http_client import Client

SLEEP_LEVEL = "1"
"""Weights go to the memory of the machine and come back as they were; level 2 would drop them."""


class Control:
    """What a run does to a server beside asking for tokens."""

    def __init__(self, client: Client, *, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def check(self) -> None:
        """Proves that the routes are there.

        Raises:
            ConfigError: The server does not have them.
            EngineError: It does not answer.
        """
        try:
            await self._post("/resume")
        except ControlError as error:
            raise ConfigError(
                f"The server at {self._client.config.base_url} has no routes to sleep or to load weights: "
                f"{error.refusal.text} (HTTP {error.refusal.status})",
                remedy="start it with VLLM_SERVER_DEV_MODE=1 in its environment and with --enable-sleep-mode, or train "
                "adapters (--lora-rank 16) without model.sleep",
            ) from error

    async def sleep(self) -> None:
        """Frees the GPU once nothing is under way."""
        await self._post("/sleep", query={"level": SLEEP_LEVEL, "mode": "wait"})

    async def wake(self) -> None:
        """Takes the GPU again."""
        await self._post("/wake_up")

    async def load_weights(self, folder: str) -> None:
        """Replaces all weights by those of a model folder of the same architecture, and drops what they cached.

        Args:
            folder: Absolute path, or hub id.

        Raises:
            EngineError: The server refused; it may then have parts of both.
        """
        await self._post("/pause", query={"mode": "wait"})
        try:
            arguments = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
            await self._post("/collective_rpc", arguments)
            if not (await self._post("/reset_prefix_cache")).get("success"):
                raise EngineError("The vLLM server kept its prefix cache, which belongs to the weights before.")
        finally:
            await self._post("/resume")

    async def _post(
        self, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        return await self._client.post(path, body, timeout_s=self._timeout_s, query=query, root=True)
