"""Marked chat templates render what the unmarked ones render, and mask what our own training masks."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.codec_contexts import codec_context
from fixtures.handed_on_runs import attempt, text_attempt
from transformers import AutoTokenizer

from finqa_cli.algorithms.samples import demonstration_sample
from finqa_cli.publishing.export_attempts import trl_sft_row
from finqa_cli.publishing.training_template import mark_assistant, write_marks
from finqa_cli.runs.trajectory_records import exchange, recorded_prompt, trajectory_record
from finqa_cli.types import Message, Prompt, Trajectory
from finqa_plugins.codecs.template_codec import TemplateCodec
from finqa_testing.tiny_models import make_tiny_qwen3

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "plugins" / "finqa_plugins").rglob("chat_template.jinja"))
POLICIES = [file.parent for file in SHIPPED if (file.parent / "tokenizer.json").is_file()]


def test_every_template_that_ships_is_marked_and_others_are_not() -> None:
    assert len(SHIPPED) >= 5 and len(POLICIES) >= 4
    for file in SHIPPED:
        text = file.read_text(encoding="utf-8")
        marked = mark_assistant(text)
        assert marked is not None and marked.count("{%- generation %}") == marked.count("{%- endgeneration %}") == 1
        assert mark_assistant(marked) is None, "once is enough"
    for other in (ROOT / "tests" / "unit" / "codecs" / "templates").iterdir():
        assert mark_assistant(other.read_text(encoding="utf-8")) is None, other


@pytest.fixture(params=[*POLICIES, "tiny"], ids=lambda found: getattr(found, "name", found))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a shipped policy without weights, or of another model with its template."""
    if request.param == "tiny":
        shutil.copyfile(SHIPPED[0], make_tiny_qwen3(tmp_path / "model") / "chat_template.jinja")
    else:
        files = shutil.ignore_patterns("*.py", "*.safetensors", "__pycache__", *(path.name for path in POLICIES))
        shutil.copytree(request.param, tmp_path / "model", ignore=files)
    return tmp_path / "model"


def conversation(trajectory: Trajectory) -> tuple[Prompt, list[Message]]:
    """How an attempt opened and what followed, as its record has it."""
    record = json.loads(json.dumps(trajectory_record(trajectory)))
    return recorded_prompt(record), [message for turn in record["turns"] for message in exchange(turn)]


def test_the_rendering_is_the_same(folder: Path) -> None:
    plain = AutoTokenizer.from_pretrained(folder)
    assert write_marks(folder) and not write_marks(folder)
    marked = AutoTokenizer.from_pretrained(folder)
    assert marked.chat_template != plain.chat_template
    rows = [trl_sft_row(*conversation(made("aq", 0, 1.0))) for made in (attempt, text_attempt)]
    system = [{"role": "system", "content": " Be brief.\n"}]
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "é <b>", "n": [1, None]}}}
    turns = [
        [{"role": "user", "content": "Hello"}],
        [{"role": "assistant", "content": "  \n"}],
        [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "12\n"}],
        [
            {"role": "assistant", "content": "Both.", "tool_calls": [call, call]},
            {"role": "tool", "content": "a"},
            {"role": "tool", "content": "b"},
        ],
    ]
    chats = [row["prompt"] + row["completion"] for row in rows]
    chats += [
        [*opening, *itertools.chain.from_iterable(order)]
        for opening in ([], system)
        for size in (1, 2, 3)
        for order in itertools.permutations(turns, size)
    ]
    tools = rows[0]["tools"]
    for chat, given, opened in itertools.product(chats, (None, tools), (True, False)):
        arguments: dict[str, Any] = {"tools": given, "add_generation_prompt": opened, "tokenize": False}
        assert marked.apply_chat_template(chat, **arguments) == plain.apply_chat_template(chat, **arguments)


@pytest.mark.parametrize("made", [attempt, text_attempt])
def test_the_mask_is_that_of_our_own_training(folder: Path, made: Any) -> None:
    assert write_marks(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trajectory = made("aq", 0, 1.0)
    # the codec keeps markup that is no call from becoming control tokens, which a template does not
    trajectory = replace(trajectory, turns=tuple(turn for turn in trajectory.turns if not turn.parse_error))
    prompt, answer = conversation(trajectory)
    ours = demonstration_sample(prompt, answer, TemplateCodec(None, codec_context(str(folder))))
    row = trl_sft_row(prompt, answer)
    theirs = tokenizer.apply_chat_template(
        row["prompt"] + row["completion"],
        tools=row.get("tools"),
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    length = len(ours.token_ids)
    assert theirs["input_ids"][:length] == list(ours.token_ids)
    assert [bool(each) for each in theirs["assistant_masks"][:length]] == [bool(each) for each in ours.loss_mask]
    assert tokenizer.decode(theirs["input_ids"][length:]) == "\n" and not any(theirs["assistant_masks"][length:])
    assert any(ours.loss_mask) and not all(ours.loss_mask)
