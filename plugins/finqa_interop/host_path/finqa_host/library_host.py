"""Runs environments of verifiers or tasks of Inspect in a process that exchanges lines of JSON.

It imports nothing of finqa. The library's own loop runs unchanged; where it would call a model, it waits for a turn
that finqa sends. Each line on stdin is a request, which gets a reply with the same `id` on stdout:

    {"op": "load"}                                    -> {"tasks": [...], "version": "..."}
    {"op": "open", "session": S, "task": N}           -> an outcome
    {"op": "turn", "session": S, "message": {...}}    -> an outcome
    {"op": "stop", "session": S}                      -> an outcome: the episode is stopped and scored as it is
    {"op": "close", "session": S}                     -> {}

An outcome is `{"messages": [...], "tools": [...]}`, the whole conversation that the model is asked to continue, or
`{"verdict": {"total": ..., "parts": {...}, "why": ...}}`. `{"error": ..., "remedy": ...}` replaces either. Messages are
those of chat completions, with the arguments of calls as JSON texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from .chat_forms import Ask, RefusalError, StopEpisode


class Library(Protocol):
    """One environment of a library."""

    version: str

    def tasks(self) -> list[dict[str, Any]]:
        """Return each task's `prompt` as text, with `id` and `split` if it has them; requests use its index."""

    async def play(self, place: int, ask: Ask) -> dict[str, Any]:
        """Play the task at a place with the library's own loop, and return the verdict."""


class Conversation:
    """One episode: the library's loop as an asyncio task, which waits wherever it calls the model."""

    def __init__(self, play: Callable[[Ask], Awaitable[dict[str, Any]]]) -> None:
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._task = asyncio.ensure_future(play(self._ask))

    async def _ask(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        if self._answer is not None and not self._answer.done():
            raise RuntimeError("the environment calls the model twice at the same time, which is not supported")
        self._answer = asyncio.get_running_loop().create_future()
        self._asked.put_nowait({"messages": messages, "tools": tools})
        return await self._answer

    async def outcome(self) -> dict[str, Any]:
        """Wait until the loop calls the model again, or ends; return the outcome."""
        asked = asyncio.ensure_future(self._asked.get())
        await asyncio.wait({asked, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        return {"verdict": _finite(self._task.result())}

    def answer(self, message: dict[str, Any]) -> None:
        """Let the loop continue with the text of the policy."""
        assert self._answer is not None
        self._answer.set_result(message)

    def stop(self) -> None:
        """Stop the episode at the call for which it waits."""
        assert self._answer is not None
        if not self._answer.done():
            self._answer.set_exception(StopEpisode())

    async def close(self) -> None:
        """End the loop, wherever it is."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _finite(verdict: dict[str, Any]) -> dict[str, Any]:
    if not all(math.isfinite(value) for value in (verdict["total"], *verdict["parts"].values())):
        raise ValueError(f"a score is not a finite number: {verdict['parts']}")
    return verdict


class Host:
    """Answers requests; sessions run concurrently."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._conversations: dict[str, Conversation] = {}

    async def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request."""
        if request["op"] == "load":
            return {"tasks": self._library.tasks(), "version": self._library.version}
        session = request["session"]
        if request["op"] == "close":
            if (ended := self._conversations.pop(session, None)) is not None:
                await ended.close()
            return {}
        if request["op"] == "open":
            place = int(request["task"])
            self._conversations[session] = Conversation(lambda ask: self._library.play(place, ask))
        elif request["op"] == "turn":
            self._conversations[session].answer(request["message"])
        else:
            self._conversations[session].stop()
        return await self._conversations[session].outcome()


async def serve(host: Host, read: asyncio.StreamReader, write: Callable[[dict[str, Any]], None]) -> None:
    """Answer requests until stdin ends."""
    running: set[asyncio.Task[None]] = set()

    async def answer(request: dict[str, Any]) -> None:
        try:
            reply = await host.handle(request)
        except Exception as error:
            traceback.print_exc()
            reply = _described(error)
        write({"id": request["id"], **reply})

    while line := await read.readline():
        task = asyncio.ensure_future(answer(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


def _described(error: BaseException) -> dict[str, Any]:
    """The error as a reply, with the innermost code line that is neither here nor in an installed package."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent != Path(__file__).parent
        and "site-packages" not in frame.filename
        and "lib/python" not in frame.filename
    ]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    cause = f": {error.__cause__}" if error.__cause__ is not None and str(error.__cause__) not in str(error) else ""
    return {"error": f"{type(error).__name__}: {error}{cause}{place}", "remedy": getattr(error, "remedy", "")}


async def main(library: str, source: str, arguments: Mapping[str, Any]) -> None:
    """Serve one environment on stdin and stdout; all else that is printed on stdout goes to stderr."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, str(Path.cwd()))

    def write(reply: dict[str, Any]) -> None:
        private.write(json.dumps(reply) + "\n")
        private.flush()

    try:
        with contextlib.redirect_stdout(sys.stderr):
            host = Host(_load(library, source, arguments))
    except RefusalError as error:
        write({"id": 0, "error": str(error), "remedy": error.remedy, "refused": True})
        return
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        write({"id": 0, **_described(error)})
        return
    reader = asyncio.StreamReader(limit=2**28)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    write({"id": 0})
    await serve(host, reader, write)


def _load(library: str, source: str, arguments: Mapping[str, Any]) -> Library:
    if library == "verifiers":
        import verifiers

        if hasattr(verifiers, "load_environment"):
            from .verifiers_library import VerifiersEnvironment

            return VerifiersEnvironment(source, arguments)
        from .verifiers_tasksets import VerifiersTaskset

        return VerifiersTaskset(source, arguments)
    from .inspect_library import InspectTask

    return InspectTask(source, arguments)


def run() -> None:
    """Serve what the command line names: library, source and arguments as JSON."""
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
