"""SmolLM2 as a user plays it: its own chat template in an evaluation, and greedy tokens as transformers has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from real_models.conftest import HOME

from finqa_cli.app import main
from finqa_cli.contracts import EngineContext
from finqa_cli.extend import registry
from finqa_cli.types import GenerateRequest, Sampling
from finqa_plugins.engines.transformers.served_model import load_model

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Russia": "Moscow",
    "Egypt": "Cairo",
    "China": "Beijing",
}
ENVIRONMENT = f'''
CAPITALS = {CAPITALS!r}


class Capitals:
    """Answer with one word only."""

    @staticmethod
    def tasks():
        for country in CAPITALS:
            yield {{"prompt": f"What is the capital of {{country}}?", "id": country, "split": "test"}}

    def __init__(self, prompt, id):
        self.capital = CAPITALS[id]

    def reward(self, answer):
        return self.capital.lower() in answer.lower()
'''
PROMPTS = ("What is the capital of France?", "Write a story about a ship.", "Explain why the sky is blue, at length.")


def test_an_evaluation_without_tools_has_the_models_own_template(
    smollm2: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a foreign turn format the model answered none of the eight questions."""
    monkeypatch.setenv("FINQA_HOME", str(HOME))
    monkeypatch.chdir(tmp_path)
    Path("capitals.py").write_text(ENVIRONMENT)
    options = ["--environment", "./capitals.py", "--split", "test", "--max-gen-tokens", "24", "--run-dir", "run"]
    assert main(["eval", smollm2.name, *options, "--set", "engine.options.dtype=float32"]) == 0
    assert json.loads(Path("run/report.json").read_text())["accuracy"] == 1.0
    records = [json.loads(line) for line in Path("run/trajectories.jsonl").read_text().splitlines()]
    assert len(records) == len(CAPITALS)
    for record in records:
        asked = [
            {"role": "system", "content": "Answer with one word only."},
            {"role": "user", "content": record["task"]["prompt"]},
        ]
        ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        assert record["turns"][0]["prompt_tokens"] == len(ids)


async def test_greedy_tokens_are_those_of_generate(smollm2: Path, plain: Any, tokenizer: Any) -> None:
    openings = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in PROMPTS
    ]
    stops = (tokenizer.eos_token_id,)
    engine: Any = registry().create(
        "engine", "transformers", {"device": "cpu", "dtype": "float32"}, EngineContext(model=str(smollm2))
    )
    await engine.start()
    try:
        sampling = Sampling(max_tokens=64, temperature=0.0, stop_ids=stops)
        made = [
            await engine.generate(GenerateRequest(key=f"e{number}#0", token_ids=tuple(ids), sampling=sampling))
            for number, ids in enumerate(openings)
        ]
    finally:
        await engine.close()
    for ids, completion in zip(openings, made, strict=True):
        with torch.inference_mode():
            theirs = plain.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False)[0, len(ids) :].tolist()
        assert list(completion.token_ids) == theirs
    assert max(len(completion.token_ids) for completion in made) == 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_openings_are_shared_in_each_precision(smollm2: Path, gemma3: Path, dtype: torch.dtype) -> None:
    for folder in (smollm2, gemma3):
        model = load_model(str(folder), device=torch.device("cpu"), dtype=dtype, fits=lambda config: None)
        assert model.shares_openings
