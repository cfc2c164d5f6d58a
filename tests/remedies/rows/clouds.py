"""Daytona and CoreWeave, on loopback."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from fixtures.cloud_fronts import Front, Refusal, coreweave, coreweave_front
from remedies.faults import Fault, new

from finqa_cli.testing.coreweave.coreweave_service import CoreWeaveConfig, CoreWeaveFaults

PLAY = "eval random --environment code --split train --limit 1 --max-steps 1"
ON_COREWEAVE = f"{PLAY} --sandbox cwsandbox"
LIST = "sandbox ls --sandbox cwsandbox"


def on_coreweave(*refusals: Refusal, **config: object) -> Callable[[], AbstractContextManager[Front]]:
    """CoreWeave with these refusals."""

    @contextmanager
    def serve() -> Iterator[Front]:
        service = coreweave()
        asyncio.run(service.control.configure(CoreWeaveConfig.model_validate(config)))
        with coreweave_front(service, *refusals) as front:
            os.environ.update(front.environment)
            yield front

    return serve


COREWEAVE = {
    "ok": Fault(f"{LIST} --nosuch", server=on_coreweave(), by_hand=new(ON_COREWEAVE)),
    "ls ok": Fault(f"{LIST} --nosuch", server=on_coreweave(), by_hand=new(LIST)),
    "a plain address": Fault(LIST, env={"CWSANDBOX_BASE_URL": "http://example.invalid"}, then=77),
    "a server of an environment": Fault("eval scripted --limit 1 --sandbox cwsandbox", server=on_coreweave(), elsewhere=("--sandbox daytona","or --sandbox daytona")),
    "a quota": Fault(ON_COREWEAVE, server=on_coreweave(Refusal(where="CreateSandbox", status="RESOURCE_EXHAUSTED", reason="CWSANDBOX_QUOTA_EXCEEDED")), by_hand=lambda: None),
    "an image that cannot be pulled": Fault(f"{ON_COREWEAVE} --set sandbox.options.container_image=nosuch", server=on_coreweave(), fill={"NAME": "python:3.11"}),
    "too large a sandbox": Fault(ON_COREWEAVE, server=on_coreweave(Refusal(where="CreateSandbox", status="FAILED_PRECONDITION", reason="CWSANDBOX_CEILING_EXCEEDED")), by_hand=lambda: None),
    "invalid": Fault(LIST, server=on_coreweave(Refusal(where="ListSandboxes", status="INVALID_ARGUMENT")), by_hand=lambda: None),
    "internal": Fault(LIST, server=on_coreweave(Refusal(where="ListSandboxes", status="INTERNAL")), by_hand=lambda: None),
    "doctor": Fault("doctor --sandbox cwsandbox --environment code", server=on_coreweave(Refusal(where="ListSandboxes", status="INTERNAL")), by_hand=lambda: None,check="cwsandbox"),
    "end": Fault(ON_COREWEAVE, server=on_coreweave(Refusal(where="StopSandbox", status="INTERNAL",times=1),Refusal(where="DeleteSandbox", status="INTERNAL",times=1)), by_hand=lambda: None),
}
