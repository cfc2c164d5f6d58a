"""A process of a learner, other than the first: `python -m PACKAGE.serving RANK SIZE FOLDER PARENT`."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

_LOOK_S = 1.0


def main(rank: int, size: int, folder: Path, parent: int) -> int:
    """Executes the calls of the first process's learner until it closes or is gone; returns the exit status.

    Args:
        rank: Rank of this process, from 1.
        size: Number of processes, including the first.
        folder: Folder where the processes find each other.
        parent: Process id of the first process.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # SLURM may send it to all processes; the first decides when to stop
    threading.Thread(target=_end_with, args=(parent, folder), daemon=True).start()
    gc.disable()  # the imports make two million permanent objects; collecting garbage among them takes a second
    from finqa_plugins.learners.torch.distributed.distributed_learner import TorchrunProcesses, open_store
    from finqa_plugins.learners.torch.distributed.process_group import end_process

    gc.enable()
    processes = TorchrunProcesses(rank, size, rank)
    processes.join(open_store(folder, size, rank))
    if (error := processes.follow()) is not None:
        traceback.print_exception(error)
        end_process(1)
    return 0


def _end_with(parent: int, folder: Path) -> None:
    """Ends this process once its parent is gone: NCCL would wait for it, and nothing else would notice."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
