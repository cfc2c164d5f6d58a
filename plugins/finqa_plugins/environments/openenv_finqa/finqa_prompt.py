"""The opening of an episode: finqa's own short prompt, or one from a file, such as the prompt of a published result."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from finqa_cli.documents import parse_toml
from finqa_cli.errors import ConfigError
from finqa_cli.types import Message, Prompt, Task, ToolSpec
from finqa_plugins.environments.openenv_finqa.finqa_tools import TOOLS, ServedTool

SYSTEM = (
    "You are a financial analyst. Answer the question from the company's tables: find the table, look at it, "
    "query it with SQL, compute, then call submit_answer once. Submit the number alone, without units or words. "
    "Percentages, margins and growth rates are decimal ratios: 5.2% is 0.052. For several years submit "
    '"year: value, year: value". For yes-or-no questions submit Yes or No.'
)
USER = "Company: {{ company }}\nQuestion: {{ question }}"


def tool_specs(tools: Mapping[str, ServedTool]) -> tuple[ToolSpec, ...]:
    """Return tools as a policy gets them."""
    return tuple(
        ToolSpec(name=tool.name, description=tool.description, parameters=tool.schema()) for tool in tools.values()
    )


TOOL_SPECS = tool_specs(TOOLS)
_SAMPLE = Task(id="id", prompt="question", split="test", cluster="company")
_REMEDY = "finqa plugins show finqa"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinQAPrompt:
    """Templates of the messages that an episode opens with.

    Attributes:
        system: System message; left out if it is empty.
        user: User message.
        sha256: Digest of the file; empty for finqa's own prompt.
    """

    system: Template
    user: Template
    sha256: str = ""

    def opening(self, task: Task, tools: Sequence[ToolSpec]) -> Prompt:
        """The messages for one task, with these tools."""
        fields = {"id": task.id, "company": task.cluster, "question": task.prompt, "tools": tools}
        system, user = self.system.render(fields), self.user.render(fields)
        messages = (Message(role="system", content=system), Message(role="user", content=user))
        return Prompt(messages=messages if system else messages[1:], tools=tuple(tools))


def read_prompt(path: Path | None) -> FinQAPrompt:
    """Return finqa's own prompt without a path, else that of a file.

    A `.toml` file has two jinja2 templates, `system` and `user`, that may use `company`, `question`, `id` and `tools`
    (each with `name`, `description`, `parameters`). Without `system` there is no system message, without `user` finqa's
    own is used. Any other file is the text of the system message, unchanged.

    Raises:
        ConfigError: The file cannot be read, has another key, or a template is malformed or uses another field.
    """
    jinja = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    if path is None:
        return FinQAPrompt(system=jinja.from_string(SYSTEM), user=jinja.from_string(USER))
    try:
        data = path.read_bytes()
        text = data.decode()
        given = parse_toml(text) if path.suffix == ".toml" else {"system": text}
    except OSError as error:
        raise ConfigError(f"The prompt file {path} cannot be read: {error.strerror}.", remedy=_REMEDY) from error
    except ValueError as error:  # UnicodeDecodeError and TOMLDecodeError
        raise ConfigError(f"The prompt file {path} is malformed: {error}.", remedy=_REMEDY) from error
    if wrong := [name for name, value in given.items() if name not in ("system", "user") or not isinstance(value, str)]:
        raise ConfigError(
            f"The prompt file {path} has the key {wrong[0]!r}; the valid keys are system and user.", remedy=_REMEDY
        )
    if not any(text.strip() for text in given.values()):
        raise ConfigError(f"The prompt file {path} is empty.", remedy=_REMEDY)
    try:
        prompt = FinQAPrompt(
            system=jinja.from_string(
                given.get("system", "") if path.suffix == ".toml" else "{{ text }}", {"text": text}
            ),
            user=jinja.from_string(given.get("user", USER)),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        prompt.opening(_SAMPLE, TOOL_SPECS)
    except TemplateError as error:
        raise ConfigError(
            f"The prompt file {path} is malformed: {error}. Its fields are company, question, id and tools.",
            remedy=_REMEDY,
        ) from error
    return prompt
