"""Environments in Python files and folders of OpenEnv, and files of predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fixtures import finqa_text_rows, tatqa_pages
from remedies.faults import Fault, new, text

GOOD = '''
class Sum:
    """Add numbers."""

    @staticmethod
    def tasks():
        yield {"prompt": "1 + 1?", "id": "one"}

    def add(self, a: int, b: int) -> int:
        """Add.

        Args:
            a: A number.
            b: A number.
        """
        return a + b

    def reward(self) -> float:
        return 1.0
'''
PLAY = "eval random --environment ./env.py --limit 1 --split train --sandboxes 1"
TASK = 'yield {"prompt": "1 + 1?", "id": "one"}'


def mistaken(old: str, wrong: str, more: str = "") -> Fault:
    """An environment with a mistake, which the user corrects."""
    assert old in GOOD
    return Fault(PLAY + more, text("env.py", GOOD.replace(old, wrong)), by_hand=text("env.py", GOOD))


MANY = GOOD.replace(TASK, 'yield from ({"prompt": f"{n} + 1?"} for n in range(40))')
NEEDS_A_FILE = GOOD.replace("return 1.0", "return float(open('reward.txt').read())")


@contextmanager
def no_reward() -> Iterator[None]:
    """The reward fails until its file is there."""
    text("env.py", NEEDS_A_FILE)()
    yield
    text("reward.txt", "1")()


def folder(name: str, content: str) -> None:
    Path("d/server").mkdir(parents=True)
    Path("d/server/app.py").write_text("")
    Path("d", name).write_text(content)


OPENENV = (
    "eval random --environment openenv --limit 1 --sandboxes 1 --set environment.options.tasks=1 "
    "--set environment.options.module="
)
PROGRAMS = "score x.json --metric finqa --truth train.json"
SPANS = "score x.json --metric tatqa --truth train.json"


def questions() -> None:
    finqa_text_rows.write(Path("train.json"), finqa_text_rows.original(1))


def pages() -> None:
    tatqa_pages.write(Path("train.json"), tatqa_pages.page(1))


def predicted(command: str, content: str, right: str) -> Fault:
    """A file of predictions of a wrong form; the right form names no question of the data."""
    write = questions if command == PROGRAMS else pages
    return Fault(command, lambda: (write(), text("x.json", content)()), by_hand=text("x.json", right), then=65)


USER_CODE = {
    "a file that is no Python": mistaken("class Sum:", "class Sum"),
    "no such attribute": Fault(
        f"{PLAY} --set environment.options.attribute=Nosuch", text("env.py", GOOD), fill={"NAME": "Sum"}
    ),
    "a value that tasks lack": mistaken("    def add", "    def __init__(self, price): ...\n\n    def add"),
    "two environments": Fault(PLAY, text("env.py", GOOD + GOOD.replace("class Sum", "class Other"))),
    "an option that the name says": Fault(
        f"{PLAY} --set environment.options.source=x", text("env.py", GOOD), by_hand=new(PLAY)
    ),
    "an evaluation with faults": Fault(f"{PLAY} --run-dir x", during=no_reward),
    "code that always fails": Fault(
        "eval random --environment ./env.py --split train --run-dir x",
        text("env.py", MANY.replace("return 1.0", "return 1 / 0")),
        by_hand=text("env.py", MANY),
    ),
    "candidates with faults": Fault(
        f"{PLAY.replace('eval', 'sample')} --num-candidates 1 --run-dir x", during=no_reward
    ),
    "rollouts with faults": Fault(
        "train --dry-run --engine random --environment ./env.py --iterations 1 --group-size 2 --run-dir x "
        "--target-groups-per-iter 1",
        during=no_reward,
        by_hand=new(
            "train --dry-run --engine random --environment ./env.py --iterations 1 --group-size 2 --run-dir y "
            "--target-groups-per-iter 1"
        ),
    ),
    "no reward": mistaken("def reward(self) -> float:", "def _reward(self) -> float:"),
    "a tool of no types": mistaken("def add(self, a: int, b: int) -> int:", "def add(self, a: int, **b: int) -> int:"),
    "a reward beside its own": Fault(f"{PLAY} --reward graded", text("env.py", GOOD)),
    "data for tasks without": Fault(f"{PLAY} --data x.json", lambda: (text("env.py", GOOD)(), text("x.json", "{}")())),
    "tasks that fail": mistaken(TASK, "yield 1 / 0"),
    "no tasks": mistaken(TASK, "yield from ()"),
    "an id twice": mistaken(TASK, f"{TASK}\n        {TASK}"),
    "a split of some": mistaken(TASK, f'{TASK}\n        yield {{"prompt": "x", "id": "two", "split": "train"}}'),
    "a task that is no mapping": mistaken(TASK, "yield 3"),
    "an id that is no text": mistaken(TASK, 'yield {"prompt": "x", "id": []}'),
    "a task without a prompt": mistaken(TASK, 'yield {"id": "one"}'),
    "no such split of tasks": Fault(PLAY.replace("--split train", "--split nosuch"), text("env.py", GOOD)),
    "a folder of no server": Fault(
        f"{OPENENV}d", lambda: Path("d").mkdir(), by_hand=new("eval random --limit 1 --sandboxes 1")
    ),
    "no folder of a server": Fault(
        f"{OPENENV}nothere", by_hand=new("eval random --limit 1 --sandboxes 1"), elsewhere=("--set",)
    ),
    "a description that is no YAML": Fault(
        f"{OPENENV}d", lambda: folder("openenv.yaml", "a: ["), by_hand=new("eval random --limit 1 --sandboxes 1")
    ),
    "no Python of a server": Fault(
        f"{OPENENV}d --set environment.options.python=nothere",
        lambda: folder("openenv.yaml", ""),
        by_hand=new("eval random --limit 1 --sandboxes 1"),
        elsewhere=("--set",),
    ),
    "programs that are no list": predicted(PROGRAMS, "3", '[{"id": "q", "predicted": ["EOF"]}]'),
    "a program twice": predicted(
        PROGRAMS,
        '[{"id": "QQ", "predicted": ["EOF"]}, {"id": "QQ", "predicted": ["EOF"]}]'.replace(
            "QQ", finqa_text_rows.original(1)["id"]
        ),
        '[{"id": "q", "predicted": ["EOF"]}]',
    ),
    "a program without an id": predicted(PROGRAMS, "[{}]", '[{"id": "q", "predicted": ["EOF"]}]'),
    "a program of no tokens": predicted(
        PROGRAMS, '[{"id": "q", "predicted": 3}]', '[{"id": "q", "predicted": ["EOF"]}]'
    ),
    "answers that are no object": predicted(SPANS, "[]", '{"q": ["1", ""]}'),
    "an answer without a scale": predicted(
        SPANS, json.dumps({tatqa_pages.page(1)["questions"][0]["uid"]: 3}), '{"q": ["1", ""]}'
    ),
}
