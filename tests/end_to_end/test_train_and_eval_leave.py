"""What `finqa train` and `finqa eval` leave behind: manifests, schedules, quick tests, and nothing after a mistake."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure

from finqa_cli.app import main
from finqa_cli.errors import ConfigError, ServiceUnavailableError
from finqa_cli.evaluation.candidates import sampling_settings
from finqa_cli.evaluation.compare.evaluated_runs import load_run
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import new_run
from finqa_cli.settings import Settings
from finqa_testing.tiny_models import make_tiny_qwen3

pytestmark = pytest.mark.usefixtures("empty_folder")

TEXT = ("--environment=finqa-text", "--quiet")
TRAIN = (
    *("--engine=transformers", "--sandboxes=4", "--limit=2", "--group-size=2", "--target-groups-per-iter=1"),
    *("--max-rollout-rounds=1", "--max-gen-tokens=8", "--max-staleness=0", "--set=train.updates_per_iteration=2"),
    *("--reward=function", "--set=reward.options.function=length.py:compute_score", *TEXT),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="needs finqa[train]")
    return make_tiny_qwen3(tmp_path_factory.mktemp("tiny"))


def manifest(run: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(run, "manifest.json").read_text())
    return read


def settings_of(run: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(run, "settings.json").read_text())
    return read


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rates(run: str) -> list[float]:
    return [line["learning_rate"] for line in read_jsonl(Path(run, "metrics.jsonl")) if line["kind"] == "train"]


def asked(run: str) -> list[str]:
    return sorted(line["task"]["id"] for line in read_jsonl(Path(run, "trajectories.jsonl")))


def test_a_schedule_over_planned_steps_is_resumed_exactly_and_the_manifest_names_what_was_trained(
    capsys: pytest.CaptureFixture[str], tiny: Path
) -> None:
    Path("length.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str)\n"
    )
    schedule = ("--set=train.schedule=linear", "--set=train.warmup_share=0.25", "--lr=1e-3", "--iterations=2")
    document(["train", f"--model={tiny}", *schedule, *TRAIN, "--run-dir=a"], capsys)
    assert rates("a") == pytest.approx([1e-3, 1e-3 / 3]), "1 of 4 steps rises, 3 fall; each iteration's last step"

    found = manifest("a")
    assert found["command"] == "train" and found["parameters"]["train"]["schedule"] == "linear"
    assert found["inputs"]["policy"]["files"][str(tiny / "model.safetensors")] == digest(tiny / "model.safetensors")
    assert found["inputs"]["data"]["digest"].startswith("sha256:")
    adapter = "checkpoints/step_2/policy/adapter_model.safetensors"
    assert found["outputs"].keys() >= {"metrics.jsonl", "trajectories.jsonl", adapter}
    assert all(digest(Path("a", name)) == sha for name, sha in found["outputs"].items())

    with pytest.MonkeyPatch.context() as patch:  # a finished run is resumed without an engine
        patch.delattr("finqa_cli.wiring.stage.make_engine")
        assert main(["train", "--resume=a"]) == 0
    assert capsys.readouterr().out.startswith("a is already finished: all of its 2 iterations are done.")

    shutil.copytree("a", "b")
    shutil.rmtree(Path("b/checkpoints/step_2"))
    document(["train", "--resume=b"], capsys)
    assert rates("b") == rates("a") and manifest("b")["outputs"][adapter] == found["outputs"][adapter]
    assert {**manifest("b"), "created": "", "outputs": ""} == {**found, "created": "", "outputs": ""}

    shutil.copytree("a", "d")
    shutil.rmtree(Path("d/checkpoints"))
    document(["train", "--resume=d"], capsys)  # without a checkpoint it begins again
    assert rates("d") == rates("a") and manifest("d")["outputs"][adapter] == found["outputs"][adapter]
    assert sorted(asked("d")) == sorted(asked("a"))

    status, told = failure(["train", "--resume=b", "--iterations=4"], capsys)
    assert status == 78 and "planned for 2 iterations" in told
    twice = ["--set=learner.options.warmup_steps=3", "--run-dir=c"]
    status, told = failure(["train", f"--model={tiny}", *schedule, *TRAIN, *twice], capsys)
    assert status == 78 and "learner.options.warmup_steps" in told and not Path("c").exists()


def test_dpo_by_train_is_dpo_and_takes_no_flag_of_rollouts(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    rows = []
    for number in range(8):
        sides = {
            name: {
                "attempt": f"{number}/{text}",
                "reward": reward,
                "turns": [{"text": text, "tool_call": None, "observation": None}],
            }
            for name, text, reward in (("chosen", "yes", 1.0), ("rejected", "no", 0.0))
        }
        task = {"id": f"q{number}", "cluster": f"c{number}", "split": "train", "prompt": f"Is {number} a number?"}
        prompt = {"messages": [{"role": "user", "content": task["prompt"]}], "tools": []}
        rows.append({"id": f"q{number}#0", "task": task, "held_out": number < 2, "prompt": prompt, **sides})
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--quick-test", f"--model={tiny}", "--lr=1e-3", "--seed=3", *TEXT[1:]]
    one = document(["dpo", "pairs.jsonl", *flags, "--set=optimizer.options.beta=0.3", "--run-dir=one"], capsys)
    two = document(
        [
            *("train", "--optimizer=dpo", "--pairs=pairs.jsonl", *flags),
            *("--set=optimizer.options.beta=0.3", "--run-dir=two"),
        ],
        capsys,
    )
    own = {"run", "policy", "best", "seconds"}
    assert {key: value for key, value in one.items() if key not in own} == {
        key: value for key, value in two.items() if key not in own
    }
    weights = [Path(run, "checkpoints/final/adapter_model.safetensors") for run in ("one", "two")]
    assert digest(weights[0]) == digest(weights[1]) and manifest("two")["command"] == "dpo"
    assert settings_of("one")["optimizer"] == settings_of("two")["optimizer"]

    document(["eval", "two", "--limit=2", "--max-gen-tokens=4", "--run-dir=evaluated", *TEXT], capsys)
    cost = load_run(Path("evaluated")).cost
    steps = [line for line in read_jsonl(Path("two/metrics.jsonl")) if line["kind"] == "dpo"]
    assert cost is not None and (cost.iterations, cost.sampled_tokens, cost.curve) == (len(steps), 0, ())
    assert cost.trained_tokens == sum(line["tokens"] for line in steps) > 0 and cost.hours > 0

    status, told = failure(["train", "--pairs=pairs.jsonl", "--sandboxes=3", "--split=dev"], capsys)
    assert status == 2 and "--sandboxes, --split would have no effect" in told
    status, told = failure(["train", "--pairs=pairs.jsonl", "--resume=one"], capsys)
    assert status == 2 and "fix: finqa dpo --resume one" in told
    status, told = failure(["train", "--optimizer=sft", f"--model={tiny}", "--engine=transformers"], capsys)
    assert status == 2 and "finqa sft RUN" in told
    status, told = failure(["train", "--optimizer=dpo", f"--model={tiny}", "--engine=transformers"], capsys)
    assert status == 2 and "--optimizer dpo --pairs PAIRS" in told
    status, told = failure(["train", "--pairs=pairs.jsonl", f"--model={tiny}"], capsys)
    assert status == 78 and "'grpo' does not learn from pairs" in told and not Path("runs").exists()
    wrong = [f"--model={tiny}", "--set=learner.options.nope=1", "--run-dir=three"]
    status, told = failure(["dpo", "pairs.jsonl", *wrong], capsys)
    assert status == 78 and "nope" in told and not Path("three").exists()


def test_a_comparison_knows_what_imitation_cost(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    document(["eval", "scripted", "--split=train", "--limit=4", "--run-dir=shown", *TEXT], capsys)
    flags = ["--epochs=1", "--batch-tokens=4000", "--set=sft.validation_samples=0", "--run-dir=taught", "--quiet"]
    status, told = failure(["sft", "shown", f"--model={tiny}", "--set=learner.options.nope=1", *flags], capsys)
    assert status == 78 and "nope" in told and not Path("taught").exists()
    taught = document(["sft", "shown", f"--model={tiny}", *flags], capsys)
    document(["eval", "taught", "--limit=2", "--max-gen-tokens=4", "--run-dir=evaluated", *TEXT], capsys)
    run = load_run(Path("evaluated"))
    assert run.method == "sft" and run.cost is not None
    assert (run.cost.iterations, run.cost.sampled_tokens, run.cost.curve) == (taught["steps"], 0, ())
    assert run.cost.trained_tokens > 0 and run.cost.hours > 0


def test_limited_evaluations_of_any_seed_ask_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for run, *flags in (("a", "--seed=1"), ("b", "--seed=2"), ("c", "--set=eval.seed=1")):
        document(["eval", "scripted", "--limit=5", f"--run-dir={run}", *flags, *TEXT], capsys)
    assert asked("a") == asked("b") != asked("c")
    assert document(["compare", "a=a", "b=b", "--quick-test", "--out=out"], capsys)["notes"] == []
    assert Path("out/report.md").is_file() and not Path("out/plots").exists()
    status, told = failure(["compare", "a=a", "c=c", "--no-plots"], capsys)
    assert status == 65 and "--limit and eval.seed" in told
    document(["eval", "scripted", "--limit=6", "--run-dir=d", *TEXT], capsys)
    assert "--limit and eval.seed" in document(["compare", "a=a", "d=d", "--no-plots", "--out=e"], capsys)["notes"][0]


def test_candidates_are_still_drawn_by_the_runs_seed() -> None:
    settings = Settings.model_validate({"train": {"seed": 7}})
    chosen = sampling_settings(settings, candidates=2, temperature=1, top_p=1, split="train", limit=3)
    assert chosen.eval.seed == 7


def test_a_quick_evaluation_is_small_and_what_is_given_wins(capsys: pytest.CaptureFixture[str]) -> None:
    document(["eval", "scripted", "--quick-test", "--limit=3", "--run-dir=run", *TEXT], capsys)
    chosen = settings_of("run")
    assert (chosen["eval"]["limit"], chosen["pool"]["sandboxes"], len(asked("run"))) == (3, 8, 3)
    found = manifest("run")
    assert found["parameters"]["eval"]["limit"] == 3 and found["inputs"]["policy"]["model"] == ""
    assert found["outputs"].keys() == {
        *("report.json", "metrics.json", "breakdown.csv", "items.csv", "trajectories.jsonl"),
        "samples/predictions.jsonl",
    }
    assert all(digest(Path("run", name)) == sha for name, sha in found["outputs"].items())


@pytest.mark.parametrize(
    "wrong",
    ["--set=engine.options.nope=1", "--environment=nope", "--sandbox=nope", "--set=environment.options.nope=1"],
)
def test_an_evaluation_that_cannot_begin_leaves_no_run(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("made").mkdir()
    for folder in ("new", "made"):
        status, told = failure(["eval", "scripted", "--limit=1", wrong, f"--run-dir={folder}", "-q"], capsys)
        assert status == 78 and "nope" in told
    assert not Path("new").exists() and list(Path("made").iterdir()) == []


def test_only_a_mistake_before_the_first_record_takes_the_folder_away(tmp_path: Path) -> None:
    def fail(name: str, error: Exception, *, records: bool, event: str = "weights") -> bool:
        with pytest.raises(type(error)), new_run(tmp_path / name, command="eval", settings=Settings()) as folder:
            if records:
                folder.event(event)
            raise error
        return (tmp_path / name / "run.json").exists()

    assert not fail("a", ConfigError("wrong"), records=False)
    assert fail("b", ConfigError("wrong"), records=True)
    assert not fail("d", ConfigError("needs openenv"), records=True, event="sandbox_failed")
    assert not fail("e", ConfigError("no tokens"), records=True, event="run_start")
    assert fail("c", ServiceUnavailableError("gone"), records=False), "it may be resumed"
    with pytest.raises(ConfigError, match="holds a run"), new_run(tmp_path / "c", command="eval", settings=Settings()):
        pass
    assert (tmp_path / "c" / "run.json").exists(), "another run's folder stays"
