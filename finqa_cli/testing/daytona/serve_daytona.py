"""Serves a Daytona on 127.0.0.1 until SIGTERM or SIGINT.

`python -m finqa_cli.testing.daytona.serve_daytona [--port N] [--config FILE]`; for a shell
`eval "$(python -m finqa_cli.testing.daytona.serve_daytona --detach)"`, and at the end `kill $LOOPBACK_DAYTONA_PID`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path

from finqa_cli.testing.daytona.config import LoopbackConfig
from finqa_cli.testing.daytona.loopback import LoopbackDaytona
from finqa_cli.testing.served import config_values, port_number, serve_detached

EX_CONFIG = 78
EX_UNAVAILABLE = 69


def main(arguments: list[str] | None = None) -> int:
    """Serves. The first lines on stdout are the variables that point the Daytona SDK here; an empty line ends them."""
    parser = argparse.ArgumentParser(prog="python -m finqa_cli.testing.daytona.serve_daytona", description=__doc__)
    parser.add_argument("--port", type=port_number, default=0, help="port on 127.0.0.1; a free one when not given")
    parser.add_argument("--config", type=Path, help="TOML or JSON file with the fields of LoopbackConfig")
    parser.add_argument("--while-stdin-open", action="store_true", help="end when standard input is closed")
    parser.add_argument("--detach", action="store_true", help="serve in the background and return, as ssh-agent does")
    options = parser.parse_args(arguments)
    if options.detach:
        others = [word for word in (sys.argv[1:] if arguments is None else arguments) if word != "--detach"]
        return serve_detached("finqa_cli.testing.daytona.serve_daytona", others, "LOOPBACK_DAYTONA_PID")
    try:
        config = LoopbackConfig.model_validate(config_values(options.config))
    except (OSError, ValueError) as error:
        print(f"Cannot use {options.config}: {error}", file=sys.stderr)
        return EX_CONFIG
    try:
        asyncio.run(_serve(config, options.port, while_stdin_open=options.while_stdin_open))
    except OSError as error:
        print(f"Cannot listen on 127.0.0.1:{options.port}: {error}", file=sys.stderr)
        return EX_UNAVAILABLE
    return 0


async def _serve(config: LoopbackConfig, port: int, *, while_stdin_open: bool) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    async with LoopbackDaytona(config, port=port) as loopback:
        if while_stdin_open:
            loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(0, 1024) else over.set())
        for name, value in loopback.environment.items():
            print(f"export {name}={shlex.quote(value)}")
        print(flush=True)
        await over.wait()
        if while_stdin_open:
            loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    sys.exit(main())
