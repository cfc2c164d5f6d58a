"""Which commands a pipeline is made of: pure, and each one parsed by the command line that will run it."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main

from finqa_cli.app import COMMANDS
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.experiments.pipeline_run import data_path, find_step, plan
from finqa_cli.experiments.pipeline_spec import (
    METHODS,
    Candidates,
    DataSource,
    Demonstrations,
    PipelineSpec,
    check_unchanged,
    find_data,
    read_spec,
    with_defaults,
)
from finqa_cli.experiments.step_runner import Step
from finqa_cli.experiments.step_settings import check_secrets, differences, settings_document
from finqa_cli.settings import Choice, Loaded, Settings, load_settings, to_public_dict

RUN = Path("outputs/run_001")
FINQA_ROW = {
    "id": "AAL/2018/page_13.pdf-2",
    "filename": "AAL/2018/page_13.pdf",
    "pre_text": ["revenue rose ."],
    "post_text": ["."],
    "table": [["", "2018", "2017"], ["revenue", "3", "2"]],
    "qa": {"question": "what was revenue?", "program": "add(1, 2)", "exe_ans": 3.0, "answer": "3"},
}


def spec_of(method: str = "grpo", settings: Settings | None = None, data: DataSource | None = None) -> PipelineSpec:
    settings = settings or load_settings(flags={"environment.options.grader": "strict-3"}).settings
    return PipelineSpec(
        method=method,  # type: ignore[arg-type]  # from METHODS
        imitation=settings,
        training=settings.model_copy(update={"optimizer": Choice(name=method)}),
        data=data or DataSource(kind="embedded"),
        init="",
        demonstrations=Demonstrations(limit=8, unquoted_years=0.85, undivided_percentages=0.0),
        candidates=Candidates(each=3, temperature=0.8, top_p=0.9, limit=5),
        pair_rule="right-wrong",
        compare_with=("outputs/run_009",),
        final_test=None,
        plots=False,
    )


def parsed(step: Step) -> None:
    """Raises unless the command exists and takes these arguments; nothing is run."""
    name, *rest = step.arguments
    command = typer.main.get_command(importlib.import_module(COMMANDS[name][0]).app)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    command.make_context(name, rest)


@pytest.mark.parametrize(
    ("method", "trained"),
    [("ppo", ["05_ppo"]), ("grpo", ["06_grpo"]), ("rloo", ["07_rloo"]), ("dpo", ["08_prefs", "09_dpo"])],
)
def test_every_step_is_a_command_that_exists(method: str, trained: list[str]) -> None:
    assert method in METHODS
    steps = plan(spec_of(method), RUN)
    assert [step.name for step in steps] == [
        *("00_data_validation", "01_dataset", "01_dataset/demonstrations", "02_rewards", "03_sft", "04_candidates"),
        *(*trained, "10_eval", "10_eval/sft", "11_compare"),
    ]
    for step in steps:
        parsed(step)
    known = {step.name for step in steps} | {"settings/imitation.json", "settings/training.json"}
    assert all(set(step.reads) <= known for step in steps)
    by_name = {step.name: " ".join(step.arguments) for step in steps}
    assert "engine.options.unquoted_years=0.85" in by_name["01_dataset/demonstrations"]
    assert "undivided" not in by_name["01_dataset/demonstrations"]
    assert f"--model {RUN}/03_sft" in by_name[trained[-1]] and f"sample {RUN}/03_sft" in by_name["04_candidates"]
    asked = [by_name[name].partition(" --config ")[2].partition(" --run-dir")[0] for name in ("10_eval", "10_eval/sft")]
    assert asked[0] == asked[1]  # both policies meet the same questions under the same rules
    for name in ("04_candidates", "10_eval"):  # by no rules that the imitating policy was trained under
        assert "--environment finqa --reward environment --max-steps 8 --max-gen-tokens 160" in by_name[name]
    assert method != "dpo" or "--rule right-wrong" in by_name["08_prefs"]
    assert by_name["11_compare"].endswith(
        f"{RUN}/10_eval/sft {RUN}/10_eval outputs/run_009 --baseline sft --no-plots --out {RUN}/11_compare"
    )


def test_steps_of_a_final_test_are_commands_that_exist() -> None:
    final = DataSource(kind="rows", path="test.json", files=("test.json",), digest="sha256:2")
    rows = DataSource(kind="rows", path="a", files=("a/train.jsonl",), digest="sha256:1")
    spec = replace(spec_of("dpo", data=rows), final_test=final)
    steps = plan(spec, RUN)
    assert [step.name for step in steps if step.name.count("final_test")] == [
        *("01_dataset/final_test", "10_eval/final_test", "10_eval/final_test_sft", "11_compare/final_test")
    ]
    for step in steps:
        parsed(step)
    assert read_spec(json.loads(json.dumps(spec.document()))).document() == spec.document()


def test_a_reward_with_tests_has_them_run() -> None:
    settings = load_settings(flags={"reward.name": "weighted"}).settings
    steps = plan(spec_of(settings=settings), RUN)
    (tests,) = [step for step in steps if step.name == "02_rewards/unit_tests"]
    parsed(tests)
    assert tests.command == "rewards test"
    untested = plan(spec_of(settings=load_settings(flags={"reward.name": "graded"}).settings), RUN)
    assert "02_rewards/unit_tests" not in [step.name for step in untested]
    with pytest.raises(ConfigError, match="nonsense"):
        plan(spec_of(settings=load_settings(flags={"reward.name": "nonsense"}).settings), RUN)


def test_steps_are_found_by_name_number_or_word() -> None:
    steps = plan(spec_of("dpo"), RUN)
    for wanted, name in {
        "03_sft": "03_sft",
        "04": "04_candidates",
        "prefs": "08_prefs",
        "10_eval/sft": "10_eval/sft",
    }.items():
        assert steps[find_step(steps, wanted)].name == name
    for wanted in ("06", "nothing", "", "_"):
        with pytest.raises(UsageError, match="This pipeline has no step") as refused:
            find_step(steps, wanted)
        assert "08_prefs" in refused.value.remedy


def test_a_specification_is_the_same_after_a_way_through_json() -> None:
    spec = spec_of(data=DataSource(kind="rows", path="a", files=("a/train.jsonl",), digest="sha256:1"))
    document = json.loads(json.dumps(spec.document()))
    assert read_spec(document).document() == document and differences(document, spec.document()) == []
    other = replace(spec, candidates=replace(spec.candidates, each=4))
    assert differences(document, other.document()) == ["candidates.each: 3, now 4"]
    with pytest.raises(DataError, match="cannot be read"):
        read_spec({**document, "candidates": {"of": 1}})


def test_defaults_give_way_to_whoever_says_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[train]\niterations = 7\n")
    loaded = load_settings(files=[file], assignments=["eval.limit=5"])
    wanted = {"train.iterations": 2, "eval.limit": 3, "train.group_size": 4, "optimizer.options.epochs": 1.0}
    found = with_defaults(loaded, wanted)
    assert (found.train.iterations, found.eval.limit, found.train.group_size) == (7, 5, 4)
    assert found.optimizer.options == {"epochs": 1.0}


def test_no_key_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    origins = {"engine.options.api_key": "--set engine.options.api_key", "train.seed": "default"}
    with pytest.raises(ConfigError, match="is a secret") as refused:
        check_secrets(replace(load_settings(), origins=origins))
    assert "FINQA_ENGINE__OPTIONS__API_KEY" in refused.value.remedy
    by_variable: Loaded = replace(load_settings(), origins={"engine.options.api_key": "environment FINQA_X"})
    check_secrets(by_variable)
    monkeypatch.setenv("FINQA_ENGINE__OPTIONS__API_KEY", "sk-hidden")
    settings = load_settings(flags={"engine.options.max_batch": 4}).settings
    assert settings.engine.options["api_key"] == "sk-hidden"
    written = settings_document(settings, data=None, snapshot="mine")
    assert written["engine"]["options"]["max_batch"] == 4 and "sk-hidden" not in json.dumps(written)


def test_settings_files_say_all_that_a_step_depends_on(tmp_path: Path) -> None:
    settings = load_settings(flags={"train.iterations": 3, "generation.max_steps": 20}).settings
    file = tmp_path / "training.json"
    file.write_text(json.dumps(settings_document(settings, data=Path("01"), snapshot="mine")))
    read = load_settings(files=[file]).settings
    data = settings.data.model_copy(update={"path": Path("01"), "snapshot": "mine"})
    assert to_public_dict(read) == to_public_dict(settings.model_copy(update={"data": data}))


def test_data_is_found_by_what_the_environment_takes(tmp_path: Path, finqa_home: Path) -> None:
    folder = tmp_path / "my data!"
    folder.mkdir()
    (folder / "dataset.json").write_text("{}")
    tools = load_settings().settings
    assert find_data(tools, named=False).kind == "embedded" and find_data(tools, named=True).kind == "snapshot"
    of_folder = tools.model_copy(update={"data": tools.data.model_copy(update={"path": folder})})
    found = find_data(of_folder, named=False)
    assert found.kind == "folder" and found.snapshot.startswith("my-data-") and found.digest.startswith("sha256:")
    (folder / "dataset.json").write_text("[]")
    check_unchanged(find_data(of_folder, named=False))
    with pytest.raises(ConfigError, match="has changed since the pipeline was started"):
        check_unchanged(found)
    missing = tools.model_copy(update={"data": tools.data.model_copy(update={"path": tmp_path / "none"})})
    with pytest.raises(DataError, match="There is no data folder"):
        find_data(missing, named=False)


def test_question_files_are_divided_by_company_unless_overlap_is_allowed(tmp_path: Path) -> None:
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.json").write_text(json.dumps([FINQA_ROW]))
    (tmp_path / "notes.json").write_text("{}")
    settings = load_settings(flags={"environment.name": "finqa-text", "data.path": tmp_path}).settings
    found = find_data(settings, named=False)
    assert found.kind == "finqa" and [Path(file).name for file in found.files] == ["dev.json", "train.json"]
    steps = {step.name: " ".join(step.arguments) for step in plan(spec_of(settings=settings, data=found), RUN)}
    assert "--split-by company" in steps["01_dataset"] and "00_data_validation/dev" in steps
    assert data_path(found, RUN) == RUN / "01_dataset"
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"allow_overlap": True})})
    assert len(find_data(settings, named=False).files) == 3


@pytest.mark.parametrize(
    ("text", "kind"),
    [('{"id": "a", "input_text": "how much?", "question": "how much?", "target_answer": "1"}\n', "rows"), ("", None)],
)
def test_other_question_files_are_taken_as_they_are(tmp_path: Path, text: str, kind: str | None) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(text)
    settings = load_settings(flags={"environment.name": "finqa-text", "data.path": file}).settings
    if kind is None:
        with pytest.raises(DataError, match="has no rows"):
            find_data(settings, named=False)
        return
    found = find_data(settings, named=False)
    assert found.kind == kind and data_path(found, RUN) == file
    for step in plan(spec_of(settings=settings, data=found), RUN):
        parsed(step)
