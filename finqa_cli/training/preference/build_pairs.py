"""Building of preference pairs from the attempts of earlier runs, and statistics of the pairs."""

from __future__ import annotations

import json
import math
import random
import shlex
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finqa_cli.algorithms.pairing import Candidate, Rule, choose_pairs
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.evaluation.candidates import said
from finqa_cli.rollout.seeds import derive
from finqa_cli.runs.durable_files import new_folder, sha256_of, storage, write_json
from finqa_cli.runs.jsonl import SCHEMA_VERSION
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import write_manifest
from finqa_cli.runs.trajectory_records import PAIRS
from finqa_cli.training.preference.pair_sources import Judged, Source, check_alike, open_source, read_attempts

BINS = 10
"""Bins of a histogram."""

ROBUST = 10_000
"""Pairs that DPO needs according to module 08 of the RL-LLM FinQA pipeline; with fewer, the report notes it."""

_BAR = 40
"""Characters of the longest bar of the histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRules:
    """Rules by which pairs are made; see `finqa_cli.algorithms.pairing`.

    Attributes:
        rule: Rule that chooses the candidates of a pair.
        margin: Smallest difference of rewards.
        most: Most pairs per question.
        held_out_share: Share of the companies whose pairs are held out for evaluation.
        questions: Number of questions to use; 0: all.
        seed: Seed of ties, choices and held-out companies.
    """

    rule: Rule = "best-worst"
    margin: float = 0.0
    most: int = 4
    held_out_share: float = 0.1
    questions: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefsResult:
    """Folder of the pairs, and the content of report.json."""

    folder: Path
    report: dict[str, Any]


@dataclass(slots=True)
class Tally:
    """Counts of questions, attempts and pairs that were left out.

    Attributes:
        questions: Questions with a graded attempt.
        attempts: Graded attempts.
        paired: Questions with at least one pair.
        single: Questions with one attempt.
        no_spread: Questions whose rewards are too close for a pair.
        right_missing: Questions without a right attempt. Their pairs can only teach the format.
        equal_texts: Pairs left out because both texts are the same.
    """

    questions: int = 0
    attempts: int = 0
    paired: int = 0
    single: int = 0
    no_spread: int = 0
    right_missing: int = 0
    equal_texts: int = 0


@dataclass(frozen=True, slots=True)
class _Question:
    prompt: str
    attempts: list[Judged] = field(default_factory=list)


def build_pairs(paths: Sequence[Path], rules: PairRules, out: Path, reporter: Reporter) -> PrefsResult:
    """Write pairs.jsonl, report.json, stats.txt, settings.json and manifest.json into a new folder.

    settings.json is copied from the first run that has one, so that later steps know the environment.

    Args:
        paths: Run folders, or files of attempts.
        rules: Rules by which pairs are made.
        out: The new folder.
        reporter: Shows notes about the pairs.

    Raises:
        UsageError: A run is given twice, or the margin is out of range.
        ConfigError: The folder exists and is not empty.
        DataError: A source is missing, malformed or of another file version; the runs cannot be compared; or there is
            no pair.
    """
    _check(paths, rules, out)
    sources = [open_source(path) for path in paths]
    check_alike(sources)
    for source in sources:
        if not source.finished:
            reporter.line(f"{source.path} is not finished; pairs are made from its current attempts.")
    questions = _questions(sources)
    names = sorted(questions)[: rules.questions or None]
    tally = Tally()
    pairs = [pair for name in names for pair in _pairs(name, questions[name].attempts, rules, tally)]
    if not pairs:
        raise _nothing(tally, rules)
    held_out = _held_out(sorted({pair["task"]["cluster"] for pair in pairs}), rules)
    records = [{**pair, "held_out": pair["task"]["cluster"] in held_out} for pair in pairs]
    data = next((source.data for source in sources if source.data), {})
    report = {"data": dict(data), "rules": asdict(rules), **asdict(tally), **pair_statistics(records)}
    _tell(report, reporter)
    _write(out, records, report, sources, rules)
    return PrefsResult(folder=out, report=report)


def _check(paths: Sequence[Path], rules: PairRules, out: Path) -> None:
    if len({path.resolve() for path in paths}) < len(paths):
        once = shlex.join(map(str, dict.fromkeys(path.resolve() for path in paths)))
        raise UsageError("A run is given twice.", remedy=f"finqa prefs {once}")
    if not (rules.margin >= 0 and math.isfinite(rules.margin)):
        raise UsageError(
            f"The margin {rules.margin:g} would prefer attempts with lower rewards; it must be 0 or more.",
            remedy="--margin 0",
        )
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder.", remedy="choose another --run-dir")


def _questions(sources: Sequence[Source]) -> dict[str, _Question]:
    questions: dict[str, _Question] = {}
    for source in sources:
        for judged in read_attempts(source):
            record, name = judged.record, judged.outcome.question
            prompt = json.dumps([record["messages"], record["tools"]], sort_keys=True)
            question = questions.setdefault(name, _Question(prompt))
            if question.prompt != prompt:
                raise DataError(
                    f"The attempts at {name!r} do not have the same prompt "
                    f"({question.attempts[0].run}, {judged.run}): prompt or "
                    "tools differ, so they cannot be compared.",
                    remedy="give runs of one environment with the same settings",
                )
            question.attempts.append(judged)
    return questions


def _pairs(name: str, attempts: Sequence[Judged], rules: PairRules, tally: Tally) -> list[dict[str, Any]]:
    candidates = [
        Candidate(
            reward=attempt.outcome.reward or 0.0,
            right=bool(attempt.outcome.correct),
            said=json.dumps([[turn["text"], turn["tool_call"]] for turn in attempt.record["turns"]], sort_keys=True),
        )
        for attempt in attempts
    ]
    seed = derive(rules.seed, "pairs", name)
    found = choose_pairs(candidates, rule=rules.rule, margin=rules.margin, most=rules.most, seed=seed)
    tally.questions += 1
    tally.attempts += len(attempts)
    tally.paired += bool(found.pairs)
    tally.single += len(attempts) == 1
    tally.no_spread += len(attempts) > 1 and not found.pairs and not found.equal_texts
    tally.right_missing += not any(candidate.right for candidate in candidates)
    tally.equal_texts += found.equal_texts
    return [
        _pair_record(f"{name}#{number}", attempts[first], attempts[second])
        for number, (first, second) in enumerate(found.pairs)
    ]


def _pair_record(name: str, chosen: Judged, rejected: Judged) -> dict[str, Any]:
    record = chosen.record
    assert chosen.outcome.reward is not None and rejected.outcome.reward is not None
    return {
        "schema_version": SCHEMA_VERSION,
        "id": name,
        "task": record["task"],
        "margin": chosen.outcome.reward - rejected.outcome.reward,
        "prompt": {name: record[name] for name in ("messages", "tools", "several_calls") if name in record},
        "chosen": _side(chosen),
        "rejected": _side(rejected),
    }


def _side(judged: Judged) -> dict[str, Any]:
    record, outcome = judged.record, judged.outcome
    return {
        "attempt": record["id"],
        "run": str(judged.run),
        "text": said(record),
        "reward": outcome.reward,
        "components": record["components"],
        "correct": outcome.correct,
        "well_formed": outcome.well_formed,
        "turns": record["turns"],
    }


def _held_out(companies: list[str], rules: PairRules) -> set[str]:
    """Draw the companies that are held out with all their questions; at least one company stays for training."""
    if not rules.held_out_share or len(companies) < 2:
        return set()
    random.Random(derive(rules.seed, "held-out-pairs")).shuffle(companies)
    return set(companies[: min(len(companies) - 1, math.ceil(rules.held_out_share * len(companies)))])


def _nothing(tally: Tally, rules: PairRules) -> DataError:
    if not tally.attempts:
        return DataError("There are no graded attempts for pairs.", remedy="finqa sample TARGET")
    reasons = {
        "have one attempt only": tally.single,
        f"have rewards that do not differ by {rules.margin:g}"
        if rules.margin
        else "have equal rewards": tally.no_spread,
        "have no right attempt": tally.right_missing,
    }
    counts = ", ".join(f"{number} {reason}" for reason, number in reasons.items() if number)
    same = f"; {tally.equal_texts} pairs had identical texts" if tally.equal_texts else ""
    more = "finqa sample TARGET --num-candidates 16 --temperature 1.0"
    only_single = tally.single == tally.questions  # no margin and no rule makes a pair of one attempt
    return DataError(
        f"None of {tally.questions} questions gives a pair by the rule {rules.rule!r}: {counts}{same}.",
        remedy=more if only_single else f"{more}, a smaller --margin, or --rule all",
    )


def _tell(report: Mapping[str, Any], reporter: Reporter) -> None:
    if report["right_missing"]:
        wrong = 1 - report["chosen"]["right"]
        teach = f"; {100 * wrong:.0f} % of the pairs prefer a wrong attempt: --rule right-wrong excludes them"
        missing = f"{report['right_missing']} of {report['questions']} questions have no right attempt"
        reporter.line(missing + (teach if wrong else "") + ".")
    if not report["held_out"]:
        reporter.line("No pair is held out, so the preference accuracy on new questions cannot be measured.")


def _write(
    out: Path,
    records: Sequence[Mapping[str, Any]],
    report: Mapping[str, Any],
    sources: Sequence[Source],
    rules: PairRules,
) -> None:
    digests: dict[str, dict[str, str]] = defaultdict(dict)
    for source in sources:
        for file in source.files:
            digests[str(source.path)][file.name] = sha256_of(file)
    with new_folder(out) as folder:
        with storage(folder):
            with (folder / PAIRS).open("w", encoding="utf-8") as lines:
                lines.writelines(json.dumps(record, ensure_ascii=True, allow_nan=False) + "\n" for record in records)
            (folder / "stats.txt").write_text(as_text(report), encoding="utf-8")
        write_json(folder / "report.json", report)
        if settings := next((source.settings for source in sources if source.settings), None):
            write_json(folder / "settings.json", settings)
        outputs = [path for path in sorted(folder.iterdir()) if path.is_file()]
        write_manifest(folder, "prefs", parameters=asdict(rules), inputs=digests, outputs=outputs)


def pair_statistics(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return counts, margins with their histogram, and shares of both sides, for at least one pair.

    Shares are over pairs; `well_formed` is None if the environment requests no format.
    """
    margins = [record["margin"] for record in records]
    held_out = sum(record["held_out"] for record in records)
    return {
        "pairs": len(records),
        "train": len(records) - held_out,
        "held_out": held_out,
        "companies": len({record["task"]["cluster"] for record in records}),
        "held_out_companies": len({record["task"]["cluster"] for record in records if record["held_out"]}),
        "fewer_than_robust": len(records) < ROBUST,
        "margin": {
            "smallest": min(margins),
            "mean": statistics.fmean(margins),
            "median": statistics.median(margins),
            "largest": max(margins),
            "histogram": histogram(margins),
        },
        "chosen": _side_shares([record["chosen"] for record in records]),
        "rejected": _side_shares([record["rejected"] for record in records]),
        "token_ids": all(_has_ids(record[side]) for record in records for side in ("chosen", "rejected")),
    }


def histogram(values: Sequence[float], bins: int = BINS) -> dict[str, list[float]]:
    """Return `edges` [bins + 1], from the smallest value to the largest, and `counts` [bins]; one bin if all are equal.

    A value on an inner edge belongs to the bin on its right.
    """
    low, high = min(values), max(values)
    if not high > low:
        return {"edges": [low, high], "counts": [len(values)]}
    width = (high - low) / bins
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    return {"edges": [low + width * edge for edge in range(bins)] + [high], "counts": list(counts)}


def as_text(report: Mapping[str, Any]) -> str:
    """Return the report as text."""
    margin = report["margin"]
    edges, counts = margin["histogram"]["edges"], margin["histogram"]["counts"]
    most = max(counts)
    bars = [
        f"{low:8.3f} to {high:8.3f}  {count:6d}  {'#' * -(-_BAR * count // most)}"
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]
    small = f"; fewer than the {ROBUST} that DPO needs for robust training" if report["fewer_than_robust"] else ""
    return "\n".join(
        [
            f"{report['pairs']} pairs{small}",
            f"  to train on {report['train']}, held out {report['held_out']} "
            f"({report['held_out_companies']} of {report['companies']} clusters)",
            f"{report['questions']} questions, {report['attempts']} attempts: {report['paired']} questions with pairs, "
            f"{report['single']} with one attempt, {report['no_spread']} without a difference, "
            f"{report['right_missing']} without a right attempt",
            f"left out because both texts were identical: {report['equal_texts']}",
            *(f"{side}: {_share(report[side])}" for side in ("chosen", "rejected")),
            "",
            f"margin: mean {margin['mean']:.3f}, median {margin['median']:.3f}, "
            f"{margin['smallest']:.3f} to {margin['largest']:.3f}",
            *bars,
            "",
        ]
    )


def _side_shares(sides: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    formed = [side["well_formed"] for side in sides if side["well_formed"] is not None]
    return {
        "right": sum(map(bool, (side["correct"] for side in sides))) / len(sides),
        "well_formed": sum(formed) / len(formed) if formed else None,
        "reward_mean": statistics.fmean(side["reward"] for side in sides),
    }


def _share(side: Mapping[str, Any]) -> str:
    formed = side["well_formed"]
    form = "" if formed is None else f", {100 * formed:.1f} % well-formed"
    return f"{100 * side['right']:.1f} % right{form}, mean reward {side['reward_mean']:.3f}"


def _has_ids(side: Mapping[str, Any]) -> bool:
    return all(turn.get("completion_token_ids") for turn in side["turns"])
