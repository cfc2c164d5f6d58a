"""The quota of an account: over a Ray cluster where the run uses one, else over this machine."""

from __future__ import annotations

import hashlib

from finqa_cli.contracts import AccountQuota, SandboxContext
from finqa_cli.extend import registry
from finqa_plugins.sandboxes._quota.window_file import FOLDER, FileQuota, WindowFile


def account_digest(provider: str, url: str, key: str) -> str:
    """Return a name for an account, from which its key cannot be computed."""
    return hashlib.sha256("\0".join(("finqa account", provider, url, key)).encode()).hexdigest()[:24]


def open_quota(context: SandboxContext, account: str, limit: int, window_s: float) -> AccountQuota:
    """Return the quota of an account.

    Args:
        context: Context of the provider.
        account: Digest of the account; see `account_digest`.
        limit: Most creates in a window.
        window_s: Length of a window in seconds.
    """
    if context.cluster:
        found = registry().first(
            "share_quota",
            AccountQuota,  # type: ignore[type-abstract]
            account=account,
            limit=limit,
            window_s=window_s,
            cluster=context.cluster,
        )
        if found is not None:
            return found
    return FileQuota(WindowFile(context.home / FOLDER, account), limit, window_s)
