"""What few users meet: paths that no system takes, plugins without a name, experiments with damaged files."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures import finqa_text_rows
from fixtures.mistaken_plugin import MARK
from fixtures.small_experiments import SMALL, InThisProcess
from remedies.faults import Fault, new, text
from remedies.following import run
from remedies.moments import interrupted
from remedies.rows.clouds import before_daytona
from remedies.rows.damaged_runs import document, lines
from remedies.rows.openenv_servers import folder
from remedies.rows.plugin_faults import PLAY, acme, corrected
from remedies.rows.recorded_files import records

from finqa_cli.experiments import experiment_run
from finqa_cli.extend.registry import registry
from finqa_cli.runs.durable_files import sha256_of

HANGS = """
import os, socket

@hookimpl
def doctor_checks(settings):
    if port := os.environ.get("ACME_PORT"):
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            connection.recv(1)
    return [Check(name="acme", status="ok", detail="answered")]
"""


@contextmanager
def silent_service() -> Iterator[None]:
    """A service that takes connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.environ["ACME_PORT"] = str(listener.getsockname()[1])
        yield
    del os.environ["ACME_PORT"]


LATE = f"""
def tasks(self, split):
    class Late(list):
        "Tasks that are read late."
        def __iter__(self): raise KeyError("bolts")  {MARK}
    return Late(super().tasks(split))
"""


@contextmanager
def nameless_plugin() -> Iterator[SimpleNamespace]:
    """A plugin that cannot be imported, of a package whose metadata are lost."""
    with acme(module=f"import nosuch  {MARK}")() as front:
        for metadata in Path(front.url).parent.glob("*/METADATA"):
            metadata.unlink()
        registry.cache_clear()
        yield front


def pairwise() -> None:
    """Three evaluations of three questions, of which each has another one without a grade."""
    run("eval scripted --limit 3 --split dev --run-dir x1")
    fault: dict[str, object] = {"reward": None, "components": {}, "status": "sandbox_error", "error": "x"}
    for number in (2, 3):
        shutil.copytree("x1", f"x{number}")
    for number in (1, 2, 3):

        def change(all_lines: list[str], place: int = number - 1) -> list[str]:
            all_lines[place] = json.dumps({**json.loads(all_lines[place]), **fault})
            return all_lines

        lines(f"x{number}/trajectories.jsonl", change)()
    run("eval random --limit 3 --split dev --run-dir y")


EXECUTING = """
class Executing(Inventory):
    def sandbox_spec(self):
        return ExecutionSpec()

EXTRA = [Component(kind="environment", name="acme-executing", target=f"{__name__}:Executing", snapshotless=True)]
"""
IN_SANDBOXES = PLAY.replace("acme-environment", "acme-executing")
ONE_CELL = "--only=cell-two --quiet"
RUN = "outputs/small"
CELL = f"{RUN}/evals/cell-two"
ATTEMPTS = f"{CELL}/trajectories.jsonl"
SHORT = SMALL.replace('"=2 * N"', "1")


@contextmanager
def in_this_process() -> Iterator[SimpleNamespace]:
    """Steps of experiments are run without processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment_run, "Relay", InThisProcess)
        yield SimpleNamespace(url="")


@contextmanager
def trainings_that_fail() -> Iterator[None]:
    """Each training ends as one does whose service is away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            experiment_run, "Relay", lambda: InThisProcess(lambda words, _: 69 if words[0] == "train" else None)
        )
        yield


def by_another_finqa() -> None:
    """An experiment with a cell that is done, whose attempts another finqa wrote in a form of its own."""
    text("small.toml", SHORT)()
    assert run(f"experiment run small.toml {ONE_CELL}") == 0
    lines(ATTEMPTS, lambda each: ["{}", *each[1:]])()
    manifest, record = Path(f"{CELL}/manifest.json"), Path(f"{RUN}/run.json")
    outputs = {**json.loads(manifest.read_text())["outputs"], "trajectories.jsonl": sha256_of(Path(ATTEMPTS))}
    document(str(manifest), outputs=outputs)()
    steps = json.loads(record.read_text())["steps"]
    steps["evals/cell-two"] |= {"manifest": sha256_of(manifest), "outputs": outputs}
    document(str(record), steps=steps)()
    Path(f"{RUN}/report.md").unlink()  # it was interrupted before its report


def experiment(command: str, write: Callable[[], object], **more: object) -> Fault:
    server: Callable[[], AbstractContextManager[SimpleNamespace]] = in_this_process
    return Fault(f"experiment run {command}", write, server=server, needs=(), **more)  # type: ignore[arg-type]


WITH_DATA = (
    re.sub(r"\[\[prepare\]\].*?(?=\[settings\])", "", SHORT, flags=re.DOTALL)
    + """
[settings.data]
path = "rows"
allow_overlap = true
"""
)


def rows() -> None:
    Path("rows").mkdir()
    for number, name in enumerate(("train", "dev", "test"), start=1):
        finqa_text_rows.write(Path(f"rows/{name}.json"), finqa_text_rows.original(number))


LAST_LINES_ONE = {
    "a path that is too long": Fault(f"show {'x' * 300}", by_hand=new("show a")),
    "tasks that fail as they are read": Fault(PLAY, server=acme("Inventory", LATE), by_hand=corrected, needs=()),
    "an image of a server that is interrupted": Fault(
        "snapshot build --environment openenv --sandbox daytona --set environment.options.module=guess",
        folder(),
        server=before_daytona,
        home=True,
        needs=(),
        during=interrupted("finqa_cli.provisioning.remote_images:_provider"),
        by_hand=lambda: None,
    ),
    "a check that does not answer": Fault(
        "doctor --engine scripted",
        server=acme(module=HANGS),
        during=silent_service,
        check="acme",
        by_hand=lambda: None,
        needs=(),
        then=(0, 1),
    ),
    "a plugin of a package without a name": Fault(
        "doctor --engine scripted",
        server=nameless_plugin,
        check="plugins",
        by_hand=corrected,
        needs=(),
        then=(0, 1),
    ),
    "runs that have questions in common in pairs": Fault(
        "compare x=x1 x=x2 x=x3 y=y --no-plots", pairwise, by_hand=new("compare a=x1 b=x2 c=x3 y=y --no-plots")
    ),
    "verdicts of a sandbox": Fault(
        "eval --rescore x --reward acme-reward",
        lambda: run(f"{IN_SANDBOXES} --run-dir x"),
        {"TARGET": IN_SANDBOXES.removeprefix("eval ")},
        server=acme(module=EXECUTING),
        needs=(),
        instead=True,
    ),
    "answers that an environment gives no more": Fault(
        "eval --rescore x --reward acme-reward",
        lambda: (
            run(f"{PLAY} --run-dir x"),
            records("x/trajectories.jsonl", lambda record: record["turns"][0]["observation"].update(text="8"))(),
        ),
        {"TARGET": PLAY.removeprefix("eval ")},
        server=acme(),
        needs=(),
        instead=True,
    ),
    "no data of cells": experiment(f"e.toml {ONE_CELL}", text("e.toml", WITH_DATA), by_hand=rows),
    "cells that fail": experiment(
        "small.toml --keep-going",
        text("small.toml", SHORT),
        during=trainings_that_fail,
        extra="--quiet",
        instead=True,
    ),
    "an evaluation of a cell by another finqa": experiment(
        f"--resume {RUN} {ONE_CELL}", by_another_finqa, extra=ONE_CELL, instead=True
    ),
}
