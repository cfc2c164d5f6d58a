"""Servers of models and of data, on loopback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fixtures.openai_server import Fault as Answer
from fixtures.openai_server import OpenAIServer, error_body, openai_server
from remedies.faults import Fault, new

AT = "--set engine.options.base_url={url}"
EVAL = f"eval openai --limit 1 --sandboxes 1 {AT}"
MODEL = "--set engine.options.model=analyst"


def answering(status: int, message: str, **facts: Any) -> Callable[[], AbstractContextManager[OpenAIServer]]:
    """A server that answers each request for a completion with an error until it is asked another way."""

    @contextmanager
    def serve() -> Iterator[OpenAIServer]:
        with openai_server() as server:
            server.faults.append(Answer(status=status, body=error_body(message, **facts), times=100))
            yield server

    return serve


def elsewhere(what: str) -> Callable[[], object]:
    return new(f"eval scripted --limit 1 {what}")


def server(**options: Any) -> Callable[[], AbstractContextManager[OpenAIServer]]:
    return lambda: openai_server(**options)


SERVERS = {
    "no name of a model": Fault(EVAL, server=server(), fill={"NAME": "analyst"}),
    "an unknown model": Fault(f"{EVAL} --set engine.options.model=nosuch", server=server(), fill={"NAME": "analyst"}),
    "no key for OpenAI": Fault(
        "eval openai --limit 1 --set engine.options.model=x", by_hand=new(f"{EVAL} {MODEL}"), server=server()
    ),
    "a key with spaces": Fault(
        f"{EVAL} {MODEL}", server=server(), env={"OPENAI_API_KEY": "a b"}, by_hand=lambda: put("OPENAI_API_KEY", "ab")
    ),
    "a key that is refused": Fault(
        f"{EVAL} {MODEL} --set engine.options.api_key_env=OPENAI_API_KEY",
        server=server(key="right"),
        env={"OPENAI_API_KEY": "wrong"},
        by_hand=lambda: put("OPENAI_API_KEY", "right"),
    ),
    "an address without a server": Fault(
        f"eval openai --limit 1 --sandboxes 1 --set engine.options.base_url=http://127.0.0.1:9/v1 {MODEL}",
        server=server(),
        by_hand=new(f"{EVAL} {MODEL}"),
        fill={"http://HOST:PORT/v1": "{url}"},
    ),
    "no such path": Fault(
        "eval openai --limit 1 --sandboxes 1 --set engine.options.base_url={url}/x --set engine.options.model=analyst",
        server=server(),
        by_hand=new(f"{EVAL} {MODEL}"),
        elsewhere=("--set",),
    ),
    "a field that is refused": Fault(
        f"{EVAL} {MODEL}",
        server=answering(
            400, "Unsupported parameter: 'temperature'", param="temperature", code="unsupported_parameter"
        ),
        by_hand=elsewhere(""),
        elsewhere=("--set",),
    ),
    "a model that is not listed": Fault(
        f"doctor --engine openai {AT} --set engine.options.model=nosuch",
        server=server(),
        check="openai model",
        fill={"NAME": "analyst"},
        then=(0, 1),
    ),
    "models that are not listed": Fault(
        f"doctor --engine openai {AT} --set engine.options.model=nosuch",
        server=server(models=()),
        check="openai model",
        by_hand=new("doctor --engine scripted"),
        fill={"NAME": "analyst"},
        then=(0, 1),
        elsewhere=("--set",),
    ),
    "options of chat for training": Fault(
        f"train --iterations 1 --engine openai {AT} --set engine.options.max_tokens_field=max_tokens",
        server=server(),
        by_hand=new(f"train --iterations 1 --engine openai {AT}"),
        then=78,
    ),
    "whole weights on a server": Fault(
        f"train --iterations 1 --engine openai {AT} --lora-rank 0", server=server(), then=78
    ),
}


def put(name: str, value: str) -> None:
    os.environ[name] = value
