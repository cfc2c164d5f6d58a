"""The public data sets that `finqa data fetch` knows: where they are, at which commit, under which licence.

A pinned revision is a full commit hash. If none is pinned, the first fetch resolves the branch; later fetches use the
commit that it recorded in `fetch.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from finqa_cli.errors import ConfigError

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A service that serves repositories of files.

    Attributes:
        kind: Protocol of the service.
        name: Name in messages.
        sign_in: Remedy if access is refused.
    """

    kind: Literal["hub", "github"]
    name: str
    sign_in: str


HUB = Host(
    kind="hub",
    name="Hugging Face",
    sign_in="hf auth login (or set HF_TOKEN), after accepting the terms on the data set's page",
)
GITHUB = Host(kind="github", name="GitHub", sign_in="unset GITHUB_TOKEN, or correct it; public data needs none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A public data set.

    Attributes:
        name: Argument of `finqa data fetch`.
        repository: `owner/name`.
        revision: Pinned commit, or the branch to resolve.
        licence: SPDX name from the data set's card or repository.
        terms: Conditions of the owner beyond the licence.
        files: Patterns of paths in the repository; each must match at least one file. `*` matches slashes too.
        strip: Prefix of repository paths that local paths do not have.
        evaluation_only: Patterns of local paths that must not be trained on.
        archive: Local path of the one file that is unpacked after the download.
        next_steps: Commands that use the data; `{folder}` is its folder.
    """

    name: str
    host: Host
    repository: str
    revision: str
    licence: str
    terms: str = ""
    files: tuple[str, ...]
    strip: str = ""
    evaluation_only: tuple[str, ...] = ()
    archive: str = ""
    next_steps: tuple[str, ...] = ()

    def for_evaluation(self, path: str) -> bool:
        """Returns whether the file at this local path must not be trained on."""
        return any(fnmatchcase(path, pattern) for pattern in self.evaluation_only)


def is_commit(revision: str) -> bool:
    """Returns whether this is a full commit hash, which always names the same bytes."""
    return _COMMIT.fullmatch(revision) is not None


def checked_endpoint(address: str) -> str:
    """Returns the base address of a service, without trailing slash.

    Raises:
        ConfigError: It is not a plain http(s) address. A password is refused, because addresses are recorded.
    """
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.username is not None or parts.query or parts.fragment or not address.isprintable():
        raise ConfigError(
            "The endpoint must be a plain http or https address, without password, query or fragment.",
            remedy="--endpoint https://HOST (or HF_ENDPOINT)",
        )
    return address.rstrip("/")


_ALL = (
    Source(
        name="snorkel",
        host=HUB,
        repository="snorkelai/finqa-data",
        revision="main",
        licence="Apache-2.0",
        terms="This dataset is for evaluation only. Do not train on it.",
        files=("benchmark_questions/*", "input_companies/*.json"),
        evaluation_only=("*",),
        next_steps=("finqa data import snorkel {folder} --out snorkel",),
    ),
    Source(
        name="rllm",
        host=HUB,
        repository="rLLM/finqa",
        revision="main",
        licence="Apache-2.0",
        files=("data.tar.gz",),
        archive="data.tar.gz",
        next_steps=("finqa data import rllm {folder} --out rllm",),
    ),
    Source(
        name="finqa",
        host=GITHUB,
        repository="czyssrs/FinQA",
        revision="0f16e2867befa6840783e58be38c9efb9229d742",
        licence="MIT",
        terms="The test split is for evaluation only.",
        files=("dataset/train.json", "dataset/dev.json", "dataset/test.json"),
        strip="dataset/",
        evaluation_only=("test.json",),
        next_steps=(
            "finqa data import finqa-json {folder}/train.json {folder}/dev.json --out finqa",
            "finqa data import finqa-json {folder}/test.json --out finqa-test",
        ),
    ),
    Source(
        name="convfinqa",
        host=GITHUB,
        repository="czyssrs/ConvFinQA",
        revision="HEAD",
        licence="MIT",
        files=("data.zip",),
        archive="data.zip",
        next_steps=("finqa eval scripted --environment convfinqa --data {folder}/data --split dev",),
    ),
    Source(
        name="tatqa",
        host=GITHUB,
        repository="NExTplusplus/TAT-QA",
        revision="HEAD",
        licence="CC-BY-4.0",
        terms="Name the authors. The test split is for evaluation only.",
        files=(
            "dataset_raw/tatqa_dataset_train.json",
            "dataset_raw/tatqa_dataset_dev.json",
            "dataset_raw/tatqa_dataset_test_gold.json",
        ),
        strip="dataset_raw/",
        evaluation_only=("tatqa_dataset_test_gold.json",),
        next_steps=("finqa eval scripted --environment tatqa --data {folder} --split dev",),
    ),
    Source(
        name="mbpp",
        host=HUB,
        repository="google-research-datasets/mbpp",
        revision="4bb6404fdc6cacfda99d4ac4205087b89d32030c",
        licence="CC-BY-4.0",
        terms="Name the authors. The test split is for evaluation only.",
        files=("full/*", "sanitized/*"),
        evaluation_only=("full/test-*", "sanitized/test-*"),
    ),
)

SOURCES: Mapping[str, Source] = MappingProxyType({source.name: source for source in _ALL})
"""Every source by its name."""
