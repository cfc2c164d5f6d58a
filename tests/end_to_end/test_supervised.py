"""`finqa sft` as a user runs it: what it leaves, going on after a stop, and what it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.finqa_text_rows import prepared, write
from fixtures.recording_tracker import recording, written
from fixtures.stops import StopsAt

from finqa_cli.app import main
from finqa_cli.contracts import Learner
from finqa_cli.errors import InterruptedRun, ThresholdError
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import read_settings
from finqa_cli.settings import from_public_dict
from finqa_cli.training.held_out_questions import HeldOutQuestions
from finqa_cli.training.sft.sft_run import Imitation, sft
from finqa_cli.wiring.policies import resolve
from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch", reason="needs finqa[train]")

pytestmark = pytest.mark.usefixtures("empty_folder")

SHORT = ["--max-gen-tokens=8", "--validation-samples=3", "--validate-every=2", "--batch-tokens=900", "--epochs=1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def gold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gold answers to single-turn questions, as the scripted engine gives them."""
    folder = tmp_path_factory.mktemp("gold")
    rows = [
        prepared(number, id=f"C{number}/2018/page_1.pdf-1", input_text=f"It was {number}. How much? Answer:")
        for number in range(16)
    ]
    write(folder / "train.jsonl", *rows[:12])
    write(folder / "dev.jsonl", *rows[12:])
    run = folder / "run"
    wanted = ["--environment=finqa-text", f"--data={folder}", "--split=train", f"--run-dir={run}", "--quiet"]
    assert main(["eval", "scripted", *wanted]) == 0
    return run


def lines(path: Path | str) -> list[dict[str, Any]]:
    return list(read_jsonl(Path(path)))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def metrics(run: str) -> list[dict[str, Any]]:
    return [{**line, "timing": None} for line in lines(f"{run}/metrics.jsonl")]


def same_but_for_time(left: Path, right: Path) -> bool:
    kept = [
        [{**line, "seconds": 0, "turns": _untimed(line["turns"])} for line in lines(path)] for path in (left, right)
    ]
    return kept[0] == kept[1] != []


def _untimed(turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in turn.items() if "second" not in name} for turn in turns]


def check_folder(run: Path, result: dict[str, Any]) -> None:
    assert json.loads((run / "report.json").read_text()) == result
    manifest = json.loads((run / "manifest.json").read_text())
    source = manifest["inputs"]["demonstrations"][0]
    assert source["sha256"] == digest(Path(source["path"])) and manifest["inputs"]["policy"]["sha256"]
    assert manifest["parameters"]["seed"] == 0 and manifest["versions"]["torch"]
    for name, value in manifest["outputs"].items():
        assert digest(run / name) == value, name
    assert {"checkpoints/final/adapter_model.safetensors", "valid_samples/step_2.jsonl"} <= set(manifest["outputs"])


def test_it_validates_by_loss_and_by_answers_and_keeps_the_best(
    capsys: pytest.CaptureFixture[str], tiny: Path, gold: Path
) -> None:
    result = document(["sft", str(gold), f"--model={tiny}", "--lr=3e-3", *SHORT, "--run-dir=a"], capsys)
    check_folder(Path("a"), result)
    looks = [line for line in lines("a/metrics.jsonl") if line["kind"] == "validation"]
    steps = [line["iteration"] for line in looks]
    assert steps[0] == 0 and steps[1] == 2 and steps[-1] == result["steps"] > 2
    losses = {line["iteration"]: line["validation_loss"] for line in looks}
    assert result["after"]["loss"] == losses[result["steps"]] < losses[0] == result["before"]["loss"]
    assert result["best_step"] == min(steps[1:], key=losses.__getitem__)
    curve = [line["loss"] for line in lines("a/metrics.jsonl") if line["kind"] == "sft"]
    assert len(curve) == result["steps"] and result["loss"] == curve[-1] < curve[0]

    train = {line["task"]["cluster"] for line in lines(gold / "trajectories.jsonl")}
    for step in steps[1:]:
        answers = lines(f"a/valid_samples/step_{step}.jsonl")
        assert len(answers) == 3 == len({line["task"]["id"] for line in answers})
        assert all(line["reward"] is not None and line["turns"][0]["text"] for line in answers)
        assert {line["turns"][0]["policy_version"] for line in answers} == {step}, "by the policy of that step"
        assert not {line["task"]["cluster"] for line in answers} & train
    samples = result["after"]["samples"]
    assert samples["questions"] == 3 and samples["faults"] == 0 and samples["accuracy"] == 0
    assert result["parse_rate"] == samples["parse_rate"] == 0 and result["parse_rate_reached"] is False

    assert resolve("a").adapter == Path(f"a/checkpoints/step_{result['steps']}/policy")
    for name in ("best", "final"):
        assert resolve(f"a/checkpoints/{name}").model == str(tiny)
    settings = from_public_dict(read_settings(Path("a")))
    assert settings.environment.name == "finqa-text", "as the demonstrations' run"


def test_a_rate_at_which_nothing_moves_is_told_once_and_by_default_the_rate_is_that_of_an_adapter(
    capsys: pytest.CaptureFixture[str], tiny: Path, gold: Path
) -> None:
    flags = ["sft", str(gold), f"--model={tiny}", "--batch-tokens=100", "--validation-samples=0", "--epochs=2"]
    assert main([*flags, "--lr=1e-9", "--run-dir=still"]) == 0
    told = capsys.readouterr().err
    assert told.count("The loss has not moved in 9 steps") == 1 and "start again with a larger rate: --lr 1e-08" in told
    [event] = [line for line in lines("still/events.jsonl") if line["event"] == "loss_stuck"]
    assert event["steps"] == 9 and event["first"] == pytest.approx(event["last"], rel=0.1)
    assert main([*flags, "--run-dir=default"]) == 0
    assert "learning rate: 0.0002 (an adapter of rank 16)" in capsys.readouterr().err
    assert max(line["learning_rate"] for line in lines("default/metrics.jsonl") if line["kind"] == "sft") == 2e-4


def test_a_low_parse_rate_is_told(capsys: pytest.CaptureFixture[str], tiny: Path, gold: Path) -> None:
    flags = ["--quick-test", "--max-gen-tokens=4", "--batch-tokens=60000", "--run-dir=q"]
    assert main(["sft", str(gold), f"--model={tiny}", *flags]) == 0
    captured = capsys.readouterr()
    assert "Only 0 % of the answers have the right form, fewer than the 90 %" in captured.err
    assert "0.0 % of the right form (wanted: 90 %)" in captured.out
    parameters = json.loads(Path("q/manifest.json").read_text())["parameters"]
    assert parameters["sft"]["validation_samples"] == 4 and parameters["sft"]["epochs"] == 1
    assert parameters["sft"]["batch_tokens"] == 60000 and parameters["most_demonstrations"] == 16


def broken(run: str, wanted: Imitation, phase: str = "", times: int = 0) -> None:
    """The run `unbroken`, stopped on its way, or ended by an error."""
    reporter = StopsAt(phase, times)
    settings = from_public_dict(read_settings(Path("unbroken")))
    with pytest.raises((InterruptedRun, ThresholdError)) as caught:
        asyncio.run(sft(settings, wanted, Path(run), resume=False, reporter=reporter, stopper=reporter.stopper))
    assert caught.value.remedy == f"finqa sft --resume {run}"
    assert not Path(run, "policies").exists()


async def too_many_faults(questions: HeldOutQuestions, learner: Learner, step: int) -> None:
    await questions._serve(learner, step)
    raise ThresholdError("3 of the 3 answers ended in faults.", remedy="finqa sft --resume faulty")


@pytest.mark.slow  # the next test resumes as well
def test_a_resumed_run_is_the_unbroken_one(
    capsys: pytest.CaptureFixture[str], tiny: Path, gold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [f"--model={tiny}", "--lr=3e-3", "--set=lora.dropout=0.1", *SHORT]
    whole = document(["sft", str(gold), *flags, "--run-dir=unbroken"], capsys)
    last = whole["steps"]
    wanted = Imitation(sources=(gold,))
    broken("looking", wanted, "eval", 1)
    with monkeypatch.context() as patch:
        patch.setattr(HeldOutQuestions, "ask", too_many_faults)
        broken("faulty", wanted)
    for run in ("looking", "faulty"):  # what was learned is kept, and the look is due again
        assert json.loads(Path(run, "checkpoints/step_2/state.json").read_text())["looked"] is False
    broken("stepping", wanted, "sft", 4)
    assert Path("stepping/checkpoints/step_3").is_dir() and not Path("stepping/valid_samples/step_3.jsonl").exists()
    code, told = failure(["sft", str(gold), *flags, "--run-dir=stepping"], capsys)
    assert code == 78 and "finqa sft --resume stepping" in told
    for run in ("looking", "faulty", "stepping"):
        resumed = document(["sft", f"--resume={run}"], capsys)
        for name in ("steps", "tokens", "loss", "before", "after", "best_step", "validation_loss"):
            assert resumed[name] == whole[name], (run, name)
        assert metrics(run) == metrics("unbroken"), run
        for name in (f"step_{last}/policy", "best", "final"):
            found = [digest(Path(each, "checkpoints", name, "adapter_model.safetensors")) for each in ("unbroken", run)]
            assert found[0] == found[1], (run, name)
        for step in (2, last):
            assert same_but_for_time(
                Path(f"unbroken/valid_samples/step_{step}.jsonl"), Path(f"{run}/valid_samples/step_{step}.jsonl")
            )


def test_a_model_from_nothing_goes_on_as_well(
    capsys: pytest.CaptureFixture[str], gold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackers = recording(monkeypatch, "training.sft.sft_run")
    specification = Path("tiny.toml")
    specification.write_text(
        "[model]\nhidden_size = 32\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhead_dim = 16\n"
        "intermediate_size = 32\nmax_context = 4096\n[tokenizer]\nvocab_size = 600\n"
    )
    flags = ["--init=tiny.toml", "--lr=1e-3", *SHORT, "--validation-samples=0"]
    flags += ["--batch-tokens=300", "--validate-every=1", "--run-dir=a"]
    whole = document(["sft", str(gold), *flags], capsys)
    assert whole["after"]["samples"] is whole["parse_rate"] is None and not Path("a/valid_samples").exists()
    assert resolve("a").adapter is None and Path("a/checkpoints/best/tokenizer.json").is_file()
    shutil.copytree("a", "b")
    shutil.rmtree(f"b/checkpoints/step_{whole['steps']}")
    shutil.rmtree("b/checkpoints/final")
    assert Path("b/checkpoints/step_1").is_dir()  # or it would not be resumed, but begun again
    assert document(["sft", "--resume=b"], capsys)["loss"] == whole["loss"]
    assert trackers["a"].records == written("a") != [] and trackers["a"].settings["sft"]["learning_rate"] == 1e-3
    since = trackers["b"].records
    assert since == written("b")[-len(since) :] != []
    assert {name: tracker.status for name, tracker in trackers.items()} == {"a": "completed", "b": "completed"}
    assert digest(Path("a/checkpoints/final/model.safetensors")) == digest(
        Path("b/checkpoints/final/model.safetensors")
    )
    code, told = failure(["sft", str(gold), "--init=tiny.toml", "--model=embedded", "--lora-rank=4"], capsys)
    assert code == 2 and "--lora-rank, --model would have no effect" in told


def test_weights_do_not_depend_on_which_rollout_ended_first(capsys: pytest.CaptureFixture[str], gold: Path) -> None:
    capsys.readouterr()
    Path("tiny.toml").write_text(
        "[model]\nhidden_size = 32\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhead_dim = 16\n"
        "intermediate_size = 32\nmax_context = 4096\n[tokenizer]\nvocab_size = 600\n"
    )
    ended = gold.joinpath("trajectories.jsonl").read_text().splitlines(keepends=True)
    runs = {"a": ended, "b": [*ended[1::2], *ended[::2]]}
    for name, lines_of in runs.items():
        shutil.copytree(gold, f"{name}_gold")
        Path(f"{name}_gold/trajectories.jsonl").write_text("".join(lines_of))
        flags = ["--init=tiny.toml", "--lr=1e-2", *SHORT, "--validation-samples=0", "--batch-tokens=200"]
        assert document(["sft", f"{name}_gold", *flags, f"--run-dir={name}"], capsys)["steps"] >= 3
    for file in ("model.safetensors", "tokenizer.json"):
        assert digest(Path("a/checkpoints/final", file)) == digest(Path("b/checkpoints/final", file)), file


def test_what_cannot_be_imitated_is_told(capsys: pytest.CaptureFixture[str], tiny: Path, gold: Path) -> None:
    def refused(code: int, *arguments: str) -> str:
        found, told = failure(["sft", *arguments, "-q"], capsys)
        assert found == code, told
        return told

    model = f"--model={tiny}"
    assert "No demonstrations and no run" in refused(2)
    assert "with a reward of at least 7" in refused(65, str(gold), "--minimum-reward=7", model)
    assert "cannot train" in refused(78, str(gold), model, "--engine=scripted", "--run-dir=x")
    assert not list(Path("x").glob("checkpoints/*"))
    asked = [str(gold), model, "--validation-samples=2", "--set=sft.validation_share=0"]
    assert "no question of a cluster (such as a company) outside of the training data." in refused(
        65, *asked, "--split=train", "--run-dir=y"
    )
    elsewhere = ["--environment=finqa", "--snapshot=nowhere", "--run-dir=z"]
    assert "nowhere" in refused(65, *asked, *elsewhere)
    assert "none is left for training." in refused(65, str(gold), "--epochs=0.01", model, "--run-dir=w")
    assert not any(Path(run).exists() for run in "yzw"), "a mistake leaves no run behind"
    diverging = [str(gold), "--lr=1e30", "--validation-samples=0", "--batch-tokens=900", model]
    told = refused(1, *diverging, "--validate-every=1", "--run-dir=n")
    assert "After step 1 the policy's log-probabilities are not finite. Its demonstrations: eval/" in told
    assert not list(Path("n").glob("checkpoints/*")), "no weights are kept that give no numbers"
    told = refused(1, *diverging, "--validate-every=9", "--run-dir=m")
    assert "Step 1 was skipped:" in told and "Its demonstrations: eval/" in told
    assert "nope" in refused(78, str(gold), model, "--set=environment.options.nope=1", "--run-dir=v")
    assert not Path("v").exists()
    assert main(["sft", f"--resume={gold}"]) == 78 and "is a run of `finqa eval`" in capsys.readouterr().err
    assert "does not take --lr, --split." in refused(2, "--resume=n", "--lr=3", "--split=dev")
