"""Command lines and settings files of the published scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.finqa_text_rows import original, write
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.app import main
from finqa_cli.errors import UsageError
from finqa_cli.runs.run_folder import read_settings
from finqa_cli.settings.published_names import FLAGS, KEYS, REFUSED_FLAGS, VALUES, replace_flags
from finqa_cli.settings.schema import DECLARATIONS

pytestmark = pytest.mark.usefixtures("empty_folder")

MODEL = """\
model:
  name: microsoft/DialoGPT-medium
  type: gpt2
  architecture: GPT2LMHeadModel
  hidden_size: 1024
  num_layers: 24
  vocab_size: 50257
lora:
  use_lora: true
  r: 8
  alpha: 24
  dropout: 0.05
  target_modules:
    - c_attn
    - c_proj
training:
  epochs: 2
  batch_size: 4
  gradient_accumulation_steps: 4
  learning_rate: 2.0e-05
  warmup_steps: 100
  max_length: 512
  fp16: true
validation:
  eval_steps: 500
  save_steps: 1000
  logging_steps: 100
generation:
  max_new_tokens: 128
  temperature: 0.7
  top_p: 0.9
paths:
  data_dir: finqa_processed
  output_dir: outputs/run_001/03_sft
  reward_spec: outputs/run_001/02_rewards/reward_spec.yaml
metadata:
  generated_by: inspect_model_architecture.py
  all_available_layers: [c_attn, c_proj, c_fc]
"""
ALGORITHMS = {
    "ppo": ("clip_range: 0.3\nkl_coef: 0.1\nppo_epochs: 2\n",
            {"clip_low": 0.3, "clip_high": 0.3, "kl_coef": 0.1, "epochs": 2}),
    "grpo": ("grpo:\n  group_size: 5\n  use_batch_bonus: false\n", {}),
    "rloo": ("algorithm:\n  name: rloo\n  num_samples: 5\n  baseline_type: loo\n", {"baseline": "leave_one_out"}),
    "dpo": ("method: dpo\nbeta: 0.2\nloss_type: sigmoid\n", {"beta": 0.2, "loss_type": "sigmoid"}),
}  # fmt: skip


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return document(["config", "show", *arguments], capsys)["settings"]


def test_a_list_takes_spaces_or_commas(capsys: pytest.CaptureFixture[str]) -> None:
    play = ["train", "--dry-run", "--engine=scripted", "--iterations=1", "--limit=2", "--sandboxes=1"]
    for number, flags in enumerate((
        ["--lora-target-modules", "q_proj", "k_proj", "--seed=1"],
        ["--lora-target-modules", "q_proj,k_proj", "--seed=1"],
        ["--lora_target_modules=q_proj,k_proj", "--seed=1"],
    )):  # fmt: skip
        assert main([*play, *flags, f"--run-dir={number}", "-q"]) == 0
        settings = read_settings(Path(f"{number}"))
        assert settings["lora"]["target_modules"] == ["q_proj", "k_proj"] and settings["train"]["seed"] == 1


def test_the_argument_of_a_command_is_not_taken_for_a_part_of_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = failure(["sft", "--lora-target-modules", "q_proj,k_proj", "nothing-there"], capsys)
    assert "nothing-there" in told and status == 65
    status, told = failure(["sft", "nothing-there", "--lora_target_modules", "q_proj", "k_proj"], capsys)
    assert "nothing-there" in told and status == 65


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_both_tiers_of_the_published_pipeline(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, options = ALGORITHMS[algorithm]
    Path("model.yaml").write_text(MODEL)
    Path(f"{algorithm}.yaml").write_text(text)
    assert main(["config", "show", "--config", "model.yaml"]) == 0
    (warned,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("warning: ")]
    assert all(key in warned for key in ("validation.save_steps", "logging_steps", "paths.reward_spec")), warned
    assert main(["rewards", "show", "weighted", "--out", "outputs/run_001/02_rewards"]) == 0
    capsys.readouterr()
    settings = shown(capsys, "--config", "model.yaml", "--algo_config", f"{algorithm}.yaml")
    assert settings["sft"]["warmup_steps"] == 100
    spec = "outputs/run_001/02_rewards/reward_spec.yaml"
    assert settings["reward"] == {"name": "weighted", "options": {"spec": spec}}
    assert settings["model"]["name"] == "microsoft/DialoGPT-medium"
    assert settings["lora"] == {"rank": 8, "alpha": 24, "dropout": 0.05, "target_modules": ["c_attn", "c_proj"]}
    assert settings["sft"]["epochs"] == 2 and settings["sft"]["learning_rate"] == 2e-5
    assert settings["sft"]["batch_tokens"] == 4 * 4 * 512 and settings["sft"]["validate_every"] == 500
    assert settings["generation"]["max_gen_tokens"] == 128 and settings["generation"]["top_p"] == 0.9
    assert (settings["data"]["path"], settings["run"]["dir"]) == ("finqa_processed", "outputs/run_001/03_sft")
    assert settings["optimizer"]["name"] == algorithm
    assert {name: settings["optimizer"]["options"][name] for name in options} == options
    if algorithm in ("grpo", "rloo"):
        assert settings["train"]["group_size"] == 5


def test_a_pipeline_takes_both_files_and_has_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("finqa_processed.json"), *map(original, range(1, 40)))
    Path("model.yaml").write_text(MODEL.replace("finqa_processed", "finqa_processed.json"))
    Path("dpo.yaml").write_text(ALGORITHMS["dpo"][0])
    Path("tiny").mkdir()
    Path("tiny/config.json").write_text('{"model_type": "qwen3"}')  # a dry run loads no model
    words = ["pipeline", "--config=model.yaml", "--algo_config=dpo.yaml", "--method=dpo", "--environment=finqa-text"]
    assert main([*words, "--model=tiny", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert "run.dir = outputs/run_001/03_sft" in printed.err and "09_dpo" in printed.out


def test_the_line_of_a_published_key_is_the_origin(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.yaml").write_text(MODEL)
    assert main(["config", "show", "--origin", "--config=model.yaml"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lora.rank ")]
    assert "model.yaml:10" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("use_batch_bonus: true\n", ["use_batch_bonus (here not supported"]),
        ("baseline_type: ema\n", ["optimizer.options.baseline"]),
        ("training:\n  batch_size: 4\n", ["training.batch_size (here sft.batch_tokens"]),
        ("training:\n  fp16: maybe\n", ["There is no setting 'training.fp16' (file model.yaml:2)"]),
        ("training:\n  epochs: 3\n  unheard_of: 1\n", ["no setting 'training.unheard_of' (file model.yaml:3)"]),
        ("lora:\n  r: many\n", ["lora.rank"]),
    ],
)  # fmt: skip
def test_what_cannot_be_mapped_is_refused_by_name(
    text: str, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model.yaml").write_text(text)
    status, told = failure(["config", "show", "--config=model.yaml"], capsys)
    assert status == 78 and all(part in told for part in said), told


def test_flags_become_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert replace_flags(["--clip_range", "0.3", "--seed", "1"], {"--set", "--seed"}) == [
        *("--set", "optimizer.options.clip_low=0.3", "--set", "optimizer.options.clip_high=0.3", "--seed", "1")
    ]
    assert replace_flags(["--skip_validation", "x"], {"--validation-samples"}) == ["--validation-samples", "0", "x"]
    assert replace_flags(["--num-samples=5"], {"--group-size"}) == ["--group-size", "5"]
    assert replace_flags(["--batch-size", "5"], {"--batch-size"}) == ["--batch-size", "5"]
    assert replace_flags(["--", "--fp16"], set()) == ["--", "--fp16"]
    with pytest.raises(UsageError, match="needs a value"):
        replace_flags(["--kl_coef"], {"--set"})
    for flags in (["--gradient_accumulation_steps=4"], ["--batch_size", "8"], ["--fp16"]):
        status, told = failure(["sft", "runs/demonstrations", *flags], capsys)
        assert status == 2 and flags[0].partition("=")[0].replace("_", "-") in told and "fix: --" in told


def test_every_name_leads_to_something_that_exists() -> None:
    known = {flag for each in DECLARATIONS.values() for flag in each.about.flags.replace("/", " ").split()}
    known |= {"--config", "--set", "--num-candidates", "--output"}
    for forms in FLAGS.values():
        assert all(part in known for form in forms for part in form.split() if part.startswith("--")), forms
    settings = {path for paths in KEYS.values() for path in paths} | {
        path for given in VALUES.values() for path in given
    }
    assert all(path in DECLARATIONS or ".options." in path for path in settings)


@given(st.lists(st.sampled_from([*FLAGS, *REFUSED_FLAGS, "--seed", "--", "x", "--x=1", "--KL_coef=", "-q", ""])))
def test_any_command_line_is_replaced_or_refused(words: list[str]) -> None:
    try:
        replaced = replace_flags(words, {"--config", "--set", "--seed", "--model"})
    except UsageError as error:
        assert error.remedy
    else:
        options = replaced[: replaced.index("--")] if "--" in replaced else replaced
        assert not {word.partition("=")[0] for word in options} & ({*FLAGS, *REFUSED_FLAGS})


def test_play_without_a_seed_asks_a_random_question_and_says_how_to_repeat_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = set()
    for _ in range(4):
        assert main(["play", "--engine=scripted"]) == 0
        said = capsys.readouterr()
        seed = next(line.split()[1].rstrip(",") for line in said.err.splitlines() if line.startswith("seed "))
        asked.add(said.out)
    assert len(asked) > 1
    assert main(["play", "--engine=scripted", "--seed", seed]) == 0
    again = capsys.readouterr()
    assert again.out == said.out and "drawn at random" not in again.err
    assert main(["play", "--engine=scripted", "--seed=0", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    Path("finqa.toml").write_text("[train]\nseed = 0\n")
    assert main(["play", "--engine=scripted", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == first["task"]


def test_a_project_without_a_tracker_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    play = ["train", "--dry-run", "--engine=scripted", "--iterations=1", "--limit=2", "--sandboxes=1"]
    assert main([*play, "--project=mine"]) == 0
    assert "warning: --project sets the project of a tracker," in capsys.readouterr().err
