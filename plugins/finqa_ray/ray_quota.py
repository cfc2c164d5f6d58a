"""Counts sandbox creates of a cloud account over a Ray cluster: one actor per account, with the window in a file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import ray
import structlog
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import AccountQuota, Grant
from finqa_cli.errors import FinqaError, ServiceUnavailableError
from finqa_plugins.sandboxes._quota.shared_quota import FOLDER, WindowFile
from finqa_ray import cluster
from finqa_ray.cluster import Cluster
from finqa_ray.node_folder import node_home

log = structlog.get_logger(__name__)

NAMESPACE = "finqa"
"""Namespace of the actors' names, which all drivers of the cluster share."""
PATIENCE_S = 60.0
"""Seconds that the actor may be gone, while Ray restarts it on another node."""
RETRIES = Backoff(first_s=0.2, longest_s=2.0)

_HEAD = "node:__internal_head__"
"""Resource of the head node, see `ray.nodes`."""


class QuotaActor:
    """A Ray actor that grants the creates of one account. Its calls run one after the other.

    The window is in a file of its node, which runs without Ray on that machine share. After a restart nothing is
    granted for one window, because another node has another file.
    """

    def __init__(self, account: str, window_s: float, after_loss: bool) -> None:
        """Opens the file of the node.

        Args:
            account: Digest of the account.
            window_s: Length of a window in seconds.
            after_loss: Whether an earlier actor of the account is gone.
        """
        self._file = WindowFile(node_home() / FOLDER, account)
        if after_loss or ray.get_runtime_context().was_current_actor_reconstructed:
            self._file.pause(window_s)

    def take(self, limit: int, window_s: float) -> Grant:
        """See `WindowFile`."""
        return self._file.take(limit, window_s)

    def end(self, ticket: int, sent: bool) -> None:
        """See `WindowFile`."""
        self._file.end(ticket, sent=sent)

    def pause(self, seconds: float) -> None:
        """See `WindowFile`."""
        self._file.pause(seconds)


class RayQuota(AccountQuota):
    """The quota of an account over all processes that use a cluster, in drivers and in actors."""

    def __init__(self, account: str, limit: int, window_s: float, address: str) -> None:
        """Connects to nothing yet.

        Args:
            account: Digest of the account.
            limit: Most creates in a window.
            window_s: Length of a window in seconds.
            address: As `cluster.join`.
        """
        self._account = account
        self._limit = limit
        self._window_s = window_s
        self._address = address
        self._cluster: Cluster | None = None
        self._actor: Any = None
        self._lost = False
        self._finding = asyncio.Lock()

    async def take(self) -> Grant:
        """See `AccountQuota`.

        Raises:
            ServiceUnavailableError: There is no cluster, or its actor does not come back within `PATIENCE_S`.
            StorageError: The node of the actor cannot write its file.
        """
        until, tries = time.monotonic() + PATIENCE_S, 0
        while True:
            try:
                async with self._finding:
                    if self._actor is None:
                        self._actor = await asyncio.to_thread(self._find)
                grant: Grant = await self._actor.take.remote(self._limit, self._window_s)
                return grant
            except RayTaskError as error:
                found = cluster.cause(error)
                if isinstance(found, FinqaError):
                    raise found from None
                raise
            except RayError as error:
                self._actor, self._lost, tries = None, True, tries + 1
                reason = str(error).splitlines()[0]
                if time.monotonic() > until:
                    raise ServiceUnavailableError(
                        f"The process that counts sandbox creates on the Ray cluster is gone: {reason}"
                    ) from error
                # Log: The process that counts sandbox creates on a Ray cluster is started again.
                log.debug("the quota of an account is gone", reason=reason)
            await asyncio.sleep(RETRIES.pause_s(tries))

    def end(self, ticket: int, *, sent: bool = True) -> None:
        """See `AccountQuota`."""
        self._report(lambda actor: actor.end.remote(ticket, sent))

    def pause(self, seconds: float, limit: int | None = None) -> None:
        """See `AccountQuota`."""
        if limit is not None:
            self._limit = max(1, min(self._limit, limit))
        self._report(lambda actor: actor.pause.remote(seconds))

    def close(self) -> None:
        """Leaves the cluster. The actor stays, because other runs use it and the window must outlive a run."""
        self._actor = None
        if self._cluster is not None:
            joined, self._cluster = self._cluster, None
            cluster.leave(joined)

    def _find(self) -> Any:
        """The actor of the account, which is created if there is none."""
        if self._cluster is None:
            self._cluster = cluster.join(self._address)
        heads = [node["NodeID"] for node in ray.nodes() if node["Alive"] and _HEAD in node["Resources"]]
        place = {"scheduling_strategy": NodeAffinitySchedulingStrategy(heads[0], soft=True)} if heads else {}
        made = ray.remote(QuotaActor).options(
            name=f"finqa-creates-{self._account}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=0,
            **place,
        )
        return made.remote(self._account, self._window_s, self._lost)

    def _report(self, report: Callable[[Any], object]) -> None:
        if self._actor is not None:
            with contextlib.suppress(RayError):
                report(self._actor)
