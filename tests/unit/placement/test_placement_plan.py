"""The placement plan over many machines and models, and what it does with the user's wishes."""

from __future__ import annotations

import itertools
import json
import shlex
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document

from finqa_cli.errors import ConfigError
from finqa_cli.experiments.step_settings import settings_document
from finqa_cli.placement.known_models import known
from finqa_cli.placement.memory_formulas import GIB, kv_per_token
from finqa_cli.placement.placement_plan import plan
from finqa_cli.placement.placement_types import Device, EngineKind, Placement, Refusal, Request, Workload, plan_document
from finqa_cli.settings import PLACED, Loaded, Settings, load_settings
from finqa_cli.types import Architecture, CudaDevice
from finqa_cli.wiring import placing
from finqa_cli.wiring.placing import assumed_devices, find_plan, place, remedy_of

ROOT = Path(__file__).parents[3]
MODELS = ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B")
CELLS = list(itertools.product(MODELS, (1, 2, 4, 8), (40, 80, 141), (16, 0), ("vllm", "transformers")))
VLLM = EngineKind(name="vllm", spread="several", sleeps=True, graphs=GIB)


def machine_of(count: int, gib: float) -> tuple[Device, ...]:
    return tuple(Device(index=number, total=gib * GIB) for number in range(count))


def settings_of(model: str, rank: int, engine: str, **sections: Any) -> Settings:
    named = {"model": {"name": model}, "lora": {"rank": rank}, "engine": {"name": engine}}
    return Settings.model_validate({**named, **sections})


def planned(count: int, gib: float, *, model: str = MODELS[0], rank: int = 16, **wishes: Any) -> Placement | Refusal:
    found = known(model)
    assert found is not None
    work = Workload(plays=True, trains=True, lora_rank=rank)
    return plan(machine_of(count, gib), found, VLLM, work, Request(**wishes))


def fits(count: int, gib: float, **kwargs: Any) -> Placement:
    found = planned(count, gib, **kwargs)
    assert isinstance(found, Placement), found
    return found


@pytest.mark.parametrize(("model", "count", "gib", "rank", "engine"), CELLS)
def test_every_plan_adds_up_or_names_a_command_that_does(
    model: str, count: int, gib: int, rank: int, engine: str, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    began = time.monotonic()
    settings, devices = settings_of(model, rank, engine), machine_of(count, gib)
    found = find_plan(settings, PLACED, "train", devices)
    if isinstance(found, Refusal):
        remedy = shlex.split(remedy_of(settings, PLACED, "train", found))
        assert remedy[:2] == ["finqa", "train"] and "GiB" in found.reason
        again = document(["doctor", "--assume-gpus", f"{count}x{gib}", *remedy[2:]], capsys)
        assert again["status"] == "ok" and again["plan"]["refused"] is None
        assert time.monotonic() - began < 30  # far above what it takes: a hang fails
        return
    check_plan(found, devices, engine)
    flags = ["--model", model, "--lora-rank", str(rank), "--engine", engine]
    told = document(["doctor", "--assume-gpus", f"{count}x{gib}", *flags], capsys)
    assert told["plan"] == json.loads(json.dumps(plan_document(found)))
    step = as_step(settings, tuple(PLACED), empty_folder)  # of an experiment: `finqa train --config STEP`
    assert find_plan(step.settings, step.undecided, "train", devices) == found


def as_step(settings: Settings, undecided: tuple[str, ...], folder: Path) -> Loaded:
    """The settings of a step of a pipeline or experiment, as its own command reads them."""
    told = settings.model_copy(update={"run": settings.run.model_copy(update={"placed": undecided})})
    file = folder / "step.json"
    file.write_text(json.dumps(settings_document(told, data=None, snapshot="mine")), encoding="utf-8")
    return load_settings(files=[file])


def check_plan(found: Placement, devices: tuple[Device, ...], engine: str) -> None:
    assert found.engine is not None and found.learner is not None
    both = set(found.engine.devices) & set(found.learner.devices)
    assert found.shared == bool(both) and found.engine.sleep == found.shared
    if both:
        assert found.max_staleness == 0 and set(found.engine.devices) == set(found.learner.devices)
    assert len(found.engine.devices) == found.engine.replicas * found.engine.tensor_parallel_size
    assert len(found.learner.devices) == found.learner.processes
    if engine == "transformers":
        assert found.engine.tensor_parallel_size == 1
    used = {*found.engine.devices, *found.learner.devices}
    assert used == {device.index for device in devices} or any("not used" in note for note in found.notes)
    for entry in found.per_device:
        assert entry.gib_planned <= 0.95 * entry.gib_total + 0.01
        assert entry.gib_planned == pytest.approx(sum(entry.items.values()), abs=0.011)
    assert found.engine.kv_tokens >= found.engine.max_model_len >= 2048
    assert found.token_budget >= 2048


@pytest.mark.parametrize(
    ("count", "model", "engine", "learner"),
    [
        (1, MODELS[2], (1, 1), 1),  # both on device 0, in turn
        (2, MODELS[2], (1, 1), 1),
        (4, MODELS[2], (2, 1), 2),  # two replicas need no communication; published with --tensor-parallel-size 2
        (8, MODELS[2], (4, 1), 4),
        (4, MODELS[0], (2, 1), 2),
        (8, MODELS[0], (4, 1), 4),
    ],
)
def test_the_defaults_on_80_gib(count: int, model: str, engine: tuple[int, int], learner: int) -> None:
    found = fits(count, 80, model=model)
    assert found.engine is not None and found.learner is not None
    assert (found.engine.replicas, found.engine.tensor_parallel_size) == engine
    assert found.learner.processes == learner
    assert found.shared == (count == 1)
    assert found.max_staleness == (0 if count == 1 else 1)


@pytest.mark.parametrize(
    ("gib", "model", "context", "kv_gib"),
    [
        (24, MODELS[1], 8192, 2.0),  # weights of 15.3 GiB on each side
        (16, MODELS[0], 8192, 2.5),
        (24, MODELS[0], 8192, 9.0),
        (80, MODELS[2], 16384, 30.0),
    ],
)
def test_one_device_holds_the_weights_of_one_side_at_a_time(gib: int, model: str, context: int, kv_gib: float) -> None:
    settings = settings_of(model, 16, "vllm")
    found = find_plan(settings, PLACED, "train", machine_of(1, gib))
    assert isinstance(found, Placement) and found.shared and found.engine is not None
    check_plan(found, machine_of(1, gib), "vllm")
    size = known(model)
    assert size is not None and found.engine.max_model_len >= context
    assert found.engine.kv_tokens * kv_per_token(size) >= kv_gib * GIB
    whole = planned(1, gib, model=model)  # a learner whose weights stay
    assert isinstance(whole, Refusal) or whole.engine is None or whole.engine.kv_tokens < found.engine.kv_tokens


@pytest.mark.parametrize(
    "wishes",
    [
        {"tensor_parallel_size": 2},
        {"engine_replicas": 3},
        {"learner_processes": 1},
        {"learner_processes": 3},
        {"sleep": True},
        {"max_staleness": 0},
        {"token_budget": 4096},
        {"max_model_len": 32768},
        {"gpu_memory_utilization": 0.5},
        {"engine_devices": (2, 3)},
        {"learner_devices": (0,)},
        {"engine_devices": (1,), "learner_devices": (0, 3)},
    ],
)
def test_a_wish_is_respected(wishes: dict[str, Any]) -> None:
    found = fits(4, 80, **wishes)
    assert found.engine is not None and found.learner is not None
    told = {
        "tensor_parallel_size": found.engine.tensor_parallel_size,
        "engine_replicas": found.engine.replicas,
        "learner_processes": found.learner.processes,
        "sleep": found.engine.sleep,
        "max_staleness": found.max_staleness,
        "token_budget": found.token_budget,
        "max_model_len": found.engine.max_model_len,
        "gpu_memory_utilization": found.engine.gpu_memory_utilization,
        "engine_devices": found.engine.devices,
        "learner_devices": found.learner.devices,
    }
    assert {name: told[name] for name in wishes} == wishes


@pytest.mark.parametrize(
    ("count", "wishes", "said"),
    [
        (1, {"sleep": False}, "model.sleep=False"),
        (1, {"max_staleness": 1}, "train.max_staleness=1"),
        (2, {"tensor_parallel_size": 2, "sleep": False}, "cannot be split"),
        (4, {"tensor_parallel_size": 3}, "heads cannot be divided over 3"),
        (2, {"gpu_memory_utilization": 0.05}, "5% of 80 GiB are 4.0"),
        (2, {"engine_devices": (7,)}, "no device 7"),
        (2, {"learner_processes": 5}, "learner_processes=5"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_with_a_change_that_can(
    count: int, wishes: dict[str, Any], said: str
) -> None:
    found = planned(count, 80, **wishes)
    assert isinstance(found, Refusal)
    assert said in found.reason
    freed = {placing.WISHES[path]: None for path in found.changes}
    assert isinstance(planned(count, 80, **{**wishes, **freed}), Placement)


def test_an_engine_that_cannot_sleep_has_a_device_of_its_own() -> None:
    model = known(MODELS[0])
    assert model is not None
    awake = EngineKind(name="other", spread="one")
    work = Workload(plays=True, trains=True)
    assert isinstance(plan(machine_of(1, 80), model, awake, work, Request()), Refusal)
    found = plan(machine_of(2, 80), model, awake, work, Request())
    assert isinstance(found, Placement) and not found.shared


@pytest.mark.usefixtures("four_gpus")
def test_a_pytorch_without_cuda_leaves_everything_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "torch_cuda", lambda: "")
    placed = place(settings_of(MODELS[0], 16, "transformers"), PLACED, "train").settings
    assert (placed.model.engine_devices, placed.model.learner_devices) == ((), ())


@pytest.mark.usefixtures("four_gpus")
def test_supervised_fine_tuning_trains_on_every_device() -> None:
    settings = settings_of(MODELS[0], 16, "vllm")
    asks = place(settings, PLACED, "sft").settings
    assert asks.model.learner_devices == asks.model.engine_devices == (0, 1, 2, 3) and asks.model.sleep
    silent = settings.model_copy(update={"sft": settings.sft.model_copy(update={"validation_samples": 0})})
    placed = place(silent, PLACED, "sft").settings
    assert (placed.model.engine_devices, placed.model.learner_devices) == ((), (0, 1, 2, 3))


@pytest.mark.usefixtures("four_gpus")
def test_the_models_own_context_is_planned_where_it_is_asked_for() -> None:
    settings = settings_of(MODELS[2], 16, "vllm")
    undecided = set(PLACED) - {"model.max_model_len"}
    found = find_plan(settings, undecided, "train", machine_of(4, 80))
    assert isinstance(found, Placement) and found.engine is not None and found.engine.max_model_len == 40_960
    small = find_plan(settings, undecided, "train", machine_of(2, 40))
    assert isinstance(small, Refusal) and small.changes["model.max_model_len"] is None


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [
        ("play", "finqa eval Qwen/Qwen3-8B --engine vllm"),
        ("sft", "finqa sft DATA --model Qwen/Qwen3-4B --engine vllm"),
        ("dpo", "finqa dpo PAIRS --model Qwen/Qwen3-8B"),
        ("train", "finqa train --model Qwen/Qwen3-8B --engine vllm"),
    ],
)
def test_the_command_that_fits_is_one_that_exists(purpose: placing.Purpose, expected: str) -> None:
    settings = settings_of(MODELS[2], 16, "vllm")
    found = find_plan(settings, PLACED, purpose, machine_of(1, 24))
    assert isinstance(found, Refusal)
    assert remedy_of(settings, PLACED, purpose, found) == expected
    hopeless = find_plan(settings, PLACED, purpose, machine_of(1, 1))
    assert isinstance(hopeless, Refusal) and not hopeless.changes
    assert "embedded" in remedy_of(settings, PLACED, purpose, hopeless)


def test_a_tiny_model_takes_no_more_devices_than_help() -> None:
    tiny = replace(known_model("Qwen/Qwen3-0.6B"), parameters=1_000_000)
    for plays, trains, used in ((True, True, 2), (True, False, 1), (False, True, 1)):
        found = plan(machine_of(8, 80), tiny, VLLM, Workload(plays=plays, trains=trains), Request())
        assert isinstance(found, Placement) and "so small" in found.notes[0]
        devices = {*(found.engine.devices if found.engine else ()), *(found.learner.devices if found.learner else ())}
        assert len(devices) == used


def known_model(name: str) -> Architecture:
    found = known(name)
    assert found is not None
    return found


def test_commands_that_run_one_part_give_it_every_device() -> None:
    model = known(MODELS[0])
    assert model is not None
    plays = plan(machine_of(4, 80), model, VLLM, Workload(plays=True, trains=False), Request())
    assert isinstance(plays, Placement) and plays.engine is not None and plays.learner is None
    assert plays.engine.devices == (0, 1, 2, 3)
    trains = plan(machine_of(4, 80), model, VLLM, Workload(plays=False, trains=True), Request())
    assert isinstance(trains, Placement) and trains.learner is not None and trains.engine is None
    assert trains.learner.devices == (0, 1, 2, 3)


def test_without_devices_wishes_pass_through() -> None:
    model = known(MODELS[0])
    assert model is not None
    found = plan((), model, VLLM, Workload(plays=True, trains=True), Request(learner_processes=2, token_budget=99))
    assert isinstance(found, Placement) and found.learner is not None and found.engine is not None
    assert (found.learner.processes, found.token_budget, found.max_staleness) == (2, 99, 1)
    assert (found.engine.tensor_parallel_size, found.engine.replicas, found.engine.max_model_len) == (1, 1, 0)


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = tuple(CudaDevice(name="NVIDIA H100", free=80 * GIB, total=80 * GIB) for _ in range(4))
    monkeypatch.setattr(placing, "cuda_devices", lambda: devices)
    monkeypatch.setattr(placing, "torch_cuda", lambda: "13.0")


@pytest.mark.usefixtures("four_gpus")
def test_settings_get_the_plan_and_remember_what_was_open() -> None:
    settings = settings_of(MODELS[2], 16, "vllm", train={"token_budget": 8192})
    undecided = set(PLACED) - {"train.token_budget"}
    placed = place(settings, undecided, "train")
    model, train = placed.settings.model, placed.settings.train
    assert (model.tensor_parallel_size, model.engine_devices, model.learner_devices) == (1, (0, 1), (2, 3))
    assert (train.learner_processes, train.token_budget, train.max_staleness) == (2, 8192, 1)
    assert set(placed.settings.run.placed) == undecided
    assert placing.place_again(placed.settings, "train") == placed.settings


@pytest.mark.usefixtures("four_gpus")
def test_a_run_is_placed_again_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = place(settings_of(MODELS[2], 16, "vllm"), PLACED, "train").settings
    monkeypatch.setattr(placing, "cuda_devices", lambda: (CudaDevice(name="GPU", free=141 * GIB, total=141 * GIB),))
    again = placing.place_again(placed, "train")
    assert (again.model.engine_devices, again.model.learner_devices, again.model.sleep) == ((0,), (0,), True)
    fixed = placed.model_copy(update={"run": placed.run.model_copy(update={"placed": ()})})
    with pytest.raises(ConfigError, match="cannot be split") as refused:
        placing.place_again(fixed, "train")
    assert refused.value.remedy.startswith("finqa train --model Qwen/Qwen3-14B")


@pytest.mark.usefixtures("four_gpus")
def test_under_torchrun_the_learner_has_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    placed = place(settings_of(MODELS[0], 16, "vllm"), PLACED, "train").settings
    assert placed.train.learner_processes == 3
    assert len(placed.model.engine_devices) == 1 and not set(placed.model.engine_devices) & {
        *placed.model.learner_devices
    }


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("sections", "engine", "learner"),
    [
        ({"engine": {"name": "vllm", "options": {"url": "http://127.0.0.1:8000/v1"}}}, (), (0, 1, 2, 3)),
        ({"learner": {"name": "torch", "options": {"device": "cpu"}}}, (0, 1, 2, 3), ()),
        ({"learner": {"name": "torch", "options": {"device": "cuda:3"}}}, (0, 1), (3,)),
        ({"engine": {"name": "transformers", "options": {"device": "cpu"}}}, (), (0, 1, 2, 3)),
    ],
)
def test_options_of_components_decide_who_needs_devices(
    sections: dict[str, Any], engine: tuple[int, ...], learner: tuple[int, ...]
) -> None:
    settings = Settings.model_validate({"model": {"name": MODELS[0]}, "engine": {"name": "vllm"}, **sections})
    placed = place(settings, PLACED, "train").settings
    assert (placed.model.engine_devices, placed.model.learner_devices) == (engine, learner)


def test_auto_may_be_written_and_wins_over_earlier_layers(empty_folder: Path) -> None:
    (empty_folder / "finqa.toml").write_text("[train]\ntoken_budget = 99\nmax_staleness = 3\n", encoding="utf-8")
    loaded = load_settings(assignments=["train.token_budget=auto"])
    assert "train.token_budget" in loaded.undecided and "train.max_staleness" not in loaded.undecided
    assert (loaded.settings.train.token_budget, loaded.settings.train.max_staleness) == (16384, 3)
    assert loaded.origins["train.token_budget"] == "auto"


def test_shipped_files_fit_the_hardware_that_they_name(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    configs = ROOT / "finqa_cli" / "configs"
    hub = [
        file.stem
        for file in sorted((configs / "models").glob("*.toml"))
        if "/" in tomllib.loads(file.read_text(encoding="utf-8")).get("model", {}).get("name", "")
    ]
    assert len(hub) >= 7
    named = [(["--config", name], f"{count}x80") for name in hub for count in (1, 2, 4, 8)]
    named += [(["--config", "code-rl", "--sandbox", "local"], "1x60"), (["--config", "mbpp-art"], "1x80")]
    for size in ("4B", "8B"):  # the cells of financial_qa: 8 GPUs, 4 of them train, all weights
        flags = ["--model", f"Qwen/Qwen3-{size}", "--lora-rank", "0", "--max-model-len", "6144", "--max-staleness", "0"]
        placed = ["--tensor-parallel-size", "1", "--engine-replicas", "4", "--gpu-memory-utilization", "0.6"]
        named.append(([*flags, *placed, "--set", "train.learner_processes=4"], "8x80"))
    for flags, hardware in named:
        told = document(["doctor", "--assume-gpus", hardware, *flags], capsys)
        assert told["plan"]["refused"] is None, (flags, hardware, told["plan"])


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_documented_commands_fit_80_gib(count: int, capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace("\\\n", " ")
    lines = [shlex.split(line[2:], comments=True) for line in text.splitlines() if line.startswith("$ finqa ")]
    named = [words for words in lines if words[1] in ("train", "doctor") and "--model" in words]
    models = {words[words.index("--model") + 1] for words in named}
    models = {model for model in models if not model.startswith(("policies/", "runs/"))}  # made on the page
    assert {model for model in models if "/" in model} >= {"Qwen/Qwen3-4B", "Qwen/Qwen3-14B"}
    for model in models:
        told = document(["doctor", "--assume-gpus", f"{count}x80", "--model", model], capsys)
        assert told["plan"]["refused"] is None, model


def test_a_step_of_a_pipeline_or_experiment_is_placed_by_its_own_command(empty_folder: Path) -> None:
    settings = settings_of(MODELS[2], 16, "vllm", train={"max_staleness": 0})
    open_paths = tuple(sorted(set(PLACED) - {"train.max_staleness"}))
    loaded = as_step(settings, open_paths, empty_folder)
    assert loaded.undecided == set(open_paths)
    for devices in (machine_of(1, 80), machine_of(4, 80)):
        ours = find_plan(settings, open_paths, "train", devices)
        assert find_plan(loaded.settings, loaded.undecided, "train", devices) == ours


@pytest.mark.parametrize("text", ["", "4", "x80", "0x80", "4x0", "999x80", "4x80x2", "four"])
def test_assumed_hardware_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="NUMBERxGIB"):
        assumed_devices(text)


@pytest.mark.parametrize(
    ("visible", "totals"),
    [(None, [1, 2, 3]), ("2,0", [3, 1]), ("GPU-b", [2]), ("1,9,0", [2]), ("0, GPU-c", [1, 3])],
)
def test_devices_are_those_that_cuda_shows(
    visible: str | None, totals: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "nvidia-smi"
    rows = "".join(f"GPU-{name}, NVIDIA, H100, 1, {size}\n" for size, name in enumerate("abc", 1))
    fake.write_text(f"#!/bin/sh\nprintf '{rows}'", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(placing, "cuda_visible", lambda: True)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    placing.cuda_devices.cache_clear()
    try:
        assert [device.total / 2**20 for device in placing.cuda_devices()] == totals
    finally:
        placing.cuda_devices.cache_clear()
