"""Environments that are one Python file: episodes of a user's class or functions, in this process."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice, takewhile
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from finqa_cli.contracts import Environment, EnvironmentContext, Sandbox, Session, TextSession
from finqa_cli.errors import CodeFault, ConfigError, DataError, EnvironmentFault, FinqaError
from finqa_cli.extend.plugin_calls import definition, describe, describe_failure, find_place
from finqa_cli.types import (
    AssistantTurn,
    DataInfo,
    Message,
    Observation,
    Prompt,
    Rewards,
    Task,
    ToolCall,
)
from finqa_plugins.environments._schemas.random_values import draw_value
from finqa_plugins.environments._task_files.content_parts import has_images, image_address, read_content
from finqa_plugins.environments._task_files.given_tasks import (
    GivenTask,
    digest_of,
    find_answer,
    gather,
    read_tasks,
    tasks_of_split,
)
from finqa_plugins.environments._task_files.task_rows import group_by_split
from finqa_plugins.environments.python_file.config import PythonFileConfig
from finqa_plugins.environments.python_file.session_thread import SessionThread
from finqa_plugins.environments.python_file.tool_methods import WrongArgumentsError
from finqa_plugins.environments.python_file.user_code import RESERVED, UserCode, check_values, fill, load

_REASONING = re.compile(r"\A.*</think>", re.DOTALL)
_OVER = Observation(text="Error: the episode is over.", done=True, is_error=True)


class PythonEnvironment(Environment):
    """Serves the tasks of a user's file, and demonstrations of its expert."""

    def __init__(self, config: PythonFileConfig, context: EnvironmentContext) -> None:
        """Import the file and read its tasks, so that mistakes are found before anything is started.

        Raises:
            ConfigError: The file is missing or has no usable environment, a task lacks a value that it needs, or a
                reward or data is given.
            DataError: The tasks of the file cannot be used.
        """
        if context.reward is not None:
            raise ConfigError(
                f"Environment {config.source} has its own reward().",
                remedy="leave --reward out, or change reward() in the file",
            )
        self._config = config
        self._code = load(config.source, config.attribute)
        given = dict(config.arguments)
        if context.data is not None:
            if "data" not in inspect.signature(self._code.tasks).parameters:
                raise ConfigError(
                    f"tasks() of {config.source} does not accept data ({definition(self._code.tasks)}).",
                    remedy="leave --data out, or write def tasks(data)",
                )
            given["data"] = context.data
        self._tasks = {each.task.id: each for each in self._read(given)}
        every = [(each.task.id, each.values.keys()) for each in self._tasks.values()]
        check_values(self._code, every, config.arguments.keys())
        self._splits = group_by_split((each.task.split, each.task) for each in self._tasks.values())

    def data(self) -> DataInfo:
        """Return the file, with a digest of its code and tasks."""
        arguments = json.dumps(dict(self._config.arguments), default=repr, sort_keys=True)
        digest = digest_of(self._code.digest + arguments, list(self._tasks.values()))
        return DataInfo(name=self._config.source, digest=digest)

    def splits(self) -> Sequence[str]:
        """Return the splits that have tasks."""
        return tuple(self._splits)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split in the order in which the file yields them.

        Raises:
            DataError: There is no such split.
        """
        return tasks_of_split(self._splits, split, self._config.source)

    def opening(self, task: Task) -> Prompt | None:
        """Return the prompt of a task; None if the code has `reset`, which may add to it."""
        return None if self._code.has("reset") else self._prompt(self._own(task))

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Session | TextSession:
        """Make the user's object for an episode of this task.

        Raises:
            CodeFault: The constructor or `reset` raised an exception, or did not return in time.
        """
        own = self._own(task)
        calls = _Calls(self._config, self._code)
        values = {**self._config.arguments, **own.values, "task": dict(own.values), "seed": seed}
        try:
            thing = await calls.call("the constructor", self._code.make, fill(self._code.make, values))
            prompt = self._prompt(own)
            if self._code.has("reset"):
                first = await calls.call("reset", thing.reset, fill(thing.reset, values))
                prompt = _with_text(prompt, _text_of(first) if first is not None else "")
        except BaseException:
            await calls.close(None)
            raise
        kind = ToolSession if self._code.tools else WordsSession
        return kind(self._code, calls, thing, prompt)

    def right_answer(self, task: Task) -> str:
        """Return the value of `answer`, `truth`, `target`, `expected` or `solution` in the task; empty without one."""
        return find_answer(self._own(task).values)

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return what `demonstrate_task` returns for the first task with this prompt."""
        own = self._by_prompt.get(_asked(messages))
        return None if own is None else self.demonstrate_task(own.task.id, messages)

    def demonstrate_task(self, task: str, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return the next turn of the file's `expert`, which gets the replies to its turns so far.

        Raises:
            CodeFault: The expert raised an exception, or yielded neither a call nor a text.
        """
        own = self._tasks.get(task) if self._code.has("expert") else None
        if own is None:
            return None
        if random.Random(f"careless:{own.task.id}").random() < self._config.careless:
            return self._random_turn(own, messages)
        values = {**self._config.arguments, **own.values, "task": dict(own.values), "seed": 0}
        expert = self._code.methods["expert"]
        try:
            thing = fill(self._code.make, values)()
            step = _next_step(fill(thing.expert, values)(), messages)
        except FinqaError:
            raise
        except Exception as error:
            raise _fault(self._config, "expert", expert, error) from error
        return None if step is None else self._turn(step, expert)

    def _random_turn(self, own: GivenTask, messages: Sequence[Message]) -> AssistantTurn:
        """Return a random call, or without tools random words, seeded by the task and the number of messages."""
        rng = random.Random(f"careless:{own.task.id}:{len(messages)}")
        text = "\n".join(message.content for message in messages if message.role in ("user", "tool"))
        if not self._code.tools:
            return AssistantTurn(text=str(draw_value({"type": rng.choice(["number", "string"])}, rng, text)))
        name = rng.choice(list(self._code.tools))
        parameters = self._code.tools[name].spec.parameters
        return self._turn((name, draw_value(parameters, rng, text)), self._code.methods["expert"])

    def _turn(self, step: Any, expert: Callable[..., Any]) -> AssistantTurn:
        if isinstance(step, str):
            return AssistantTurn(text=step)
        steps = step if isinstance(step, list) and step and self._code.several_calls else [step]
        return AssistantTurn.calling(*(self._call(each, expert) for each in steps))

    def _call(self, step: Any, expert: Callable[..., Any]) -> ToolCall:
        try:
            name, arguments = step
            call = ToolCall(name=name, arguments=json.loads(to_json(dict(arguments))))
        except (TypeError, ValueError, PydanticSerializationError) as error:
            raise CodeFault(
                f"expert() of {self._config.source} yields {step!r:.80}, not a text or a pair of a tool's name and its "
                f"arguments{', or a list of such pairs' if self._code.several_calls else ''} ({definition(expert)}).",
            ) from error
        if call.name not in self._code.tools:
            known = ", ".join(self._code.tools)
            why = f"; {call.name!r} is a reserved name, so it is no tool" if call.name in RESERVED else ""
            raise CodeFault(f"expert() calls {call.name!r}; the tools are {known}{why} ({definition(expert)}).")
        return call

    def _prompt(self, own: GivenTask) -> Prompt:
        tools = tuple(tool.spec for tool in self._code.tools.values())
        system = own.messages[0].role == "system" or not self._code.about
        first = () if system else (Message(role="system", content=self._code.about),)
        return Prompt(messages=(*first, *own.messages), tools=tools, several_calls=self._code.several_calls)

    @cached_property
    def _by_prompt(self) -> Mapping[tuple[Message, ...], GivenTask]:
        return {self._prompt(each).messages: each for each in reversed(self._tasks.values())}

    def _own(self, task: Task) -> GivenTask:
        if task.id not in self._tasks:
            raise EnvironmentFault(f"{self._config.source} has no task {task.id!r}.")
        return self._tasks[task.id]

    def _read(self, values: Mapping[str, Any]) -> list[GivenTask]:
        place = definition(self._code.tasks)
        try:
            given = _run(gather, fill(self._code.tasks, values))
        except Exception as error:
            where = find_place(error, self._code.file, self._code.tasks)
            raise DataError(f"tasks() raised {describe(error)} ({where}).", remedy=f"correct {where}") from error
        return read_tasks(given, place)


class _Calls:
    """Calls into the user's code: in the session's thread, limited in time, and attributed to file and line."""

    def __init__(self, config: PythonFileConfig, code: UserCode) -> None:
        self._config = config
        self._thread = SessionThread()
        self._code = code

    async def call(self, name: str, method: Callable[..., Any], call: Callable[[], Any]) -> Any:
        try:
            return await self._thread.run(call, self._config.call_timeout_s)
        except TimeoutError as error:
            limit = self._config.call_timeout_s
            raise CodeFault(
                f"{name} of {self._config.source} did not return within {limit:g} s ({definition(method)}), which "
                "environment.options.call_timeout_s sets."
            ) from error
        except FinqaError:
            raise
        except Exception as error:
            raise _fault(self._config, name, method, error) from error

    async def tool(self, name: str, method: Callable[..., Any], call: Callable[[], Any]) -> Observation | Any:
        """Return what a tool returns, or with `tool_exceptions=model` an error message for an exception."""
        if self._config.tool_exceptions == "fault":
            return await self.call(name, method, call)
        try:
            return await self._thread.run(call, self._config.call_timeout_s)
        except Exception as error:
            return Observation(text=f"Error: {describe(error)}", is_error=True)

    async def close(self, thing: Any) -> None:
        try:
            if thing is not None and self._code.has("close"):
                await self.call("close", thing.close, thing.close)
        finally:
            self._thread.close()


class _OwnSession:
    """Base class of sessions with and without tools."""

    def __init__(self, code: UserCode, calls: _Calls, thing: Any, prompt: Prompt) -> None:
        self._code = code
        self._calls = calls
        self._thing = thing
        self._prompt = prompt
        self._answer = ""
        self._over = False

    def prompt(self) -> Prompt:
        """Return the messages and tools that the episode opens with."""
        return self._prompt

    async def reply(self, text: str) -> Observation:
        """Take an answer in plain text, without the reasoning before it."""
        if self._over:
            return _OVER
        self._answer = _REASONING.sub("", text).strip()
        if not self._code.has("answer"):
            self._over = True
            return Observation(text="Answer received.", done=True)
        answer = self._thing.answer
        said = await self._calls.call("answer", answer, partial(answer, self._answer))
        self._over = said is None or bool(getattr(self._thing, "done", False))
        return Observation(text="Answer received.", done=True) if said is None else _observation(said, self._over)

    async def grade(self) -> Rewards:
        """Return the result of the method `reward`, or the value of the attribute `reward`.

        Raises:
            EnvironmentFault: The method failed, or the result is not a number.
        """
        reward = getattr(self._thing, "reward", None)
        if callable(reward):
            verdict = await self._calls.call("reward", reward, fill(reward, {"answer": self._answer}))
        else:
            verdict = reward
        explanation = str(getattr(self._thing, "explanation", "") or "")
        return _rewards(verdict, explanation, f"reward of {self._code.name}", definition(reward or self._code.make))

    async def close(self) -> None:
        """Call the user's `close`, if there is one, and end the thread. Idempotent."""
        thing, self._thing = self._thing, None
        await self._calls.close(thing)


class WordsSession(_OwnSession, TextSession):
    """An episode without tools."""


class ToolSession(_OwnSession, Session):
    """An episode with tools; a turn in plain text is an answer if the code takes answers."""

    @property
    def takes_text(self) -> bool:  # type: ignore[override]
        """Whether the code takes answers in plain text."""
        return self._code.takes_answers

    async def step(self, call: ToolCall) -> Observation:
        """Call a tool. Unknown tools and wrong arguments get an error message; for exceptions see `tool_exceptions`."""
        if self._over:
            return _OVER
        tool = self._code.tools.get(call.name)
        if tool is None:
            known = ", ".join(self._code.tools)
            return Observation(text=f"Error: there is no tool {call.name[:64]!r}. Tools: {known}.", is_error=True)
        try:
            arguments = tool.read(call.arguments)
        except WrongArgumentsError as error:
            return Observation(text=f"Error: {error}", is_error=True)
        method = getattr(self._thing, call.name)
        result = await self._calls.tool(call.name, method, partial(method, **arguments))
        if isinstance(result, Observation):
            return result
        self._over = bool(getattr(self._thing, "done", False))
        return _observation(result, self._over)


def _run(gathering: Callable[[Any], Any], call: Callable[[], Any]) -> Any:
    """Run `gathering(call())` to its end in a thread with its own event loop: this thread may have a running loop."""
    found: list[Any] = []
    failures: list[BaseException] = []

    async def work() -> Any:
        return await gathering(call())

    def serve() -> None:
        try:
            found.append(asyncio.run(work()))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0] if isinstance(failures[0], Exception) else RuntimeError(describe(failures[0]))
    return found[0]


def _next_step(steps: Any, messages: Sequence[Message]) -> Any:
    """Run an expert's generator through the replies so far, and return what it yields next; None at its end.

    An expert that needs no replies may return a sequence of steps instead.
    """
    replies: list[Any] = []
    for place, message in enumerate(messages):
        if message.role == "assistant":
            answers = islice(takewhile(lambda each: each.role == "tool", messages[place + 1 :]), len(message.calls))
            values = [_value_of(each.content) for each in answers]
            replies.append(values if len(message.calls) > 1 else values[0] if values else "")
    taken = len(replies)
    if not inspect.isgenerator(steps):
        rest = list(steps)[taken:]
        return rest[0] if rest else None
    try:
        step = next(steps)
        for reply in replies:
            step = steps.send(reply)
        return step
    except StopIteration:
        return None


def _value_of(reply: str) -> Any:
    """The value that a tool returned: its reply parsed as JSON, or the text if it is not JSON."""
    try:
        return json.loads(reply)
    except (ValueError, RecursionError):
        return reply


def _asked(messages: Sequence[Message]) -> tuple[Message, ...]:
    opening: list[Message] = []
    for message in messages:
        if message.role not in ("system", "user"):
            break
        opening.append(message)
    return tuple(opening)


def _with_text(prompt: Prompt, text: str) -> Prompt:
    if not text:
        return prompt
    last = prompt.messages[-1]
    added = Message(role=last.role, content=f"{last.content}\n\n{text}")
    return replace(prompt, messages=(*prompt.messages[:-1], added))


def _observation(value: Any, done: bool) -> Observation:
    """Convert the result of a tool: images, also in a list, stay images; everything else becomes text."""
    if not has_images(value):
        return Observation(text=_text_of(value), done=done)
    members = value if isinstance(value, list | tuple) else [value]
    text, images = read_content(
        [each if image_address(each) or isinstance(each, str) else _text_of(each) for each in members]
    )
    return Observation(text=text, done=done, images=images)


def _text_of(value: Any) -> str:
    """Return a text unchanged, `ok` for None, and other values as JSON."""
    if value is None:
        return "ok"
    if isinstance(value, str):
        return value
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except PydanticSerializationError:
        return str(value)


def _rewards(verdict: Any, explanation: str, name: str, place: str) -> Rewards:
    if isinstance(verdict, Rewards):
        return verdict
    if isinstance(verdict, Mapping):
        parts = {str(key): _number(value, f"{name}, part {key!r},", place) for key, value in verdict.items()}
        total = parts.pop("total") if "total" in parts else sum(parts.values())
        return Rewards(total=total, components=parts, explanation=explanation)
    return Rewards(total=_number(verdict, name, place), explanation=explanation)


def _number(value: Any, name: str, place: str) -> float:
    if hasattr(type(value), "__float__"):  # also numbers of numpy and torch
        return float(value)
    kind = "None" if value is None else f"a {type(value).__name__}"
    raise CodeFault(f"{name} is {kind}, not a number ({place}).")


def _fault(config: PythonFileConfig, name: str, method: Callable[..., Any], error: Exception) -> CodeFault:
    return CodeFault(f"{name} of {config.source} raised {describe_failure(error, method)}.")
