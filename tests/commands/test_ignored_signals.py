"""Signals whose exception Python ignores, because a destructor or a callback runs when they come."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys, time
from finqa_cli import app

class Resource:
    def __del__(self):
        print("deleting", flush=True)
        time.sleep(1.0)

def run():
    app.signal.signal(app.signal.SIGTERM, app._terminate)
    Resource()
    time.sleep(30)
    return 0

app.main = run
from finqa_cli.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_in_a_destructor_ends_the_command(number: signal.Signals, status: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "deleting\n"
        sent = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=25)
        assert process.returncode == status and "Traceback" not in said
        assert time.monotonic() - sent < 10
    finally:
        process.kill()
