"""Environments of OpenEnv's repository, unmodified: played at random, imitated by a new policy, and trained on.

    python -m benchmarks.foreign_environments ENVS --python VENV/bin/python [--only NAME] [--out FOLDER]

ENVS is the folder `envs` of a checkout of OpenEnv, VENV a virtual environment with what their projects require. For
each environment: `finqa play --engine random`, `finqa eval random`, `finqa policy make --expert random`, `finqa train`.
A line of JSON for each. With --cloud in sandboxes of a loopback Daytona, whose servers import the packages of this
interpreter; the image is built first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finqa_testing import LoopbackConfig, LoopbackProcess

SANDBOXES = 4
FAULTS = ("sandbox_error", "engine_error", "environment_error")
TOKENIZER = Path(__file__).parents[1] / "plugins" / "finqa_plugins" / "policies"


@dataclass(frozen=True)
class Stock:
    """An environment of the repository.

    Attributes:
        folder: Its folder in `envs`.
        variables: Environment variables of the server.
        reset: Arguments of every reset.
        options: Further options of our environment `openenv`, for this environment.
        steps: Limit of actions in an episode.
    """

    folder: str
    variables: dict[str, str] = field(default_factory=dict)
    reset: dict[str, Any] = field(default_factory=dict)
    options: dict[str, int | str] = field(default_factory=dict)
    steps: int = 8


ENVIRONMENTS = {
    "echo": Stock("echo_env"),
    "grid_world": Stock("grid_world_env"),
    "maze": Stock("maze_env"),
    "connect4": Stock("connect4_env"),
    "coding": Stock("coding_env", options={"observation_chars": 400}),  # a traceback of 3,000 for each mistake
    "reasoning_gym": Stock("reasoning_gym_env", reset={"dataset_name": "spell_backward", "size": 50}),
    "chat": Stock("chat_env", {"TOKENIZER_NAME": str(TOKENIZER)}),
    "chess": Stock("chess_env"),
    "minesweeper_board": Stock("minesweeper_env"),
    "fraud_triage": Stock("fraud_triage_env"),
    "catch": Stock("openspiel_env", {"OPENSPIEL_GAME": "catch"}, steps=12),  # the ball falls for ten
    "tic_tac_toe": Stock("openspiel_env", {"OPENSPIEL_GAME": "tic_tac_toe"}),
    "frozen_lake": Stock("textarena_env", {"TEXTARENA_ENV_ID": "FrozenLake-v0"}),
    "tower_of_hanoi": Stock("textarena_env", {"TEXTARENA_ENV_ID": "TowerOfHanoi-v0"}),
    "wordle": Stock("textarena_env", {"TEXTARENA_ENV_ID": "Wordle-v0"}),
    "hangman": Stock("textarena_env", {"TEXTARENA_ENV_ID": "Hangman-v0"}),
    "sudoku": Stock("textarena_env", {"TEXTARENA_ENV_ID": "Sudoku-v0"}),
    "minesweeper": Stock("textarena_env", {"TEXTARENA_ENV_ID": "Minesweeper-v0"}),
}


def main() -> None:
    """Print a line for each environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path, help="folder `envs` of OpenEnv")
    parser.add_argument("--python", type=Path, required=True, help="Python that has the environments' packages")
    parser.add_argument("--only", action="append", choices=ENVIRONMENTS, help="repeatable")
    parser.add_argument("--out", type=Path, default=Path("foreign-environments"))
    parser.add_argument("--cloud", action="store_true", help="in sandboxes of a loopback Daytona")
    parser.add_argument("--recipe", default="auto", choices=("auto", "dockerfile", "packages"), help="of images")
    parser.add_argument("--demonstrations", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=4)
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        variables = dict(os.environ)
        if chosen.cloud:
            loopback = stack.enter_context(LoopbackProcess(LoopbackConfig(servers=SANDBOXES)))
            stack.enter_context(loopback.trusted())
            variables |= loopback.environment
        for name in chosen.only or ENVIRONMENTS:
            begun = time.monotonic()
            row = {"environment": name, **measure(name, chosen, variables)}
            print(json.dumps({**row, "seconds": round(time.monotonic() - begun)}), flush=True)


def measure(name: str, chosen: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    """What came of the commands; the first error ends it."""
    stock = ENVIRONMENTS[name]
    out = chosen.out / name
    out.mkdir(parents=True, exist_ok=True)
    options: dict[str, object] = {
        "module": chosen.environments / stock.folder,
        "python": chosen.python,
        **stock.options,
    }
    options |= {"tasks": 2 * chosen.demonstrations, "recipe": chosen.recipe}
    shared = ["--environment", "openenv"]
    for key, value in options.items():
        shown = value if isinstance(value, int) else json.dumps(str(value))
        shared += ["--set", f"environment.options.{key}={shown}"]
    for section, given in (("variables", stock.variables), ("reset", stock.reset)):
        table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in given.items())
        if table:
            shared += ["--set", f"environment.options.{section}={{{table}}}"]
    limit = ["--max-steps", f"{stock.steps}"]
    played = [*shared, *limit, "--sandboxes", f"{SANDBOXES}"]
    config = out / "policy" / "train.toml"
    made = ["--demonstrations", str(chosen.demonstrations), "--epochs", "6", "--output", str(out / "policy")]
    train = ["--model", str(out / "policy" / "policy"), "--config", str(config), "--iterations", str(chosen.iterations)]
    train += ["--no-preflight", "--set", "train.target_groups_per_iter=4", "--set", "eval.limit=16"]
    commands = {
        "play": ["play", *shared, "--engine", "random", *limit],
        "random": ["eval", "random", *played, "--limit", "16", "--run-dir", str(out / "random")],
        "policy": ["policy", "make", "--expert", "random", *played, *made],
        "train": ["train", *played, *train, "--run-dir", str(out / "train")],
    }
    if chosen.cloud:
        commands = {"build": ["snapshot", "build", *shared], **commands}
        commands = {step: [*arguments, "--sandbox", "daytona"] for step, arguments in commands.items()}
    row: dict[str, Any] = {}
    for step, arguments in commands.items():
        done = subprocess.run(
            [sys.executable, "-m", "finqa_cli", *arguments, "--json"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
        row[step] = "ok" if done.returncode == 0 else f"exit {done.returncode}: {' '.join(errors)[:300]}"
        if done.stdout.strip():
            (out / f"{step}.json").write_text(done.stdout)
        if done.returncode and step != "train":
            break
    return row | figures(out)


def figures(out: Path) -> dict[str, Any]:
    """Rewards at random and while training, from the records of the runs."""
    found: dict[str, Any] = {}
    for step, file in (("random", out / "random"), ("train", out / "train")):
        path = file / "trajectories.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        rewards = [record["reward"] for record in records if record.get("reward") is not None]
        faults = sum(record["status"] in FAULTS for record in records)
        found[f"{step}_episodes"], found[f"{step}_faults"] = len(records), faults
        found[f"{step}_reward"] = round(sum(rewards) / len(rewards), 3) if rewards else None
    metrics = out / "train" / "metrics.jsonl"
    steps = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    found["updates"] = len(steps)
    found["reward_by_iteration"] = [round(each["reward_mean"], 3) for each in steps if "reward_mean" in each]
    return found


if __name__ == "__main__":
    main()
