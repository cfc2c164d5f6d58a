"""`finqa pipeline` with real commands: what is done is kept, what is not is resumed, nothing is overwritten."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures import finqa_text_rows
from fixtures.command_calls import document, failure
from fixtures.file_checks import errors

from finqa_cli.app import main
from finqa_cli.deletion import lock_folder, unlock_folder
from finqa_cli.errors import DataError, FinqaError, InterruptedRun
from finqa_cli.evaluation.compare.evaluated_runs import load_run
from finqa_cli.experiments.pipeline_run import PIPELINE, run_pipeline, stored_spec
from finqa_cli.experiments.step_runner import Ended, Relay, Step, open_folder
from finqa_cli.runs.durable_files import sha256_of, write_json

pytestmark = pytest.mark.usefixtures("_warm_commands")

SMALL = ("--demonstration-questions=4", "--sandboxes=2")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, finqa_home: Path) -> Path:
    """A pipeline after its first four steps."""
    run = tmp_path_factory.mktemp("pipeline") / "run_001"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINQA_HOME", str(finqa_home))
        patch.chdir(run.parent)
        assert main(["pipeline", "--method=grpo", f"--output={run}", "--until=02_rewards", "--quiet", *SMALL]) == 0
    return run


@pytest.fixture
def run(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(begun, tmp_path / "run_001"))


def facts(run: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((run / "run.json").read_text())
    return read


def test_steps_leave_folders_with_manifests_logs_and_a_record(begun: Path) -> None:
    recorded = facts(begun)
    names = ["00_data_validation", "01_dataset", "01_dataset/demonstrations", "02_rewards"]
    assert recorded["command"] == "pipeline" and recorded["status"] == "stopped" and list(recorded["steps"]) == names
    assert not errors("run", recorded) and not errors("run", {**recorded, "status": "failed"})
    assert errors("run", {**recorded, "steps": {names[0]: {}}}) and errors("run", {**recorded, "status": "crashed"})
    for name in names:
        step, manifest = recorded["steps"][name], json.loads((begun / name / "manifest.json").read_text())
        assert step["status"] == "completed" and step["manifest"] == sha256_of(begun / name / "manifest.json")
        assert step["command"][0] == "finqa" and (begun / "logs" / f"{name.replace('/', '_')}.log").is_file()
        assert manifest.get("inputs") is not None or "config" in manifest
    assert json.loads((begun / "01_dataset/snapshot.json").read_text())["digest"].startswith("sha256:")
    assert len((begun / "01_dataset/demonstrations/trajectories.jsonl").read_text().splitlines()) == 4
    assert "grader: strict-3" in (begun / "02_rewards/reward_spec.yaml").read_text()
    assert json.loads((begun / "00_data_validation/check_report.json").read_text())["ok"] is True


def test_what_is_done_is_not_done_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = [file for file in run.rglob("*") if file.is_file() and file not in (run / "run.json", run / ".lock")]
    before = {file: file.stat().st_mtime_ns for file in kept}
    told = document(["pipeline", f"--resume={run}", "--until=rewards"], capsys)
    assert [step["state"] for step in told["steps"][:5]] == ["done"] * 4 + ["to do"] and told["report"] is None
    again = ["pipeline", "--method=grpo", f"--output={run}", "--until=02", *SMALL]
    assert document(again, capsys)["run"] == str(run)
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_another_configuration_is_shown_and_changes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "run.json").read_bytes()
    status, told = failure(["pipeline", "--method=rloo", f"--output={run}", "--seed=3", *SMALL], capsys)
    assert status == 78 and "method: grpo, now rloo" in told and "training.train.seed: 0, now 3" in told
    assert f"--resume {run}" in told and (run / "run.json").read_bytes() == before
    status, told = failure(["pipeline", f"--resume={run}", "--seed=3", "--set=train.seed=3"], capsys)
    assert status == 2 and "does not take --seed, --set." in told
    Path("taken").mkdir()
    Path("taken/thesis.tex").write_text("all of it")
    status, told = failure(["pipeline", "--method=grpo", "--output=taken"], capsys)
    assert status == 78 and "taken is not empty" in told and [*Path("taken").iterdir()] == [Path("taken/thesis.tex")]


def test_what_was_changed_by_hand_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resume = ["pipeline", f"--resume={run}", "--until=02_rewards"]
    settings = json.loads((run / "settings/training.json").read_text())
    settings["train"]["iterations"] = 99
    (run / "settings/training.json").write_text(json.dumps(settings))
    status, told = failure(resume, capsys)
    assert status == 78 and "train.iterations: 24, now 99" in told
    (run / "settings/training.json").unlink()
    assert main([*resume, "-q"]) == 0
    with (run / "01_dataset/demonstrations/report.json").open("a") as file:
        file.write(" ")
    status, told = failure(resume, capsys)
    assert status == 78 and "report.json has changed" in told and "--from 01_dataset/demonstrations" in told


def test_a_step_that_is_missing_below_later_ones_is_not_quietly_made_again(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "02_rewards")
    shutil.rmtree(run / "01_dataset")
    (run / "02_rewards").mkdir()
    (run / "02_rewards/mine.txt").write_text("kept")
    status, told = failure(["pipeline", f"--resume={run}"], capsys)
    assert status == 78 and "--from" in told
    assert main(["pipeline", f"--resume={run}", "--from=01_dataset", "--until=01_dataset", "-q"]) == 0
    assert (run / "set_aside/02_rewards_1/mine.txt").read_text() == "kept"
    assert list(facts(run)["steps"]) == ["00_data_validation", "01_dataset"]
    status, told = failure(["pipeline", f"--resume={run}", "--from=03_sft"], capsys)
    assert status == 2 and "01_dataset/demonstrations is not done yet" in told


def test_variables_that_would_win_over_the_settings_of_the_steps_are_told(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINQA_OPTIMIZER__NAME", "rloo")
    monkeypatch.setenv("TRAINING_ITERATIONS", "24")  # as it is anyway
    Path(".env").write_text("LORA_RANK=3\n")
    status, told = failure(["pipeline", f"--resume={run}", "--until=03_sft"], capsys)
    assert status == 78 and "lora.rank: 16, now 3 by .env LORA_RANK" in told and "ITERATIONS" not in told
    assert "optimizer.name: sft, now rloo by environment FINQA_OPTIMIZER__NAME" in told
    assert not (run / "03_sft").exists() and main(["pipeline", f"--resume={run}", "--until=02", "-q"]) == 0


def test_a_dry_run_shows_what_would_be_done(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--from=01_dataset/demonstrations", "--until=03"]
    shown = document(["pipeline", f"--resume={run}", "--dry-run", *chosen], capsys)
    states = [(step["name"], step["state"]) for step in shown["steps"]]
    assert states == [
        *((name, "done") for name in ("00_data_validation", "01_dataset")),
        *((name, "to do") for name in ("01_dataset/demonstrations", "02_rewards", "03_sft")),
    ]


def test_a_pipeline_is_no_policy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = failure(["eval", str(run)], capsys)
    assert status == 65 and "is a pipeline, not a policy" in told and "03_sft" in told


def test_data_that_a_step_would_refuse_is_refused_before_the_first(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(Path(__file__).parent, "data")  # a folder, but not of data
    for more in ([], ["--dry-run"]):
        assert main(["pipeline", "--method=ppo", "--data=data", "--quiet", *more]) == 65
        told = capsys.readouterr().err
        assert told.count("error: ") == told.count("fix: ") == 1
        assert "data/input_companies: the folder is missing" in told
        assert not Path("outputs").exists()


def test_a_failed_step_says_why_and_what_next(run: Path) -> None:
    class Failing(Relay):
        def run(self, arguments: Sequence[str], log: Path, **others: Any) -> Ended:
            others["started"](os.getpid())
            return Ended(code=65, seconds=1.0, reason="shared", remedy="split it, or --allow-overlap")

    with pytest.raises(FinqaError, match=r"Step 02_rewards failed \(exit code 65\): shared") as failed:
        run_pipeline(stored_spec(run), run, redo="02_rewards", until="", show=lambda line: None, relay=Failing())
    assert failed.value.exit_code == 65 and failed.value.remedy == (
        f"split it, or --set data.allow_overlap=true; then finqa pipeline --resume {run}, which keeps data and "
        "settings; after a change of these, the same command with a new --output"
    )
    assert facts(run)["status"] == "failed" and facts(run)["steps"]["02_rewards"]["exit_code"] == 65


@pytest.mark.thorough
def test_a_stopped_step_is_gone_on_with_and_earlier_ones_are_kept(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    until = "--until=01_dataset/demonstrations"
    asked = ["pipeline", "--method=dpo", "--output=run", until, "--demonstration-questions=60", "--sandboxes=1"]
    process = subprocess.Popen([sys.executable, "-m", "finqa_cli", *asked], stderr=subprocess.PIPE, text=True)
    played = Path("run/01_dataset/demonstrations/trajectories.jsonl")
    guard = time.monotonic() + 90
    while not (played.is_file() and played.stat().st_size) and process.poll() is None and time.monotonic() < guard:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "Next: finqa pipeline --resume run" in said
    stopped = facts(Path("run"))
    assert stopped["status"] == "interrupted" and stopped["steps"]["01_dataset/demonstrations"]["status"] == "failed"
    told = document(["pipeline", "--resume=run", until], capsys)
    assert [step["state"] for step in told["steps"][:3]] == ["done"] * 3
    after = facts(Path("run"))["steps"]
    assert after["01_dataset"] == stopped["steps"]["01_dataset"]
    ids = [json.loads(line)["id"] for line in played.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 60, "the evaluation was resumed"
    assert len(json.loads(played.with_name("run.json").read_text())["resumed"]) == 1
    assert not Path("run/set_aside").exists()


class Deaf(Relay):
    """Runs nothing, and remembers what it was to run; every step fails."""

    def run(self, arguments: Sequence[str], log: Path, **others: Any) -> Ended:
        others["started"](os.getpid())
        self.asked = [*arguments]
        return Ended(code=9, seconds=1.0, reason="none", remedy="")


@pytest.mark.parametrize("asked", [True, False])
def test_a_step_that_can_go_on_by_itself_does(run: Path, asked: bool) -> None:
    write_json(run / "03_sft/run.json", {"command": "sft", "status": "failed"})
    write_json(run / "03_sft/settings.json", {})
    if asked:  # else it ended before it had written what it was asked for
        write_json(run / "03_sft/manifest.json", {"parameters": {"seed": 0}})
    known = facts(run)
    known["steps"]["03_sft"] = {"status": "failed", "exit_code": -9, "seconds": 2.0, "reads": {}}
    write_json(run / "run.json", known)
    relay = Deaf()
    with pytest.raises(FinqaError, match="Step 03_sft failed") as failed:
        run_pipeline(stored_spec(run), run, redo="", until="", show=lambda line: None, relay=relay)
    assert failed.value.exit_code == 9 and failed.value.remedy == f"finqa pipeline --resume {run}"
    resumed = ["sft", "--resume", str(run / "03_sft")]
    assert (relay.asked == resumed) is asked and relay.asked[0] == "sft"
    assert (run / "set_aside/03_sft_1").is_dir() is not asked


@pytest.mark.parametrize("rate", [None, 0.9, 0.89])
def test_answers_of_the_wrong_form_end_the_pipeline_before_they_are_learnt_from(run: Path, rate: float | None) -> None:
    known = facts(run)
    names = list(known["steps"])
    spec = stored_spec(run)

    class Scripted(Relay):
        """Does the work of step 03 with this share of readable answers; later steps fail."""

        def run(self, arguments: Sequence[str], log: Path, **others: Any) -> Ended:
            others["started"](os.getpid())
            if arguments[0] != "sft":
                return Ended(code=9, seconds=1.0, reason="a later step began", remedy="")
            reached = None if rate is None else rate >= 0.9
            report = {"parse_rate": rate, "parse_rate_wanted": 0.9, "parse_rate_reached": reached}
            write_json(run / "03_sft/report.json", report)
            write_json(run / "03_sft/manifest.json", {"outputs": {}})
            return Ended(code=0, seconds=1.0, reason="", remedy="")

    def go(**options: bool) -> FinqaError:
        with pytest.raises(FinqaError) as ended:
            run_pipeline(spec, run, redo="", until="", show=lambda line: None, relay=Scripted(), **options)
        return ended.value

    assert "03_sft" not in names
    first = go()
    if rate != 0.89:
        assert "Step 04_candidates failed" in first.message
        return
    wanted = "03_sft stopped the pipeline: 89 % of its answers have the right form, and 90 % are required"
    assert wanted in first.message and f"finqa pipeline --resume {run} --past-gates continues" in first.remedy
    assert facts(run)["status"] == "failed" and facts(run)["steps"]["03_sft"]["status"] == "completed"
    assert wanted in go().message, "also when it is resumed"
    assert "Step 04_candidates failed" in go(past_gates=True).message


@pytest.fixture
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, lambda *_: None) for number in numbers]  # the command has some
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 85)])
def test_signals_and_errors_of_a_process_are_heard(number: signal.Signals, code: int, tmp_path: Path) -> None:
    relay, lines, pids = Relay(), [], []
    with relay.watching():
        ended = relay.run(
            ["data", "check", str(tmp_path / "nothing")],
            tmp_path / "logs/one.log",
            stdout=None,
            show=lines.append,
            started=pids.append,
        )
    assert ended.code == 65 and ended.reason in lines[-2] and ended.remedy in lines[-1] and len(pids) == 1
    assert (tmp_path / "logs/one.log").read_text().splitlines() == lines
    with relay.watching():
        os.kill(os.getpid(), number)  # ends nothing here
        ended = relay.run(["plugins"], tmp_path / "two.log", stdout=None, show=lines.append, started=pids.append)
    assert relay.stopped is number and ended.code != 0
    step = Step(name="check", arguments=("data", "check"))
    with pytest.raises(InterruptedRun) as stopped, open_folder(tmp_path / "run", {}, PIPELINE) as folder:
        folder.run(step, relay, lines.append, "1/1")
    assert stopped.value.exit_code == code and facts(tmp_path / "run")["status"] == "interrupted"


def test_wrong_command_lines_are_refused_before_a_folder_is_made(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, status, part in (
        ([], 2, "No training method"),
        (["--method=grpo", "--until=nowhere"], 2, "no step 'nowhere'"),
        (["--method=grpo", "--from=10_eval", "--until=03_sft"], 2, "comes after"),
        (["--method=grpo", "--config=ppo"], 78, "ppo is for ppo, and the method is grpo"),
        (["--method=grpo", "--set=optimizer.name=ppo"], 2, "--method"),
        (["--method=grpo", "--set=train.iteration=3"], 78, "train.iteration"),
        (["--method=grpo", "--set=run.dir=here"], 2, "--output"),
        (["--method=grpo", "--set=reward.options.format=json"], 78, "reward"),
        (["--method=grpo", "--set=engine.options.api_key=sk-secret-1"], 78, "is a secret"),
        (["--method=grpo", "--set=optimizer.options.varient=dapo"], 78, "varient"),
        (["--method=ppo", "--set=train.updates_per_iteration=2"], 78, "train.updates_per_iteration=2 has no effect"),
        (["--method=grpo", "--set=learner.options.packings=off"], 78, "packings"),
        (["--method=grpo", "--environment=mbpp", "--model=embedded"], 2, "speaks to the environment finqa alone"),
        (["--method=grpo", "--environment=finqa-text", "--model=embedded"], 2, "--environment finqa; or --model with"),
        (["--method=grpo", "--environment=finqa-text", "--data=my.json"], 2, "for the embedded tasks of finqa-text"),
        (["--method=grpo", "--environment=tatqa", "--init=x.toml", "--careful"], 2, "solutions without mistakes"),
        (["--method=grpo", "--model=./none"], 78, "no model, run or checkpoint at ./none"),
        (["--method=grpo", "--init=none.toml"], 78, "no model specification at none.toml"),
        (["--method=grpo", "--compare-with=none"], 65, "none is not a run folder"),
        (["--method=grpo", "--pair-rule=all"], 2, "--pair-rule would have no effect"),
        (["--method=grpo", "--dry-run", "--until=nowhere"], 2, "no step 'nowhere'"),
        (["--method=grpo", "--data=nothing"], 65, "no data folder"),
        (["--method=grpo", "--environment=finqa-text", "--data=nothing", "--init=x.toml"], 65, "no question files"),
        (["--resume=nothing"], 78, "no pipeline in nothing"),
    ):
        found, told = failure(["pipeline", *words], capsys)
        assert (found, part in told) == (status, True), told
        assert "sk-secret-1" not in told
    assert not Path("outputs").exists()


def test_a_final_test_is_checked_before_training_and_evaluated_on_after_it(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, numbers in {"train": range(1, 7), "dev": range(7, 9), "test": range(9, 10), "held": range(9, 10)}.items():
        rows = [finqa_text_rows.original(n, id=f"C{n}/1.pdf-1", filename=f"C{n}/1.pdf") for n in numbers]
        Path("data").mkdir(exist_ok=True)
        finqa_text_rows.write(Path("data", f"{name}.json"), *rows)
    asked = ["pipeline", "--method=grpo", "--environment=finqa-text", "--data=data", "--init=x.toml", "--dry-run"]
    Path("x.toml").write_text('architecture = "qwen3"\n')
    steps = document([*asked, "--output=run", "--final-test=data/test.json"], capsys)["steps"]
    names, commands = zip(*((step["name"], step["command"].split()) for step in steps), strict=True)
    assert names.index("01_dataset/final_test") < names.index("03_sft")
    final = ("10_eval/final_test", "10_eval/final_test_sft", "11_compare/final_test")
    assert names[-3:] == final and names[-4] == "11_compare"
    assert commands[names.index("01_dataset/final_test")][2:8] == [
        *("check", "data/test.json", "--for", "finqa-text", "--against", "run/01_dataset")
    ]
    for name, policy in zip(final, ("run/06_grpo", "run/03_sft"), strict=False):
        words = commands[names.index(name)]
        assert words[1:3] == ["eval", policy] and words[5:9] == ["--data", "data/test.json", "--split", "test"]
    for words, status, part in (
        (["--final-test=data/held.json"], 2, "mv data/held.json data/held_test.json, if it is a test split"),
        (["--final-test=none.json"], 65, "There is no file none.json"),
        (
            ["--final-test=x.toml"],
            2,
            "does not contain the word test, and the split of a file is determined by its name.",
        ),
    ):
        found, told = failure([*asked, *words], capsys)
        assert (found, part in told) == (status, True), told
    Path("bad_test.json").write_text('[{"id": "a"}]')
    found, told = failure([*asked, "--final-test=bad_test.json"], capsys)
    assert found == 65 and "bad_test.json" in told, told
    found, told = failure(["pipeline", "--method=grpo", "--final-test=data/test.json"], capsys)
    assert found == 2 and "finqa cannot read question files" in told


def test_tiers_go_to_the_steps_that_they_concern(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.yaml").write_text("tier: optimizer\noptimizer:\n  name: sft\nsft:\n  epochs: 2.5\n")
    asked = ["pipeline", "--method=grpo", "--config=own.yaml", "--config=grpo", "--output=run", *SMALL]
    asked.append("--set=optimizer.options.variant=dapo")
    document([*asked, "--until=00"], capsys)
    told = facts(Path("run"))["parameters"]
    imitated = told["imitation"]["sft"]
    assert (imitated["learning_rate"], imitated["warmup_share"], imitated["validate_every"]) == (1e-3, 0.05, 20)
    assert told["imitation"]["sft"]["epochs"] == 2.5 and told["training"]["sft"]["epochs"] == 3.0
    assert told["training"]["train"]["learning_rate"] == 1.5e-5 and told["imitation"]["train"]["learning_rate"] == 1e-3
    assert (
        told["training"]["optimizer"]["options"]["variant"] == "dapo" and not told["imitation"]["optimizer"]["options"]
    )
    dry = document(["pipeline", "--resume=run", "--dry-run"], capsys)
    assert dry["steps"][0]["state"] == "done" and dry["steps"][1]["command"].startswith("finqa snapshot build")


def test_a_pipeline_stands_for_its_evaluation_in_a_comparison(run: Path) -> None:
    with pytest.raises(DataError, match="has not evaluated its policy") as refused:
        load_run(run)
    assert refused.value.remedy == f"finqa pipeline --resume {run}"
    shutil.copytree(run / "01_dataset/demonstrations", run / "10_eval")
    assert load_run(run) == load_run(run / "10_eval")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_four_methods_end_in_one_comparison(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    methods = ("ppo", "grpo", "rloo", "dpo")
    compare = ["compare", *(f"outputs/run_{number:03d}" for number in range(1, 5)), "--out=all"]
    for number, method in enumerate(methods, start=1):
        asked = ["pipeline", f"--method={method}", "--quick-test"]
        if method == methods[-1]:
            assert main([*asked, "--until=00_data_validation", "--quiet"]) == 0
            status, said = failure(compare, capsys)
            assert status == 65 and f"fix: finqa pipeline --resume outputs/run_{number:03d}" in said
            asked = ["pipeline", "--resume", f"outputs/run_{number:03d}"]
        told = document(asked, capsys)
        assert told["run"] == f"outputs/run_{number:03d}" and {step["state"] for step in told["steps"]} == {"done"}
        assert Path(told["report"]).is_file() and (Path(told["run"]) / "manifest.json").is_file()
    found = document(compare, capsys)
    assert {method["label"] for method in found["methods"]} == {"ppo", "grpo", "rloo", "dpo"}
    assert len({row["questions"] for row in found["runs"]}) == 1


def test_one_process_at_a_time_works_in_a_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, lock = facts(run), lock_folder(run)
    try:
        status, told = failure(["pipeline", f"--resume={run}", "--quiet"], capsys)
    finally:
        unlock_folder(lock)
    assert status == 78 and f"in use by process {os.getpid()}" in told
    assert facts(run) == before
