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
CHANGES_TURNS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + "
    "(message.content if loop.index > loop.length - 2 else message.content | upper) + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


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
    Path(f"{MODEL}/generation_config.json").unlink(missing_ok=True)


def endless_template() -> None:
    """No template, tokenizer or generation_config.json that names an end."""
    endless()
    whole("{% for message in messages %}{{ message.content }}{% endfor %}")()
    for name in (f"{MODEL}/tokenizer.json", TOKENIZER):
        text = Path(name).read_text(encoding="utf-8")
        Path(name).write_text(text.replace("<|endoftext|>", "<|nothing|>"), encoding="utf-8")


CODECS = {
    "a template that changes replies": codec(
        template(TOOL_REPLY, TOOL_REPLY.replace("message.content", "(message.content if loop.last else 'gone')")),
        option("history", "append"),
    ),
    "a template that cannot be followed": codec(whole(CHANGES_TURNS), by_hand=put_back),
    "a torn tokenizer": codec(
        lambda: Path(f"{MODEL}/tokenizer.json").write_text("{"), by_hand=new("eval embedded " + SHORT)
    ),
    "no template": codec(lambda: Path(TEMPLATE).unlink(), "--set codec.name=template", by_hand=put_back),
    "a template that is not there to follow": codec(lambda: Path(TEMPLATE).unlink(), option("history", "template")),
    "no thinking without a template": codec(lambda: Path(TEMPLATE).unlink(), option("thinking", "true")),
    "no thinking": codec(options=option("thinking", "true")),
    "no format of calls": codec(options=option("call_format", "nosuch")),
    "no end token": codec(endless, by_hand=tokenizer(eos_token="<|im_end|>")),
    "no end token of a template": codec(endless_template, by_hand=tokenizer(eos_token="<|im_end|>")),
    "damaged ends": codec(
        lambda: Path(f"{MODEL}/generation_config.json").write_text("{"), by_hand=new("eval embedded " + SHORT)
    ),
    "a tokenizer without a fast form": codec(slow_tokenizer, by_hand=new("eval embedded " + SHORT)),
    "a tokenizer that changes text": codec(lower_case, by_hand=new("eval embedded " + SHORT)),
    "a template that refuses": codec(whole("{{ raise_exception('no') }}")),
    "a template that drops contents": codec(whole("{% for message in messages %}x{% endfor %}")),
}
