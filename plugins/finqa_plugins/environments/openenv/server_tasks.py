"""The tasks that an OpenEnv server lists: its Task API, from openenv 0.4.1 on (https://huggingface.co/docs/openenv).

`reset(split=..., index=...)` begins an episode of one of them. Other fields of a task are not read: they
may contain the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any

from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, SandboxError
from finqa_cli.types import ServerSpec
from finqa_plugins.environments._openenv.server_facts import LOOK_S, MAX_BYTES, http_url, open_url
from finqa_plugins.environments._openenv.server_token import authorization, refusal

HOST = "127.0.0.1"
TIMEOUT_S = 10.0
START_S = 120.0
POLL_S = 0.1
MAX_TASKS = 1_000_000
RESET = "reset"
"""Key of the arguments of `reset` in a row."""

INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH")
"""Variables of this process that a started one gets: none that may be a secret."""

_NO_LIST = "--set environment.options.tasks=200 resets it with seeds, and --data FILE with the arguments in each row"


class NoTaskListError(ConfigError):
    """The server has no Task API."""


def may_list_tasks(url: str, spec: ServerSpec | None) -> bool:
    """Return whether it is worth asking a server for its tasks: a running one, or one whose files name the Task API.

    Starting a server takes seconds, and few environments list tasks.
    """
    if url:
        return True
    if spec is None or spec.source is None:
        return False
    return any(b"list_splits" in file.read_bytes() for file in spec.source.folder.rglob("*.py") if file.is_file())


def server_tasks(url: str, spec: ServerSpec | None, token: str = "") -> list[dict[str, Any]]:
    """Return a row for each task that a server lists: `id`, `split` and the arguments of `reset`.

    Args:
        url: Address of a running server; empty: the server of `spec` is started on this machine for the requests.
        spec: How the server is started.
        token: Bearer token of a running server that needs one.

    Raises:
        NoTaskListError: The server lists no tasks.
        ConfigError: The server cannot be started here.
        SandboxError: The server does not answer, or its answer is not a list of tasks.
        AuthenticationError: The server needs a token, or another one.
    """
    if url:
        return _listed(url, f"at {url.partition('?')[0]}", token)
    if spec is None or not spec.command:
        raise ConfigError("The tasks of an image are not known before it runs.", remedy=_NO_LIST)
    with _running(spec) as address:
        return _listed(address, f"of {spec.server}", "")


def _listed(url: str, where: str, token: str) -> list[dict[str, Any]]:
    def ask(path: str, body: Mapping[str, object] | None = None, timeout_s: float = TIMEOUT_S) -> Any:
        return _ask(url, path, body, token, timeout_s)

    try:
        names = ask("list_environments", timeout_s=LOOK_S)
        name = str(names[0])
        rows: list[dict[str, Any]] = []
        for split in ask(f"{name}/splits"):
            count = int(ask(f"{name}/num_tasks", {"split": split["name"]})["num_tasks"])
            if not 0 <= count <= MAX_TASKS - len(rows):
                raise ConfigError(f"The server {where} lists {count} tasks in {split['name']}.", remedy=_NO_LIST)
            kind, label = str(split.get("type") or split["name"]), str(split["name"])
            rows += [
                {"id": f"{label}_{index:05d}", "split": kind, RESET: {"split": label, "index": index}}
                for index in range(count)
            ]
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise refusal(error.code, error.read(MAX_BYTES), where=where, token=token) from None
        if error.code not in (404, 405, 501):
            raise SandboxError(f"The server {where} did not list its tasks: HTTP status {error.code}.") from None
        raise NoTaskListError(f"The server {where} has no list of tasks.", remedy=_NO_LIST) from None
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        late = isinstance(error, TimeoutError) or isinstance(reason, TimeoutError)
        what = f"does not answer within {LOOK_S:g} s." if late else f"cannot be reached: {reason}"
        raise SandboxError(f"The server {where} {what}", remedy="start it, or correct its address") from None
    except (ValueError, LookupError, TypeError, AttributeError, HTTPException, RecursionError):
        raise SandboxError(f"The response of the server {where} is not a list of tasks.", remedy=_NO_LIST) from None
    return rows


def _ask(url: str, path: str, body: Mapping[str, object] | None, token: str, timeout_s: float) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(http_url(url, path), data=data, headers={"Content-Type": "application/json"})
    for name, value in authorization(token).items():
        request.add_unredirected_header(name, value)  # a token is for one server
    with open_url(request, timeout_s) as reply:
        return parse_json(reply.read(MAX_BYTES))


@contextlib.contextmanager
def _running(spec: ServerSpec) -> Iterator[str]:
    """Run a server on loopback for the block, and yield its address. It gets no variables that may be secrets."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    command, variables = spec.process(HOST, port)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**inherited, **variables},
        start_new_session=True,
    )
    try:
        _wait_until_healthy(process, f"http://{HOST}:{port}{spec.health_path}")
        yield f"http://{HOST}:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), open_url(urllib.request.Request(address), 1.0):
            return
        time.sleep(POLL_S)
    state = "exited" if process.poll() is not None else f"was not ready in {START_S:g} s"
    raise ConfigError(
        f"The server was started on this machine to list its tasks, but {state}.",
        remedy="--set environment.options.python=VENV/bin/python with its packages, or "
        "--set environment.options.tasks=200",
    )
