"""Reports from templates: what people and files put into them stays text."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.evaluation.markdown import cell, points, render
from finqa_cli.publishing.model_card import Card, Score


@pytest.fixture
def template(tmp_path: Path) -> Path:
    return tmp_path / "report.md.j2"


def test_every_value_is_escaped_unless_it_is_marked_as_safe(template: Path) -> None:
    template.write_text(
        "# {{ name }}\n\n{% if rows %}\n{{ table(['a', name], rows) }}\n{% endif %}\n\n\n\n"
        "{{ name|safe }} `{{ code|code }}` {{ share|points }} {{ small|number }}"
    )
    name = "a|b*c\n# <b> [x](y)"
    shown = render(template, name=name, rows=[[1, "_x_"]], code="a`b\nc", share=-0.0561, small=0.000012345)
    assert shown == (
        "# a\\|b\\*c # &lt;b> [x]\\(y)\n\n| a | a\\|b\\*c # &lt;b> [x]\\(y) |\n| --- | --- |\n| 1 | \\_x\\_ |\n\n"
        "a|b*c\n# <b> [x](y) `a'b c` -5.6 1.23e-05\n"
    )


def test_a_value_that_is_missing_is_an_error_and_not_a_gap(template: Path) -> None:
    template.write_text("{{ something }}")
    with pytest.raises(jinja2.UndefinedError):
        render(template)


@given(st.text(max_size=20))
def test_no_text_ends_its_cell_or_its_line(text: str) -> None:
    shown = cell(text)
    assert "\n" not in shown and "|" not in shown.replace("\\\\", "").replace("\\|", "")
    assert cell(0.5) == "0.5" and points(0.123) == "+12.3"


def test_a_model_card_escapes_what_it_did_not_write() -> None:
    score = Score(
        data="d|<x>",
        split="dev",
        episodes=4,
        clusters=2,
        accuracy=0.5,
        low=0.1,
        high=0.9,
        reward_mean=0.25,
        temperature=None,
    )
    card = Card(
        title="run_step-2",
        base_model="owner/base",
        relation="adapter",
        method="grpo with rewards of an environment",
        facts={"method": "grpo", "data": "a|b"},
        settings={"lora.target_modules": ["q_proj", "v_proj"], "train.seed": 0},
        scores=[score],
        evaluation_only=True,
    )
    text = card.text()
    front, _, body = text.removeprefix("---\n").partition("---\n")
    assert front.startswith("base_model: owner/base\nbase_model_relation: adapter\nlibrary_name: peft\n")
    assert "tags:\n- finqa\n- lora\n- grpo\n" in front
    assert body.startswith(
        "\n# run_step-2\n\n"
        "A LoRA adapter for `owner/base`, trained by grpo with rewards of an environment with finqa.\n\n"
        "The policy was trained on data that is for evaluation only; scores on this data are not valid.\n\n"
        "## Scores\n\n"
        "| data | accuracy, 95 % interval | mean reward | episodes | clusters | temperature |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| d\\|&lt;x>, dev | 0.500 [0.100, 0.900] | 0.250 | 4 | 2 | - |\n\n"
    )
    assert "| data | a\\|b |" in body and "| lora.target_modules | q_proj, v_proj |" in body
    assert "## Licence\n\nNot stated. The licence of the base model applies.\n\n## Versions\n\nfinqa " in body
    assert ", python 3." in body
