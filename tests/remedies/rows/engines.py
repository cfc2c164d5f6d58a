"""Engines that serve models: on servers on loopback, and in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fixtures import token_server as tokens
from fixtures.openai_server import Fault as Answer
from remedies.faults import Fault, new, text
from remedies.rows.codecs import MODEL, SHORT
from remedies.rows.servers import AT, EVAL, answering, elsewhere, put, server
from remedies.rows.servers import MODEL as ANALYST
from remedies.rows.user_code import GOOD, PLAY

VOCABULARY = 300
"""Of the tiny model, whose ids the server then takes."""

SERVED = f"eval trained/w {SHORT} --engine openai {AT}"
NEEDS = ("trained",)


def token_server(**facts: Any) -> Callable[[], AbstractContextManager[tokens.TokenServerFixture]]:
    """A server of the tiny model's tokens that differs in these attributes from a good one."""

    @contextmanager
    def serve() -> Iterator[tokens.TokenServerFixture]:
        with pytest.MonkeyPatch.context() as patch:
            tokens._logits.cache_clear()
            patch.setattr(tokens, "VOCABULARY", VOCABULARY)
            with tokens.token_server() as started:
                started.max_model_len = 4096
                for name, value in facts.items():
                    setattr(started, name, value)
                yield started
        tokens._logits.cache_clear()

    return serve


def served(by: str = "", **facts: Any) -> Fault:
    """A server that does not do what an adapter needs."""
    return Fault(f"{SERVED}{by}", server=token_server(**facts), needs=NEEDS, fill={"NAME": tokens.BASE})


def without_ids(document: dict[str, Any]) -> None:
    for choice in document["choices"]:
        choice.pop("token_ids", None)


def failing(answer: Answer, after: int = 0) -> Callable[[], AbstractContextManager[tokens.TokenServerFixture]]:
    """A server of tokens that answers one completion with an error, and all before and after it as it should."""

    @contextmanager
    def serve() -> Iterator[tokens.TokenServerFixture]:
        with token_server()() as started:
            left = [*[None] * after, answer]
            started.fault = lambda: left.pop(0) if left else None  # type: ignore[method-assign]
            yield started

    return serve


def once(answer: Answer, after: int = 0, **more: Any) -> Fault:
    """A server that fails once."""
    command = f"{SERVED} --set engine.options.max_retries=0"
    return Fault(command, server=failing(answer, after), needs=NEEDS, **more)


def config(**changes: Any) -> None:
    path = Path(MODEL, "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def without_a_weight() -> None:
    from safetensors.torch import load_file, save_file

    path = Path(MODEL, "model.safetensors")
    weights = load_file(path)
    weights.pop("model.norm.weight")
    save_file(weights, path, {"format": "pt"})


def damaged(write: Callable[[], object]) -> Fault:
    """A model that the user copies again."""

    def damage() -> None:
        shutil.copytree(MODEL, "kept")
        write()

    return Fault(
        f"eval {MODEL} {SHORT}",
        damage,
        needs=NEEDS,
        by_hand=lambda: shutil.copytree("kept", MODEL, dirs_exist_ok=True) and None,
    )


KEY = "--set engine.options.api_key_env=KEY"
DOCTOR = "doctor --engine openai --set engine.options.base_url="

ENGINES = {
    "a server without contexts": served(max_model_len=None),
    "a server without ids": served(spoil=without_ids),
    "a server of raw log-probabilities": served(logprobs="raw"),
    "a server without adapters": served(lora=False),
    "a server that ignores adapters": served(ignores_adapters=True),
    "a server that loads what is not there": Fault(
        SERVED,
        lambda: Path(MODEL, "model.safetensors").unlink(),
        server=token_server(load=lambda body: (200, b"Success")),
        needs=NEEDS,
        then=78,
    ),
    "no such base model": served(" --set engine.options.model=nosuch"),
    "several base models": served(names=["x", tokens.BASE]),
    "a server that lists nothing": Fault(
        f"eval trained/w {SHORT} --engine openai --set engine.options.base_url={{url}}/x",
        server=token_server(),
        needs=NEEDS,
        fill={"...": "{url}"},
    ),
    "an adapter of a larger rank on a server": served(" --set lora.rank=2"),
    "an adapter of a larger rank": Fault(f"eval trained/w {SHORT} --set lora.rank=2", needs=NEEDS),
    "a rate limit": once(Answer(status=429)),
    "a server that fails": once(Answer(status=500), by_hand=lambda: None),
    "a request that is refused": once(Answer(status=400), 3, by_hand=lambda: None),
    "a server for two replicas": served(" --engine-replicas 2"),
    "no calls of tools": Fault(
        f"{EVAL} {ANALYST}",
        server=answering(400, '"auto" tool choice requires --enable-auto-tool-choice'),
        by_hand=elsewhere(""),
    ),
    "a proxy of another kind": Fault(
        "eval openai --limit 1 --sandboxes 1 --set engine.options.base_url=http://127.0.0.2:9/v1 "
        "--set engine.options.model=x",
        env={"HTTP_PROXY": "socks5://127.0.0.1:9", "NO_PROXY": ""},
        by_hand=lambda: put("NO_PROXY", "127.0.0.2"),
        then=69,
    ),
    "a key that is not shown": Fault(
        "doctor",
        text("finqa.toml", "[engine]\nname = 'openai'\n[engine.options]\napi_key = 'x'\n"),
        by_hand=lambda: text("finqa.toml", "[engine]\nname = 'openai'\n")() or f"doctor {KEY}",
        env={"KEY": "y"},
        check="openai key",
        then=(0, 1),
        elsewhere=("--set",),
    ),
    "a key in plain text": Fault(
        f"{DOCTOR}http://127.0.0.2:9/v1 {KEY}",
        env={"KEY": "x"},
        check="openai key",
        by_hand=new(f"{DOCTOR}https://127.0.0.2:9/v1 {KEY}"),
        then=(0, 1),
    ),
    "a component that lacks its key": Fault(
        "plugins show openai",
        check="openai",
        by_hand=lambda: put("OPENAI_API_KEY", "x"),
        elsewhere=("--set",),
    ),
    "a component with wrong options": Fault(
        "plugins show openai",
        text("finqa.toml", "[engine]\nname = 'openai'\n[engine.options]\nbase_url = 'x'\n"),
        check="openai",
        by_hand=text("finqa.toml", "[engine]\nname = 'openai'\n[engine.options]\nbase_url = 'http://127.0.0.1:9'\n"),
    ),
    "a folder on a server": Fault(f"eval {MODEL} {SHORT} --engine openai {AT}", server=server(), needs=NEEDS),
    "no solution": Fault(PLAY.replace("eval random", "eval scripted"), text("env.py", GOOD), by_hand=new(PLAY)),
    "no weights": damaged(lambda: Path(MODEL, "model.safetensors").unlink()),
    "torn weights": damaged(text(f"{MODEL}/model.safetensors", "x")),
    "weights of another configuration": damaged(lambda: config(intermediate_size=64)),
    "a weight that is missing": damaged(without_a_weight),
    "a rank that vLLM lacks": Fault(
        f"train --engine vllm --model {MODEL} --lora-rank 1024 --iterations 1", needs=NEEDS, then=(1, 78)
    ),
}
