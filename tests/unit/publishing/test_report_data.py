from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.report_runs import attempt, on_nodes, training, write_run

from finqa_cli.errors import DataError
from finqa_cli.publishing.report.episode_details import episode_detail, read_numbers, result_table
from finqa_cli.publishing.report.report_advantages import recomputed_advantages
from finqa_cli.publishing.report.report_comparison import comparison_document
from finqa_cli.publishing.report.report_data import COLUMNS, curves, figures, run_document, scored_episodes
from finqa_cli.publishing.report.report_records import read_records
from finqa_cli.publishing.report.run_report import choose_episodes
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.statistics import clustered_interval, clustered_mean, t_quantile


def test_curves_are_means_of_a_step_with_the_interval_clustered_by_question(tmp_path: Path) -> None:
    found = {curve["key"]: curve for curve in curves(read_records(training(tmp_path / "run")))}
    (series,) = found["reward"]["series"]
    rewards = [float(member < 2) for _ in range(4) for member in range(4)]
    wanted = clustered_interval(rewards, [f"q{question}" for question in range(4) for _ in range(4)])
    assert series["phase"] == "train" and series["points"][1] == [2, 0.5, wanted.low, wanted.high, 16]
    assert 0 <= wanted.low < wanted.high <= 1
    assert found["kl"]["series"][0]["points"] == [[step, 0.01 * step, None, None, None] for step in (1, 2, 3)]
    assert found["turns"]["series"][0]["points"][0] == [1, 2.0, None, None, 16]  # all alike: nothing is known
    assert "staleness_mean" not in found


def test_intervals_of_evaluations_are_clustered_like_the_score(tmp_path: Path) -> None:
    shown = [(f"{company}_{place}", float(company == "a")) for company in "abc" for place in range(4)]
    attempts = [("eval", 0, attempt(name, reward=reward)) for name, reward in shown]
    document = figures(read_records(write_run(tmp_path / "run", attempts)))
    score = document["head"]["score"]
    ((step, *point),) = document["curves"][1]["series"][0]["points"]
    assert document["curves"][1]["key"] == "accuracy" and score["clusters"] == 3
    assert point == [score["accuracy"], score["low"], score["high"], 12] and step == 0
    assert document["breakdown"]["kinds"][0][2:4] == [score["low"], score["high"]]


def test_a_mean_of_counts_has_no_negative_end(tmp_path: Path) -> None:
    records = read_records(write_run(tmp_path / "run", [("eval", 0, attempt(f"q{place}_x")) for place in range(9)]))
    first = replace(records.episodes[0], failed_calls=1)
    found = curves(replace(records, episodes=(first, *records.episodes[1:])))
    ((_, mean, low, high, _),) = next(curve for curve in found if curve["key"] == "errors")["series"][0]["points"]
    assert low == 0 < mean < high and mean == pytest.approx(1 / 9)


def test_a_small_policy_of_finqa_is_shown_by_its_name(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [("eval", 0, attempt("a_1"))], settings={"model": {"name": "embedded-code"}})
    for model, shown in (("/x/site-packages/finqa_plugins/policies/code", "embedded-code"), ("/x/mine", "/x/mine")):
        manifest = {"inputs": {"policy": {"model": model, "number": 0}}}
        (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        assert figures(read_records(run))["head"]["policy"] == {"model": shown}


def test_rewards_outside_of_0_to_1_have_a_symmetric_interval(tmp_path: Path) -> None:
    values = [-1.0, 0.5, 2.0]
    attempts = [("eval", 0, attempt(f"q{place}_x", reward=value)) for place, value in enumerate(values)]
    found = {curve["key"]: curve for curve in curves(read_records(write_run(tmp_path / "run", attempts)))}
    ((_, mean, low, high, count),) = found["reward"]["series"][0]["points"]
    error = clustered_mean(values, ["a", "b", "c"]).error
    assert count == 3 and mean == 0.5 and high - mean == pytest.approx(t_quantile(0.975, 2) * error) == mean - low


def test_nodes_are_shown_with_what_is_lost_and_back(tmp_path: Path) -> None:
    run = training(tmp_path / "run")
    assert figures(read_records(run))["nodes"] is None, "it ran on one machine"
    found = figures(read_records(on_nodes(run)))["nodes"]
    (first, second, third) = found["nodes"]
    assert first == ["10.0.0.7", [[0, "serves version 3", ""]], [], [[0, "", ""], [1, "", ""]]]
    assert second[:1] + second[2:] == ["10.0.0.8", [], []]
    assert second[1][0][0] == 1 and second[1][0][1].startswith("left out since ") and second[1][0][2] == "fault"
    assert third == ["10.0.0.9", [], [0, 1], []]
    assert [change[1:5] for change in found["changes"]] == [
        ["10.0.0.8", "engine replica 1", "left out", "fault"],
        ["10.0.0.8", "rollout worker 1", "lost", "fault"],
        ["10.0.0.7", "rollout worker 1", "back", "right"],
    ]
    assert found["changes"][0][5] == "The actor died because its node has died." and found["changes"][2][5] == ""


def test_a_fault_is_in_no_mean_and_the_score_is_of_the_last_evaluation(tmp_path: Path) -> None:
    attempts = [
        ("eval", 0, attempt("a_1", reward=0.0)),
        ("eval", 2, attempt("a_1", reward=1.0, step=2)),
        ("eval", 2, attempt("b_1", reward=None, step=2)),
        ("train", 1, attempt("c_1", reward=0.0, step=1, phase="train")),
    ]
    records = read_records(write_run(tmp_path / "run", attempts, command="train"))
    scored = scored_episodes(records)
    document = run_document(records, records.episodes, {}, [])
    score = document["head"]["score"]
    assert [episode.iteration for episode in scored] == [2, 2]
    assert (score["accuracy"], score["attempts"], score["faults"], score["iteration"]) == (1.0, 1, 1, 2)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in document["rows"]]
    fault = next(row for row in rows if row["correct"] is None)
    assert fault["reward"] is None and document["questions"][fault["question"]]["id"] == "b_1"


def test_rows_have_the_order_of_steps_and_not_of_ending(tmp_path: Path) -> None:
    attempts = [
        ("train", step, attempt("a_1", member, step=step, phase="train")) for step in (2, 1) for member in (1, 0)
    ]
    records = read_records(write_run(tmp_path / "run", attempts, command="train"))
    assert [(episode.iteration, episode.outcome.member) for episode in records.episodes] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]
    assert [episode.line for episode in records.episodes] == [4, 3, 2, 1]


def test_advantages_are_those_of_the_optimizer_of_the_run(tmp_path: Path) -> None:
    records = read_records(training(tmp_path / "run", questions=1))
    found, notes = recomputed_advantages(records.episodes, records.settings)
    by_id = {episode.id: found[episode.id] for episode in records.episodes if episode.iteration == 1}
    assert list(by_id.values()) == pytest.approx([0.75, -0.25, -0.25, -0.25]) and len(notes) == 1
    shuffled = {**records.settings, "train": {"shuffle_rewards": True}}
    assert recomputed_advantages(records.episodes, shuffled)[0] == {}
    unknown = {**records.settings, "optimizer": {"name": "not-here", "options": {}}}
    nothing, notes = recomputed_advantages(records.episodes, unknown)
    assert nothing == {} and "not-here" in notes[0]


def test_a_comparison_is_second_less_first_with_the_differences_first(tmp_path: Path) -> None:
    sides = []
    for name, rewards in (("one", (1.0, 0.0, 0.0)), ("two", (1.0, 1.0, 1.0))):
        attempts = [("eval", 0, attempt(f"q{place}_x", reward=reward)) for place, reward in enumerate(rewards)]
        attempts.append(("eval", 0, attempt(f"only_{name}")))
        sides.append(read_records(write_run(tmp_path / name, attempts)).episodes)
    found = comparison_document(*sides)
    assert found["summary"]["difference"] == pytest.approx(2 / 3) and found["summary"]["better"] == 2
    assert [row[0] for row in found["rows"]] == ["q1_x", "q2_x", "q0_x", "only_one", "only_two"]
    assert found["rows"][0][3:5] == [0.0, 1.0] and found["rows"][-1][3:9] == [
        None,
        1.0,
        0,
        1,
        None,
        "eval/0000/only_two/0",
    ]
    assert "2 questions were answered in one run only" in found["notes"][0]


def test_runs_without_a_question_in_common_have_no_difference(tmp_path: Path) -> None:
    one = read_records(write_run(tmp_path / "one", [("eval", 0, attempt("a_1"))])).episodes
    other = read_records(write_run(tmp_path / "other", [("eval", 0, attempt("b_1", reward=None))])).episodes
    found = comparison_document(one, other)
    assert found["summary"] is None and len(found["rows"]) == 1


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ('[{"b":1,"2019":12345678901234567890,"a":null}]', ["b", "2019", "a"], [["1", "12345678901234567890", None]]),
        ('[{"x":0.1},{"y":true}]', ["x", "y"], [["0.1", ""], ["", "true"]]),
        ('[{"x":"<b>"}]', ["x"], [["<b>"]]),
        ('[{"x":NaN}]', ["x"], [["NaN"]]),
    ],
)
def test_a_list_of_flat_objects_is_a_table_whose_cells_are_as_written(
    text: str, columns: list[str], rows: list[list[str | None]]
) -> None:
    assert result_table(text) == {"columns": columns, "rows": rows}


@pytest.mark.parametrize("text", ["", "[]", "[{}]", '["a"]', '[{"x":[1]}]', '[{"x":1}', '{"x":1}', "[{" * 5000])
def test_other_replies_stay_text(text: str) -> None:
    assert result_table(text) is None


def test_long_tables_and_texts_are_cut_and_say_so() -> None:
    table = result_table(json.dumps([{"x": row} for row in range(700)]))
    assert table is not None and len(table["rows"]) == 500 and table["more"] == 200
    detail = episode_detail(json.loads(json.dumps(trajectory_record(attempt("a_1", text="x" * 300_000)))), "")
    assert detail["turns"][0]["cut"] == 100_009 and detail["seed"] == str(2**62)


def test_token_ids_are_in_no_report() -> None:
    record = trajectory_record(attempt("a_1"), token_ids=True)
    assert "prompt_token_ids" in record["turns"][0]
    shown = json.dumps(episode_detail(record, "42"))
    assert "token_ids" not in shown and "logprobs" not in shown


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("12.5%", "0.125"),
        ("(1,234.5) million", "-1,234,500,000"),
        ("2020: 5, 2021: 6.25", "2020: 5, 2021: 6.25"),
        ("Yes", ""),
        ("", ""),
        ("1e99", "1e+99"),
        ("9" * 5000, ""),
    ],
)
def test_answers_are_shown_as_the_numbers_that_they_are_read_as(text: str, numbers: str) -> None:
    assert read_numbers(text) == numbers


def test_a_truth_is_shown_where_the_records_have_one_and_is_never_added() -> None:
    record = trajectory_record(attempt("a_1", text="x", cell="5.2%"))
    known = {"truth": "5.2%", "values": {"answer": "0.05", "truth": "0.052"}}
    detail = episode_detail({**record, **known}, "0.05")
    assert (detail["truth"], detail["truth_numbers"], detail["numbers"]) == ("5.2%", "0.052", "0.05")
    assert episode_detail(record, "0.05")["truth"] == "" and episode_detail(record, "0.05")["numbers"] == "0.05"


@pytest.mark.parametrize(("most", "steps"), [(100, {1, 2, 3, 4, 5}), (50, {1, 3, 5}), (16, {5}), (3, {5})])
def test_whole_steps_are_left_out_of_large_reports(tmp_path: Path, most: int, steps: set[int]) -> None:
    records = read_records(training(tmp_path / "run", steps=5))
    kept = choose_episodes(records, most).episodes
    assert {episode.iteration for episode in kept} == steps and len(kept) <= most


def test_numbers_that_json_has_no_word_for_are_texts_or_left_out(tmp_path: Path) -> None:
    run = training(tmp_path / "run", steps=1)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "kind": "train", "iteration": 2, "kl": NaN, "entropy": Infinity}\n')
    records = read_records(run)
    found = {curve["key"]: curve for curve in curves(records)}
    assert len(found["kl"]["series"][0]["points"]) == 1
    json.dumps(run_document(records, records.episodes, {}, []), allow_nan=False)
    assert math.isnan(records.metrics[-1]["kl"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no json", "line 2: not valid JSON"),
        ("{}", "line 2: not a trajectory record"),
        ("[]", "line 2: expected a JSON object"),
    ],
)
def test_damaged_records_are_named_by_file_and_line(tmp_path: Path, line: str, reason: str) -> None:
    run = write_run(tmp_path / "run", [("eval", 0, attempt("a_1"))])
    with (run / "trajectories.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError) as caught:
        read_records(run)
    assert reason in caught.value.message and "trajectories.jsonl" in caught.value.message
