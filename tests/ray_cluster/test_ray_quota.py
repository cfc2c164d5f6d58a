"""Creates of one account by runs and workers on several nodes, counted by an actor, which may be lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.create_process import CreateWorker, check_rate
from ray_cluster.conftest import Account
from ray_cluster.nodes import Cluster

from finqa_cli.contracts import AccountQuota, SandboxContext
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Settings
from finqa_cli.types import ServerSpec
from finqa_cli.wiring.build import open_environment
from finqa_plugins.sandboxes._quota.shared_quota import open_quota
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_recipe import image_name
from finqa_plugins.sandboxes.daytona.gate import CreateGate
from finqa_testing.daytona.config import LoopbackConfig
from finqa_testing.daytona.loopback import LoopbackDaytona, LoopbackProcess

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")

TESTS = Path(__file__).parents[1]
LIMIT, WINDOW_S, EACH = 12, 20.0, 6
FEW, FEW_S = 3, 8.0
BACK_S = 60.0


@pytest.fixture
def quota(two_nodes: Cluster, tmp_path: Path) -> Iterator[AccountQuota]:
    account = f"test{tmp_path.name}"
    made = open_quota(SandboxContext(home=tmp_path, cluster=two_nodes.address), account, 2, 3.0)
    yield made
    import ray

    ray.kill(ray.get_actor(f"finqa-creates-{account}", namespace="finqa"))
    made.close()


async def test_two_runs_and_four_workers_on_two_nodes_keep_the_limit_of_their_account(
    two_nodes: Cluster, tmp_path: Path
) -> None:
    import ray

    async with LoopbackDaytona(LoopbackConfig(create_limit=0, create_window_s=WINDOW_S)) as loopback:
        environment = {**loopback.environment, "PYTHONPATH": str(TESTS)}
        command = [sys.executable, "-m", "fixtures.create_process", str(tmp_path / "home")]
        command += [str(EACH), str(LIMIT), str(WINDOW_S), two_nodes.address]
        runs = [
            await asyncio.create_subprocess_exec(
                *command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for _ in range(2)
        ]
        try:
            made = ray.remote(CreateWorker).options(
                num_cpus=1, scheduling_strategy="SPREAD", runtime_env={"env_vars": environment}
            )
            workers = [made.remote() for _ in range(4)]
            await asyncio.gather(*(worker.ready.remote() for worker in workers))
            for run in runs:
                assert run.stdout is not None and await run.stdout.readline() == b"ready\n"
            ended: list[Any] = await asyncio.gather(
                *(run.communicate(b"\n") for run in runs),
                *(
                    worker.create.remote(tmp_path / "elsewhere", EACH, LIMIT, WINDOW_S, two_nodes.address)
                    for worker in workers
                ),
            )
            assert {run.returncode for run in runs} == {0} and len(set(ended[2:])) == 2
            created = [sandbox["created"] for sandbox in await loopback.control.sandboxes()]
        finally:
            for run in runs:
                if run.returncode is None:
                    run.kill()
                    await run.wait()
            for worker in workers:
                ray.kill(worker)
    assert len(created) == 6 * EACH
    assert not (tmp_path / "home" / "accounts").exists() and not (tmp_path / "elsewhere" / "accounts").exists()
    check_rate(created, LIMIT, WINDOW_S)


def test_two_evaluations_with_two_workers_each_keep_the_limit_of_their_account(
    two_nodes: Cluster, account: Account, tmp_path: Path
) -> None:
    """As a user runs them; the cloud counts the creates, and would accept more."""
    settings = Settings.model_validate({"sandbox": {"name": "daytona"}, "data": {"home": tmp_path / "home"}})
    spec = open_environment(settings, NullReporter()).sandbox_spec()
    assert isinstance(spec, ServerSpec) and spec.snapshot
    images = {image_name(spec, DaytonaSandboxConfig()): spec.snapshot.path}
    config = LoopbackConfig(api_key=account.key, images=images, create_limit=0, create_window_s=FEW_S)
    with LoopbackProcess(config, port=account.port) as loopback:
        command = [sys.executable, "-m", "finqa_cli", "eval", "scripted", "--sandbox=daytona", "--sandboxes=4"]
        command += ["--limit=4", f"--set=cluster.address={two_nodes.address}", "--set=cluster.rollout_workers=2"]
        command += [f"--set=sandbox.options.create_limit={FEW}", f"--set=sandbox.options.create_window_s={FEW_S}"]
        environment = {**os.environ, **account.variables, "FINQA_HOME": str(tmp_path / "home")}
        runs = [
            subprocess.Popen(
                [*command, f"--run-dir={name}", "--json", "-q"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE
            )
            for name in ("one", "two")
        ]
        try:
            for run in runs:
                _, errors = run.communicate(timeout=BACK_S * 3)
                assert run.returncode == 0, errors.decode()[-3000:]
        finally:
            for run in runs:
                run.kill()
        stats = loopback.control.stats()
    assert stats["busiest_window"] == FEW < stats["sandboxes_ever"] <= 8 and stats["sandboxes"] == 0
    for name in ("one", "two"):
        ready = [facts for facts in read_jsonl(tmp_path / name / "events.jsonl") if facts["event"] == "sandbox_ready"]
        assert {facts["worker"] for facts in ready} == {0, 1}
        records = list(read_jsonl(tmp_path / name / "trajectories.jsonl"))
        assert [record["status"] for record in records] == ["completed"] * 4


async def test_after_its_actor_is_lost_nothing_is_granted_for_one_window(quota: AccountQuota) -> None:
    assert (await quota.take()).wait_s == 0.0
    actor: Any = quota._actor  # type: ignore[attr-defined]
    os.kill(await actor.__ray_call__.remote(lambda actor: os.getpid()), signal.SIGKILL)
    lost = time.monotonic()
    gate = CreateGate(lambda: quota)
    async with asyncio.timeout(BACK_S), gate.place():
        pass
    assert time.monotonic() - lost >= 3.0
    quota.pause(1.0, 1)
    assert (await quota.take()).wait_s > 1.0
