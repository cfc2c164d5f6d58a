"""A running vLLM server, and engines on it."""

from __future__ import annotations

import contextlib
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import EngineContext
from finqa_cli.types import GenerateRequest, Sampling
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_engine import VllmEngine

KEY_VARIABLE = "TEST_VLLM_KEY"
KEY = "a-key-of-the-tests"
RANK = 8


@dataclass(frozen=True)
class Vllm:
    """A running server that several engines use, one after the other, by its URL."""

    url: str
    model: Path

    def engine(self, model: Path | None = None, *, rank: int = RANK, sleep: bool = False, **options: Any) -> VllmEngine:
        """An engine on it, not started."""
        config = VllmEngineConfig.model_validate(
            {"url": self.url, "seeded": True, "api_key_env": KEY_VARIABLE, **options}
        )
        context = EngineContext(model=str(model or self.model), lora_rank=rank, sleep=sleep, versions=2)
        return VllmEngine(config, context)


def ask(key: str, *, seed: int = 0, prompt: int = 40, tokens: int = 12, temperature: float = 1.0) -> GenerateRequest:
    """A request whose prompt follows from its seed."""
    source = random.Random(seed)
    ids = tuple(source.randrange(256) for _ in range(prompt))
    sampling = Sampling(max_tokens=tokens, seed=seed, temperature=temperature)
    return GenerateRequest(key=key, token_ids=ids, sampling=sampling)


def descendants(pid: int) -> list[int]:
    """A process and all that it started, directly or not; those nearest first."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    found, level = [], [pid]
    while level:
        found += level
        level = [child for child, parent in parents.items() if parent in level]
    return found


def traces(pids: list[int]) -> set[Path]:
    """What outlives processes that are killed: their folders of temporary files, and their shared memory by name."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
            found |= {one.removeprefix("TMPDIR=") for one in variables if one.startswith("TMPDIR=")}
            mapped = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
            found |= {one for one in mapped if one.startswith("/dev/shm/") and not one.endswith(" (deleted)")}
    return {Path(one) for one in found}


def untied(like: Path, folder: Path, *, seed: int) -> Path:
    """A model of the same shape whose output matrix is its own."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(like, folder)
    config = AutoConfig.from_pretrained(like, tie_word_embeddings=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder
