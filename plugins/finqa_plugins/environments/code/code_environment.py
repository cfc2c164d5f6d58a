"""Base classes of the environments `code` and `mbpp`.

The policy is asked for a function. The code of its reply is executed in a sandbox and judged outside of it. The tasks
and how they are judged are in `function_environment` and `mbpp_environment`.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from finqa_cli.contracts import ExecutingSandbox, Sandbox, TextSession
from finqa_cli.errors import EnvironmentFault
from finqa_cli.types import ExecutionSpec, Observation, Prompt, Rewards, Task
from finqa_plugins.environments._task_files.row_environment import RowEnvironment
from finqa_plugins.environments._task_files.task_rows import Row, TaskData

Verdict = TypeVar("Verdict")

_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_OPENING = re.compile(r"```([^\n`]*)$", re.MULTILINE)
_CLOSING = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
_PYTHON = re.compile(r"(?:python|py)3?\b.*", re.IGNORECASE)
_TAGGED = re.compile(r"<code>(.*?)(?:</code>|\Z)", re.DOTALL)
_MOST_BLOCKS, _MOST_ENDS = 32, 16
"""Largest number of blocks of a reply, and of places at which one may end, that are parsed."""


class CodeEnvironment(RowEnvironment[Row], Generic[Row, Verdict]):
    """Problems, and how replies to them are judged.

    Attributes:
        attempts: Largest number of replies in one episode.
    """

    def __init__(self, data: TaskData[Row], *, attempts: int, fresh_sandboxes: bool) -> None:
        super().__init__(data)
        self.attempts = attempts
        self._fresh = fresh_sandboxes

    def sandbox_spec(self) -> ExecutionSpec:
        """Return the specification of a sandbox that executes code."""
        return ExecutionSpec(fresh=self._fresh)

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> CodeSession:
        """Start an episode of exactly this task.

        Raises:
            SandboxError: The sandbox failed.
            EnvironmentFault: The task is not of this data, or the sandbox does not execute code.
            DataError: The task's own tests or reference fail.
        """
        problem = self._row(task)
        if not isinstance(sandbox, ExecutingSandbox):
            raise EnvironmentFault(
                "The sandbox of the session does not execute code: it is not a finqa_cli.contracts.ExecutingSandbox."
            )
        await self.prepare(problem, sandbox)
        return CodeSession(self, problem, task, sandbox)

    async def prepare(self, problem: Row, sandbox: ExecutingSandbox) -> None:
        """Prepare a problem for judging, before each of its episodes; by default there is nothing to do.

        Raises:
            SandboxError: The sandbox failed.
            DataError: The problem's own tests or reference fail.
        """

    @abstractmethod
    async def judge(self, problem: Row, text: str, sandbox: ExecutingSandbox) -> Verdict:
        """Judge a reply by executing it.

        Raises:
            SandboxError: The sandbox failed, so there is no verdict.
        """

    @abstractmethod
    def feedback(self, problem: Row, verdict: Verdict) -> Observation:
        """Return the feedback on a reply; `done` if no further attempt is wanted."""

    @abstractmethod
    def rewards(self, task: Task, problem: Row, replies: Sequence[str], verdict: Verdict | None) -> Rewards:
        """Return the verdict on an episode from its replies and the verdict on the last one (None without a reply).

        Raises:
            EnvironmentFault: The configured reward failed.
        """


class CodeSession(TextSession):
    """A problem, and attempts at it until one passes every test or none is left."""

    def __init__(
        self, environment: CodeEnvironment[Any, Any], problem: Any, task: Task, sandbox: ExecutingSandbox
    ) -> None:
        self._environment = environment
        self._problem = problem
        self._task = task
        self._sandbox = sandbox
        self._replies: list[str] = []
        self._verdict: Any = None
        self._done = False

    def prompt(self) -> Prompt:
        """Return the prompt of the problem."""
        return self._environment.prompt(self._problem)

    async def reply(self, text: str) -> Observation:
        """Judge one attempt and return the feedback.

        Raises:
            SandboxError: The sandbox failed; the attempt does not count.
        """
        if self._done:
            return Observation(text="Error: the episode is over.", done=True, is_error=True)
        self._verdict = await self._environment.judge(self._problem, text, self._sandbox)
        self._replies.append(text)
        observation = self._environment.feedback(self._problem, self._verdict)
        self._done = observation.done or len(self._replies) >= self._environment.attempts
        return replace(observation, done=self._done)

    async def grade(self) -> Rewards:
        """Return the verdict on the last attempt, or on no attempt.

        Raises:
            EnvironmentFault: The configured reward failed.
        """
        return self._environment.rewards(self._task, self._problem, self._replies, self._verdict)


def extract_code(text: str, names: Collection[str] = ()) -> str:
    """Return the code of a reply.

    It is a ```python block, else a block of any kind, else `<code>`, else the text without `>>>` lines. Of several
    blocks it is the last that defines one of the names, after the earlier blocks that define what it lacks; without
    such a block, the first. Reasoning in `<think>` is left out. A block without closing mark reaches to the end.

    Args:
        text: The reply.
        names: Names that the tests ask for.
    """
    said = without_thoughts(text)
    if blocks := _blocks(said):
        return _joined(blocks, frozenset(names))
    if found := _TAGGED.search(said):
        return found[1].strip("\n").rstrip()
    lines = [line for line in said.splitlines() if not line.lstrip().startswith((">>>", "..."))]
    return "\n".join(lines).strip("\n").rstrip()


def _blocks(said: str) -> list[str]:
    """Return the blocks of Python of a reply, or all blocks if none is marked as Python."""
    found: list[tuple[bool, str]] = []
    said, at = said.replace("\r\n", "\n"), 0
    while len(found) < _MOST_BLOCKS and (opening := _OPENING.search(said, at)):
        begin = min(opening.end() + 1, len(said))
        content, at = _content(said, begin)
        found.append((_PYTHON.fullmatch(opening[1].strip()) is not None, content.strip("\n").rstrip()))
    return [content for is_python, content in found if is_python] or [content for _, content in found]


def _content(said: str, begin: int) -> tuple[str, int]:
    """Return the content of a block that begins at a place, and where the text behind it begins.

    Code may contain lines of three backticks in its texts. So of all such lines it ends at the last before which
    everything is Python, or else at the first mark.
    """
    ends = [mark for _, mark in zip(range(_MOST_ENDS), _CLOSING.finditer(said, begin), strict=False)]
    for mark in reversed(ends):
        if parse_module(textwrap.dedent(said[begin : mark.start()])) is not None:
            return said[begin : mark.start()], mark.end()
    first = said.find("```", begin)
    return (said[begin:], len(said)) if first < 0 else (said[begin:first], first + 3)


def _joined(blocks: Sequence[str], names: frozenset[str]) -> str:
    """Return the last block that defines one of the names, after the earlier ones that define what it lacks."""
    parts = [_Part(block) for block in blocks]
    last = next((place for place in reversed(range(len(parts))) if parts[place].defined & names), None)
    if last is None:
        return blocks[0]
    chosen, lacking = [last], (names | parts[last].used) - parts[last].defined
    for place in reversed(range(last)):
        if parts[place].defined & lacking:
            chosen.insert(0, place)
            lacking = (lacking | parts[place].used) - parts[place].defined
    return "\n\n".join(blocks[place] for place in chosen)


class _Part:
    """A block of code: the names that it defines at its top level, and those that it uses and does not define."""

    def __init__(self, code: str) -> None:
        tree = parse_module(code)
        nodes = list(ast.walk(tree)) if tree else []
        named = [node for node in nodes if isinstance(node, ast.Name)]
        bound = {node.id for node in named if not isinstance(node.ctx, ast.Load)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        self.defined = frozenset(name for statement in tree.body for name in _bound(statement)) if tree else frozenset()
        self.used = {node.id for node in named if isinstance(node.ctx, ast.Load)} - bound


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top level of a module binds."""
    for node in ast.walk(statement) if not isinstance(statement, _SCOPES) else [statement]:
        if isinstance(node, _SCOPES):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def parse_module(code: str) -> ast.Module | None:
    """Parse code; None if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes such as "\\d" that Python warns of
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def without_thoughts(text: str) -> str:
    """Return the reply without `<think>` parts; the opening tag may be missing, because the template wrote it."""
    opened, closing, rest = text.partition("</think>")
    said = rest if closing and "<think>" not in opened else text
    return _THOUGHTS.sub("", said)


def extract_program(text: str, prompt: str, func_name: str) -> str:
    """Return the program in a reply: its code block or, without one, all of it.

    A base model completes a prompt that begins the function. If the code does not define the function but the prompt
    does, the result is the prompt with the body from the reply, up to the first line that is not indented by four
    spaces (the rule of the original harness of `sorting` and `max_subarray`).
    """
    code = extract_code(text, (func_name,))
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
