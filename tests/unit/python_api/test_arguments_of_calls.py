"""Arguments of the Python interface: names of flags, nearest names for wrong ones, the layers below them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import finqa
from finqa.arguments import read_arguments
from finqa_cli.errors import ConfigError, FinqaError, UsageError
from finqa_cli.settings.offered import OF_EVAL, OF_PLAY, OF_TRAIN, keywords_of, offered_settings

pytestmark = pytest.mark.usefixtures("empty_folder")

HEAVY = ("torch", "transformers", "openenv", "pandas", "pydantic", "aiohttp", "rich", "asyncio")

IMPORT = f"""
import sys, time
import finqa
seconds = time.process_time()
print(seconds, *[name for name in {HEAVY} if name in sys.modules])
"""


def test_the_import_takes_no_time_and_imports_nothing_heavy() -> None:
    said = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout.split()
    assert float(said[0]) < 0.3 and said[1:] == []


def test_every_public_name_is_there() -> None:
    assert {name for name in finqa.__all__ if getattr(finqa, name) is None} == set()
    assert set(dir(finqa)) == set(finqa.__all__)
    with pytest.raises(AttributeError, match="evaluation_of"):
        _ = finqa.evaluation_of


def test_every_flag_is_one_keyword_that_names_one_setting() -> None:
    for offered in (OF_EVAL, OF_TRAIN, OF_PLAY):
        names = [name for each in offered_settings(offered) for name in keywords_of(each)]
        assert len(names) == len(set(names)) > 20 and all(name.isidentifier() for name in names)


def load(keywords: dict[str, Any], settings: dict[str, Any] | None = None) -> Any:
    arguments = read_arguments("evaluate", keywords, settings or {}, (), offered=OF_EVAL, own=("target",))
    return arguments.load({"engine.name": "scripted"}, purpose="play")


def test_arguments_are_the_highest_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("finqa.toml").write_text("[eval]\nlimit = 3\nattempts = 3\nseed = 3\n")
    monkeypatch.setenv("FINQA_EVAL__ATTEMPTS", "4")
    monkeypatch.setenv("FINQA_EVAL__LIMIT", "4")
    loaded = load({"limit": 5, "data": None}, {"environment.options.grader": "strict", "pool.max_fault_share": 0.5})
    chosen = loaded.settings
    assert (chosen.eval.limit, chosen.eval.attempts, chosen.eval.seed) == (5, 4, 3)
    assert chosen.environment.options["grader"] == "strict" and chosen.pool.max_fault_share == 0.5
    assert loaded.origins["eval.limit"] == "argument limit"
    assert loaded.origins["pool.max_fault_share"] == "argument settings['pool.max_fault_share']"


@pytest.mark.parametrize(
    ("keywords", "settings", "kind", "parts"),
    [
        ({"limt": 3}, {}, UsageError, ("no argument 'limt'", "Did you mean 'limit'", "fix: give limit=...")),
        ({"top_p": 1.0}, {}, UsageError, ("'generation.top_p'", "fix: give settings={'generation.top_p': ...}")),
        ({"zzz": 3}, {}, UsageError, ("no argument 'zzz'", "finqa config show")),
        (
            {},
            {"eval.limt": 3},
            ConfigError,
            ("no setting 'eval.limt'", "'eval.limit'", "correct settings['eval.limt']"),
        ),
        ({"limit": -1}, {}, ConfigError, ("eval.limit = -1 (argument limit)", "correct limit")),
        ({"limit": "many"}, {}, ConfigError, ("eval.limit = 'many' (argument limit)", "correct limit")),
        ({"limit": 1}, {"eval.limit": 1}, UsageError, ("limit and settings['eval.limit'] both set eval.limit",)),
        ({"engine": "human"}, {}, UsageError, ("scripted has its own engine,",)),
        ({"snapshot": "other", "environment": "code"}, {}, UsageError, ("has no snapshot, so snapshot",)),
        ({"sandboxes": 50_000}, {}, ConfigError, ("50,000 sandboxes are more",)),
        ({"environment": "nothing"}, {}, ConfigError, ("nothing",)),
        ({"reward": "key-" + "sk-" + "a1B2" * 12}, {}, ConfigError, ("argument reward",)),
    ],
)
def test_mistakes_say_what_is_wrong_and_how_to_fix_it(
    keywords: Any, settings: Any, kind: type[FinqaError], parts: tuple[str, ...]
) -> None:
    with pytest.raises(FinqaError) as caught:
        finqa.evaluate("scripted", settings=settings, **keywords)
    error = caught.value
    said = "\n".join([error.message, *error.__notes__])
    assert type(error) is kind and error.remedy and all(part in said for part in parts), said
    assert f"fix: {error.remedy}" in error.__notes__ and "a1B2a1B2" not in said
    assert not list(Path().glob("runs/*")), "nothing was begun"


def test_a_target_or_a_run_to_resume_is_needed_and_not_both() -> None:
    for call in (finqa.evaluate, finqa.sample):
        with pytest.raises(UsageError, match="needs a policy"):
            call()
        with pytest.raises(UsageError, match="keeps its policy"):
            call("embedded", resume="run")
    with pytest.raises(UsageError, match="does not take split"):
        finqa.evaluate(resume="run", split="test")
    with pytest.raises(finqa.DataError, match="not a run folder"):
        finqa.train(resume="run")
    with pytest.raises(finqa.DataError, match="There is no run run") as caught:
        finqa.load_run("run")
    assert caught.value.__notes__ == [f"fix: {caught.value.remedy}"]
    with pytest.raises(UsageError, match=r"generation\.top_p.*no effect"):
        finqa.sample("scripted", settings={"generation.top_p": 0.5})
