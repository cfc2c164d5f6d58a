"""The pages and their data as an ASGI application: token in every address, fixed host, GET and HEAD, no caching."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finqa_cli.errors import FinqaError
from finqa_cli.publishing.report.report_comparison import comparison_document
from finqa_cli.publishing.report.report_page import escape_json, render_page, view_policy
from finqa_cli.publishing.view.followed_run import FollowedRun, ViewStopped
from finqa_cli.publishing.view.run_catalog import RunCatalog
from finqa_cli.runs.durable_files import now

HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NOTHING = "default-src 'none'; frame-ancestors 'none'"
_METHODS = ("GET", "HEAD")


class Guard:
    """Refuses requests with another origin, method or token than those of the pages.

    The token is the first part of the path; a cookie would be sent to every other server of this machine as well.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str], opening: str = "", start: str = "") -> None:
        """Keeps the arguments.

        Args:
            app: The application that is called with the path after the token.
            token: The first part of every path.
            hosts: The values that the header Host may have.
            opening: Part of a path that works once without the token, for the command line of a browser.
            start: Path after the token that `/open/OPENING` redirects to.
        """
        self._app = app
        self._token = token.encode()
        self._hosts = hosts
        self._opening = opening.encode()
        self._start = start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request, or calls the application with the token removed from the path."""
        if scope["type"] != "http":
            return
        answer = self._refusal(scope) or self._opened(scope)
        if answer is not None:
            await answer(scope, receive, _with_headers(send))
            return
        rest = "/" + scope["path"].lstrip("/").partition("/")[2]
        await self._app(
            {**scope, "path": rest, "raw_path": rest.encode(), "root_path": ""}, receive, _with_headers(send)
        )

    def _refusal(self, scope: Scope) -> Response | None:
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return _text("This server only responds to its own address.", 421)
        if scope["method"] not in _METHODS:
            return _text("Only GET is supported; nothing can be changed.", 405, allow=", ".join(_METHODS))
        return None

    def _opened(self, scope: Scope) -> Response | None:
        first, slash, rest = scope["path"].lstrip("/").partition("/")
        if first == "open" and self._opening and hmac.compare_digest(rest.encode(), self._opening):
            self._opening = b""
            return RedirectResponse(f"/{self._token.decode()}/{self._start}", 303)
        if not hmac.compare_digest(first.encode(), self._token):
            return _text(
                "The token is missing or wrong. The complete address is in the terminal in which "
                "finqa view was started.",
                403,
            )
        return None if slash else RedirectResponse(f"/{first}/", 307)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            ours = {**HEADERS, "content-security-policy": _NOTHING}
            added = [(name.encode(), value.encode()) for name, value in ours.items() if name.encode() not in given]
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return sending


class ViewPages:
    """The endpoints of the pages and of their data."""

    def __init__(self, catalog: RunCatalog) -> None:
        """Keeps the catalog of the runs."""
        self._catalog = catalog

    def routes(self) -> list[Route]:
        """Returns the routes; ids and lines in an address are looked up, and never used as names of files."""
        return [
            Route("/", lambda request: _page("runs", (), "./")),
            Route("/run/{first}", self._run_page),
            Route("/run/{first}/control/{control}", self._run_page),
            Route("/compare/{first}/{second}", self._run_page),
            Route("/data/runs", _data(lambda request: self._catalog.listing())),
            Route("/data/stamp/{first}", _data(self._stamp)),
            Route("/data/stamp/{first}/control/{control}", _data(self._stamp)),
            Route("/data/stamp/{first}/{second}", _data(self._stamp)),
            Route("/data/report/{first}", _data(self._report)),
            Route("/data/report/{first}/control/{control}", _data(self._report)),
            Route("/data/report/{first}/{second}", _data(self._report)),
            Route("/data/episode/{first}/{line}", _data(self._episode)),
        ]

    def _run_page(self, request: Request) -> Response:
        try:
            self._followed(request, "first", "second", "control")
        except LookupError:
            return _text("This run does not exist.", 404)
        ids = dict(request.path_params)
        control = ids.pop("control", None)
        return _page("report", tuple(ids.values()), "../" * (request.url.path.count("/") - 1), control)

    def _followed(self, request: Request, *names: str) -> list[FollowedRun]:
        return [self._catalog.follow(request.path_params[name]) for name in names if name in request.path_params]

    def _stamp(self, request: Request) -> dict[str, Any]:
        return {"stamp": _joint(self._followed(request, "first", "second", "control"))}

    def _report(self, request: Request) -> dict[str, Any]:
        runs, controls = self._followed(request, "first", "second"), self._followed(request, "control")
        since = request.query_params.get("since", "").split(",")
        stamp = _joint([*runs, *controls])  # before files are read, so that lines appended meanwhile change the stamp
        control = controls[0].as_control() if controls else None
        documents = [
            {**run.document(version), "control": control} for run, version in zip(runs, [*since, ""], strict=False)
        ]
        comparison = comparison_document(*(run.scored() for run in runs)) if len(runs) == 2 else None
        return {"made": now(), "stamp": stamp, "runs": documents, "comparison": comparison}

    def _episode(self, request: Request) -> dict[str, Any]:
        line = request.path_params["line"]
        if not (line.isascii() and line.isdecimal() and len(line) < 19):
            raise LookupError(line)
        return self._catalog.follow(request.path_params["first"]).episode(int(line))


def view_application(
    catalog: RunCatalog, *, token: str, hosts: frozenset[str], opening: str = "", start: str = ""
) -> ASGIApp:
    """Returns the application that serves the runs of a catalog; for the other arguments see `Guard`."""
    pages = Starlette(routes=ViewPages(catalog).routes())
    pages.router.redirect_slashes = False
    return Guard(pages, token=token, hosts=hosts, opening=opening, start=start)


def _joint(runs: list[FollowedRun]) -> str:
    return ".".join(run.stamp() for run in runs)


def _page(kind: str, ids: tuple[str, ...], home: str, control: str | None = None) -> Response:
    text = render_page({"source": {"page": kind, "runs": list(ids), "control": control}}, home=home)
    policy = f"{view_policy()}; frame-ancestors 'none'"
    return Response(text, headers={"content-security-policy": policy}, media_type="text/html")


def _data(read: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Response]:
    """Returns an endpoint that answers with JSON; it runs in a thread because it reads files."""

    def answer(request: Request) -> Response:
        try:
            return Response(escape_json(read(request)), media_type="application/json")
        except LookupError:
            return _text("This run does not exist.", 404)
        except ViewStopped:
            return _text("The server ends.", 503)
        except FinqaError as error:
            return _text(error.message, 404)
        except (OSError, ValueError) as error:  # a file was deleted meanwhile, or JSON cannot represent a number
            return _text(f"It cannot be read: {json.dumps(str(error))}", 500)

    return answer


def _text(message: str, status: int, **headers: str) -> Response:
    return Response(message, status, headers=headers, media_type="text/plain")
