"""Marks the assistant's turns in chat templates of exports, so that other trainers can mask everything else.

TRL's `assistant_only_loss` needs `{% generation %}` around the text of the assistant. The templates of models that
finqa makes have no marks, because records of runs contain the digests of such models; the marks are added in exports.
The rendered text is the same. Templates of other models are left as they are.
"""

from __future__ import annotations

from pathlib import Path

from finqa_cli.runs.durable_files import storage, write_text

TEMPLATE = "chat_template.jinja"

_CALLS = """\
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
"""
_OURS = f"""\
        {{{{- '<|im_start|>assistant\\n' + message.content }}}}
{_CALLS}        {{{{- '<|im_end|>\\n' }}}}
    {{%- elif message.role == 'tool' %}}
"""
_MARKED = f"""\
        {{{{- '<|im_start|>assistant\\n' }}}}
        {{%- generation %}}
        {{{{- message.content }}}}
{_CALLS}        {{{{- '<|im_end|>' }}}}
        {{%- endgeneration %}}
        {{{{- '\\n' }}}}
    {{%- elif message.role == 'tool' %}}
"""
"""As in `ChatCodec.assistant`, the end of a turn is used for training and the line break after it is not."""


def mark_assistant(template: str) -> str | None:
    """Returns a chat template of finqa with the assistant's turns marked; None for any other template."""
    return template.replace(_OURS, _MARKED) if template.count(_OURS) == 1 else None


def write_marks(folder: Path) -> bool:
    """Marks the assistant's turns in the chat template of a model folder if it is a template of finqa.

    Returns:
        Whether the template is marked now.

    Raises:
        StorageError: The template cannot be read or written.
    """
    path = folder / TEMPLATE
    if not path.is_file():
        return False
    with storage(path):
        marked = mark_assistant(path.read_text(encoding="utf-8"))
    if marked is None:
        return False
    write_text(path, marked)
    return True
