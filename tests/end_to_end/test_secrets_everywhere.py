"""No secret reaches what finqa writes, prints, logs or passes on: 30 secrets, each looked for in 12 sinks.

The commands are real, in processes of their own. A marker that is no secret goes the same ways and must be found in
every sink, so a sink that was not collected fails the test.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fixtures.openai_server import Fault, error_body, openai_server
from fixtures.secret_canaries import (
    CANARIES,
    CARRIED,
    CRASH,
    REFUSED,
    ROOT,
    Commands,
    Done,
    content,
    core,
    forms,
    install_plugin,
)
from fixtures.warm_commands import ForkServer, warm_commands

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.types import Snapshot
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.sandboxes.local.server_process import ServerProcess

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.thorough,
]  # some 50 seconds of the processor, on machines that others use too

MARKER = "plainmarker"
SINKS = (
    "settings.json",
    "manifest.json",
    "config show",
    "errors",
    "crash output",
    "logs and events",
    "metrics and trackers",
    "process arguments",
    "environments of started programs",
    "FINQA_HOME and temporary files",
    "records, reports, exports and comparisons",
    "standard output, doctor and plugins",
)
LOGS = {"FINQA_LOG_LEVEL": "debug", "FINQA_LOG_FORMAT": "json"}


@dataclass
class Bench:
    """Folders of one run of the matrix."""

    folder: Path
    home: Path
    temporary: Path
    site: Path

    def commands(self, name: str, *carried: str, **variables: str) -> Commands:
        """Commands in a folder of their own.

        Args:
            name: The folder.
            carried: Places of the secrets in files and of those that set settings; variables of services always count.
            variables: Further variables.
        """
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("FINQA_")},
            "PYTHONPATH": os.pathsep.join(map(str, (self.site, ROOT, ROOT / "plugins"))),
            "FINQA_HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "NO_PROXY": "127.0.0.1",
        }
        for canary in CARRIED:
            own = canary.files or any(key.startswith("FINQA_") for key in canary.variables)
            if own and canary.place not in carried:
                continue
            environment |= canary.variables
            for file, text in canary.files.items():
                (folder / file).write_text(text)
        return Commands(folder, environment | variables)


@pytest.fixture
def bench(tmp_path: Path, finqa_home: Path) -> Bench:
    """Folders with the marker in their names."""
    made = Bench(*(tmp_path / name for name in ("work", f"home-{MARKER}", f"tmp-{MARKER}", "site")))
    made.folder.mkdir()
    made.temporary.mkdir()
    if (finqa_home / "snapshots").is_dir():  # the embedded data is compiled once for all tests
        shutil.copytree(finqa_home / "snapshots", made.home / "snapshots")
    install_plugin(made.site)
    return made


DRY_RUN = ("train", "--dry-run", "--engine=scripted")
TRAINING = ("train", "--quick-test", "--batch-size=2", "--no-preflight")


def collect(bench: Bench, training: Sequence[str]) -> dict[str, bytes]:
    """Run the commands that carry secrets, and return all that they left, by sink."""
    own = bench.commands("own", ".env AVIATO_API_KEY", **LOGS)
    named = ("--sandbox", "local", "--project", MARKER, "--tracker", "leaky", "--tracker", "tensorboard")
    few = ("--iterations=1", "--limit=2", "--sandboxes=2")
    trained = own.run(*training, *few, "--run-dir", f"run-{MARKER}", *named)
    evaluated = own.run("eval", "scripted", "--limit=2", "--run-dir", "expert", "--sandbox", "local", "--json")
    played = own.run("play", "--engine=scripted", "--seed=3", "--sandbox=local")
    again = own.run("eval", "scripted", "--limit=2", "--run-dir=again", "--sandbox=local", "--quiet")
    exported = [own.run("export", "expert", "--to", form, "--out", form) for form in ("openai-jsonl", "inspect")]
    compared = own.run("compare", "one=expert", "two=again", "--out", "compared", "--no-plots")
    succeeded(trained, evaluated, played, again, *exported, compared)

    served, failures = use_services(bench)
    keyed = bench.commands("keyed", "finqa.toml engine.options.api_key")
    cloud = bench.commands("cloud", "environment FINQA_SANDBOX__OPTIONS__API_KEY", ".env AVIATO_API_KEY")
    project = ("--set", f"run.project={MARKER}")
    shown = [
        cloud.run("config", "show", "--origin", "--sandbox=daytona", *project),
        cloud.run("config", "show", "--json", "--origin", "--sandbox=daytona", *project),
        keyed.run("config", "show", "--json", "--origin", "--engine=openai", *project),
    ]
    succeeded(*shown)
    looked = [
        cloud.run("doctor", "--json", "--sandbox=daytona"),
        cloud.run("plugins", "--json"),
        cloud.run("plugins", "show", "leaky"),
    ]
    failures += [
        cloud.run("data", "fetch", "rllm"),
        cloud.run("train", f"--set=train.iterations={MARKER}"),
        cloud.run("train", f"--set=environment.options.token_env={MARKER}-1", "--json"),
    ]
    crashes = [own.run(*words, "play", program=("-c", CRASH)) for words in ((), ("--debug",))]
    for failure in (*failures, *crashes):
        assert failure.status not in (0, None), failure.err
    assert b"Traceback" in crashes[1].err and b"Traceback" not in crashes[0].err
    started = (bench.site / "started").read_bytes()
    assert b"reaper" in started  # servers of sandboxes
    works = (bench.folder,)
    everything = (own, served, keyed, cloud)
    records = ("trajectories.jsonl", "report.*", "*.csv", "run.json", "metrics.json", "openai-jsonl/*", "inspect/*")
    return {
        "settings.json": content(*works, names=["settings.json"]),
        "manifest.json": content(*works, names=["manifest.json"]),
        "config show": texts(*shown),
        "errors": texts(*failures),
        "crash output": texts(*crashes),
        "logs and events": texts(trained, out=False) + evaluated.err + content(*works, names=["events.jsonl"]),
        "metrics and trackers": content(*works, names=["metrics.jsonl", "leaky.json", "*.tfevents.*"]),
        "process arguments": b"\n".join(each for commands in everything for each in commands.command_lines),
        "environments of started programs": b"\n".join(
            (*(each for commands in everything for each in commands.environments), started)
        ),
        "FINQA_HOME and temporary files": content(bench.home, bench.temporary),
        "records, reports, exports and comparisons": texts(*exported, compared) + content(*works, names=records),
        "standard output, doctor and plugins": texts(trained, evaluated, played, *looked),
    }


def use_services(bench: Bench) -> tuple[Commands, list[Done]]:
    """Play on servers that need a secret, that repeat it in errors, and behind a proxy that does not answer."""
    commands = bench.commands("served")
    snapshot = LocalSnapshots(bench.home).get("openenv-finqa")
    token, key = core("environment SERVER_TOKEN"), core("environment SERVER_KEY")
    with environment_server(bench.folder / "server.log", snapshot, token) as url, openai_server(key=key) as engine:
        at = ("--set", f"environment.options.url={url}", "--engine=scripted")
        played = commands.run("play", *at, "--set", "environment.options.token_env=SERVER_TOKEN")
        without_token = commands.run("play", *at)
        openai = ("--engine=openai", "--model=analyst", "--sandbox=local", "--set", "engine.options.max_retries=0")
        named = ("--set", f"engine.options.base_url={engine.url}", "--set", "engine.options.api_key_env=SERVER_KEY")
        answered = commands.run("play", *openai, *named)
        repeated = (
            f"{MARKER}: {key} is wrong, {commands.environment['HF_TOKEN']}, {commands.environment['DATABASE_URL']}"
        )
        engine.faults = [Fault(times=9, status=401, body=error_body(repeated))]
        refused = commands.run("play", *openai, *named)
        proxied = commands.run("play", *openai, "--set", "engine.options.base_url=http://host.invalid/v1")
    succeeded(played, answered)
    return commands, [without_token, refused, proxied]


@contextmanager
def environment_server(log: Path, snapshot: Snapshot, token: str) -> Iterator[str]:
    """A running environment server that needs a token; yields its address."""
    spec = FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot, max_turns=20)).sandbox_spec()
    process = ServerProcess(replace(spec, environment={**spec.environment, "FINQA_TOKEN": token}), log)
    try:
        asyncio.run(process.wait_until_healthy(60.0))
        yield process.url
    finally:
        asyncio.run(process.stop(3.0))


def succeeded(*done: Done) -> None:
    """Assert that commands ended well."""
    for one in done:
        assert one.status == 0, (one.out + one.err).decode()


def texts(*done: Done, out: bool = True) -> bytes:
    """What commands printed."""
    return b"\n".join(part for one in done for part in ((one.out, one.err) if out else (one.err,)))


def refuse(bench: Bench) -> dict[str, bytes]:
    """Run the commands that are refused, each with its secret, and return what they printed and left by place."""
    found: dict[str, bytes] = {}
    for number, canary in enumerate(REFUSED):
        commands = bench.commands(f"refused-{number}")
        for file, text in canary.files.items():
            (commands.folder / file).write_text(text)
        done = commands.run(*canary.words, watched=not any(canary.core in word for word in canary.words))
        assert done.status == 78, (canary.place, done.err.decode())
        assert canary.says in done.err.decode(), (canary.place, done.err.decode())
        assert b"fix: " in done.err and b"Traceback" not in done.err, canary.place
        for file in canary.files:
            (commands.folder / file).unlink()
        left = content(commands.folder) + b"\n".join((*commands.command_lines, *commands.environments))
        found[canary.place] = texts(done) + left
    return found


@pytest.mark.parametrize("training", [DRY_RUN, pytest.param(TRAINING, marks=pytest.mark.slow)], ids=["dry", "real"])
def test_no_secret_is_in_any_sink(bench: Bench, training: Sequence[str], command_server: ForkServer) -> None:
    assert len(CANARIES) == 30 and len({canary.core for canary in CANARIES}) == 30 and len(SINKS) == 12
    with warm_commands(command_server):
        refusals = refuse(bench)
    sinks = collect(bench, training)
    assert tuple(sinks) == SINKS
    missing = [name for name, seen in sinks.items() if MARKER.encode() not in seen]
    assert not missing, f"the marker was not found in {missing}"
    sinks["errors"] += b"\n".join(refusals.values())
    assert found(sinks | {"control": core("control").encode()}, {"control": core("control")}) == ["control: control"]
    checks = {(canary.place, sink) for canary in CANARIES for sink in sinks}
    assert len(checks) == 360
    assert found(sinks, {canary.place: canary.core for canary in CANARIES}) == []


def found(sinks: Mapping[str, bytes], secrets: Mapping[str, str]) -> list[str]:
    """Return which secret is in which sink, plain or in base64."""
    return [
        f"{place}: {sink}"
        for place, secret in secrets.items()
        for sink, seen in sinks.items()
        if any(form in seen for form in forms(secret))
    ]


UNMASKED = """
import finqa_cli.masking as masking
masking._RULES = ()
masking.is_secret = lambda name: False
masking.Masker.__call__ = lambda self, text: text
"""
"""Takes the rule out of every process that starts with it on the path."""


@pytest.mark.slow
def test_the_check_finds_secrets_where_the_rule_is_taken_out(bench: Bench) -> None:
    (bench.site / "sitecustomize.py").write_text(UNMASKED)
    leaks = found(collect(bench, TRAINING), {canary.place: canary.core for canary in CARRIED})
    sinks = {leak.rpartition(": ")[2] for leak in leaks}
    assert {"config show", "crash output", "errors", "logs and events", "standard output, doctor and plugins"} <= sinks
    assert len(leaks) >= 30, leaks


@pytest.mark.slow
def test_files_of_wandb_hold_no_secret(bench: Bench) -> None:
    pytest.importorskip("wandb")
    commands = bench.commands("wandb", ".env AVIATO_API_KEY", WANDB_MODE="offline")
    tracked = ("--tracker", "wandb", "--project", MARKER, "--sandbox", "local")
    succeeded(commands.run("train", "--dry-run", "--engine=scripted", "--iterations=1", "--run-dir=run", *tracked))
    seen = {"wandb": content(commands.folder / "run" / "wandb")}
    assert MARKER.encode() in seen["wandb"]
    assert found(seen, {canary.place: canary.core for canary in CANARIES}) == []
