"""How requests are put together in batches, and the parts in which prompts are computed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from finqa_cli.types import Completion, GenerateRequest, Sampling  # noqa: E402
from finqa_plugins.engines.transformers.decode import Job, Prompt, fill  # noqa: E402
from finqa_plugins.engines.transformers.generator import Generator  # noqa: E402
from finqa_plugins.engines.transformers.kv_store import Scratch  # noqa: E402
from finqa_plugins.engines.transformers.served_model import CausalModel, load_model  # noqa: E402

GREEDY = Sampling(max_tokens=4, temperature=0.0)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> CausalModel:
    return load_model(str(tiny_model), device=torch.device("cpu"), dtype=torch.float32, fits=lambda config: None)


@pytest.fixture
def generator(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> Generator:
    """A further batch costs as much as reading the keys and values of 400 tokens."""
    monkeypatch.setattr(model, "forward_bytes", 400 * model.shape.token_bytes)
    return Generator(model, max_batch=64, kv_bytes=1 << 26, max_context=512)


def request(key: str, token_ids: tuple[int, ...]) -> GenerateRequest:
    return GenerateRequest(key=key, token_ids=token_ids, sampling=GREEDY)


def jobs(opening: tuple[int, ...], count: int, name: str) -> list[Job]:
    return [Job(request(f"{name}{row}#0", (*opening, 7, row + 1))) for row in range(count)]


def sequence(length: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(1, 90) for _ in range(length))


def families(generator: Generator, requests: list[Job]) -> list[tuple[int, int]]:
    """Tokens of each opening, 0 for none, and the number of its requests."""
    return [(len(opening.token_ids) if opening else 0, len(rows)) for opening, rows in generator._families(requests)]


def test_an_opening_has_a_batch_of_its_own_where_that_spares_more_than_it_costs(generator: Generator) -> None:
    many, few = jobs(sequence(50, 1), 20, "many"), jobs(sequence(60, 2), 5, "few")
    generator._learn_openings(many + few)
    assert families(generator, many + few) == [(51, 20), (0, 5)], "4 rows spared 61 tokens each are less than 400"
    assert families(generator, few) == [(61, 5)], "no further batch"
    assert families(generator, many + jobs((), 3, "none")) == [(51, 20), (0, 3)]
    assert families(generator, []) == []


def test_requests_fall_back_to_the_shorter_opening_that_they_share(generator: Generator) -> None:
    system = sequence(50, 1)
    generator._learn_openings(jobs(system, 20, "many"))
    long = jobs((*system, 7, 1, *sequence(40, 3)), 3, "long")
    generator.openings.append(generator._entries([long[0].sequence[:90]], None)[long[0].sequence[:90]])
    assert families(generator, jobs(system, 20, "many") + long) == [(51, 23)]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.mark.parametrize("lengths", [(1,), (5, 9), tuple(range(40, 90)), (3, 3, 3, 400, 410, 420)], ids=str)
def test_prompts_computed_in_parts_are_those_computed_whole(
    model: CausalModel, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...]
) -> None:
    monkeypatch.setattr("finqa_plugins.engines.transformers.decode.PART_TOKENS", 128)
    prompts = [Prompt(sequence(length, length), None, 0) for length in lengths]
    whole, parts = (
        fill(model, prompts, Scratch(model.shape, model.device).view(len(prompts), max(lengths)), None, by)
        for by in (None, threads)
    )
    assert (parts.first, parts.length, parts.computed) == (whole.first, whole.length, whole.computed)
    torch.testing.assert_close(parts.logits, whole.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(parts.buffer, whole.buffer, atol=1e-5, rtol=1e-5)


def test_what_is_kept_behind_an_opening_serves_a_later_batch_without_it(generator: Generator) -> None:
    first = jobs(sequence(50, 1), 20, "many")
    generator.run(first, everyone=False, interrupted=lambda: False)
    computed = generator.computed_tokens
    follow = first[0]
    assert isinstance(follow.outcome, Completion)
    kept = generator.store.get("many0")
    assert kept is not None
    assert kept.start == 51
    later = Job(request("many0#1", (*follow.sequence, 5, 6)))
    alone = Job(request("alone", later.sequence))
    generator.run([later, *jobs(sequence(60, 2), 40, "others")], everyone=False, interrupted=lambda: False)
    assert generator.computed_tokens - computed < 61 + 40 * 3 + len(later.sequence), (
        "its opening was not computed again"
    )
    generator.reset(0)
    generator.run([alone], everyone=False, interrupted=lambda: False)
    assert isinstance(later.outcome, Completion)
    assert isinstance(alone.outcome, Completion)
    assert later.outcome.token_ids == alone.outcome.token_ids
    assert later.outcome.logprobs == pytest.approx(alone.outcome.logprobs, abs=1e-4)
