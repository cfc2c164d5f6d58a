"""metrics.json, breakdown.csv and samples of an evaluation, from records as runs write them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.statistics import (
    MALFORMED,
    REASONS,
    Outcome,
    breakdown_rows,
    choose_samples,
    evaluation_metrics,
    failure_counts,
    read_outcome,
)
from finqa_cli.types import Observation, Rewards, Status, Task, ToolCall, ToolSpec, Trajectory, Turn

TOOL = ToolSpec(name="submit_answer", description="", parameters={})


def read(
    question: int,
    turns: tuple[Turn, ...],
    components: dict[str, float] | None,
    *,
    member: int = 0,
    status: Status = Status.COMPLETED,
    tools: tuple[ToolSpec, ...] = (),
) -> Outcome:
    """The outcome of an episode that is written and read as JSON, as in a run folder."""
    rewards = None if components is None else Rewards(total=components["correct"], components=components)
    episode = Trajectory(
        id=f"eval/q{question}/{member}",
        task=Task(id=f"q{question}", prompt="?", split="dev", cluster=f"c{question % 3}", kind="sum"),
        member=member,
        seed=0,
        status=status,
        turns=turns,
        tools=tools,
        rewards=rewards,
        error="" if rewards else "the sandbox died",
    )
    record: dict[str, Any] = json.loads(json.dumps(trajectory_record(episode)))
    return read_outcome(record)


def text(question: int, reply: str, member: int = 0, **components: float) -> Outcome:
    parts = {"correct": 0.0, "execution": 0.0, "program": 0.0, "answer": 0.0, "format": 0.0, **components}
    return read(question, (Turn(text=reply, completion_ids=(1, 2, 3)),), parts, member=member)


def tool(question: int, *turns: Turn, status: Status = Status.COMPLETED, **components: float) -> Outcome:
    return read(question, turns, {"correct": 0.0, **components}, status=status, tools=(TOOL,))


def submit(answer: str) -> Turn:
    call = ToolCall(name="submit_answer", arguments={"answer": answer})
    return Turn(tool_call=call, observation=Observation(text="ok", done=True))


RIGHT_PARTS = {"correct": 1.0, "execution": 1.0, "program": 1.0, "answer": 1.0, "format": 1.0}
PROGRAM = '{"answer": 2, "program": "add(1, 1)"}'


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (text(0, PROGRAM, **RIGHT_PARTS), ""),
        (text(0, "It is 2."), "malformed"),
        (text(0, ""), "malformed"),
        (text(0, '{"answer": ""}', format=1.0), "no_answer"),
        (text(0, '{"answer": 2, "program": "add(1"}', format=1.0, answer=1.0), "no_program"),
        (text(0, PROGRAM, format=1.0, answer=1.0), "wrong_program"),
        (text(0, PROGRAM, format=1.0, numerical=0.3), "close"),
        (text(0, PROGRAM, format=1.0), "wrong_answer"),
        (tool(0, submit("7")), "wrong_answer"),
        (tool(0, submit(" ")), "no_answer"),
        (tool(0, Turn(text="hm", parse_error="no call"), status=Status.PARSE_ERROR), "parse_error"),
        (tool(0, status=Status.MAX_TURNS), "max_turns"),
        (read(0, (), None, status=Status.SANDBOX_ERROR), "sandbox_error"),
    ],
)
def test_every_miss_has_a_reason_that_a_person_can_read(outcome: Outcome, reason: str) -> None:
    assert outcome.reason == reason and (not reason or REASONS[reason])
    assert (outcome.correct is None) == (reason == "sandbox_error")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
RECORD = trajectory_record(
    Trajectory(
        id="e",
        task=Task(id="q", prompt="?", split="dev", cluster="c"),
        member=0,
        seed=0,
        status=Status.COMPLETED,
        turns=(submit("7"),),
        rewards=Rewards(total=1.0, components={"correct": 1.0}),
    )
)


@given(st.sampled_from([*RECORD, "task", "turns"]), st.sampled_from(["", *RECORD["task"], *RECORD["turns"][0]]), VALUES)
def test_a_damaged_record_is_refused_or_read_and_never_anything_else(field: str, inner: str, value: Any) -> None:
    record = json.loads(json.dumps(RECORD))
    target = record["task"] if field == "task" else record["turns"][0] if field == "turns" else None
    if target is not None and inner in target:
        target[inner] = value
    else:
        record[field] = value
    try:
        outcome = read_outcome(record)
    except MALFORMED:
        return
    assert outcome.reward is None or math.isfinite(outcome.reward)
    assert json.dumps(breakdown_rows([outcome]), allow_nan=False)


def test_the_metrics_of_single_turn_replies_by_hand() -> None:
    outcomes = [
        text(0, PROGRAM, **RIGHT_PARTS),
        text(1, PROGRAM, format=1.0, answer=1.0),
        text(2, "It is 2."),
        text(3, PROGRAM, format=1.0, correct=1.0, execution=1.0),
    ]
    metrics = evaluation_metrics(outcomes)
    values = {name: value["value"] for name, value in metrics.items() if isinstance(value, dict) and "value" in value}
    assert values == {
        "accuracy": 0.5,
        "exact_match": 0.5,
        "numeric_correctness": 0.5,
        "program_validity": 0.75,
        "program_accuracy": 0.25,
        "format_compliance": 0.75,
    }
    assert metrics["pass_at_k"] == {"1": metrics["accuracy"]} and metrics["questions"] == 4
    assert metrics["failure_reasons"] == {"malformed": 1, "wrong_program": 1}
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_what_an_environment_does_not_judge_is_null() -> None:
    bad = Turn(text="hm", parse_error="no call")
    metrics = evaluation_metrics([tool(0, bad, submit("7"), correct=1.0), tool(1, submit("8"))])
    assert metrics["exact_match"] is metrics["program_validity"] is metrics["program_accuracy"] is None
    assert metrics["numeric_correctness"]["value"] == metrics["format_compliance"]["value"] == 0.5
    stranger = read(0, (Turn(text="7"),), {"correct": 0.0})
    assert stranger.reason == "wrong_answer" and evaluation_metrics([stranger])["format_compliance"] is None


def test_parts_of_a_configured_reward_do_not_stand_for_the_environments() -> None:
    mixed = text(0, PROGRAM, format=-0.2, program=0.3, environment_format=1.0, environment_program=0.0)
    metrics = evaluation_metrics([mixed])
    assert (metrics["format_compliance"]["value"], metrics["program_accuracy"]["value"]) == (1.0, 0.0)
    tried = text(0, PROGRAM, answer=0.2, environment_answer=0.0, format=1.0)
    assert tried.reason == "wrong_answer" and tried.part("answer") == 0.0
    graded = tool(0, submit("7"), exact=1.0, numerical=0.0)
    assert evaluation_metrics([graded])["exact_match"]["value"] == 1.0
    near = text(0, PROGRAM, execution=0.9, program=0.9, answer=0.9)
    metrics = evaluation_metrics([near])
    assert {metrics[name]["value"] for name in ("exact_match", "program_accuracy", "numeric_correctness")} == {0.0}


def test_what_was_submitted_last_counts_and_the_graders_words_stand_before_the_limits() -> None:
    twice = tool(0, submit("6"), submit("7"))
    assert twice.answer == "7" and twice.explanation == ""
    record = {**RECORD, "explanation": "another number", "error": "no response within 5 s"}
    assert read_outcome(record).explanation == "another number"
    assert read_outcome({**record, "explanation": ""}).explanation == "no response within 5 s"


def test_several_attempts_give_pass_at_k_and_pass_hat_k() -> None:
    rights = {0: (1, 1, 1, 1), 1: (1, 0, 0, 0), 2: (0, 0, 0, 0)}
    outcomes = [
        text(question, PROGRAM, member, **(RIGHT_PARTS if right else {}))
        for question, members in rights.items()
        for member, right in enumerate(members)
    ]
    metrics = evaluation_metrics(outcomes)
    at = {k: share["value"] for k, share in metrics["pass_at_k"].items()}
    hat = {k: share["value"] for k, share in metrics["pass_hat_k"].items()}
    assert at == {"1": pytest.approx(5 / 12), "2": pytest.approx((1 + 0.5) / 3), "4": pytest.approx(2 / 3)}
    assert hat == {"1": pytest.approx(5 / 12), "2": pytest.approx(1 / 3), "4": pytest.approx(1 / 3)}
    assert metrics["attempts"] == {"fewest": 4, "most": 4}


def test_faults_are_in_no_metric_and_nothing_graded_is_all_null() -> None:
    fault = read(5, (), None, status=Status.ENGINE_ERROR)
    right = text(0, PROGRAM, **RIGHT_PARTS)
    assert evaluation_metrics([right, fault])["accuracy"]["value"] == 1.0
    mixed = evaluation_metrics([right, text(1, PROGRAM), text(2, "hm"), fault])
    assert (mixed["faults"], mixed["questions"]) == (1, 3) and mixed["accuracy"]["value"] == pytest.approx(1 / 3)
    nothing = evaluation_metrics([fault])
    assert nothing["accuracy"] is None and nothing["pass_at_k"] == {} and nothing["faults"] == 1
    assert failure_counts([fault, right]) == {"engine_error": 1}


def test_the_breakdown_has_one_row_an_attempt_and_the_same_columns_in_each() -> None:
    outcomes = [text(0, PROGRAM, **RIGHT_PARTS), read(1, (), None, status=Status.ENGINE_ERROR)]
    rows = breakdown_rows(outcomes)
    assert rows[0].keys() == rows[1].keys()
    assert (rows[0]["exact_match"], rows[0]["part_answer"], rows[0]["sampled_tokens"]) == (1, 1.0, 3)
    assert rows[1]["failure_reason"] == "engine_error" and rows[1]["accuracy"] is None
    assert rows[1]["explanation"] == "the sandbox died"


def test_samples_show_every_kind_of_ending_and_do_not_depend_on_order() -> None:
    outcomes = [text(n, PROGRAM, **(RIGHT_PARTS if n % 2 else {"format": 1.0})) for n in range(20)] + [text(30, "hm")]
    chosen = choose_samples(outcomes, per_reason=2)
    assert [outcome.reason for outcome in chosen] == ["", "", "malformed", "wrong_answer", "wrong_answer"]
    assert chosen == choose_samples(list(reversed(outcomes)), per_reason=2)
