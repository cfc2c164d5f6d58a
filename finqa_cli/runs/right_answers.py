"""Right answers in the records of a run, next to the policy's answers. They are for evaluation, never for a policy."""

from __future__ import annotations

from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.grading.items import read_numbers
from finqa_cli.statistics.outcomes import answer_of
from finqa_cli.types import Trajectory


def compare_with_truth(environment: Environment, trajectory: Trajectory) -> dict[str, Any]:
    """Return the fields about the right answer for the record of an attempt.

    Returns:
        `truth`: the right answer. `values`: the numbers in `answer` and in `truth` (`12.5%` is `0.125`), empty if there
        are none. `right_tables`: the tables with the right answer, if they are known. The mapping is empty if the
        environment does not know the right answer.

    Raises:
        DataError: The data of the environment is damaged.
    """
    if trajectory.record is not None:
        return dict(trajectory.record.facts)
    if not (truth := environment.right_answer(trajectory.task)):
        return {}
    tables = list(environment.right_tables(trajectory.task))
    return {
        "truth": truth,
        "values": {"answer": read_numbers(answer_of(trajectory)), "truth": read_numbers(truth)},
        **({"right_tables": tables} if tables else {}),
    }
