from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.rollout.seeds import TaskWalk
from finqa_cli.types import Task

TASKS = [Task(id=f"q{number}", prompt="?", split="train", cluster="c") for number in range(5)]


@given(seed=st.integers(0, 3), deals=st.lists(st.integers(0, 4), max_size=12), stop=st.integers(0, 11))
def test_after_any_stop_every_place_is_trained_on_exactly_once(seed: int, deals: list[int], stop: int) -> None:
    """Each deal is an iteration's groups; one is settled while the next two are open already, as when looking ahead."""
    walk = TaskWalk(TASKS, seed=seed)
    trained: list[tuple[int, str]] = []
    waiting: list[list[tuple[int, Task]]] = []
    for number, count in enumerate(deals):
        if number == stop:  # what is open is lost, and given again by the walk of the resumed run
            walk = TaskWalk(TASKS, seed=seed, cursor=walk.cursor, unsettled=walk.unsettled)
            waiting.clear()
        waiting.append([walk.next() for _ in range(count)])
        if len(waiting) > 2:
            done = waiting.pop(0)
            walk.settle(place for place, _ in done)
            trained += [(place, task.id) for place, task in done]
    open_now = sorted(place for groups in waiting for place, _ in groups)
    places = sorted([place for place, _ in trained] + walk.unsettled)
    assert places == list(range(walk.cursor)) and set(open_now) <= set(walk.unsettled)
    unbroken = TaskWalk(TASKS, seed=seed)
    expected = {place: task.id for place, task in (unbroken.next() for _ in range(walk.cursor))}
    assert all(expected[place] == name for place, name in trained)


def test_an_epoch_visits_every_task_and_the_next_one_in_another_order() -> None:
    walk = TaskWalk(TASKS, seed=1)
    names = [walk.next()[1].id for _ in range(4 * len(walk))]
    epochs = [names[start : start + 5] for start in range(0, 20, 5)]
    assert all(Counter(epoch) == Counter(task.id for task in TASKS) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
