"""Tasksets of verifiers from 0.4 on, run by its own single-agent loop and its tool-calling chat program."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from .chat_forms import Ask, RefusalError, StopEpisode, chat_message

_MOST_TASKS = 100_000
_SESSION = "X-Session-ID"
"""Header in which verifiers names the episode of a request."""

_CUT = "finqa_limit"


class VerifiersTaskset:
    """A taskset with the chat program `null`, which offers the taskset's tools and executes nothing else.

    The program and the servers of the tools are processes that verifiers starts. Their requests to the model go to a
    server on loopback, which passes each request to its episode.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        import verifiers
        from verifiers.v1.envs.single_agent import SingleAgentEnv
        from verifiers.v1.utils.loaders import default_harness_id, load_environment, resolve_env_config

        self.version = f"verifiers {verifiers.__version__}"
        os.environ["FINQA_POLICY_KEY"] = "none"  # for the server on loopback, which checks no key
        # `uv`, which prepares the chat program, may be installed beside the library
        os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        # servers of tools are processes elsewhere, which import the module of the taskset by its name
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
        agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
        self._environment: Any = load_environment(
            resolve_env_config({"taskset": {**arguments, "id": name}, "agent": agent})
        )
        if type(self._environment) is not SingleAgentEnv:
            kind = type(self._environment).__name__
            raise RefusalError(
                f"It is a {kind}, an environment with its own agents; finqa supports single-agent tasksets."
            )
        if (harness := default_harness_id(name)) != "bash":
            raise RefusalError(f"It has its own harness {harness}; finqa supports the chat loop only.")
        taskset = self._environment.taskset
        if not taskset.bounded:
            raise RefusalError(
                "It yields an infinite number of tasks.", "pass an argument that limits them, if it has one"
            )
        self._tasks = list(itertools.islice(taskset, _MOST_TASKS))
        for task in self._tasks:
            _refuse(task)
        self._policy = _Policy()
        self._open = AsyncExitStack()
        self._serving: Any = None

    def tasks(self) -> list[dict[str, Any]]:
        """Return the tasks, all in the split `test`: a taskset has no splits."""
        return [{"prompt": task.data.prompt_text or str(task.data.name or ""), "split": "test"} for task in self._tasks]

    async def play(self, place: int, ask: Ask) -> dict[str, Any]:
        """Run one episode as the library's own runner does, and return the verdict with the library's scores."""
        from verifiers.v1 import EvalClientConfig, ModelContext

        if self._serving is None:
            self._serving = asyncio.ensure_future(self._start())
        url = await self._serving
        client = EvalClientConfig(base_url=url, api_key_var="FINQA_POLICY_KEY")
        traces: list[Any] = []

        def minted(trace: Any) -> None:
            traces.append(trace)
            self._policy.asks[trace.id] = (ask, trace)

        try:
            episode = await self._environment.run_episode(
                self._tasks[place], ModelContext(model="policy", client=client), on_trace=minted
            )
        finally:
            for trace in traces:
                self._policy.asks.pop(trace.id, None)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            raise RuntimeError(f"{errors[0].type}: {errors[0].message}")
        (trace,) = episode.traces
        parts = {name: float(reward.score) for name, reward in trace.rewards.items()}
        parts |= {name: float(value) for name, value in trace.metrics.items()}
        return {"total": float(trace.reward), "parts": parts, "why": str(trace.stop_condition or "")}

    async def _start(self) -> str:
        await self._open.enter_async_context(self._environment.serving())
        return await self._policy.start()


def _refuse(task: Any) -> None:
    if task.NEEDS_CONTAINER or task.data.image:
        raise RefusalError("Its tasks need a container, which finqa does not start.")
    if task.data.prompt is None:
        raise RefusalError("Its tasks have no prompt: another agent would start the conversation.")
    if judges := task.plugged_judges():
        raise RefusalError(
            f"Its {type(judges[0]).__name__} calls another model for the score, which finqa does not support."
        )


class _Policy:
    """A server of chat completions on loopback, whose replies are the turns of the policy under test."""

    def __init__(self) -> None:
        self.asks: dict[str, tuple[Ask, Any]] = {}

    async def start(self) -> str:
        """Serve on a free port, and return the address."""
        from aiohttp import web

        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def _complete(self, request: Any) -> Any:
        from aiohttp import web

        body = await request.json()
        ask, trace = self.asks[request.headers[_SESSION]]
        tools = [tool["function"] for tool in body.get("tools") or []]
        try:
            said = await ask([chat_message(message) for message in body["messages"]], tools)
        except StopEpisode:
            trace.stop(_CUT)  # a stopped loop ends; the episode is scored as it is
            return web.json_response({"error": {"message": _CUT}}, status=400)
        if not body.get("stream"):
            return web.json_response(_completion(said))
        text = "".join(f"data: {json.dumps(part)}\n\n" for part in _chunks(said))
        return web.Response(text=f"{text}data: [DONE]\n\n", content_type="text/event-stream")


def _completion(said: Mapping[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": said["content"], **_calls(said)}
    finish = "tool_calls" if said["tool_calls"] else "stop"
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        "id": "0",
        "object": "chat.completion",
        "created": 0,
        "model": "policy",
        "choices": [choice],
        "usage": usage,
    }


def _chunks(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A completion as a stream of one part and its end."""
    whole = _completion(said)
    (choice,) = whole["choices"]
    delta = choice["message"]
    if calls := delta.get("tool_calls"):
        delta = {**delta, "tool_calls": [{**call, "index": place} for place, call in enumerate(calls)]}
    parts = [
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]},
    ]
    return [{**whole, "object": "chat.completion.chunk", "choices": [part], "usage": None} for part in parts]


def _calls(said: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in said["tool_calls"]
    ]
    return {"tool_calls": calls} if calls else {}
