"""Requests with equal sequences share a row of the batch until they draw different tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from finqa_cli.errors import EngineError  # noqa: E402
from finqa_cli.types import Completion, GenerateRequest, Sampling  # noqa: E402
from finqa_plugins.engines.transformers.decode import Job, arrange  # noqa: E402
from finqa_plugins.engines.transformers.generator import Generator  # noqa: E402
from finqa_plugins.engines.transformers.served_model import CausalModel, load_model  # noqa: E402
from finqa_testing.contract.engine_play import worst_difference  # noqa: E402

PROMPT = (5, 6, 7, 8, 9, 10, 11)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> CausalModel:
    return load_model(str(tiny_model), device=torch.device("cpu"), dtype=torch.float32, fits=lambda config: None)


@pytest.fixture
def generator(model: CausalModel) -> Generator:
    return Generator(model, max_batch=64, kv_bytes=1 << 26, max_context=512)


@pytest.fixture
def rows(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each forward from now on."""
    forward, counted = model.forward, []

    def counting(token_ids: Any, *rest: Any) -> Any:
        counted.append(token_ids.shape[0])
        return forward(token_ids, *rest)

    monkeypatch.setattr(model, "forward", counting)
    return counted


def job(key: str, prompt: tuple[int, ...] = PROMPT, **sampling: Any) -> Job:
    return Job(GenerateRequest(key=key, token_ids=prompt, sampling=Sampling(**({"max_tokens": 12} | sampling))))


def run(generator: Generator, jobs: list[Job], interrupted: Callable[[], bool] = lambda: False) -> None:
    generator.run(sorted(jobs, key=lambda job: job.request.key), everyone=False, interrupted=interrupted)


def completion(job: Job) -> Completion:
    assert isinstance(job.outcome, Completion)
    return job.outcome


def assert_as_alone(generator: Generator, jobs: list[Job]) -> None:
    for shared in jobs:
        alone = Job(shared.request)
        generator.reset(0)
        run(generator, [alone])
        assert completion(shared).token_ids == completion(alone).token_ids
        assert completion(shared).logprobs == pytest.approx(completion(alone).logprobs, abs=1e-4)


def test_equal_attempts_are_one_row_to_the_end(generator: Generator, rows: list[int]) -> None:
    greedy = [job(f"e{n}#0", temperature=0.0) for n in range(8)]
    run(generator, greedy)
    assert set(rows) == {1}
    assert len({completion(one).token_ids for one in greedy}) == 1
    assert {generator.store.get(f"e{n}").token_ids for n in range(8)} == {greedy[0].sequence[:-1]}  # type: ignore[union-attr]
    rows.clear()
    later = [job(f"e{n}#1", (*greedy[0].sequence, 3, 4), temperature=0.0) for n in range(8)]
    before = generator.computed_tokens
    run(generator, later)
    assert generator.computed_tokens - before == 3, "the last token, which is not kept, and two new ones"
    assert set(rows) == {1}
    assert_as_alone(generator, [greedy[0], later[0]])


def test_attempts_part_where_they_draw_different_tokens(
    generator: Generator, rows: list[int], tiny_model: Path
) -> None:
    """Two questions of eight attempts each, some of which end early."""
    jobs = [
        job(f"{name}{n}#0", (*PROMPT, place), seed=n // 2, temperature=0.7, max_tokens=4 + n)
        for place, name in enumerate("ab")
        for n in range(8)
    ]
    run(generator, jobs)
    assert rows[0] == 2
    assert max(rows) > 2
    assert max(rows) <= 8, "equal seeds draw equal tokens, so that two attempts each stay together"
    assert worst_difference(tiny_model, [(one.request, completion(one)) for one in jobs]) <= 1e-4
    assert_as_alone(generator, jobs)


def test_settings_are_those_of_each_request_not_of_the_row(generator: Generator) -> None:
    jobs = [
        job("cold#0", temperature=0.0),
        job("warm#0", seed=1),
        job("narrow#0", seed=1, top_p=0.5),
        job("short#0", seed=1, max_tokens=1),
        job("guest", seed=1),
    ]
    run(generator, jobs)
    assert len({completion(one).token_ids for one in jobs}) > 2
    assert_as_alone(generator, jobs)


def test_an_abandoned_request_leaves_its_row_to_the_others(generator: Generator) -> None:
    jobs = [job(f"e{n}#0", temperature=0.0) for n in range(3)]
    jobs[0].abandoned = True
    run(generator, jobs)
    assert jobs[0].outcome is None
    assert completion(jobs[1]) == completion(jobs[2])


def test_interrupted_requests_of_one_row_continue_in_one_row(generator: Generator, rows: list[int]) -> None:
    jobs = [job(f"e{n}#0", temperature=0.0, max_tokens=40) for n in range(4)]
    run(generator, jobs, interrupted=lambda: True)
    assert not any(one.outcome for one in jobs)
    run(generator, jobs)
    assert set(rows) == {1}
    assert_as_alone(generator, jobs[:1])


def test_numbers_that_are_not_finite_reach_every_request_of_the_row(
    generator: Generator, model: CausalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *arguments: forward(*arguments) * float("nan"))
    jobs = [job(f"e{n}#0") for n in range(3)]
    run(generator, jobs)
    assert all(isinstance(one.outcome, EngineError) for one in jobs)


def test_an_opening_is_taken_from_what_is_kept(generator: Generator) -> None:
    long = tuple(range(5, 55))
    first = job("a#0", long)
    run(generator, [first])
    before = generator.computed_tokens
    pair = [job("a#1", (*first.sequence, 3, 4)), job("b#0", (*long, 90, 91))]
    run(generator, pair)
    assert [opening.token_ids for opening in generator.openings] == [long]
    assert generator.computed_tokens - before <= 6, "two or three new tokens of each, none of the opening"
    assert_as_alone(generator, pair)


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=4), min_size=1, max_size=8))
def test_arranged_rows_are_the_live_ones_and_no_source_is_overwritten(drawn: list[list[tuple[int, bool]]]) -> None:
    members, ended = [], set()
    for row in drawn:
        members.append([job("e#0") for _ in row])
        for one, (token_id, ends) in zip(members[-1], row, strict=True):
            one.token_ids.append(token_id)
            if ends:
                ended.add(one)
    arranged = arrange(members, ended)
    assert {one for _, jobs in arranged for one in jobs} == {one for row in members for one in row} - ended
    assert sum(len(jobs) for _, jobs in arranged) == sum(map(len, members)) - len(ended)
    branches = [(source, jobs[0].token_ids[-1]) for source, jobs in arranged]
    assert len(set(branches)) == len(branches), "requests that drew the same token share their row"
    for source, jobs in arranged:
        assert set(jobs) <= set(members[source])
        assert len({one.token_ids[-1] for one in jobs}) == 1
    written = {row for row, (source, _) in enumerate(arranged) if row != source}
    assert not written & {source for source, _ in arranged}
    assert len(arranged) <= sum(map(len, members))
