"""Shared openings of models with sliding windows, capped scores or sinks: the engine says what a plain forward says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from fixtures.windowed_models import FAMILIES, WINDOW, make_windowed

torch = pytest.importorskip("torch")

import transformers  # noqa: E402

from finqa_plugins.engines.transformers.opening_attention import SharedOpening  # noqa: E402
from finqa_plugins.engines.transformers.served_model import load_model  # noqa: E402
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine  # noqa: E402
from finqa_testing.contract.engine_play import Played, play_episodes, worst_difference  # noqa: E402

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]
WINDOWS = {"shorter than the opening": WINDOW, "shorter than an episode": 64, "longer than all": 1000}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_turns_behind_a_shared_opening(started: MakeEngine, tmp_path: Path, family: str, window: int) -> None:
    model = make_windowed(tmp_path / family, family, sliding_window=window)
    async with started(model=model) as engine:
        generator = engine._worker._generator
        assert generator is not None
        played = await play_episodes(engine)
        assert generator.openings
        assert generator.computed_tokens < 0.7 * generator.prompt_tokens
    assert worst_difference(model, played) <= 1e-5
    assert_greedy_tokens_are_the_best(model, played)


def assert_greedy_tokens_are_the_best(folder: Path, played: list[Played]) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    greedy = [pair for pair in played if pair[0].sampling.temperature == 0]
    assert greedy
    for request, completion in greedy:
        ids = torch.tensor([[*request.token_ids, *completion.token_ids]])
        with torch.no_grad():
            best = model(input_ids=ids).logits[0, len(request.token_ids) - 1 : -1].argmax(-1)
        assert best.tolist() == list(completion.token_ids)


def test_what_queries_see_of_an_opening() -> None:
    opening = SharedOpening(torch.zeros(1, 2, 1, 10, 4), torch.tensor([[10, 11], [12, 13]]))
    assert opening.seen(None) == (0, None)
    assert opening.seen(14) == (0, None), "no row is longer than the window"
    first, mask = opening.seen(5)
    assert (first, mask.shape) == (6, (2, 2, 4))
    assert ((mask == 0).sum(-1)).tolist() == [[4, 3], [2, 1]]
    assert opening.seen(1) == (10, None)
    assert SharedOpening(opening.tensor, torch.tensor([[12], [12]])).seen(5) == (8, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_whose_layers_have_another_window_keeps_its_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """A layer that passes on no window, although its mask has one."""
    folder = make_windowed(tmp_path / "model", "qwen3")
    own = transformers.models.qwen3.modeling_qwen3.Qwen3Attention.__init__

    def without_window(self: object, **arguments: object) -> None:
        own(self, **arguments)
        self.sliding_window = None  # type: ignore[attr-defined]

    monkeypatch.setattr(transformers.models.qwen3.modeling_qwen3.Qwen3Attention, "__init__", without_window)
    model = load_model(str(folder), device=torch.device("cpu"), dtype=dtype, fits=lambda config: None)
    assert not model.shares_openings
    assert model.module.config._attn_implementation == "sdpa"
    assert model.module.config.sliding_window == WINDOW


@pytest.mark.parametrize("family", FAMILIES)
def test_openings_are_shared_in_bfloat16(tmp_path: Path, family: str) -> None:
    folder = make_windowed(tmp_path / family, family)
    model = load_model(str(folder), device=torch.device("cpu"), dtype=torch.bfloat16, fits=lambda config: None)
    assert model.shares_openings
