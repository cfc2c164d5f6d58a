"""`finqa export --to trl-sft|trl-preference|openai-jsonl|inspect`, as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.handed_on_runs import TOOL, attempt, text_attempt
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.publishing.export_attempts import openai_messages, openai_row
from finqa_cli.runs.durable_files import write_json
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.types import Message, Prompt, ToolCall, Trajectory

_NAMED = os.environ.get("FINQA_INSPECT_PYTHON", "")  # read at import: fixtures remove every FINQA_ variable


def write_attempts(folder: str, command: str, attempts: Sequence[tuple[str, int, Trajectory]]) -> Path:
    path = Path(folder)
    with RunFolder.create(path, command=command, settings=to_public_dict(Settings()), save_token_ids=False) as run:
        for phase, iteration, trajectory in attempts:
            known = {"truth": "12.5", "values": {"answer": "", "truth": "12.5"}} if phase == "eval" else {}
            run.trajectory(trajectory, phase=phase, iteration=iteration, **known)
        run.finish("completed")
    return path


@pytest.fixture
def run(empty_folder: Path) -> Path:
    """A training run: groups of three with a fault, and evaluations at two steps."""
    groups = [
        ("train", 1, attempt(question, member, reward))
        for question in ("aq1", "bq2")
        for member, reward in enumerate((1.0, 0.25, None))
    ]
    held_out = [
        ("eval", step, attempt(question, 0, reward, split="dev"))
        for step in (1, 2)
        for question, reward in (("cq3", 1.0), ("dq4", 0.0), ("eq5", None))
    ]
    return write_attempts("r", "train", [*groups, *held_out])


def rows_of(written: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(written["file"]).read_text().splitlines()]


def test_sft_rows_are_conversations_with_tools(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = document(["export", "r", "--to=trl-sft"], capsys)
    assert written == {"file": "exports/r_trl-sft/train.jsonl", "rows": 4, "left_out": 2, "wrong": 2}
    row = rows_of(written)[0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["tools"] == [TOOL.as_function()]
    called, replied, unread, told, submitted = row["completion"]
    assert called["content"] == "Let me look."
    assert called["tool_calls"][0]["function"] == {"name": "sql_query", "arguments": {"query": "SELECT 0"}}
    assert replied == {"role": "tool", "content": "revenue 12", "name": "sql_query"}
    assert unread == {"role": "assistant", "content": "<tool_call>{"} and told["role"] == "tool"
    assert submitted["tool_calls"][0]["function"]["name"] == "submit_answer", "what came after it is not learned from"
    good = document(["export", "r", "--to=trl-sft", "--min-reward=1", "--out=good"], capsys)
    assert (good["rows"], good["left_out"], good["wrong"]) == (2, 4, 0)
    manifest = json.loads(Path("good/manifest.json").read_text())
    assert manifest["parameters"]["minimum_reward"] == 1.0 and "train.jsonl" in manifest["outputs"]


def test_openai_rows_name_their_calls(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(document(["export", "r", "--to=openai-jsonl", "--min-reward=1"], capsys))
    assert len(rows) == 2
    check_openai(rows[0]["messages"])
    roles = [message["role"] for message in rows[0]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    called = rows[0]["messages"][2]["tool_calls"][0]
    assert json.loads(called["function"]["arguments"]) == {"query": "SELECT 0"}, "arguments are text there"


def check_openai(messages: list[dict[str, Any]]) -> None:
    """What the API insists on: each call is answered by the next message, each answer names it, the last is ours."""
    open_call, seen = "", set()
    for message in messages:
        assert set(message) <= {"role", "content", "tool_calls", "tool_call_id"}
        if open_call:
            assert message["role"] == "tool" and message["tool_call_id"] == open_call
        else:
            assert message["role"] != "tool"
        open_call = message["tool_calls"][0]["id"] if "tool_calls" in message else ""
        assert open_call not in seen
        seen |= {open_call} - {""}
    assert messages[-1]["role"] == "assistant"


TEXTS = st.text(max_size=20)
CALLS = st.builds(ToolCall, name=st.sampled_from(["a", "b"]), arguments=st.dictionaries(TEXTS, st.none() | TEXTS))
TURNS = st.lists(st.tuples(TEXTS, st.none() | CALLS, TEXTS), min_size=1, max_size=5)


def test_what_a_model_wrote_is_kept_whatever_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / "trajectories.jsonl").read_text().splitlines()
    odd = json.loads(lines[0])
    odd["turns"][0]["tool_call"]["arguments"] = {"query": "\ud800 \x00", "limit": 10**400}
    odd["turns"][0]["words"] = "lone \udfff"
    (run / "trajectories.jsonl").write_text("\n".join([json.dumps(odd), *lines[1:]]) + "\n")
    for form in ("trl-sft", "openai-jsonl", "trl-preference", "inspect"):
        written = document(["export", "r", f"--to={form}"], capsys)
        text = Path(written["file"]).read_text(encoding="ascii")
        assert text and all(json.loads(line) for line in text.splitlines())
    odd["turns"][0]["tool_call"]["arguments"] = {"limit": float("nan")}
    (run / "trajectories.jsonl").write_text(json.dumps(odd) + "\n")
    status, err = failure(["export", "r", "--to=trl-sft", "--out=nan"], capsys)
    assert status == 65 and "trajectories.jsonl, row 1" in err


@given(TURNS)
def test_any_conversation_is_one_that_openai_takes(turns: list[tuple[str, ToolCall | None, str]]) -> None:
    prompt = Prompt(messages=(Message(role="user", content="?"),), tools=(TOOL,))
    answer = [
        message
        for text, call, reply in turns
        for message in (
            Message(role="assistant", content=text, tool_call=call),
            Message(role="tool", content=reply, name=call.name if call else ""),
        )
    ]
    check_openai(openai_row(prompt, answer)["messages"])
    said = [message for message in openai_messages(prompt, answer) if message["role"] == "assistant"]
    assert [message["content"] or "" for message in said] == [text for text, _, _ in turns]
    kept = [
        json.loads(message["tool_calls"][0]["function"]["arguments"]) for message in said if "tool_calls" in message
    ]
    assert kept == [dict(call.arguments) for _, call, _ in turns if call]


def test_without_tools_the_environment_is_the_user(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_attempts("t", "eval", [("eval", 0, text_attempt("q", 0, 1.0))])
    for form in ("trl-sft", "openai-jsonl"):
        (row,) = rows_of(document(["export", "t", f"--to={form}"], capsys))
        messages = row.get("messages") or row["prompt"] + row["completion"]
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
        assert messages[3]["content"] == "test 1 failed" and "tools" not in row


def test_preferences_of_a_run_and_of_its_pairs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(document(["export", "r", "--to=trl-preference", "--rule=right-wrong"], capsys))
    assert len(rows) == 2
    for row in rows:
        assert set(row) == {"prompt", "chosen", "rejected", "tools"}
        arguments = [row[side][-1]["tool_calls"][0]["function"]["arguments"] for side in ("chosen", "rejected")]
        assert arguments == [{"answer": "0"}, {"answer": "1"}], "the right one is preferred"
    document(["prefs", "r", "--run-dir=p", "--rule=right-wrong", "-q"], capsys)
    assert rows_of(document(["export", "p", "--to=trl-preference"], capsys)) == rows


def test_an_evaluation_becomes_a_log(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = {"inputs": {"data": {"name": "embedded", "digest": "sha256:12"}}}
    (run / "manifest.json").write_text(json.dumps(manifest))
    written = document(["export", "r", "--to=inspect"], capsys)
    log = json.loads(Path(written["file"]).read_text())
    assert written["rows"] == 3 and log["version"] == 2 and log["eval"]["metadata"]["step"] == 2
    assert (log["eval"]["dataset"]["name"], log["eval"]["metadata"]["data_digest"]) == ("embedded", "sha256:12")
    correct, reward = log["results"]["scores"]
    assert correct["metrics"]["accuracy"]["value"] == 0.5 == reward["metrics"]["mean"]["value"]
    right, wrong, fault = sorted(log["samples"], key=lambda sample: sample["id"])
    assert [right["scores"]["correct"]["value"], wrong["scores"]["correct"]["value"]] == ["C", "I"]
    assert fault["error"]["message"] == "the sandbox died" and "scores" not in fault, "a fault is no wrong answer"
    assert right["target"] == "12.5" and len(right["events"]) == 3
    assert right["messages"][3]["tool_call_id"] == right["messages"][2]["tool_calls"][0]["id"] == "call_0"
    earlier = document(["export", "r", "--to=inspect", "--step=1", "--out=first"], capsys)
    assert json.loads(Path(earlier["file"]).read_text())["eval"]["metadata"]["step"] == 1


INSPECT = """
import json, sys
from inspect_ai.analysis import messages_df, samples_df
from inspect_ai.log import list_eval_logs, read_eval_log
(info,) = list_eval_logs(sys.argv[1])
log = read_eval_log(info)
first = log.samples[0]
found = {
    "status": log.status,
    "samples": len(log.samples),
    "metric": log.results.scores[0].metrics["accuracy"].value,
    "call": first.messages[2].tool_calls[0].function,
    "reply": first.messages[3].text,
    "answer": first.output.stop_reason,
    "errors": sum(sample.error is not None for sample in log.samples),
    "target": first.target,
    "inputs": [len(event.input) for event in first.events],
    "roles": messages_df(sys.argv[1]).groupby("sample_id", sort=False)["role"].apply(list).tolist()[0],
    "targets": samples_df(sys.argv[1])["target"].tolist(),
}
print(json.dumps(found))
"""


@pytest.mark.skipif(not _NAMED, reason="FINQA_INSPECT_PYTHON names no interpreter that has inspect_ai")
def test_inspect_itself_reads_the_log(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = document(["export", "r", "--to=inspect"], capsys)
    done = subprocess.run(
        [_NAMED, "-c", INSPECT, str(Path(written["file"]).parent)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "status": "success",
        "samples": 3,
        "metric": 0.5,
        "call": "sql_query",
        "reply": "revenue 12",
        "answer": "tool_calls",
        "errors": 1,
        "target": "12.5",
        "inputs": [2, 4, 6],
        "roles": ["system", "user", "assistant", "tool", "assistant", "user", "assistant"],
        "targets": ["12.5"] * 3,
    }


MISTAKES: dict[str, tuple[int, str, list[str]]] = {
    "weights of attempts": (2, "--to trl-sft takes no --dtype", ["r", "--to=trl-sft", "--dtype=float16"]),
    "a rule without pairs": (2, "has no pairs", ["r", "--to=trl-sft", "--rule=all"]),
    "a step without evaluation": (65, "no evaluation of step 7", ["r", "--to=inspect", "--step=7"]),
    "a step of rows": (2, "--step applies to policies", ["r", "--to=trl-sft", "--step=1"]),
    "a log without the bad ones": (2, "every attempt", ["r", "--to=inspect", "--min-reward=1"]),
    "pairs without the bad ones": (2, "a rejected attempt,", ["r", "--to=trl-preference", "--min-reward=1"]),
    "nothing is left": (65, "None of the 6 attempts", ["r", "--to=openai-jsonl", "--split=test"]),
    "nothing there": (65, "no demonstrations", ["nowhere", "--to=trl-sft"]),
    "there already": (78, "not an empty folder", ["r", "--to=trl-sft", "--out=r"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_told(run: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    status, message, arguments = MISTAKES[case]
    found, err = failure(["export", *arguments], capsys)
    assert found == status and message in err and not Path("exports").exists()


def test_questions_for_evaluation_only_are_not_taught(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(run / "report.json", {"data": {"name": "snorkel", "evaluation_only": True}})
    status, err = failure(["export", "r", "--to=trl-sft"], capsys)
    assert status == 78 and "for evaluation only" in err and "--allow-evaluation-data" in err
    assert document(["export", "r", "--to=inspect"], capsys)["rows"] == 3
    assert document(["export", "r", "--to=trl-sft", "--allow-evaluation-data"], capsys)["rows"] == 4


@pytest.mark.parametrize("field", ["turns", "messages", "tools", "reward", "task"])
def test_a_damaged_record_is_named(run: Path, capsys: pytest.CaptureFixture[str], field: str) -> None:
    lines = (run / "trajectories.jsonl").read_text().splitlines()
    record = json.loads(lines[1])
    del record[field]
    (run / "trajectories.jsonl").write_text("\n".join([lines[0], json.dumps(record), *lines[2:]]) + "\n")
    status, err = failure(["export", "r", "--to=trl-sft"], capsys)
    assert status == 65 and "trajectories.jsonl, row 2" in err
