"""A problem of the `mbpp` environment, in the form that all files are converted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.types import ExecutionLimits
from finqa_plugins.environments.code.assert_parts import AssertOutcome, SplitTest, names_in

MAX_TESTS = 200


class WholeTest(Protocol):
    """A test that needs the whole solution, not only the values of expressions."""

    @property
    def source(self) -> str:
        """The test as the author of a solution may read it."""

    @property
    def function(self) -> str:
        """Name of the function that it calls; empty for a program."""

    async def carry_out(
        self, code: str, sandbox: ExecutingSandbox, *, limits: ExecutionLimits, labels: Mapping[str, str]
    ) -> AssertOutcome:
        """Carry out the test for a solution.

        Raises:
            SandboxError: The sandbox failed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeProblem:
    """One problem; it has `tests` or `whole`.

    Attributes:
        id: Its id in the data, or the name of an embedded function.
        text: What is asked.
        tests: Asserts, which are judged outside of the solution's process.
        whole: Tests that need the whole solution.
        reference: A solution; empty when the data has none.
        setup: Code that is executed after the solution.
        helpers: Imports and functions that the question gives, executed before the solution.
        public: Largest number of tests, counted from the first, that the author may see.
        careless: What a careless programmer writes instead of the reference; empty if there is none.
    """

    id: str
    text: str
    tests: tuple[SplitTest, ...] = ()
    whole: tuple[WholeTest, ...] = ()
    reference: str
    setup: str = ""
    helpers: str = ""
    public: int = MAX_TESTS
    careless: str = ""

    @property
    def asked_names(self) -> frozenset[str]:
        """Names that the tests ask a solution for; empty for programs that read and print."""
        asked = {name for test in self.tests for expression in test.asked for name in names_in(expression)}
        return frozenset(asked | {test.function for test in self.whole if test.function})

    def opening(self, shown: int) -> str:
        """Return the question with its first `shown` tests."""
        asked = f"{self.text}\n"
        if tests := self.tests[: min(shown, self.public)]:
            listed = "\n".join(test.source for test in tests)
            asked += f"\nYour code must pass these tests:\n```python\n{listed}\n```\n"
        return f"{asked}\nReply with the complete code in one ```python block."
