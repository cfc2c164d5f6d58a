"""The steps of a pipeline as commands of finqa, each of which can be run alone. Pure, but for looking up the reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.errors import UsageError
from finqa_cli.evaluation.compare.evaluated_runs import PIPELINE_EVALUATION
from finqa_cli.experiments.pipeline_data import data_commands
from finqa_cli.experiments.pipeline_spec import PipelineSpec
from finqa_cli.settings import Settings
from finqa_cli.wiring.build import make_reward

DEMONSTRATIONS, REWARDS, SFT, CANDIDATES = "01_dataset/demonstrations", "02_rewards", "03_sft", "04_candidates"
TRAINED = {"ppo": "05_ppo", "grpo": "06_grpo", "rloo": "07_rloo", "dpo": "09_dpo"}
PAIRS, EVALUATION, COMPARISON = "08_prefs", PIPELINE_EVALUATION, "11_compare"
IMITATED = f"{EVALUATION}/sft"

IMITATION_FILE, TRAINING_FILE = "settings/imitation.json", "settings/training.json"
RESUMABLE = ("train", "sft", "sample", "dpo")
"""Commands that take --resume FOLDER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command.

    Attributes:
        name: Its folder below that of the pipeline, such as `10_eval/sft`.
        arguments: After `finqa`.
        reads: What it depends on: earlier steps, and files below the folder of the pipeline.
        stdout: File of its folder for what it prints, for a command that writes no folder; or empty.
    """

    name: str
    arguments: tuple[str, ...]
    reads: tuple[str, ...] = ()
    stdout: str = ""

    @property
    def command(self) -> str:
        """Its command, such as `rewards show`."""
        words = self.arguments[:2] if self.arguments[0] in ("data", "snapshot", "rewards") else self.arguments[:1]
        return " ".join(words)


def plan(spec: PipelineSpec, run: Path) -> list[Step]:
    """All steps, in order.

    Raises:
        ConfigError: The reward of the settings is unknown, or does not take its options.
    """
    imitation, training = f"{run / IMITATION_FILE}", f"{run / TRAINING_FILE}"
    prepared = [
        Step(name=name, arguments=tuple(arguments), stdout=stdout)
        for name, arguments, stdout in data_commands(spec.data, run, settings=imitation, seed=spec.training.train.seed)
    ]
    steps = [
        *prepared,
        _demonstrations(spec, run, imitation, tuple(step.name for step in prepared)),
        *_rewards(spec.training, run, training),
        _sft(spec, run, imitation),
        _sample(spec, run, training),
    ]
    if spec.method == "dpo":
        asked = ("--rule", spec.pair_rule, "--seed", str(spec.training.train.seed))
        arguments = ("prefs", f"{run / CANDIDATES}", *asked, "--run-dir", f"{run / PAIRS}")
        steps.append(Step(name=PAIRS, arguments=arguments, reads=(CANDIDATES,)))
    return [*steps, _training(spec, run, training), *_evaluations(spec, run, training), _comparison(spec, run)]


def find_step(steps: Sequence[Step], wanted: str) -> int:
    """The place of a step that is named in full, by its number or by its word: `03_sft`, `03` or `sft`.

    Raises:
        UsageError: No step, or more than one, is meant.
    """
    names = [step.name for step in steps]
    found = [index for index, name in enumerate(names) if name == wanted] or [
        index for index, name in enumerate(names) if "/" not in name and wanted in name.split("_", 1)
    ]
    if len(found) != 1:
        raise UsageError(f"There is no step {wanted!r} here.", remedy=f"one of: {', '.join(names)}")
    return found[0]


def _demonstrations(spec: PipelineSpec, run: Path, settings: str, reads: tuple[str, ...]) -> Step:
    shown = spec.demonstrations
    habits = {"unquoted_years": shown.unquoted_years, "undivided_percentages": shown.undivided_percentages}
    careless = [
        word for name, share in habits.items() if share for word in ("--set", f"engine.options.{name}={share:g}")
    ]
    split = spec.imitation.data.train_split
    asked = ["--split", split, "--limit", str(shown.limit), "--attempts", "1"]
    out = f"{run / DEMONSTRATIONS}"
    return Step(
        name=DEMONSTRATIONS,
        arguments=("eval", "scripted", "--config", settings, *asked, *careless, "--run-dir", out),
        reads=(IMITATION_FILE, *reads),
    )


def _rewards(settings: Settings, run: Path, file: str) -> list[Step]:
    """The specification of the reward, and its own tests where it has some."""
    reward, name = make_reward(settings), settings.reward.name
    out = f"{run / REWARDS}"
    steps = [
        Step(name=REWARDS, arguments=("rewards", "show", name, "--config", file, "--out", out), reads=(TRAINING_FILE,))
    ]
    if reward is not None and reward.cases():
        test = ("rewards", "test", name, "--config", file, "--out", out)
        steps.append(Step(name=f"{REWARDS}/unit_tests", arguments=test, reads=(TRAINING_FILE, REWARDS)))
    return steps


def _sft(spec: PipelineSpec, run: Path, settings: str) -> Step:
    start = ["--init", spec.init] if spec.init else ["--model", spec.imitation.model.name]
    shown = f"{run / DEMONSTRATIONS}"
    return Step(
        name=SFT,
        arguments=("sft", shown, *start, "--config", settings, "--run-dir", f"{run / SFT}"),
        reads=(IMITATION_FILE, DEMONSTRATIONS),
    )


def _sample(spec: PipelineSpec, run: Path, settings: str) -> Step:
    wanted = spec.candidates
    asked = {
        "--num-candidates": str(wanted.each),
        "--temperature": f"{wanted.temperature:g}",
        "--top-p": f"{wanted.top_p:g}",
        "--split": spec.training.data.train_split,
        "--limit": str(wanted.limit),
    }
    words = (*[word for pair in asked.items() for word in pair], *_rules(spec.training))
    return Step(
        name=CANDIDATES,
        arguments=("sample", f"{run / SFT}", "--config", settings, *words, "--run-dir", f"{run / CANDIDATES}"),
        reads=(TRAINING_FILE, SFT),
    )


def _training(spec: PipelineSpec, run: Path, settings: str) -> Step:
    name = TRAINED[spec.method]
    start = ["dpo", f"{run / PAIRS}"] if spec.method == "dpo" else ["train"]
    reads = (TRAINING_FILE, SFT, *((PAIRS,) if spec.method == "dpo" else ()))
    words = ("--model", f"{run / SFT}", "--config", settings, "--run-dir", f"{run / name}")
    return Step(name=name, arguments=(*start, *words), reads=reads)


def _evaluations(spec: PipelineSpec, run: Path, settings: str) -> list[Step]:
    """Of the trained policy and of the imitating one, on the same questions under the same rules."""
    asked = ("--config", settings, "--split", spec.training.data.eval_split, *_rules(spec.training))
    trained = TRAINED[spec.method]
    policy = run / trained / "checkpoints" / "final" if spec.method == "dpo" else run / trained
    targets = {EVALUATION: (policy, trained), IMITATED: (run / SFT, SFT)}
    return [
        Step(
            name=name,
            arguments=("eval", f"{target}", *asked, "--run-dir", f"{run / name}"),
            reads=(TRAINING_FILE, source),
        )
        for name, (target, source) in targets.items()
    ]


def _rules(settings: Settings) -> tuple[str, ...]:
    """Who asks and judges, and under which limits; where no flag says so, the run of the policy decides."""
    limits = settings.generation
    return (
        *("--environment", settings.environment.name, "--reward", settings.reward.name),
        *("--max-steps", str(limits.max_steps), "--max-gen-tokens", str(limits.max_gen_tokens)),
    )


def _comparison(spec: PipelineSpec, run: Path) -> Step:
    runs = (f"{run / IMITATED}", f"{run / EVALUATION}", *spec.compare_with)
    plots = () if spec.plots else ("--no-plots",)
    return Step(
        name=COMPARISON,
        arguments=("compare", *runs, "--baseline", "sft", *plots, "--out", f"{run / COMPARISON}"),
        reads=(EVALUATION, IMITATED),
    )
