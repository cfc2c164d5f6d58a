"""The bearer token of a running server: reads it from the environment, and makes the error if it is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping

from finqa_cli.documents import parse_json
from finqa_cli.errors import AuthenticationError, FinqaError, SandboxError

_LONGEST_DETAIL = 200


def read_token(variable: str) -> str:
    """Return the token in an environment variable; empty if no variable is named.

    Raises:
        AuthenticationError: The variable is not set, or its value cannot be a token.
    """
    if not variable:
        return ""
    token = os.environ.get(variable, "").strip()
    if not token:
        raise AuthenticationError(
            f"No token for the environment server: the variable {variable} is not set.",
            remedy=f"export {variable}=...",
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise AuthenticationError(
            f"The variable {variable} does not contain a token: a token is printable ASCII without spaces.",
            remedy=f"export {variable}=...",
        )
    return token


def authorization(token: str) -> Mapping[str, str]:
    """Return the HTTP header with a token; no header without one."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def refusal(status: int, body: bytes | None, *, where: str, token: str) -> FinqaError:
    """Return the error for a reply with status 401 or 403.

    Args:
        status: The HTTP status.
        body: Body of the answer; our server gives the reason in `detail`.
        where: The server in messages, such as `at ADDRESS`.
        token: The token that was sent, if any; it is not shown.
    """
    if status == 401 and token:
        return AuthenticationError(
            f"The environment server {where} rejected the token (HTTP 401).",
            remedy="set the variable that environment.options.token_env names to the token of the server",
        )
    if status == 401:
        return AuthenticationError(
            f"The environment server {where} needs a token (HTTP 401).",
            remedy="export SERVER_TOKEN=... and --set environment.options.token_env=SERVER_TOKEN",
        )
    return SandboxError(f"The environment server {where} refused the connection (HTTP {status}){_detail(body)}")


def _detail(body: bytes | None) -> str:
    try:
        detail = parse_json(body or b"")["detail"]
    except (ValueError, LookupError, TypeError):
        return "."
    return f": {detail[:_LONGEST_DETAIL]}" if isinstance(detail, str) else "."
