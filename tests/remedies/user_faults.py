"""Faults that users meet: a command that fails, and how its printed remedy is followed.

The rows are chosen by how often users meet them: mistakes in commands, settings, data and environments, runs that are
resumed, compared or continued, servers that refuse, and steps of pipelines and experiments that fail.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures import finqa_text_rows
from fixtures.data_files import DATASET, edit_question, finqa_row, write_folder, write_json
from fixtures.openai_server import Fault as Answer
from fixtures.openai_server import OpenAIServer, error_body, openai_server
from fixtures.small_experiments import SMALL, InThisProcess
from remedies.faults import Fault, new, text
from remedies.following import run
from remedies.moments import interrupted
from remedies.shared_folders import BEGINNING

from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.experiments import experiment_run, pipeline_run
from finqa_cli.experiments.step_runner import Ended, Relay
from finqa_plugins.environments.forecast import make_rows

AB = ("a", "b")
W = "trained/w"
ATTEMPTS = "a/trajectories.jsonl"


def own() -> None:
    write_folder(Path("own"))


def own_again() -> None:
    shutil.rmtree("own", ignore_errors=True)
    own()


def put(name: str, value: str) -> Callable[[], object]:
    """The user sets a variable."""
    return lambda: os.environ.update({name: value})


def document(name: str, **changes: Any) -> Callable[[], object]:
    """Change values of a JSON document."""
    return lambda: Path(name).write_text(json.dumps({**json.loads(Path(name).read_text()), **changes}))


SETTINGS = {
    "a misspelt setting": Fault("config show --set train.group_sise=3", fill={"VALUE": "3"}),
    "a setting of a wrong type": Fault("config show --set train.group_size=abc"),
    "a setting with a wrong choice": Fault("config show --set train.off_policy=off"),
    "a setting out of bounds": Fault("eval scripted --sandboxes 0 --limit 1"),
    "a misspelt setting in a file": Fault(
        "config show", text("finqa.toml", "[train]\ngroup_sise = 3\n"), by_hand=text("finqa.toml", "")
    ),
    "a file that is no TOML": Fault("config show", text("finqa.toml", "a = [\n"), by_hand=text("finqa.toml", "")),
    "no such settings file": Fault("config show --config nosuch"),
    "an experiment as settings": Fault("config show --config financial_qa_tiny", instead=True),
    "two files of one tier": Fault(
        "config show --config qwen3-4b --config llama-3-8b", by_hand=new("config show --config qwen3-4b")
    ),
    "a variable of no setting": Fault("config show", env={"FINQA_TRAIN__NOSUCH": "3"}),
    "two variables of one setting": Fault("config show", env={"LORA_RANK": "8", "FINQA_LORA__RANK": "8"}),
    "a wrong value in .env": Fault(
        "config show", text(".env", "FINQA_TRAIN__GROUP_SIZE=x\n"), by_hand=text(".env", "")
    ),
    "a secret on the command line": Fault(
        "config show --set engine.options.api_key=sk-abcdefghijklmnopqrstuvwxyz123456",
        by_hand=new("config show"),
        env={"OPENAI_API_KEY": "x"},
    ),
    "settings that do not go together": Fault(
        "config show --set train.overlong_buffer=100", by_hand=new("config show")
    ),
}

COMMANDS = {
    "no such command": Fault("nosuch"),
    "no policy to evaluate": Fault("eval", extra="--limit 1", by_hand=new("eval scripted --limit 1")),
    "no such option": Fault("eval scripted --no-such"),
    "a policy named twice": Fault("eval scripted scripted --limit 1", by_hand=new("eval scripted --limit 1")),
    "failures of no run": Fault("eval scripted --failed --limit 1", by_hand=new("eval scripted --limit 1")),
    "a filter of no field": Fault("ls --filter colour=red"),
    "an option without its value": Fault("eval scripted --limit"),
    "no such method": Fault("pipeline --method grop", extra="--dry-run"),
    "two engines": Fault("eval scripted --engine random --limit 1"),
    "no such engine": Fault("play --engine scriptd"),
    "no such option of a component": Fault("play --engine scripted --set engine.options.unquoted=1"),
    "no such provider": Fault("eval scripted --sandbox nosuch --limit 1"),
    "no such plugin": Fault("plugins show nosuch"),
    "an option without effect": Fault(
        "pipeline --method grpo --dry-run --set optimizer.options.clip_high=0.3",
        by_hand=new("pipeline --method grpo --dry-run"),
    ),
    "no such experiment": Fault("experiment run nosuch --dry-run", fill={"FILE.toml": "financial_qa_tiny --dry-run"}),
    "no such cell": Fault("experiment run financial_qa --only nosuch --dry-run"),
}


def damage(name: str) -> None:
    with (LocalSnapshots(Path(os.environ["FINQA_HOME"])).get(name).path / "tasks.jsonl").open("a") as file:
        file.write("{}\n")


def damaged_snapshot() -> None:
    own()
    assert run("snapshot build --snapshot-name own --data own") == 0
    damage("own")


def spoilt() -> None:
    own()
    edit_question(Path("own"), 2, "answer", "")


def evaluation_only() -> None:
    store = LocalSnapshots(Path(os.environ["FINQA_HOME"]))
    store.build("closed", replace(DATASET, evaluation_only=True))


TRAIN = "train --model embedded --engine transformers --split dev"
DATA = {
    "a bad row": Fault(
        "data prepare train.json --out p",
        lambda: write_json(Path("train.json"), [finqa_row("a"), {}]),
        by_hand=lambda: write_json(Path("train.json"), [finqa_row("a")]) and None,
    ),
    "a file that is no JSON": Fault(
        "data prepare rows.json --out p",
        text("rows.json", "{"),
        by_hand=lambda: finqa_text_rows.write(Path("rows.json"), finqa_text_rows.original(1)),
    ),
    "no data to check": Fault("data check nothing", by_hand=lambda: write_folder(Path("nothing")) and None),
    "a question without an answer": Fault(
        "snapshot build --data own --snapshot-name mine", spoilt, by_hand=own_again, home=True
    ),
    "a folder that has data": Fault("data generate --companies 1 --questions 1 --out own", own),
    "no snapshot to play": Fault(
        "eval scripted --snapshot own --limit 1 --split train", own, {"DIR": "own"}, home=True
    ),
    "a folder of data for an environment of snapshots": Fault(
        "eval scripted --data own --limit 1 --split train", own, home=True
    ),
    "a damaged snapshot": Fault("snapshot show own", damaged_snapshot, {"DIR": "own"}, home=True),
    "no such split": Fault("eval scripted --limit 1 --split nosuch"),
    "the test to train on": Fault(f"{TRAIN} --set data.train_split=test --run-dir a", needs=("a",), then=78),
    "data for evaluation only": Fault(
        f"{TRAIN} --snapshot closed --run-dir a",
        evaluation_only,
        needs=("a",),
        home=True,
        by_hand=new(f"{TRAIN} --run-dir a"),
        then=78,
    ),
}


def no_json() -> None:
    Path(ATTEMPTS).write_text("{\n" + Path(ATTEMPTS).read_text().partition("\n")[2])


def restored() -> None:
    """The user puts the right line back."""
    run("eval scripted --limit 2 --split dev --run-dir right")
    shutil.copy("right/trajectories.jsonl", ATTEMPTS)


def unfinished(folder: str = "a") -> None:
    """Takes the last word of a run away, as a signal does."""
    document(f"{folder}/run.json", status="interrupted")()


def evaluated_again() -> str:
    run("eval scripted --limit 2 --split dev --run-dir c")
    return "compare c b --no-plots"


RUNS = {
    "a run that is there": Fault(
        "eval scripted --limit 1 --run-dir a", needs=AB, by_hand=new("eval scripted --limit 1 --run-dir new")
    ),
    "an evaluation that is begun with other settings": Fault(
        "eval scripted --limit 1 --seed 5 --run-dir a", unfinished, needs=AB, by_hand=new("eval --resume a")
    ),
    "the same rules again": Fault("eval --rescore a", needs=AB),
    "a limit of cost without a price": Fault("eval random --limit 1 --max-cost 5", fill={"PRICE": "0.1"}),
    "no run to show": Fault("show nothere", needs=AB, by_hand=new("show a")),
    "no such episode": Fault("show a 77", needs=AB, by_hand=new("show a 1")),
    "a damaged record": Fault("report a", no_json, needs=AB, by_hand=restored),
    "a report over another file": Fault(
        "report a --out x.html", text("x.html", "x"), needs=AB, by_hand=new("report a --out y.html")
    ),
    "one run to compare": Fault("compare a", needs=AB, by_hand=new("compare a b --no-plots")),
    "an unfinished run to compare": Fault(
        "compare a b --no-plots",
        document("a/run.json", status="running"),
        {"TARGET": "scripted --limit 2 --split dev --run-dir c", "FOLDER": "c"},
        needs=AB,
        by_hand=evaluated_again,
        again="compare c b --no-plots",
    ),
    "runs of other questions": Fault(
        "compare a d --no-plots",
        lambda: run("eval scripted --limit 2 --split dev --set eval.seed=5 --run-dir d"),
        needs=AB,
        by_hand=new("compare a b --no-plots"),
    ),
    "candidates that are resumed as training": Fault("train --resume candidates", needs=("candidates",), instead=True),
    "options of a resumed run": Fault("sample --resume candidates --limit 3", needs=("candidates",)),
    "fewer iterations than are finished": Fault(
        "train --resume training --iterations 0", needs=("training",), elsewhere=("--iterations",)
    ),
    "an evaluation that Ctrl-C ends": Fault(
        "eval scripted --limit 2 --run-dir x", during=interrupted("finqa_cli.runs.jsonl:GroupCommit.append")
    ),
    "a training that Ctrl-C ends": Fault(
        "train --resume training",
        lambda: unfinished("training"),
        needs=("training",),
        during=interrupted("finqa_cli.runs.run_folder:RunFolder.reopen"),
        instead=True,
    ),
    "no such checkpoint": Fault(f"export {W} --to peft --step 9 --out new", needs=("trained",)),
    "a damaged checkpoint": Fault(
        f"export {W} --to peft --step 2 --out new",
        lambda: Path(W, "checkpoints/step_2/checkpoint.json").write_text("{"),
        needs=("trained",),
    ),
    "no attempts for pairs": Fault("prefs nowhere", fill={"TARGET": "random --limit 2 --run-dir nowhere"}, then=65),
}

TRAINING = {
    "pairs for a method without them": Fault(
        "dpo pairs --set optimizer.name=grpo --epochs 0.01", needs=(*AB, "pairs"), then=65
    ),
    "an engine that cannot train": Fault(
        "train --iterations 1 --engine scripted --set data.max_prompt_tokens=1", then=65
    ),
    "demonstrations that earned too little": Fault(
        "sft b --set sft.minimum_reward=0.5",
        needs=("b",),
        fill={"scripted --split": "scripted --limit 2 --sandboxes 1 --split", "DIR": "d"},
        extra="--set lora.target_modules=nosuch",
        then=78,
    ),
    "no such model": Fault("eval ./nothere --limit 1", by_hand=new("eval scripted --limit 1")),
    "a model of the hub without a network": Fault(
        "eval no/such --limit 1",
        env={"HF_HUB_OFFLINE": "1"},
        by_hand=new("eval scripted --limit 1"),
        elsewhere=("unset",),
    ),
}

AT = "--set engine.options.base_url={url}"
EVAL = f"eval openai --limit 1 --sandboxes 1 {AT}"
MODEL = "--set engine.options.model=analyst"


def server(**options: Any) -> Callable[[], AbstractContextManager[OpenAIServer]]:
    return lambda: openai_server(**options)


@contextmanager
def without_tools() -> Iterator[OpenAIServer]:
    """A server that was started without its parser of calls."""
    with openai_server() as started:
        body = error_body('"auto" tool choice requires --enable-auto-tool-choice')
        started.faults.append(Answer(status=400, body=body, times=100))
        yield started


PROVIDERS = {
    "no name of a model": Fault(EVAL, server=server(), fill={"NAME": "analyst"}),
    "a model that the server has not": Fault(
        f"{EVAL} --set engine.options.model=nosuch", server=server(), fill={"NAME": "analyst"}
    ),
    "no key for OpenAI": Fault(
        "eval openai --limit 1 --set engine.options.model=x", by_hand=new(f"{EVAL} {MODEL}"), server=server()
    ),
    "a key that is refused": Fault(
        f"{EVAL} {MODEL} --set engine.options.api_key_env=OPENAI_API_KEY",
        server=server(key="right"),
        env={"OPENAI_API_KEY": "wrong"},
        by_hand=put("OPENAI_API_KEY", "right"),
    ),
    "an address without a server": Fault(
        f"eval openai --limit 1 --sandboxes 1 --set engine.options.base_url=http://127.0.0.1:9/v1 {MODEL}",
        server=server(),
        by_hand=new(f"{EVAL} {MODEL}"),
        fill={"http://HOST:PORT/v1": "{url}"},
    ),
    "a server without calls of tools": Fault(
        f"{EVAL} {MODEL}", server=lambda: without_tools(), by_hand=new("eval scripted --limit 1")
    ),
    "a model that doctor does not find": Fault(
        f"doctor --engine openai {AT} --set engine.options.model=nosuch",
        server=server(),
        check="openai model",
        fill={"NAME": "analyst"},
        then=(0, 1),
    ),
    "a key that a component lacks": Fault(
        "plugins show openai", check="openai", by_hand=put("OPENAI_API_KEY", "x"), elsewhere=("--set",)
    ),
}

SUM = '''
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


def mistaken(right: str, wrong: str) -> Fault:
    """An environment of the user with a mistake, which the user corrects."""
    assert right in SUM
    command = "eval random --environment ./env.py --limit 1 --split train --sandboxes 1"
    return Fault(command, text("env.py", SUM.replace(right, wrong)), by_hand=text("env.py", SUM))


ENVIRONMENTS = {
    "no such file of an environment": Fault(
        "eval random --environment ./nothere.py --limit 1", by_hand=new("eval random --limit 1")
    ),
    "an environment with a syntax error": mistaken("return 1.0", "return ("),
    "a tool without types": mistaken("a: int, b: int", "a, b"),
    "an environment without tasks": mistaken('yield {"prompt": "1 + 1?", "id": "one"}', "return []"),
}

FIRST_STEP, THIRD_STEP = "--until 00_data_validation", "--until 01_dataset/demonstrations"
GRPO = "pipeline --method grpo --quiet"
RESUME = f"pipeline --resume pipeline {FIRST_STEP}"


def grown(name: str) -> Callable[[], object]:
    """A file with a line more."""
    return lambda: Path(name).write_text(Path(name).read_text() + "\n")


class Damaging(Relay):
    """Damages the snapshot of a pipeline before the step that plays it."""

    def run(self, arguments: Sequence[str], log: Path, **given: Any) -> Ended:
        if arguments[0] == "eval":
            damage("openenv-finqa")
        return super().run(arguments, log, **given)


@contextmanager
def damaging() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_run, "Relay", Damaging)
        yield


@contextmanager
def in_this_process(*, training: int | None = None) -> Iterator[SimpleNamespace]:
    """Steps of experiments run without processes of their own; trainings may end with an exit status instead."""
    with pytest.MonkeyPatch.context() as patch:
        relay = lambda: InThisProcess(lambda words, _: training if words[0] == "train" else None)  # noqa: E731
        patch.setattr(experiment_run, "Relay", relay)
        yield SimpleNamespace(url="")


def shared_companies() -> None:
    """Rows of which every split asks about the same companies, as the published splits do."""
    Path("rows").mkdir()
    for split in ("train", "dev"):
        rows = [
            finqa_text_rows.prepared(page, id=f"C{page % 9}/2018/{split}_{page}.pdf-1", input_text=f"{split} {page}")
            for page in range(36)
        ]
        finqa_text_rows.write(Path(f"rows/{split}.jsonl"), *rows)


OF_DATES = """
[settings.environment]
name = "forecast"
options = { cluster = "date" }

[settings.data]
path = "rows"
eval_split = "test"

[settings.model]
"""


def shared_dates() -> None:
    """Forecasts of which every split asks about the same dates, and an experiment that divides them by date."""
    make_rows.main(["--out", "rows", "--format", "jsonl"])
    small = SMALL.replace('environment = "finqa-text"\n', "").replace("embedded-text", "embedded-forecast")
    Path("dates.toml").write_text(small.replace("\n[settings.model]\n", OF_DATES))


SHORT = SMALL.replace('"=2 * N"', "1")
WORKFLOWS = {
    "a pipeline of another method": Fault(
        "pipeline --method rloo --output pipeline",
        needs=("pipeline",),
        fill={"--output": "other"},
        extra="--dry-run",
    ),
    "a step that was changed by hand": Fault(
        RESUME, grown("pipeline/00_data_validation/manifest.json"), needs=("pipeline",), extra=FIRST_STEP
    ),
    "something in the place of a step": Fault(
        RESUME, text("pipeline/01_dataset/mine.txt", "mine"), needs=("pipeline",)
    ),
    "a pipeline on splits that share companies": Fault(
        "pipeline --environment finqa-text --data rows --model trained/base --method dpo --dry-run",
        shared_companies,
        needs=("trained",),
    ),
    "an experiment on splits that share dates": Fault("experiment run dates.toml --dry-run", shared_dates),
    "no pipeline to resume": Fault("pipeline --resume a", needs=AB, by_hand=new("pipeline --method grpo --dry-run")),
    "a pipeline whose first step fails": Fault(
        "pipeline --method grpo --data d --output p --quiet",
        lambda: Path("d").mkdir(),
        by_hand=lambda: write_folder(Path("d")) and f"pipeline --method grpo --data d --output new {FIRST_STEP}",
    ),
    "a pipeline with a step that needs a repair": Fault(
        f"{GRPO} --output p {BEGINNING} {THIRD_STEP}", home=True, during=damaging, extra=THIRD_STEP
    ),
    "a pipeline with a step that needs other settings": Fault(
        f"{GRPO} --output p {BEGINNING} --until 03_sft --set sft.minimum_reward=9",
        elsewhere=("eval",),
        by_hand=new(f"{GRPO} --output new {BEGINNING} {THIRD_STEP}"),
    ),
    "an experiment whose cells fail": Fault(
        "experiment run small.toml --keep-going",
        text("small.toml", SHORT),
        server=in_this_process,
        during=lambda: in_this_process(training=69),
        extra="--quiet",
        instead=True,
    ),
}

FAULTS = {
    **SETTINGS,
    **COMMANDS,
    **DATA,
    **RUNS,
    **TRAINING,
    **PROVIDERS,
    **ENVIRONMENTS,
    **WORKFLOWS,
}
