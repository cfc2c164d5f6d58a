"""Lists a data set of the Hugging Face hub by its own client, `huggingface_hub`.

The client knows endpoint (HF_ENDPOINT), token, offline mode, revisions and the checksums of every file. Its own
download is not used: since 1.18 it throws partial files away (huggingface_hub#4228), and it compares sizes only.
Addresses are the hub's `resolve` addresses, which redirect to signed ones; large files are announced by SHA-256 (the
value of `X-Linked-Etag`), all others by git's blob hash (their `ETag`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from finqa_cli import __version__
from finqa_cli.data.fetch.digests import Digest
from finqa_cli.data.fetch.known_sources import HUB, Source, checked_endpoint, is_commit
from finqa_cli.data.fetch.repository_listing import Listing, RemoteFile, bounded, wanted
from finqa_cli.data.fetch.retries import Patience, Transient, persist, refusal, said
from finqa_cli.errors import DataError, MissingDependencyError, ServiceUnavailableError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import DatasetInfo, RepoSibling


async def list_hub(
    source: Source, revision: str, *, endpoint: str | None, patience: Patience, tell: Callable[[str], None]
) -> Listing:
    """The files of a data set at the commit that `revision` names.

    Raises:
        MissingDependencyError: huggingface_hub is not installed.
        ServiceUnavailableError: The hub cannot be reached, or HF_HUB_OFFLINE forbids it.
        AuthenticationError: The data set is gated or private, and no token opens it.
        DataError: The revision does not exist, or the answer is not a hub's.
    """
    try:
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, not in its stubs
    except ImportError as error:
        raise MissingDependencyError(
            "This needs huggingface_hub, which is not installed.", remedy="pip install 'finqa[data]'"
        ) from error
    api = HfApi(endpoint=endpoint, library_name="finqa", library_version=__version__)
    checked_endpoint(api.endpoint)
    what = f"{source.repository} at {revision}"

    async def attempt() -> DatasetInfo:
        return await asyncio.to_thread(_ask, api, source.repository, revision, what, patience.connect_s)

    info = await persist(attempt, patience, tell)
    commit = str(info.sha)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}

    def remote(path: str, local: str) -> RemoteFile:
        url = hf_hub_url(source.repository, path, repo_type="dataset", revision=commit, endpoint=api.endpoint)
        return _remote(siblings[path], local, url)

    names = wanted(source, siblings, commit)
    return Listing(
        commit=commit,
        endpoint=api.endpoint,
        files=bounded(source, [remote(path, local) for path, local in names.items()]),
        licence=_licence(info.card_data),
        headers=build_hf_headers(library_name="finqa", library_version=__version__),
    )


def _ask(api: HfApi, repository: str, revision: str, what: str, timeout_s: float) -> DatasetInfo:
    from huggingface_hub import errors

    try:
        info = api.dataset_info(repository, revision=revision, files_metadata=True, timeout=timeout_s)
    except errors.OfflineModeIsEnabled as error:
        raise ServiceUnavailableError(
            f"{what} cannot be listed: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, so {HUB.name} is not asked.",
            remedy="unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DataError(
            f"{repository} has no revision {revision!r}.", remedy="Give --revision a commit, branch or tag that exists."
        ) from error
    except errors.HfHubHTTPError as error:
        raise refusal(HUB, what, error.response.status_code, error.response.headers) from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # base of every error of the client's HTTP library
        raise Transient(f"{HUB.name} ({api.endpoint}) cannot be reached: {said(error)}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{api.endpoint} did not answer as a Hugging Face hub does: {said(error)}.") from error
    if not is_commit(str(info.sha)):
        raise DataError(f"{api.endpoint} names no commit for {what}.")
    return info


def _remote(sibling: RepoSibling, local: str, url: str) -> RemoteFile:
    digest = Digest("sha256", sibling.lfs.sha256) if sibling.lfs else Digest("git-sha1", str(sibling.blob_id))
    size = sibling.lfs.size if sibling.lfs else sibling.size
    if size is None or (not sibling.lfs and not sibling.blob_id):
        raise DataError(f"{HUB.name} announces neither size nor checksum of {sibling.rfilename}.")
    return RemoteFile(path=local, url=url, size=size, digest=digest)


def _licence(card: Any) -> str:
    licence = getattr(card, "license", None)
    return licence if isinstance(licence, str) else ""
