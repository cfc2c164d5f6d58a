"""Daytona and CoreWeave, on loopback."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fixtures.cloud_fronts import Front, Refusal, coreweave, coreweave_front, daytona, daytona_front
from fixtures.daytona_images import ready_image
from fixtures.mistaken_plugin import MistakenPlugin
from remedies.faults import Fault, new, own
from remedies.following import run

from finqa_cli.extend.registry import registry
from finqa_cli.testing.coreweave.coreweave_service import CoreWeaveConfig
from finqa_plugins.sandboxes._images.image_recipe import name_of
from finqa_plugins.sandboxes.daytona import daytona_sandbox

PLAY = "eval random --environment code --split train --limit 1 --max-steps 1"
NOT_CLOSED = "some resources could not be closed"
Served = Callable[[], AbstractContextManager[Front]]


def on_coreweave(*refusals: Refusal) -> Served:
    """CoreWeave with these refusals."""

    @contextmanager
    def serve() -> Iterator[Front]:
        service = coreweave()
        asyncio.run(service.control.configure(CoreWeaveConfig()))
        with coreweave_front(service, *refusals) as front:
            os.environ.update(front.environment)
            yield front

    return serve


def refused(command: str, where: str, status: str, reason: str = "", times: int = 1, **more: object) -> Fault:
    """A request to CoreWeave that is refused, and then no more."""
    server = on_coreweave(Refusal(where=where, status=status, reason=reason, times=times))
    return Fault(f"{command} --sandbox cwsandbox", server=server, **more)  # type: ignore[arg-type]


COREWEAVE = {
    "an address in plain text": Fault(
        "sandbox ls --sandbox cwsandbox", env={"CWSANDBOX_BASE_URL": "http://example.invalid"}, then=77
    ),
    "a server at CoreWeave": Fault(
        "eval scripted --limit 1 --sandbox cwsandbox", server=on_coreweave(), elsewhere=("--sandbox daytona",)
    ),
    "a quota of CoreWeave": refused(
        PLAY, "CreateSandbox", "RESOURCE_EXHAUSTED", "CWSANDBOX_QUOTA_EXCEEDED", by_hand=lambda: None
    ),
    "an image that cannot be pulled": Fault(
        f"{PLAY} --sandbox cwsandbox --set sandbox.options.container_image=nosuch",
        server=on_coreweave(),
        fill={"NAME": "python:3.11"},
    ),
    "too large a sandbox": refused(PLAY, "CreateSandbox", "FAILED_PRECONDITION", "CWSANDBOX_CEILING_EXCEEDED"),
    "a request that CoreWeave does not take": refused(
        "sandbox ls", "ListSandboxes", "INVALID_ARGUMENT", by_hand=lambda: None
    ),
    "a fault of CoreWeave": refused("sandbox ls", "ListSandboxes", "INTERNAL", by_hand=lambda: None),
    "a CoreWeave that doctor cannot ask": refused(
        "doctor --environment code", "ListSandboxes", "INTERNAL", times=2, check="cwsandbox"
    ),
    "a sandbox that CoreWeave does not end": refused(
        PLAY, "DeleteSandbox", "INTERNAL", times=3, logged=NOT_CLOSED, again="sandbox ls --sandbox cwsandbox"
    ),
}


@cache
def images() -> dict[str, Path]:
    """The image of the embedded snapshot, and two of other data, which rows delete and build."""
    ready = ready_image(Path(os.environ["FINQA_HOME"]))
    (folder,) = ready.values()
    return {**ready, name_of("spare", "0" * 64): folder, name_of("older", "0" * 64): folder}


def on_daytona(*refusals: Refusal) -> Served:
    """Daytona, which has images, with these refusals."""

    @contextmanager
    def serve() -> Iterator[Front]:
        with daytona_front(daytona(**images()), *refusals) as front:
            os.environ.update(front.environment)
            yield front

    return serve


@contextmanager
def before_daytona() -> Iterator[Front]:
    """Daytona itself, for what needs its previews."""
    service = daytona(**images())
    os.environ.update(service.environment)
    with service.trusted():
        yield Front({}, "")


@contextmanager
def inactive_image() -> Iterator[Front]:
    """Daytona with an image that it has put aside."""
    service = daytona(**images())
    (name,) = ready_image(Path(os.environ["FINQA_HOME"]))
    service.control.set_snapshot_state(name, "inactive")
    with before_daytona() as front:
        yield front


@contextmanager
def old_python() -> Iterator[Front]:
    """Daytona whose images have an older Python than is needed."""
    with pytest.MonkeyPatch.context() as patch, on_daytona()() as front:
        patch.setattr(daytona_sandbox, "OLDEST_PYTHON", (9, 9))
        yield front


def newer_python() -> str:
    daytona_sandbox.OLDEST_PYTHON = (3, 11)
    return f"{PLAY} --sandbox daytona --set sandbox.options.execution_image=python:3.12"


def snapshot(name: str) -> Callable[[], object]:
    return lambda: (own(), run(f"snapshot build --snapshot-name {name} --data own"))


SERVING = """
class Serving(Inventory):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.snapshot = context.snapshot
    def sandbox_spec(self):
        return ServerSpec(snapshot=self.snapshot, module="acme_server")

EXTRA = [Component(kind="environment", name="acme-serving", target=f"{__name__}:Serving")]
"""


@contextmanager
def server_of_a_plugin() -> Iterator[Front]:
    """Daytona, and a plugin whose environment has a server of its own."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as site, before_daytona() as front:
        MistakenPlugin(Path(site), patch, base="", body="", module=SERVING)
        yield front
    registry.cache_clear()


def asked(command: str, where: str, status: int, message: str = "no", **more: object) -> Fault:
    """A request to Daytona that is refused once."""
    server = on_daytona(Refusal(where=where, status=status, message=message))
    return Fault(f"{command} --sandbox daytona", server=server, **more)  # type: ignore[arg-type]


DAYTONA = {
    "a request that Daytona does not take": asked("sandbox ls", "GET /api/sandbox", 422, by_hand=lambda: None),
    "an answer that Daytona should not give": asked("sandbox ls", "GET /api/sandbox", 200, by_hand=lambda: None),
    "too large a sandbox of Daytona": asked(
        PLAY, "POST /api/sandbox", 400, "CPU request 8 exceeds maximum allowed per sandbox (4)."
    ),
    "a Daytona that doctor cannot ask": Fault(
        "doctor --sandbox daytona",
        server=on_daytona(Refusal(where="GET /api/snapshots", status=422, skip=1)),
        check="daytona image",
    ),
    "an image that is put aside": Fault(
        "doctor --sandbox daytona", server=inactive_image, check="daytona image", then=(0, 1)
    ),
    "an image of other data": Fault(
        "doctor --snapshot older --sandbox daytona",
        snapshot("older"),
        server=before_daytona,
        home=True,
        check="daytona image",
        then=(0, 1),
    ),
    "an image at Daytona": Fault(
        "eval random --limit 1 --environment openenv --set environment.options.image=x --sandbox daytona",
        server=on_daytona(),
        then=(65, 69, 78),
    ),
    "no image of a snapshot": Fault(
        "eval scripted --snapshot mine --split train --limit 1 --sandbox daytona",
        snapshot("mine"),
        server=before_daytona,
        home=True,
    ),
    "an image that takes long": Fault(
        "snapshot build --snapshot-name slow --sandbox daytona --set sandbox.options.build_timeout_s=0.01",
        snapshot("slow"),
        server=before_daytona,
        home=True,
        elsewhere=("--set",),
    ),
    "an image that stays": Fault(
        "snapshot delete spare --sandbox daytona --set sandbox.options.delete_timeout_s=0.01",
        server=on_daytona(Refusal(where="DELETE /api/snapshots", status=200)),
        by_hand=new("snapshot delete spare --sandbox daytona"),
    ),
    "a server of a plugin": Fault(
        "snapshot build --environment acme-serving --sandbox daytona", server=server_of_a_plugin
    ),
    "an old Python": Fault(f"{PLAY} --sandbox daytona", server=old_python, elsewhere=("--set",), by_hand=newer_python),
    "a sandbox that Daytona does not end": Fault(
        f"{PLAY} --sandbox daytona --set sandbox.options.delete_timeout_s=0.01",
        server=on_daytona(Refusal(where="DELETE", status=500, times=4)),
        logged=NOT_CLOSED,
        again="sandbox ls --sandbox daytona",
    ),
    "a Daytona that is busy": Fault(
        "sandbox ls --sandbox daytona",
        server=on_daytona(Refusal(where="GET /api/sandbox", status=503, retry_after_s=600)),
        by_hand=lambda: None,
    ),
}
