"""Environment, codec and learner that only take time, as a plugin for `finqa train` in its own process.

Tokens come from real servers and versions are real adapters; the learner can kill a process just before a weight sync.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.async_training.simulation import SimulatedCodec, SimulatedEnvironment, SimulatedLearner
from finqa_cli.contracts import CodecContext, EnvironmentContext, LearnerContext
from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import PolicyVersion, Task

NAME = "simulated"
LAYER, SIZE, RANK = "model.layers.0.self_attn.q_proj", 8, 4
VOCABULARY = 64
PATIENCE_S = 60.0


class NoOptions(BaseModel):
    """There are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LearnerConfig(NoOptions):
    """Options of the learner."""

    kill_pid: int = Field(default=0, ge=0, description="Process that is killed when a version is published; 0: none")
    kill_at: int = Field(default=0, ge=0, description="Number of that version")
    back_port: int = Field(default=0, ge=0, description="Port that must answer again before the version after it")


class PluggedEnvironment(SimulatedEnvironment):
    """Constructed as the registry does it."""

    def __init__(self, config: NoOptions | None, context: EnvironmentContext) -> None:
        super().__init__()

    def tasks(self, split: str) -> Sequence[Task]:
        """All are for training."""
        return super().tasks(split) if split == "train" else ()


class PluggedCodec(SimulatedCodec):
    """Constructed as the registry does it."""

    def __init__(self, config: NoOptions | None, context: CodecContext) -> None:
        super().__init__()


class PluggedLearner(SimulatedLearner):
    """Publishes an adapter of random weights for each version."""

    def __init__(self, config: LearnerConfig | None, context: LearnerContext) -> None:
        super().__init__(update_s=0.05)
        self._config, self._model = config or LearnerConfig(), context.model

    def publish(self, folder: Path, number: int) -> PolicyVersion:
        """Writes the adapter; the next thing that the run does is to have the engine load it."""
        write_adapter(folder, seed=number)
        if number and number == self._config.kill_at and folder.parent.name == "policies":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._config.kill_pid, signal.SIGKILL)
        if self._config.back_port and number == self._config.kill_at + 1:
            _wait_for(self._config.back_port)
        return PolicyVersion(number=number, model=self._model, adapter=folder)


def _wait_for(port: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.05)


@hookimpl
def register_components() -> list[Component]:
    """Everything but the engine."""
    kinds = {
        "environment": ("PluggedEnvironment", "NoOptions"),
        "codec": ("PluggedCodec", "NoOptions"),
        "learner": ("PluggedLearner", "LearnerConfig"),
    }
    return [
        Component(
            kind=kind,  # type: ignore[arg-type]
            name=NAME,
            target=f"{__name__}:{target}",
            config=f"{__name__}:{config}",
            summary="Only takes time; for benchmarks",
            **({"snapshotless": True} if kind == "environment" else {}),
        )
        for kind, (target, config) in kinds.items()
    ]


def write_model(folder: Path) -> Path:
    """A model folder with one layer, which nothing computes with."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": VOCABULARY}))
    _write_tensors(folder / "model.safetensors", {f"{LAYER}.weight": (SIZE, SIZE)}, seed=0)
    return folder


def write_adapter(folder: Path, *, seed: int) -> None:
    """A LoRA adapter for `write_model`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "base_model_name_or_path": "base"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = f"base_model.model.{LAYER}"
    shapes = {f"{name}.lora_A.weight": (RANK, SIZE), f"{name}.lora_B.weight": (SIZE, RANK)}
    _write_tensors(folder / "adapter_model.safetensors", shapes, seed=seed)


def _write_tensors(path: Path, shapes: dict[str, tuple[int, int]], *, seed: int) -> None:
    """A safetensors file of float32 tensors drawn from the seed."""
    draw, header, data = random.Random(seed), {}, b""
    for name, (rows, columns) in shapes.items():
        begin = len(data)
        data += array("f", [draw.uniform(-1, 1) for _ in range(rows * columns)]).tobytes()
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
