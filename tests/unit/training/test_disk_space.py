"""A training run compares the free space with its checkpoints before it has a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from finqa_cli.errors import StorageError
from finqa_cli.settings import Settings
from finqa_cli.settings.load import load_settings
from finqa_cli.training.running_learner import check_disk
from finqa_cli.types import PolicyVersion

QWEN = PolicyVersion(number=0, model="Qwen/Qwen3-4B")
CHECKPOINT_GB = 0.40  # rank 16 on all seven matrices of 36 layers: 33.0 million weights of 12 bytes


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the free space that the disk reports, in GB."""

    def report(gigabytes: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=int(gigabytes * 1e9)))

    return report


def settings(*assignments: str) -> Settings:
    return load_settings(assignments=["lora.rank=16", *assignments]).settings


def test_the_checkpoints_that_are_kept_and_one_more_must_fit(free: Callable[[float], None], tmp_path: Path) -> None:
    free(4 * CHECKPOINT_GB + 0.05)
    check_disk(settings(), QWEN, tmp_path / "runs" / "new")
    free(4 * CHECKPOINT_GB - 0.05)
    with pytest.raises(StorageError, match=r"1\.55 GB free, and 3 checkpoints of Qwen/Qwen3-4B") as refusal:
        check_disk(settings(), QWEN, tmp_path / "runs" / "new")
    assert refusal.value.remedy.endswith("--set train.keep_checkpoints=1")
    check_disk(settings("train.keep_checkpoints=1"), QWEN, tmp_path)
    free(CHECKPOINT_GB)
    with pytest.raises(StorageError) as refusal:
        check_disk(settings("train.keep_checkpoints=1"), QWEN, tmp_path)
    assert "keep_checkpoints" not in refusal.value.remedy, "it would not help"


def test_keeping_all_counts_all(free: Callable[[float], None], tmp_path: Path) -> None:
    everything = ("train.keep_checkpoints=0", "train.iterations=20", "train.checkpoint_every=2")
    free(11 * CHECKPOINT_GB + 0.05)
    check_disk(settings(*everything), QWEN, tmp_path)
    free(11 * CHECKPOINT_GB - 0.05)
    with pytest.raises(StorageError, match="and 10 checkpoints"):
        check_disk(settings(*everything), QWEN, tmp_path)


def test_an_adapter_is_merged_first(free: Callable[[float], None], tmp_path: Path) -> None:
    adapter = PolicyVersion(number=0, model=QWEN.model, adapter=tmp_path / "adapter")
    free(4 * CHECKPOINT_GB + 15.0)
    with pytest.raises(StorageError):
        check_disk(settings(), adapter, tmp_path)
    free(4 * CHECKPOINT_GB + 16.4)
    check_disk(settings(), adapter, tmp_path)


def test_a_model_of_unknown_size_is_not_judged(free: Callable[[float], None], tmp_path: Path) -> None:
    free(0.0)
    check_disk(settings(), PolicyVersion(number=0, model="someone/not-cached"), tmp_path)
