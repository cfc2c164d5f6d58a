"""Executes one command in a remote sandbox. Sent there as text: standard library only, Python 3.9 or newer, Linux.

Reads the request, one JSON object, from its stdin; writes one line, the mark of the request and a JSON object, to its
stdout. The command has its own user id if this runs as root, an empty folder, its own environment variables, no
sockets, no new privileges, and limits. Its processes and files are gone when the line is written.
"""

# ruff: noqa: PTH102, PTH123

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
import zlib
from typing import Any

from finqa_plugins.sandboxes._execution.enclosure import (
    CLEAN_S,
    ENVIRONMENT,
    Heir,
    Refused,
    confine,
    guard_itself,
    holds_more_without_names,
    kill_all,
    own_uid,
    python_for,
    threads_of,
    tidy,
    used,
)

TICK_S = 0.1
CHUNK = 65_536


class Execution:
    """One command from its start to its end."""

    def __init__(self, request: dict[str, Any], folder: str, uid: int) -> None:
        self._limits: dict[str, Any] = request["limits"]
        self._folder, self._uid = folder, uid
        self._input = memoryview(zlib.decompress(base64.b64decode(request["stdin"])))
        self._output = {"stdout": bytearray(), "stderr": bytearray()}
        self._ending = ""
        self._selector = selectors.DefaultSelector()
        alone = os.geteuid() == 0
        threads = 0 if alone else threads_of(uid)
        denied = base64.b64decode(request["filters"].get(os.uname().machine, ""))
        command = python_for(uid) if request["argv"][0] == request["python"] else request["argv"][0]
        person: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []} if alone else {}
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [command, *request["argv"][1:]],
            cwd=folder,
            env={**ENVIRONMENT, "HOME": folder, "TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
            preexec_fn=lambda: confine(self._limits, threads, denied),
            **person,
        )
        with contextlib.suppress(OSError), open(f"/proc/{self._process.pid}/oom_score_adj", "w") as file:
            file.write("1000")  # where memory is short the code goes first

    def run(self, heir: int) -> dict[str, Any]:
        """Run the command and return the report that `calls.result` reads. `heir`: id of our process not to kill."""
        self._connect()
        status, cpu_s = None, 0.0
        try:
            status, cpu_s = self._until_its_end()
        finally:
            seconds = time.monotonic() - self._began
            kill_all(self._uid, heir, time.monotonic() + CLEAN_S)
        while self._exchange(0.0):
            pass
        ending, code = self._verdict(status, cpu_s)
        written = {name: packed(text) for name, text in self._output.items()}
        return {"ending": ending, "exit_code": code, "seconds": round(seconds, 6), **written}

    def _until_its_end(self) -> tuple[int | None, float]:
        """Return wait status and processor seconds of the command; status None if it exceeded a limit."""
        looked = self._began
        while not self._ending:
            self._exchange(TICK_S)
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                return status, usage.ru_utime + usage.ru_stime
            now = time.monotonic()
            if now - self._began > self._limits["wall_s"]:
                self._ending = "time"
            elif now - looked >= TICK_S:
                looked = now
                most = self._limits["disk_bytes"]
                if used(self._folder, self._uid) > most or holds_more_without_names(self._uid, most):
                    self._ending = "killed"
        return None, 0.0

    def _verdict(self, status: int | None, cpu_s: float) -> tuple[str, int | None]:
        if self._ending or status is None:
            return self._ending, None
        if os.WIFEXITED(status):
            return "exited", os.WEXITSTATUS(status)
        late = cpu_s >= max(1, math.ceil(self._limits["cpu_s"]))  # the hard limit ends it by SIGKILL
        return ("time" if os.WTERMSIG(status) == signal.SIGXCPU or late else "killed"), None

    def _connect(self) -> None:
        woken, wakes = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ, "")
        for name in ("stdin", "stdout", "stderr"):
            pipe = getattr(self._process, name)
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_WRITE if name == "stdin" else selectors.EVENT_READ, name)

    def _exchange(self, patience_s: float) -> bool:
        """Move available data of the pipes; return False if there was none."""
        ready = self._selector.select(patience_s)
        for key, _ in ready:
            with contextlib.suppress(BlockingIOError):
                if key.data == "":
                    os.read(key.fd, CHUNK)
                elif not (self._write(key.fd) if key.data == "stdin" else self._read(key.fd, key.data)):
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
        return bool(ready)

    def _write(self, descriptor: int) -> bool:
        """Write available input; return False if there is no more to write, or no reader."""
        with contextlib.suppress(BrokenPipeError):
            self._input = self._input[os.write(descriptor, self._input[:CHUNK]) :]
            return bool(self._input)
        return False

    def _read(self, descriptor: int, name: str) -> bool:
        """Read available output; return False at the end."""
        text, kept, most = os.read(descriptor, CHUNK), self._output[name], self._limits["output_bytes"]
        if len(kept) + len(text) > most:
            self._ending = self._ending or "output"
        kept += text[: most - len(kept)]
        return bool(text)


def executed(request: dict[str, Any]) -> dict[str, Any]:
    """Execute a request, and remove its processes and files."""
    uid = own_uid()
    folder = f"/tmp/finqa-{os.urandom(8).hex()}"
    heir = Heir(uid, folder)
    try:
        os.mkdir(folder, 0o700)
        os.chown(folder, uid, uid)
        try:
            execution = Execution(request, folder, uid)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            said = f"{error.strerror}: {request['argv'][0]}\n".encode()
            return {"ending": "exited", "exit_code": 127, "seconds": 0.0, "stdout": packed(b""), "stderr": packed(said)}
        return execution.run(heir.pid)
    finally:
        tidy(uid, folder, time.monotonic() + CLEAN_S)
        heir.dismiss()


def packed(text: bytes | bytearray) -> str:
    """Encode bytes for the report, which is text."""
    return base64.b64encode(zlib.compress(text)).decode()


def main() -> None:
    """Read one request, write one line."""
    request = json.load(sys.stdin.buffer)
    guard_itself()
    try:
        reply = executed(request)
    except (Refused, OSError, subprocess.SubprocessError) as error:
        reply = {"refused": str(error)[:300]}
    sys.stdout.write(f"\n{request['mark']} {json.dumps(reply)}\n")
