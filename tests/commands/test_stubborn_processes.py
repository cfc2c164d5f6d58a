"""Commands that a signal ends although Python ignores its exception, or a thread of theirs cannot be cancelled."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

IN_A_DESTRUCTOR = """
class Resource:
    def __del__(self):
        print("begun", flush=True)
        time.sleep(1.0)

def run():
    app.signal.signal(app.signal.SIGTERM, app._terminate)
    Resource()
    time.sleep(30)
    return 0
"""
WITH_A_THREAD = """
import asyncio
from finqa_cli.errors import InterruptedRun
from finqa_cli.runs import interrupts
from finqa_cli.runs.reporter import NullReporter

async def work():
    print("begun", flush=True)
    await asyncio.to_thread(time.sleep, 30)

def run():
    try:
        interrupts.run(work(), interrupts.Stopper(NullReporter(), patient=False))
    except InterruptedRun as error:
        print("reported")  # what is buffered is written
        return error.exit_code
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
@pytest.mark.parametrize("program", [IN_A_DESTRUCTOR, WITH_A_THREAD])
def test_a_signal_ends_the_command(program: str, number: signal.Signals, status: int) -> None:
    begin = "import sys, time\nfrom finqa_cli import app\n"
    end = "app.main = run\nfrom finqa_cli.__main__ import main\nsys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", begin + program + end], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        sent = time.monotonic()
        process.send_signal(number)
        output, said = process.communicate(timeout=25)
        assert process.returncode == status and "Traceback" not in said
        assert output == ("reported\n" if program is WITH_A_THREAD else "")
        assert time.monotonic() - sent < 10
    finally:
        process.kill()
