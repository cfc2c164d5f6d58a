"""Environments, their options and files; rewards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fixtures import convfinqa_dialogues, finqa_text_rows, tatqa_pages
from remedies.faults import Fault, new, text

MBPP = {
    "task_id": 601,
    "text": "Write a function to add.",
    "code": "def add(a, b):\n    return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add(0, 2) == 2"],
    "test_setup_code": "",
    "challenge_test_list": [],
}
FORECAST = {
    "data_source": "x",
    "prompt": [{"role": "user", "content": "Will ACME rise?"}],
    "ability": "x",
    "reward_model": {"style": "rule", "ground_truth": "yes"},
    "extra_info": {"split": "train", "index": 1, "question": "Will ACME rise?", "question_type": "event_detection"},
}


def json_lines(path: Path, *rows: Any) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


GOOD: dict[str, tuple[str, Callable[[Path], object]]] = {
    "finqa-text": ("train.json", lambda path: finqa_text_rows.write(path, *map(finqa_text_rows.original, (1, 2)))),
    "convfinqa": (
        "train.json",
        lambda path: convfinqa_dialogues.write(path, *map(convfinqa_dialogues.original, (1, 2))),
    ),
    "tatqa": ("train.json", lambda path: tatqa_pages.write(path, *map(tatqa_pages.page, (1, 2)))),
    "mbpp": ("mbpp.jsonl", lambda path: json_lines(path, MBPP)),
    "forecast": ("train.jsonl", lambda path: json_lines(path, FORECAST)),
}
"""A file of each environment that reads rows, and what writes a good one."""


def file_faults() -> dict[str, Fault]:
    """A row for each environment and each way in which its file is no good; the user then gives a good one."""
    found = {}
    for environment, (name, write) in GOOD.items():
        for what, content in (("no JSON", "{"), ("nothing", ""), ("a bad row", None), ("not there", "-")):

            def wrong(name: str = name, write: Callable[[Path], object] = write, content: str | None = content) -> None:
                if content is None:
                    write(Path(name))
                    rows = Path(name).read_text()
                    bad = rows.rstrip()[:-1] + ", {}]" if name.endswith(".json") else rows + "{}\n"
                    Path(name).write_text(bad)
                elif content != "-":
                    Path(name).write_text(content)

            command = f"eval scripted --environment {environment} --data {name} --limit 1 --split train --sandboxes 1"
            found[f"{environment}, {what}"] = Fault(
                command,
                wrong,
                by_hand=lambda name=name, write=write: write(Path(name)) and None,  # type: ignore[misc]
            )
        folder = f"eval scripted --environment {environment} --data d --limit 1 --split train --sandboxes 1"
        found[f"{environment}, an empty folder"] = Fault(
            folder,
            lambda: Path("d").mkdir(),
            by_hand=lambda name=name, write=write: write(Path("d", name)) and None,  # type: ignore[misc]
        )
    return found


def of_function(content: str) -> Fault:
    """A reward in a Python file with a mistake, which the user corrects."""
    right = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"
    return Fault(
        "eval scripted --environment finqa-text --limit 1 --reward function "
        "--set reward.options.function=r.py:compute_score",
        lambda: (text("r.py", content)(), text("good.py", right)()),
        by_hand=text("r.py", right),
        fill={"path/to/file.py:compute_score": "good.py:compute_score"},
    )


def of_spec(content: str) -> Fault:
    return Fault(
        "rewards show weighted --set reward.options.spec=r.yaml",
        text("r.yaml", content),
        by_hand=new("rewards show weighted"),
    )


ENVIRONMENTS = {
    "no questions of TAT-QA": Fault(
        "eval scripted --environment tatqa --limit 1",
        lambda: Path("d").mkdir(),
        by_hand=lambda: (
            tatqa_pages.write(Path("d/train.json"), tatqa_pages.page(1))
            and "eval scripted --environment tatqa --limit 1 --data d --split train"
        ),
        elsewhere=("data fetch",),
    ),
    "no dialogues": Fault(
        "eval scripted --environment convfinqa --limit 1 --split train",
        lambda: convfinqa_dialogues.write(Path("c.json"), convfinqa_dialogues.original(1)),
        fill={"FILE": "c.json"},
    ),
    "no server": Fault("eval random --environment openenv --limit 1", fill={"HOST:PORT": "127.0.0.1:9"}, then=69),
    "a reward that reads JSON": Fault("eval scripted --reward weighted --limit 1"),
    "a reward of dialogues": Fault(
        "eval scripted --environment convfinqa --data c.json --split train --limit 1 --reward graded",
        lambda: convfinqa_dialogues.write(Path("c.json"), convfinqa_dialogues.original(1)),
    ),
    "embedded functions and data": Fault(
        "eval scripted --environment mbpp --limit 1 --split train --data mbpp.jsonl "
        "--set environment.options.family=functions",
        lambda: json_lines(Path("mbpp.jsonl"), MBPP),
        by_hand=new("eval scripted --environment mbpp --limit 1 --set environment.options.family=functions"),
    ),
    "no such prompt file": Fault(
        "eval scripted --limit 1 --set environment.options.prompt_file=nothere.toml",
        by_hand=text("nothere.toml", "system = 'Answer.'\nuser = '{{ question }}'\n"),
    ),
    "a prompt file that is no TOML": Fault(
        "eval scripted --limit 1 --set environment.options.prompt_file=p.toml",
        text("p.toml", "a = ["),
        by_hand=text("p.toml", "system = 'Answer.'\n"),
    ),
    "a prompt file of other keys": Fault(
        "eval scripted --limit 1 --set environment.options.prompt_file=p.toml",
        text("p.toml", "a = 'x'"),
        by_hand=text("p.toml", "system = 'Answer.'\n"),
    ),
    "an empty prompt file": Fault(
        "eval scripted --limit 1 --set environment.options.prompt_file=p.toml",
        text("p.toml", "system = ''"),
        by_hand=text("p.toml", "system = 'Answer.'\n"),
    ),
    "a field of a prompt file": Fault(
        "eval scripted --limit 1 --set environment.options.prompt_file=p.toml",
        text("p.toml", "system = '{{ nosuch( }}'"),
        by_hand=text("p.toml", "system = 'Answer.'\n"),
    ),
    "a split of a folder": Fault(
        "eval scripted --environment finqa-text --data d --limit 1 --set environment.options.split=train",
        lambda: (Path("d").mkdir(), finqa_text_rows.write(Path("d/train.json"), finqa_text_rows.original(1))),
        by_hand=new("eval scripted --environment finqa-text --data d/train.json --split train --limit 1"),
    ),
    "no file of a split": Fault(
        "eval scripted --environment finqa-text --data train.json --limit 1 --split test",
        lambda: finqa_text_rows.write(Path("train.json"), *map(finqa_text_rows.original, (1, 2))),
        by_hand=new("eval scripted --environment finqa-text --data train.json --limit 1 --split train"),
    ),
    "a reward option of forecasts": Fault(
        "eval scripted --environment forecast --limit 1 --set environment.options.reward=rlcr --reward graded",
        by_hand=new("eval scripted --environment forecast --limit 1 --reward graded"),
    ),
    "a match without a folder": Fault(
        "eval scripted --environment forecast --limit 1 --split train --data train.jsonl "
        "--set environment.options.match=x",
        lambda: json_lines(Path("train.jsonl"), FORECAST),
        by_hand=new("eval scripted --environment forecast --limit 1 --split train --data train.jsonl"),
    ),
    "several files of a split": Fault(
        "eval scripted --environment forecast --limit 1 --split train --data d",
        lambda: (
            Path("d").mkdir(),
            json_lines(Path("d/a_train.jsonl"), FORECAST),
            json_lines(Path("d/b_train.jsonl"), FORECAST),
        ),
        fill={"TEXT": "a_"},
    ),
    "two files of a split of questions": Fault(
        "eval scripted --environment finqa-text --limit 1 --split train --data d",
        lambda: (
            Path("d").mkdir(),
            finqa_text_rows.write(Path("d/train.json"), finqa_text_rows.original(1)),
            finqa_text_rows.write(Path("d/train.jsonl"), finqa_text_rows.original(2)),
        ),
        by_hand=new("eval scripted --environment finqa-text --limit 1 --split train --data d/train.json"),
    ),
    "a library that is not there": Fault(
        "eval random --environment verifiers:x --limit 1 --set environment.options.python=nothere/bin/python",
        fill={"PATH/bin/python": "/bin/false"},
        then=78,
    ),
    "no Python file": Fault("eval human --environment ./nothere.py --limit 1", by_hand=new("eval scripted --limit 1")),
    "no function of a reward": of_function("x = 1\n"),
    "no function but a number": of_function("compute_score = 1\n"),
    "an async function": of_function(
        "async def compute_score(data_source, solution_str, ground_truth, extra_info): ...\n"
    ),
    "other arguments of a function": of_function("def compute_score(x): ...\n"),
    "a module that fails": of_function("1 / 0\n"),
    "a module that lacks another": of_function("import nosuch_module\n"),
    "no specification": Fault(
        "rewards show weighted --set reward.options.spec=nothere.yaml", by_hand=new("rewards show weighted")
    ),
    "a specification that is a folder": Fault(
        "rewards show weighted --set reward.options.spec=a", by_hand=new("rewards show weighted")
    ),
    "a specification that is no YAML": of_spec("a: [\n"),
    "a specification of an unknown key": of_spec("nosuch: 1\n"),
    "a specification that is a list": of_spec("[1]\n"),
    "a specification of wrong values": of_spec("weights: x\n"),
    **file_faults(),
}
