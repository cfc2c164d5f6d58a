"""`finqa export --to peft|merged|gguf-ready`, as a user calls it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fixtures.command_calls import document, failure
from fixtures.handed_on_runs import write_run
from fixtures.sharded_checkpoints import cut, write_actor
from safetensors.torch import load_file

from finqa_cli.app import main
from finqa_cli.runs.durable_files import sha256_of, write_json
from finqa_cli.runs.run_folder import policy_inputs
from finqa_cli.wiring.policies import resolve
from finqa_testing.tiny_models import make_tiny_qwen3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_tiny_qwen3(folder / "base")
    write_run(folder / "stock_run", folder / "base")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "stock_run", "stock_run")
    return tmp_path


def front_matter(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    return found


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=torch.arange(64)[None]).logits
    return found


def test_the_adapter_of_a_step_loads_in_peft(here: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--step=1", "--to=peft", "--base-model=Qwen/Qwen3-4B", "--license=apache-2.0", "-q"]
    written = document(["export", "stock_run", *flags], capsys)
    folder = Path(written["folder"])
    assert folder == Path("exports/stock_run_step-1_peft") and written["step"] == 1
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    own = {"README.md", "adapter_config.json", "adapter_model.safetensors", "manifest.json"}
    assert own | tokenizer <= set(written["files"]), "an adapter brings its tokenizer"
    assert (folder / "tokenizer.json").read_bytes() == (made / "base" / "tokenizer.json").read_bytes()
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "Qwen/Qwen3-4B" and config["peft_type"] == "LORA"
    original = Path("stock_run/checkpoints/step_1/policy/adapter_model.safetensors")
    assert sha256_of(folder / "adapter_model.safetensors") == sha256_of(original)
    facts = front_matter(folder)
    assert facts["base_model"] == "Qwen/Qwen3-4B" and facts["library_name"] == "peft"
    assert facts["license"] == "apache-2.0" and "model-index" not in facts, "step 1 was not evaluated"
    assert str(made) not in (folder / "README.md").read_text(), "folders of this machine are not published"
    again = document(["export", str(folder), "--to=peft", "--out=again", "--base-model=a/b"], capsys)
    assert set(again["files"]) == set(written["files"])


def test_merged_is_adapter_plus_base(here: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    document(["export", "stock_run", "--to=merged", "--out=whole"], capsys)
    base = AutoModelForCausalLM.from_pretrained(made / "base", dtype=torch.float32)
    plain = logits(base)
    wanted = logits(PeftModel.from_pretrained(base, "stock_run/checkpoints/step_2/policy"))
    found = logits(AutoModelForCausalLM.from_pretrained("whole"))
    assert float((found - wanted).abs().max()) < 1e-4 < 0.05 < float((plain - wanted).abs().max())
    result = front_matter(Path("whole"))["model-index"][0]["results"][0]
    accuracy = result["metrics"][0]
    assert (accuracy["type"], accuracy["value"]) == ("accuracy", pytest.approx(1 / 3)), "the newest step was evaluated"
    assert "95 % interval 0." in accuracy["name"] and result["dataset"]["split"] == "dev"
    assert resolve("whole").model == "whole", "finqa takes it as a policy"


@pytest.mark.thorough
def test_five_names_of_one_policy_give_one_figure(here: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = json.loads(Path("stock_run/settings.json").read_text())
    settings["environment"] = {"name": "finqa-text", "options": {}}
    settings["generation"] |= {"max_gen_tokens": 4, "max_steps": 1}
    settings["data"]["eval_split"] = "train"
    write_json(Path("stock_run/settings.json"), settings)
    base = f"--base-model={made / 'base'}"
    assert main(["export", "stock_run", "--to=peft", "--out=peft", base, "-q"]) == 0
    assert main(["export", "stock_run", "--to=merged", "--out=merged", "-q"]) == 0
    names = ("stock_run", "stock_run/checkpoints/step_2", "stock_run/checkpoints/step_2/policy", "peft", "merged")
    capsys.readouterr()
    found = []
    for number, name in enumerate(names):
        report = document(["eval", name, "--limit=2", "--engine=transformers", f"--run-dir=eval_{number}"], capsys)
        asked = json.loads(Path(f"eval_{number}/settings.json").read_text())
        rows = [json.loads(line) for line in Path(f"eval_{number}/trajectories.jsonl").read_text().splitlines()]
        found.append((
            report["accuracy"], sorted(row["task"]["id"] for row in rows), {row["task"]["split"] for row in rows},
            asked["data"], asked["generation"]["max_gen_tokens"], asked["generation"]["max_steps"],
        ))  # fmt: skip
    assert all(each == found[0] for each in found) and found[0][2] == {"train"} and found[0][4:] == (4, 1)


def test_our_own_template_marks_the_assistant_for_other_trainers(here: Path, made: Path) -> None:
    for form, marked in (("merged", True), ("gguf-ready", False)):
        assert main(["export", "embedded", f"--to={form}", f"--out={form}", "-q"]) == 0
        assert ("{%- generation %}" in Path(form, "chat_template.jinja").read_text()) is marked
        listed = json.loads(Path(form, "manifest.json").read_text())["outputs"]
        assert listed["chat_template.jinja"] == sha256_of(Path(form, "chat_template.jinja"))
    assert main(["export", "stock_run", "--to=merged", "--out=other", "-q"]) == 0
    template = Path("other", "chat_template.jinja")
    assert template.read_bytes() == (made / "base" / "chat_template.jinja").read_bytes(), "another one is left as it is"


def test_gguf_ready_is_what_the_converter_reads(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM

    written = document(["export", "stock_run", "--to=gguf-ready", "--out=whole", "--dtype=float16"], capsys)
    assert written["next"] == "python convert_hf_to_gguf.py whole --outfile whole.gguf --outtype f16"
    weights = load_file("whole/model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    config = json.loads(Path("whole/config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"] and config["torch_dtype"] == config["dtype"] == "float16"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"], "older converters look for it there"
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(written["files"])
    document(["export", "stock_run", "--to=merged", "--out=plain", "--dtype=float16"], capsys)
    ours, theirs = (logits(AutoModelForCausalLM.from_pretrained(name)) for name in ("whole", "plain"))
    assert torch.equal(ours, theirs), "the old names change nothing for transformers"


def test_what_the_converter_could_not_read_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny_qwen3(here / "odd", vocab_size=265)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": 265, "content": "<beyond>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    status, err = failure(["export", "odd", "--to=gguf-ready", "--out=whole"], capsys)
    assert (
        status == 78
        and "has the id 265, which is outside of the model's vocabulary" in err
        and not Path("whole").exists()
    )


@pytest.mark.parametrize("what", ["tree", "tree/global_step_200", "tree/global_step_200/actor"])
def test_trees_of_verl_are_put_together(here: Path, made: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    tensors = load_file(made / "base" / "model.safetensors")
    for step in (100, 200, 300):
        write_actor(here / f"tree/global_step_{step}/actor", made / "base", cut(tensors, 2))
    (here / "tree" / "latest_checkpointed_iteration.txt").write_text("200")
    written = document(["export", what, "--to=merged", "--dtype=bfloat16"], capsys)
    assert written["folder"] == "exports/tree_step-200_merged" and written["step"] == 200
    found = load_file(Path(written["folder"]) / "model.safetensors")
    assert all(torch.equal(found[name], tensors[name].bfloat16()) for name in tensors)
    if what == "tree":
        assert document(["export", "tree", "--step=300", "--to=merged", "-q"], capsys)["step"] == 300
        status, err = failure(["export", "tree", "--step=150", "--to=merged"], capsys)
        assert status == 65 and "--step with one of: 100, 200, 300" in err


def evaluation(folder: Path, policy: str, *, accuracy: float = 0.75) -> Path:
    """What `finqa eval POLICY` leaves, as far as a model card needs it."""
    facts = {"data": {"name": "stocks", "digest": "sha256:0"}, "split": "test", "target": policy}
    figures = {"episodes": 40, "clusters": 8, "accuracy": accuracy, "accuracy_interval": [0.6, 0.9], "reward_mean": 0.7}
    write_json(folder / "report.json", {**facts, **figures})
    inputs = {"policy": policy_inputs(resolve(policy))}
    write_json(folder / "manifest.json", {"inputs": inputs, "parameters": {"eval": {"temperature": 0.0}}})
    return folder


def test_scores_are_of_this_policy_or_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = evaluation(here / "good", "stock_run")
    document(["export", "stock_run", "--to=peft", f"--eval={good}", "--out=a", "-q"], capsys)
    scores = front_matter(Path("a"))["model-index"][0]["results"]
    assert [score["metrics"][0]["value"] for score in scores] == [pytest.approx(1 / 3, abs=1e-6), 0.75]
    assert "| stocks, test | 0.750 [0.600, 0.900] | 0.700 | 40 | 8 | 0 |" in Path("a/README.md").read_text()
    other = evaluation(here / "other", "stock_run/checkpoints/step_1")
    status, err = failure(["export", "stock_run", "--to=peft", f"--eval={other}", "--out=b"], capsys)
    assert status == 65 and "evaluated another policy" in err and not Path("b").exists()
    status, err = failure(["export", "stock_run", "--to=peft", "--eval=nowhere", "--out=b"], capsys)
    assert status == 65 and "not a finished evaluation: it has no report.json" in err


def test_card_names_the_data_that_the_run_found_and_no_snapshot(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("stock_run", "code_run")  # its settings name a snapshot, as all do
    write_json(Path("code_run/manifest.json"), {"inputs": {"data": {"name": "embedded", "digest": "sha256:0"}}})
    document(["export", "code_run", "--to=peft", "--out=c", "-q"], capsys)
    said = Path("c/README.md").read_text(encoding="utf-8")
    assert "| data | embedded, train |" in said and "openenv-finqa" not in said


def test_card_says_what_tells_two_experiments_apart(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("stock_run", "cell")
    settings = json.loads(Path("cell/settings.json").read_text(encoding="utf-8"))
    options = {"uncertainty": "advantage", "rules": "/home/someone/rules.toml"}
    changed = {"environment": {"name": "forecast", "options": options}, "lora": {"rank": 0, "alpha": 32}}
    write_json(Path("cell/settings.json"), {**settings, **changed})
    document(["export", "cell", "--to=peft", "--out=d", "-q"], capsys)
    said = Path("d/README.md").read_text(encoding="utf-8")
    assert "| environment.uncertainty | advantage |" in said and "| environment.rules | rules.toml |" in said
    assert "| lora.rank | 0 |" in said and "lora.alpha" not in said and "someone" not in said


MISTAKES: dict[str, tuple[int, str, list[str]]] = {
    "no such step": (65, "no checkpoint of step 9", ["stock_run", "--step=9", "--to=peft"]),
    "a step of a model": (2, "has no checkpoints, so", ["base", "--step=1", "--to=merged"]),
    "the adapter of a whole model": (78, "complete model and not an adapter", ["base", "--to=peft"]),
    "precision of an adapter": (2, "--dtype applies to complete models", ["stock_run", "--to=peft", "--dtype=float16"]),
    "float32 for llama.cpp": (2, "half precision", ["stock_run", "--to=gguf-ready", "--dtype=float32"]),
    "rewards of weights": (2, "--to merged takes no --min-reward", ["stock_run", "--to=merged", "--min-reward=1"]),
    "a folder that is not empty": (78, "not an empty folder", ["stock_run", "--to=peft", "--out=stock_run"]),
    "the adapter of nothing": (78, "There is no run, checkpoint or model 'nowhere' here", ["nowhere", "--to=peft"]),
    "nothing there": (78, "There is no model", ["./nowhere", "--to=merged"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_told(here: Path, made: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    (here / "base").symlink_to(made / "base")
    status, message, arguments = MISTAKES[case]
    found, err = failure(["export", *arguments], capsys)
    assert found == status and message in err
    assert not Path("exports").exists()


def test_a_damaged_step_is_not_handed_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = Path("stock_run/checkpoints/step_2/policy/adapter_model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    status, err = failure(["export", "stock_run", "--step=2", "--to=peft"], capsys)
    assert status == 65 and "does not match its checksum" in err
    document(["export", "stock_run", "--to=peft", "--step=1", "--out=one"], capsys)
    assert main(["export", "stock_run", "--to=peft", "--out=newest"]) == 0
    assert "Folder: newest" in (told := capsys.readouterr()).out and "checkpoint skipped" in told.err
    names = [Path(name, "adapter_model.safetensors").read_bytes() for name in ("one", "newest")]
    assert names[0] == names[1], "the newest that is whole"
