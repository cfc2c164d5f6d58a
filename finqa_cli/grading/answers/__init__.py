"""What a policy answered, read into its parts, and examples of it. Pure, standard library only."""

from finqa_cli.grading.answers.answer_cases import Case
from finqa_cli.grading.answers.json_reply import FIELDS, Reply, parse_reply

__all__ = ["FIELDS", "Case", "Reply", "parse_reply"]
