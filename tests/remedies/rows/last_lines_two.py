"""The last places of training, settings and set-up: methods, held-out questions, torchrun, images, breakers."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures import finqa_text_rows
from fixtures.cloud_fronts import Front, daytona
from fixtures.daytona_images import ready_image
from remedies.faults import Fault, new, text
from remedies.following import run
from remedies.rows.clouds import images
from remedies.rows.command_lines import TORCHRUN, without_torchrun
from remedies.rows.damaged_runs import document
from remedies.rows.own_methods import LEARNER, SHORT
from remedies.rows.plugin_faults import acme
from remedies.rows.user_code import GOOD, NEEDS_A_FILE, TASK, no_reward

from finqa_cli.errors import NothingToLearnError

OWN = (
    "train --environment ./env.py --model trained/base --iterations 1 --group-size 2 --target-groups-per-iter 1 "
    "--sandboxes 1 --no-preflight --max-gen-tokens 2 --max-steps 1 --allow-overlap"
)
OF_SPLITS = f"{OWN} --set data.train_split=easy --split hard --run-dir x"
LEARNT = (0, NothingToLearnError.exit_code)
"""Exit statuses of a training of one iteration that comes to its end."""


def of_splits(environment: str, *splits: str) -> str:
    """An environment with a question in each split."""
    tasks = (f'yield {{"prompt": "1 + 1?", "id": "{split}", "split": "{split}"}}' for split in splits)
    return environment.replace(TASK, "\n        ".join(tasks))


AT_TIMES = (
    of_splits(GOOD, "easy", "hard")
    .replace('"""Add numbers."""', '"""Add numbers."""\n\n    played = 0')
    .replace(
        "def add(",
        """def reset(self, id: str, **task):
        Sum.played += 1
        self.id, self.number = id, Sum.played

    def add(""",
    )
    .replace("return 1.0", "return 1.0 if self.id == 'easy' else float(self.number % 2)")
)
"""The hard question is answered in every second attempt."""

VALIDATED = "sft e --environment ./env.py --model trained/base --epochs 1 --validation-samples 1 --run-dir x"
BEGUN = "--until 00_data_validation/dev"
RECIPE = Path(__file__).parents[3] / "recipes/mbpp_policy.toml"
QUICK = "--lora-target-modules nosuch"


def demonstrated() -> None:
    """A demonstration of `train`; the reward of both splits is in a file."""
    text("env.py", of_splits(NEEDS_A_FILE, "train", "dev"))()
    text("reward.txt", "1")()
    run("eval random --environment ./env.py --split train --limit 1 --sandboxes 1 --run-dir e")


def renamed() -> None:
    """A pipeline whose steps name their data in it."""
    finqa_text_rows.write(Path("dev.json"), *(finqa_text_rows.original(number) for number in range(1, 9)))
    options = f"--environment finqa-text --data dev.json --init {RECIPE} --quick-test"
    assert run(f"pipeline --method grpo {options} {BEGUN} --output one") == 0
    Path("one").rename("two")


@contextmanager
def reward_mislaid() -> Iterator[None]:
    Path("reward.txt").rename("kept.txt")
    yield
    Path("kept.txt").rename("reward.txt")


BOXED = """
import os
from finqa_cli.errors import SandboxError
class InABox(Stock):
    async def step(self, call):
        if "ACME_BOX" in os.environ:
            raise SandboxError("the sandbox does not answer")
        return await super().step(call)

class Boxed(Inventory):
    def sandbox_spec(self):
        return ExecutionSpec()
    async def open(self, task, *, seed, sandbox):
        return InABox(task, self.reward)

EXTRA = [Component(kind="environment", name="acme-boxed", target=f"{__name__}:Boxed", snapshotless=True)]
"""
"""Episodes that take a sandbox each, in which nothing runs."""
IN_SANDBOXES = f"{OWN.replace('./env.py', 'acme-boxed')} --run-dir x"


@contextmanager
def sandboxes_that_fail() -> Iterator[None]:
    os.environ["ACME_BOX"] = "1"
    yield
    del os.environ["ACME_BOX"]


@contextmanager
def without_transformers() -> Iterator[SimpleNamespace]:
    """An installation of finqa without the libraries for training."""
    find = importlib.util.find_spec
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "transformers" else find(name))
        yield SimpleNamespace(url="")


@contextmanager
def broken_image() -> Iterator[Front]:
    """Daytona, whose image of the embedded data starts no server; one that is built is sound."""
    service = daytona(**images())
    (name,) = ready_image(Path(os.environ["FINQA_HOME"]))
    service.control.break_image(name)
    os.environ.update(service.environment)
    with service.trusted():
        yield Front({}, "")


LAST_TWO = {
    "a setting and a member of it": Fault(
        "config show --engine openai --set engine.options.extra_body={a=1} --set engine.options.extra_body.a=2",
        by_hand=new("config show --engine openai --set engine.options.extra_body.a=2"),
        needs=(),
    ),
    "a requirements file that names one that is missing": Fault(
        "setup vllm --requirements r.txt",
        lambda: (text("r.txt", "-r nothere.txt\n")(), text("good.txt", "")()),
        {"FILE": "good.txt", "--requirements": "good.txt"},
        home=True,
        then=1,  # after the requirements were read and installed: vLLM is not among them
        needs=(),
    ),
    "a pipeline that was renamed": Fault(
        f"pipeline --resume two {BEGUN}", renamed, needs=(), again=f"pipeline --resume one {BEGUN}"
    ),
    "a training of which nothing is learnt": Fault(
        OF_SPLITS,
        text("env.py", AT_TIMES),
        needs=("trained",),
        elsewhere=("train it by imitation",),
        by_hand=new(OF_SPLITS.replace("=easy", "=hard").replace("--run-dir x", "--run-dir y")),
    ),
    "episodes of a training that end in faults": Fault(
        f"{OWN} --set pool.max_play_retries=0 --run-dir x",
        needs=("trained",),
        during=no_reward,
        instead=True,
        then=LEARNT,
    ),
    "a learner of no values": Fault(
        f"{SHORT} --set learner.name=acme-learner --optimizer ppo",
        server=acme(module=LEARNER.replace("    keeps_reference = False\n", "")),
        needs=(),
        then=LEARNT,
    ),
    "a learner of one process": Fault(
        f"{SHORT} --set learner.name=acme-learner",
        server=acme(module=LEARNER),
        env=TORCHRUN,
        needs=(),
        by_hand=without_torchrun,
        then=LEARNT,
    ),
    "prompts that only a sandbox knows": Fault(
        f"{IN_SANDBOXES} --set data.max_prompt_tokens=2000",
        server=acme(module=BOXED),
        by_hand=new(IN_SANDBOXES.replace("-dir x", "-dir y")),
        needs=("trained",),
        then=LEARNT,
    ),
    "sandboxes that fail again and again": Fault(
        "eval acme-engine --environment acme-boxed --split test --sandboxes 1 --attempts 2 "
        "--set pool.max_play_retries=0",
        server=acme(module=BOXED),
        during=sandboxes_that_fail,
        by_hand=lambda: None,
        needs=(),
    ),
    "a model of unknown size": Fault(
        "doctor --assume-gpus 1x80 --model ./other",
        lambda: (shutil.copytree("trained/base", "other"), document("other/config.json", model_type="other")()),
        server=without_transformers,
        needs=("trained",),
        check="placement",
        by_hand=new("doctor --assume-gpus 1x80 --model trained/base"),
    ),
    "an image whose sandboxes do not work": Fault(
        "snapshot build --sandbox daytona",
        server=broken_image,
        home=True,
        needs=(),
        elsewhere=("snapshot build",),
    ),
    "no held-out questions of other clusters": Fault(
        f"{VALIDATED} --split train",
        demonstrated,
        needs=("trained",),
        elsewhere=("--snapshot",),
        by_hand=new(f"{VALIDATED} --split dev"),
        extra=QUICK,
        then=78,
    ),
    "answers to held-out questions that end in faults": Fault(
        f"{VALIDATED} --split dev", demonstrated, needs=("trained",), during=reward_mislaid
    ),
}
