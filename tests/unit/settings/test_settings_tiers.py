from __future__ import annotations

import itertools
import json
import os
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.settings import list_shipped, load_settings
from finqa_cli.settings.settings_files import TIERS, line_of, tier_of

pytestmark = pytest.mark.usefixtures("empty_folder", "_no_gpu")

ROOT = Path(__file__).parents[3]
MODELS = [item.name for item in list_shipped() if item.kind == "model"]
OPTIMIZERS = [item.name for item in list_shipped() if item.kind == "optimizer"]


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_the_models_and_optimizers_of_the_comparison_ship_with_the_package() -> None:
    small = {"embedded", "dialogpt-medium", "tinyllama-1.1b", "llama-3.2-1b", "llama-3.2-1b-ultrafast"}
    assert set(MODELS) == small | {"llama-3-8b", "qwen3-4b", "qwen3-8b", "qwen3-14b"}
    assert set(OPTIMIZERS) == {"grpo", "ppo", "rloo", "reinforce", "dpo", "sft"}
    assert all(item.about and item.file.is_file() for item in list_shipped())
    names = [item.name for item in list_shipped()]
    assert len(set(names)) == len(names), "a name stands for one file"
    assert (ROOT / "configs").resolve() == (ROOT / "finqa_cli" / "configs").resolve()


@pytest.mark.parametrize(("model", "optimizer"), list(itertools.product(MODELS, OPTIMIZERS)))
def test_any_model_goes_with_any_optimizer_in_any_order(model: str, optimizer: str) -> None:
    first = load_settings(files=[model, optimizer])
    second = load_settings(files=[f"optimizers/{optimizer}", f"models/{model}"])
    assert first.settings == second.settings and first.origins == second.origins
    assert first.origins["model.name"].startswith(f"file models/{model}.toml:")
    assert first.settings.optimizer.name == optimizer
    chosen = first.settings.optimizer
    registry().config(registry().find("optimizer", chosen.name), chosen.options)


def test_the_tiers_say_what_the_published_comparison_ran_with() -> None:
    grpo = load_settings(files=["llama-3.2-1b", "grpo"]).settings
    assert (grpo.train.learning_rate, grpo.train.group_size, grpo.train.max_grad_norm) == (1.5e-5, 4, 1.0)
    assert grpo.train.group_size * grpo.train.target_groups_per_iter == 8 * 8
    assert (grpo.generation.max_gen_tokens, grpo.generation.temperature, grpo.generation.top_p) == (256, 0.7, 1.0)
    ppo = load_settings(files=["llama-3.2-1b", "ppo"]).settings
    assert (ppo.train.learning_rate, ppo.train.group_size * ppo.train.target_groups_per_iter) == (1.41e-5, 8 * 8)
    chosen = {"epochs": 4, "clip_low": 0.2, "value_clip": 0.0, "value_coef": 0.1, "kl_coef": 0.05, "target_kl": 0.1}
    assert chosen.items() <= ppo.optimizer.options.items()
    rloo = load_settings(files=["llama-3.2-1b", "rloo"]).settings
    assert (rloo.train.learning_rate, rloo.train.group_size * rloo.train.target_groups_per_iter) == (1.5e-5, 8 * 8)
    assert rloo.optimizer.options == {"baseline": "leave_one_out", "whiten_rewards": True, "kl": "off"}
    reinforce = load_settings(files=["llama-3.2-1b", "reinforce"]).settings
    assert (reinforce.train, reinforce.generation) == (rloo.train, rloo.generation), "they differ in the method alone"
    sft = load_settings(files=["llama-3-8b", "sft"]).settings
    assert (sft.lora.rank, sft.lora.alpha, sft.lora.dropout) == (32, 64, 0.05)
    assert (sft.sft.learning_rate, sft.sft.epochs, sft.sft.validate_every) == (5e-6, 3.0, 500)
    fast = load_settings(files=["llama-3.2-1b-ultrafast"]).settings
    assert (fast.lora.rank, fast.model.name) == (8, grpo.model.name)


def test_later_files_win_and_variables_win_over_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("finqa.toml").write_text("[lora]\nrank = 99\n")
    Path("mine.yaml").write_text("# my own\nlora:\n  rank: 5\ntrain:\n  group_size: 3\n")
    loaded = load_settings(files=["qwen3-4b", "grpo", "mine.yaml"])
    assert (loaded.settings.lora.rank, loaded.origins["lora.rank"]) == (5, "file mine.yaml:3")
    assert (loaded.settings.train.group_size, loaded.origins["train.group_size"]) == (3, "file mine.yaml:5")
    assert load_settings(files=["mine.yaml", "qwen3-4b"]).settings.lora.rank == 16
    monkeypatch.setenv("LORA_RANK", "7")
    assert load_settings(files=["qwen3-4b"]).settings.lora.rank == 7


def test_toml_yaml_and_json_say_the_same() -> None:
    tree = {"model": {"name": "some/model"}, "engine": {"name": "scripted", "options": {"careless": 0.5}}}
    Path("a.json").write_text(json.dumps(tree))
    Path("a.yml").write_text(yaml.safe_dump(tree))
    Path("a.toml").write_text('engine = {name = "scripted", options = {careless = 0.5}}\nmodel.name = "some/model"\n')
    one, two, three = (load_settings(files=[f"a.{suffix}"]).settings for suffix in ("json", "yml", "toml"))
    assert one == two == three and one.engine.options == {"careless": 0.5}


BAD = {
    "two models": (["qwen3-4b", "qwen3-8b"], "both belong to the model tier"),
    "the same twice": (["grpo", "optimizers/grpo"], "both belong to the optimizer tier"),
    "misspelt": (["qwen3-4"], "Did you mean 'qwen3-4b'"),
    "no such name": (["/nowhere"], "no settings file /nowhere"),
    "a specification": (["tiny"], "new model;"),
    "of another tier": (["stray.toml"], r"train.group_size \(file stray.toml:5\).*belongs to the optimizer tier"),
    "of no tier": (["neither.toml"], r"pool.sandboxes \(file neither.toml:2\).*neither tier"),
    "no such tier": (["kind.toml"], "tiers are model, optimizer"),
    "an empty tier": (["empty.toml"], "tiers are model, optimizer"),
    "a list as tier": (["list.toml"], "tiers are model, optimizer"),
    "unknown key": (["key.toml"], r"'lora.rnk' \(file key.toml:4\). Did you mean 'lora.rank'"),
    "wrong value": (["value.json"], r"lora.rank = -1 \(file value.json:2\)"),
    "twice in JSON": (["twice.json"], "'rank' twice"),
    "twice in YAML": (["twice.yaml"], r"'rank' twice in one table \(at line 3, column 3\)"),
    "broken JSON": (["broken.json"], "line 1, column 10"),
    "too deep": (["deep.json"], "nested too deeply"),
    "no date": (["date.yaml"], "not valid YAML"),
}
FILES = {
    "stray.toml": 'tier = "model"\n[model]\nname = "some/model"\n[train]\ngroup_size = 3\n',
    "neither.toml": 'tier = "optimizer"\npool.sandboxes = 3\n',
    "kind.toml": 'tier = "modle"\n',
    "empty.toml": 'tier = ""\n',
    "list.toml": 'tier = ["model"]\n',
    "key.toml": "# rnk = 1\n[lora]\n  # rnk\n  rnk = 3\n",
    "value.json": '{"lora":\n {"rank": -1}}',
    "twice.json": '{"lora": {"rank": 1, "rank": 2}}',
    "twice.yaml": "lora:\n  rank: 1\n  rank: 2\n",
    "broken.json": '{"lora": }',
    "deep.json": '{"lora": ' * 100_000,
    "date.yaml": "lora: 2026-99-99\n",
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_or_combined_is_explained(name: str) -> None:
    for file, text in FILES.items():
        Path(file).write_text(text)
    files, reason = BAD[name]
    with pytest.raises(ConfigError, match=reason) as caught:
        load_settings(files=files)
    assert caught.value.remedy


def test_a_setting_belongs_to_one_tier_at_most() -> None:
    assert tier_of("train.token_budget") == "model" and tier_of("train.group_size") == "optimizer"
    assert tier_of("training.group_size") is None and tier_of("pool.sandboxes") is None
    assert set(TIERS) == {"model", "optimizer"}


WORDS = st.sampled_from(["train", "rank", "rank_2", "a", "model"])


@given(st.dictionaries(WORDS, st.dictionaries(WORDS, st.sampled_from([1, "rank = 1", "# train"]), max_size=4)))
def test_the_line_of_a_setting_holds_its_key(tree: dict[str, dict[str, object]]) -> None:
    lines = [
        line
        for section, body in tree.items()
        for line in (f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in body.items()), "# rank = 3", "")
    ]
    assert tomllib.loads("\n".join(lines)) == tree
    expected = {}
    section = ""
    for number, line in enumerate(lines, start=1):
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and not line.startswith("#"):
            expected[f"{section}.{line.partition(' =')[0]}"] = number
    assert {path: line_of("\n".join(lines), path) for path in expected} == expected


@given(st.text(alphabet="ab.[]{}:=#\"' \n", max_size=60), st.sampled_from(["a", "a.b", "b.a.b"]))
def test_looking_for_a_line_survives_any_text(text: str, path: str) -> None:
    line = line_of(text, path)
    assert line is None or path.rpartition(".")[2] in text.split("\n")[line - 1]


def test_a_file_that_is_no_text_names_what_is_wanted() -> None:
    Path("data.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"Cannot read settings file data\.toml") as caught:
        load_settings(files=["data.toml"])
    assert "TOML, YAML or JSON, in UTF-8" in caught.value.remedy


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused_and_never_read(kind: str) -> None:
    if kind == "pipe":
        os.mkfifo("settings.toml")  # reading it would wait for a writer that never comes
    elif kind == "folder":
        Path("settings.toml").mkdir()
    file = "/dev/zero" if kind == "device" else "settings.toml"
    with pytest.raises(
        ConfigError, match=f"{file} is a {'folder' if kind == 'folder' else 'pipe or device'}"
    ) as caught:
        load_settings(files=[file])
    assert "regular file" in caught.value.remedy


@pytest.mark.parametrize("form", ["json", "toml", "yaml"])
def test_an_integer_that_python_does_not_read_is_a_mistake_in_the_file(form: str) -> None:
    digits = "9" * 100_000
    written = {
        "json": f'{{"train": {{"iterations": {digits}}}}}',
        "toml": f"train.iterations = {digits}",
        "yaml": f"train: {{iterations: {digits}}}",
    }
    Path(f"big.{form}").write_text(written[form])
    with pytest.raises(ConfigError, match="a number that is too long") as caught:
        load_settings(files=[f"big.{form}"])
    assert caught.value.remedy == f"correct big.{form}"


def test_a_long_value_of_a_flag_is_shown_in_part() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(assignments=[f"train.iterations={'9' * 100_000}"])
    assert len(caught.value.message) < 500 and "100,002 characters" in caught.value.message
