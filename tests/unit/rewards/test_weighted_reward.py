from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import RewardRequest
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import Rewards, Task

TASK = Task(id="q", prompt="How much did revenue grow?", split="test", cluster="ACME")
TABLE = (("", "2009", "2008"), ("revenue", "5829", "5735"))
GROWTH = "subtract(5829, 5735), divide(#0, 5735)"


def weighted(solution: object, truth: str, program: str = "", question: str = "", **options: Any) -> Rewards:
    reward = registry().create("reward", "weighted", options)
    text = solution if isinstance(solution, str) else json.dumps(solution)
    request = RewardRequest(task=TASK, solution=text, truth=truth, program=program, table=TABLE)
    rewards: Rewards = reward.score(replace(request, extra_info={"question": question}))
    return rewards


@pytest.mark.parametrize(("profile", "total"), [("strict", 1.0), ("strict-1", 0.0)])
def test_answers_are_read_by_a_grading_profile_with_the_question(profile: str, total: float) -> None:
    question = "What was revenue, in millions of dollars?"
    assert weighted("$1.0 billion", "1000", question=question, format="plain", profile=profile).total == total


def test_a_profile_that_reads_no_values_is_refused() -> None:
    with pytest.raises(ConfigError, match="openenv reads no values"):
        weighted("1", "1", profile="openenv")


def parts(rewards: Rewards) -> dict[str, float]:
    return {name: round(value, 9) for name, value in rewards.components.items() if value}


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        ("1000", "1000", {"exact": 1.0}),
        ("1001", "1000", {"numerical": 0.784}),  # 0.8 * (1 - 0.001 / 0.05)
        ("50.5%", "50%", {"numerical": 0.4}),  # 0.8 * (1 - 0.01 / 0.02)
        ("0.16", "0.16129", {"numerical": 0.67203}),  # 0.8 * (1 - (0.00129 / 0.16129) / 0.05)
        ("1050", "1000", {}),  # at the tolerance the decay has reached 0
        ("", "1000", {}),
        ("1000", "", {}),
        ("2000", "1000", {}),
    ],
)
def test_the_answer(answer: str, truth: str, expected: dict[str, float]) -> None:
    rewards = weighted({"answer": answer}, truth)
    assert parts(rewards) == pytest.approx(expected, abs=1e-5)
    assert rewards.total == pytest.approx(sum(expected.values()), abs=1e-5)


def test_flat_decay_pays_all_within_the_tolerance() -> None:
    assert parts(weighted({"answer": "1050"}, "1000", decay="flat")) == {"numerical": 0.8}
    assert parts(weighted({"answer": "1051"}, "1000", decay="flat")) == {}
    assert parts(weighted({"answer": "1051"}, "1000", decay="flat", tolerances={"numerical": 0.06})) == {
        "numerical": 0.8
    }


@pytest.mark.parametrize(
    ("program", "share"),
    [
        (GROWTH, 1.0),
        ("divide(subtract(5829, 5735), 5735)", 1.0),
        ("subtract(table_max(revenue, none), 5735), divide(#0, 5735)", 0.0),  # no list of single operations
        ("table_max(revenue, none), subtract(#0, 5735), divide(#1, 5735)", 1.0),  # another way to the same result
        ("subtract(5829, 5735)", 0.5),
        ("subtract(5829, 5735), add(5829, 5735), add(#0, #1)", 1 / 3),  # one right step in three
        ("divide(5829, 5735)", 0.0),
        ("subtract(5829, 5735), divide(#0, 0)", 0.5),
        ("table_max(profit, none)", 0.0),
        ("nonsense", 0.0),
        ("", 0.0),
    ],
)
def test_the_program(program: str, share: float) -> None:
    rewards = weighted({"answer": "7", "program": program}, "0.01639", GROWTH)
    assert parts(rewards).get("program", 0.0) == pytest.approx(0.3 * share)


def test_a_program_of_yes_and_no_and_one_without_a_right_program() -> None:
    assert weighted({"answer": "yes", "program": "greater(5829, 5735)"}, "yes").total == pytest.approx(1.3)
    assert weighted({"answer": "7", "program": "subtract(5829, 5735)"}, "0.01639").total == 0.0
    assert weighted({"answer": "7", "program": GROWTH}, "0.01639", "unknown(1, 2)").total == pytest.approx(0.3)


@pytest.mark.parametrize("solution", ["", "1000", '{"answer": 1000', '{"value": 1000}', '{"answer": NaN}', "[1000]"])
def test_a_malformed_reply_earns_the_penalty_only(solution: str) -> None:
    rewards = weighted(solution, "1000")
    assert parts(rewards) == {"format": -0.2} and rewards.total == -0.2
    assert rewards.explanation.startswith("malformed: ")


def test_plain_answers_have_neither_format_nor_program() -> None:
    rewards = weighted(" $1,000 ", "1000", format="plain")
    assert dict(rewards.components) == {"exact": 1.0, "numerical": 0.0} and rewards.total == 1.0
    assert weighted("", "1000", format="plain").total == 0.0
    assert weighted("1000 or 1001", "1000", format="plain").total == 0.0


def test_weights_as_a_table_or_as_text() -> None:
    for weights in ({"exact": 2.0, "format": -1.0}, "exact=2.0, format=-1"):
        assert weighted({"answer": 5}, "5", weights=weights).total == 2.0
        assert weighted("5", "5", weights=weights).total == -1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": {"exakt": 1}}, "weights.exakt"),
        ({"weights": "exact=1,exact=2"}, "each once"),
        ({"weights": {"format": 0.2}}, "give -0.2"),
        ({"weights": {"exact": -1}}, "weights.exact"),
        ({"weights": {"exact": float("inf")}}, "weights.exact"),
        ({"tolerances": {"numerical": 0}}, "tolerances.numerical"),
        ({"decay": "cubic"}, "decay"),
        ({"format": "xml"}, "format"),
        ({"colour": "red"}, "no option 'colour'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        weighted("5", "5", **options)


ANSWERS = st.text(max_size=12) | st.integers() | st.floats() | st.sampled_from(["50%", "(3)", "yes", "1,000", "0"])
PROGRAMS = st.text(max_size=30) | st.sampled_from([GROWTH, "add(1, 2)", "exp(10, 300)", "table_sum(revenue, none)"])


@given(
    st.text(max_size=40)
    | st.fixed_dictionaries({"answer": ANSWERS}, optional={"program": PROGRAMS}).map(lambda fields: json.dumps(fields)),
    st.sampled_from(["", "0", "0.01639", "50%", "yes", "94"]) | st.text(max_size=12),
    st.sampled_from(["", GROWTH, "add(1"]),
    st.sampled_from(["linear", "flat"]),
    st.sampled_from(["json", "plain"]),
)
def test_any_reply_has_a_bounded_reward_that_its_parts_sum_to(
    solution: str, truth: str, program: str, decay: str, written: str
) -> None:
    rewards = weighted(solution, truth, program, decay=decay, format=written)
    assert -0.2 <= rewards.total <= 1.3
    assert rewards.total == pytest.approx(sum(rewards.components.values()))
    assert all(-0.2 <= value <= 1.0 for value in rewards.components.values())
    assert not (rewards.components["exact"] and rewards.components["numerical"])


@given(st.decimals(1, 10**6, places=2), st.decimals(-2, 2, places=3), st.decimals(-2, 2, places=3))
def test_nearer_is_never_paid_less(truth: Any, first: Any, second: Any) -> None:
    near, far = sorted((abs(first), abs(second)))
    paid = [weighted({"answer": f"{truth * (1 + error / 10)}"}, f"{truth}").total for error in (near, far)]
    assert paid[0] >= paid[1] - 1e-12
