"""Training in processes that torchrun started: the first process runs the workflow, the others serve its learner."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from finqa_cli.contracts import LearnerProcesses
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry


@contextmanager
def leading(learner: str) -> Iterator[None]:
    """Run the block only in the first process of torchrun; the other processes serve its learners and then exit.

    Without torchrun it does nothing.

    Args:
        learner: Name of the learner; empty: nothing is trained, and this does nothing.

    Raises:
        ConfigError: The learner supports only one process.
        SystemExit: In the other processes, with their exit status.
    """
    if not learner or "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    processes = registry().first("join_processes", LearnerProcesses, learner=learner)  # type: ignore[type-abstract]
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
        # torchrun ends all processes when one died. This process must first clean up and report the cause.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    finally:
        processes.close()
