"""What `finqa export --to trl-*` writes, read by `datasets` and prepared by TRL as its trainers do."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.codec_contexts import codec_context
from fixtures.handed_on_runs import attempt, text_attempt
from trl_parity.interpreter import PYTHON

from finqa_cli.algorithms.samples import demonstration_sample
from finqa_cli.app import main
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.trajectory_records import read_demonstrations
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.types import Trajectory
from finqa_plugins.codecs.template_codec import TemplateCodec
from finqa_testing.tiny_models import make_tiny_qwen3

READ = """
import json, sys
from datasets import load_dataset
from transformers import AutoTokenizer
from trl.data_utils import apply_chat_template, is_conversational
data = load_dataset(sys.argv[1], split="train")
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
rows = [row for row in data]
print(json.dumps({
    "rows": rows,
    "conversational": [is_conversational(row) for row in rows],
    "texts": [apply_chat_template(row, tokenizer, tools=row.get("tools")) for row in rows],
}))
"""


TRAIN = """
import json, os, sys
os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
import trl
from datasets import load_dataset
data = load_dataset(sys.argv[1], split="train")
arguments = trl.SFTConfig(
    output_dir=sys.argv[3], use_cpu=True, bf16=False, report_to=[], assistant_only_loss=True, max_length=None,
    per_device_train_batch_size=len(data),
)
trainer = trl.SFTTrainer(model=sys.argv[2], args=arguments, train_dataset=data)
(batch,) = trainer.get_train_dataloader()
rows = zip(batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["labels"].tolist())
print(json.dumps([
    [[token for token, real in zip(ids, there) if real], [label != -100 for label, real in zip(labels, there) if real]]
    for ids, there, labels in rows
]))
"""


@pytest.mark.skipif(PYTHON is None, reason="TRL is not there: run `make test-trl`")
def test_trl_masks_an_exported_policy_as_our_own_training_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = [attempt(question, 0, 1.0) for question in ("aq", "bq")]
    # the codec keeps markup that is no call from becoming control tokens, which a template does not
    made = [replace(each, turns=tuple(turn for turn in each.turns if not turn.parse_error)) for each in made]
    with RunFolder.create(Path("r"), command="eval", settings=to_public_dict(Settings()), save_token_ids=False) as run:
        for trajectory in made:
            run.trajectory(trajectory, phase="eval", iteration=0)
        run.finish("completed")
    assert main(["export", "r", "--to=trl-sft", "--out=rows", "--json"]) == 0
    assert main(["export", "embedded", "--to=merged", "--out=policy", "--json"]) == 0
    command = [str(PYTHON), "-c", TRAIN, "rows", "policy", str(tmp_path / "scratch")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    theirs = sorted(json.loads(done.stdout.splitlines()[-1]))
    codec = TemplateCodec(None, codec_context("policy"))
    samples = [demonstration_sample(item.prompt, item.messages, codec) for item in read_demonstrations(Path("r"))]
    ours = sorted([sample.token_ids.tolist(), sample.loss_mask.tolist()] for sample in samples)
    for (ids, trained), (our_ids, our_trained) in zip(theirs, ours, strict=True):
        length = len(our_ids)
        assert ids[:length] == our_ids and trained[:length] == our_trained
        assert not any(trained[length:]) and len(ids) <= length + 1, "the line break behind the last turn"


@pytest.mark.skipif(PYTHON is None, reason="TRL is not there: run `make test-trl`")
@pytest.mark.parametrize("kind", ["tools", "text"])
@pytest.mark.parametrize("form", ["trl-sft", "trl-preference"])
def test_trl_takes_the_rows_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    make = attempt if kind == "tools" else text_attempt
    made = [make(question, member, reward) for question in ("aq", "bq") for member, reward in enumerate((1.0, 0.5))]
    if kind == "text":  # both of a group say the same otherwise, and are no pair
        made = [each if each.member == 0 else saying_otherwise(each) for each in made]
    with RunFolder.create(Path("r"), command="eval", settings=to_public_dict(Settings()), save_token_ids=False) as run:
        for trajectory in made:
            run.trajectory(trajectory, phase="eval", iteration=0)
        run.finish("completed")
    assert main(["export", "r", f"--to={form}", "--out=out", "--json"]) == 0
    done = subprocess.run(
        [str(PYTHON), "-c", READ, "out", str(make_tiny_qwen3(tmp_path / "model"))],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    written = [json.loads(line) for line in Path("out/train.jsonl").read_text().splitlines()]
    assert found["rows"] == written and all(found["conversational"])
    sides = ("prompt", "completion") if form == "trl-sft" else ("prompt", "chosen", "rejected")
    for row, text in zip(written, found["texts"], strict=True):
        assert set(sides) <= set(text) and all(text[side] for side in sides)
        check_texts(row, text, sides)


def check_texts(row: dict[str, Any], text: dict[str, str], sides: tuple[str, ...]) -> None:
    """Every content, and the arguments of every call, are in what the model reads."""
    for side in sides:
        for message in row[side]:
            assert message["content"] in text[side]
            for call in message.get("tool_calls", ()):
                assert json.dumps(call["function"]["arguments"]) in text[side]


def saying_otherwise(trajectory: Trajectory) -> Trajectory:
    first, last = trajectory.turns
    return replace(trajectory, turns=(first, replace(last, text="def f(): return 2")))
