from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fixtures.plain_executions import PlainSandbox
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.errors import SandboxError
from finqa_cli.types import Ending, ExecutionLimits, ExecutionRequest, ExecutionResult
from finqa_plugins.sandboxes._execution.evaluating import Evaluation, Raised, evaluate


async def tried(code: str, *expressions: str, **options: Any) -> Evaluation:
    return await evaluate(PlainSandbox(), code=code, expressions=expressions, **options)


async def test_values_of_expressions_in_the_namespace_of_the_code() -> None:
    code = "def f(x):\n    print('hello')\n    return sorted(x)"
    found = await tried(code, "f(a)", "f(a)[0] + b", "{1: (a,)}", names={"a": [3, 1, 2], "b": 0.5})
    assert found.ok and found.error == "" and found.failed_at is None and found.ending is Ending.EXITED
    assert found.values == ([1, 2, 3], 1.5, {1: ([3, 1, 2],)})
    assert found.stdout == "hello\nhello\n"


async def test_arguments_are_fresh_for_every_expression() -> None:
    found = await tried("def f(x):\n    x.append(1)\n    return len(x)", "f(a)", "f(a)", "a", names={"a": []})
    assert found.values == (1, 1, [])


async def test_setup_follows_the_code_and_sees_the_names() -> None:
    found = await tried("x = 1", "x", setup="x = x + given", names={"given": 10})
    assert found.values == (11,)


async def test_classes_of_the_code_find_their_module() -> None:
    code = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1"
    assert (await tried(code, "A().x", "__name__")).values == (1, "solution")
    # our own `from __future__` is not theirs
    assert (await tried("def f(x: 1 + 1): ...", "f.__annotations__['x']")).values == (2,)


@pytest.mark.parametrize(
    ("code", "error", "failed_at"),
    [
        ("def f(:", "line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax", None),
        ("if x:\n\tif y\n\t\tz", "line 2\n    if y\n        ^\nSyntaxError: expected ':'", None),
        ("if 1:\n    return 5", "line 2\n    return 5\n    ^^^^^^^^\nSyntaxError: 'return' outside function", None),
        ("x = [" + "1, " * 99 + "2 2, " + "3, " * 99 + "]",
         f"line 1\n    {'1, ' * 20}2 2, {'3, ' * 18}3\n    {' ' * 60}^^^\n"
         "SyntaxError: invalid syntax. Perhaps you forgot a comma?", None),
        ("raise SyntaxError('m', ('<solution>', 1, 10**12, [7]))", "line 1\nline 1\nSyntaxError: m", None),
        ("x = 1\nraise ValueError('a\\nb')", "line 2\nValueError: a b", None),
        ("import sys\nsys.exit(0)", "line 2\nSystemExit: 0", None),
        ("import os\nos._exit(0)", "The process ended early, with exit status 0.", None),
        ("def f():\n    import os; os._exit(3)", "The process ended early, with exit status 3.", 1),
        ("def f():\n    return [1][2]", "line 2, in f\nIndexError: list index out of range", 1),
        ("def f():\n    raise KeyError(object())", "line 2, in f\nKeyError: <object object at 0x...>", 1),
        ("def f():\n    return iter([])", "TypeError: a value of type list_iterator is not plain data", 1),
        ("def f():\n    return input()", "line 2, in f\nEOFError: EOF when reading a line", 1),
        ("def f():\n    import time; time.sleep(60)", "TimeoutError: not finished within 1 s", 1),
        ("x = 'x' * 2**30", "line 1\nMemoryError", None),
        ("import os\nos.fork()", "The code wrote to the channel of the values.", None),
        ("import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'1 end 1\\n')\n    except OSError: pass",
         "The code wrote to the channel of the values.", None),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E", "line 3\nE", None),
    ],
)  # fmt: skip
async def test_what_goes_wrong_is_told_alike_every_time(code: str, error: str, failed_at: int | None) -> None:
    limits = ExecutionLimits(wall_s=3.0 if "sleep" in code else 60.0)
    first, second = await asyncio.gather(tried(code, "1", "f()", limits=limits), tried(code, "1", "f()", limits=limits))
    assert not first.ok and (first.error, first.failed_at) == (error, failed_at)
    assert (second.error, second.failed_at, second.values) == (first.error, first.failed_at, first.values)
    assert first.values == ((1,) if failed_at else ())


SPEAKS_OF_THE_NONCE = """
import sys
def nonce():
    frame = sys._getframe()
    while "channel" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["channel"]._nonce
def raises():
    raise ValueError(nonce()[:9] + nonce() + nonce()[9:])
def prints():
    print(nonce())
"""


@pytest.mark.parametrize("expression", ["nonce()", "[{1: nonce() * 2}]", "raises()", "prints()"])
async def test_who_speaks_of_the_nonce_is_told_nothing_of_it(expression: str) -> None:
    """Nonces are spent with their process; still none is to reach a policy, a record or a log."""
    found = await tried(SPEAKS_OF_THE_NONCE, expression, "1", keep_going=True)
    assert (found.error, found.values, found.stdout) == ("The code wrote to the channel of the values.", (), "")


async def test_deep_recursion_is_told_in_a_few_lines() -> None:
    found = await tried("def f(x):\n    return f(x)", "f(1)")
    lines = found.error.split("\n")
    assert len(lines) == 6 and lines[-1].startswith("RecursionError: maximum recursion depth")


async def test_going_on_after_an_expression_that_raises() -> None:
    found = await tried("def f(x):\n    return 1 // x", "f(1)", "f(0)", "f(2)", "nothing", keep_going=True)
    assert found.ok and found.values[0] == 1 and found.values[2] == 0
    assert found.values[1] == Raised("line 2, in f\nZeroDivisionError: integer division or modulo by zero")
    assert found.values[3] == Raised("NameError: name 'nothing' is not defined")


async def test_nothing_of_the_code_runs_after_the_last_value() -> None:
    code = (
        "import atexit, os, threading, time\natexit.register(os.write, 1, b'late')\n"
        "def flood():\n    while True:\n        time.sleep(0.001); os.write(1, b'x' * 100)\n"
        "threading.Thread(target=flood, daemon=True).start()"
    )
    assert (await tried(code, "1")).values == (1,)


async def test_the_request_asks_for_the_python_of_the_sandbox_and_carries_labels_and_limits() -> None:
    sandbox = PlainSandbox()
    limits = ExecutionLimits(cpu_s=2.0, memory_bytes=2**28)
    await evaluate(sandbox, code="", expressions=["1"], limits=limits, labels={"problem": "p1"})
    (request,) = sandbox.requests
    assert request.argv[:4] == ("python3", "-s", "-S", "-c")
    assert request.limits == limits and request.labels == {"problem": "p1"}


class Saying(ExecutingSandbox):
    """A sandbox that answers with given bytes, or with a fault."""

    id = "saying"

    def __init__(self, answer: bytes | SandboxError, ending: Ending = Ending.EXITED) -> None:
        self._answer = answer
        self._ending = ending

    async def healthy(self) -> bool:
        return True

    async def stop(self) -> None:
        return

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        if isinstance(self._answer, SandboxError):
            raise self._answer
        nonce = request.stdin.split(b'"nonce": "')[1][:32]
        code = 0 if self._ending is Ending.EXITED else None
        out = self._answer.replace(b"NONCE", nonce)
        return ExecutionResult(ending=self._ending, exit_code=code, stdout=out, stderr=b"", seconds=0.0)


async def test_a_fault_of_the_sandbox_is_no_verdict() -> None:
    with pytest.raises(SandboxError, match="gone"):
        await evaluate(Saying(SandboxError("gone")), code="", expressions=["1"])


END = b'NONCE end [null, ""]\n'


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"NONCE ready null\nNONCE value 1\n",
        b"NONCE ready null\n" + END,
        b"NONCE ready null\nNONCE value 1\nNONCE value 1\n" + END,
        b"NONCE value 1\n" + END,
        b"NONCE ready null\nNONCE ready null\nNONCE value 1\n" + END,
        b"NONCE ready null\nNONCE value 1\n" + END + END,
        b"NONCE ready null\nNONCE value 1\n" + END + b"x",
        b"x\nNONCE ready null\nNONCE value 1\n" + END,
        b"0000 ready null\n0000 value 1\n0000 end [null, \"\"]\n",
        b"NONCE ready null\nNONCE value 1\nNONCE end true\n",
        b"NONCE ready null\nNONCE value 1\nNONCE end [1, 2]\n",
        b"NONCE ready null\nNONCE value [\"os\"]\n" + END,
        b"NONCE ready null\nNONCE value 1\nNONCE failed [\"\", \"\"]\n",
        b"NONCE ready null\nNONCE value 1\nNONCE failed [\"late\", \"\"]\n",
        b"NONCE ready null\nNONCE raised 7\n" + END,
    ],
)  # fmt: skip
async def test_what_our_program_does_not_write_never_passes(answer: bytes) -> None:
    found = await evaluate(Saying(answer), code="", expressions=["1"])
    assert not found.ok and found.error


@pytest.mark.parametrize("ending", [Ending.TIME, Ending.KILLED, Ending.OUTPUT])
async def test_a_whole_answer_of_a_process_that_did_not_end_by_itself_fails(ending: Ending) -> None:
    whole = b"NONCE ready null\nNONCE value 1\n" + END
    assert (await evaluate(Saying(whole), code="", expressions=["1"])).ok
    assert not (await evaluate(Saying(whole, ending), code="", expressions=["1"])).ok


async def test_a_forged_error_is_short_and_can_be_written_anywhere() -> None:
    said = json.dumps(["E\ud800\x1b[2J\x00: " + "x" * 100_000, ""])
    found = await evaluate(Saying(f"NONCE failed {said}\n".encode()), code="", expressions=["1"])
    assert found.error.startswith("E??[2J?: xxx") and len(found.error) < 2000


words = ["NONCE", " ready null", " value 1", " end ", '[null, ""]', " failed ", "[[1]]", "\n", "{}", "1"]
pieces = st.sampled_from(words)


@settings(max_examples=60, deadline=None)
@given(st.lists(pieces, max_size=12).map("".join).map(str.encode) | st.binary(max_size=40), st.sampled_from(Ending))
def test_any_output_is_read_without_a_crash(answer: bytes, ending: Ending) -> None:
    found = asyncio.run(evaluate(Saying(answer, ending), code="", expressions=["1", "2"]))
    assert not found.ok or found.values == (1, 1)
