"""Sandboxes and images at Daytona that are left, do not end, do not work, or are interrupted."""

from __future__ import annotations

import shlex
import subprocess
import sys

from fixtures.cloud_fronts import Refusal
from remedies.faults import Fault, new
from remedies.following import run
from remedies.moments import interrupted
from remedies.rows.clouds import PLAY, before_daytona, on_daytona, snapshot

AT = "--sandbox daytona"
SHORT = "--set sandbox.options.delete_timeout_s=0.01"
LEFT = f"{PLAY} {AT} {SHORT}"
"""An episode whose sandbox is left where its deletion is refused."""
NOT_ENDED = Refusal(where="DELETE", status=500, times=4)


def by_another_process() -> None:
    subprocess.run([sys.executable, "-m", "finqa_cli", *shlex.split(LEFT)], check=True, capture_output=True)


REMOTE = {
    "sandboxes that do not end": Fault(
        f"sandbox reap --all --yes {AT} {SHORT}",
        lambda: run(LEFT),
        server=on_daytona(Refusal(where="DELETE", status=500, times=8)),
        needs=(),
    ),
    "sandboxes whose end is interrupted": Fault(
        f"sandbox reap --all --yes {AT}",
        lambda: run(LEFT),
        server=on_daytona(NOT_ENDED),
        during=interrupted("finqa_cli.diagnostics.sandbox_listing:_end"),
        needs=(),
    ),
    "sandboxes of an ended process": Fault(
        f"doctor --environment code {AT}",
        by_another_process,
        server=on_daytona(NOT_ENDED),
        check="strays",
        needs=(),
        then=(0, 1),
    ),
    "no such sandbox": Fault(f"sandbox reap nosuch {AT}", server=on_daytona(), needs=()),
    "an image of a server elsewhere": Fault(
        f"snapshot build {AT} --set environment.options.url=http://127.0.0.1:9",
        server=before_daytona,
        needs=(),
        elsewhere=("--set",),
        by_hand=new(f"snapshot build {AT}"),
    ),
    "no image of this name": Fault(f"snapshot delete nosuch {AT}", server=on_daytona(), needs=()),
    "an image that is interrupted": Fault(
        f"snapshot build --snapshot-name cut {AT}",
        snapshot("cut"),
        server=before_daytona,
        home=True,
        needs=(),
        during=interrupted("finqa_cli.provisioning.remote_images:_provider"),
        instead=True,
    ),
}
