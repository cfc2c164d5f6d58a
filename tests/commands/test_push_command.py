"""`finqa push` against a hub on loopback, by the hub's own client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fixtures.command_calls import document, failure
from fixtures.handed_on_runs import write_run
from fixtures.model_hub import TOKEN, Failure, ModelHub, model_hub
from fixtures.sharded_checkpoints import cut, write_actor
from safetensors.torch import load_file

from finqa_cli.data.fetch.retries import Patience
from finqa_cli.errors import AuthenticationError, ConfigError, FinqaError, ServiceUnavailableError
from finqa_cli.publishing.export_weights import Wish, find_sources
from finqa_cli.publishing.hub_repository import Hub, Pushed, plan_pushes, push_all
from finqa_cli.runs.reporter import NullReporter
from finqa_testing.tiny_models import make_tiny_qwen3

BASE = "Qwen/Qwen3-4B"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_tiny_qwen3(folder / "base")
    write_run(folder / "qwen3_4b_default", folder / "base", name=BASE)
    write_run(folder / "local", folder / "base", steps=(1,))
    return folder


@pytest.fixture
def hub(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    from huggingface_hub import constants

    for name, value in {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": False, "HF_HUB_DISABLE_TELEMETRY": True}.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("finqa_cli.commands.push.Patience", lambda: Patience(attempts=3, first_pause_s=0.01))
    monkeypatch.chdir(made)
    with model_hub() as server:
        yield server


def card(hub: ModelHub, name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(hub.repositories[name].files["README.md"].decode().split("---")[1])
    return found


def test_checkpoints_become_repositories(hub: ModelHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.licences[BASE] = "apache-2.0"
    flags = ["--num=2", "--private", "--repo-prefix=afeng", f"--endpoint={hub.url}"]
    pushed = document(["push", "qwen3_4b_default", *flags], capsys)["pushes"]
    names = [f"afeng/qwen3_4b_default_step-{step}" for step in (1, 2)]
    assert [each["repository"] for each in pushed] == names == list(hub.repositories)
    for each, step in zip(pushed, (1, 2), strict=True):
        repository = hub.repositories[each["repository"]]
        assert repository.private and each["private"] and each["commit"] == repository.head
        assert set(repository.files) - {".gitattributes"} == {
            "README.md",
            "adapter_config.json",
            "adapter_model.safetensors",
        }
        local = Path(f"qwen3_4b_default/checkpoints/step_{step}/policy/adapter_model.safetensors")
        assert repository.files["adapter_model.safetensors"] == local.read_bytes()
        assert json.loads(repository.files["adapter_config.json"])["base_model_name_or_path"] == BASE
        facts = card(hub, each["repository"])
        assert (facts["base_model"], facts["base_model_relation"], facts["license"]) == (BASE, "adapter", "apache-2.0")
        assert {"finqa", "lora", "grpo"} <= set(facts["tags"]) and ("model-index" in facts) == (step == 2)
    text = hub.repositories[names[1]].files["README.md"].decode()
    assert "| train.group_size | 6 |" in text and "95 % interval" in text
    assert TOKEN not in text and str(Path.cwd()) not in text
    assert len(hub.repositories[names[0]].commits) == 2, "one commit after the first of every repository"
    again = document(["push", "qwen3_4b_default", *flags], capsys)["pushes"]
    assert [each["commit"] for each in again] == [each["commit"] for each in pushed], "nothing new, no commit"


def test_hub_client_reads_the_card_back(hub: ModelHub, capsys: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub import ModelCard

    document(["push", "qwen3_4b_default", "--repo-prefix=stock-lab/eu-", f"--endpoint={hub.url}"], capsys)
    (name,) = hub.repositories
    assert name == "stock-lab/eu-qwen3_4b_default_step-2" and not hub.repositories[name].private
    read = ModelCard(hub.repositories[name].files["README.md"].decode()).data
    (accuracy, reward) = read.eval_results
    assert (accuracy.metric_type, accuracy.metric_value) == ("accuracy", pytest.approx(1 / 3, abs=1e-6))
    assert reward.metric_type == "reward" and read.base_model == BASE


def test_whole_models_and_trees_of_verl(
    hub: ModelHub, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_actor(
        tmp_path / "tree/global_step_100/actor", made / "base", cut(load_file(made / "base/model.safetensors"), 2)
    )
    flags = ["--repo-prefix=afeng", f"--endpoint={hub.url}", "--dtype=bfloat16"]
    pushed = document(["push", str(tmp_path / "tree"), *flags], capsys)["pushes"]
    assert [each["repository"] for each in pushed] == ["afeng/tree_step-100"]
    files = hub.repositories["afeng/tree_step-100"].files
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files) and "manifest.json" not in files
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "model.safetensors").write_bytes(files["model.safetensors"])
    found = load_file(tmp_path / "back" / "model.safetensors")
    original = load_file(made / "base/model.safetensors")
    assert all((found[name] == original[name].bfloat16()).all() for name in original)


def test_a_dry_run_asks_nobody(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    flags = ["--step=2", "--repo-prefix=afeng", f"--endpoint={hub.url}", "--dry-run"]
    (planned,) = document(["push", "qwen3_4b_default", *flags], capsys)["pushes"]
    assert planned["repository"] == "afeng/qwen3_4b_default_step-2" and planned["form"] == "peft"
    assert "## Scores" in planned["card"] and hub.log == []


def push(
    hub: ModelHub, prefix: str = "afeng", *, private: bool = False, count: int = 1
) -> tuple[list[Pushed], list[str]]:
    told: list[str] = []
    sources = find_sources("qwen3_4b_default", count)
    plans = plan_pushes(sources, Wish(form="peft"), prefix, licence="mit", evaluations=[])
    patience = Patience(attempts=3, first_pause_s=0.01, longest_pause_s=5.0)
    door = Hub(endpoint=hub.url, patience=patience, tell=told.append)
    return push_all(plans, door, private=private, reporter=NullReporter()), told


@pytest.mark.parametrize("lost", [False, True], ids=["refused", "reply-lost"])
@pytest.mark.parametrize("where", ["POST /api/repos/create", "/commit/main"])
def test_what_passes_is_tried_again(hub: ModelHub, where: str, lost: bool) -> None:
    hub.failures.append(Failure(where=where, status=503, times=2, after=lost))
    (pushed,), told = push(hub)
    repository = hub.repositories[pushed.repository]
    assert told and all("HTTP 503" in line for line in told)
    assert len(repository.commits) == 2, "a commit whose reply was lost is not made again"
    assert pushed.commit == repository.head


REFUSALS: dict[str, tuple[Failure, type[FinqaError], str]] = {
    "no such token": (Failure(where="whoami", status=401), AuthenticationError, "does not accept the token"),
    "no right to write": (Failure(where="/commit/main", status=403), AuthenticationError, "has no write access there"),
    "no money": (Failure(where="/commit/main", status=402), ServiceUnavailableError, "HTTP 402"),
    "always busy": (Failure(where="/commit/main", status=409, times=99), ServiceUnavailableError, "after attempt 3"),
    "asks for an hour": (
        Failure(where="/commit/main", status=429, headers={"Retry-After": "3600"}),
        ServiceUnavailableError,
        "HTTP 429",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_are_told_and_leave_nothing_half_pushed(hub: ModelHub, case: str) -> None:
    fault, kind, message = REFUSALS[case]
    hub.failures.append(fault)
    with pytest.raises(kind, match=message) as caught:
        push(hub)
    assert caught.value.remedy and TOKEN not in str(caught.value)
    assert all(len(repository.commits) == 1 for repository in hub.repositories.values()), "all of it or nothing"


def test_those_that_were_pushed_are_named(hub: ModelHub) -> None:
    hub.failures.append(Failure(where="step-2/commit/main", status=403))
    with pytest.raises(AuthenticationError, match="Pushed before: afeng/qwen3_4b_default_step-1"):
        push(hub, count=2)


def test_what_the_hub_holds_is_compared(hub: ModelHub) -> None:
    hub.spoil = lambda name, data: data[:-1] if name == "README.md" else data
    with pytest.raises(ServiceUnavailableError, match=r"its README\.md differs"):
        push(hub)


def test_a_public_repository_is_not_taken_for_a_private_one(hub: ModelHub) -> None:
    push(hub)
    with pytest.raises(ConfigError, match="is public"):
        push(hub, private=True)


def test_other_weights_are_not_mixed_with_these(hub: ModelHub) -> None:
    push(hub)
    hub.repositories["afeng/qwen3_4b_default_step-2"].files["model-00001-of-00002.safetensors"] = b"old"
    with pytest.raises(ConfigError, match=r"already contains other weights \(model-00001"):
        push(hub)


def test_strangers_are_refused_before_anything_is_made(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = failure(["push", "qwen3_4b_default", "--repo-prefix=qwen", f"--endpoint={hub.url}"], capsys)
    assert status == 77 and "is not a member of 'qwen'" in err and "one of: afeng, stock-lab" in err
    monkeypatch.setenv("HF_TOKEN", "")
    status, err = failure(["push", "qwen3_4b_default", "--repo-prefix=afeng", f"--endpoint={hub.url}"], capsys)
    assert status == 77 and "hf auth login" in err
    assert hub.repositories == {}


def test_the_token_may_be_in_dotenv_and_an_address_may_not(
    hub: ModelHub, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    arguments = ["push", str(made / "qwen3_4b_default"), "--repo-prefix=afeng"]
    Path(".env").write_text(f"HF_TOKEN={TOKEN}\nHF_ENDPOINT={hub.url}\n", encoding="utf-8")
    status, err = failure(arguments, capsys)
    assert status == 78 and ".env sets HF_ENDPOINT" in err and hub.log == []
    Path(".env").write_text(f"HF_TOKEN={TOKEN}\n", encoding="utf-8")
    assert document([*arguments, f"--endpoint={hub.url}"], capsys)["pushes"] and len(hub.repositories) == 1


MISTAKES: dict[str, tuple[int, str, list[str]]] = {
    "both": (2, "one checkpoint", ["qwen3_4b_default", "--num=2", "--step=1", "--repo-prefix=afeng"]),
    "an owner that is none": (2, "not a valid name of an owner", ["qwen3_4b_default", "--repo-prefix=a feng"]),
    "a name that is none": (2, "not a valid name of a repository", ["qwen3_4b_default", "--repo-prefix=afeng/a--b"]),
    "steps of a model": (2, "has no checkpoints, so", ["base", "--num=2", "--repo-prefix=afeng"]),
    "an adapter that other people could not load": (
        78,
        "other people could not load it",
        ["local", "--repo-prefix=afeng"],
    ),
    "an evaluation of several": (
        2,
        "applies to one policy",
        ["qwen3_4b_default", "--num=2", "--eval=x", "--repo-prefix=afeng"],
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_told_before_the_hub_is_asked(
    hub: ModelHub, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    status, message, arguments = MISTAKES[case]
    found, err = failure(["push", *arguments, f"--endpoint={hub.url}"], capsys)
    assert found == status and message in err and hub.log == []


def test_as_a_process_by_the_usual_variables(hub: ModelHub, tmp_path: Path) -> None:
    shutil.copytree("qwen3_4b_default", tmp_path / "r")
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
        "NO_PROXY": "127.0.0.1",
    }
    arguments = [sys.executable, "-m", "finqa_cli", "push", "r", "--repo-prefix", "afeng"]
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert f"{hub.url}/afeng/r_step-2" in done.stdout and TOKEN not in done.stdout + done.stderr
