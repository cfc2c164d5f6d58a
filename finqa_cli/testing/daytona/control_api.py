"""`/control`: what tests and benchmarks ask the loopback Daytona itself."""

from __future__ import annotations

import resource
import time
from collections import Counter
from pathlib import Path

from finqa_cli.testing.daytona.account import Account
from finqa_cli.testing.daytona.body_fields import text
from finqa_cli.testing.daytona.config import Faults
from finqa_cli.testing.daytona.http_messages import Refusal, Reply, Request
from finqa_cli.testing.daytona.loopback_sandboxes import Box
from finqa_cli.testing.daytona.router import Router

DEATHS = ("destroyed", "error", "started")


class ControlApi:
    """Handlers of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def register(self, router: Router) -> None:
        """Adds the routes."""
        router.add("GET", "/control/stats", self.stats)
        router.add("GET", "/control/sandboxes", self.sandboxes)
        for verb, handler in (
            ("kill", self.kill),
            ("freeze", self.freeze),
            ("thaw", self.thaw),
            ("expire", self.expire_urls),
            ("faults", self.faults),
            ("break", self.break_image),
            ("builds", self.builds),
            ("snapshot-state", self.snapshot_state),
        ):
            router.add("POST", f"/control/{verb}", handler)

    async def stats(self, _: Request) -> Reply:
        """Everything that is counted."""
        account, counters = self._account, self._account.counters
        boxes = list(account.boxes.values())
        usage = resource.getrusage(resource.RUSAGE_SELF)
        body = {
            "up_s": time.time() - counters.started,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "rss_mib": _memory_mib(),
            "requests": {
                route: {str(status): number for status, number in sorted(found.items())}
                for route, found in sorted(counters.requests.items())
            },
            "unauthorised": counters.unauthorised,
            "creates": {"accepted": 0, "limited": 0, "refused": 0, **counters.creates},
            "busiest_window": account.window.busiest,
            "name_conflicts": counters.name_conflicts,
            "duplicates": sum(number - 1 for number in Counter(box.name for box in boxes).values()),
            "boxes": len(boxes),
            "boxes_ever": counters.boxes,
            "boxes_most": counters.most_boxes,
            "boxes_by_state": dict(Counter("frozen" if box.frozen else box.state for box in boxes)),
            "boxes_by_label": dict(Counter(f"{name}={value}" for box in boxes for name, value in box.labels.items())),
            "websockets": counters.websockets,
            "websockets_open": counters.websockets_open,
            "websockets_most": counters.websockets_most,
            "faults": dict(account.dice.hits),
            "servers": [server.pid for server in account.servers.all() if server.exit_code() is None],
        }
        return Reply(body=body)

    async def sandboxes(self, _: Request) -> Reply:
        """All boxes that are not gone, whatever the list shows."""
        return Reply(
            body=[
                {
                    "id": box.id,
                    "name": box.name,
                    "state": box.state,
                    "frozen": box.frozen,
                    "labels": box.labels,
                    "created": box.created,
                    "connections": len(box.links),
                    "image": box.image.name,
                    "environment": dict(box.environment),
                }
                for box in self._account.boxes.values()
            ]
        )

    async def kill(self, request: Request) -> Reply:
        """Boxes die: open connections are reset."""
        leave = request.json().get("leave", "error")
        if leave not in DEATHS:
            raise Refusal(400, f"leave must be one of {', '.join(DEATHS)}")
        chosen = self._chosen(request)
        for box in chosen:
            self._account.kill(box, str(leave))
        return _named(chosen)

    async def freeze(self, request: Request) -> Reply:
        """Boxes stop answering, on open connections too."""
        chosen = [box for box in self._chosen(request) if not box.frozen and not box.dead]
        for box in chosen:
            box.freeze()
        return _named(chosen)

    async def thaw(self, request: Request) -> Reply:
        """Frozen boxes answer again."""
        chosen = [box for box in self._chosen(request) if box.frozen]
        for box in chosen:
            box.thaw()
        return _named(chosen)

    async def expire_urls(self, _: Request) -> Reply:
        """Every signed preview URL is worthless from now on; open connections stay."""
        number = len(self._account.tokens)
        self._account.tokens.clear()
        return Reply(body={"expired": number})

    async def faults(self, request: Request) -> Reply:
        """Replaces the shares of faults."""
        try:
            faults = Faults.model_validate(request.json())
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        self._account.config = self._account.config.model_copy(update={"faults": faults})
        return Reply(body=faults.model_dump())

    async def builds(self, request: Request) -> Reply:
        """Sets the reason with which builds fail; empty: they succeed."""
        reason = text(request.json(), "fail")
        self._account.config = self._account.config.model_copy(update={"build_fails": reason})
        return Reply()

    async def break_image(self, request: Request) -> Reply:
        """Servers of this image exit at start from now on."""
        self._account.image(text(request.json(), "name")).broken = True
        return Reply()

    async def snapshot_state(self, request: Request) -> Reply:
        """Sets an image's state."""
        body = request.json()
        image = self._account.image(text(body, "name"))
        image.state = text(body, "state")
        image.notify()
        return Reply()

    def _chosen(self, request: Request) -> list[Box]:
        body = request.json()
        ids, share = body.get("ids"), body.get("share")
        if ids is not None and not isinstance(ids, list):
            raise Refusal(400, "ids must be a list")
        if share is not None and (not isinstance(share, (int, float)) or not 0 <= share <= 1):
            raise Refusal(400, "share must be between 0 and 1")
        return self._account.chosen(ids, share)


def _memory_mib() -> float:
    """Of this process now; where the system does not say, 0."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * resource.getpagesize() / 2**20


def _named(boxes: list[Box]) -> Reply:
    return Reply(body=[box.id for box in boxes])
