"""The simulated engine as a plugin, for commands that run in processes of their own; it can fail on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.sandboxes.engine import SimulatedEngine
from benchmarks.scale.engine_latency import LatencyModel
from finqa_cli.contracts import EngineContext
from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import AssistantTurn, ChatRequest

NAME = "simulated"
ROOT = Path(__file__).parents[2]


class PluggedConfig(BaseModel):
    """Options of the engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_s: float = Field(default=0.002, gt=0, description="Seconds of a decode step with a single request.")
    fails_after: int = Field(default=0, ge=0, description="Turns after which it raises; 0 means never.")


class PluggedEngine(SimulatedEngine):
    """Constructed as the registry does it."""

    def __init__(self, config: PluggedConfig | None, context: EngineContext) -> None:
        self._config = config or PluggedConfig()
        super().__init__(LatencyModel(step_s=self._config.step_s))

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """As the simulated engine, until it fails in a way that is not expected of an engine."""
        turn = await super().respond(request)
        if self._config.fails_after and self.turns > self._config.fails_after:
            raise ZeroDivisionError("a bug in a plugin, on purpose")
        return turn


@hookimpl
def register_components() -> list[Component]:
    """The `simulated` engine."""
    return [
        Component(
            kind="engine",
            modelless=True,
            name=NAME,
            target=f"{__name__}:PluggedEngine",
            config=f"{__name__}:PluggedConfig",
            summary="Plays as the scripted expert would on GPUs; for benchmarks",
        )
    ]


def install(site: Path, plugin: str = __name__) -> Sequence[str]:
    """Makes a plugin known, as pip would, to processes that have these folders on their PYTHONPATH."""
    metadata = site / "finqa_benchmark-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: finqa-benchmark\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[finqa]\nbenchmark = {plugin}\n")
    return (str(site), str(ROOT))
