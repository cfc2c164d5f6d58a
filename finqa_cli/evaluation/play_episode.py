"""One visible episode."""

from __future__ import annotations

from collections.abc import Callable

from finqa_cli.errors import DataError
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.seeds import derive, draw
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion, Task, Trajectory, Turn
from finqa_cli.wiring.stage import stage


async def play(
    settings: Settings,
    policy: PolicyVersion,
    *,
    question: str | None,
    reporter: Reporter,
    on_start: Callable[[Task], None],
    on_turn: Callable[[Turn], None],
) -> Trajectory:
    """Plays one question: the named one, or one of the evaluation split drawn by the seed.

    Raises:
        DataError: There is no such question.
    """
    async with stage(settings, policy, run_id="play", reporter=reporter, episodes=lambda _: 1) as parts:
        environment = parts.environment
        splits = environment.splits() if question else (settings.data.eval_split,)
        tasks = [task for split in splits for task in environment.tasks(split)]
        task = _choose(tasks, question, parts.data.name, settings)
        on_start(task)
        player = parts.player(settings, temperature=settings.eval.temperature)
        attempt = Attempt(id=f"play/{task.id}/0", task=task, member=0, seed=derive(settings.train.seed, "play"))
        with player.seat() as seat:
            return await player.play(attempt, seat, on_turn)


def _choose(tasks: list[Task], question: str | None, data: str, settings: Settings) -> Task:
    if question is None:
        if not tasks:
            raise DataError(f"Split {settings.data.eval_split!r} of {data!r} has no questions.")
        return draw(tasks, seed=derive(settings.train.seed, "play"), position=0, count=1)[0][0]
    for task in tasks:
        if task.id == question:
            return task
    raise DataError(f"{data!r} has no question {question!r}.", remedy="leave --question out, and one is drawn")
