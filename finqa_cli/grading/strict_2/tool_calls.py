"""Tool calls that submit an answer, as the chat templates of model families write them.

A call that was not parsed by the server stands in the text of the answer: of Llama (`<function=...>`), Mistral
(`[TOOL_CALLS]`), Qwen and GLM (`<tool_call>`), DeepSeek, GPT-OSS (`commentary to=functions...`) and Phi (`functools`).
Only a call of a tool that submits is read, and only where nothing stands beside it.
"""

from __future__ import annotations

import re

NAME = r"(?:functions\.|default_api\.)?(?:submit_answer|submit|final_answer|finish|answer)"
"""A tool that submits an answer."""
_ARGUMENTS = r"(?P<input>\{[^<>]{1,2000}\})"
_FORMS = tuple(
    re.compile(form, re.DOTALL | re.IGNORECASE)
    for form in (
        rf"\[TOOL_CALLS\]\s*(?:{NAME}\s*(?:\[CALL_ID\]\w{{1,30}}\s*)?(?:\[ARGS\])?\s*(?=\{{))?"
        r"(?P<input>\[\s*\{[^<>]{1,2000}\}\s*\]|\{[^<>]{1,2000}\})",
        rf"(?:<tool_call>\s*)?<function={NAME}>\s*{_ARGUMENTS}\s*(?:</function>\s*(?:</tool_call>)?)?",
        rf"(?:<tool_call>\s*)?<function={NAME}>\s*<parameter=answer>\s*(?P<input>[^<>]{{1,2000}})</parameter>\s*"
        r"</function>\s*(?:</tool_call>)?",
        rf"<tool_call>\s*{NAME}\s*<arg_key>answer</arg_key>\s*<arg_value>(?P<input>[^<>]{{1,2000}})</arg_value>\s*"
        r"</tool_call>",
        rf"<tool_call>\s*{_ARGUMENTS}",
        rf"{NAME}\s?\(\s*{_ARGUMENTS}\s*\)",
        r"functools\s*(?P<input>\[\s*\{[^<>]{1,2000}\}\s*\])",
        rf"(?:<\|start\|>)?(?:assistant)?(?:<\|channel\|>)?commentary\s?to={NAME}\s*(?:<\|constrain\|>)?\s*(?:json)?\s*"
        rf"<\|message\|>\s*{_ARGUMENTS}",
        rf"(?:<\|tool▁calls▁begin\|>)?(?:<\|tool▁call▁begin\|>)?(?:function<\|tool▁sep\|>)?{NAME}(?:<\|tool▁sep\|>)?\s*"
        rf"(?:```json\s*)?{_ARGUMENTS}\s*(?:```)?\s*(?:<\|tool▁call▁end\|>)?\s*(?:<\|tool▁calls▁end\|>)?",
    )
)
_CALL_OF = re.compile(rf"{NAME}\Z", re.IGNORECASE)


def submitted(text: str) -> str:
    """The arguments of the one call that a text is, or the text."""
    stripped = text.strip()
    for form in _FORMS:
        if match := form.fullmatch(stripped):
            return match["input"].strip()
    return text


def submits(name: object) -> bool:
    """Whether a tool of this name submits an answer."""
    return isinstance(name, str) and _CALL_OF.match(name.strip().replace(" ", "_")) is not None
