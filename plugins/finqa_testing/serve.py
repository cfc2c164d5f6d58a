"""`python -m finqa_testing.serve daytona|coreweave`: a loopback service on 127.0.0.1 until SIGTERM or SIGINT.

For a shell: `eval "$(python -m finqa_testing.serve daytona --detach)"`, at the end `kill $LOOPBACK_DAYTONA_PID`
(or `$LOOPBACK_COREWEAVE_PID`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finqa_testing.daytona.http_service import HOST
from finqa_testing.loopback_process import SERVE_MODULE

LAST_PORT = 65_535


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until the end. The first lines on stdout, up to an empty one, are the variables for the SDK."""
    parser = argparse.ArgumentParser(prog=f"python -m {SERVE_MODULE}", description=__doc__)
    parser.add_argument("service", choices=("daytona", "coreweave"))
    parser.add_argument("--port", type=_port, default=0, help="port on 127.0.0.1; a free one when not given")
    parser.add_argument("--config", type=Path, help="TOML or JSON file with the fields of the service's configuration")
    parser.add_argument("--while-stdin-open", action="store_true", help="end when standard input is closed")
    parser.add_argument("--detach", action="store_true", help="serve in the background and return, as ssh-agent does")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    if options.detach:
        return _detach(options.service, [word for word in given if word != "--detach"])
    try:
        service = _service(options.service, _config_values(options.config), options.port)
    except (OSError, ValueError) as error:
        print(f"Cannot use {options.config}: {error}", file=sys.stderr)
        return os.EX_CONFIG
    try:
        asyncio.run(_serve(service, while_stdin_open=options.while_stdin_open))
    except OSError as error:
        print(f"Cannot listen on {HOST}:{options.port}: {error}", file=sys.stderr)
        return os.EX_UNAVAILABLE
    return 0


def _service(name: str, values: dict[str, Any], port: int) -> Any:
    """Returns the service, an asynchronous context manager with `environment`, which is not started."""
    if name == "daytona":
        from finqa_testing.daytona.config import LoopbackConfig
        from finqa_testing.daytona.loopback import LoopbackDaytona

        return LoopbackDaytona(LoopbackConfig.model_validate(values), port=port)
    from finqa_testing.coreweave.coreweave_loopback import CoreWeaveServer
    from finqa_testing.coreweave.coreweave_service import CoreWeaveConfig

    return CoreWeaveServer(CoreWeaveConfig.model_validate(values), port=port)


async def _serve(service: Any, *, while_stdin_open: bool) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    async with service:
        with contextlib.ExitStack() as watched:
            if while_stdin_open:
                loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(0, 1024) else over.set())
                watched.callback(loop.remove_reader, sys.stdin.fileno())
            for name, value in service.environment.items():
                print(f"export {name}={shlex.quote(value)}")
            print(flush=True)
            await over.wait()


def _detach(service: str, arguments: Sequence[str]) -> int:
    """Starts the service in the background and prints its variables and its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", SERVE_MODULE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if not line.strip():
            print(f"export LOOPBACK_{service.upper()}_PID={process.pid}", flush=True)
            return 0
        print(line, end="")
    return process.wait()


def _port(value: str) -> int:
    if not value.isdecimal() or int(value) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"a port is a number up to {LAST_PORT}, got {value[:64]!r}")
    return int(value)


def _config_values(path: Path | None) -> dict[str, Any]:
    """Returns the contents of `--config`, JSON if its name ends with `.json`, else TOML; empty without a file."""
    if path is None:
        return {}
    content = path.read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(content) if path.suffix == ".json" else tomllib.loads(content)
    return values


if __name__ == "__main__":
    sys.exit(main())
