"""Fetches a data set into a folder: pins the commit, downloads missing files, checks, unpacks and records them.

`fetch.json` is written before the first byte, so that an interrupted fetch resumes with the same commit, and again
at the end. It lets a second fetch work without a network if all files exist.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from finqa_cli.data.fetch.digests import Content, content_of, storage
from finqa_cli.data.fetch.download import Downloader, Partial
from finqa_cli.data.fetch.fetch_manifest import (
    FileRecord,
    Manifest,
    UnpackedRecord,
    damaged_files,
    now,
    read_manifest,
    write_manifest,
)
from finqa_cli.data.fetch.known_sources import Source, checked_endpoint, is_commit
from finqa_cli.data.fetch.repository_listing import PARTIALS, Listing, list_github, list_hub
from finqa_cli.data.fetch.retries import Patience
from finqa_cli.data.fetch.unpack import unpack
from finqa_cli.deletion import discard
from finqa_cli.errors import ConfigError, StorageError, UsageError

LISTERS = {"hub": list_hub, "github": list_github}


class Observer(Protocol):
    """Receives the progress of a fetch."""

    def line(self, text: str) -> None:
        """Receives a line for the user, such as a failure that is retried."""
        ...

    def moved(self, done: int, total: int) -> None:
        """Receives the number of bytes that have arrived, and the number of all bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReport:
    """Result of a fetch.

    Attributes:
        manifest: The record as it is on disk now.
        downloaded: Paths of files that were downloaded.
        resumed: Paths of downloaded files whose first part had arrived in an earlier fetch.
        repaired: Paths of downloaded or unpacked files that were damaged or missing before.
    """

    manifest: Manifest
    downloaded: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()


def fetch(
    source: Source,
    folder: Path,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    observer: Observer,
    patience: Patience | None = None,
) -> FetchReport:
    """Downloads a data set into a folder, or checks and repairs the data set in the folder.

    Args:
        source: The data set.
        folder: The target; new, empty, or of an earlier fetch of the same source and commit.
        revision: Commit, branch or tag. By default the one in the folder, else the one that the source pins.
        endpoint: Address of a mirror of the hub, or of a GitHub Enterprise Server.
        observer: Receives progress and failures that are retried.
        patience: Attempts, pauses and time limits.

    Raises:
        UsageError: The folder contains another source or commit.
        ConfigError: The endpoint is not an address, a package is missing, or another process fetches into the folder.
        ServiceUnavailableError: The host cannot be reached; data that has arrived is kept.
        AuthenticationError: The host requires a token.
        DataError: The revision does not exist, or a file is not what the host announced.
        StorageError: The disk is full or cannot be written, or the folder contains other files.
    """
    address = checked_endpoint(endpoint) if endpoint else None
    with _locked(folder):
        known = read_manifest(folder)
        work = _Fetch(source=source, folder=folder, known=known, observer=observer, patience=patience or Patience())
        work.check_folder(revision)
        damaged = damaged_files(folder, known) if known and known.complete else ()
        for path in damaged:
            observer.line(f"{path} is missing or damaged; fetching it again")
        if known and known.complete and not damaged and revision in (None, known.revision):
            return work.finish(known)
        return asyncio.run(work.bring(revision, address, damaged))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetch:
    source: Source
    folder: Path
    known: Manifest | None
    observer: Observer
    patience: Patience

    def check_folder(self, revision: str | None) -> None:
        if self.known is None:
            if any(not path.name.startswith(PARTIALS) for path in self.folder.iterdir()):
                raise StorageError(f"{self.folder} holds other files.", remedy="--out with a new folder")
            return
        if self.known.source != self.source.name:
            raise UsageError(
                f"{self.folder} contains the data set {self.known.source}.", remedy="--out with a new folder"
            )
        if revision and is_commit(revision):
            self._check_commit(revision)

    def _check_commit(self, commit: str) -> None:
        if self.known and commit != self.known.revision:
            raise UsageError(
                f"{self.folder} contains {self.source.repository} at {self.known.revision}, not at {commit}.",
                remedy="--out with a new folder, or no --revision to keep what is there",
            )

    async def bring(self, revision: str | None, endpoint: str | None, damaged: tuple[str, ...]) -> FetchReport:
        """Downloads what is missing or differs from what the host announces."""
        asked = revision or (self.known.revision if self.known else self.source.revision)
        lister = LISTERS[self.source.host.kind]
        tell = self.observer.line
        listing = await lister(self.source, asked, endpoint=endpoint, patience=self.patience, tell=tell)
        self._check_commit(listing.commit)
        if listing.licence and listing.licence.casefold() != self.source.licence.casefold():
            tell(f"{self.source.repository} has the licence {listing.licence}; finqa expected {self.source.licence}")
        if self.known is None or not self.known.complete:
            write_manifest(self.folder, self._manifest(listing, {}))
        present, wrong = self._present(listing)
        for path in (path for path in wrong if path not in damaged):
            tell(f"{path} does not match the listing; fetching it again")
        downloader = self._downloader(listing, present)
        fresh = await downloader.run([file for file in listing.files if file.path not in present])
        return self.finish(
            self._manifest(listing, {**present, **fresh}),
            downloaded=tuple(fresh),
            resumed=tuple(downloader.resumed),
            repaired=tuple(dict.fromkeys((*damaged, *wrong))),
        )

    def _present(self, listing: Listing) -> tuple[dict[str, Content], list[str]]:
        """Returns the content of existing files that match the listing, and the paths of those that do not."""
        present, wrong = {}, []
        for file in listing.files:
            content = content_of(self.folder / file.path)
            if content and content.under(file.digest.algorithm) == file.digest:
                present[file.path] = content
            elif content:
                wrong.append(file.path)
        return present, wrong

    def _downloader(self, listing: Listing, present: dict[str, Content]) -> Downloader:
        there = sum(content.size for content in present.values())
        total = sum(file.size for file in listing.files)
        free = shutil.disk_usage(self.folder).free
        arrived = sum(Partial(self.folder, file).size() for file in listing.files if file.path not in present)
        if total - there - arrived > free:
            raise StorageError(
                f"{self.folder} has {free} bytes free; the download needs {total - there - arrived}.",
                remedy="free some space, or choose another disk with --out",
            )
        return Downloader(
            host=self.source.host,
            listing=listing,
            folder=self.folder,
            patience=self.patience,
            moved=lambda done: self.observer.moved(there + done, total),
            tell=self.observer.line,
        )

    def _manifest(self, listing: Listing, contents: dict[str, Content]) -> Manifest:
        source = self.source
        records = [
            FileRecord(
                path=file.path,
                url=file.url,
                bytes=contents[file.path].size,
                sha256=contents[file.path].sha256,
                evaluation_only=source.for_evaluation(file.path),
            )
            for file in listing.files
            if file.path in contents
        ]
        return Manifest(
            source=source.name,
            endpoint=listing.endpoint,
            repository=source.repository,
            revision=listing.commit,
            licence=source.licence,
            licence_announced=listing.licence,
            terms=source.terms,
            evaluation_only="*" in source.evaluation_only,
            fetched_at=now(),
            complete=False,
            files=tuple(records),
        )

    def finish(
        self,
        manifest: Manifest,
        *,
        downloaded: tuple[str, ...] = (),
        resumed: tuple[str, ...] = (),
        repaired: tuple[str, ...] = (),
    ) -> FetchReport:
        """Unpacks the archive, if there is one, and writes the record. Damaged unpacked files are repaired."""
        settled = self.known is not None and self.known.complete
        unpacked = manifest.unpacked
        if self.source.archive:
            taken = [record.path for record in manifest.files]
            result = unpack(self.folder / self.source.archive, taken=taken)
            unpacked = UnpackedRecord(archive=self.source.archive, files=result.files, bytes=result.size)
            if settled and result.written:
                repaired = (*repaired, *result.written)
                for path in result.written:
                    self.observer.line(f"{path} was missing or damaged; unpacked again")
        whole = manifest.model_copy(update={"complete": True, "unpacked": unpacked})
        if whole != self.known:
            write_manifest(self.folder, whole)
        discard(self.folder / PARTIALS)
        return FetchReport(manifest=whole, downloaded=downloaded, resumed=resumed, repaired=repaired)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks the folder for this process. A folder that is created here and stays empty is removed at the end."""
    new = not folder.exists()
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"Another process is downloading into {folder}.", remedy="wait until it ends") from error
        yield
    finally:
        os.close(descriptor)
        if new:
            with suppress(OSError):
                folder.rmdir()  # succeeds only when it is empty
