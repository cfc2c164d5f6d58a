from __future__ import annotations

import pytest
from fixtures.code_play import environment, judged

from finqa_cli.contracts import ExecutingSandbox, Sandbox
from finqa_cli.errors import EnvironmentFault, SandboxError
from finqa_cli.types import ExecutionRequest, ExecutionResult, Task
from finqa_plugins.sandboxes._execution.python_values import decode

PLAYED = environment()
BUBBLES = """\
def sort_numbers(xs):
    ys = list(xs)  # not sorted(ys), not ys.sort(), no import of heapq
    for i in range(len(ys)):
        smallest = i
        for j in range(i + 1, len(ys)):
            if ys[j] < ys[smallest]:
                smallest = j
        ys[i], ys[smallest] = ys[smallest], ys[i]
    return ys
"""


@pytest.mark.parametrize(
    ("reply", "total", "explanation"),
    [
        (BUBBLES, 1.0, "5 of 5 tests passed."),
        (f"Here it is:\n```python\n{BUBBLES}```", 1.0, "5 of 5 tests passed."),
        ("    return list(xs)", 0.2, "1 of 5 tests passed."),
        ("    return tuple(xs)", 0.0, "0 of 5 tests passed."),
        ("    pass", 0.0, "0 of 5 tests passed."),
        ("    return sorted(xs)", -1.0, "Banned: sorted( (line "),
        ("", -1.0, "Error: NoCode: the reply has none"),
        ("I cannot.", -1.0, "Error: NoCode: the reply has none"),
        ("    return (", -1.0, "Error: SyntaxError: '(' was never closed (line "),
        ("    return xs[0]", -1.0, "Error: IndexError: list index out of range (test 1)"),
        ("    while True: pass", -1.0, "Error: TimeoutError: not finished within 1 s (test 1)"),
        ("    raise SystemExit", -1.0, "Error: SystemExit (test 1)"),
        ("    raise ValueError('\\x1b[31mred\\nline')", -1.0, "Error: ValueError: ?[31mred line (test 1)"),
        ("    return object", -1.0, "Error: TypeError: a value of type type is not plain data (test 1)"),
    ],
)
async def test_verdicts(reply: str, total: float, explanation: str) -> None:
    rewards = await judged(PLAYED, "sorting", reply)
    assert rewards.total == total and rewards.explanation.startswith(explanation)
    parts = rewards.components
    assert parts["correct"] == float(total == 1.0) and parts["passed"] == max(total, 0.0)
    assert parts["banned"] + parts["error"] == float(total == -1.0)


async def test_a_test_that_raises_may_count_as_failed() -> None:
    reply = "    first = xs[0]\n    return [first] if len(xs) == 1 else list(range(0, 100)) + list(range(101, 300))"
    assert (await judged(environment(), "sorting", reply)).total == -1.0
    forgiving = environment(raising="failed")
    assert (await judged(forgiving, "sorting", reply)).explanation == "0 of 5 tests passed."
    assert (await judged(forgiving, "sorting", "    return sorted(xs)")).total == -1.0
    assert (await judged(forgiving, "sorting", "    return (")).total == -1.0


async def test_the_sandbox_never_sees_what_is_expected() -> None:
    played = environment()
    await judged(played, "max_subarray", "    return 0")
    trusted, judged_one = played.sandbox.requests
    assert b"_kadane" in trusted.stdin and b"return 0" not in trusted.stdin
    assert b"_kadane" not in judged_one.stdin and b"expected" not in judged_one.stdin
    assert judged_one.labels == {"problem": "max_subarray"}
    assert judged_one.limits.cpu_s == 1.0 and trusted.limits.cpu_s > 1.0


async def test_the_truth_of_a_task_is_found_once_and_from_the_seed() -> None:
    played = environment()
    for _ in range(2):
        await judged(played, "max_subarray", "    return 0")
    assert len(played.sandbox.requests) == 3
    again, other = environment(), environment(seed=1)
    await judged(again, "max_subarray", "    return 0")
    await judged(other, "max_subarray", "    return 0")
    assert _arguments(again.sandbox.requests[1]) == _arguments(played.sandbox.requests[1])
    assert _arguments(other.sandbox.requests[1]) != _arguments(played.sandbox.requests[1])


def _arguments(request: ExecutionRequest) -> object:
    import json

    return {name: decode(text) for name, text in json.loads(request.stdin)["names"].items()}


class Failing(ExecutingSandbox):
    id = "failing"

    async def healthy(self) -> bool:
        return False

    async def stop(self) -> None:
        return

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        raise SandboxError("The sandbox is gone.")


async def test_infrastructure_is_never_a_reward() -> None:
    played = environment()
    task = played.tasks("train")[0]
    with pytest.raises(SandboxError):
        await played.open(task, seed=1, sandbox=Failing())
    session = await played.open(task, seed=1, sandbox=None)
    session._sandbox = Failing()
    with pytest.raises(SandboxError):
        await session.reply(BUBBLES)
    session._sandbox = played.sandbox
    assert (await session.reply(BUBBLES)).done
    assert (await session.grade()).total == 1.0


async def test_sessions_need_a_task_of_the_data_and_a_sandbox_that_executes() -> None:
    played = environment()
    stranger = Task(id="stranger", prompt="?", split="train", cluster="stranger")
    with pytest.raises(EnvironmentFault, match="stranger"):
        await played.open(stranger, seed=1, sandbox=None)
    with pytest.raises(EnvironmentFault, match="does not execute code"):
        await played.open(played.tasks("train")[0], seed=1, sandbox=_Serving())


class _Serving(Sandbox):
    id = "serving"

    async def healthy(self) -> bool:
        return True

    async def stop(self) -> None:
        return


def test_options_reach_the_sandboxes() -> None:
    assert environment(fresh_sandboxes=True).sandbox_spec().fresh
    assert not environment().sandbox_spec().fresh
