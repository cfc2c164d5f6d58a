"""Candidates, pairs of them, and a policy that learns to prefer, as a user runs them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document
from fixtures.recording_tracker import recording, written
from fixtures.stops import StopsAt

from finqa_cli.app import main
from finqa_cli.errors import InterruptedRun
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import read_settings
from finqa_cli.settings import Settings, from_public_dict, to_public_dict
from finqa_cli.training.preference.dpo_run import dpo
from finqa_cli.wiring.policies import resolve
from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch", reason="needs finqa[train]")

pytestmark = pytest.mark.usefixtures("empty_folder")

TEXT = ["--environment=finqa-text", "--max-gen-tokens=6", "--quiet"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("tiny"))


def lines(path: str) -> list[dict[str, Any]]:
    return list(read_jsonl(Path(path)))


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int) -> str:
    capsys.readouterr()
    assert main(arguments) == code, capsys.readouterr().err
    return capsys.readouterr().err


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_candidates(run: str, questions: int, wanted: int) -> None:
    candidates, scores = lines(f"{run}/candidates.jsonl"), lines(f"{run}/scores.jsonl")
    assert len(candidates) == len(scores) == questions
    for line, verdicts in zip(candidates, scores, strict=True):
        assert line["id"] == line["task"]["id"] == verdicts["id"] and line["prompt"]["messages"]
        assert [each["id"] for each in line["candidates"]] == [each["id"] for each in verdicts["scores"]]
        assert len(line["candidates"]) == wanted
        for candidate in line["candidates"]:
            for turn in candidate["turns"]:
                assert turn["prompt_token_ids"] and turn["completion_token_ids"]
                assert len(turn["completion_token_ids"]) == len(turn["logprobs"])
                assert max(turn["logprobs"]) <= 1e-6


@pytest.mark.thorough
def test_the_embedded_policy_learns_from_its_own_attempts_what_is_preferred(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sampled = document(
        [
            "sample",
            "embedded",
            "--limit=30",
            "-k4",
            "--temperature=1",
            "--top-p=1",
            "--sandboxes=12",
            "--run-dir=s",
            "-q",
        ],
        capsys,
    )
    assert sampled["candidates"] == 120 and sampled["faults"] == 0 and sampled["parse_rate"] > 0.9
    check_candidates("s", 30, 4)
    manifest = json.loads(Path("s/manifest.json").read_text())
    assert manifest["parameters"]["temperature"] == 1 and manifest["inputs"]["policy"]["sha256"]
    assert manifest["outputs"]["candidates.jsonl"] == digest(Path("s/candidates.jsonl"))

    prefs = document(["prefs", "s", "--rule=right-wrong", "--held-out-share=0.35", "--run-dir=p"], capsys)
    pairs = lines("p/pairs.jsonl")
    assert prefs["pairs"] == len(pairs) > 7 and prefs["held_out"] > 1
    assert sum(prefs["margin"]["histogram"]["counts"]) == len(pairs) and "####" in Path("p/stats.txt").read_text()
    sides = {(pair["chosen"]["correct"], pair["rejected"]["correct"]) for pair in pairs}
    assert sides == {(True, False)}
    companies = [{pair["task"]["cluster"] for pair in pairs if pair["held_out"] is out} for out in (True, False)]
    assert not companies[0] & companies[1]

    asked = ["--validation-samples=3", "--set=pool.sandboxes=3"]
    flags = ["--epochs=4", "--pairs-per-step=6", "--validate-every=4", *asked, "--run-dir=d", "-q"]
    trained = document(["dpo", "p", *flags], capsys)
    assert trained["before"]["accuracy"] == 0.5 and trained["before"]["margin"] == pytest.approx(0, abs=1e-4)
    assert trained["after"]["accuracy"] > 0.6 and trained["after"]["margin"] > 0.1
    first, *_, last = [line for line in lines("d/metrics.jsonl") if line["kind"] == "dpo"]
    assert last["loss"] < first["loss"] == pytest.approx(0.6931, abs=1e-3)
    for name in ("d", "d/checkpoints/best", "d/checkpoints/final"):
        policy = resolve(name)
        assert policy.adapter is not None and (policy.adapter / "adapter_model.safetensors").is_file(), name
    manifest = json.loads(Path("d/manifest.json").read_text())
    assert manifest["inputs"]["pairs"]["sha256"] == digest(Path("p/pairs.jsonl"))
    steps = trained["steps"]
    generations = lines(f"d/valid_samples/step_{steps}.jsonl")
    assert trained["before"]["samples"] is None and len(generations) == trained["after"]["samples"]["questions"] == 3
    assert f"valid_samples/step_{steps}.jsonl" in manifest["outputs"] and not Path("d/policies").exists()
    taught = {pair["task"]["cluster"] for pair in pairs if not pair["held_out"]}
    assert not taught & {record["task"]["cluster"] for record in generations}
    measured = [line for line in lines("d/metrics.jsonl") if line["kind"] == "held_out"]
    assert [line.get("questions") for line in measured] == [None, *[3] * (len(measured) - 1)]
    after = trained["after"]
    assert measured[-1]["preference_accuracy"] == after["accuracy"]
    assert measured[-1]["accuracy"] == after["samples"]["accuracy"]


def test_an_interrupted_sampling_run_plays_only_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["sample", "embedded", "--limit=3", "-k2", "--run-dir=s", *TEXT]
    document(flags, capsys)
    check_candidates("s", 3, 2)
    whole = [
        (each["id"], each["turns"][0]["text"]) for line in lines("s/candidates.jsonl") for each in line["candidates"]
    ]
    log = Path("s/trajectories.jsonl")
    first, second, third, *_ = log.read_text().splitlines(keepends=True)
    faulted = json.loads(second) | {"status": "engine_error", "reward": None, "error": "gone"}
    log.write_text(first + json.dumps(faulted) + "\n" + third[:-20])
    for name in ("candidates.jsonl", "scores.jsonl"):
        Path("s", name).write_text("")
    assert document(["sample", "--resume=s"], capsys, warning="an incomplete last line is")["candidates"] == 6
    played = lines("s/trajectories.jsonl")
    assert len(played) == 2 + 5 and sum(each["id"].endswith("-again") for each in played) == 1
    again = [
        (each["id"].removesuffix("-again"), each["turns"][0]["text"])
        for line in lines("s/candidates.jsonl")
        for each in line["candidates"]
    ]
    assert sorted(again) == sorted(whole)
    check_candidates("s", 3, 2)
    log_before = digest(log)
    document(["sample", "--resume=s"], capsys)
    assert digest(log) == log_before, "a finished run has nothing left to play"


def test_what_cannot_be_sampled_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No policy and no run" in refusal(["sample"], capsys, 2)
    assert "--num-candidates" in refusal(["sample", "embedded", "--set", "eval.attempts=3"], capsys, 2)
    assert "are identical" in refusal(["sample", "embedded", "--temperature=0"], capsys, 78)
    assert "has no split" in refusal(["sample", "embedded", "--split=nowhere", *TEXT], capsys, 65)
    assert "not a run folder" in refusal(["sample", "--resume=nowhere"], capsys, 65)
    assert "keeps its settings" in refusal(["sample", "--resume=nowhere", "--seed=2"], capsys, 2)


def pair_file(folder: str, count: int = 10) -> Path:
    """Pairs of texts without token ids, one company each: 'yes' is preferred to 'no'."""
    Path(folder).mkdir()
    rows = []
    for number in range(count):
        sides = {
            name: {
                "attempt": f"{number}/{text}",
                "reward": reward,
                "turns": [{"text": f"{text} {number}", "tool_call": None, "observation": None}],
            }
            for name, text, reward in (("chosen", "yes", 1.0), ("rejected", "no", 0.0))
        }
        task = {"id": f"q{number}", "cluster": f"c{number}", "split": "train", "prompt": f"Is {number} a number?"}
        prompt = {"messages": [{"role": "user", "content": task["prompt"]}], "tools": []}
        rows.append({"id": f"q{number}#0", "task": task, "held_out": number < 3, "prompt": prompt, **sides})
    path = Path(folder, "pairs.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_resumed_run_is_the_unbroken_one(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    pair_file("p")
    flags = ["--epochs=2", "--pairs-per-step=4", "--validate-every=1", "--lr=1e-3", f"--model={tiny}", "--beta=0.5"]
    trained = document(["dpo", "p", *flags, "--run-dir=a", "-q"], capsys)
    assert trained["steps"] == 4 and trained["after"]["accuracy"] == 1.0
    assert sorted(path.name for path in Path("a/checkpoints").iterdir()) == [
        "best",
        "final",
        "latest_checkpointed_iteration.txt",
        "step_2",
        "step_3",
        "step_4",
    ]
    shutil.copytree("a", "b")
    for name in ("step_3", "step_4", "final", "best"):
        shutil.rmtree(Path("b/checkpoints", name))
    resumed = document(["dpo", "--resume=b"], capsys)
    assert {**resumed, "run": "", "policy": "", "best": "", "seconds": 0} == {
        **trained,
        **{"run": "", "policy": "", "best": "", "seconds": 0},
    }
    for name in ("step_4/policy", "final", "best"):
        weights = [Path(run, "checkpoints", name, "adapter_model.safetensors") for run in "ab"]
        assert digest(weights[0]) == digest(weights[1]), name

    def metrics(run: str) -> list[dict[str, Any]]:
        return [{**line, "timing": None} for line in lines(f"{run}/metrics.jsonl")]

    assert metrics("a") == metrics("b")
    pair_file("other", 9)
    shutil.copy("other/pairs.jsonl", "p/pairs.jsonl")
    assert "was started with" in refusal(["dpo", "--resume=b", "-q"], capsys, 78)


def test_a_stop_before_the_first_look_makes_nothing_the_best(
    capsys: pytest.CaptureFixture[str], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackers = recording(monkeypatch, "training.preference.dpo_run")
    pair_file("p")
    flags = ["--epochs=2", "--pairs-per-step=4", "--validate-every=9", "--lr=1e-3", f"--model={tiny}", "-q"]
    whole = document(["dpo", "p", *flags, "--run-dir=a"], capsys)
    reporter = StopsAt("dpo", 2)
    settings = from_public_dict(read_settings(Path("a")))
    stopped = dpo(settings, Path("p"), Path("b"), resume=False, most=0, reporter=reporter, stopper=reporter.stopper)
    with pytest.raises(InterruptedRun):
        asyncio.run(stopped)
    assert Path("b/checkpoints/step_1/learner").is_dir() and not Path("b/checkpoints/best").exists()
    assert trackers["b"].records == written("b") != [] and trackers["b"].status == "interrupted"
    resumed = document(["dpo", "--resume=b"], capsys)
    assert resumed["best_step"] == whole["best_step"] == 4 and resumed["after"] == whole["after"]
    assert trackers["a"].records == written("a") and trackers["b"].status == "completed"


def test_a_quick_test_takes_two_steps_and_knows_the_environment_of_its_pairs(
    capsys: pytest.CaptureFixture[str], tiny: Path
) -> None:
    pair_file("p")
    theirs = Settings.model_validate(
        {
            "environment": {"name": "finqa-text"},
            "generation": {"max_gen_tokens": 77},
            "model": {"name": str(tiny)},
        }
    )
    Path("p/settings.json").write_text(json.dumps(to_public_dict(theirs)))
    flags = [f"--model={tiny}", "--loss-type=ipo", "--reference-free", "--quick-test", "--run-dir=d", "-q"]
    trained = document(["dpo", "p", *flags], capsys)
    assert (trained["steps"], trained["pairs"], trained["before"]["kl"]) == (2, 7, None)
    settings = json.loads(Path("d/settings.json").read_text())
    assert settings["environment"]["name"] == "finqa-text" and settings["generation"]["max_gen_tokens"] == 77
    assert settings["optimizer"]["name"] == "dpo" and settings["optimizer"]["options"]["loss_type"] == "ipo"


def test_what_cannot_be_preferred_is_told(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    model = f"--model={tiny}"
    assert "No pairs and no run" in refusal(["dpo"], capsys, 2)
    assert "no preference pairs" in refusal(["dpo", "nowhere"], capsys, 65)
    path = pair_file("p")
    assert "beta" in refusal(["dpo", "p", "--beta=-1", model], capsys, 78)
    assert "belongs to loss_type=sigmoid" in refusal(
        ["dpo", "p", "--loss-type=ipo", "--label-smoothing=0.1", model], capsys, 78
    )
    assert "no step" in refusal(["dpo", "p", "--epochs=0.01", model, "--run-dir=x"], capsys, 65)
    told = refusal(
        ["dpo", "p", "--lr=1e30", "--pairs-per-step=4", "--validate-every=1", model, "--run-dir=n"], capsys, 1
    )
    assert "step 1 the policy's log-probabilities are not finite. Its pairs: q" in told
    assert not list(Path("n").glob("checkpoints/*")), "no weights are kept that give no numbers"
    told = refusal(
        ["dpo", "p", "--lr=1e30", "--pairs-per-step=4", "--validate-every=9", model, "--run-dir=m"], capsys, 1
    )
    assert "Step 1 was skipped:" in told and "Its pairs: q" in told
    text = path.read_text()
    path.write_text(text.replace('"split": "train"', '"split": "test"'))
    assert "split test" in refusal(["dpo", "p", model], capsys, 65)
    path.write_text(text.replace("no 4", "yes 4"))
    assert "row 5 (q4#0): chosen and rejected are the same text" in refusal(["dpo", "p", model], capsys, 65)
    assert "--optimizer dpo --pairs PAIRS" in refusal(["train", "--optimizer=dpo", "--model=embedded"], capsys, 2)
