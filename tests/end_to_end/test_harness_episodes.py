"""`finqa data import harness`: episodes that OpenEnv's own classes recorded become attempts to imitate and pair."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.app import main
from finqa_cli.evaluation.compare.evaluated_runs import load_run
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.trajectory_records import read_demonstrations, read_pairs

pytest.importorskip("openenv.core.harness", reason="needs openenv 0.10")

from openenv.core import harness
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness.collect import CollectRunner, RolloutSerializer
from openenv.core.llm_client import LLMResponse
from openenv.core.llm_client import ToolCall as Called

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How much is 2 + 2?"}]
TOOL = {
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


class Sums(harness.ResourceSession):
    """A session with one tool; `answer` ends it, worth 1 if it is right."""

    def initial_messages(self) -> list[dict[str, Any]]:
        return [dict(message) for message in ASK]

    def list_tools(self) -> list[Tool]:
        return [Tool(name="add", description="Add.", input_schema=TOOL["parameters"])]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        right = arguments.get("sum") == 4
        if name == "answer":
            return harness.ToolResult(data="ok", done=True, metadata={"reward": float(right)})
        return harness.ToolResult(data=str(arguments["a"] + arguments["b"]))

    def verify(self, transcript: Any, final_state: Any | None = None) -> Any:
        return harness.VerifyResult(done=True)

    def close(self) -> None:
        pass


class Factory(harness.ResourceSessionFactory):
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Sums:
        return Sums()


def collected(folder: Path, sums: list[int]) -> Path:
    """Episodes of OpenEnv's runner: one for each answer, after a call of `add`."""
    left = iter(sums)

    def model_step(messages: list[dict[str, Any]], tools: Any, sampling: Any) -> Any:
        if messages[-1]["role"] == "tool":
            call = Called(id="2", name="answer", args={"sum": next(left)})
        else:
            call = Called(id="1", name="add", args={"a": 2, "b": 2})
        return harness.ModelStepResult(response=LLMResponse(content="Well.", tool_calls=[call]))

    serializer = RolloutSerializer(folder)
    tasks = [{"id": "two and two"} for _ in sums]
    runner = CollectRunner(
        session_factory=Factory(), harness_adapter=harness.MCPHarnessAdapter(), serializer=serializer, tasks=tasks
    )
    with contextlib.redirect_stdout(None):  # its progress bar
        assert runner.run(model_step=model_step, num_episodes=len(sums)).num_collected == len(sums)
    return serializer.results_path


def traced(answer: str, *, reward: float, name: str, mask: list[int] | None = None) -> dict[str, Any]:
    """The line of an episode of two calls, in the form that OpenEnv's own classes accept and write."""
    asked = {"messages": ASK, "tools": [{"type": "function", "function": TOOL}]}
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    echoed = {**said, "content": ""}  # as harnesses write it back
    later = {**asked, "messages": [*ASK, echoed, {"role": "tool", "tool_call_id": "c1", "content": "4"}]}
    final = {"role": "assistant", "content": answer}
    digits = [ord(letter) for letter in answer]

    def turn(node: str, prompt: list[int], completion: list[int], request: Any, message: Any, mask: Any = None) -> Any:
        return harness.TrainingTurn(
            node_id=node,
            prompt_token_ids=prompt,
            completion_token_ids=completion,
            per_token_logps=[-0.5] * len(completion),
            loss_mask=[0] * len(prompt) + (mask or [1] * len(completion)),
            request=request,
            response={"choices": [{"message": message, "finish_reason": "stop"}]},
        )

    trace = harness.TrainingTrace(
        turns=[
            turn("a", [1, 2, 3], [4, 5], asked, said),
            turn("side", [1], [9], {"messages": [{"role": "user", "content": "A title?"}]}, final, [0]),
            turn("b", [1, 2, 3, 4, 5, 6, 7], digits, later, final, mask),
        ]
    )
    return {"episode_id": name, "task": "sum", "reward": reward, "training_trace": trace.model_dump()}


def imported(tmp_path: Path, lines: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, dict[str, Any]]:
    run = tmp_path / "imported"
    code = main(["data", "import", "harness", str(lines), "--run-dir", str(run), "--target", "tiny", "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return run, json.loads(shown.out)


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_episodes_of_the_collect_runner_are_an_evaluation_and_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, told = imported(tmp_path, collected(tmp_path / "oe", [4, 5, 4]), capsys)
    assert (told["attempts"], told["with_tokens"], told["left_out"]) == (3, 0, {})
    report = json.loads((run / "report.json").read_text())
    assert report["episodes"] == 3 and report["accuracy"] == pytest.approx(2 / 3)
    demonstration = read_demonstrations(run)[0]
    assert [message.role for message in demonstration.messages] == ["assistant", "tool", "assistant", "tool"]
    assert [message.content for message in demonstration.prompt.messages] == ["Be brief.", "How much is 2 + 2?"]
    assert dict(demonstration.messages[0].calls[0].arguments) == {"a": 2, "b": 2}
    assert main(["prefs", str(run), "--rule", "right-wrong", "--held-out-share", "0", "--run-dir", f"{run}-pairs"]) == 0
    assert [pair.rejected.reward for pair in read_pairs(Path(f"{run}-pairs/pairs.jsonl"))] == [0.0]
    assert main(["show", str(run)]) == 0 and len(load_run(run).outcomes) == 3, "as finqa compare reads it"


def test_traces_keep_the_exact_tokens_of_every_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [traced("4", reward=1.0, name="right"), traced("55", reward=0.0, name="wrong")]
    run, told = imported(tmp_path, written(tmp_path / "traces.jsonl", lines), capsys)
    assert (told["attempts"], told["with_tokens"]) == (2, 2)
    record = next(read_jsonl(run / "trajectories.jsonl"))
    first, second = record["turns"]
    assert (first["prompt_token_ids"], first["completion_token_ids"]) == ([1, 2, 3], [4, 5])
    assert (second["prompt_token_ids"], second["completion_token_ids"]) == ([6, 7], [ord("4")])
    assert first["tool_call"] == {"name": "add", "arguments": {"a": 2}} and first["observation"]["text"] == "4"
    assert second["text"] == "4" and record["tools"][0]["function"]["name"] == "add"
    assert main(["prefs", str(run), "--held-out-share", "0", "--run-dir", f"{run}-pairs"]) == 0
    (pair,) = read_pairs(Path(f"{run}-pairs/pairs.jsonl"))
    assert [turn.completion_ids for turn in pair.chosen.turns] == [(4, 5), (ord("4"),)]


def test_what_has_no_form_as_an_attempt_is_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten = traced("4", reward=1.0, name="rewritten")
    rewritten["training_trace"]["turns"][2]["request"]["messages"][1]["content"] = "Summary of what was said."
    partial = traced("44", reward=1.0, name="partial", mask=[1, 0])
    lines = [traced("4", reward=1.0, name="good"), rewritten, partial]
    _, told = imported(tmp_path, written(tmp_path / "traces.jsonl", lines), capsys)
    assert told["attempts"] == 1 and sorted(told["left_out"].values()) == [1, 1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reward": None}, "verify()"),
        ({"training_trace": {"turns": [{"prompt_token_ids": [1]}]}}, "training_trace.turns.0"),
        ({"episode_id": "good"}, "occurs twice"),
        ({"reward": 1e400}, "reward"),
    ],
)
def test_a_malformed_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], reason: str
) -> None:
    lines = [traced("4", reward=1.0, name="good"), {**traced("4", reward=1.0, name="bad"), **change}]
    file = written(tmp_path / "traces.jsonl", lines)
    assert main(["data", "import", "harness", str(file), "--run-dir", str(tmp_path / "run")]) == 65
    shown = capsys.readouterr().err
    assert f"{file}, line 2" in shown and reason in shown and "Traceback" not in shown
    assert not (tmp_path / "run").exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "id"]), inner),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(field=st.sampled_from(["messages", "training_trace", "reward", "task", "episode_id", "done"]), value=JSON)
def test_any_value_is_imported_or_refused_with_a_reason(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    file = written(folder / "traces.jsonl", [{**traced("4", reward=1.0, name="x"), field: value}])
    assert main(["data", "import", "harness", str(file), "--run-dir", str(folder / "run"), "--quiet"]) in (0, 65)
