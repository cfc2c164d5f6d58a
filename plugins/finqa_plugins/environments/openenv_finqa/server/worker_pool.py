"""Worker processes for queries, and the fair queue in front of them.

A thread owns each process: it sends a query, waits for the reply, and restarts the process if it has ended. So the
pool can be used from any event loop. Processes are started when they are needed and end after a minute without work.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from threading import Condition, Thread

from finqa_plugins.environments.openenv_finqa.server.fair_queue import FairQueue
from finqa_plugins.environments.openenv_finqa.server.sql_execution import FULL
from finqa_plugins.environments.openenv_finqa.server.sql_worker import CPU_MARGIN_S, SHORT, QueryRequest, WorkerOptions

MODULE = "finqa_plugins.environments.openenv_finqa.server.sql_worker"
ENDED_PROCESS = "Error executing query: the query ended the process that ran it"
TOO_LONG = f"Error executing query: the query took longer than {FULL.seconds:g} s"
FROZEN_S = 60.0
"""Wall time in seconds after which a process counts as frozen. A query gets one second of processor time."""

IDLE_S = 60.0
ATTEMPTS = 2


class WorkerEndedError(Exception):
    """The process ended instead of replying; `status` is its exit status, negative for a signal."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the process for queries ended with status {status}")
        self.status = status


class WorkerFrozenError(Exception):
    """The process did not reply in a minute; a query cannot be the cause."""


class Worker:
    """One worker process, which the constructor starts. Belongs to one thread.

    Raises:
        OSError: No process can be started.
    """

    def __init__(self, options: WorkerOptions) -> None:
        ours, theirs = socket.socketpair()
        # A process that does not read must not block the thread that writes to it.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(FROZEN_S), 0))
        with theirs:
            arguments = [str(theirs.fileno()), str(os.getpid()), *options.arguments()]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", MODULE, *arguments],
                    stdin=subprocess.DEVNULL,
                    env={name: value for name, value in os.environ.items() if not name.startswith("FINQA_")},
                    pass_fds=(theirs.fileno(),),
                )
            except OSError:
                ours.close()
                raise
        self._connection = Connection(ours.detach())
        self.pid = self._process.pid

    def ask(self, request: bytes) -> tuple[str | None, float]:
        """Return the reply (None: see `QueryRunner.attempt`) and the processor time that it took, in seconds.

        Raises:
            WorkerEndedError: The process has ended.
            WorkerFrozenError: The process does not reply.
        """
        try:
            self._connection.send_bytes(request)
            if not self._connection.poll(FROZEN_S):
                raise WorkerFrozenError
            reply, seconds = json.loads(self._connection.recv_bytes())
        except BlockingIOError:
            raise WorkerFrozenError from None
        except (EOFError, OSError):
            raise WorkerEndedError(self._process.wait(FROZEN_S)) from None
        return reply, seconds

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


@dataclass(eq=False, slots=True)
class _Job:
    session: Hashable
    request: bytes
    started: Callable[[], None]
    future: Future[str | None] = field(default_factory=Future)


class WorkerPool:
    """Processes of one role. Safe to use from any thread."""

    def __init__(self, options: WorkerOptions, size: int) -> None:
        self._options = options
        self._size = size
        self._budget = FULL if options.role == "full" else SHORT
        self._queue: FairQueue[_Job] = FairQueue()
        self._condition = Condition()
        self._threads = 0
        self._idle = 0

    def submit(self, session: Hashable, request: QueryRequest, started: Callable[[], None]) -> Future[str | None]:
        """Queue a query of a session; `started` is called in another thread when the query leaves the queue.

        The result is the reply, or None if the query needs more than the budget of this role. It is an exception only
        for other reasons than the query: OSError if no process can be started, WorkerFrozenError if it does not run.
        """
        job = _Job(session, pickle.dumps(request), started)
        with self._condition:
            self._queue.put(session, job, self._budget.seconds)
            if len(self._queue) > self._idle and self._threads < self._size:
                self._threads += 1
                Thread(target=self._work, name=f"sql {self._options.role}", daemon=True).start()
            else:
                self._condition.notify()
        return job.future

    def _work(self) -> None:
        worker: Worker | None = None
        while (job := self._next()) is not None:
            used = 0.0
            if job.future.set_running_or_notify_cancel():
                job.started()
                worker, used = self._run(job, worker)
            with self._condition:
                self._queue.refund(job.session, self._budget.seconds - used)
        if worker is not None:
            worker.close()

    def _next(self) -> _Job | None:
        """Return the job to run next; None after a minute without one; the thread has then left the pool."""
        with self._condition:
            self._idle += 1
            if self._idle == self._threads:
                self._queue.forget()
            found = self._condition.wait_for(lambda: len(self._queue), IDLE_S)
            self._idle -= 1
            if found:
                return self._queue.take()
            self._threads -= 1
            return None

    def _run(self, job: _Job, worker: Worker | None) -> tuple[Worker | None, float]:
        """Set the job's result. Return the process for the next job, if it still runs, and the seconds used."""
        fault: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                worker = worker or Worker(self._options)
                reply, used = worker.ask(job.request)
            except OSError as error:
                job.future.set_exception(error)
                return None, 0.0
            except (WorkerEndedError, WorkerFrozenError) as error:
                fault = error
                assert worker is not None
                worker.close()
                worker = None
                if isinstance(error, WorkerEndedError) and error.status == -signal.SIGXCPU:
                    job.future.set_result(self._final(TOO_LONG))
                    return None, self._budget.seconds + CPU_MARGIN_S
            else:
                job.future.set_result(reply)
                return worker, used
        if isinstance(fault, WorkerFrozenError):
            job.future.set_exception(fault)
        else:
            job.future.set_result(self._final(ENDED_PROCESS))
        return None, self._budget.seconds

    def _final(self, reply: str) -> str | None:
        """Return the result for a query that ended its process: `reply`, or None to try the full budget next."""
        return reply if self._options.role == "full" else None
