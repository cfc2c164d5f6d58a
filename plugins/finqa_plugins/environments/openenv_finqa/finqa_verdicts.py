"""Verdicts on submitted answers, as this client of the server completes them: truths, a reward, a model that judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from finqa_cli.contracts import AnswerJudge, Reward, RewardRequest
from finqa_cli.errors import ConfigError
from finqa_cli.grading import Grader, Verdict, grade, profile_of
from finqa_cli.types import Observation, Rewards, Task, ToolCall, Trajectory
from finqa_plugins.environments._openenv.openenv_client import RefusedRequestError
from finqa_plugins.environments.openenv_finqa.finqa_tools import (
    ASKED_AGAIN,
    SUBMIT,
    TOOLS,
    InvalidArgumentsError,
    validated,
)
from finqa_plugins.environments.openenv_finqa.gold_truths import Truths

NO_ANSWER = Verdict(0.0, "no answer submitted")


class Verdicts:
    """Completes verdicts: with the parts of this client, with a judge if there is one, and with a configured reward."""

    def __init__(self, truths: Truths, *, grader: Grader, reward: Reward | None, judge: AnswerJudge | None) -> None:
        """Raise ConfigError when the reward reads JSON replies: `submit_answer` takes the plain answer."""
        if reward is not None and (reward.spec() or {}).get("format") == "json":
            raise ConfigError(
                "The finqa environment submits plain answers, but the reward requires JSON.",
                remedy="--set reward.options.format=plain",
            )
        self._truths = truths
        self._profile = profile_of(grader)
        self._reward = reward
        self._judge = judge

    async def complete(self, task: Task, answer: str | None, found: Verdict, returned: int | None) -> Rewards:
        """Return the whole verdict on an episode.

        Its parts are `correct`; `exact`: whether the stripped answer equals the stripped gold answer, which does not
        affect the total; `asked_again`: the number of answers that were returned, under a grader that asks again.
        With a judge there are also `strict`, the verdict of the rules, and `judged`: whether the judge was asked,
        because the rules cannot read the answer. Its decision is then `correct` and the total. A configured reward
        replaces the total and keeps all parts, so that accuracy stays comparable.

        Args:
            task: The question.
            answer: The submitted answer; None when none was.
            found: The verdict of the rules.
            returned: Number of answers that were returned; None under a grader that does not ask again.

        Raises:
            DataError: The snapshot has no truth for the task, or its file is damaged.
            EnvironmentFault: The judge or the configured reward failed.
        """
        truth = self._truths.of(task) if answer is not None or self._reward is not None else ""
        parts = {"correct": found.reward, "exact": float(answer is not None and answer.strip() == truth.strip())}
        if returned is not None:
            parts["asked_again"] = float(returned)
        verdict = Rewards(total=found.reward, components=parts, explanation=found.explanation)
        if self._judge is not None:
            verdict = await self._judged(self._judge, task, answer, truth, verdict)
        if self._reward is None:
            return verdict
        extra = {"question_type": task.kind, "question": task.prompt}
        request = RewardRequest(task=task, solution=answer or "", truth=truth, extra_info=extra)
        return replace(self._reward.score_beside(request, verdict), judged=verdict.judged)

    async def _judged(
        self, judge: AnswerJudge, task: Task, answer: str | None, truth: str, verdict: Rewards
    ) -> Rewards:
        parts = {**verdict.components, "strict": verdict.total, "judged": 0.0}
        if answer is None or not answer.strip() or grade(answer, truth, self._profile, task.prompt).readable:
            return replace(verdict, components=parts)
        found = await judge.judge(question=task.prompt, truth=truth, answer=answer)
        right = float(found.right)
        return replace(
            verdict,
            total=right,
            components={**parts, "correct": right, "judged": 1.0},
            explanation=f"{judge.name} judges it {'right' if found.right else 'wrong'}: {found.reason}",
            judged=found.facts,
        )


def measure_judged(trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
    """Return the accuracy of rules and judge side by side; empty if no attempt was graded with a judge."""
    graded = [each for each in trajectories if each.rewards is not None and "judged" in each.rewards.components]
    parts = [each.rewards.components for each in graded if each.rewards is not None]
    if not parts:
        return {}
    asked = [each.metadata.get("judge", {}) for each in graded]
    costs = [each.get("usage", {}).get("cost_usd") for each in asked]
    known = [float(cost) for cost in costs if cost is not None]
    return {
        "accuracy by strict": fmean(each["strict"] for each in parts),
        "accuracy with the judge": fmean(each["correct"] for each in parts),
        "judged answers": sum(each["judged"] for each in parts),
        "judged otherwise than strict": sum(each["correct"] != each["strict"] for each in parts),
        "verdicts from the cache": sum(bool(each.get("cached")) for each in asked),
        **({"cost of the judge (US dollars)": sum(known)} if known else {}),
    }


def is_returned(observation: Observation) -> bool:
    """Whether this is the reply to an answer that was returned to the policy."""
    return observation.text.startswith(ASKED_AGAIN) and not observation.done


def submitted_answer(trajectory: Trajectory) -> str | None:
    """Return the answer that ended an attempt, as it was sent; None if no answer was accepted."""
    steps = [step for turn in trajectory.turns for step in turn.steps]
    if not steps or steps[-1].call.name != SUBMIT:
        return None
    observation = steps[-1].observation
    if observation is None or not observation.done or observation.is_error:
        return None
    return str(sent_arguments(steps[-1].call)["answer"])


def sent_arguments(call: ToolCall) -> Mapping[str, Any]:
    """Return the arguments to send. An answer is always sent as text: OpenEnv's own server fails on a number."""
    if call.name != SUBMIT:
        return call.arguments
    try:
        return validated(TOOLS[SUBMIT], call.arguments)
    except InvalidArgumentsError as error:
        raise RefusedRequestError(str(error)) from None
    except ValueError:  # an integer of thousands of digits
        raise RefusedRequestError("The answer cannot be written as text.") from None
