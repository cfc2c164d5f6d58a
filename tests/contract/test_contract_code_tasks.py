from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.code_play import BoxedCodeEnvironment, environment

from finqa_testing.contract import environment_suite


def embedded(folder: Path) -> BoxedCodeEnvironment:
    return environment()


def file(folder: Path) -> BoxedCodeEnvironment:
    path = folder / "tasks.toml"
    path.write_text(
        '[double]\nprompt = "Write double(x)."\nfunc_name = "double"\ntests = ["1", "2.5"]\n'
        'reference = "lambda x: 2 * x"\nsolution = "def double(x):\\n    return x + x"\n'
    )
    return environment(path)


@pytest.mark.parametrize("make", [embedded, file])
async def test_code(make: Callable[[Path], BoxedCodeEnvironment], tmp_path: Path) -> None:
    played = make(tmp_path)
    environment_suite.check_tasks(played)
    first = played.tasks(played.splits()[0])[0]
    session = await played.open(first, seed=1, sandbox=None)
    gold = played.demonstrate(session.prompt().messages)
    assert gold is not None
    await environment_suite.check_text_episodes(played, [gold.text])
    await environment_suite.check_demonstrations(played, count=1)
