"""The verdict on a program.

| part      | 1 when                                                                                    |
| --------- | ----------------------------------------------------------------------------------------- |
| `correct` | every test is passed                                                                      |
| `passed`  | (a share) of the tests, 0 after an error or a ban                                         |
| `banned`  | the code uses what the task bans; it is not executed then                                 |
| `error`   | there is no code, it is no Python, it raises, ends early, or takes too much of something  |

The total is -1 for `banned` or `error`, else `passed`: the seed's reward.
"""

from __future__ import annotations

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.types import ExecutionLimits, Rewards
from finqa_plugins.environments.code_tasks.code_problems import CodeTask
from finqa_plugins.environments.code_tasks.completion import program
from finqa_plugins.environments.code_tasks.truth import Truth
from finqa_plugins.sandboxes._execution.bans import UnreadableError, parse, violations
from finqa_plugins.sandboxes._execution.evaluating import Raised, evaluate
from finqa_plugins.sandboxes._execution.python_values import equal

BANNED = "Banned: "
ERROR = "Error: "
NO_CODE = "NoCode"
ENDED = "ProcessEnded"
_LONGEST = 300


async def judge(
    text: str, task: CodeTask, truth: Truth, box: ExecutingSandbox, limits: ExecutionLimits, *, raising_fails: bool
) -> Rewards:
    """The verdict on a reply.

    Args:
        text: What the policy said.
        task: What was asked for.
        truth: Of the task.
        box: Where the program is executed; neither tests nor expected results are there, only arguments.
        limits: Of the execution.
        raising_fails: A test in which the function raises is a failed test and no error.

    Raises:
        SandboxError: The box failed: there is no verdict.
    """
    code = program(text, task.prompt, task.func_name)
    if not code.strip():
        return _error(f"{NO_CODE}: the reply has none")
    try:
        parse(code)
        if used := violations(code, task.banned):
            return _rewards(-1.0, banned=1.0, explanation=f"{BANNED}{', '.join(used)}.")
    except UnreadableError as error:
        return _error(str(error))
    names = {f"case_{place}_": arguments for place, arguments in enumerate(truth.arguments)}
    star = "*" if task.many_arguments else ""
    found = await evaluate(
        box,
        code=code,
        expressions=[f"{task.func_name}({star}{name})" for name in names],
        names=names,
        limits=limits,
        labels={"problem": task.id},
        go_on=raising_fails,
    )
    if not found.ok:
        reason = found.error.split("\n")[-1]
        kind, colon, _ = reason.partition(": ")
        named = reason if (kind if colon else reason).isidentifier() else f"{ENDED}: {reason}"
        return _error(f"{named} (test {found.failed_at + 1})" if found.failed_at is not None else named)
    pairs = zip(found.values, truth.expected, strict=True)
    passed = [not isinstance(value, Raised) and equal(value, right, task.tolerance) for value, right in pairs]
    share = sum(passed) / len(passed)
    return _rewards(share, passed=share, explanation=f"{sum(passed)} of {len(passed)} tests passed.")


def _error(reason: str) -> Rewards:
    return _rewards(-1.0, error=1.0, explanation=f"{ERROR}{reason}")


def _rewards(
    total: float, *, passed: float = 0.0, banned: float = 0.0, error: float = 0.0, explanation: str
) -> Rewards:
    components = {"correct": float(passed == 1.0), "passed": passed, "banned": banned, "error": error}
    line = "".join(character if character.isprintable() else "?" for character in explanation)
    return Rewards(total=total, components=components, explanation=line[:_LONGEST])
