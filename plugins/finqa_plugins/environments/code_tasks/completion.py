"""From what the policy said to a program."""

from __future__ import annotations

import re

from finqa_plugins.sandboxes._execution.extraction import extract_code, without_thoughts


def program(text: str, prompt: str, func_name: str) -> str:
    """The program in a reply: its code block or, without one, all of it.

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
