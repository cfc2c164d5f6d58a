"""Checks of vLLM for `finqa doctor` and `finqa setup vllm`: interpreter, devices, and whether servers answer."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.extend import registry
from finqa_cli.processes import ask_program
from finqa_cli.types import Check, GenerateRequest, Sampling
from finqa_plugins.engines._http.config import find_key
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines.vllm import machine
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.diagnosis import last_words
from finqa_plugins.engines.vllm.machine import interpreter, remedy
from finqa_plugins.engines.vllm.vllm_command import server_rank
from finqa_plugins.engines.vllm.vllm_engine import VllmEngine

DEADLINE_S = 5.0
# Not an import of vllm: that takes 20 s.
_FIND = (
    "import importlib.metadata as m, importlib.util as u; "
    "names = m.packages_distributions().get('vllm', []); "
    "print(*(f'{n} {m.version(n)}' for n in names[:1]) if u.find_spec('vllm') else ())"
)


def checks(settings: Mapping[str, Any]) -> list[Check]:
    """Results of all checks, within a few seconds; `settings` are those of the hook `doctor_checks`."""
    try:
        config = VllmEngineConfig.model_validate(settings["engine"]["options"])
    except ValidationError:
        return []  # the check of the settings reports wrong options
    found = [_rank(int(settings["lora"]["rank"]))]
    if config.addresses:
        return [*found, *(_answer(config, address) for address in config.addresses)]
    return [*found, _interpreter(config, Path(settings["data"]["home"])), *_devices()]


def _rank(rank: int) -> Check:
    try:
        allowed = server_rank(rank)
    except ConfigError as error:
        return Check(name="vllm lora", status="fail", detail=error.message, remedy=error.remedy)
    detail = (
        f"adapters of rank {rank} fit --max-lora-rank {allowed}" if rank else "all weights are trained: no adapters"
    )
    return Check(name="vllm lora", status="ok", detail=detail)


def _interpreter(config: VllmEngineConfig, home: Path) -> Check:
    python, fix = str(interpreter(config, home)), remedy(config, home)
    try:
        command = [python, "-c", _FIND]
        ended = ask_program(command, timeout_s=4 * DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name="vllm", status="fail", detail=f"{python} cannot be asked: {error}", remedy=fix)
    if not (version := ended.stdout.strip()):
        return Check(name="vllm", status="fail", detail=f"vllm is not installed for {python}", remedy=fix)
    return Check(name="vllm", status="ok", detail=f"{version} for {python}")


def _devices() -> list[Check]:
    """A warning if there is no GPU; the placement of servers on GPUs is checked elsewhere."""
    if machine.has_gpu():
        return []
    detail = "no GPU: the servers run on the CPU, which needs a CPU build of vLLM and is meant for tests"
    return [Check(name="vllm devices", status="warn", detail=detail, remedy="--engine transformers")]


def _answer(config: VllmEngineConfig, address: str) -> Check:
    try:
        connection = config.connection(address).model_copy(update={"request_timeout_s": DEADLINE_S})
        names = asyncio.run(_names(Client(connection, find_key(connection), seed=0)))
    except FinqaError as error:
        return Check(name="vllm server", status="fail", detail=error.message, remedy=error.remedy)
    return Check(name="vllm server", status="ok", detail=f"{address} serves {', '.join(names) or 'no model'}")


async def _names(client: Client) -> list[str]:
    try:
        return [card.name for card in await client.listing() or ()]
    finally:
        await client.close()


IMPORT_S = 600.0
"""Seconds for one command: the first import compiles everything and reads it from disk."""

TOKENS = 8
_IMPORT = """
import importlib.metadata as m, json, vllm
names = {*m.packages_distributions().get("vllm", ()), "torch", "transformers"}
there = {one.metadata["Name"] for one in m.distributions()}
print(json.dumps({name: m.version(name) for name in sorted(names & there, key=lambda n: (n[:4] != "vllm", n))}))
"""
_NO_DEVICE = ("infer device type", "libcuda.so", "No CUDA", "no NVIDIA driver", "platform")


def check(python: Path, folder: Path, say: Callable[[str], None], start: bool) -> Mapping[str, str]:
    """Versions of vllm, torch and transformers; see `VenvSpec.check`.

    If there is a GPU or vllm is built for the CPU, `start` starts a server. Otherwise `--help` of the server is run.

    Raises:
        FinqaError: A step fails; the message has the program's output.
    """
    log = folder / "check.log"
    written = _run([str(python), "-I", "-c", _IMPORT], log, "vllm cannot be imported")
    versions: dict[str, str] = json.loads(written.splitlines()[-1])
    say("    imports " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    for_cpu = any("cpu" in f"{name} {version}" for name, version in versions.items() if name.startswith("vllm"))
    if start and (for_cpu or machine.has_gpu()):
        say("    starts a server once; this takes up to some minutes")
        began = time.monotonic()
        asyncio.run(_serve(python, folder))
        say(f"    the server started, sampled {TOKENS} tokens and ended, in {time.monotonic() - began:.0f} s")
        return versions
    try:
        _run([str(python), "-m", "vllm.entrypoints.openai.api_server", "--help"], log, "vllm's server cannot be run")
    except FinqaError as error:
        if machine.has_gpu() or not any(words in error.message for words in _NO_DEVICE):
            raise
        say(f"    its arguments cannot be read without a GPU: {error.message}")
    reason = "no GPU here" if start else "as asked"
    say(f"    no server was started ({reason}): finqa doctor --engine vllm, on the machine for the training")
    return versions


async def _serve(python: Path, folder: Path) -> None:
    """Starts a server of the embedded policy as training does, but with little memory, and samples from it."""
    policy = registry().hook.resolve_policy(reference="embedded")
    config = VllmEngineConfig(python=python, enforce_eager=True, max_num_seqs=8)
    context = EngineContext(
        model=policy.model, lora_rank=8, gpu_memory_utilization=0.3, max_context=256, log_dir=folder
    )
    engine = VllmEngine(config, context)
    try:
        await engine.start()
        sampling = Sampling(max_tokens=TOKENS, seed=0)
        completion = await engine.generate(GenerateRequest(key="setup", token_ids=(1, 2, 3, 4), sampling=sampling))
        if not completion.token_ids or len(completion.logprobs) != len(completion.token_ids):
            raise FinqaError("The server answered without tokens or without their log-probabilities.")
    except FinqaError as error:
        remedy = f"{error.remedy}; or finqa setup vllm --no-start, which skips this check"
        raise type(error)(error.message, remedy=remedy.removeprefix("; or ")) from error
    finally:
        await engine.close()


def _run(command: list[str], log: Path, what: str) -> str:
    """Runs a command and returns its standard output; all output is written to `log`.

    Raises:
        FinqaError: The command failed, wrote nothing, or did not end within `IMPORT_S`.
    """
    try:
        ended = ask_program(command, timeout_s=IMPORT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FinqaError(f"{what}: {error}.", remedy="finqa setup vllm --recreate") from error
    log.write_text(f"{ended.stdout}\n{ended.stderr}")
    if ended.returncode or not ended.stdout.strip():
        said = last_words(ended.stderr)
        raise FinqaError(f"{what}: {said} The complete output is in {log}.", remedy="finqa setup vllm --recreate")
    return ended.stdout
