"""Models without tool templates, GPT-2's and Llama's kind, from demonstrations to an adapter that is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fixtures.codec_contexts import codec_context
from fixtures.plain_models import make_tiny_gpt2, make_tiny_llama
from fixtures.tiny_learners import as_batch, make_learner, same_rows

from finqa_cli.algorithms.losses import CrossEntropyLoss, PolicyGradientLoss
from finqa_cli.algorithms.samples import demonstration_sample, trajectory_samples
from finqa_cli.app import main
from finqa_cli.contracts import ChatCodec, EngineContext
from finqa_cli.extend import registry
from finqa_cli.rollout.conversation import TokenConversation
from finqa_cli.runs.run_folder import read_settings
from finqa_cli.settings import from_public_dict
from finqa_cli.types import (
    Message,
    Observation,
    PolicyVersion,
    Prompt,
    Sample,
    Sampling,
    Status,
    Task,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
)
from finqa_cli.wiring.build import make_codec

LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj")
GPT2 = ("c_attn", "c_proj", "c_fc")
MODELS: dict[str, tuple[Any, tuple[str, ...]]] = {"gpt2": (make_tiny_gpt2, GPT2), "llama": (make_tiny_llama, LLAMA)}
TOOL = ToolSpec(
    name="sql_query",
    description="Run SQL.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
ASKED = Message(role="user", content="Revenue?")
WITH_TOOLS = Prompt(messages=(Message(role="system", content="Be brief."), ASKED), tools=(TOOL,))
PLAIN = Prompt(messages=(Message(role="system", content="Reply with JSON."), ASKED), tools=())


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    make, targets = MODELS[request.param]
    return make(tmp_path / "model"), targets


def demonstrations(codec: ChatCodec) -> list[Sample]:
    """An episode with tools and a single reply."""
    call = ToolCall(name="sql_query", arguments={"query": "SELECT revenue"})
    episode = (
        Message(role="assistant", content="", tool_call=call),
        Message(role="tool", content="[[5]]", name="sql_query"),
        Message(role="assistant", content="5"),
    )
    reply = (Message(role="assistant", content='{"answer": 5, "program": "add(2, 3)"}'),)
    return [demonstration_sample(WITH_TOOLS, episode, codec), demonstration_sample(PLAIN, reply, codec)]


async def play(engine: Any, codec: ChatCodec, prompt: Prompt, seed: int) -> Sample:
    """An episode of two turns, as it would be trained on."""
    sampling = Sampling(max_tokens=12, seed=seed)
    conversation = TokenConversation(engine, codec, prompt, key=f"e{seed}", sampling=sampling)
    turns: list[Turn] = []
    for text in ("[[1]]", "Error: \u00e9 </s>"):
        reply = await conversation.respond()
        conversation.observe(Observation(text=text), tools=["sql_query"])
        turns.append(
            Turn(
                prompt_ids=reply.prompt_ids,
                completion_ids=reply.completion_ids,
                logprobs=reply.logprobs,
                stop=reply.stop,
                observation=Observation(text=text),
            )
        )
    task = Task(id="t", prompt="q", split="train", cluster="c")
    trajectory = Trajectory(id="e", task=task, member=0, seed=0, status=Status.COMPLETED, turns=tuple(turns))
    (sample,) = trajectory_samples(trajectory, 0.5)
    return sample


def gap(sample: Sample, logprobs: tuple[float, ...]) -> float:
    return max(abs(one - other) for one, other in zip(sample.logprobs, logprobs, strict=True))


async def test_an_adapter_is_trained_published_and_served_as_the_learner_has_it(
    model: tuple[Path, tuple[str, ...]], tmp_path: Path
) -> None:
    folder, targets = model
    codec: ChatCodec = registry().create("codec", "auto", {}, codec_context(str(folder)))
    learner = make_learner(
        folder, learning_rate=3e-2, lora_target_modules=targets, gradient_checkpointing=True, lora_alpha=8
    )
    shown = demonstrations(codec)
    before = learner.logprobs(shown)
    losses = [learner.update(as_batch(shown), CrossEntropyLoss()).loss for _ in range(25)]
    assert losses[-1] < 0.5 * losses[0]
    assert same_rows(learner.reference_logprobs(shown), before), "the base model is as it was"
    policy = learner.publish(tmp_path / "policy", 1)

    engine: Any = registry().create("engine", "transformers", {}, EngineContext(model=str(folder), dispatch_wait_ms=5))
    await engine.start()
    try:
        base = [await play(engine, codec, prompt, seed) for seed, prompt in enumerate((WITH_TOOLS, PLAIN))]
        await engine.load(policy)
        played = [await play(engine, codec, prompt, seed) for seed, prompt in enumerate((WITH_TOOLS, PLAIN))]
    finally:
        await engine.close()
    assert max(map(gap, played, learner.logprobs(played))) <= 1e-4
    assert max(map(gap, base, learner.reference_logprobs(base))) <= 1e-4
    assert max(map(gap, played, learner.reference_logprobs(played))) > 0.1, "the check could not fail"

    loss = PolicyGradientLoss(clip_low=0.2, clip_high=0.2)
    report = learner.update(as_batch(played), loss)
    assert report.grad_norm > 0 and report.metrics["ratio_mean"] == pytest.approx(1, abs=1e-4)


async def test_a_saved_adapter_goes_on_as_if_nothing_had_been(
    model: tuple[Path, tuple[str, ...]], tmp_path: Path
) -> None:
    folder, targets = model
    codec: ChatCodec = registry().create("codec", "auto", {}, codec_context(str(folder)))
    batch = as_batch(demonstrations(codec))
    learner = make_learner(folder, lora_target_modules=targets)
    learner.update(batch, CrossEntropyLoss())
    learner.save(tmp_path / "state")
    other = make_learner(folder, lora_target_modules=targets)
    other.load(tmp_path / "state")
    reports = [one.update(batch, CrossEntropyLoss()) for one in (learner, other)]
    assert (reports[0].loss, reports[0].grad_norm) == (reports[1].loss, reports[1].grad_norm)
    assert same_rows(learner.logprobs(batch.samples), other.logprobs(batch.samples))


async def test_a_whole_gpt2_is_trained_and_published_with_its_tokenizer(tmp_path: Path) -> None:
    folder = make_tiny_gpt2(tmp_path / "model")
    codec: ChatCodec = registry().create("codec", "auto", {}, codec_context(str(folder)))
    learner = make_learner(folder, lora_rank=0)
    batch = as_batch(demonstrations(codec))
    first = learner.update(batch, CrossEntropyLoss()).loss
    assert learner.update(batch, CrossEntropyLoss()).loss < first
    policy = learner.publish(tmp_path / "policy", 1)
    assert policy == PolicyVersion(number=1, model=str(tmp_path / "policy"))
    published: ChatCodec = registry().create("codec", "auto", {}, codec_context(policy.model))
    assert demonstrations(published) == demonstrations(codec)


def test_an_export_serves_the_format_that_was_trained(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setenv("FINQA_POOL__SANDBOXES", "1")
    make_tiny_llama(Path("model"))
    short = ["--limit=1", "--max-steps=1", "--max-gen-tokens=2"]
    assert main(["eval", "scripted", "--limit=2", "--split=train", "--run-dir=demonstrations"]) == 0
    learn = ["--epochs=1", "--validation-samples=0", "--lora-rank=2", "--set=codec.options.call_format=xml"]
    assert main(["sft", "demonstrations", "--model=model", *learn, "--run-dir=run"]) == 0
    assert main(["eval", "run", *short, "--run-dir=eval-run"]) == 0
    for form in ("merged", "peft"):
        assert main(["export", "run", "--to", form, "--out", form]) == 0
        exported = Path(form)
        codec = make_codec(from_public_dict(read_settings(Path("eval-run"))), "model")
        chat = [{"role": message.role, "content": message.content} for message in WITH_TOOLS.messages]
        call = ToolCall(name="sql_query", arguments={"query": "SELECT revenue FROM t", "rows": [1, None]})
        functions = [{"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}]
        chat += [{"role": "assistant", "content": "So.", "tool_calls": functions}, {"role": "tool", "content": "[[5]]"}]
        rendered = AutoTokenizer.from_pretrained(exported).apply_chat_template(
            chat, tools=[TOOL.as_function()], add_generation_prompt=True, return_dict=True
        )
        said = codec.assistant(Message(role="assistant", content="So.", tool_call=call))
        played = (*codec.opening(WITH_TOOLS), *said, *codec.tool_reply("[[5]]", stopped=True))
        assert tuple(rendered["input_ids"]) == played, form
        assert "calls | xml" in (exported / "README.md").read_text(encoding="utf-8")
        assert main(["eval", str(exported), *short, f"--run-dir=eval-{form}"]) == 0
        theirs, ours = (json.loads(Path(run, "manifest.json").read_text()) for run in (f"eval-{form}", "eval-run"))
        assert theirs["parameters"]["codec"] == ours["parameters"]["codec"]
        assert theirs["inputs"]["format"]["calls"] == "xml"
    capsys.readouterr()


def test_a_policy_of_an_earlier_version_keeps_the_format_that_it_learned(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINQA_POOL__SANDBOXES", "1")
    make_tiny_llama(Path("model"))
    short = ["--limit=1", "--max-steps=1", "--max-gen-tokens=2"]
    assert main(["eval", "scripted", "--limit=1", "--split=train", "--run-dir=demonstrations"]) == 0
    learn = ["--epochs=1", "--validation-samples=0", "--lora-rank=2"]
    assert main(["sft", "demonstrations", "--model=model", *learn, "--run-dir=run"]) == 0
    settings = json.loads(Path("run/settings.json").read_text())
    assert settings["codec"]["options"].pop("version") == 2
    Path("run/settings.json").write_text(json.dumps(settings))
    assert main(["eval", "run", *short, "--run-dir=after"]) == 0
    assert json.loads(Path("after/manifest.json").read_text())["inputs"]["format"]["prompts"] == "roles as text"
    assert main(["sft", "demonstrations", "--model=run", *learn, "--run-dir=more"]) == 0
    assert json.loads(Path("more/manifest.json").read_text())["inputs"]["format"]["prompts"] == "roles as text"


def test_a_limit_of_tokens_is_taken_from_demonstrations_of_the_same_model_only(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINQA_POOL__SANDBOXES", "1")
    make_tiny_llama(Path("model"))
    Path("mine.toml").write_text("[generation]\nmax_gen_tokens = 224\n")
    demonstrations = ["eval", "scripted", "--limit=1", "--split=train", "--max-steps=7"]
    assert main([*demonstrations, "--max-gen-tokens=160", "--run-dir=demonstrations"]) == 0
    assert main([*demonstrations, "--max-gen-tokens=48", "--set=model.name=model", "--run-dir=same"]) == 0
    learn = ["--model=model", "--epochs=1", "--validation-samples=0", "--lora-rank=2"]
    for number, (source, more, limit) in enumerate(
        [("demonstrations", (), 512), ("same", (), 48), ("same", ("--config=mine.toml",), 224)]
    ):
        assert main(["sft", source, *learn, *more, f"--run-dir=run{number}"]) == 0
        assert (
            read_settings(Path(f"run{number}"))["generation"] | {"max_gen_tokens": limit, "max_steps": 7}
            == (read_settings(Path(f"run{number}"))["generation"])
        )
