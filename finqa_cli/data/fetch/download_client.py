"""The HTTP client for GitHub's API and for all downloads; proxies and certificates come from the usual variables."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import cache

import httpx

from finqa_cli.data.fetch.retries import Patience


def open_client(headers: Mapping[str, str], patience: Patience) -> httpx.AsyncClient:
    """A client that follows redirects; httpx sends Authorization to no other origin than the first."""
    timeout = httpx.Timeout(patience.read_s, connect=patience.connect_s, pool=None)
    return httpx.AsyncClient(headers=headers, timeout=timeout, verify=_certificates(), follow_redirects=True)


@cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # reading them takes longer than most requests
