"""Threads of engine and learner on a CPU: by the free cores, and never more together than there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.settings import PLACED, Settings, to_public_dict
from finqa_cli.settings.load import to_stated_dict
from finqa_cli.wiring import placing
from finqa_cli.wiring.placing import Purpose, place, place_again
from finqa_testing.tiny_models import make_tiny_qwen3

LARGE = "Qwen/Qwen3-0.6B"
"""A well-known size, so that nothing has to be there."""


@pytest.fixture(autouse=True)
def eight_free_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "free_cores", lambda: 8)
    monkeypatch.setattr(placing, "visible_devices", lambda: ())
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def settings_of(model: str = LARGE, **sections: Any) -> Settings:
    chosen = {"model": {"name": model}, "engine": {"name": "transformers"}, "learner": {"name": "torch"}}
    return Settings.model_validate({**chosen, **sections})


def threads(settings: Settings) -> tuple[Any, Any]:
    return settings.engine.options.get("threads"), settings.learner.options.get("threads")


@pytest.mark.parametrize(
    ("purpose", "sections", "expected"),
    [
        ("train", {}, (4, 4)),
        ("train", {"train": {"max_staleness": 0}}, (8, 8)),
        ("train", {"engine": {"name": "transformers", "options": {"threads": 6}}}, (6, 2)),
        ("train", {"learner": {"name": "torch", "options": {"threads": 9}}}, (1, 9)),
        ("train", {"train": {"learner_processes": 2}, "generation": {"engine_replicas": 4}}, (1, 2)),
        ("train", {"engine": {"name": "vllm"}}, (None, 8)),
        ("sft", {}, (8, 8)),
        ("sft", {"sft": {"validation_samples": 0}}, (None, 8)),
        ("dpo", {"engine": {"name": "scripted"}}, (None, 8)),
        ("play", {}, (8, None)),
        ("play", {"engine": {"name": "scripted"}}, (None, None)),
    ],
    ids=str,
)
def test_parts_that_work_at_the_same_time_share_the_cores(
    purpose: Purpose, sections: Mapping[str, Any], expected: tuple[Any, Any]
) -> None:
    assert threads(place(settings_of(**sections), (), purpose).settings) == expected


def test_a_resumed_run_keeps_its_threads_and_its_statement_leaves_them_open(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = place(settings_of(), PLACED, "train").settings
    assert {"engine.options.threads", "learner.options.threads"} <= set(placed.run.placed)
    monkeypatch.setattr(placing, "free_cores", lambda: 2)
    assert place_again(placed, "train") == placed
    assert to_public_dict(placed)["learner"]["options"] == {"threads": 4}
    assert to_stated_dict(placed)["learner"]["options"] == {} == to_stated_dict(placed)["engine"]["options"]


def test_omp_num_threads_is_an_upper_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("2", 2), ("3,1", 3), ("0", 8), ("many", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert threads(place(settings_of(), (), "play").settings)[0] == expected


def test_a_small_model_has_one_thread_whatever_the_load_is(tmp_path: Path) -> None:
    tiny = make_tiny_qwen3(tmp_path / "tiny")
    assert threads(place(settings_of(str(tiny)), (), "train").settings) == (1, 1)
