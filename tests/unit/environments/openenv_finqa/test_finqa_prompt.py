from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import ConfigError
from finqa_cli.types import Task
from finqa_plugins.environments.openenv_finqa.config import FinQAConfig
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.environments.openenv_finqa.finqa_prompt import SYSTEM, TOOL_SPECS, read_prompt

TASK = Task(id="q7", prompt="What was {revenue} in 2024?", split="test", cluster="acme")
PUBLISHED = """
system = "You have {{ tools | length }} tools: {{ tools | map(attribute='name') | join(', ') }}. Use \\\\\\\\boxed{}."
user = "{{ question }} ({{ company }}, {{ id }})"
"""


def messages(path: Path | None) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in read_prompt(path).opening(TASK, TOOL_SPECS).messages]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_file_the_prompt_is_our_own() -> None:
    assert messages(None) == [
        ("system", SYSTEM),
        ("user", "Company: acme\nQuestion: What was {revenue} in 2024?"),
    ]
    assert read_prompt(None).sha256 == ""


def test_a_text_file_is_the_system_message_as_it_stands(tmp_path: Path) -> None:
    text = "Answer in \\boxed{...}. {{ not a field }} {% endraw %}\n"
    assert messages(written(tmp_path, "prompt.txt", text))[0] == ("system", text)
    assert messages(written(tmp_path, "prompt.txt", text))[1] == messages(None)[1]


def test_a_toml_file_has_templates_of_both_messages(tmp_path: Path) -> None:
    names = "get_descriptions, get_table_info, sql_query, submit_answer"
    assert messages(written(tmp_path, "prompt.toml", PUBLISHED)) == [
        ("system", f"You have 4 tools: {names}. Use \\\\boxed{{}}."),
        ("user", "What was {revenue} in 2024? (acme, q7)"),
    ]
    alone = written(tmp_path, "user.toml", 'user = "{{ question }}"')
    assert messages(alone) == [("user", TASK.prompt)]


def test_sessions_open_with_the_prompt_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "prompt.toml", PUBLISHED)
    context = EnvironmentContext(snapshot=write_tiny_snapshot(tmp_path / "tiny"))
    opening = FinQAEnvironment(FinQAConfig(prompt_file=path), context).opening(TASK)
    assert opening == read_prompt(path).opening(TASK, TOOL_SPECS)
    assert len(read_prompt(path).sha256) == 64


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.toml", "system = 3", "has the key 'system'"),
        ("a.toml", 'prompt = "x"', "has the key 'prompt'"),
        ("a.toml", 'user = "{{ answer }}"', "'answer' is undefined. Its fields are company, question, id and tools"),
        ("a.toml", 'user = "{% if %}"', "is malformed: Expected an expression"),
        ("a.toml", 'user = "{{ tools.__class__.__mro__ }}"', "is malformed: access to attribute '__class__'"),
        ("a.toml", 'user = "', "is malformed: "),
        ("a.toml", "", "is empty"),
        ("a.txt", " \n", "is empty"),
        ("none/a.txt", None, "cannot be read: No such file or directory"),
    ],
)
def test_a_bad_file_is_named_with_the_reason(tmp_path: Path, name: str, text: str | None, reason: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_prompt(path)
    assert str(path) in caught.value.message and reason in caught.value.message
