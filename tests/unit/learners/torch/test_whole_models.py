"""Whole models that are written for others: an adapter with its base, shards put together, and in which precision."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.plain_models import make_tiny_llama
from fixtures.sharded_checkpoints import cut, write_actor
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples
from safetensors.torch import load_file

from finqa_cli.errors import ConfigError, DataError
from finqa_cli.extend import registry
from finqa_cli.types import PolicyVersion
from finqa_plugins.learners.torch import verl_shards

Weights = dict[str, torch.Tensor]


def write(policy: PolicyVersion, to: Path, dtype: str = "float32") -> PolicyVersion | None:
    written: PolicyVersion | None = registry().hook.write_model(policy=policy, folder=to, dtype=dtype)
    return written


def weights_of(folder: Path) -> Weights:
    return load_file(folder / "model.safetensors")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(40)[None] % 260).logits
    return found


@pytest.fixture
def adapter(learner_model: Path, tmp_path: Path) -> Path:
    learner = make_learner(learner_model, learning_rate=3e-2, lora_target_modules=("q_proj", "down_proj"))
    for seed in range(3):
        learner.update(as_batch(random_samples(3, seed=seed)), GRPO_LOSS)
    found = learner.publish(tmp_path / "adapter", 1).adapter
    assert found is not None
    return found


def test_what_is_written_computes_what_adapter_and_base_compute(
    learner_model: Path, adapter: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy = PolicyVersion(number=7, model=str(learner_model), adapter=adapter)
    base = AutoModelForCausalLM.from_pretrained(learner_model, dtype=torch.float32).eval()
    plain = logits(base)
    wanted = logits(PeftModel.from_pretrained(base, adapter).eval())
    assert write(policy, tmp_path / "out") == PolicyVersion(number=7, model=str(tmp_path / "out"))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert merged.dtype == torch.float32
    assert float((logits(merged) - wanted).abs().max()) < 1e-4 < 0.05 < float((plain - wanted).abs().max())
    assert write(policy, tmp_path / "half", "bfloat16") is not None
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    whole, half = weights_of(tmp_path / "out"), weights_of(tmp_path / "half")
    assert whole.keys() == half.keys()
    assert all(torch.equal(half[name], whole[name].bfloat16()) for name in whole), "the sum is rounded, once"


def test_what_leaves_the_range_of_a_precision_is_refused(learner_model: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    huge = Path(shutil.copytree(learner_model, tmp_path / "huge"))
    tensors = weights_of(huge)
    tensors["model.norm.weight"][0] = 1e6
    save_file(tensors, huge / "model.safetensors", metadata={"format": "pt"})
    policy = PolicyVersion(number=0, model=str(huge))
    with pytest.raises(ConfigError, match=r"model\.norm\.weight .* not finite in float16") as caught:
        write(policy, tmp_path / "out", "float16")
    assert caught.value.remedy == "--dtype bfloat16" and not (tmp_path / "out").exists()
    assert write(policy, tmp_path / "out", "bfloat16") is not None


@pytest.mark.parametrize(("ranks", "copies"), [(1, 1), (3, 1), (4, 2)], ids=["one", "uneven", "hsdp"])
def test_shards_are_put_together(learner_model: Path, tmp_path: Path, ranks: int, copies: int) -> None:
    tensors = weights_of(learner_model)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]  # state dicts name tied weights twice
    actor = write_actor(tmp_path / "actor", learner_model, cut(tensors, ranks, copies=copies))
    assert write(PolicyVersion(number=4, model=str(actor)), tmp_path / "out") is not None
    found = weights_of(tmp_path / "out")
    original = weights_of(learner_model)
    assert found.keys() == original.keys()
    assert all(torch.equal(found[name], original[name]) for name in original)
    assert (tmp_path / "out" / "tokenizer.json").is_file() and (tmp_path / "out" / "config.json").is_file()


def test_untied_models_and_older_layouts_as_well(tmp_path: Path) -> None:
    llama = make_tiny_llama(tmp_path / "llama")
    (llama / "tokenizer.model").write_bytes(b"of SentencePiece")
    actor = write_actor(tmp_path / "actor", llama, cut(weights_of(llama), 2))
    for path in (*(actor / "huggingface").iterdir(), llama / "tokenizer.model"):
        shutil.move(path, actor / path.name)
    assert write(PolicyVersion(number=0, model=str(actor)), tmp_path / "out") is not None
    found, original = (
        weights_of(tmp_path / "out"),
        torch.load(actor / "model_world_size_2_rank_0.pt", weights_only=True),
    )
    assert set(found) == set(original)
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == b"of SentencePiece", "llama.cpp reads it"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (actor / name).read_bytes(), "as the base has it"


SHARDING = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
rank, folder, model = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
for layer in policy.model.layers:
    fully_shard(layer)
fully_shard(policy)
torch.save(policy.state_dict(), folder / f"model_world_size_2_rank_{rank}.pt")
dist.barrier()
"""


@pytest.mark.slow  # two processes with torch; the same files are made without processes above
def test_shards_that_two_processes_saved(learner_model: Path, tmp_path: Path) -> None:
    actor = write_actor(tmp_path / "actor", learner_model, [])
    (actor / "fsdp_config.json").unlink()
    command = [sys.executable, "-c", SHARDING]
    running = [subprocess.Popen([*command, str(rank), str(actor), str(learner_model)]) for rank in range(2)]
    assert [process.wait(timeout=100) for process in running] == [0, 0]
    assert write(PolicyVersion(number=0, model=str(actor)), tmp_path / "out") is not None
    found, original = weights_of(tmp_path / "out"), weights_of(learner_model)
    assert found.keys() == original.keys()
    assert all(torch.equal(found[name], original[name]) for name in original)


def rewritten(change: Callable[[Weights], object]) -> Callable[[Path], object]:
    def damage(actor: Path) -> None:
        path = actor / "model_world_size_2_rank_1.pt"
        shard = torch.load(path, weights_only=True)
        change(shard)
        torch.save(shard, path)

    return damage


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("evil-was-here"),)


WRONG: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a rank less": ("lacks the shards of 1 of 2", lambda actor: (actor / "model_world_size_2_rank_0.pt").unlink()),
    "cut file": ("cannot be read", lambda actor: (actor / "model_world_size_2_rank_1.pt").write_bytes(b"PK\3\4")),
    "code in a file": ("cannot be read", rewritten(lambda shard: shard.update(evil=Evil()))),  # type: ignore[arg-type]
    "other weights": ("not contain the same weights", rewritten(lambda shard: shard.popitem())),
    "plain tensors": (
        "not a sharded tensor",
        rewritten(lambda shard: shard.update({name: torch.zeros(2) for name in shard})),
    ),
    "pieces of another size": ("The pieces of", rewritten(lambda shard: shard.update(halved(shard)))),
    "two checkpoints": (
        "of 2, 4 processes",
        lambda actor: (actor / "fsdp_config.json").write_text('{"world_size": 4}'),
    ),
    "no configuration": ("no huggingface/config.json", lambda actor: shutil.rmtree(actor / "huggingface")),
    "another model": (
        "do not fit",
        lambda actor: edit(actor / "huggingface" / "config.json", intermediate_size=64),
    ),
}


def halved(shard: Weights) -> Weights:
    name = "model.embed_tokens.weight"
    piece: Any = shard[name]
    return {name: type(piece)(piece.to_local()[:1], piece._spec, requires_grad=False)}


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("case", WRONG)
def test_shards_that_are_not_whole_are_refused(
    learner_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    actor = write_actor(tmp_path / "actor", learner_model, cut(weights_of(learner_model), 2))
    message, damage = WRONG[case]
    damage(actor)
    with pytest.raises(DataError, match=message):
        write(PolicyVersion(number=0, model=str(actor)), tmp_path / "out")
    assert not (tmp_path / "out").exists() and not Path("evil-was-here").exists()


def test_an_adapter_among_shards_is_named(learner_model: Path, tmp_path: Path) -> None:
    shard = cut({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight": torch.ones(4, 4)}, 2)
    actor = write_actor(tmp_path / "actor", learner_model, shard)
    with pytest.raises(DataError, match="an adapter besides the model") as caught:
        verl_shards.gathered(actor)
    assert "lora_adapter --to merged" in caught.value.remedy
