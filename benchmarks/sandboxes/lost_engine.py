"""`finqa train` on two engine servers in processes of their own, one of which is killed just before a weight sync."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, at_least, exactly
from benchmarks.sandboxes import training_plugin
from benchmarks.sandboxes.plugin import install
from benchmarks.sandboxes.token_server import ServerProcess
from finqa_cli.runs.jsonl import read_jsonl

KILLED_AT = 2
"""The iteration before whose sync a server dies."""

ITERATIONS, EPISODES = 6, 32
KILLED = "engine server killed before a sync: exit status"
TIMEOUT_S = 180.0
FINQA = (sys.executable, "-m", "finqa_cli")


async def lost_engine(home: Path) -> list[Figure]:
    """The run's exit status, what it lost, and which versions the server served that was killed and came back."""
    model = training_plugin.write_model(home / "served-model")
    replies = home / "served-replies.json"
    replies.write_text(json.dumps([[9] * 15 + [1]]))
    servers = [ServerProcess(model, seconds=0.02, replies=replies) for _ in range(2)]
    for server in servers:
        server.start()
    try:
        run = home / "lost-engine"
        status, log = await _train(run, model, servers)
        if status:
            return [exactly(KILLED, status, 0, log[-300:].replace("\n", " "))]
        back = {version_of(path) for path in servers[1].facts()["paths"].values()}
        served = sum(servers[1].facts()["served"].values())
    finally:
        for server in servers:
            server.kill()
    return _figures(run, back, served)


def version_of(adapter: str) -> int:
    """The number of a published policy's folder, `.../policies/v00002`; -1 for other adapters."""
    name = Path(adapter).name
    return int(name[1:]) if name[:1] == "v" and name[1:].isdigit() else -1


async def _train(run: Path, model: Path, servers: list[ServerProcess]) -> tuple[int, str]:
    """Exit status and output of the command; the second server is killed on the way and started again."""
    victim = servers[1]
    options = {
        **{f"{part}.name": training_plugin.NAME for part in ("environment", "codec", "learner")},
        "engine.options.base_urls": json.dumps([server.url for server in servers]),
        "engine.options.probe_tolerance": "1000",  # the servers compute nothing
        "engine.options.max_retries": "1",
        "engine.options.backoff_s": "0.1",
        "generation.engine_replicas": "2",
        "train.max_staleness": "0",
        "train.group_size": "4",
        "train.target_groups_per_iter": "0",
        "train.max_rollout_rounds": "1",
        "pool.sandboxes": str(EPISODES),
        "learner.options.kill_pid": str(victim.pid),
        "learner.options.kill_at": str(KILLED_AT),
        "learner.options.back_port": str(victim.port),
    }
    flags = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    command = ("train", "--model", str(model), "--engine", "openai", "--iterations", str(ITERATIONS))
    process = await asyncio.create_subprocess_exec(
        *FINQA, *command, *flags, "--run-dir", str(run), "--quiet",
        env=_environment(run.parent), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    ending = asyncio.create_task(process.communicate())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not ending.done() and "engine_left_out" not in events(run):  # noqa: ASYNC110  a file has no event
                await asyncio.sleep(0.05)
            victim.kill()  # it is dead already; this collects it
            if not ending.done():
                victim.start()
            output, _ = await ending
    finally:
        if process.returncode is None:
            process.kill()
            await ending
    assert process.returncode is not None, "it was waited for"
    return process.returncode, output.decode(errors="replace")


def _environment(home: Path) -> Mapping[str, str]:
    folders = [*install(home / "site", training_plugin.__name__), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "FINQA_HOME": str(home), "PYTHONPATH": os.pathsep.join(folders)}


def events(run: Path) -> dict[str, dict[str, Any]]:
    """The last event of each name."""
    path = run / "events.jsonl"
    return {record["event"]: record for record in read_jsonl(path)} if path.exists() else {}


def _figures(run: Path, back: set[int], served: int) -> list[Figure]:
    episodes = list(read_jsonl(run / "trajectories.jsonl"))
    turns = [(episode["iteration"], turn["policy_version"]) for episode in episodes for turn in episode["turns"]]
    wrong = sum(version != iteration - 1 for iteration, version in turns)
    lost = sum(episode["reward"] is None for episode in episodes)
    found = {"engine_left_out", "engine_back"} & set(events(run))
    return [
        exactly(KILLED, 0, 0, f"finqa train, {ITERATIONS} iterations on two servers"),
        exactly("episodes lost, and with them their groups", lost, 0, f"of {len(episodes)}"),
        exactly("episodes that were not played", ITERATIONS * EPISODES - len(episodes), 0),
        exactly("events: left out, back", len(found), 2),
        exactly("turns under another version than the current one", wrong, 0, f"of {len(turns)}"),
        at_least("completions of the server that came back", served, 1, f"under versions {sorted(back - {-1})}"),
        exactly("versions of before its death that it was given", sum(0 <= one < KILLED_AT for one in back), 0),
    ]
