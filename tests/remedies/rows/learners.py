"""Trainings whose model, options or checkpoints are wrong; models that are exported and inspected."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.plain_models import make_tiny_gpt2
from fixtures.sharded_checkpoints import cut, write_actor
from remedies.faults import Fault, new, text
from remedies.rows.codecs import MODEL
from remedies.rows.damaged_runs import document
from remedies.rows.engines import config
from remedies.rows.hubs import online
from remedies.rows.user_code import GOOD

from finqa_cli.testing.tiny_models import make_tiny_qwen3

NEEDS = ("trained", "of-train")
SFT = "sft of-train --epochs 1 --validation-samples 0 --lora-rank 2 --batch-tokens 4000"
LEARN = f"{SFT} --model {MODEL}"
PUT_BACK = "kept"
ACTOR = Path("v/global_step_1/actor")
SHARD = "model_world_size_2_rank_1.pt"
EXPORT = "--to merged --out x"


def learned(options: str = "", write: Callable[[], object] = lambda: None, **more: Any) -> Fault:
    return Fault(f"{LEARN}{options and ' '}{options}", write, needs=NEEDS, **more)


def spoiled(write: Callable[[], object], fix: str = "") -> Fault:
    """A model to learn from that is wrong, which the user copies again, or another model that is named."""

    def spoil() -> None:
        shutil.copytree(MODEL, PUT_BACK)
        write()

    def put_back() -> str:
        shutil.copytree(PUT_BACK, MODEL, dirs_exist_ok=True)
        return fix

    return Fault(LEARN, spoil, {"FOLDER_OR_HUB_ID": PUT_BACK}, needs=NEEDS, by_hand=put_back)


def weight(value: float) -> Callable[[], None]:
    """Set a weight of the model to this value."""

    def write() -> None:
        from safetensors.torch import load_file, save_file

        shutil.copytree(MODEL, PUT_BACK)
        path = Path(MODEL, "model.safetensors")
        weights = load_file(path)
        weights["model.norm.weight"][0] = value
        save_file(weights, path, {"format": "pt"})

    return write


def biased_by_distance() -> None:
    """The model is a Falcon whose scores have biases (ALiBi) and whose attention cannot be replaced."""
    from transformers import FalconConfig, FalconForCausalLM

    own = json.loads(Path(MODEL, "config.json").read_text(encoding="utf-8"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 4096}
    ids = {name: own[name] for name in ("vocab_size", "pad_token_id", "eos_token_id", "bos_token_id")}
    FalconForCausalLM(FalconConfig(**sizes, **ids, alibi=True)).save_pretrained(MODEL)


def adapter_of_another() -> None:
    """An adapter that names a smaller model as its base."""
    make_tiny_qwen3(Path("other"), hidden=32, layers=1)
    shutil.copytree("trained/w/checkpoints/step_2/policy", "adapter")
    named("other")


def named(base: str) -> None:
    document("adapter/adapter_config.json", base_model_name_or_path=str(Path(base).absolute()))()


def shards(spoil: Callable[[], object]) -> Callable[[], object]:
    """The model as two processes of verl leave it, spoiled then."""

    def write() -> None:
        from safetensors.torch import load_file

        write_actor(ACTOR, Path(MODEL), cut(load_file(f"{MODEL}/model.safetensors"), 2))
        spoil()

    return write


def with_adapter() -> None:
    import torch

    for path in ACTOR.glob("*.pt"):
        shard = torch.load(path, weights_only=True)
        torch.save({**shard, "x.lora_A.weight": next(iter(shard.values()))}, path)
    shutil.copytree("trained/w/checkpoints/step_2/policy", ACTOR / "lora_adapter")


def sharded(spoil: Callable[[], object], **more: Any) -> Fault:
    return Fault(f"export v {EXPORT}", shards(spoil), needs=("trained",), **more)


def mislaid(path: Path) -> Fault:
    """A file of a sharded model that is not there, which the user copies."""
    return sharded(lambda: path.rename(PUT_BACK), by_hand=lambda: Path(PUT_BACK).rename(path) and None)


def checkpoint(**changes: Any) -> Callable[[], object]:
    """An interrupted run whose newest checkpoint has a whole, but other, state of the learner."""

    def write() -> None:
        document("learned/run.json", status="interrupted")()
        shutil.rmtree("learned/checkpoints/final")
        (folder,) = Path("learned/checkpoints").glob("step_*")
        document(str(folder / "learner/learner.json"), **changes)()
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest["files"]}
        document(str(folder / "manifest.json"), files=files)()

    return write


def resumed(**changes: Any) -> Fault:
    return Fault("sft --resume learned", checkpoint(**changes), needs=(*NEEDS, "learned"))


def hub(status: int, code: str = "") -> Callable[[], AbstractContextManager[SimpleNamespace]]:
    """A hub that answers every request with this status, and with this name of the error."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    @contextmanager
    def serve() -> Iterator[SimpleNamespace]:
        from huggingface_hub import constants

        with (
            ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server,
            online(),
            pytest.MonkeyPatch.context() as patch,
        ):
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            address = f"http://127.0.0.1:{server.server_address[1]}"
            patch.setattr(constants, "ENDPOINT", address)
            patch.setattr(
                constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
            )
            yield SimpleNamespace(url=address)
            server.shutdown()

    return serve


LEARNERS = {
    "a head that is adapted": learned(
        "--set learner.options.dtype=bfloat16 --set learner.options.head_dtype=float32 "
        "--lora-target-modules q_proj,lm_head"
    ),
    "rows that the model does not take": learned(
        "--set learner.options.packing=on --lora-target-modules query_key_value", biased_by_distance
    ),
    "no such layer": learned("--lora-target-modules nosuch"),
    "greedy attempts": Fault(
        f"train --environment ./env.py --model {MODEL} --iterations 1 --temperature 0 --no-preflight "
        "--lora-target-modules nosuch",
        text("env.py", GOOD),
        needs=NEEDS,
        then=78,
    ),
    "episodes longer than the positions of the model": Fault(
        f"{SFT} --model gpt --lora-target-modules c_attn --set codec.name=plain",
        lambda: make_tiny_gpt2(Path("gpt")),
        needs=NEEDS,
        by_hand=new(LEARN),
    ),
    "a family that transformers does not know": spoiled(lambda: config(model_type="nosuch")),
    "torn weights": spoiled(text(f"{MODEL}/model.safetensors", "x")),
    "no weights": spoiled(lambda: Path(MODEL, "model.safetensors").unlink()),
    "logits that are rescaled": spoiled(lambda: config(logit_scale=2.0), f"{SFT} --model {PUT_BACK}"),
    "a state of another version": resumed(schema_version=99),
    "a state of another base": resumed(
        identity={"base": "0", "lora_rank": 2, "lora_alpha": 32, "lora_target_modules": ["q_proj"]}
    ),
    "an adapter of another base": Fault(
        f"export adapter {EXPORT}",
        adapter_of_another,
        needs=("trained",),
        by_hand=lambda: named(MODEL),
    ),
    "weights beyond float16": Fault(f"export {MODEL} {EXPORT} --dtype float16", weight(1e6), needs=("trained",)),
    "shards without a description": mislaid(ACTOR / "huggingface/config.json"),
    "shards that are missing": mislaid(ACTOR / SHARD),
    "shards beside an adapter": sharded(with_adapter),
    "a hub id without a description": Fault(
        "model inspect no/such", server=hub(404, "EntryNotFound"), by_hand=new("model inspect embedded")
    ),
    "a hub that does not answer": Fault(
        "model inspect no/such", server=hub(418), by_hand=new("model inspect embedded")
    ),
    "isolation without effect": Fault("eval scripted --limit 1 --dangerously-run-unisolated"),
    "an image on this machine": Fault(
        "eval random --limit 1 --environment openenv --set environment.options.image=x --sandbox local",
        then=(65, 69, 78),
    ),
}
