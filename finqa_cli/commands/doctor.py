"""`finqa doctor`: problems that would stop a run, and the command that fixes each."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import CommandApp, offers
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.diagnostics.diagnose import ClusterReport, cluster_report, examine, settings_check
from finqa_cli.diagnostics.machine_checks import PlanReport, plan_report
from finqa_cli.errors import ConfigError
from finqa_cli.types import Check
from finqa_cli.wiring.placing import assumed_devices, visible_devices

app = CommandApp()

COLORS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


@app.command(epilog="Example: finqa doctor --sandbox daytona --sandboxes 500")
@offers(
    *("pool.sandboxes", "pool.sessions_per_sandbox", "pool.max_concurrent_play", "sandbox", "environment.name"),
    *("engine", "model", "data.snapshot", "data.path", "run.dir", "lora.rank", "generation.engine_replicas"),
    *("train.max_staleness", "train.learner_processes", "cluster.address"),
    general=("config", "assign", "as_json"),
)
def main(
    line: CommandLine,
    assume_gpus: Annotated[
        str | None,
        typer.Option(
            "--assume-gpus", metavar="NUMBERxGIB", help="Show only the placement on these GPUs, which need not exist."
        ),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Check each node of the Ray cluster as well: versions, model, GPUs, network."),
    ] = False,
) -> None:
    """Check plugins, settings, data, machine and services for a run, and name the command that fixes each fault.

    Takes a few seconds at most and starts nothing. A `warn` does not stop a run; a `fail` does.

    The placement is that of `finqa train` with the same settings. With --assume-gpus only it is checked, and
    the engine is chosen as on a machine with vLLM: finqa doctor --assume-gpus 4x80 --model Qwen/Qwen3-14B

    With --cluster it joins the cluster at `cluster.address` and runs a probe on each node, for up to some minutes.

    Exit codes: 0 when nothing failed, 1 otherwise.
    """
    plan: PlanReport | None = None
    nodes: ClusterReport | None = None
    if assume_gpus is not None:
        loaded = line.load(quiet=True, assume_cuda=True)
        plan = plan_report(loaded.settings, loaded.undecided, assumed_devices(assume_gpus))
        checks: Sequence[Check] = (settings_check(loaded), plan.check)
    else:
        try:
            loaded = line.load(quiet=True)
        except ConfigError as error:
            checks = examine(error)
        else:
            plan = plan_report(loaded.settings, loaded.undecided, visible_devices())
            checks = examine(loaded)
            if cluster:
                nodes = cluster_report(loaded.settings)
                plan = plan_report(loaded.settings, loaded.undecided, visible_devices(), nodes.placed)
                checks = (*(plan.check if each.name == plan.check.name else each for each in checks), *nodes.checks)
    failed = any(check.status == "fail" for check in checks)
    document = {
        "status": "fail" if failed else "ok",
        "checks": [asdict(check) for check in checks],
        "plan": plan.document if plan is not None else None,
        **({"nodes": nodes.document} if nodes is not None else {}),
    }
    table = f"\n\n{plan.text}" if plan is not None and plan.text and (plan.document["per_device"] or nodes) else ""
    if assume_gpus is not None:
        table += f"\n\nModel: {loaded.settings.model.name}. Not checked: sandboxes, keys, data."
    emit(document, as_json=line.as_json, text=lambda: report(checks) + table)
    if failed:
        raise typer.Exit(1)


def report(checks: Sequence[Check]) -> str:
    """Return a block per check: status, name, finding, and the remedy on a line of its own."""
    width = min(shutil.get_terminal_size().columns, 100)
    names = max(len(check.name) for check in checks)
    lines = [line for check in checks for line in _block(check, names, width)]
    failed, warned = (sum(check.status == status for check in checks) for status in ("fail", "warn"))
    wrong = [f"{failed} failed"] * bool(failed) + [plural(warned, "warning")] * bool(warned)
    return "\n".join([*lines, "", f"{plural(len(checks), 'check')}: {', '.join(wrong) or 'all fine'}."])


def _block(check: Check, names: int, width: int) -> list[str]:
    status = f"{check.status:4}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        status = typer.style(status, fg=COLORS[check.status])
    indent = " " * (len("fail") + 2 + names + 2)
    found = _wrapped(check.detail, indent, width)
    lines = [f"{status}  {check.name:{names}}  {found[0].lstrip() if found else ''}".rstrip(), *found[1:]]
    return [*lines, *_wrapped(f"fix: {check.remedy}", indent, width)] if check.remedy else lines


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    """Wrap at whole words only, so that a command can be copied."""
    return textwrap.wrap(
        " ".join(text.split()),
        width=max(width, len(indent) + 30),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
