"""A taskset of verifiers 0.4 without tools, and what finqa refuses of such: tasks without an end, or in containers."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Peru": "Lima", "Kenya": "Nairobi"}


class CapitalsData(vf.TaskData):
    answer: str


class CapitalsTask(vf.Task[CapitalsData]):
    @vf.reward(weight=1.0)
    async def named(self, trace: vf.Trace) -> float:
        if self.data.answer == "fail":
            raise KeyError("capital")
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def brief(self, trace: vf.Trace) -> float:
        return 1 / (1 + len(trace.last_reply.split()))


class CapitalsConfig(vf.TasksetConfig):
    kind: str = ""


class CapitalsTaskset(vf.Taskset[CapitalsTask, CapitalsConfig]):
    def __init__(self, config: CapitalsConfig) -> None:
        super().__init__(config)
        self.INFINITE = config.kind == "endless"

    def load(self) -> Iterator[CapitalsTask]:
        for land, city in CAPITALS.items():
            data = CapitalsData(
                prompt=f"What is the capital of {land}?",
                answer="fail" if self.config.kind == "fail" else city,
                system_prompt="Answer with a city.",
                image="python:3.12" if self.config.kind == "container" else None,
            )
            yield CapitalsTask(data, self.config.task)


__all__ = ["CapitalsTaskset"]
