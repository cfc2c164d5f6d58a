"""Finds the program in a reply."""

from __future__ import annotations

import re

_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_PLACES = (
    re.compile(r"```(?:python|py)3?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE),
    re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL),
    re.compile(r"<code>(.*?)(?:</code>|\Z)", re.DOTALL),
)


def extract_code(text: str) -> str:
    """Return the code of a reply.

    It is the first ```python block, else the first block of any kind, else `<code>`, else the text without `>>>` lines.
    Reasoning in `<think>` is left out. A block that the end of the reply cuts reaches to the end.
    """
    said = without_thoughts(text)
    for place in _PLACES:
        if found := place.search(said):
            return found[1].strip("\n").rstrip()
    lines = [line for line in said.splitlines() if not line.lstrip().startswith((">>>", "..."))]
    return "\n".join(lines).strip("\n").rstrip()


def without_thoughts(text: str) -> str:
    """Return the reply without `<think>` parts; one that the template opened ends at `</think>` all the same."""
    opened, closing, rest = text.partition("</think>")
    said = rest if closing and "<think>" not in opened else text
    return _THOUGHTS.sub("", said)


def extract_program(text: str, prompt: str, func_name: str) -> str:
    """Return the program in a reply: its code block or, without one, all of it.

    Code that does not define the function continues a prompt that does, as a base model's completion: of it the body
    is kept, up to the first line that is not indented by four spaces (the seed's rule).
    """
    code = extract_code(text)
    if _defines(code, func_name) or not _opens(prompt, func_name):
        return code
    said = without_thoughts(text)
    body = _body(code if "```" in said or "<code>" in said else said)
    return f"{prompt}{body}\n" if body.strip() else ""


def _body(text: str) -> str:
    kept = []
    for line in text.splitlines():
        if line and not line.startswith("    "):
            break
        kept.append(line)
    return "\n".join(kept).rstrip()


def _defines(code: str, func_name: str) -> bool:
    name = re.escape(func_name)
    return re.search(rf"^(?:async\s+)?def\s+{name}\b|^class\s+{name}\b|^{name}\s*[:=]", code, re.MULTILINE) is not None


def _opens(prompt: str, func_name: str) -> bool:
    return re.search(rf"^def\s+{re.escape(func_name)}\b", prompt, re.MULTILINE) is not None
