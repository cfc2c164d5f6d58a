"""From nothing to a component that is used: each kind of `finqa plugins new` is written, installed, checked and used.

    python -m benchmarks.scaffolds [--only KIND] [--out FOLDER]

Each package is installed with pip into its own folder, which is on the path of its commands only. A line of JSON
for each kind, with the seconds of each command, and those of the processor in all of them (`cpu`), which other work
on the machine does not change.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from finqa_cli.extend.contract_check import CheckedKind

SERVER = Path(__file__).parents[1] / "tests" / "fixtures" / "openenv_guess"
QUICK = ("train", "--model=embedded", "--quick-test", "--iterations=1", "--no-preflight")
PLAY = ("play", "--seed=1")
USES: dict[CheckedKind, tuple[str, ...]] = {
    CheckedKind.ENVIRONMENT: (*PLAY, "--engine=scripted", "--environment={}"),
    CheckedKind.REWARD: (*PLAY, "--engine=scripted", "--reward={}"),
    CheckedKind.SANDBOX: (
        *(*PLAY, "--engine=random", "--sandbox={}", "--environment=openenv"),
        f"--set=environment.options.module={SERVER}",
    ),
    CheckedKind.CHAT_ENGINE: (*PLAY, "--engine={}"),
    CheckedKind.ENGINE: (*PLAY, "--model=embedded", "--engine={}"),
    CheckedKind.CODEC: (*PLAY, "--model=embedded", "--set=codec.name={}"),
    CheckedKind.CALL_FORMAT: (*PLAY, "--model=embedded", "--set=codec.options.call_format={}"),
    CheckedKind.OPTIMIZER: (*QUICK, "--optimizer={}"),
    CheckedKind.TRACKER: (*QUICK, "--tracker={}"),
    CheckedKind.LEARNER: (*QUICK, "--set=learner.name={}"),
}
"""The command that uses a component of each kind; {} is its name."""


def main() -> None:
    """Print a line for each kind; the exit status is 1 where a command failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", type=CheckedKind, choices=list(CheckedKind), help="repeatable")
    parser.add_argument("--out", type=Path, help="folder of the packages and runs; default: a temporary one")
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="finqa-scaffolds-") as temporary:
        for kind in arguments.only or CheckedKind:
            found = measure(kind, (arguments.out or Path(temporary)) / kind)
            failed = failed or "failed" in found
            print(json.dumps(found), flush=True)
    raise SystemExit(failed)


def measure(kind: CheckedKind, folder: Path) -> dict[str, object]:
    """Return the seconds of each command, and the last lines of the first one that failed.

    Args:
        kind: Kind of the component.
        folder: Where the package, its installation and the run go.
    """
    name = f"my-{kind.replace('_', '-')}"
    site, run = folder / "site", folder / "run"
    folder.mkdir(parents=True, exist_ok=True)
    finqa = (sys.executable, "-m", "finqa_cli")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(folder / "package"))
    use = [part.format(name) for part in USES[kind]]
    commands = {
        "new": (*finqa, "plugins", "new", kind, name, "--out", str(folder / "package")),
        "install": (sys.executable, *install),
        "check": (*finqa, "plugins", "check", name),
        "use": (*finqa, *use, *(["--run-dir", str(run)] if use[0] == "train" else [])),
    }
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))}
    found: dict[str, object] = {
        "kind": str(kind),
        "command": " ".join(["finqa", *use]).replace(f"{SERVER.parent}/", ""),
    }
    total, before = 0.0, _cpu()
    for step, command in commands.items():
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        found[step] = round(seconds, 1)
        total += seconds
        if done.returncode:
            return {**found, "failed": step, "said": (done.stdout + done.stderr).splitlines()[-8:]}
    return {**found, "total": round(total, 1), "cpu": round(_cpu() - before, 1)}


def _cpu() -> float:
    """Return the seconds of the processor that ended child processes took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
