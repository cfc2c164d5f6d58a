"""Attempts of rollout workers arrive as they were played, with their records, and are read when they are used."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from fixtures.report_runs import attempt
from fixtures.timed_environment import TimedEnvironment, run_timed
from fixtures.toy_environment import ToyChatEngine, submit
from fixtures.worker_world import World
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.errors import DataError, FinqaError
from finqa_cli.rollout.pool import PoolStats
from finqa_cli.runs.right_answers import compare_with_truth
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.trajectory_records import trajectory_text
from finqa_cli.types import PackedTurns, Trajectory, TrajectoryRecord
from finqa_ray.workers.worker_messages import EngineFault, Played, PoolEvent, Reports, pack, pack_turns, unpack
from finqa_ray.workers.worker_shares import CallSlot

TRUTH = {"truth": "12.5%", "values": {"answer": [], "truth": [0.125]}}

texts = st.text(st.characters(), max_size=20)


@st.composite
def played(draw: st.DrawFn) -> Trajectory:
    found = attempt(
        draw(texts) or "q", text=draw(texts), thoughts=draw(texts), reward=draw(st.sampled_from([0.0, 1.0, None]))
    )
    ids = draw(st.lists(st.integers(0, 2**31 - 1), max_size=9))
    logprobs = tuple(draw(st.floats(-50, 0)) for _ in ids)
    turns = [replace(turn, prompt_ids=(7, *ids), completion_ids=tuple(ids), logprobs=logprobs) for turn in found.turns]
    return replace(found, turns=tuple(turns[: draw(st.integers(0, 2))]), metadata=draw(st.dictionaries(texts, texts)))


def sent(trajectory: Trajectory) -> Trajectory:
    """The attempt as the controller gets it."""
    reports = Reports(
        generation=3,
        reports=(
            Played(ticket=1, trajectory=pack_turns(trajectory)),
            EngineFault(fault=FinqaError("no reply", remedy="wait")),
            PoolEvent(name="lost", fields={"id": "a"}),
        ),
        turned=True,
        answered=frozenset((0, 2)),
        stats=PoolStats(idle=2),
        inputs={"prompt": "sha256:1"},
        spent={"cost_usd": 0.5},
    )
    arrived: Reports = unpack(pack(reports))
    assert replace(arrived, reports=()) == replace(reports, reports=())
    found, fault, event = arrived.reports
    assert isinstance(fault, EngineFault) and (fault.fault.message, fault.fault.remedy) == ("no reply", "wait")
    assert event == reports.reports[2]
    assert isinstance(found, Played) and found.trajectory is not None and found.ticket == 1
    return found.trajectory


@settings(max_examples=50)
@given(played())
def test_an_attempt_arrives_as_it_was_played(trajectory: Trajectory) -> None:
    arrived = sent(trajectory)
    assert isinstance(arrived.turns, PackedTurns)
    assert (len(arrived.turns), arrived.tokens) == (len(trajectory.turns), trajectory.tokens)
    assert arrived == trajectory and trajectory == replace(arrived, turns=tuple(arrived.turns))
    assert arrived.turns[1:] == trajectory.turns[1:] and arrived.sampled_tokens == trajectory.sampled_tokens
    before, after = trajectory_samples(trajectory, 0.5), trajectory_samples(arrived, 0.5)
    assert [one.token_ids.tolist() for one in after] == [one.token_ids.tolist() for one in before]
    assert sent(arrived) == trajectory, "also once more"


def test_nothing_is_read_to_count_turns_and_tokens() -> None:
    arrived = replace(attempt("q"), turns=PackedTurns(b"these are no turns", 3, 70))
    assert (len(arrived.turns), arrived.tokens) == (3, 70)
    with pytest.raises(pickle.UnpicklingError):
        arrived.turns[-1]


@settings(max_examples=25, deadline=None)
@given(played(), st.booleans())
def test_the_record_of_a_worker_is_that_of_the_controller_to_the_byte(trajectory: Trajectory, token_ids: bool) -> None:
    record = TrajectoryRecord(text=trajectory_text(trajectory, token_ids=token_ids), facts=TRUTH)
    lines = []
    with tempfile.TemporaryDirectory() as base:
        for name, each in (("own", trajectory), ("worker", sent(replace(trajectory, record=record)))):
            path = Path(base) / name
            with RunFolder.create(path, command="train", settings={}, save_token_ids=token_ids) as folder:
                folder.trajectory(each, phase="train", iteration=2, **TRUTH).result()
            lines.append((path / "trajectories.jsonl").read_bytes())
    assert lines[0] == lines[1]


def recorded(trajectory: Trajectory) -> TrajectoryRecord:
    return TrajectoryRecord(text=trajectory_text(trajectory), facts={"truth": trajectory.task.id})


def damaged(trajectory: Trajectory) -> TrajectoryRecord:
    raise DataError(f"The answer to {trajectory.task.id} is damaged.")


def play(record: Callable[[Trajectory], TrajectoryRecord] | None) -> list[Trajectory]:
    environment = TimedEnvironment(length=lambda about, seed: 2)
    return run_timed(World(environment, ToyChatEngine(submit(1)), workers=2, record=record).play(12))[0]


def test_workers_make_the_records_and_their_facts_are_taken_as_they_are() -> None:
    for trajectory in play(recorded):
        assert trajectory.record is not None and trajectory.record.text == trajectory_text(trajectory)
        assert compare_with_truth(TimedEnvironment(), trajectory) == {"truth": trajectory.task.id}
    assert all(trajectory.record is None for trajectory in play(None))


def test_data_that_a_worker_finds_damaged_end_the_run() -> None:
    with pytest.raises(DataError, match=r"The answer to q\d+ is damaged"):
        play(damaged)


@given(st.integers(1, 60), st.floats(0, 1e7))
def test_workers_call_one_after_the_other(workers: int, now: float) -> None:
    waits = [CallSlot(number=number, workers=workers).wait_s(now) for number in range(workers)]
    period = workers * CallSlot().seconds
    assert all(0 <= wait <= period for wait in waits)
    moments = sorted((now + wait) % period for wait in waits)
    gaps = [later - earlier for earlier, later in pairwise([*moments, moments[0] + period])]
    assert all(gap == pytest.approx(CallSlot().seconds, abs=1e-6) for gap in gaps)
