"""One session: an episode at a time, its steps, its end and its verdict. The truth stays in this module."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from finqa_cli.grading import Verdict, grade
from finqa_plugins.environments.openenv_finqa.finqa_tools import SUBMIT, TOOLS, InvalidArgumentsError, validated
from finqa_plugins.environments.openenv_finqa.server.server_options import ServerOptions
from finqa_plugins.environments.openenv_finqa.server.server_service import ToolService
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import Question


class RefusedCallError(Exception):
    """A call that is not carried out; `kind` is one of OpenEnv's tool error types."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Episode:
    """The state of a session. Not safe for concurrent calls: a session is strictly serial."""

    def __init__(self, service: ToolService, options: ServerOptions) -> None:
        self._service = service
        self._max_steps = options.max_steps
        self._grader = options.grader
        self._question: Question | None = None
        self._verdict: Verdict | None = None
        self._expired = False
        self._episode_id = ""
        self._steps = 0

    @property
    def verdict(self) -> Verdict | None:
        """Reward and reason once the episode is over, else None."""
        return self._verdict

    def reset(self, question: Question, episode_id: str | None) -> None:
        """Begins an episode of this question.

        Raises:
            RuntimeError: The session has expired.
        """
        if self._expired:
            raise RuntimeError("The session has expired; connect again.")
        self._question = question
        self._verdict = None
        self._steps = 0
        self._episode_id = episode_id or str(uuid.uuid4())

    def expire(self) -> None:
        """Frees the session; every later call is refused."""
        self._expired = True

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The reply of a tool. Afterwards `verdict` is set when the call ended the episode.

        Raises:
            RefusedCallError: The tool is unknown, the arguments are invalid, or the episode is over or not begun.
            RuntimeError: The session has expired.
        """
        if self._expired:
            raise RuntimeError("The session has expired; connect again.")
        if self._verdict is not None:
            raise RefusedCallError("execution_error", "The episode is over; reset begins another one.")
        self._steps += 1
        try:
            return await self._carry_out(tool, arguments)
        finally:
            if self._steps >= self._max_steps and self._verdict is None and self._question is not None:
                self._verdict = Verdict(0.0, f"No answer submitted within {self._max_steps} steps.")

    async def _carry_out(self, name: str, arguments: Mapping[str, Any]) -> str:
        tool = TOOLS.get(name)
        if tool is None:
            raise RefusedCallError("tool_not_found", f"Unknown tool: {name[:64]!r}. Tools: {', '.join(TOOLS)}.")
        try:
            texts = validated(tool, arguments)
        except InvalidArgumentsError as error:
            raise RefusedCallError("invalid_args", str(error)) from None
        if name != SUBMIT:
            return await self._service.call(name, texts)
        if self._question is None:
            raise RefusedCallError("execution_error", "There is no question yet; reset first.")
        self._verdict = grade(texts["answer"], self._question.answer, self._grader)
        return f"Answer submitted: {texts['answer']}"

    def state(self) -> dict[str, Any]:
        """What a client may know. Keys as upstream, without the truth; the verdict once the episode is over."""
        known: dict[str, Any] = {"episode_id": self._episode_id or None, "step_count": self._steps}
        question = self._question
        known["current_question"] = question.user_query if question else ""
        known["current_company"] = question.company if question else ""
        known["question_id"] = question.id if question else ""
        known["done"] = self._verdict is not None
        if self._verdict is not None:
            known |= {"reward": self._verdict.reward, "explanation": self._verdict.explanation}
        return known
