"""What graders make of answers of real models that people have labelled: FinanceBench (arXiv 2311.11944).

    python -m benchmarks.grader.financebench FOLDER

FOLDER has its `results/*.jsonl`, rows with `question`, `gold_answer`, `model_answer` and `label`. Prints per profile,
kind of truth (one number or another) and label how many answers are paid, asked again and graded 0.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from benchmarks.grader.__main__ import MEASURED
from finqa_cli.grading import grade
from finqa_cli.grading.strict_3.value_verdict import read_task


def main() -> None:
    """Prints the counts."""
    rows = [
        json.loads(line) for path in sorted(Path(sys.argv[1]).glob("*.jsonl")) for line in path.open(encoding="utf-8")
    ]
    for profile in MEASURED:
        counts: Counter[tuple[str, str, str]] = Counter()
        for row in rows:
            if "label" not in row:
                continue
            truth, question = str(row["gold_answer"]), str(row["question"])
            task = read_task(truth, question)
            verdict = grade(row["model_answer"], truth, profile, question)
            made = "paid" if verdict.reward else "graded 0" if verdict.readable else "asked again"
            counts["one number" if task.numbers and len(task.expected) == 1 else "other", row["label"], made] += 1
        for (kind, label, made), count in sorted(counts.items()):
            print(f"{profile}: {kind}, {label}: {count} {made}")


if __name__ == "__main__":
    main()
