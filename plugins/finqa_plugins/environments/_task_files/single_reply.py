"""A session of one prompt and one reply."""

from __future__ import annotations

from abc import abstractmethod

from finqa_cli.contracts import TextSession
from finqa_cli.types import Observation, Prompt, Rewards


class SingleReplySession(TextSession):
    """Takes one reply of any content and grades it; an episode without a reply is graded like an empty one."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._text: str | None = None

    def prompt(self) -> Prompt:
        """Return the messages that the episode opens with."""
        return self._prompt

    async def reply(self, text: str) -> Observation:
        """Take the reply; the episode is over."""
        if self._text is not None:
            return Observation(text="Error: the question is answered already.", done=True, is_error=True)
        self._text = text
        return Observation(text="Answer received.", done=True)

    async def grade(self) -> Rewards:
        """Return the verdict on the reply.

        Raises:
            EnvironmentFault: The configured reward failed.
        """
        return self.judge(self._text or "")

    @abstractmethod
    def judge(self, text: str) -> Rewards:
        """Judge a whole reply. Raises like `grade`."""
