"""pairs.jsonl as it is read: for all contents, one sentence says which row is wrong and why."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import DataError
from finqa_cli.runs.trajectory_records import pairs_file, read_pairs

Record = dict[str, Any]


def side(text: str, reward: float) -> Record:
    turn = {
        "text": text,
        "tool_call": None,
        "observation": None,
        "stop": "stop",
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3, 4],
        "logprobs": [-0.5, -0.25],
    }
    return {"attempt": f"sample/q/{text}", "text": text, "reward": reward, "turns": [turn]}


def record() -> Record:
    return {
        "schema_version": 1,
        "id": "q#0",
        "task": {"id": "q", "cluster": "ACME"},
        "held_out": False,
        "prompt": {"messages": [{"role": "user", "content": "How much?"}], "tools": []},
        "chosen": side("42", 1.0),
        "rejected": side("41", 0.0),
    }


def written(folder: Path, *records: Record) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def test_a_pair_comes_back_with_its_token_ids(tmp_path: Path) -> None:
    (pair,) = read_pairs(written(tmp_path, record()))
    assert pair.cluster == "ACME" and not pair.held_out and pair.prompt.messages[0].content == "How much?"
    assert pair.chosen.turns[0].completion_ids == (3, 4) and pair.chosen.turns[0].logprobs == (-0.5, -0.25)
    assert [message.content for message in pair.rejected.messages] == ["41"]
    assert pairs_file(tmp_path) == tmp_path / "pairs.jsonl"


def test_pairs_of_texts_alone_and_without_rewards_are_read_as_well(tmp_path: Path) -> None:
    bare = record()
    for name in ("chosen", "rejected"):
        bare[name]["reward"] = None
        for key in ("prompt_token_ids", "completion_token_ids", "logprobs"):
            del bare[name]["turns"][0][key]
    (pair,) = read_pairs(written(tmp_path, bare))
    assert pair.chosen.turns == () and pair.chosen.reward is None


def spoil(change: Callable[[Record], Any]) -> Record:
    broken = copy.deepcopy(record())
    change(broken)
    return broken


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (spoil(lambda r: r["chosen"]["turns"][0].update(text="41")), "are the same text"),
        (spoil(lambda r: r["chosen"].update(reward=-1.0)), "chosen earned -1 and rejected 0"),
        (spoil(lambda r: r["chosen"].update(reward=0.0)), "the margin is not above 0"),
        (spoil(lambda r: r.update(schema_version=2)), "written in file version 2"),
        (spoil(lambda r: r.pop("prompt")), "not a preference pair"),
        (spoil(lambda r: r["rejected"].update(turns=[])), "not a preference pair"),
        (spoil(lambda r: r["rejected"].update(reward=float("nan"))), "finite number"),
        (spoil(lambda r: r.update(id="first")), "the id is that of an earlier row"),
    ],
)
def test_a_wrong_row_is_told_with_its_place(tmp_path: Path, broken: Record, told: str) -> None:
    first = record() | {"id": "first"}
    with pytest.raises(DataError, match=told) as error:
        list(read_pairs(written(tmp_path, first, broken)))
    assert "row 2" in error.value.message and error.value.remedy


def test_no_file_is_told_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no preference pairs") as error:
        pairs_file(tmp_path)
    assert error.value.remedy == "finqa prefs RUN"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(
    keys=st.lists(st.sampled_from(["chosen", "prompt", "turns", 0, "reward", "task", "id", "text"]), max_size=4),
    value=JSON,
)
def test_whatever_stands_in_a_row_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str | int], value: Any
) -> None:
    broken: Any = copy.deepcopy(record())
    place = broken
    for key in keys[:-1]:
        inner = place[key] if isinstance(place, dict) and key in place else None
        if isinstance(inner, (dict, list)) and inner:
            place = inner if isinstance(inner, dict) else inner[0]
    if keys and isinstance(place, dict):
        place[str(keys[-1])] = value
    path = written(tmp_path_factory.mktemp("pairs"), broken)
    try:
        assert all(pair.chosen.text != pair.rejected.text for pair in read_pairs(path))
    except DataError as error:
        assert "row 1" in error.message
