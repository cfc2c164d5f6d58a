"""GPUs that PyTorch or the run cannot use are refused before anything starts, by what a driver in PATH reports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finqa_cli.diagnostics import machine_checks
from finqa_cli.errors import ConfigError
from finqa_cli.settings import PLACED, Settings
from finqa_cli.wiring import gpu_support, placing

DRIVER = """#!/bin/sh
case "$1" in
*memory*) echo "GPU-a, {name}, 80000, 81559" ;;
*compute_cap*) {facts} ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Puts a driver into PATH that reports one device, beside a torch that is built for a version of CUDA."""

    def make(name: str, driver: str, capability: str, torch_cuda: str = "13.0") -> None:
        known = f'echo "GPU-a, {driver}, {capability}"' if driver else "echo 'not a valid field' >&2; exit 2"
        (tmp_path / "nvidia-smi").write_text(DRIVER.format(name=name, facts=known))
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setattr(placing, "torch_cuda", lambda: torch_cuda)
        monkeypatch.setattr(machine_checks, "torch_cuda", lambda: torch_cuda)

    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for module in (placing, machine_checks):
        monkeypatch.setattr(module, "cuda_visible", lambda: True)
    caches = (placing.cuda_devices, gpu_support.torch_problem)
    for cached in caches:
        cached.cache_clear()
    yield make
    for cached in caches:
        cached.cache_clear()


def settings(**changes: Any) -> Settings:
    return Settings.model_validate({"engine": {"name": "vllm"}, "model": {"name": "Qwen/Qwen3-4B"}} | changes)


@pytest.mark.parametrize(
    ("name", "driver", "capability", "torch_cuda", "reason", "fix"),
    [
        ("H100", "535.104.05", "9.0", "13.0", "535.104.05 is too old .* CUDA 13.0 .* 580", "driver to 580 or newer"),
        ("H100", "470.82.01", "9.0", "12.8", "needs driver 525 or newer", "driver to 525 or newer"),
        ("Tesla V100", "580.65.06", "7.0", "13.0", "capability 7.* needs 7.5 or more", "CUDA_VISIBLE_DEVICES= "),
        ("Tesla V100", "550.54.14", "7.0", "12.6", "V100 .* bfloat16", "--set engine.options.dtype=float16"),
        ("Tesla T4", "580.65.06", "7.5", "13.0", "T4 .* bfloat16", "--set learner.options.dtype=float32"),
    ],
)
def test_what_does_not_work_is_refused_soon_with_what_does(
    machine: Any, name: str, driver: str, capability: str, torch_cuda: str, reason: str, fix: str
) -> None:
    machine(name, driver, capability, torch_cuda)
    began = time.process_time()
    with pytest.raises(ConfigError, match=reason) as refused:
        placing.place(settings(), frozenset(PLACED), "train")
    assert fix in refused.value.remedy
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("name", "driver", "capability", "torch_cuda"),
    [
        ("H100", "580.65.06", "9.0", "13.0"),
        ("B200", "590.10", "10.0", "13.0"),
        ("A100", "525.60.13", "8.0", "12.8"),
        ("H100", "", "", "13.0"),  # a driver that does not know the question
        ("H100", "535.104.05", "9.0", None),  # torch is not installed
        ("something new", "700.1", "14.0", "15.0"),
    ],
)
def test_what_works_or_is_not_known_is_placed(
    machine: Any, name: str, driver: str, capability: str, torch_cuda: Any
) -> None:
    machine(name, driver, capability, torch_cuda)
    assert placing.place(settings(), frozenset(PLACED), "train").plan.engine is not None


def test_an_old_driver_with_which_torch_works_is_accepted(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("H100", "535.104.05", "9.0")  # NVIDIA's containers bring newer libraries of the driver
    monkeypatch.setattr(gpu_support, "torch_problem", lambda: "")
    assert placing.place(settings(), frozenset(PLACED), "train").plan.engine is not None


def test_the_printed_settings_are_accepted_on_that_device(machine: Any) -> None:
    machine("Tesla T4", "580.65.06", "7.5")
    with pytest.raises(ConfigError) as refused:
        placing.place(settings(), frozenset(PLACED), "train")
    chosen: dict[str, Any] = {"engine": {"name": "vllm"}, "learner": {"name": "torch"}}
    for setting in refused.value.remedy.removeprefix("--set ").split(" --set "):
        path, _, value = setting.partition("=")
        chosen[path.partition(".")[0]]["options"] = {path.rpartition(".")[2]: value}
    assert placing.place(settings(**chosen), frozenset(PLACED), "train").plan.learner is not None
    only_played = {"engine": {"name": "vllm", "options": {"dtype": "float16"}}}
    assert placing.place(settings(**only_played), frozenset(PLACED), "play").plan.engine is not None


def test_doctor_asks_torch_itself(machine: Any) -> None:
    machine("H100", "535.104.05", "9.0")
    (check,) = machine_checks.gpu(settings())
    assert check.status == "fail" and "cannot use CUDA" in check.detail and "driver" in check.remedy
    (unneeded,) = machine_checks.gpu(settings(model={"name": "embedded"}))
    assert unneeded.status == "ok"
