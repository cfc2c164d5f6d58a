"""One loopback CoreWeave for all tests of this folder, as new for each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import SecretStr

from finqa_cli.contracts import SandboxContext
from finqa_cli.types import PYTHON, ExecutionLimits, ExecutionRequest
from finqa_plugins.sandboxes.coreweave.config import CoreWeaveSandboxConfig
from finqa_plugins.sandboxes.coreweave.coreweave_provider import CoreWeaveSandboxProvider
from finqa_testing import Delay
from finqa_testing.coreweave.coreweave_loopback import CoreWeaveStats as Stats
from finqa_testing.coreweave.coreweave_loopback import LoopbackCoreWeave
from finqa_testing.coreweave.coreweave_service import CoreWeaveConfig, CoreWeaveFaults

RUN = {"finqa.run": "r"}
WANDB_KEY = "0123456789abcdef0123456789abcdef01234567"
VARIABLES = ("AVIATO_API_KEY", "WANDB_API_KEY", "WANDB_ENTITY_NAME", "WANDB_PROJECT_NAME", "WANDB_ENTITY", "NETRC")


class CoreWeaveBench:
    """Providers in front of the loopback."""

    def __init__(self, loopback: LoopbackCoreWeave, home: Path) -> None:
        self.loopback = loopback
        self.loopback_home = home
        self._made: list[CoreWeaveSandboxProvider] = []

    def provider(self, *, key: str | None = None, **options: object) -> CoreWeaveSandboxProvider:
        chosen = {**options, "api_key": SecretStr(key) if key else None}
        config = CoreWeaveSandboxConfig.model_validate(chosen)
        self._made.append(CoreWeaveSandboxProvider(config, SandboxContext(home=self.loopback_home)))
        return self._made[-1]

    async def configure(self, *, most_sandboxes: int = 2000, start_s: float = 0.0, **faults: float) -> None:
        config = CoreWeaveConfig(
            wandb_key=WANDB_KEY,
            most_sandboxes=most_sandboxes,
            page_size=2,
            start=Delay(median_s=start_s),
            faults=CoreWeaveFaults(**faults),
        )
        await self.loopback.control.configure(config)

    async def stats(self) -> Stats:
        return await self.loopback.control.stats()

    async def until_commands(self, number: int) -> None:
        """Waits until so many commands run in all sandboxes together."""
        for _ in range(3000):
            if sum(sandbox["commands"] for sandbox in (await self.stats())["sandboxes"]) == number:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"there were never {number} commands")

    async def close(self) -> None:
        for provider in self._made:
            await provider.close()


@pytest.fixture(scope="session")
def coreweave_process() -> Iterator[LoopbackCoreWeave]:
    with LoopbackCoreWeave(CoreWeaveConfig(wandb_key=WANDB_KEY)) as loopback:
        yield loopback


@pytest_asyncio.fixture
async def bench(
    coreweave_process: LoopbackCoreWeave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[CoreWeaveBench]:
    """Afterwards no sandbox may be left."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in coreweave_process.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    bench = CoreWeaveBench(coreweave_process, tmp_path)
    await bench.configure()
    yield bench
    await bench.configure()
    await bench.close()
    left = (await bench.stats())["sandboxes"]
    await coreweave_process.control.kill()
    assert not left


def python(source: str, *, problem: str = "", stdin: bytes = b"", wall_s: float = 20.0) -> ExecutionRequest:
    """A request with a limit on time that only a hang meets."""
    return ExecutionRequest(
        argv=(PYTHON, "-I", "-c", source),
        stdin=stdin,
        limits=ExecutionLimits(wall_s=wall_s, cpu_s=10.0),
        labels={"problem": problem} if problem else {},
    )


@contextlib.contextmanager
def nothing_said(capfd: pytest.CaptureFixture[str], *secrets: str) -> Iterator[None]:
    """No secret reaches what a user sees."""
    yield
    said = "".join(capfd.readouterr())
    assert not [secret for secret in secrets if secret in said]
