"""Commands that tests fork from a warm process do what commands do that are started as usual."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.warm_commands import ForkServer, forked, warm_commands

from finqa_cli.processes import start_time

FINQA = (sys.executable, "-m", "finqa_cli")
PROBE = """
import atexit, json, os, signal, sys, threading

STREAMS = [
    [each.encoding, each.errors, each.line_buffering, each.write_through, each.fileno(), each.name, each.mode]
    for each in (sys.stdin, sys.stdout, sys.stderr)
]

def handler(number):
    found = signal.getsignal(number)
    return getattr(found, "__name__", str(found))

def tell():
    main = sys.modules["__main__"]
    found = {
        "arguments": [sys.argv, sys.orig_argv, main.__spec__ and main.__spec__.name, getattr(main, "__file__", "")],
        "path": sys.path,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "pids": [os.getpid(), os.getppid()],
        "own": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
        "signals": {number: handler(number) for number in signal.valid_signals()},
        "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "umask": os.umask(0),
        "streams": STREAMS,
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
        "threads": [each.name for each in threading.enumerate()],
    }
    with open("state.json", "w") as file:
        json.dump(found, file)

atexit.register(tell)
"""
OWNER = """
import os, sys
sys.path[:] = sys.argv[1:]
from fixtures.warm_commands import ForkServer
server = ForkServer(os.environ)
server._running()
print(server._process.pid, flush=True)
sys.stdin.read()
"""


class Both:
    """Runs a command cold and warm, each in a folder of its own."""

    def __init__(self, folder: Path, server: ForkServer) -> None:
        self.folder, self.server = folder, server

    def __call__(self, start: Callable[[Path], Any]) -> tuple[Any, Any]:
        folders = [self.folder / name for name in ("cold", "warm")]
        for each in folders:
            each.mkdir()
        cold = start(folders[0])
        with warm_commands(self.server):
            return cold, start(folders[1])


@pytest.fixture
def both(tmp_path: Path, command_server: ForkServer) -> Both:
    return Both(tmp_path, command_server)


def without_varying(text: str, folder: Path) -> str:
    """A text without folders, times, process ids and digests."""
    return re.sub(r"[0-9a-f]{7,}|\d[\d.:T+_-]{2,}(e-\d+)?", "#", text.replace(str(folder), "FOLDER"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--version",), 0),
        (("eval", "scripted", "--limit=2", "--sandboxes=1", "--run-dir=run", "--json"), 0),
        (("eval", "scripted", "--limits=2"), 2),
        (("plugins", "show", "nothing"), 78),
    ],
)
def test_output_status_and_files_are_those_of_a_cold_command(both: Both, words: tuple[str, ...], status: int) -> None:
    def start(folder: Path) -> tuple[int, str, str, dict[str, str]]:
        done = subprocess.run([*FINQA, *words], cwd=folder, capture_output=True, text=True, timeout=60)
        files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        contents = {name: without_varying(path.read_bytes().decode("latin-1"), folder) for name, path in files.items()}
        return done.returncode, *(without_varying(each, folder) for each in (done.stdout, done.stderr)), contents

    cold, warm = both(start)
    assert cold == warm and warm[0] == status
    assert ("run/report.json" in warm[3]) == (words[0] == "eval" and not status)


@pytest.mark.parametrize(
    ("program", "session"),
    [((*FINQA, "--version"), True), ((sys.executable, "-c", "print('finqa code')", "word"), False)],
)
def test_its_process_is_as_one_that_was_started(
    both: Both, tmp_path: Path, program: tuple[str, ...], session: bool
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(PROBE)

    def start(folder: Path) -> tuple[list[int], dict[str, Any]]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "ONLY_HERE": "\u00e4"}
        read, write = os.pipe()
        with subprocess.Popen(
            program,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            start_new_session=session,
        ) as process:
            output, _ = process.communicate(timeout=60)
        os.close(read), os.close(write)
        assert output.startswith(b"finqa ") and process.returncode == 0
        told = json.loads((folder / "state.json").read_text().replace(str(folder), "FOLDER"))
        told["passed"] = write in told["descriptors"]
        return [process.pid, os.getpid()], told

    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        (cold_pids, cold), (warm_pids, warm) = both(start)
    finally:
        signal.signal(signal.SIGUSR2, before)
    for pids, told in ((cold_pids, cold), (warm_pids, warm)):
        assert told.pop("pids") == pids and told["passed"] and told["environment"]["ONLY_HERE"] == "\u00e4"
        assert told["descriptors"][:3] == [0, 1, 2] and told["own"] == [session, session]
        del told["descriptors"]  # the pipe's number differs
    for name, value in cold.items():
        assert warm[name] == value, name
    assert warm["signals"][str(int(signal.SIGUSR2))] == str(signal.SIG_IGN)


ENDS = {
    "status": "import sys; sys.exit(7)",
    "text": "import sys; sys.exit('reason')",
    "error": "raise ValueError('reason')",
    "at exit": "import atexit; atexit.register(print, 'last'); print('first')",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "pipe": "import os, sys; print('lost'); os.close(1)",
    "aborted": "import os; os.abort()",
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_it_ends_in_the_same_way(both: Both, code: str) -> None:
    def start(folder: Path) -> tuple[int, bytes, list[bytes]]:
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, timeout=60)
        return done.returncode, done.stdout, done.stderr.splitlines()[-1:]

    cold, warm = both(start)
    assert cold == warm


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signals_end_it_in_the_same_way(both: Both, number: signal.Signals) -> None:
    def start(folder: Path) -> tuple[int, list[str]]:
        command = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, cwd=folder, text=True, **streams) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
        return process.returncode, said.splitlines()[-1:]

    cold, warm = both(start)
    assert cold == warm == (-number, ["KeyboardInterrupt"] if number == signal.SIGINT else [])


def test_random_numbers_differ_from_process_to_process(command_server: ForkServer) -> None:
    code = "import random, uuid, numpy; print(random.random(), uuid.uuid4(), numpy.random.rand())"
    with warm_commands(command_server):
        one, two = (subprocess.check_output([sys.executable, "-c", code]).split() for _ in range(2))
    assert len(one) == 3 and not set(one) & set(two)


def test_what_a_library_reads_when_it_is_imported_starts_a_command_cold(command_server: ForkServer) -> None:
    known = command_server.environment
    assert forked([*FINQA, "plugins"], known, command_server)
    assert forked([*FINQA, "plugins"], {**known, "FINQA_HOME": "x", "PYTHONPATH": "x"}, command_server)
    for name in ("OMP_NUM_THREADS", "PYTHONHASHSEED", "HF_HOME", "LC_ALL", "LD_PRELOAD"):
        assert not forked([*FINQA, "plugins"], {**known, name: "7"}, command_server)
    for program in (["-S", "-c", "pass"], ["-X", "importtime", "-m", "finqa_cli"], ["-m", "pip"]):
        assert not forked([sys.executable, *program], known, command_server)


def test_the_process_that_forks_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(OWNER)
    with subprocess.Popen([sys.executable, program, *sys.path], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + 30
    while start_time(pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
