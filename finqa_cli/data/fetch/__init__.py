"""Fetches public data sets: pinned to a commit, resumed when interrupted, checked against the host's checksums."""

from finqa_cli.data.fetch.fetch_dataset import FetchReport, Observer, fetch
from finqa_cli.data.fetch.fetch_manifest import Manifest, read_manifest
from finqa_cli.data.fetch.known_sources import SOURCES, Source

__all__ = ["SOURCES", "FetchReport", "Manifest", "Observer", "Source", "fetch", "read_manifest"]
