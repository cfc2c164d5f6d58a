"""Images: uploads through obstore, builds with their logs, and sandboxes that run what was built."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
from daytona import CreateSnapshotParams, DaytonaError, Image, Resources
from daytona.common.errors import DaytonaConflictError
from fixtures.loopback_daytona import connected, create, serve, until_healthy

from finqa_testing import Delay, Latency, LoopbackConfig, LoopbackDaytona
from finqa_testing.daytona.storage import Authority

WHEEL = "shop-1.0-py3-none-any.whl"
DOCKERFILE = f"""FROM python:3.12-slim
WORKDIR /opt/shop
COPY {WHEEL} ./
RUN pip install --no-deps ./{WHEEL}
COPY data data
ENV SHOP_DATA=/opt/shop/data GREETING="hello you"
USER nobody
"""
SERVER = """
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({**os.environ, "goods": open(os.environ["SHOP_DATA"] + "/goods.txt").read()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A build context: a wheel with a server, a folder of data and a Dockerfile."""
    folder = tmp_path / "shop"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "goods.txt").write_text("apples", encoding="utf-8")
    (folder / "data" / "big.bin").write_bytes(os.urandom(11 * 2**20))  # three parts of an upload
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("shop_server/__main__.py", SERVER)
    (folder / "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
    return folder


async def test_a_sandbox_runs_what_was_uploaded_and_built(shop: Path) -> None:
    log: list[str] = []
    async with connected(LoopbackConfig(latency=Latency(build=Delay(median_s=0.2)))) as (loopback, daytona):
        with loopback.trusted():
            params = CreateSnapshotParams(
                name="shop",
                image=Image.from_dockerfile(shop / "Dockerfile"),
                resources=Resources(cpu=2, memory=4, disk=5),
            )
            image = await daytona.snapshot.create(params, on_logs=log.append)
        assert (image.state, image.cpu, image.mem, image.disk) == ("active", 2, 4, 5)
        text = "\n".join(log)
        assert "COPY data data" in text and "Successfully built shop" in text
        sandbox = await create(daytona, "shop", env_vars={"PORT": "8000"})
        assert (sandbox.cpu, sandbox.memory, sandbox.disk) == (2, 4, 5)
        url = await serve(sandbox, "shop_server")
        await until_healthy(url)
        async with httpx.AsyncClient() as http:
            seen = (await http.get(url)).json()
        assert (seen["goods"], seen["GREETING"]) == ("apples", "hello you")
        assert (
            await sandbox.process.exec("cat /opt/shop/data/goods.txt; echo $GREETING")
        ).result == "appleshello you\n"
        assert (await loopback.control.stats())["requests"]["POST /api/snapshots"] == {"200": 1}


async def test_images_are_listed_activated_and_deleted() -> None:
    slow = Latency(delete=Delay(median_s=1.0))
    async with connected(LoopbackConfig(latency=slow)) as (loopback, daytona):
        await daytona.snapshot.create(CreateSnapshotParams(name="plain", image="python:3.12"))
        page = await daytona.snapshot.list(page=1, limit=1)
        assert (page.total, page.total_pages, [item.name for item in page.items]) == (2, 2, ["plain"])
        with pytest.raises(DaytonaConflictError, match="already exists"):
            await daytona.snapshot.create(CreateSnapshotParams(name="plain", image="python:3.12"))
        await loopback.control.set_snapshot_state("plain", "inactive")
        with pytest.raises(DaytonaError, match="plain is inactive"):
            await create(daytona, "plain")
        assert (await daytona.snapshot.activate("plain")).state == "active"
        await daytona.snapshot.delete("plain")
        assert (await daytona.snapshot.get("plain")).state == "removing"
        await asyncio.sleep(1.2)
        with pytest.raises(DaytonaError, match="not found"):
            await daytona.snapshot.get("plain")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [("FETCH x", "unknown instruction"), ("COPY /absent /x", "not found in build context"), ("RUN x", "no space left")],
)
async def test_a_build_that_fails_says_why(lines: str, reason: str) -> None:
    log: list[str] = []
    async with connected() as (loopback, daytona):
        await loopback.control.set_build_fails("no space left on device")
        image = Image.base("python:3.12")
        image._dockerfile += f"{lines}\n"
        with pytest.raises(DaytonaError, match=reason):
            await daytona.snapshot.create(CreateSnapshotParams(name="bad", image=image), on_logs=log.append)
        assert (await daytona.snapshot.get("bad")).state == "build_failed"
        assert reason in log[-1]


async def test_images_break_on_demand() -> None:
    async with connected() as (loopback, daytona):
        await loopback.control.break_image("daytonaio/sandbox")
        sandbox = await create(daytona)
        await serve(sandbox)
        assert (await sandbox.process.get_session("server")).commands[0].exit_code == 1


@pytest.mark.parametrize("hidden", [True, False])
def test_the_sitecustomize_of_the_variables_hides_no_other(tmp_path: Path, hidden: bool) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "own").mkdir()
    if hidden:
        (tmp_path / "own" / "sitecustomize.py").write_text("import os; os.environ['SEEN'] = 'yes'", encoding="utf-8")
    paths = [authority.variables()["PYTHONPATH"].split(os.pathsep)[0], str(tmp_path / "own")]
    environment = {**os.environ, **authority.variables(), "PYTHONPATH": os.pathsep.join(paths), "SSL_CERT_FILE": "x"}
    script = "import os; print(os.environ.get('SEEN'), 'SSL_CERT_FILE' in os.environ); os.system('echo $SSL_CERT_FILE')"
    # -I would drop PYTHONPATH; -S drops what the interpreter of this machine may bring
    command = [sys.executable, "-S", "-c", f"import site; site.execsitecustomize(); {script}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.split()) == sorted(["yes" if hidden else "None", "False", str(authority.bundle)])
    assert done.stderr == ""


UPLOAD = """
import asyncio, os, sys
from daytona import AsyncDaytona, CreateSnapshotParams, Image

async def main():
    async with AsyncDaytona() as daytona:
        image = Image.base("x").add_local_file(sys.argv[1], "/data/file")
        print((await daytona.snapshot.create(CreateSnapshotParams(name="x", image=image))).state.value)

asyncio.run(main())
"""


async def test_another_process_uploads_with_nothing_but_the_variables(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("content", encoding="utf-8")
    async with LoopbackDaytona() as loopback:
        environment = {**os.environ, **loopback.environment, "SSL_CERT_FILE": "/nonexistent"}
        command = [sys.executable, "-c", UPLOAD, str(file)]
        done = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.strip() == "active", done.stderr
        assert "sitecustomize" not in done.stderr
