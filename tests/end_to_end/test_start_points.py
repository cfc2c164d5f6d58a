"""Training that begins from the adapter of another run: it is merged once, and everything after it lies on that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.finqa_text_rows import prepared, write

from finqa_cli.app import main
from finqa_cli.runs.checkpoints import latest
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.policies import of_checkpoint, resolve
from finqa_testing.tiny_models import make_tiny_qwen3

torch = pytest.importorskip("torch", reason="needs finqa[train]")

SHORT = ["--max-gen-tokens=6", "--lr=3e-2"]
TRAIN = ["--group-size=2", "--target-groups-per-iter=0", "--max-rollout-rounds=1", "--sandboxes=4", "--max-staleness=0"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a few questions, and `sft`: a run whose adapter is far from 0."""
    folder = tmp_path_factory.mktemp("world")
    make_tiny_qwen3(folder / "tiny")
    (folder / "data").mkdir()
    rows = [
        prepared(number, id=f"C{number}/2018/page_1.pdf-1", input_text=f"It was {number}. How much? Answer:")
        for number in range(6)
    ]
    write(folder / "data" / "train.jsonl", *rows[:4])
    write(folder / "data" / "dev.jsonl", *rows[4:])
    text = ["--environment=finqa-text", f"--data={folder / 'data'}", "-q"]
    assert main(["eval", "scripted", "--split=train", f"--run-dir={folder / 'gold'}", *text]) == 0
    quiet = ["--validation-samples=0", "--epochs=3", "-q"]
    wanted = ["sft", str(folder / "gold"), f"--model={folder / 'tiny'}", *SHORT, *quiet]
    assert main([*wanted, f"--run-dir={folder / 'sft'}"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _in_a_folder_with_the_run(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(world / "sft", tmp_path / "sft")
    monkeypatch.chdir(tmp_path)


def logprobs(policy: PolicyVersion) -> Any:
    """What a policy makes of a fixed sequence."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy.model, dtype=torch.float32)
    if policy.adapter is not None:
        model = PeftModel.from_pretrained(model, policy.adapter)
    with torch.no_grad():
        return model(torch.arange(40, 80)[None]).logits.log_softmax(-1)


def distance(left: PolicyVersion, right: PolicyVersion) -> float:
    return float((logprobs(left) - logprobs(right)).abs().max())


def train(world: Path, run: str, *more: str) -> list[str]:
    data = ["--environment=finqa-text", f"--data={world / 'data'}", "--set=eval.limit=1", f"--run-dir={run}"]
    return ["train", *TRAIN, *SHORT, *data, *more]


def test_training_begins_from_the_policy_of_an_adapter(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, base = resolve("sft"), PolicyVersion(number=0, model=str(world / "tiny"))
    assert policy.adapter is not None and distance(policy, base) > 0.1
    always = ["--set=optimizer.options.kl=loss", "--set=optimizer.options.kl_coef=0.1"]
    # all answers are wrong, so there is nothing to learn; what the run begins from is written all the same
    code, told = failure([*train(world, "t", "--model=sft", "--iterations=1"), "--no-preflight", *always], capsys)
    assert code == 4 and "No group of 1 iterations was informative" in told
    start = PolicyVersion(number=0, model=str(Path("t/start").resolve()))
    assert distance(start, policy) < 1e-4
    first = of_checkpoint(latest(Path("t")) or pytest.fail("no checkpoint"))
    assert first.adapter is not None and first.model == start.model, "its adapter lies on the merged model"
    record = json.loads(Path("t/start.json").read_text())
    manifest = json.loads(Path("t/manifest.json").read_text())
    assert manifest["inputs"]["policy"]["merged_sha256"] == record["sha256"]
    assert manifest["inputs"]["policy"]["adapter"] == record["merged"]["adapter"] == str(policy.adapter)

    shutil.rmtree("sft")
    written = Path("t/start/model.safetensors").stat().st_mtime_ns
    assert failure(["train", "--resume=t", "--iterations=2"], capsys)[0] == 4
    assert Path("t/start/model.safetensors").stat().st_mtime_ns == written, "merged once; its source may be gone"
    Path("elsewhere").mkdir()
    shutil.move("t", "elsewhere/moved")
    moved = resolve("elsewhere/moved")
    assert moved.model == str(Path("elsewhere/moved/start").resolve())
    document(["sft", str(world / "gold"), "--model=elsewhere/moved", *SHORT, "--epochs=1", "--run-dir=again"], capsys)
    assert distance(PolicyVersion(number=0, model=str(Path("again/start").resolve())), moved) < 1e-4

    weights = Path("elsewhere/moved/start/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    code, told = failure(["train", "--resume=elsewhere/moved", "--iterations=3"], capsys)
    assert code == 65 and "has changed" in told


def test_the_reference_of_preferences_is_the_policy_they_begin_from(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for number in range(6):
        sides = {
            name: {"attempt": text, "reward": reward, "turns": [{"text": text, "tool_call": None, "observation": None}]}
            for name, text, reward in (("chosen", f"yes {number}", 1.0), ("rejected", f"no {number}", 0.0))
        }
        task = {"id": f"q{number}", "cluster": f"c{number}", "split": "train", "prompt": "Is it?"}
        prompt = {"messages": [{"role": "user", "content": task["prompt"]}], "tools": []}
        rows.append({"id": f"q{number}#0", "task": task, "held_out": number < 2, "prompt": prompt, **sides})
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--pairs-per-step=4", "--validate-every=1", "--lr=1e-3", "--epochs=2"]
    trained = document(["dpo", "pairs.jsonl", "--model=sft", *flags, "--run-dir=d"], capsys)
    assert trained["before"]["accuracy"] == 0.5 and abs(trained["before"]["margin"]) < 1e-4
    policy, best = resolve("sft"), resolve("d/checkpoints/best")
    assert best.model == str(Path("d/start").resolve())
    assert distance(PolicyVersion(number=0, model=best.model), policy) < 1e-4
    shutil.rmtree("sft")
    shutil.rmtree("d/checkpoints/step_2")
    again = document(["dpo", "--resume=d"], capsys)
    assert again["after"] == trained["after"]


def test_a_checkpoint_copied_out_of_its_run_names_the_merged_model(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*SHORT, "--epochs=1", "--validation-samples=0", "--run-dir=again"]
    document(["sft", str(world / "gold"), "--model=sft", *flags], capsys)
    shutil.copytree("again/checkpoints/step_1", "copy")
    assert resolve("copy").model == resolve("again").model == str(Path("again/start").resolve())
    shutil.copytree("sft/checkpoints/final", "adapter")
    assert resolve("adapter").model == str(world / "tiny")


def test_an_adapter_that_does_not_fit_leaves_no_run(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_tiny_qwen3(Path("other"), hidden=96)
    shutil.copytree("sft/checkpoints/final", "adapter")
    config = Path("adapter/adapter_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(other.resolve())}))
    before = {path.name for path in Path().iterdir()}
    for wanted in (
        train(world, "x", "--model=adapter"),
        ["sft", str(world / "gold"), "--model=adapter", "--run-dir=x"],
    ):
        code, told = failure([*wanted, "-q"], capsys)
        assert code == 78 and "does not fit" in told and "has shape" in told
    config.write_text(config.read_text().replace('"LORA"', '"IA3"'))
    assert failure([*train(world, "x", "--model=adapter"), "-q"], capsys)[0] == 78
    config.write_text(config.read_text().replace(str(other.resolve()), "/nowhere/at/all"))
    code, told = failure([*train(world, "x", "--model=adapter"), "-q"], capsys)
    assert code == 78 and "/nowhere/at/all" in told
    assert {path.name for path in Path().iterdir()} == before
