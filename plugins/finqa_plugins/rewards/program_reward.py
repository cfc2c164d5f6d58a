"""What a written program is worth."""

from __future__ import annotations

from finqa_cli.contracts import RewardRequest
from finqa_cli.grading.programs import Program, ProgramError, execute, overlap, parse
from finqa_plugins.rewards.reward_comparison import compare


def program_share(written: str, request: RewardRequest) -> float:
    """From 0 to 1: 1 when the program's result is the truth, else the share of the right program's steps that it has.

    Steps beyond those of the right program lower that share, so that writing every step one can think of does not
    pay. A text that is no program is worth 0; without a right program only the result counts.
    """
    try:
        program = parse(written)
    except ProgramError:
        return 0.0
    return 1.0 if _yields(program, request) else _share_of_steps(program, request.program)


def _yields(program: Program, request: RewardRequest) -> bool:
    try:
        result = execute(program, request.table)
    except ProgramError:
        return False
    return compare(str(result), request.truth).exact


def _share_of_steps(program: Program, right: str) -> float:
    try:
        expected = parse(right)
    except ProgramError:  # the data has none, or one that its own language does not know: no step can be compared
        return 0.0
    steps = len(expected.steps)
    return overlap(program, expected) * steps / max(steps, len(program.steps))
