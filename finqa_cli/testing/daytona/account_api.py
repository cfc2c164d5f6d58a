"""`/api/api-keys` and `/api/organizations`: whose key this is, and how much of the quota is used."""

from __future__ import annotations

from finqa_cli.testing.daytona.account import Account
from finqa_cli.testing.daytona.http_messages import Refusal, Reply, Request
from finqa_cli.testing.daytona.loopback_sandboxes import ORGANIZATION, REGION, iso
from finqa_cli.testing.daytona.router import Router

SNAPSHOT_QUOTA = 100


class AccountApi:
    """Handlers of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def register(self, router: Router) -> None:
        """Adds the routes."""
        router.add("GET", "/api/api-keys/current", self.key)
        router.add("GET", "/api/organizations/{organization}/usage", self.usage)

    async def key(self, _: Request) -> Reply:
        """The key that was used (ApiKeyList of the SDK 0.226.1)."""
        body = {
            "name": "loopback",
            "value": "loopback-****",
            "createdAt": iso(self._account.counters.started),
            "permissions": ["write:sandboxes", "delete:sandboxes", "write:snapshots", "delete:snapshots"],
            "lastUsedAt": None,
            "expiresAt": None,
            "userId": "loopback-user",
            "organizationId": ORGANIZATION,
        }
        return Reply(body=body)

    async def usage(self, _: Request, organization: str) -> Reply:
        """What boxes hold and may hold (OrganizationUsageOverview of the SDK 0.226.1)."""
        if organization != ORGANIZATION:
            raise Refusal(404, f"Organization {organization} not found")
        used, quota = self._account.used(), self._account.config.quota
        region = {
            "regionId": REGION,
            "sandboxClass": "container",
            "totalCpuQuota": quota.cpu,
            "currentCpuUsage": used["CPU"],
            "totalMemoryQuota": quota.memory_gib,
            "currentMemoryUsage": used["memory"],
            "totalDiskQuota": quota.disk_gib,
            "currentDiskUsage": used["disk"],
            "totalGpuQuota": 0,
            "currentGpuUsage": 0,
            "maxCpuPerSandbox": 4,
            "maxMemoryPerSandbox": 8,
            "maxDiskPerSandbox": 10,
            "maxDiskPerNonEphemeralSandbox": None,
            "maxCpuPerGpu": None,
            "maxMemoryPerGpu": None,
            "maxDiskPerGpu": None,
        }
        body = {
            "regionUsage": [region],
            "totalSnapshotQuota": SNAPSHOT_QUOTA,
            "currentSnapshotUsage": len(self._account.images),
            "totalVolumeQuota": 0,
            "currentVolumeUsage": 0,
        }
        return Reply(body=body)
