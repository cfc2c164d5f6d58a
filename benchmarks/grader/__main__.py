"""How long can an answer make a grader work, and how often is an honest form refused, or a wrong one paid?

    python -m benchmarks.grader [--draws 10000] [--repeats 5] [--list]

Prints, per profile and part of the corpora: the honest forms paid at once, the hacks paid, the false-accept rate with
its 95 % interval, and how many of the paid hacks are paid under other truths too (`widened_truths`); `--list` names the
rows that are judged wrongly. Then, per profile: the slowest hostile answer of the tests' table and the slowest row of
the corpora (processor time, the least of the repeats), the mean over the honest answers of the tests' table, the
verdicts on the tests' tables; and the share paid of

- random: invented numbers, percents, amounts and lists, against random questions of the embedded data;
- another question's: the truth of another question of the same type, which a policy that reads a wrong cell submits;
- the same, moved by up to 1 %: near misses of the truth, which only a tolerance accepts.
"""

from __future__ import annotations

import argparse
import csv
import io
import random
import runpy
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path

from benchmarks.grader.corpora import PARTS, Kind, Row, measure, read_corpora, widened_truths
from finqa_cli.grading import PROFILES, grade

MEASURED = tuple(profile for profile in PROFILES if profile != "strict")

TABLES = Path(__file__).parents[2] / "tests/unit/grading/grading_tables.py"
ASKED = (
    "What was the ratio of total long-term debt, including the current portion, to total shareholders' equity at the "
    "end of fiscal year 2020?"
)
"""A question that hostile answers are graded with: each of their words is compared with its words."""
QUESTIONS = "benchmark_questions/finqa.csv"
Draw = Callable[[random.Random], tuple[str, str]]


def embedded_truths() -> dict[str, list[str]]:
    """Truths of the embedded data by type of question."""
    archive = io.BytesIO(resources.files("finqa_cli.data.generated").joinpath("embedded.zip").read_bytes())
    with zipfile.ZipFile(archive) as files:
        rows = csv.DictReader(io.StringIO(files.read(QUESTIONS).decode("utf-8")))
        truths = defaultdict(list)
        for row in rows:
            truths[row["question_type"]].append(row["answer"])
        return dict(truths)


def draws(truths: dict[str, list[str]]) -> dict[str, Draw]:
    """Ways to draw a wrong answer and the truth that it is held against."""
    every = [truth for group in truths.values() for truth in group]
    numbers = [truth for truth in every if truth.removeprefix("-").replace(".", "").isdigit() and float(truth)]

    def invented(rng: random.Random) -> tuple[str, str]:
        number = rng.choice([-1, 1]) * 10 ** rng.uniform(-3, 6)
        written = (
            f"{number:.2f}",
            f"{number:,.0f}",
            f"{number:.4g}%",
            f"({abs(number):.1f})",
            f"${number:.3f} million",
        )
        return ", ".join(rng.choices(written, k=rng.choice([1, 1, 1, 2]))), rng.choice(every)

    def anothers(rng: random.Random) -> tuple[str, str]:
        answer, truth = rng.sample(truths[rng.choice(sorted(truths))], 2)
        return (answer, truth) if answer != truth else anothers(rng)

    def moved(rng: random.Random) -> tuple[str, str]:
        truth = rng.choice(numbers)
        answer = f"{float(truth) * rng.uniform(0.99, 1.01):.{len(truth.partition('.')[2])}f}"
        return (answer, truth) if answer != truth else moved(rng)

    return {"random": invented, "another question's": anothers, "moved by up to 1 %": moved}


def seconds(answer: object, truth: str, profile: str, repeats: int, question: str = "") -> float:
    """The least processor time of one verdict."""
    least = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        grade(answer, truth, profile, question)
        least = min(least, time.process_time() - began)
    return least


def accepted(pairs: Iterable[tuple[object, str]], profile: str) -> int:
    """How many pairs of answer and truth are paid."""
    return sum(grade(answer, truth, profile).reward > 0 for answer, truth in pairs)


def report_part(part: str, rows: Mapping[Kind, Sequence[Row]], profile: str, repeats: int, *, lists: bool) -> None:
    """Prints what a profile makes of one part of the corpora."""
    found = measure(rows, profile)
    honest, hacks = len(rows["honest"]), len(rows["hacks"])
    rate, asked = found.false_accepts, len(found.asked)
    again = f", {asked} more are asked again" if asked else ""
    print(
        f"{profile}, {part}: {honest - len(found.refused)} of {honest} honest forms paid at once "
        f"({100 * found.honest.mean:.1f} %, 95 %: {100 * found.honest.low:.1f} to {100 * found.honest.high:.1f})"
        f"{again}; {len(found.paid)} of {hacks} hacks paid "
        f"({100 * rate.mean:.2f} %, 95 %: {100 * rate.low:.2f} to {100 * rate.high:.2f}), "
        f"{sum(bool(widened_truths(row, rows['hacks'], profile)) for row in found.paid)} of them under other truths too"
    )
    every = [*rows["honest"], *rows["hacks"]]
    worst, slowest = max((seconds(row.answer, row.truth, profile, repeats, row.question), row.id) for row in every)
    print(f"{profile}, {part}: worst {1000 * worst:.2f} ms ({slowest})")
    if lists:
        for name, wrong in (("refused", found.refused), ("paid", found.paid)):
            for row in wrong:
                print(f"  {name} {row.id} ({row.form}): {str(row.answer)[:100]!r} for {row.truth!r}")


def report(profile: str, repeats: int) -> None:
    """Prints times and verdicts on the tests' tables."""
    tables = runpy.run_path(str(TABLES))
    honest, hacks = tables["HONEST"], tables["HACKS"]
    if profile == "strict-3":  # forms with one decision, which only version 1 takes for hacks
        hacks = [row for row in hacks if row not in tables["TAKEN_BY_STRICT_3"]]
    worst, name = max(
        (seconds(attack, truth, profile, repeats, question), attack[:20])
        for attack in tables["ATTACKS"]
        for truth in ("6.118", tables["BOTH"], tables["KEYED"], attack)
        for question in ("", ASKED)
    )
    mean = sum(seconds(answer, truth, profile, repeats) for answer, truth in honest) / len(honest)
    print(f"{profile}: worst {1000 * worst:.2f} ms ({name!r}...), honest answers {1e6 * mean:.0f} us")
    print(f"{profile}: {accepted(hacks, profile)} of {len(hacks)} hacks paid")
    print(f"{profile}: {accepted(honest, profile)} of {len(honest)} honest answers paid")


def main() -> None:
    """Prints all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--list", action="store_true", help="Rows of the corpora that are judged wrongly")
    options = parser.parse_args()
    corpora = read_corpora()
    for part in PARTS:
        if part not in corpora:
            print(f"{part}: not here, left out")
    for part, rows in corpora.items():
        for profile in MEASURED:
            report_part(part, rows, profile, options.repeats, lists=options.list)
    ways = draws(embedded_truths())
    for profile in MEASURED:
        report(profile, options.repeats)
        for name, draw in ways.items():
            rng = random.Random(0)
            share = accepted((draw(rng) for _ in range(options.draws)), profile) / options.draws
            print(f"{profile}: {100 * share:.2f} % of {options.draws} answers paid: {name}")


if __name__ == "__main__":
    main()
