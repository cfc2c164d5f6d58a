"""A taskset of verifiers 0.4 with a tool: a sum is computed by calls, and said in words."""

from __future__ import annotations

import verifiers.v1 as vf


class SumsData(vf.TaskData):
    answer: str


class SumsToolset(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "sums"

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Add two integers."""
        if a < 0:
            raise ValueError("a is negative")
        return str(a + b)


class SumsTask(vf.Task[SumsData]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [SumsToolset(vf.ToolsetConfig())]

    @vf.reward(weight=1.0)
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.rstrip(".").split(" ")[-1] == self.data.answer)

    @vf.reward(weight=0.25)
    async def called(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class SumsConfig(vf.TasksetConfig):
    size: int = 4


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self) -> list[SumsTask]:
        return [
            SumsTask(SumsData(prompt=f"What is {n} + {2 * n}?", answer=str(3 * n)), self.config.task)
            for n in range(1, self.config.size + 1)
        ]


__all__ = ["SumsTaskset"]

if __name__ == "__main__":
    SumsToolset.run()
