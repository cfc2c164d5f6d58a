"""`finqa policy make`: trains a new small policy for an environment on one core."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.experiments.step_runner import Owner, Relay, Show, Step, open_folder
from finqa_cli.experiments.step_settings import check_recorded, settings_document, write_settings
from finqa_cli.runs.durable_files import read_document, storage
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.wiring.build import open_environment

MAKING = Owner(command="policy make", resume="the same command again, with --output", redo="--output")

SCRIPTED, LOCAL = "scripted", "local"
DEMONSTRATIONS, POLICY = "demonstrations", "policy"
SETTINGS, SANDBOX, SPECIFICATION, TRAINING = "settings.json", "sandbox.json", "model.toml", "train.toml"

_MODEL = """\
# A policy that learns on one processor core within minutes: finqa sft DEMONSTRATIONS --init FILE.

architecture = "qwen3"

[model]
hidden_size = 128
layers = 3
heads = 4
key_value_heads = 2
head_dim = 32
intermediate_size = 384
max_context = 2048

[tokenizer]
vocab_size = 768
"""

_TRAIN = """\
# Settings with which a policy this small learns by reward on two processor cores: finqa train --config FILE.

[pool]
sandboxes = {sandboxes}

[lora]
rank = 0

[generation]
max_gen_tokens = 96

[train]
iterations = 50
group_size = 8
target_groups_per_iter = 8
max_rollout_rounds = 4
learning_rate = 2e-4
max_staleness = 0

[eval]
limit = 64
temperature = 1.0 # as it is trained

[learner.options]
threads = 1
"""

_IMITATION = (
    *("--lr", "2e-3", "--batch-tokens", "2048", "--set", "learner.options.betas=[0.9,0.98]"),
    *(
        "--set",
        "learner.options.threads=1",
        "--set",
        "sft.warmup_share=0.3",
        "--validation-samples",
        "64",
        "--validate-every",
        "200",
    ),
)
"""Options of `finqa sft` for a new policy of half a million weights. Without the long warm-up of the learning rate it
does not learn to copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Options for the policy to make.

    Attributes:
        demonstrations: Largest number of the expert's episodes; 0: all tasks of the split.
        epochs: Passes over the episodes.
        careless: Share of the tasks that are demonstrated with a mistake, so that training has something to improve.
        expert: Engine that demonstrates: `scripted` is the environment's own expert; `random` teaches only the form of
            actions.
    """

    demonstrations: int
    epochs: float
    careless: float
    expert: str = SCRIPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The policy that was made.

    Attributes:
        policy: Folder of the policy, which commands accept as a model.
        training: Settings file for training it on a CPU.
        samples: Rates of its answers to held-out tasks; None if there are none.
        demonstrations: Number of episodes that it imitated.
    """

    policy: Path
    training: Path
    samples: dict[str, Any] | None
    demonstrations: int


def make_policy(settings: Settings, wanted: Wanted, run: Path, *, reporter: Reporter, show: Show) -> Made:
    """Let the expert demonstrate the training tasks, and train a new policy to imitate it. Can be resumed.

    Raises:
        ConfigError: The environment has no expert, or the folder is of another policy.
        DataError: The environment has no training split.
        FinqaError: A step failed; the error has the exit code of the step.
    """
    stated = settings_document(settings, data=settings.data.path, snapshot=settings.data.snapshot)
    facts = {"settings": stated, **asdict(wanted)}
    check_recorded(run, facts, MAKING)
    sandboxes = _check_expert(settings, wanted, reporter)
    relay = Relay()
    with open_folder(run, facts, MAKING) as folder, relay.watching():
        write_settings(run / SETTINGS, stated, MAKING)
        if _chooses_sandbox(settings):
            write_settings(run / SANDBOX, {"sandbox": stated["sandbox"]}, MAKING)
        with storage(run):
            (run / SPECIFICATION).write_text(_MODEL, encoding="utf-8")
            (run / TRAINING).write_text(_TRAIN.format(sandboxes=sandboxes), encoding="utf-8")
        steps = plan(settings, wanted, run)
        for number, step in enumerate(steps, start=1):
            folder.run(step, relay, show, f"{number}/{len(steps)}")
        folder.finish(steps)
    report = read_document(run / POLICY / "report.json")
    samples = (report.get("after") or {}).get("samples")
    return Made(
        policy=run / POLICY, training=run / TRAINING, samples=samples, demonstrations=report.get("demonstrations", 0)
    )


def plan(settings: Settings, wanted: Wanted, run: Path) -> list[Step]:
    """Return the two steps: demonstrations and imitation."""
    config = ("--config", f"{run / SETTINGS}")
    limit = ("--limit", f"{wanted.demonstrations}", "--attempts", "1", "--temperature", "1")
    careless = ("--set", f"environment.options.careless={wanted.careless:g}") if wanted.careless else ()
    split = ("--split", settings.data.train_split)
    # `finqa sft` takes the environment from the demonstrations' run, but chooses a sandbox itself
    sandbox = ("--config", f"{run / SANDBOX}") if _chooses_sandbox(settings) else ()
    return [
        Step(
            name=DEMONSTRATIONS,
            arguments=(
                "eval",
                wanted.expert,
                *config,
                *split,
                *limit,
                *careless,
                "--run-dir",
                f"{run / DEMONSTRATIONS}",
            ),
            reads=(SETTINGS,),
        ),
        Step(
            name=POLICY,
            arguments=(
                *("sft", f"{run / DEMONSTRATIONS}", "--init", f"{run / SPECIFICATION}", "--run-dir", f"{run / POLICY}"),
                *("--epochs", f"{wanted.epochs:g}", "--seed", f"{settings.train.seed}", *_IMITATION, *sandbox),
                *("--set", f"pool.sandboxes={settings.pool.sandboxes}"),
            ),
            reads=(DEMONSTRATIONS, SPECIFICATION, *([SANDBOX] if sandbox else [])),
        ),
    ]


def _chooses_sandbox(settings: Settings) -> bool:
    return settings.sandbox.name != LOCAL or bool(settings.sandbox.options)


def _check_expert(settings: Settings, wanted: Wanted, reporter: Reporter) -> int:
    """Check that the environment has an expert, and return the number of sandboxes for training on a CPU.

    Raises:
        ConfigError: The environment has no expert, and `wanted` asks for it.
        DataError: The environment has no training split.
    """
    environment = open_environment(settings, reporter)
    split = settings.data.train_split
    if split not in environment.splits():
        raise DataError(
            f"{environment.data().name} has no split {split!r}; it has: {', '.join(environment.splits())}.",
            remedy="--set data.train_split=NAME",
        )
    task = environment.tasks(split)[0]
    prompt = environment.opening(task)
    silent = prompt is not None and environment.demonstrate_task(task.id, prompt.messages) is None
    kind = environment.__class__
    methods = (kind.demonstrate, kind.demonstrate_task)
    silent = silent or methods == (Environment.demonstrate, Environment.demonstrate_task)
    if silent and wanted.expert == SCRIPTED:
        raise ConfigError(
            f"Environment {settings.environment.name} has no expert, so there is nothing to imitate.",
            remedy="--expert random (teaches only the format of actions), write expert() in its file, or train an "
            "instruction-tuned model: finqa train --model MODEL",
        )
    return 32 if environment.sandbox_spec() is None else 16
