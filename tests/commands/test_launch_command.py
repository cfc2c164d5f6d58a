"""Recipes of `finqa launch`: their form, what they run, and that no value leaves its place."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from fixtures.command_calls import document, failure
from fixtures.recipe_runs import script_of, stand_ins, train_words, variables
from fixtures.recipe_schemas import CONFIG_MAP, RAY_JOB, SBATCH, SKYPILOT_TASK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finqa_cli.app import main
from finqa_cli.launching.cluster_shape import Shape
from finqa_cli.launching.recipe import Recipe, render
from finqa_cli.launching.train_words import train_words as words_of
from finqa_cli.masking import find_secret
from finqa_cli.settings import to_public_dict
from finqa_cli.wiring.command_settings import read_layers

pytestmark = pytest.mark.usefixtures("empty_folder", "_no_gpu")

GOLDEN = Path(__file__).parents[1] / "fixtures" / "recipes"
SETTINGS = ["--model=Qwen/Qwen3-4B", "--engine=vllm", "--sandbox=daytona", "--lr=2e-5"]
MACHINES = {
    "slurm": ["--nodes=4", "--gpus-per-node=H100:8", "--cpus-per-node=96", "--memory-per-node=900", "--hours=24"],
    "kuberay": ["--gpus-per-node=8", "--image=registry.example/finqa:1", "--volume=runs", "--hours=48"],
    "skypilot": ["--gpus-per-node=H100:8", "--image=registry.example/finqa:1", "--memory-per-node=64"],
    "ray": ["--host=10.0.0.1", "--host=10.0.0.2", "--user=ubuntu", "--gpus-per-node=4"],
}


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def recipe_of(kind: str, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    command = ["launch", f"--print={kind}", *MACHINES[kind], "--variable=DAYTONA_API_KEY", *SETTINGS, *more]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.mark.parametrize("kind", MACHINES)
def test_recipes_are_the_recorded_ones(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    golden = GOLDEN / kind
    found = recipe_of(kind, capsys)
    if os.environ.get("RECORD_RECIPES"):
        golden.write_text(found)
    assert found == golden.read_text()
    assert found == recipe_of(kind, capsys)


def test_a_batch_script_has_options_of_sbatch_before_its_first_command(capsys: pytest.CaptureFixture[str]) -> None:
    lines = recipe_of("slurm", capsys).splitlines()
    assert lines[0] == "#!/bin/bash"
    given = [line for line in lines if line.startswith("#SBATCH")]
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert lines.index(given[-1]) < first
    options = dict(re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line).groups() for line in given)  # type: ignore[union-attr]
    assert set(options) == set(SBATCH)
    for name, value in options.items():
        pattern = SBATCH[name]
        assert value is None if pattern is None else re.fullmatch(pattern, value), name
    subprocess.run(["bash", "-n", "-c", "\n".join(lines)], check=True)


def test_a_manifest_has_the_fields_of_kuberay(capsys: pytest.CaptureFixture[str]) -> None:
    script, job = yaml.safe_load_all(recipe_of("kuberay", capsys))
    jsonschema.validate(script, CONFIG_MAP)
    jsonschema.validate(job, RAY_JOB)
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        spec = group["template"]["spec"]
        mounted = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}
        assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert job["spec"]["activeDeadlineSeconds"] == 48 * 3600 and groups[1]["replicas"] == 1
    alone = recipe_of("kuberay", capsys, "--nodes=1")
    assert "workerGroupSpecs" not in list(yaml.safe_load_all(alone))[1]["spec"]["rayClusterSpec"]


def test_a_task_has_the_fields_of_skypilot(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--volume=runs"]):
        task = yaml.safe_load(recipe_of("skypilot", capsys, *more))
        jsonschema.validate(task, SKYPILOT_TASK)
        assert task["secrets"] == {"DAYTONA_API_KEY": None}
        assert ("run=/runs/finqa\n" in task["run"]) == bool(more)


@pytest.mark.parametrize("kind", MACHINES)
def test_files_variables_and_flags_reach_the_training(
    kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text('[train]\ngroup_size = 12\n[environment.options]\nhints = "x y"\n')
    monkeypatch.setenv("LORA_RANK", "32")
    stand_ins(tmp_path)
    recipe = recipe_of(kind, capsys, "--config=mine.toml").replace(': "${DAYTONA_API_KEY:?', ': "${HOME:?')
    words = train_words(kind, recipe, tmp_path)
    expected = {
        *("train.group_size=12", 'environment.options.hints="x y"', "lora.rank=32", "train.learning_rate=2e-05"),
        *("engine.name=ray:vllm", "learner.name=ray:torch", "train.learner_processes=1", "sandbox.name=daytona"),
    }
    assert words[0] == "train" and expected <= set(words)
    gpus = {"slurm": 32, "kuberay": 16, "skypilot": 16, "ray": 8}[kind]
    assert f"generation.engine_replicas={gpus - 1}" in words
    assert words[words.index("--run-dir") + 1].endswith("finqa-4711" if kind == "slurm" else "finqa")


def test_an_interrupted_job_of_slurm_is_queued_again_and_resumes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stand_ins(tmp_path)
    script = script_of("slurm", recipe_of("slurm", capsys))
    environment = variables(tmp_path, STAYS="runs/finqa-4711", DAYTONA_API_KEY="key")
    first = subprocess.Popen(["bash", "-c", script], env=environment, cwd=tmp_path)
    run = tmp_path / "runs" / "finqa-4711"
    wait_for(run / "run.json")
    first.send_signal(signal.SIGUSR1)
    assert first.wait(30) == 85
    assert (tmp_path / "said.scontrol").read_text() == "requeue 4711\n"
    second = subprocess.run(["bash", "-c", script], env=environment, cwd=tmp_path, check=False, timeout=30)
    assert second.returncode == 0 and (tmp_path / "said.scontrol").read_text() == "requeue 4711\n"
    calls = [call.split("\0")[:-1] for call in (tmp_path / "said").read_text().split("\n\0")[:-1]]
    assert calls[0][:2] == ["train", "--set"] and calls[1][:3] == ["train", "--resume", "runs/finqa-4711"]
    assert calls[0][-2:] == calls[1][-2:] and calls[1][-2] == "--cluster-address"
    assert not list(run.parent.glob("*.pid"))


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not file.is_file() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_job_of_slurm_that_is_stopped_before_its_nodes_are_ready_is_queued_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stand_ins(tmp_path)
    script = script_of("slurm", recipe_of("slurm", capsys))
    environment = variables(tmp_path, WAITS="ready", DAYTONA_API_KEY="key")
    job = subprocess.Popen(["bash", "-c", script], env=environment, cwd=tmp_path)
    wait_for(tmp_path / "said.waits")
    job.send_signal(signal.SIGUSR1)
    wait_for(tmp_path / "runs" / "finqa-4711.pid")
    (tmp_path / "ready").touch()
    assert job.wait(30) == 85 and not (tmp_path / "said").exists()
    assert (tmp_path / "said.scontrol").read_text() == "requeue 4711\n"
    again = subprocess.run(["bash", "-c", script], env=environment, cwd=tmp_path, check=False, timeout=30)
    assert again.returncode == 0 and (tmp_path / "said").read_text().startswith("train\0--set\0")


@pytest.mark.parametrize("code", [0, 1, 70, 143])
def test_a_job_of_slurm_that_ends_by_itself_is_not_queued_again(
    code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stand_ins(tmp_path)
    script = script_of("slurm", recipe_of("slurm", capsys))
    environment = variables(tmp_path, ENDS=str(code), DAYTONA_API_KEY="key")
    ended = subprocess.run(["bash", "-c", script], env=environment, cwd=tmp_path, check=False, timeout=30)
    assert ended.returncode == code and not (tmp_path / "said.scontrol").exists()


def test_a_cancelled_job_of_slurm_is_not_queued_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stand_ins(tmp_path)
    script = script_of("slurm", recipe_of("slurm", capsys))
    environment = variables(tmp_path, STAYS="runs/finqa-4711", DAYTONA_API_KEY="key")
    job = subprocess.Popen(["bash", "-c", script], env=environment, cwd=tmp_path)
    wait_for(tmp_path / "runs" / "finqa-4711" / "run.json")
    job.send_signal(signal.SIGTERM)
    os.kill(int((tmp_path / "runs" / "finqa-4711.pid").read_text()), signal.SIGTERM)
    assert job.wait(30) == 143 and not (tmp_path / "said.scontrol").exists()


def test_a_job_without_its_variables_ends_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stand_ins(tmp_path)
    script = script_of("slurm", recipe_of("slurm", capsys))
    ended = subprocess.run(
        ["bash", "-c", script], env=variables(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0 and "DAYTONA_API_KEY: export it before sbatch" in ended.stderr
    assert not (tmp_path / "said").exists()


HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.sampled_from(
        ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"', "\\", "{{ 7 * 7 }}", "a\nb: c", "- x"]
    ),
)
VALUES = st.recursive(
    st.one_of(HOSTILE, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE.filter(bool), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(VALUES, min_size=4, max_size=8), name=HOSTILE.filter(lambda text: text.strip(" \n\t\0")))
def test_hostile_values_arrive_as_they_are(values: list[Any], name: str, tmp_path: Path) -> None:
    given = {"engine.name": "vllm", "reward.name": "exact", "reward.options.x": values, "model.name": name}
    loaded = read_layers(flags={}, arguments=[(path, path, each) for path, each in given.items()])
    stand_ins(tmp_path)
    machines = {"slurm": Shape(hours=1.0), "kuberay": Shape(image="i", volume="v"), "skypilot": Shape(image="i")}
    machines["ray"] = Shape(hosts=("a", "b"), user="u")
    train = words_of(loaded, 1, 1)
    for kind, shape in machines.items():
        text = render(Recipe(kind=kind, shape=shape, train=train))
        words = train_words(kind, text, tmp_path)
        assert text.isascii() and tuple(words[1 : 1 + len(train.words)]) == train.words
    again = to_public_dict(read_layers(flags={}, assignments=train.words[1::2]).settings)
    before = to_public_dict(loaded.settings)
    assert (again["reward"], again["model"]) == (before["reward"], before["model"])
    assert not list(tmp_path.rglob("pwned"))


def test_no_secret_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "canary-4f1b7a9c2d"
    monkeypatch.setenv("FINQA_SANDBOX__OPTIONS__API_KEY", secret)
    monkeypatch.setenv("DAYTONA_API_KEY", secret)
    more = ["--set=engine.options.api_key_env=SERVER_KEY"]
    for kind in MACHINES:
        text = recipe_of(kind, capsys, *more)
        assert secret not in text and "api_key=" not in text.lower().replace("daytona_api_key", "")
        assert "FINQA_SANDBOX__OPTIONS__API_KEY" in text and "SERVER_KEY" in text
        assert not find_secret(text)
    found = document(["launch", "--print=slurm", *MACHINES["slurm"], *SETTINGS, *more], capsys)
    assert set(found["variables"]) == {"FINQA_SANDBOX__OPTIONS__API_KEY", "SERVER_KEY"} and secret not in str(found)


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        ([], 2, "Nothing is started"),
        (["--print=lsf"], 2, "no recipe 'lsf'"),
        (["--print=slurm"], 2, "needs --hours"),
        (["--print=slurm", "--hours=1", "--image=x"], 2, "--image IMAGE would have no effect"),
        (["--print=ray", "--host=a", "--user=u", "--nodes=2"], 2, "--nodes would have no effect"),
        (["--print=ray", "--host=a b", "--user=u"], 2, "--host must be"),
        (["--print=slurm", "--hours=1", "--gpus-per-node=x"], 2, "--gpus-per-node must be"),
        (["--print=slurm", "--hours=1", "--gpus-per-node=A B:2"], 2, "--gpus-per-node must be"),
        (["--print=slurm", "--hours=1", "--name=a\n#SBATCH"], 2, "--name must be"),
        (["--print=slurm", "--hours=1", "--variable=KEY=canary"], 2, "without a value"),
        (["--print=slurm", "--hours=1", "--run-dir=a\nb"], 2, "--run-dir must be"),
        (["--print=slurm", "--hours=0.1"], 2, "--hours must be"),
        (["--print=slurm", "--hours=1", "--cluster-address=h:1"], 2, "cluster of its own"),
        (["--print=slurm", "--hours=1", "--lora-rank=0"], 78, "exchange adapters"),
        (["--print=slurm", "--hours=1", "--nodes=1"], 78, "need 2 GPUs, and 1 nodes have 1"),
        (["--print=slurm", "--hours=1", "--engine=scripted"], 78, "runs no model"),
    ],
)
def test_mistakes_are_refused(words: list[str], status: int, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, text = failure(["launch", *words, *(SETTINGS if status == 2 else ["--model=Qwen/Qwen3-4B"])], capsys)
    assert found == status and reason in text and "canary" not in text


def test_nodes_without_gpus_train_a_small_policy(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["launch", "--print=slurm", "--hours=1", "--gpus-per-node=0", "--model=embedded", "--lora-rank=16"]
    text = document(command, capsys)["recipe"]
    assert "--set engine.name=ray:transformers" in text and "--set engine.options.lockstep=false" in text
    assert "gpus-per-node" not in text and "--num-gpus=0" in text
