"""A run ends although W&B went away in the middle of it. The service is a small one on loopback that takes runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.reserved_ports import reserved_port

SERVICE = """
import http.server, json, sys

RUN = {"id": "x", "name": "r", "displayName": "r", "config": "{}", "project": {"id": "p", "name": "p", "entity": {
    "id": "e", "name": "e"}}}
ANSWERS = {
    "Viewer": {"viewer": {"id": "v", "entity": "e", "flags": "{}", "username": "u"}},
    "RunResumeStatus": {"model": {"id": "p", "name": "p", "bucket": None}},
    "UpsertBucket": {"upsertBucket": {"bucket": RUN, "inserted": True}},
}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"]))).get("query", "")
        found = next((data for name, data in ANSWERS.items() if f" {name}" in asked), {})
        body = json.dumps({"data": found}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("listening", flush=True)
server.serve_forever()
"""

RUN = """
import os, signal, sys, time
from pathlib import Path
from finqa_cli.contracts import TrackerContext
from finqa_plugins.trackers import wandb as tracker

tracker.FINISH_S = 1.0
run, service = Path(sys.argv[1]), int(sys.argv[2])
made = tracker.WandbTracker(tracker.WandbConfig(), TrackerContext(run_dir=run, run_id="r"))
made.on_run_start({})
os.kill(service, signal.SIGKILL)
made.on_metrics({"kind": "train", "iteration": 1, "loss": 0.5})
made.on_run_end("completed")
"""


def test_a_run_ends_although_the_service_went_away(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    if not hasattr(wandb.Settings(), "finish_timeout"):
        pytest.skip("this wandb always waits")
    with (
        reserved_port() as port,  # the client keeps asking after the service ended
        subprocess.Popen([sys.executable, "-c", SERVICE, str(port)], stdout=subprocess.PIPE, text=True) as service,
    ):
        assert service.stdout is not None and service.stdout.readline() == "listening\n"
        own = {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_MODE": "online"}
        keys = {"WANDB_API_KEY": "local-" + "a" * 40, "HOME": str(tmp_path)}
        ended = subprocess.run(
            [sys.executable, "-c", RUN, str(tmp_path), str(service.pid)],
            env={**os.environ, **own, **keys},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        service.kill()
    assert ended.returncode == 0, ended.stderr
    assert "Syncing run r" in ended.stderr, "it was there at first"
    (kept,) = (tmp_path / "wandb").glob("run-*/run-*.wandb")
    assert kept.stat().st_size > 0, "for `wandb sync`"
