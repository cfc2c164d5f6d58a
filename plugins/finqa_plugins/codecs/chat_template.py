"""A model's own chat template, and what it does to the contents it is given.

Contents are rendered as placeholders (see `shielding`), so a template cannot trim or quote them. What it would have
done is found out once, by probing, and done to each content before its placeholder is filled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_plugins.codecs.loading import MODEL_REMEDY

Treatment = Callable[[str], str]


class ChatTemplate:
    """Renders chats, with generation prompt, under fixed template variables."""

    def __init__(self, tokenizer: Any, model: str, variables: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._variables = dict(variables)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: list[Any] | None) -> str:
        """The text of a chat that the assistant is to continue.

        Raises:
            ConfigError: The template refuses these messages.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), tools=tools, add_generation_prompt=True, tokenize=False, **self._variables
            )
        except Exception as error:  # a template may raise anything that jinja or its own expressions do
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ConfigError(
                f"The chat template of {self._model!r} cannot render a chat of {roles}: {error}", remedy=MODEL_REMEDY
            ) from error
        return str(text)

    def treatments(self) -> dict[str, Treatment]:
        """What is done to the contents of each role.

        Raises:
            ConfigError: Something that cannot be told from a probe.
        """
        probes = {role: f'\n {role} "quoted" \\ \u00e9<&>\t. \n' for role in ("system", "user", "assistant", "tool")}
        # The assistant's probe is in an earlier turn, where a template does not look for reasoning.
        middle = [{"role": "user", "content": "more"}, {"role": "assistant", "content": "said"}]
        told = [{"role": role, "content": probe} for role, probe in probes.items()]
        text = self.render([*told[:3], *middle, told[3]], tools=None)
        found = {role: self._treatment(probe, text) for role, probe in probes.items()}
        if unknown := [role for role, treatment in found.items() if treatment is None]:
            raise ConfigError(
                f"The chat template of {self._model!r} rewrites {' and '.join(unknown)} messages in an unknown way.",
                remedy=MODEL_REMEDY,
            )
        return {role: treatment for role, treatment in found.items() if treatment is not None}

    @staticmethod
    def _treatment(probe: str, text: str) -> Treatment | None:
        known = (as_is, as_json, str.strip, _trimmed_json)
        return next((treatment for treatment in known if treatment(probe) in text), None)


def as_is(content: str) -> str:
    """The content unchanged."""
    return content


def as_json(content: str) -> str:
    """The content as the inside of a JSON string, as `tojson` of chat templates writes it."""
    return json.dumps(content, ensure_ascii=False)[1:-1]


def _trimmed_json(content: str) -> str:
    return as_json(content.strip())
