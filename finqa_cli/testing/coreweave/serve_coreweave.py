"""Serves CoreWeave on 127.0.0.1 until SIGTERM or SIGINT.

`python -m finqa_cli.testing.coreweave.serve_coreweave [--port N] [--config FILE]`

The first lines on stdout are the variables that point the SDK here; an empty line ends them. For a shell:
`eval "$(python -m finqa_cli.testing.coreweave.serve_coreweave --detach)"`, at the end `kill $LOOPBACK_COREWEAVE_PID`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shlex
import signal
import sys
from pathlib import Path

import grpc.aio  # type: ignore[import-untyped]
from cwsandbox._proto import sandbox_pb2_grpc

from finqa_cli.testing.coreweave.config import CoreWeaveConfig
from finqa_cli.testing.coreweave.coreweave_control import control_handler
from finqa_cli.testing.coreweave.coreweave_sandboxes import Boxes
from finqa_cli.testing.coreweave.coreweave_service import SandboxService
from finqa_cli.testing.served import config_values, port_number, serve_detached

HOST = "127.0.0.1"
EX_UNAVAILABLE, EX_CONFIG = 69, 78


def main(arguments: list[str] | None = None) -> int:
    """Serves until it is told to end; ends every box then."""
    parser = argparse.ArgumentParser(prog="python -m finqa_cli.testing.coreweave.serve_coreweave", description=__doc__)
    parser.add_argument("--port", type=port_number, default=0, help="port on 127.0.0.1; a free one when not given")
    parser.add_argument("--config", type=Path, help="TOML or JSON file with the fields of CoreWeaveConfig")
    parser.add_argument("--while-stdin-open", action="store_true", help="end when standard input is closed")
    parser.add_argument("--detach", action="store_true", help="serve in the background and return, as ssh-agent does")
    options = parser.parse_args(arguments)
    if options.detach:
        others = [word for word in (sys.argv[1:] if arguments is None else arguments) if word != "--detach"]
        return serve_detached("finqa_cli.testing.coreweave.serve_coreweave", others, "LOOPBACK_COREWEAVE_PID")
    try:
        config = CoreWeaveConfig.model_validate(config_values(options.config))
    except (OSError, ValueError) as error:
        print(f"Cannot use {options.config}: {error}", file=sys.stderr)
        return EX_CONFIG
    try:
        asyncio.run(_serve(config, options.port, while_stdin_open=options.while_stdin_open))
    except RuntimeError as error:  # what grpc says for a port that is taken
        print(f"Cannot listen on {HOST}:{options.port}: {error}", file=sys.stderr)
        return EX_UNAVAILABLE
    return 0


async def _serve(config: CoreWeaveConfig, port: int, *, while_stdin_open: bool) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    key = config.api_key or f"loopback-{secrets.token_hex(16)}"
    boxes = Boxes(config)
    service = SandboxService(boxes, key)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.add_generic_rpc_handlers((control_handler(boxes, service),))
    port = server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    if while_stdin_open:
        loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(0, 1024) else over.set())
    try:
        for name, value in (("CWSANDBOX_BASE_URL", f"http://{HOST}:{port}"), ("CWSANDBOX_API_KEY", key)):
            print(f"export {name}={shlex.quote(value)}")
        print(flush=True)
        await over.wait()
    finally:
        if while_stdin_open:
            loop.remove_reader(sys.stdin.fileno())
        await boxes.close()
        await server.stop(grace=None)


if __name__ == "__main__":
    sys.exit(main())
