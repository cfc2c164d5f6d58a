"""Bad HTTP requests are answered with 4xx, briefly, and leave no traceback in the server's log."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

LONGEST_MESSAGE = 300
MAX_PROBLEMS = 5


def answer_bad_requests(app: FastAPI) -> None:
    """Registers handlers, because openenv-core 0.3.0 echoes any input and fails on what it cannot echo."""

    def refuse(_request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            return _reply(422, error.errors())
        if isinstance(error, HTTPException):
            return _reply(error.status_code, error.detail)
        return _reply(400, str(error))

    for kind in (RequestValidationError, HTTPException, LookupError, ValueError, TypeError, RuntimeError):
        app.add_exception_handler(kind, refuse)


def _reply(status: int, detail: Any) -> JSONResponse:
    if isinstance(detail, list):
        shown: Any = [_problem(problem) for problem in detail[:MAX_PROBLEMS]]
    else:
        shown = _text(detail)
    return JSONResponse({"detail": shown}, status_code=status)


def _problem(problem: dict[str, Any]) -> dict[str, Any]:
    loc = [_text(part) for part in problem.get("loc", ())]
    return {"type": _text(problem.get("type", "")), "loc": loc, "msg": _text(problem.get("msg", ""))}


def _text(value: object) -> str:
    return str(value)[:LONGEST_MESSAGE].encode("utf-8", "replace").decode()
