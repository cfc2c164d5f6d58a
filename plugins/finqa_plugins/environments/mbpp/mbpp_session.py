"""One episode: a problem, and attempts at it until one passes every test or none is left."""

from __future__ import annotations

from finqa_cli.contracts import ExecutingSandbox, Reward, RewardRequest, TextSession
from finqa_cli.types import Message, Observation, Prompt, Rewards, Task
from finqa_plugins.environments.mbpp.config import MbppConfig
from finqa_plugins.environments.mbpp.mbpp_judging import NO_CODE, PASSED, Verdict, feedback, judge
from finqa_plugins.environments.mbpp.mbpp_problems import Problem
from finqa_plugins.sandboxes._execution.extraction import extract_code

SYSTEM = "You are an expert Python programmer. Solve the problem with the standard library only."
OWN = "environment_"
"""Stands before the name of a part of ours that the configured reward has, too."""


def opening(problem: Problem, config: MbppConfig) -> Prompt:
    """The system message and the problem with the tests that are shown."""
    question = Message(role="user", content=problem.opening(config.shown_tests))
    return Prompt(messages=(Message(role="system", content=SYSTEM), question), tools=())


class MbppSession(TextSession):
    """See `finqa_cli.contracts.TextSession`."""

    def __init__(
        self, box: ExecutingSandbox, problem: Problem, task: Task, config: MbppConfig, reward: Reward | None
    ) -> None:
        self._box = box
        self._problem = problem
        self._task = task
        self._config = config
        self._reward = reward
        self._attempts = 0
        self._last = ""
        self._verdict: Verdict | None = None

    def prompt(self) -> Prompt:
        """See `opening`."""
        return opening(self._problem, self._config)

    async def reply(self, text: str) -> Observation:
        """Judges one attempt; what is wrong with it is the answer.

        Raises:
            SandboxError: The box failed.
        """
        if self._over:
            return Observation(text="Error: the problem is over.", done=True, is_error=True)
        code = extract_code(text)
        verdict = await self._judged(code) if code.strip() else None
        self._attempts += 1
        self._last, self._verdict = text, verdict
        if verdict is None:
            return Observation(text=NO_CODE, done=self._over, is_error=True)
        if verdict.passed:
            return Observation(text=PASSED, done=True)
        told = feedback(self._problem, verdict, self._config.shown_tests)
        return Observation(text=told, done=self._over, is_error=True)

    async def grade(self) -> Rewards:
        """1 when the last attempt passed every test, else 0; parts `correct`, `passed` (share of the tests) and
        `attempts`.

        Raises:
            EnvironmentFault: The configured reward failed.
        """
        solved = self._solved
        parts = {
            "correct": float(solved),
            "passed": self._verdict.share if self._verdict else 0.0,
            "attempts": float(self._attempts),
        }
        own = Rewards(total=float(solved), components=parts, explanation=self._explanation())
        return own if self._reward is None else self._rewarded(self._reward, own)

    async def close(self) -> None:
        """Nothing to free: no execution outlives its attempt."""

    async def _judged(self, code: str) -> Verdict:
        return await judge(self._box, self._problem, code, self._config.limits, self._config.shown_tests)

    @property
    def _solved(self) -> bool:
        return self._verdict is not None and self._verdict.passed

    @property
    def _over(self) -> bool:
        return self._solved or self._attempts >= self._config.max_attempts

    def _explanation(self) -> str:
        if self._verdict is None:
            return "No code was found in the last reply." if self._attempts else "Nothing was replied."
        if self._solved:
            return f"All tests passed at attempt {self._attempts}."
        failed = sum(not outcome.passed for outcome in self._verdict.outcomes)
        last_line = self._verdict.error.splitlines()[-1:]
        return " ".join([f"{failed} of {len(self._verdict.outcomes)} tests failed.", *last_line])

    def _rewarded(self, reward: Reward, own: Rewards) -> Rewards:
        request = RewardRequest(
            task=self._task,
            solution=self._last,
            truth=self._problem.reference,
            data_source="mbpp",
            extra_info={"tests": [test.source for test in self._problem.tests], **own.components},
        )
        given = reward.score(request)
        clashing = given.components.keys() - {"correct"}  # accuracy follows this part, so it stays ours
        beside = {f"{OWN}{name}" if name in clashing else name: value for name, value in own.components.items()}
        components = {**given.components, **beside}
        return Rewards(total=given.total, components=components, explanation=given.explanation or own.explanation)
