"""Plans and runs the steps of a pipeline, from raw data to a comparison; each step is a finqa command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, FinqaError, UsageError
from finqa_cli.experiments.pipeline_spec import DataSource, PipelineSpec, check_unchanged, read_spec
from finqa_cli.experiments.step_runner import Owner, Relay, Show, State, Step, StepFolder, open_folder, read_facts
from finqa_cli.experiments.step_settings import check_recorded, check_variables, settings_document, write_settings
from finqa_cli.runs.durable_files import read_document, storage
from finqa_cli.runs.run_summary import PIPELINE_EVALUATION
from finqa_cli.settings import Settings
from finqa_cli.wiring.build import make_verdict

_STEP_FLAGS = {
    "sample": {
        "--num-candidates": "--num-candidates",
        "--temperature": "--candidate-temperature",
        "--top-p": "--candidate-top-p",
        "--limit": "--candidate-questions",
    },
    "prefs": {"--rule": "--pair-rule"},
}
PIPELINE = Owner(command="pipeline", resume="finqa pipeline --resume", redo="--from", flags=_STEP_FLAGS)

CHECKED, DATASET = "00_data_validation", "01_dataset"
DEMONSTRATIONS, REWARDS, SFT, CANDIDATES = "01_dataset/demonstrations", "02_rewards", "03_sft", "04_candidates"
TRAINED = {"ppo": "05_ppo", "grpo": "06_grpo", "rloo": "07_rloo", "dpo": "09_dpo"}
PAIRS, EVALUATION, COMPARISON = "08_prefs", PIPELINE_EVALUATION, "11_compare"
IMITATED = f"{EVALUATION}/sft"
FINAL_CHECK, FINAL_COMPARISON = f"{DATASET}/final_test", f"{COMPARISON}/final_test"
FINAL_EVALUATION, FINAL_IMITATED = f"{EVALUATION}/final_test", f"{EVALUATION}/final_test_sft"

IMITATION_FILE, TRAINING_FILE = "settings/imitation.json", "settings/training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A step, its command line, and its state; `seconds` is None until it is done."""

    name: str
    command: str
    state: State
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """State of a pipeline; `report` is on the comparison, `final_report` on the final test, None before they exist."""

    run: Path
    method: str
    steps: tuple[StepReport, ...]
    report: Path | None
    final_report: Path | None


def plan(spec: PipelineSpec, run: Path) -> list[Step]:
    """Plans all steps, in order.

    Raises:
        ConfigError: The reward of the settings or one of its options is unknown.
    """
    imitation, training = f"{run / IMITATION_FILE}", f"{run / TRAINING_FILE}"
    seed = str(spec.training.train.seed)
    prepared = _data_steps(spec.data, run, settings=imitation, seed=seed)
    start = ("--init", spec.init) if spec.init else ("--model", spec.imitation.model.name)
    trained = TRAINED[spec.method]
    learner: tuple[str, ...] = ("train",)
    pairs: tuple[Step, ...] = ()
    if spec.method == "dpo":
        learner = ("dpo", f"{run / PAIRS}")
        pairs = (
            _step(run, PAIRS, ("prefs", f"{run / CANDIDATES}", "--rule", spec.pair_rule, "--seed", seed), CANDIDATES),
        )
    return [
        *prepared,
        *_final_check(spec, run, training, [step.name for step in prepared]),
        _demonstrations(spec, run, imitation, [step.name for step in prepared]),
        *_rewards(spec.training, run, training),
        _step(
            run, SFT, ("sft", f"{run / DEMONSTRATIONS}", *start, "--config", imitation), IMITATION_FILE, DEMONSTRATIONS
        ),
        _sample(spec, run, training),
        *pairs,
        _step(
            run,
            trained,
            (*learner, "--model", f"{run / SFT}", "--config", training),
            *(TRAINING_FILE, SFT, *(step.name for step in pairs)),
        ),
        *_evaluations(spec, run, training),
        _comparison(spec, run),
        *_final_test(spec, run, training),
    ]


def find_step(steps: Sequence[Step], wanted: str) -> int:
    """Returns the index of a step by its name, its number or its word: `03_sft`, `03` or `sft`.

    Raises:
        UsageError: No step matches, or more than one.
    """
    names = [step.name for step in steps]
    found = [index for index, name in enumerate(names) if name == wanted] or [
        index for index, name in enumerate(names) if "/" not in name and wanted in name.split("_", 1)
    ]
    if len(found) != 1:
        raise UsageError(f"This pipeline has no step {wanted!r}.", remedy=f"one of: {', '.join(names)}")
    return found[0]


def chosen_steps(spec: PipelineSpec, run: Path, *, redo: str, until: str) -> tuple[list[Step], int, int]:
    """Plans all steps; also returns the indices of the first one to run again and of the last one to run.

    The first index is the number of steps if no step is to run again.

    Raises:
        UsageError: There is no such step, or the first comes after the last.
        ConfigError: A setting does not fit.
    """
    steps = plan(spec, run)
    first = find_step(steps, redo) if redo else len(steps)
    last = find_step(steps, until) if until else len(steps) - 1
    if redo and first > last:
        raise UsageError(f"--from {redo} comes after --until {until}.", remedy="leave out --from")
    return steps, first, last


def data_path(data: DataSource, run: Path) -> Path | None:
    """Returns the value of `--data` for the steps after 01; None: no `--data`."""
    if data.kind == "finqa":
        return run / DATASET
    return Path(data.path) if data.kind == "rows" else None


def stored_spec(run: Path) -> PipelineSpec:
    """Reads the stored specification of the pipeline in a folder.

    Raises:
        ConfigError: There is no pipeline in the folder.
        DataError: Its run.json is damaged.
    """
    if (facts := read_facts(run, PIPELINE)) is None:
        raise ConfigError(f"There is no pipeline in {run}.", remedy="finqa pipeline --method grpo")
    return read_spec(facts["parameters"])


def new_output(base: Path) -> Path:
    """Creates `<base>/run_001`, or the next number that is free."""
    with storage(base):
        base.mkdir(parents=True, exist_ok=True)
        number = 1
        while (path := base / f"run_{number:03d}").exists() or not _made(path):
            number += 1
    return path


def _made(path: Path) -> bool:
    """Creates a folder; returns False if another process has just created it."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def preview(spec: PipelineSpec, run: Path, *, redo: str, until: str) -> PipelineResult:
    """Reports the steps up to `until` with their states; steps from `redo` on are to do. Nothing is written.

    Raises:
        UsageError: There is no such step, or `redo` comes after `until`.
        ConfigError: A setting does not fit, or the folder was changed by hand.
    """
    steps, first, last = chosen_steps(spec, run, redo=redo, until=until)
    facts = read_facts(run, PIPELINE)
    folder = StepFolder(run, facts, PIPELINE) if facts is not None else None
    states: list[State] = ["to do"] * len(steps)
    if folder is not None:
        states[:first] = [folder.state(step) for step in steps[:first]]
    return _result(spec, run, steps[: last + 1], states[: last + 1], folder)


def run_pipeline(
    spec: PipelineSpec,
    run: Path,
    *,
    redo: str,
    until: str,
    past_gates: bool = False,
    show: Show,
    relay: Relay | None = None,
) -> PipelineResult:
    """Runs the steps that are not done yet.

    Args:
        spec: The specification. If the folder contains a pipeline, it must be the same one.
        run: Folder of the pipeline.
        redo: Step to run again with all later steps; their earlier results are moved aside. Empty: none.
        until: Last step to run. Empty: all.
        past_gates: Continue after a step even if too few of its answers have the right form.
        show: Called with every line that a step prints.
        relay: Runs the processes and passes signals on.

    Raises:
        UsageError: There is no such step.
        ConfigError: The folder is of another configuration, locked by another process, or was changed by hand; or data
            or environment variables have changed.
        FinqaError: A step failed; the error has the exit code of the step. Or too few answers have the right form.
        InterruptedRun: A signal stopped a step; `--resume` continues.
    """
    relay = relay or Relay()
    steps, first, last = chosen_steps(spec, run, redo=redo, until=until)
    check_recorded(run, spec.document(), PIPELINE)
    with open_folder(run, spec.document(), PIPELINE) as folder, relay.watching():
        for name, settings in ((IMITATION_FILE, spec.imitation), (TRAINING_FILE, spec.training)):
            document = settings_document(settings, data=data_path(spec.data, run), snapshot=spec.data.snapshot)
            write_settings(run / name, document, PIPELINE)
        if redo:
            for step in steps[:first]:
                if folder.state(step) != "done":
                    raise UsageError(
                        f"{step.name} is not done yet, so a later step cannot be the first one.",
                        remedy=folder.resumption,
                    )
            for moved in folder.set_aside(steps[first:]):
                show(f"Set aside: {moved}")
        states = _states(folder, steps)
        if any(state != "done" for state in states[: last + 1]):
            for source in (spec.data, *((spec.final_test,) if spec.final_test else ())):
                check_unchanged(source)
            check_variables(run / IMITATION_FILE, run / TRAINING_FILE)
        for place, step in enumerate(steps[: last + 1]):
            if states[place] != "done":
                folder.run(step, relay, show, f"{place + 1}/{len(steps)}")
                states[place] = "done"
            if not past_gates and place < last and states[place + 1] != "done":
                _check_gate(run, step, folder.resumption)
        folder.finish(steps if all(state == "done" for state in states) else None)
        return _result(spec, run, steps, states, folder)


def _check_gate(run: Path, step: Step, resume: str) -> None:
    """Raises a FinqaError if too few answers of a step have the right form for the steps after it."""
    if step.name not in (SFT, CANDIDATES):
        return
    report = read_document(run / step.name / "report.json")
    if report.get("parse_rate_reached") is False:
        raise FinqaError(
            f"{step.name} stopped the pipeline: {100 * report['parse_rate']:.0f} % of its answers have the right form, "
            f"and {100 * report['parse_rate_wanted']:.0f} % are required, because later steps learn "
            "from answers that can be parsed.",
            remedy=f"another --output with --set sft.epochs=N, more demonstrations or another --model; {resume} "
            "--past-gates continues anyway",
        )


def document(result: PipelineResult) -> dict[str, Any]:
    """Returns the `--json` form."""
    steps = [
        {"name": step.name, "state": step.state, "seconds": step.seconds, "command": step.command}
        for step in result.steps
    ]
    reports = {"report": result.report, "final_report": result.final_report}
    shown = {name: str(path) if path else None for name, path in reports.items()}
    return {"run": str(result.run), "method": result.method, **shown, "steps": steps}


def _states(folder: StepFolder, steps: Sequence[Step]) -> list[State]:
    """Returns the state of every step; finished steps come first.

    Raises:
        ConfigError: A step is done, but an earlier one is not; or a finished step was changed by hand.
    """
    states = [folder.state(step) for step in steps]
    pending = next((index for index, state in enumerate(states) if state != "done"), len(steps))
    if later := [step.name for step, state in zip(steps[pending:], states[pending:], strict=True) if state == "done"]:
        raise folder.stale(steps[pending], f"{steps[pending].name} is not done, but the later step {later[0]} is")
    return states


def _result(
    spec: PipelineSpec, run: Path, steps: Sequence[Step], states: Sequence[State], folder: StepFolder | None
) -> PipelineResult:
    reports = tuple(
        StepReport(
            name=step.name, command=step.line, state=state, seconds=folder.seconds(step) if folder is not None else None
        )
        for step, state in zip(steps, states, strict=True)
    )
    found = [path if (path := run / name / "report.md").is_file() else None for name in (COMPARISON, FINAL_COMPARISON)]
    return PipelineResult(run=run, method=spec.method, steps=reports, report=found[0], final_report=found[1])


def _step(run: Path, name: str, arguments: Sequence[str], *reads: str, out: str = "--run-dir") -> Step:
    """Returns a step whose command gets its folder below the run by the flag `out`."""
    return Step(name=name, arguments=(*arguments, out, f"{run / name}"), reads=reads)


def _data_steps(data: DataSource, run: Path, *, settings: str, seed: str) -> list[Step]:
    """Returns steps 00 and 01, which check and prepare the questions; generated questions need none."""

    def check(source: str, name: str = CHECKED) -> Step:
        return _step(run, name, ("data", "check", source), out="--out")

    def build(folder: str) -> Step:
        asked = ("--config", settings, "--snapshot-name", data.snapshot, "--data", folder, "--json")
        return Step(name=DATASET, arguments=("snapshot", "build", *asked), stdout="snapshot.json")

    match data.kind:
        case "embedded":
            return [check("embedded"), build(f"{run / CHECKED / 'data'}")]
        case "folder":
            return [check(data.path), build(data.path)]
        case "snapshot":
            words = ("snapshot", "show", data.snapshot, "--config", settings, "--json")
            return [Step(name=CHECKED, arguments=words, stdout="snapshot.json")]
        case "generated":
            return []
    checks = [check(file, f"{CHECKED}/{Path(file).stem}") for file in data.files]
    if data.kind == "rows":
        return checks
    divided = ("--split-by", "company" if data.by_company else "file", "--seed", seed)
    return [*checks, _step(run, DATASET, ("data", "prepare", *data.files, *divided), out="--out")]


def _demonstrations(spec: PipelineSpec, run: Path, settings: str, reads: Sequence[str]) -> Step:
    shown = spec.demonstrations
    habits = {"unquoted_years": shown.unquoted_years, "undivided_percentages": shown.undivided_percentages}
    careless = [
        word for name, share in habits.items() if share for word in ("--set", f"engine.options.{name}={share:g}")
    ]
    asked = ("--split", spec.imitation.data.train_split, "--limit", str(shown.limit), "--attempts", "1", *careless)
    return _step(run, DEMONSTRATIONS, ("eval", "scripted", "--config", settings, *asked), IMITATION_FILE, *reads)


def _rewards(settings: Settings, run: Path, file: str) -> list[Step]:
    """Returns the steps that write the specification of the reward and, if it has tests, run them."""
    reward, named = make_verdict(settings), (settings.reward.name, "--config", file, "--out", f"{run / REWARDS}")
    steps = [Step(name=REWARDS, arguments=("rewards", "show", *named), reads=(TRAINING_FILE,))]
    if reward is not None and reward.cases():
        reads = (TRAINING_FILE, REWARDS)
        steps.append(Step(name=f"{REWARDS}/unit_tests", arguments=("rewards", "test", *named), reads=reads))
    return steps


def _sample(spec: PipelineSpec, run: Path, settings: str) -> Step:
    wanted = spec.candidates
    asked = {
        "--config": settings,
        "--num-candidates": str(wanted.each),
        "--temperature": f"{wanted.temperature:g}",
        "--top-p": f"{wanted.top_p:g}",
        "--split": spec.training.data.train_split,
        "--limit": str(wanted.limit),
    }
    words = [word for pair in asked.items() for word in pair]
    return _step(run, CANDIDATES, ("sample", f"{run / SFT}", *words, *_rules(spec.training)), TRAINING_FILE, SFT)


def _evaluations(spec: PipelineSpec, run: Path, settings: str) -> list[Step]:
    """Returns the evaluations of the trained and of the imitating policy, on the same questions by the same rules."""
    asked = ("--split", spec.training.data.eval_split)
    return [
        _evaluation(spec, run, settings, EVALUATION, TRAINED[spec.method], asked),
        _evaluation(spec, run, settings, IMITATED, SFT, asked),
    ]


def _evaluation(spec: PipelineSpec, run: Path, settings: str, name: str, trained: str, asked: Sequence[str]) -> Step:
    """Returns the evaluation of a step's policy; for dpo that of the final checkpoint: the best is chosen by pairs."""
    policy = run / trained / "checkpoints" / "final" if trained == TRAINED["dpo"] else run / trained
    words = ("eval", f"{policy}", "--config", settings, *asked, *_rules(spec.training))
    return _step(run, name, words, TRAINING_FILE, trained)


def _final_check(spec: PipelineSpec, run: Path, settings: str, prepared: Sequence[str]) -> list[Step]:
    """Returns the step that reports what the file of a test split shares with the training data; [] without a file."""
    if spec.final_test is None:
        return []
    data = data_path(spec.data, run)
    against = ("--against", f"{data}") if data is not None else ()
    words = ("data", "check", spec.final_test.path, "--for", spec.training.environment.name, *against)
    return [_step(run, FINAL_CHECK, (*words, "--config", settings), TRAINING_FILE, *prepared, out="--out")]


def _final_test(spec: PipelineSpec, run: Path, settings: str) -> list[Step]:
    """Returns the evaluations of both policies on the file of a test split, and their comparison; [] without a file."""
    if spec.final_test is None:
        return []
    asked = ("--data", spec.final_test.path, "--split", "test")
    compared = (f"{run / FINAL_IMITATED}", f"{run / FINAL_EVALUATION}", "--baseline", "sft", *_plots(spec))
    return [
        _evaluation(spec, run, settings, FINAL_EVALUATION, TRAINED[spec.method], asked),
        _evaluation(spec, run, settings, FINAL_IMITATED, SFT, asked),
        _step(run, FINAL_COMPARISON, ("compare", *compared), FINAL_EVALUATION, FINAL_IMITATED, out="--out"),
    ]


def _rules(settings: Settings) -> tuple[str, ...]:
    """Returns environment, reward and limits as flags; otherwise the settings of the policy's run would apply."""
    limits = settings.generation
    return (
        *("--environment", settings.environment.name, "--reward", settings.reward.name),
        *("--max-steps", str(limits.max_steps), "--max-gen-tokens", str(limits.max_gen_tokens)),
    )


def _comparison(spec: PipelineSpec, run: Path) -> Step:
    runs = (f"{run / IMITATED}", f"{run / EVALUATION}", *spec.compare_with)
    words = ("compare", *runs, "--baseline", "sft", *_plots(spec))
    return _step(run, COMPARISON, words, EVALUATION, IMITATED, out="--out")


def _plots(spec: PipelineSpec) -> tuple[str, ...]:
    return () if spec.plots else ("--no-plots",)
