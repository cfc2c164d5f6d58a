from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.settings import PLACED, Loaded, load_settings
from finqa_cli.settings.layers import (
    NEVER_FROM_DOTENV,
    assignment_text,
    known_paths,
    parse_text,
    section_fields,
)
from finqa_cli.settings.schema import BARE_NAMES
from finqa_cli.wiring.command_settings import limit_evaluation, read_layers

pytestmark = pytest.mark.usefixtures("empty_folder", "_no_gpu")


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def value(loaded: Loaded, path: str) -> Any:
    section, field, *option = path.split(".")
    found = getattr(getattr(loaded.settings, section), field)
    return found[option[0]] if option else found


SEED_DEFAULTS = {
    "pool.sandboxes": 500,
    "pool.max_concurrent_create": 100,
    "pool.max_concurrent_play": 200,
    "pool.max_play_retries": 3,
    "data.snapshot": "openenv-finqa",
    "generation.max_gen_tokens": 512,
    "generation.temperature": 1.0,
    "generation.max_steps": 20,
    "generation.rollout_dispatch_wait_ms": 500,
    "train.iterations": 10,
    "train.group_size": 6,
    "train.target_groups_per_iter": 100,
    "train.max_rollout_rounds": 8,
    "train.learning_rate": 8e-5,
    "train.grpo_update_batch_size": 12,
    "train.gradient_checkpointing": None,
    "train.sync_every": 1,
    "lora.rank": 16,
    "lora.alpha": 32,
    "lora.dropout": 0.0,
    "lora.target_modules": (),  # the learner adapts q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj
}


@pytest.mark.parametrize(("path", "expected"), SEED_DEFAULTS.items())
def test_defaults_for_a_hub_model_are_those_of_the_published_run(path: str, expected: object) -> None:
    loaded = load_settings(flags={"model.name": "Qwen/Qwen3-14B", "engine.name": "vllm"})
    assert value(loaded, path) == expected

    assert loaded.origins[path] == "default"


@pytest.mark.parametrize(
    ("flags", "rates"),
    [
        ({}, (8e-5, 2e-4)),
        ({"lora.rank": 0}, (4e-6, 1e-5)),
        ({"optimizer.name": "dpo"}, (2e-4, 2e-4)),
        ({"optimizer.name": "dpo", "lora.rank": 0}, (1e-5, 1e-5)),
        ({"lora.rank": 0, "train.learning_rate": 3e-5, "sft.learning_rate": 4e-5}, (3e-5, 4e-5)),
    ],
    ids=str,
)
def test_the_learning_rate_is_that_of_what_is_trained(flags: dict[str, object], rates: tuple[float, float]) -> None:
    train = read_layers(flags={"model.name": "some/model", **flags}).settings
    assert (train.train.learning_rate, train.sft.learning_rate) == rates


def test_what_the_placement_plan_decides_is_open_until_it_is_set() -> None:
    loaded = load_settings(flags={"model.name": "Qwen/Qwen3-14B"})
    assert loaded.undecided == set(PLACED)
    assert loaded.origins["model.tensor_parallel_size"] == "auto"
    asked = load_settings(flags={"model.name": "Qwen/Qwen3-14B", "model.tensor_parallel_size": 2})
    assert value(asked, "model.tensor_parallel_size") == 2
    assert asked.undecided == set(PLACED) - {"model.tensor_parallel_size"}


VARIABLES: dict[str, tuple[str, object]] = {
    "SANDBOX_COUNT": ("7", 7),
    "SESSIONS_PER_SANDBOX": ("3", 3),
    "MAX_CONCURRENT_CREATE": ("8", 8),
    "MAX_CONCURRENT_PLAY": ("9", 9),
    "MAX_PLAY_RETRIES": ("0", 0),
    "MODEL_NAME": ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
    "TENSOR_PARALLEL_SIZE": ("4", 4),
    "GPU_MEMORY_UTILIZATION": ("0.5", 0.5),
    "MAX_GEN_TOKENS": ("64", 64),
    "TEMPERATURE": ("0.7", 0.7),
    "LEARNING_RATE": ("1e-5", 1e-5),
    "LORA_RANK": ("8", 8),
    "LORA_ALPHA": ("16", 16),
    "LORA_DROPOUT": ("0.1", 0.1),
    "LORA_TARGET_MODULES": ("q_proj, v_proj", ("q_proj", "v_proj")),
    "EPISODES_PER_GROUP": ("12", 12),
    "TRAINING_ITERATIONS": ("3", 3),
    "TARGET_GROUPS_PER_ITER": ("0", 0),
    "MAX_ROLLOUT_ROUNDS": ("2", 2),
    "ROLLOUT_DISPATCH_WAIT_MS": ("0", 0),
    "GRPO_UPDATE_BATCH_SIZE": ("24", 24),
    "SYNC_EVERY": ("5", 5),
    "FINQA_HOME": ("/tmp/elsewhere", Path("/tmp/elsewhere")),
    "FINQA_GRADER": ("strict-1", "strict-1"),
}


def test_each_variable_with_a_name_of_its_own_is_tried_below() -> None:
    assert set(VARIABLES) == set(BARE_NAMES)
    assert set(BARE_NAMES.values()) <= {*known_paths(), "environment.options.grader"}


@pytest.mark.parametrize("source", ["environment", ".env"])
@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_sets_its_setting(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, expected = VARIABLES[name]
    monkeypatch.delenv(name, raising=False)
    if source == ".env":
        monkeypatch.setenv(name, "")  # an empty value counts as not set; monkeypatch undoes what load_settings does
        Path(".env").write_text(f"{name}='{text}'\n")
    else:
        monkeypatch.setenv(name, text)
    loaded = load_settings()
    assert value(loaded, BARE_NAMES[name]) == expected
    assert loaded.origins[BARE_NAMES[name]] == f"{source} {name}"


def test_later_layers_win(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "train.group_size"

    def layer() -> tuple[object, str]:
        loaded = load_settings(flags=flags, assignments=assignments)
        return value(loaded, path), loaded.origins[path]

    flags: dict[str, object] = {path: None}
    assignments: list[str] = []
    assert layer() == (8, "profile embedded")
    Path("finqa.toml").write_text("[train]\ngroup_size = 3\n")
    assert layer() == (3, "file finqa.toml:2")
    Path(".env").write_text("EPISODES_PER_GROUP=4\n")
    assert layer() == (4, ".env EPISODES_PER_GROUP")
    monkeypatch.setenv("EPISODES_PER_GROUP", "5")
    assert layer() == (5, "environment EPISODES_PER_GROUP")
    flags[path] = 6
    assert layer() == (6, "flag")
    assignments.append("train.group_size=7")
    assert layer() == (7, "--set")


def test_the_profile_applies_to_the_embedded_model_only() -> None:
    assert load_settings().origins["train.group_size"] == "profile embedded"
    assert load_settings(flags={"model.name": "some/model"}).origins["train.group_size"] == "default"


def test_every_setting_answers_to_a_nested_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINQA_TRAIN__GROUP_SIZE", "4")
    monkeypatch.setenv("FINQA_TRAIN__SHUFFLE_REWARDS", "true")
    monkeypatch.setenv("FINQA_ENGINE", "scripted")
    monkeypatch.setenv("FINQA_ENGINE__OPTIONS__CARELESS", "0.5")
    monkeypatch.setenv("FINQA_TRACKERS", "console,wandb")
    loaded = load_settings()
    assert loaded.settings.train.group_size == 4 and loaded.settings.train.shuffle_rewards
    assert loaded.settings.engine.name == "scripted" and loaded.settings.engine.options == {"careless": 0.5}
    assert [tracker.name for tracker in loaded.settings.trackers] == ["console", "wandb"]


@pytest.mark.parametrize("suffix", ["toml", "yaml"])
def test_files_may_be_toml_or_yaml(suffix: str) -> None:
    file = Path(f"mine.{suffix}")
    texts = {
        "toml": 'engine = "scripted"\ntrackers = ["console"]\n[sandbox]\nname = "local"\noptions = {a = 1}\n',
        "yaml": "engine: scripted\ntrackers: [console]\nsandbox: {name: local, options: {a: 1}}\n",
    }
    file.write_text(texts[suffix])
    settings = load_settings(files=[file]).settings
    assert settings.engine.name == "scripted"
    assert (settings.sandbox.name, settings.sandbox.options) == ("local", {"a": 1})
    assert [tracker.name for tracker in settings.trackers] == ["console"]


@pytest.mark.parametrize(
    ("assignment", "path", "expected"),
    [
        ("model.name=Qwen/Qwen3-0.6B", "model.name", "Qwen/Qwen3-0.6B"),
        ('model.name="quoted"', "model.name", "quoted"),
        ("data.snapshot=2024", "data.snapshot", "2024"),
        ("train.learning_rate=1e-4", "train.learning_rate", 1e-4),
        ("train.gradient_checkpointing=false", "train.gradient_checkpointing", False),
        ('lora.target_modules=["q_proj"]', "lora.target_modules", ("q_proj",)),
        ("lora.target_modules=q_proj,k_proj", "lora.target_modules", ("q_proj", "k_proj")),
        ("engine=scripted", "engine.name", "scripted"),
        ("sandbox.options.careless=0.5", "sandbox.options", {"careless": 0.5}),
        ("sandbox.options.note=plain words", "sandbox.options", {"note": "plain words"}),
    ],
)
def test_assignments_take_toml_values_and_plain_text(assignment: str, path: str, expected: object) -> None:
    assert value(load_settings(assignments=[assignment]), path) == expected


def test_a_member_of_an_option_is_set_by_its_dotted_name() -> None:
    Path("finqa.toml").write_text("[environment]\nname = 'openenv'\n[environment.options]\nvariables = {A = 'file'}\n")
    loaded = load_settings(assignments=["environment.options.variables.B_C=x", "environment.options.reset.size.w=3"])
    options = loaded.settings.environment.options
    assert options == {"variables": {"A": "file", "B_C": "x"}, "reset": {"size": {"w": 3}}}
    assert loaded.origins["environment.options.variables.B_C"] == "--set"
    with pytest.raises(UsageError, match=r"both set environment\.options\.reset\.a"):
        load_settings(assignments=["environment.options.reset={a=1}", "environment.options.reset.a=2"])


def test_naming_another_component_drops_the_options_of_the_earlier_one() -> None:
    Path("finqa.toml").write_text('[engine]\nname = "scripted"\n[engine.options]\ncareless = 0.5\n')
    assert load_settings().settings.engine.options == {"careless": 0.5}
    assert load_settings(flags={"engine.name": "scripted"}).settings.engine.options == {"careless": 0.5}
    other = load_settings(flags={"engine.name": "transformers"}, assignments=["engine.options.dtype=float32"])
    assert other.settings.engine.options == {"dtype": "float32"}


def test_keys_of_services_in_dotenv_reach_the_environment_without_overriding_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setenv("DAYTONA_API_KEY", "")
    monkeypatch.setenv("SOME_OTHER_SERVICE", "from the shell")
    Path(".env").write_text("DAYTONA_API_KEY=key-from-file\nSOME_OTHER_SERVICE=from the file\n")
    load_settings()
    assert os.environ["DAYTONA_API_KEY"] == "key-from-file"
    assert os.environ["SOME_OTHER_SERVICE"] == "from the shell"


BAD_FILES = {
    "[train]\ngroup_size = = 3\n": "line 2, column 14",
    "[trian]\ngroup_size = 3\n": "Did you mean 'train",
    '"train.group_size" = 3\n': "is written as one name (file bad.toml), not as a key of the section train",
    "[train]\ngroup_sise = 3\n": "Did you mean 'train.group_size'",
    "train = 3\n": "must be a table",
    "[engine]\noptions = 3\n": "must be a table of options",
    "[train]\ngroup_size = 0\n": "greater than or equal to 1",
    "[train]\nlearning_rate = nan\n": "finite number",
    "trackers = 3\n": "trackers",
}


@pytest.mark.parametrize(("text", "reason"), BAD_FILES.items())
def test_a_bad_file_is_explained(text: str, reason: str) -> None:
    Path("bad.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(files=["bad.toml"])
    assert "bad.toml" in caught.value.message and reason in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["train: [1", "a: b: c", "- 1\n- 2\n", "\x00"])
def test_bad_yaml_is_explained(text: str) -> None:
    Path("bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_settings(files=["bad.yaml"])


def test_a_file_that_is_absent_binary_or_a_folder_is_explained(tmp_path: Path) -> None:
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    for file in (Path("absent.toml"), Path("binary.toml"), tmp_path):
        with pytest.raises(ConfigError, match=file.name):
            load_settings(files=[file])


@pytest.mark.parametrize(
    ("assignment", "error", "reason"),
    [
        ("train.group_sze=3", ConfigError, "Did you mean 'train.group_size'"),
        ("group_size=3", ConfigError, "Did you mean 'train.group_size'"),
        ("train=3", ConfigError, "no setting 'train'"),
        ("engine.option.a=3", ConfigError, "no setting"),
        ("engine.options.a..b=3", ConfigError, "no setting"),
        ("engine.options..a=3", ConfigError, "no setting"),
        ("engine.options.a.=3", ConfigError, "no setting"),
        ("engin.options.a.b=3", ConfigError, "no setting"),
        ("train.group_size", UsageError, "section.key=value"),
        ("=3", UsageError, "section.key=value"),
        ("train.group_size=many", ConfigError, r"train.group_size = 'many' \(--set\)"),
        ("generation.temperature=-1", ConfigError, "greater than or equal to 0"),
        ("model.name=", ConfigError, "at least 1 character"),
    ],
)
def test_a_bad_assignment_is_explained(assignment: str, error: type[ConfigError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        load_settings(assignments=[assignment])


ANY_TEXT = {"FINQA_HOME", "MODEL_NAME", "LORA_TARGET_MODULES", "FINQA_GRADER"}
"""Variables of settings that take any text; the grader is checked by its environment."""


@pytest.mark.parametrize("name", sorted(set(BARE_NAMES) - ANY_TEXT))
def test_a_bad_variable_is_named_in_the_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "plenty")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert f"environment {name}" in caught.value.message and name in caught.value.remedy


def test_an_unknown_nested_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINQA_TRAIN__GROUPSIZE", "4")
    with pytest.raises(ConfigError, match=r"FINQA_TRAIN__GROUPSIZE\).*Did you mean 'train.group_size'"):
        load_settings()


def test_every_section_refuses_unknown_fields_and_changes() -> None:
    settings = load_settings().settings
    assert set(section_fields()) == set(type(settings).model_fields)
    with pytest.raises(ValueError, match="frozen"):
        settings.train.group_size = 9  # type: ignore[misc]


@pytest.mark.parametrize("name", NEVER_FROM_DOTENV)
def test_a_dotenv_file_cannot_send_the_key_elsewhere(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    Path(".env").write_text(f"{name}=https://stranger.example/api\n")
    with pytest.raises(ConfigError, match=name):
        load_settings()
    Path(".env").write_text(f"{name.lower()}=https://stranger.example/api\n")
    with pytest.raises(ConfigError, match=name.lower()):
        load_settings()
    assert name not in os.environ
    Path(".env").write_text(f"{name}=https://stranger.example/api\n")
    monkeypatch.setenv(name, "https://app.daytona.io/api")
    load_settings()
    assert os.environ[name] == "https://app.daytona.io/api"


texts = st.text(st.characters(exclude_categories=("Cs",)))
plain = texts | st.sampled_from(["8", "true", "1e3", "a,b", "[1]", "'", '"', ""])
scalars = plain | st.integers(-(2**40), 2**40) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)


@given(scalars | st.lists(scalars, max_size=3) | st.dictionaries(texts.filter(bool), scalars, max_size=3))
def test_an_option_is_written_as_it_is_read(option: object) -> None:
    text = assignment_text("engine.options.anything", option)
    found = parse_text("engine.options.anything", text)
    assert found == option and type(found) is type(option) and text.isascii() and text.isprintable()


@given(plain)
def test_a_setting_of_text_is_written_as_it_is_read(name: str) -> None:
    assert parse_text("model.name", assignment_text("model.name", name)) == name


KEPT = ["1.10", "0x10", "1e3", "1_000", "true", "2024-01-01", "inf", "a,b", "q_proj k_proj", "007", "[1]", "{a=1}"]
INSTRUCTIONS = "FINQA_ENVIRONMENT__OPTIONS__INSTRUCTIONS"


def openenv(**layers: Any) -> dict[str, Any]:
    return read_layers(flags={"environment.name": "openenv"}, **layers).settings.environment.options


@pytest.mark.parametrize("text", KEPT)
def test_a_text_option_keeps_what_was_typed_in_every_layer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "environment.options"
    assert openenv(assignments=[f"{name}.variables.V={text}"]) == {"variables": {"V": text}}
    assert openenv(assignments=[f"{name}.instructions={text}"]) == {"instructions": text}
    Path(".env").write_text(f"FINQA_ENVIRONMENT=openenv\n{INSTRUCTIONS}='{text}'\n")
    assert read_layers(flags={}).settings.environment.options == {"instructions": text}
    Path(".env").unlink()
    monkeypatch.setenv("FINQA_ENVIRONMENT", "openenv")
    monkeypatch.setenv(INSTRUCTIONS, text)
    assert read_layers(flags={}).settings.environment.options == {"instructions": text}
    assert read_layers(flags={}, assignments=[f"data.snapshot={text}"]).settings.data.snapshot == text


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))).filter(lambda text: text.strip() == text))
def test_any_text_of_an_option_stays_as_it_is_typed(text: str) -> None:
    quoted = text[:1] in ("'", '"') and len(text) > 1 and text[-1] == text[0]
    if not quoted:
        assert openenv(assignments=[f"environment.options.instructions={text}"]) == {"instructions": text}


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("reset.seed", "0x10", 16),
        ("reset.share", "1.10", 1.1),
        ("reset.on", "true", True),
        ("tasks", "20", 20),
        ("tasks", "server", "server"),
        ("plain_text", "false", False),
        ("discount", "0.50", 0.5),
        ("fields", "board,legal", ["board", "legal"]),
        ("fields", "board legal", ["board", "legal"]),
        ("fields", '["board"]', ["board"]),
        ("observation_chars", "1e3", 1000.0),
        ("nonsense", "1", 1),
    ],
)
def test_other_options_have_the_value_that_the_text_means(option: str, text: str, expected: object) -> None:
    head, _, member = option.partition(".")
    found = openenv(assignments=[f"environment.options.{option}={text}"])[head]
    assert (found[member] if member else found) == expected


@pytest.mark.parametrize("text", ["q_proj,k_proj", "q_proj k_proj", " q_proj ,  k_proj, "])
def test_lists_have_commas_or_blanks_in_every_layer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, expected = "lora.target_modules", ("q_proj", "k_proj")
    assert value(load_settings(flags={path: text}), path) == expected
    assert value(load_settings(assignments=[f"{path}={text}"]), path) == expected
    assert value(load_settings(arguments=[(path, path, text)]), path) == expected
    Path("finqa.toml").write_text(f'[lora]\ntarget_modules = "{text}"\n')
    assert value(load_settings(), path) == expected
    monkeypatch.setenv("LORA_TARGET_MODULES", text)
    assert value(load_settings(), path) == expected


def test_a_variable_that_almost_names_a_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINQA_SEED", "abc")
    with pytest.raises(ConfigError, match=r"FINQA_SEED .*FINQA_TRAIN__SEED or FINQA_EVAL__SEED") as caught:
        load_settings()
    assert caught.value.remedy == "unset FINQA_SEED"


@pytest.mark.parametrize(
    ("flags", "limit", "noted"),
    [
        ({"pool.sandboxes": 2, "train.iterations": 1, "train.group_size": 2, "train.max_rollout_rounds": 2}, 16, True),
        ({"pool.sandboxes": 8, "train.iterations": 1, "train.group_size": 4, "train.max_rollout_rounds": 6}, 96, True),
        ({"pool.sandboxes": 8, "train.iterations": 4, "train.group_size": 4, "train.max_rollout_rounds": 4}, 0, False),
        ({"pool.sandboxes": 2, "train.iterations": 1, "train.group_size": 2, "eval.limit": 0}, 0, False),
        ({"pool.sandboxes": 2, "train.iterations": 1, "train.group_size": 2, "eval.limit": 300}, 300, False),
    ],
)
def test_a_training_of_few_episodes_evaluates_on_few_questions(flags: dict[str, Any], limit: int, noted: bool) -> None:
    loaded, note = limit_evaluation(load_settings(flags=flags))
    assert loaded.settings.eval.limit == limit and bool(note) == noted
    assert loaded.origins["eval.limit"] == ("auto" if noted else "flag" if "eval.limit" in flags else "default")
