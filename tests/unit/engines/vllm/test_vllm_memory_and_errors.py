"""What a server said before it died, in the words of vLLM 0.32, and what it needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, FinqaError, MissingDependencyError, ServiceUnavailableError
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.diagnosis import Death, Need, explain, last_words, need
from finqa_testing.tiny_models import make_tiny_qwen3

WORKER = "(Worker pid=24600) ERROR 11-21 19:07:17 [multiproc_executor.py:1063] "
CORE = "(EngineCore pid=24560) ERROR 11-21 19:07:17 [core.py:1510] "
RESERVED = (
    "ValueError: Available memory on node 0 (13.22/15.59 GiB) on kv cache allocation is less than requested memory for "
    "kv (100.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other "
    "processes."
)
NO_MEMORY = f"""\
(APIServer pid=1) WARNING 11-21 19:06:48 [system_utils.py:255] Found ulimit of 20000 with error `OSError: [Errno 24]`.
{WORKER}Traceback (most recent call last):
{WORKER}    raise ValueError(
{WORKER}{RESERVED}
{CORE}RuntimeError: Worker failed with error '{RESERVED[12:]}', please check the stack trace above
Traceback (most recent call last):
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': 1}}
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked
  warnings.warn('resource_tracker: There appear to be %d '
[finqa] the server ended with status 1
"""
CUDA = f"{CORE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 79.1 GiB in all.\n"
LENGTH = (
    f"{CORE}ValueError: To serve at least one request with the model's max seq len (32768), (4.5 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (2.0 GiB).\n"
)
DESIRED = (
    "(VllmWorker-0 pid=24868) ERROR 11-21 19:08:09 [multiproc_executor.py:953] ValueError: Available memory on node 0 "
    "(13.14/15.59 GiB) on startup is less than desired CPU memory utilization (0.99, 15.43 GiB).\n"
)
KILLED = "INFO 11-21 19:08:09 [core.py:1] Loading weights\n[finqa] the server ended with status -9\n"
CHILD_KILLED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'E': -9}\n"
ARGUMENT = "usage: api_server.py [-h] ...\napi_server.py: error: unrecognized arguments: --nonsense\n"
SLEEP = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Sleep mode is not supported on current platform. [type=value_error]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""


def explained(output: str, *, status: int = 1, needed: Need | None = None) -> FinqaError:
    death = Death(status=status, output=output, log_path=Path("/logs/vllm-0.log"), python="/venv/bin/python")
    return explain(death, VllmEngineConfig(), EngineContext(model="/models/big"), needed)


def test_the_cause_is_said_in_the_servers_own_words() -> None:
    assert last_words(NO_MEMORY) == RESERVED
    assert last_words(SLEEP).startswith("pydantic_core._pydantic_core.ValidationError: 1 validation error")
    assert "Sleep mode is not supported on current platform" in last_words(SLEEP)
    assert last_words("INFO 11-21 19:06:48 [a.py:1] one\n\ntwo\n") == "one / two"
    assert last_words("") == "it wrote nothing."


@pytest.mark.parametrize("output", [NO_MEMORY, CUDA, LENGTH, DESIRED, KILLED, CHILD_KILLED])
def test_too_little_memory_names_the_need_and_the_flags(output: str) -> None:
    needed = Need(weights=15 * 2**30, adapters=2**28, context=2**30, length=32768, sequences=256)
    error = explained(output, needed=needed)
    assert isinstance(error, ConfigError)
    assert "at least 16.2 GiB on each device" in error.message
    assert "15 GiB of weights, 0.25 GiB of adapters and 1 GiB of KV cache for one sequence of 32768" in error.message
    assert "/logs/vllm-0.log" in error.message
    for flag in ("--gpu-memory-utilization (now 0.85", "--tensor-parallel-size (now 1)", "max_model_len", "max_loras"):
        assert flag in error.remedy


def test_a_missing_vllm_names_the_command_that_installs_it() -> None:
    error = explained("/venv/bin/python: Error while finding module: No module named 'vllm'\n")
    assert isinstance(error, MissingDependencyError)
    assert error.remedy == "finqa setup vllm"
    other = explained("ModuleNotFoundError: No module named 'vllm.nonsense'\n")
    assert not isinstance(other, MissingDependencyError)


def test_other_deaths_say_why() -> None:
    refused = explained(ARGUMENT, status=2)
    assert isinstance(refused, ConfigError)
    assert "unrecognized arguments: --nonsense" in refused.message
    assert "extra_args" in refused.remedy
    died = explained(SLEEP)
    assert isinstance(died, ServiceUnavailableError)
    assert "Sleep mode is not supported" in died.message


def test_a_quantized_head_names_the_option_for_its_logits() -> None:
    said = "A head_dtype different from the model dtype is only supported for an unquantized lm_head."
    error = explained(f"(EngineCore pid=7) ERROR 11-29 10:00:00 [core.py:1] boom\nValueError: {said}\n")
    assert isinstance(error, ConfigError)
    assert error.remedy == "--set engine.options.head_dtype=model"


def test_the_need_is_counted_from_the_models_files(tmp_path: Path) -> None:
    folder = make_tiny_qwen3(tmp_path / "model", vocab_size=300, hidden=64, layers=2)
    asked = {"length": 100, "sequences": 8, "lora_rank": 8, "loras": 2}
    found = need(folder, dtype="float32", tensor_parallel_size=1, **asked)
    assert found is not None
    heads, kv_heads, width, hidden, inner = 2, 1, 32, 64, 128
    attention = 2 * (hidden * heads * width + hidden * kv_heads * width) + 2 * width
    parameters = 300 * hidden + hidden + 2 * (attention + 3 * hidden * inner + 2 * hidden)
    assert found.weights == 4 * parameters
    assert found.context == 100 * 2 * 2 * kv_heads * width * 4
    sides = 2 * (hidden + heads * width) + 2 * (hidden + kv_heads * width) + 3 * (hidden + inner)
    assert found.adapters == 2 * 2 * 8 * sides * 4
    assert found.least == found.weights + found.context + found.adapters

    halved = need(folder, dtype="bfloat16", tensor_parallel_size=2, **asked)
    assert halved is not None
    assert halved.weights * 4 == found.weights
    assert halved.context * 2 == found.context, "the only key head is on both devices"


@pytest.mark.parametrize("damage", ["no config", "config", "no weights", "weights", "empty"])
def test_a_folder_that_says_nothing_has_no_known_need(tmp_path: Path, damage: str) -> None:
    folder = make_tiny_qwen3(tmp_path / "model")
    match damage:
        case "no config":
            (folder / "config.json").unlink()
        case "config":
            (folder / "config.json").write_text("[1]")
        case "no weights":
            (folder / "model.safetensors").unlink()
        case "weights":
            (folder / "model.safetensors").write_bytes(b"\xff" * 40)
        case _:
            (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 0}))
    sizes = {"length": None, "sequences": None, "tensor_parallel_size": 1, "lora_rank": 0, "loras": 1}
    assert need(folder, dtype="float32", **sizes) is None
    assert "not known" in explained(CUDA).message
