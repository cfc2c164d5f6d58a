"""From experiment files and variables to cells, their commands and what they will take."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main
from fixtures.finqa_text_rows import prepared, write

from finqa_cli.app import COMMANDS
from finqa_cli.commands.experiment import plan_document, plan_text
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.experiments.experiment_file import read_experiment
from finqa_cli.experiments.experiment_plan import (
    ExperimentPlan,
    differing_settings,
    estimates,
    plan_experiment,
    prepare_steps,
    read_plan,
    row_warnings,
    settings_file,
    settings_of,
    steps_of,
    total,
)
from finqa_cli.experiments.experiment_run import check_cells
from finqa_cli.experiments.step_settings import check_options
from finqa_cli.extend import registry
from finqa_cli.settings import Loaded, load_settings

pytestmark = pytest.mark.usefixtures("empty_folder")

SMALL = """
[experiment]
name = "small"
cell = "{size}-{way}"
compare_within = "size"

[variables]
N = 4
RATE = 1e-3
WEIGH = true
FOLDER = "here"

[settings.train]
group_size = "=N"
learning_rate = "=RATE"

[settings.environment]
name = "finqa-text"

[axes.size.a]
[axes.size.b.lora]
rank = 2
[axes.way.plain]
[axes.way.many]
N = 8

[measures]
accuracy = { better = "higher", of = "accuracy" }

[[questions]]
name = "number"
ask = "Are many better?"
axis = "way"
pairs = [["many", "plain"]]
measures = ["accuracy"]
"""


def resolve(files: Sequence[str], settings: Mapping[str, Any]) -> Loaded:
    return load_settings(flags=settings, files=files)


def planned(
    text: str = SMALL, environment: Mapping[str, str] | None = None, only: Sequence[str] = (), seeds: Sequence[int] = ()
) -> tuple[ExperimentPlan, Path]:
    if text.startswith("\n"):
        Path("small.toml").write_text(text)
        text = "small.toml"
    document, file = read_experiment(text)
    return plan_experiment(
        document, file, environment=environment or {}, resolve=resolve, output=None, only=only, seeds=seeds
    )


def test_the_published_matrix_is_eight_cells_with_the_published_settings() -> None:
    plan, run = planned("financial_qa")
    variants = ("default", "no_uncertain", "rollout4", "rollout12")
    assert list(plan.cells) == [f"qwen3_{size}_{variant}" for size in ("4b", "8b") for variant in variants]
    assert run == Path("outputs/financial_qa") and plan.name == "financial_qa"
    for name, cell in plan.cells.items():
        settings = settings_of(cell)
        size, variant = cell.choices["model"], cell.choices["variant"]
        assert settings.model.name == f"catherpker/stockr1-qwen3-{size}" and cell.group == size
        assert settings.train.group_size == {"rollout4": 4, "rollout12": 12}.get(variant, 8)
        options = settings.environment.options
        assert options["uncertainty"] == ("off" if variant == "no_uncertain" else "advantage")
        assert options["match"] == f"_{size}_" and options["profile"] == "versatile"
        assert settings.train.iterations == 10 * 312 and settings.train.learning_rate == 1e-6
        assert settings.pool.concurrency // settings.train.group_size == 64, "questions in a step"
        assert (settings.generation.max_gen_tokens, settings.model.max_model_len) == (2048, 6144)
        assert (settings.optimizer.options["kl_coef"], settings.train.grpo_update_batch_size) == (0.001, 2)
        assert (settings.train.eval_every, settings.train.checkpoint_every) == (100, 100)
        assert settings.run.project == "fin_text_qa" and [one.name for one in settings.trackers] == ["wandb"]
        check_options(settings)
        training, evaluation = steps_of(plan, name, run)
        assert settings.train.learner_processes == 4 and training.arguments[0] == "train"
        assert "environment.options.confidence=true" in evaluation.arguments
    check_cells(plan, ())


def test_another_split_of_the_evaluation_is_given_once() -> None:
    plan, run = planned(SMALL + '[evaluation.data]\neval_split = "test"\n[evaluation.eval]\nattempts = 2\n')
    arguments = steps_of(plan, "a-plain", run)[1].arguments
    assert arguments[arguments.index("--split") + 1] == "test"
    assert [arguments[at + 1] for at, word in enumerate(arguments) if word == "--set"] == ["eval.attempts=2"]


def test_variables_of_the_environment_change_the_cells_that_do_not_decide_themselves() -> None:
    given = {
        "ROLLOUT_N": "16",
        "USE_UNCERTAINTY": "false",
        "EPOCHS": "5",
        "LR": "5e-6",
        "EXP_NAME": "mine",
        "HOME": "/",
    }
    plan, run = planned("financial_qa", given, only=["qwen3_4b_default"])
    settings = settings_of(plan.cells["qwen3_4b_default"])
    assert (settings.train.group_size, settings.train.iterations, settings.train.learning_rate) == (16, 1560, 5e-6)
    assert settings.environment.options["uncertainty"] == "off" and run == Path("outputs/mine")
    assert settings_of(plan.cells["qwen3_4b_rollout4"]).train.group_size == 4
    assert plan.given == {"ROLLOUT_N": 16, "USE_UNCERTAINTY": False, "EPOCHS": 5, "LR": 5e-6, "EXP_NAME": "mine"}


def test_the_devices_that_sample_are_shared_out_among_copies_of_the_published_size() -> None:
    plan, _ = planned("financial_qa", {"TP_SIZE": "2"}, only=["qwen3_4b_default"])
    settings = settings_of(plan.cells["qwen3_4b_default"])
    assert (settings.model.tensor_parallel_size, settings.generation.engine_replicas) == (2, 2)


@pytest.mark.parametrize(
    ("environment", "only", "told"),
    [
        ({"N": "many"}, (), "must be a whole number"),
        ({"RATE": "x"}, (), "must be a number"),
        ({"WEIGH": "perhaps"}, (), "must be true or false"),
        ({"N": "2"}, ("*-many",), "N has no effect"),
        ({"N": "8"}, (), "a-plain and a-many have the same settings"),
        ({"N": "1"}, ("a-plain",), "Cell a-plain: train.group_size"),
    ],
)
def test_variables_that_cannot_be_meant_are_told(environment: dict[str, str], only: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(environment=environment, only=only)
    assert told in raised.value.message and raised.value.remedy


def test_cells_that_are_not_chosen_may_be_alike() -> None:
    plan, _ = planned(environment={"N": "8"}, only=["a-plain"])
    assert settings_of(plan.cells["a-plain"]).train.group_size == 8
    with pytest.raises(UsageError, match="There is no cell 'c-"):
        planned(only=["c-*"])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('cell = "{size}-{way}"', 'cell = "{size}"', "Several cells are called 'a'"),
        ('cell = "{size}-{way}"', 'cell = "{sise}"', "there is no axis 'sise'"),
        ('cell = "{size}-{way}"', 'cell = "../{size}{way}"', "cannot name a folder"),
        ("N = 8", "M = 8", "axes.way.many.M"),
        ("N = 4", "n = 4", "names of variables must be in capitals"),
        ("N = 4", "RUN = 4", "RUN and HERE are taken"),
        ('group_size = "=N"', 'group_size = "=K"', "there is no variable K"),
        ('group_size = "=N"', 'grup_size = "=N"', "There is no setting 'train.grup_size' (file small.toml:14)"),
        ("rank = 2", "rang = 2", "There is no setting 'lora.rang'"),
        ('compare_within = "size"', 'compare_within = "sise"', "there is no axis 'sise'"),
        ('axis = "way"', 'axis = "size"', "which is not an axis of the experiment"),
        ('["many", "plain"]', '["many", "few"]', "axis way has no choice 'few'"),
        ('measures = ["accuracy"]', 'measures = ["ece"]', "there is no measure 'ece'"),
        ('better = "higher"', 'better = "taller"', "measures.accuracy.better"),
        ("[measures]", "[mesures]", "mesures"),
        ("[experiment]", "[experiments]", "is not an experiment"),
        ('name = "small"', 'name = "=1 / 0"', "has no result"),
    ],
)
def test_mistakes_in_a_file_are_told_with_their_place(old: str, new: str, told: str) -> None:
    assert SMALL.count(old) == 1
    with pytest.raises(ConfigError) as raised:
        planned(SMALL.replace(old, new))
    assert told in raised.value.message and raised.value.remedy


def test_a_file_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"There is no settings file nowhere\.toml"):
        read_experiment("nowhere.toml")
    with pytest.raises(ConfigError, match="financial_qa, financial_qa_tiny"):
        read_experiment("nothing")


def test_a_plan_can_be_written_and_read() -> None:
    plan, _ = planned(seeds=(1, 2))
    assert list(plan.cells)[:2] == ["a-plain_seed1", "a-plain_seed2"] and len(plan.cells) == 8
    assert {cell.label for cell in plan.cells.values()} == {"a-plain", "a-many", "b-plain", "b-many"}
    assert settings_of(plan.cells["b-many_seed2"]).train.seed == 2
    assert read_plan(json.loads(json.dumps(plan.document()))) == plan
    assert set(differing_settings(plan)) == {"train.group_size", "train.seed", "lora.rank"}
    with pytest.raises(DataError, match="cannot be read"):
        read_plan({"name": "x"})


def test_seeds_of_the_file_and_of_a_choice() -> None:
    text = SMALL.replace('compare_within = "size"', 'compare_within = "size"\nseeds = [0, 1]')
    plan, run = planned(text)
    assert list(plan.cells)[:3] == ["a-plain_seed0", "a-plain_seed1", "a-many_seed0"] and len(plan.cells) == 8
    assert len({step.name for cell in plan.cells for step in steps_of(plan, cell, run)}) == 16
    assert total(estimates(plan, run)) is None and len(estimates(plan, run)) == 8
    of_choice, _ = planned(text.replace("N = 8", "N = 8\nseeds = [4, 5, 6]"))
    seeds = [(cell.label, settings_of(cell).train.seed) for cell in of_choice.cells.values() if cell.group == "a"]
    assert seeds == [("a-plain", 0), ("a-plain", 1), ("a-many", 4), ("a-many", 5), ("a-many", 6)]
    given, _ = planned(text.replace("N = 8", "N = 8\nseeds = [4, 5, 6]"), seeds=(9,))
    assert list(given.cells) == ["a-plain", "a-many", "b-plain", "b-many"], "the command line replaces both"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("compare_within", "seeds = [1, 1]\ncompare_within", r"experiment.seeds .* not a list of different natural"),
        ("compare_within", "seeds = [-1]\ncompare_within", r"experiment.seeds .* not a list of different natural"),
        ("N = 8", "seeds = 3", r"axes.way.many.seeds .* not a list of different natural"),
        ("N = 8", "seeds = []", r"axes.way.many.seeds .* not a list of different natural"),
        ("N = 8", "seeds = [1]\n[axes.size.c]\nseeds = [2]", "sets different seeds for the same cell"),
        (
            "N = 8",
            "train.seed = 3",
            r"axes.way.many.train.seed .*write seeds = \[0, 1, 2\] under \[experiment\] instead",
        ),
    ],
)
def test_seeds_that_cannot_be_are_refused(old: str, new: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        planned(SMALL.replace(old, new))


def test_every_step_is_a_command_that_its_parser_takes() -> None:
    assert registry().find("environment", "forecast")
    for name in ("financial_qa", "financial_qa_tiny"):
        plan, run = planned(name)
        steps = [*prepare_steps(plan, run), *(step for cell in plan.cells for step in steps_of(plan, cell, run))]
        for step in steps:
            command = typer.main.get_command(importlib.import_module(COMMANDS[step.arguments[0]][0]).app)
            command.make_context(step.arguments[0], list(step.arguments[1:]), resilient_parsing=False)
        written = {name: load_settings(flags={}, files=[_written(plan, name)]).settings for name in plan.cells}
        assert all(written[name] == settings_of(cell) for name, cell in plan.cells.items())


def _written(plan: ExperimentPlan, name: str) -> Path:
    path = Path(f"{name}.json")
    path.write_text(json.dumps(settings_file(plan.cells[name])))
    return path


def test_estimates_are_of_the_published_time_until_something_is_measured() -> None:
    plan, run = planned("financial_qa")
    found = estimates(plan, run)
    default = found["qwen3_4b_default"]
    assert (default.iterations, default.attempts, default.evaluated) == (3120, 3120 * 64 * 8, 34 * 2000)
    assert default.hours == pytest.approx((48, 72)) and default.gpu_hours == pytest.approx((384, 576))
    assert default.cost == pytest.approx((960, 1440)) and default.source == "given"
    assert found["qwen3_8b_default"].hours == pytest.approx((96, 120))
    attempts, rounds = 3120 * 64 * 12 + 68000, 3120 * 64 * 8 + 68000
    assert found["qwen3_4b_rollout12"].hours == pytest.approx((48 * attempts / rounds, 72 * attempts / rounds))
    sum_of_all = total(found)
    assert sum_of_all is not None and sum_of_all[0] == pytest.approx(
        sum(one.hours[0] for one in found.values() if one.hours)
    )
    folder = run / "runs" / "qwen3_4b_default"
    folder.mkdir(parents=True)
    line = {"kind": "train", "episodes": 512, "timing": {"iteration_s": 51.2}}
    (folder / "run.json").touch()
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n" + '{"torn')
    measured = estimates(plan, run)["qwen3_4b_rollout4"]
    assert measured.source == "measured"
    assert measured.hours == pytest.approx([(3120 * 64 * 4 + 68000) * 0.1 / 3600] * 2)
    assert estimates(plan, run)["qwen3_8b_default"].source == "given", "another model"


RATED = (
    SMALL
    + """
[settings.data]
path = "rows"

[rates]
prompt_tokens = 10
response_tokens = 10
seconds_per_attempt = [1, 2]
questions = "=3 * N"
evaluated = 4
"""
)


def test_numbers_of_questions_are_compared_with_the_data() -> None:
    plan, _ = planned(RATED)
    chosen = list(plan.cells)
    (told,) = row_warnings(plan, chosen)
    assert told.startswith("a-plain, a-many, b-plain, b-many: ") and told.endswith("there is no data at rows.")
    rows = [prepared(number, id=f"C{number}/2018/page_1.pdf-1") for number in range(16)]
    Path("rows").mkdir()
    write(Path("rows/train.jsonl"), *rows[:12])
    write(Path("rows/dev.jsonl"), *rows[12:])
    (told,) = row_warnings(plan, chosen)
    assert told.startswith("a-many, b-many: the plan assumes 24 training questions, and split 'train' has 12: ")
    assert row_warnings(plan, ["a-plain", "b-plain"]) == [] == row_warnings(planned()[0], chosen)
    write(Path("rows/dev.jsonl"), *rows[13:])
    (told,) = row_warnings(plan, ["a-plain"])
    assert "the plan assumes 4 attempts in an evaluation, and split 'dev' has 3: " in told
    Path("rows/dev.jsonl").write_text("{\n" * 3)
    (told,) = row_warnings(plan, ["a-plain"])
    assert "in the plan cannot be compared with the data: " in told and "dev.jsonl" in told


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ("", "Cost: not known, because the file has no gpu_hour_price (USD for one GPU and hour) under [rates]."),
        ("gpu_hour_price = 2.5", "Cost: GPU-hours at 2.5 USD each, as set in the file; other costs are not included."),
    ],
)
def test_a_plan_says_what_costs_are_made_of(rates: str, told: str) -> None:
    plan, run = planned(RATED + rates)
    document = plan_document(plan, run, list(plan.cells))
    shown = plan_text(document, plan, run)
    assert told in shown and "cost, USD" in shown and "warning: a-plain" in shown
    assert document["cells"]["a-plain"]["estimate"]["gpu_hour_price"] == (2.5 if rates else None)


def test_without_rates_only_attempts_are_counted() -> None:
    plan, run = planned()
    one = estimates(plan, run)["a-plain"]
    assert one.attempts == 24 * 12 * 4 and one.source == "none"
    assert one.hours is None and one.cost is None and one.tokens is None and total(estimates(plan, run)) is None


def test_variants_that_are_one_algorithm_under_the_settings_are_refused() -> None:
    def variants(steps: int) -> str:
        text = SMALL.replace("[axes.way.plain]\n", '[axes.way.plain.optimizer.options]\nvariant = "grpo"\n')
        text = text.replace("[axes.way.many]\nN = 8\n", '[axes.way.many.optimizer.options]\nvariant = "gspo"\n')
        return text.replace("[settings.train]\n", f"[settings.train]\nupdates_per_iteration = {steps}\n")

    with pytest.raises(ConfigError, match=r"Cell a-many: .*variant=gspo .*so that gspo is grpo"):
        planned(variants(1))
    plan, _ = planned(variants(4))
    assert len(plan.cells) == 4


def test_a_variable_without_effect_names_the_setting_that_has_one() -> None:
    with pytest.raises(ConfigError, match="MODEL_PATH has no effect") as caught:
        planned("financial_qa", environment={"MODEL_PATH": "/models/local-4b"}, only=["qwen3_4b_*"])
    assert caught.value.remedy.startswith("--set model.name=/models/local-4b ")
