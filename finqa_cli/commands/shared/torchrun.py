"""Commands under `torchrun`: the first process runs the command, the others only its learner."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from finqa_cli.errors import ConfigError, UsageError

TRAINING = ("train", "sft", "dpo")
"""The commands that several processes may share."""

_HEAD_START_S = 1.0
"""Of the first process, which alone says what is wrong with a command: torchrun ends all when one fails."""


def begin(arguments: Sequence[str]) -> None:
    """Lets the first process alone say anything; with --debug errors of the others are shown as well.

    Raises:
        UsageError: The command has no learner that could be shared.
    """
    if os.environ["RANK"] != "0":
        time.sleep(_HEAD_START_S)
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # for as long as the process
        if "--debug" not in arguments:
            sys.stderr = sys.stdout
    command = next((word for word in arguments if not word.startswith("-")), "")
    if command and command not in TRAINING:
        raise UsageError(
            f"`finqa {command}` runs in one process; torchrun is for {', '.join(TRAINING)}.", remedy=f"finqa {command}"
        )


@contextmanager
def leading(learner: str) -> Iterator[None]:
    """Without torchrun nothing. Under it the block runs in the first process only, and its learners are shared; the
    others serve them and end here.

    Raises:
        ConfigError: The learner is for one process.
        SystemExit: In the other processes, with their status.
    """
    if not learner or "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    from finqa_cli.extend import registry

    processes = registry().hook.join_processes(learner=learner)
    if processes is None:
        raise ConfigError(
            f"Learner {learner!r} trains in one process, but torchrun started {os.environ['WORLD_SIZE']}.",
            remedy="run the command without torchrun",
        )
    if not processes.leads:
        raise SystemExit(processes.serve())
    try:
        yield
    except BaseException:
        # torchrun ends all processes when one died; this one cleans up and says why, and ends by itself
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    finally:
        processes.close()
