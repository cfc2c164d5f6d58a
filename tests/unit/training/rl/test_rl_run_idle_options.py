"""Options without effect: refused where the user named them, one line where a preset, file or default did."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.errors import ConfigError
from finqa_cli.experiments.step_settings import settings_document
from finqa_cli.settings import Loaded, is_shipped, load_settings
from finqa_cli.training.rl.rl_run import check_idle_options

pytestmark = pytest.mark.usefixtures("empty_folder")


def loaded(*words: str, files: Sequence[str | Path] = (), **flags: Any) -> Loaded:
    """The settings of flags and `--set`."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return load_settings(flags=flags, files=files, assignments=[text for name, text in pairs if name == "--set"])


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("optimizer.options.clip_low=0.1", "optimizer.options.clip_low=0.1 (--set) would have no effect: with one "),
        ("optimizer.options.dual_clip=3.0", "optimizer.options.dual_clip=3.0 (--set) would have no effect"),
        ('optimizer.options.ratio="sequence"', "optimizer.options.ratio=sequence (--set) would have no effect"),
        ('optimizer.options.variant="gspo"', "exactly 1, so that gspo is grpo"),
        ('optimizer.options.variant="cispo"', "exactly 1, so that cispo is dapo"),
    ],
)
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_what_the_user_named_is_refused_and_the_remedy_gives_it_an_effect(
    assignment: str, told: str, max_staleness: int
) -> None:
    words = ("--set", assignment, "--set", f"train.max_staleness={max_staleness}")
    with pytest.raises(ConfigError) as error:
        check_idle_options(loaded(*words))
    assert told in error.value.message
    remedy = error.value.remedy.partition(";")[0]
    assert check_idle_options(loaded(*words, *shlex.split(remedy))) == ""


def test_every_source_of_a_user_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.toml").write_text("[optimizer.options]\nclip_high = 0.3\n")
    with pytest.raises(ConfigError, match=r"clip_high=0.3 \(file mine.toml:2\) would") as error:
        check_idle_options(loaded(files=["mine.toml"]))
    assert error.value.remedy.endswith("; or leave out clip_high")
    monkeypatch.setenv("FINQA_OPTIMIZER__OPTIONS__CLIP_LOW", "0.1")
    with pytest.raises(ConfigError, match=r"clip_low=0.1 \(environment FINQA_OPTIMIZER__OPTIONS__CLIP_LOW\)"):
        check_idle_options(loaded())


def test_defaults_presets_and_shipped_files_are_one_line() -> None:
    assert check_idle_options(loaded()) == "", "nothing about the method was chosen"
    line = check_idle_options(loaded("--set", "optimizer.options.kl=loss"))
    assert line.startswith("no effect: grpo's clip_low, clip_high (with one optimizer step per iteration")
    assert line.endswith("--set train.updates_per_iteration=2 changes that)") and "\n" not in line
    assert check_idle_options(loaded("--set", "optimizer.options.variant=dapo")) == line
    shipped = loaded(files=["grpo"])
    assert shipped.origins["optimizer.options.clip_low"].startswith("file optimizers/grpo.toml:")
    assert check_idle_options(shipped) == line
    assert check_idle_options(loaded("--set", "train.updates_per_iteration=2")) == ""
    assert check_idle_options(loaded(files=["ppo"])) == "", "four epochs are four steps"
    assert check_idle_options(loaded(files=["dpo"])) == "" == check_idle_options(loaded(files=["reinforce"]))


def test_options_that_are_off_ask_for_nothing() -> None:
    for assignment in ("clip_low=0", "dual_clip=0", "ratio=token"):
        check_idle_options(loaded("--set", f"optimizer.options.{assignment}"))


def test_single_steps_of_ppo_and_a_kl_that_is_off() -> None:
    ppo = (
        "--set",
        "optimizer.name=ppo",
        "--set",
        "optimizer.options.epochs=1",
        "--set",
        "optimizer.options.minibatches=1",
    )
    line = check_idle_options(loaded(*ppo))
    assert "ppo's clip_low, clip_high, value_clip, target_kl" in line
    with pytest.raises(ConfigError, match="none left to skip") as error:
        check_idle_options(loaded(*ppo, "--set", "optimizer.options.target_kl=0.1"))
    assert error.value.remedy.startswith("--set optimizer.options.minibatches=4; or leave out target_kl")
    off = ("--set", "optimizer.options.kl=off", "--set", "optimizer.options.kl_coef=0.1")
    with pytest.raises(ConfigError, match=r"kl_coef=0.1 .* kl is off"):
        check_idle_options(loaded(*off))


def test_a_file_that_finqa_wrote_names_nothing() -> None:
    """Steps of pipelines and experiments are given all settings, and were checked when they were planned."""
    settings = loaded("--set", "optimizer.options.clip_low=0.1", "--set", "train.updates_per_iteration=2").settings
    one_step = settings.model_copy(update={"train": settings.train.model_copy(update={"updates_per_iteration": 1})})
    Path("step.json").write_text(json.dumps(settings_document(one_step, data=None, snapshot="mine")))
    found = loaded(files=["step.json"])
    assert found.settings.optimizer.options == {"clip_low": 0.1}
    assert found.origins["optimizer.options.clip_low"].startswith("plan step.json")
    assert "clip_low" in check_idle_options(found)


def test_a_shipped_file_is_known_by_its_name_and_by_its_path() -> None:
    from finqa_cli.settings.settings_files import shipped

    assert is_shipped("file optimizers/grpo.toml:13") and is_shipped(f"file {shipped()['optimizers/grpo']}:13")
    assert not any(map(is_shipped, ("flag", "--set", "default", "file optimizers/mine.toml:1", "file finqa.toml:3")))
    Path("optimizers").mkdir()
    Path("optimizers/grpo.toml").write_text("")
    assert not is_shipped("file optimizers/grpo.toml:13"), "the user's own file of that name"
