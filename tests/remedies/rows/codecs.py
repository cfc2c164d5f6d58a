"""Chat templates and tokenizers of models, and options of codecs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remedies.faults import Fault, new

from finqa_cli.testing.tiny_models import CHAT_TEMPLATE

MODEL = "trained/base"
SHORT = "--limit 1 --sandboxes 1 --max-steps 1 --max-gen-tokens 2"
EVAL = f"eval {MODEL} {SHORT}"
TEMPLATE = f"{MODEL}/chat_template.jinja"
TOKENIZER = f"{MODEL}/tokenizer_config.json"
CALL = "call.arguments if call.arguments is string else call.arguments | tojson"
TOOL_REPLY = "<tool_response>\\n' + message.content"
TURN_END = "<|im_end|>"
NO_TOOLS = "{% for message in messages %}{{ message.content }}{% endfor %}"


def put_back() -> None:
    """The user restores the template."""
    Path(TEMPLATE).write_text(CHAT_TEMPLATE, encoding="utf-8")


def template(old: str, wrong: str) -> Callable[[], object]:
    """Change the chat template of the model."""
    assert CHAT_TEMPLATE.count(old) == 1, old
    return lambda: Path(TEMPLATE).write_text(CHAT_TEMPLATE.replace(old, wrong), encoding="utf-8")


def whole(content: str) -> Callable[[], object]:
    return lambda: Path(TEMPLATE).write_text(content, encoding="utf-8")


def tokenizer(name: str = TOKENIZER, **changes: Any) -> Callable[[], object]:
    """Change what describes the tokenizer; None removes an entry."""

    def write() -> None:
        facts = {**json.loads(Path(name).read_text(encoding="utf-8")), **changes}
        Path(name).write_text(json.dumps({key: value for key, value in facts.items() if value is not None}))

    return write


def codec(write: Callable[[], object] = lambda: None, options: str = "", **more: Any) -> Fault:
    """A model with a template that is changed, or options that it does not take."""
    return Fault(f"{EVAL}{options and ' '}{options}", write, needs=("trained",), **more)


def option(name: str, value: str) -> str:
    return f"--set codec.options.{name}={value}"


def slow_tokenizer() -> None:
    """One that reads bytes, which no tokenizer.json describes."""
    Path(TEMPLATE).unlink()
    tokenizer(tokenizer_class="ByT5Tokenizer")()


def lower_case() -> None:
    """One that writes all text in lower case."""
    Path(TEMPLATE).unlink()
    tokenizer(f"{MODEL}/tokenizer.json", normalizer={"type": "Lowercase"})()


def endless() -> None:
    Path(TEMPLATE).unlink()
    tokenizer(eos_token=None)()


def renamed(old: str, new_name: str) -> None:
    """Give the token that ends a turn another name."""
    for name in (f"{MODEL}/tokenizer.json", TOKENIZER, TEMPLATE):
        Path(name).write_text(Path(name).read_text(encoding="utf-8").replace(old, new_name), encoding="utf-8")


CODECS = {
    "a template that changes replies": codec(
        template(TOOL_REPLY, TOOL_REPLY.replace("message.content", "(message.content if loop.last else 'gone')")),
        option("history", "append"),
    ),
    "a template that cannot be followed": codec(
        template(CALL, "(call.arguments if message is sameas messages[-1] else {}) | tojson"), by_hand=put_back
    ),
    "a torn tokenizer": codec(
        lambda: Path(f"{MODEL}/tokenizer.json").write_text("{"), by_hand=new("eval embedded " + SHORT)
    ),
    "no template of a family": codec(lambda: Path(TEMPLATE).unlink(), "--set codec.name=qwen3", by_hand=put_back),
    "a template of no family": codec(
        lambda: renamed(TURN_END, "<|turn|>"), by_hand=lambda: renamed("<|turn|>", TURN_END)
    ),
    "a template that is not there to follow": codec(whole(NO_TOOLS), option("history", "template")),
    "no thinking": codec(whole(NO_TOOLS), option("thinking", "true")),
    "no thinking of a family": codec(options=option("thinking", "true")),
    "no format of calls": codec(options=option("call_format", "nosuch")),
    "calls of no format": codec(template(CALL, "'x'"), fill={"NAME": "hermes"}),
    "no end token": codec(endless, by_hand=tokenizer(eos_token="<|im_end|>")),
    "a tokenizer without a fast form": codec(slow_tokenizer, by_hand=new("eval embedded " + SHORT)),
    "a tokenizer that changes text": codec(lower_case, by_hand=new("eval embedded " + SHORT)),
    "a tokenizer of another family": codec(options="--set codec.name=llama3"),
    "no messages of tools": codec(template("message.role == 'tool' %}", "message.role == 'function' %}")),
    "a template that refuses": codec(
        template("{%- elif message.role == 'tool' %}", "{%- elif message.role == 'tool' %}{{ raise_exception('no') }}")
    ),
    "a template that changes contents": codec(template(TOOL_REPLY, TOOL_REPLY.replace("content", "content | upper"))),
}
