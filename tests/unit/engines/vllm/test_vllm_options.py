from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError
from finqa_cli.placement.memory_formulas import ENGINE_ROWS, ENGINE_TOKENS
from finqa_plugins.engines.vllm.config import LORA_RANKS, VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_command import HOST, IN_SERVER, Launch, launch, server_rank

URL = "http://127.0.0.1:8000"


def made(
    context: dict[str, Any] | None = None, *, gpu: bool = False, environ: dict[str, str] | None = None, **options: Any
) -> Launch:
    asked = EngineContext(**{"model": "org/model", **(context or {})})
    config = VllmEngineConfig.model_validate(options)
    return launch(config, asked, port=1234, key="random", gpu=gpu, environ=environ or {})


def value(launched: Launch, name: str) -> str:
    return launched.arguments[launched.arguments.index(name) + 1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"url": URL, "dtype": "float32"}, "dtype apply to servers that the engine starts"),
        ({"urls": [URL], "max_loras": 3, "python": "p"}, "max_loras, python apply"),
        ({"url": URL, "urls": [URL]}, "url or urls, not both"),
        ({"api_key_env": "KEY"}, "api_key_env applies to running servers"),
        ({"extra_args": ["--port", "1"]}, "other settings decide --port"),
        ({"extra_args": ["--port=1"]}, "other settings decide --port"),
        ({"extra_args": ["--max_model_len", "9"]}, "other settings decide --max-model-len"),
        ({"extra_args": ["--no-enable-prefix-caching"]}, "other settings decide --enable-prefix-caching"),
        ({"extra_args": ["--max-model", "9"]}, "other settings decide --max-model-len"),
        ({"extra_args": ["-tp", "2"]}, "other settings decide -tp"),
        ({"extra_args": ["--hf-overrides", "{}"]}, "other settings decide --hf-overrides.head-dtype"),
        ({"extra_args": ["--hf-overrides.head_dtype=model"]}, "other settings decide --hf-overrides.head-dtype"),
        ({"env": {"VLLM_SERVER_DEV_MODE": "1"}}, "must not hold VLLM_SERVER_DEV_MODE"),
        ({"url": "ftp://x"}, "must be an address"),
        ({"urls": [URL, "http://u:p@h/v1"]}, "must not contain a key"),
        ({"base_url": URL}, "Extra inputs"),
        ({"restarts": -1}, "greater than or equal to 0"),
    ],
)
def test_options_that_contradict_each_other_are_errors(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        VllmEngineConfig.model_validate(options)


def test_an_address_may_leave_out_the_end_that_all_have() -> None:
    assert VllmEngineConfig(url=URL).addresses == VllmEngineConfig(urls=(f"{URL}/v1/",)).addresses == (f"{URL}/v1",)


def test_ranks_are_rounded_up_to_one_that_vllm_allows() -> None:
    assert [server_rank(rank) for rank in (1, 2, 8, 9, 64, 321)] == [1, 8, 8, 16, 64, 512]
    assert value(made({"lora_rank": 12}), "--max-lora-rank") == "16"
    with pytest.raises(ConfigError, match="up to rank 512, not 513") as refused:
        made({"lora_rank": LORA_RANKS[-1] + 1})
    assert "--lora-rank 512" in refused.value.remedy


def test_the_settings_of_the_run_reach_the_server() -> None:
    launched = made(
        {
            "versions": 3,
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.4,
            "max_context": 2048,
            "process_seed": 2**40 + 7,
            "sleep": True,
        },
        gpu=True,
        extra_args=["--quantization", "fp8"],
    )
    expected = {
        "--host": HOST,
        "--port": "1234",
        "--model": "org/model",
        "--dtype": "bfloat16",
        "--tensor-parallel-size": "2",
        "--gpu-memory-utilization": "0.4",
        "--max-model-len": "2048",
        "--max-loras": "4",
        "--seed": "7",
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
        "--max-num-seqs": str(ENGINE_ROWS),
        "--max-num-batched-tokens": str(ENGINE_TOKENS),
    }
    assert {name: value(launched, name) for name in expected} == expected
    assert {"--enable-lora", "--enable-prefix-caching", "--enable-sleep-mode"} <= set(launched.arguments)
    assert "--enforce-eager" not in launched.arguments
    assert launched.arguments[-2:] == ("--quantization", "fp8")
    assert value(made(gpu=True, max_num_seqs=32), "--max-num-seqs") == "32"
    assert launched.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert launched.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert launched.base_url == "http://127.0.0.1:1234/v1"


def test_logits_are_float32_as_those_of_the_learner() -> None:
    wide = "--hf-overrides.head_dtype=float32"
    others = ["--hf-overrides.rope_theta=1e6"]
    assert wide in made(gpu=True).arguments and wide in made(dtype="bfloat16").arguments
    assert {wide, *others} <= {*made(gpu=True, extra_args=others).arguments}
    assert not [name for name in made().arguments if name.startswith("--hf-overrides")], "all of it is float32"
    assert wide not in made(gpu=True, head_dtype="model").arguments


def test_without_a_gpu_it_is_exact_eager_and_modest() -> None:
    launched = made()
    assert (value(launched, "--dtype"), value(launched, "--kv-cache-memory-bytes")) == ("float32", str(2**30))
    assert "--enforce-eager" in launched.arguments
    assert not {"--gpu-memory-utilization", "--max-num-seqs", "--max-num-batched-tokens"} & set(launched.arguments)
    assert "CUDA_VISIBLE_DEVICES" not in launched.environment


def test_routes_that_change_the_server_are_closed_unless_the_run_needs_them() -> None:
    assert made().environment["VLLM_SERVER_DEV_MODE"] == "0"
    full = made({"lora_rank": 0})
    assert full.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "--enable-lora" not in full.arguments


def test_the_server_is_given_no_secrets() -> None:
    given = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "HF_HOME": "/cache",
        "CUDA_HOME": "/cuda",
        "OMP_NUM_THREADS": "1",
        "NCCL_DEBUG": "INFO",
        "TOKENIZERS_PARALLELISM": "false",
    }
    secrets = {
        "OPENAI_API_KEY": "a",
        "HF_TOKEN": "b",
        "VLLM_API_KEY": "c",
        "DAYTONA_API_KEY": "d",
        "AWS_SECRET_ACCESS_KEY": "e",
        "HTTPS_PROXY": "http://me:word@proxy",
        "PYTHONPATH": "/ours",
        "WANDB_API_KEY": "f",
        "HF_HUB_PASSWORD": "g",
        "FINQA_ANYTHING": "h",
    }
    environment = made(environ={**given, **secrets}, env={"HF_HUB_OFFLINE": "1"}).environment
    assert given.items() <= environment.items()
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["PYTHONPATH"] == str(IN_SERVER)
    assert environment["VLLM_API_KEY"] == "random"
    assert not (set(secrets) - {"VLLM_API_KEY", "PYTHONPATH"}) & set(environment)


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_a_server_that_sleeps_inherits_no_options_of_the_allocator(name: str) -> None:
    inherited, chosen = {name: "expandable_segments:True"}, {name: "max_split_size_mb:64"}
    assert name not in made({"sleep": True}, environ=inherited).environment
    assert inherited.items() <= made(environ=inherited).environment.items()
    assert chosen.items() <= made({"sleep": True}, environ=inherited, env=chosen).environment.items()


@pytest.mark.parametrize(
    ("replica", "devices", "visible", "expected"),
    [
        (0, (), None, "0,1"),
        (1, (), None, "2,3"),
        (1, (), "4,5,6,7", "6,7"),
        (1, (3, 1), "4,GPU-b,6,7", "7,GPU-b"),
    ],
)
def test_each_replica_has_devices_of_its_own(
    replica: int, devices: tuple[int, ...], visible: str | None, expected: str
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    context = {"replica": replica, "replicas": 2, "tensor_parallel_size": 2, "devices": devices}
    assert made(context, gpu=True, environ=environ).environment["CUDA_VISIBLE_DEVICES"] == expected


def test_devices_that_do_not_suffice_are_refused() -> None:
    with pytest.raises(ConfigError, match="need 4 GPUs"):
        made(
            {"replica": 1, "replicas": 2, "tensor_parallel_size": 2},
            gpu=True,
            environ={"CUDA_VISIBLE_DEVICES": "0,1,2"},
        )
