"""Environments of verifiers: their own rollout and rubric, with a client that waits for turns of the policy."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from .chat_forms import Ask, RefusalError, StopEpisode, chat_message, text_of


class VerifiersEnvironment:
    """An environment that `verifiers.load_environment` returns."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        import verifiers

        self.version = f"verifiers {verifiers.__version__}"
        _refuse_judges()
        try:
            self._environment: Any = verifiers.load_environment(name, **arguments)
        except RuntimeError as error:  # in which verifiers wraps every exception
            if isinstance(error.__cause__, RefusalError):
                raise error.__cause__ from error
            raise
        self._client: Any = _verifiers_client()
        self._refuse()
        sets = (("train", self._environment.build_dataset()), ("test", self._environment.build_eval_dataset()))
        self._rows = [(split, row) for split, rows in sets if rows is not None for row in rows.to_list()]
        logging.getLogger("verifiers").addHandler(_FailedRewards())

    def _refuse(self) -> None:
        kinds = [kind.__name__ for kind in type(self._environment).__mro__]
        for kind in ("SandboxEnv", "PythonEnv", "BrowserEnv", "CliAgentEnv", "RLMEnv"):
            if kind in kinds:
                raise RefusalError(f"It is a {kind}, which has its own sandboxes; finqa does not start them.")
        for rubric in _rubrics(self._environment.rubric):
            if grouped := [each.__name__ for each in getattr(rubric, "funcs", ()) if rubric._is_group_func(each)]:
                raise RefusalError(f"Its reward {grouped[0]} scores a group at once; finqa scores each episode alone.")

    def tasks(self) -> list[dict[str, Any]]:
        """Return the rows of its dataset (`train`) and evaluation dataset (`test`)."""
        return [{"prompt": text_of(row.get("prompt")), "split": split} for split, row in self._rows]

    async def play(self, place: int, ask: Ask) -> dict[str, Any]:
        """Run the environment's `rollout` and its rubric as the library's own runner does, and return the verdict."""
        failed: list[str] = []
        _failed_rewards.set(failed)
        stopped: list[bool] = []
        state = await self._environment.rollout(
            dict(self._rows[place][1]), self._client(ask, stopped), "policy", {"n": 1}
        )
        if (error := state.get("error")) is not None and not stopped:
            raise error
        state["error"] = None
        await self._environment.rubric.score_rollout(state)
        await self._environment.rubric.cleanup(state)
        if failed:
            raise RuntimeError(failed[0])
        parts = {str(name): float(value) for name, value in (state["metrics"] or {}).items()}
        return {"total": float(state["reward"]), "parts": parts, "why": str(state.get("stop_condition") or "")}


_failed_rewards: ContextVar[list[str]] = ContextVar("failed_rewards")


class _FailedRewards(logging.Handler):
    """Records exceptions of reward functions: verifiers only logs them, and counts the reward as 0."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and (text := record.getMessage()).startswith("Error calling"):
            _failed_rewards.get([]).append(text)


def _refuse_judges() -> None:
    """Make the constructor of JudgeRubric refuse, before it needs the key of an account."""
    from verifiers import JudgeRubric

    def refuse(self: Any, *others: Any, **named: Any) -> None:
        raise RefusalError("Its JudgeRubric calls another model for the score, which finqa does not support.")

    JudgeRubric.__init__ = refuse


def _rubrics(rubric: Any) -> Iterator[Any]:
    yield rubric
    for member in getattr(rubric, "rubrics", ()):
        yield from _rubrics(member)


def _verifiers_client() -> Any:
    from verifiers.clients import Client
    from verifiers.errors import OverlongPromptError
    from verifiers.types import Response, ResponseMessage, ToolCall

    class Answering(Client):  # type: ignore[misc]
        """A client of verifiers whose responses are the turns of the policy under test."""

        def __init__(self, ask: Ask, stopped: list[bool]) -> None:
            self._ask = ask
            self._stopped = stopped

        async def get_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **others: Any
        ) -> Any:
            offered = [tool if isinstance(tool, dict) else tool.model_dump() for tool in tools or []]
            try:
                said = await self._ask([chat_message(message) for message in prompt], offered)
            except StopEpisode as error:
                self._stopped.append(True)
                raise OverlongPromptError from error  # ends the loop; the episode is scored as it is
            calls = [ToolCall(**call) for call in said["tool_calls"]]
            message = ResponseMessage(
                content=said["content"],
                tool_calls=calls or None,
                finish_reason="tool_calls" if calls else "stop",
                is_truncated=False,
            )
            return Response(id="", created=0, model=model, message=message)

    # The abstract methods convert messages between providers, which is not needed here.
    Answering.__abstractmethods__ = frozenset()
    return Answering
