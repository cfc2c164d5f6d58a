"""The hub, to fetch from and to push to, on loopback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest
from fixtures.hub_server import Fault as Answer
from fixtures.hub_server import HubServer, hub_server
from fixtures.model_hub import TOKEN, Failure, ModelHub, Repository, model_hub
from remedies.faults import Fault, new, text
from remedies.following import run

from finqa_cli.data.fetch import SOURCES
from finqa_cli.data.fetch.retries import Patience

COMMIT = "a" * 40
FILES = {
    "README.md": b"---\nlicense: apache-2.0\n---\n",
    "benchmark_questions/finqa.csv": b"id,user_query\n1,what?\n",
    "input_companies/acme corp/us_gaap_Leases.json": b'[{"row": "a"}]',
    "input_companies/tables_cleaned_all_companies.json": b"{}",
}
FETCH = "data fetch snorkel --endpoint {url} --out d"
PUSH = "push trained/w --to merged --repo-prefix afeng --endpoint {url}"
NEEDS = ("trained",)
TRIES = Patience().attempts


@contextmanager
def online() -> Iterator[None]:
    """The real client of the hub online, without a token of this machine, and without pauses."""
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_TELEMETRY": True,
            "HF_TOKEN_PATH": "no-token",
        }.items():
            patch.setattr(constants, name, value)
        patch.setattr(Patience, "pause_s", lambda self, number: 0.01)
        yield


def data(*faults: Answer) -> Callable[[], AbstractContextManager[HubServer]]:
    """A hub of data in which these things go wrong."""

    @contextmanager
    def serve() -> Iterator[HubServer]:
        with online(), hub_server() as server:
            server.add("snorkelai/finqa-data", FILES, commit=COMMIT, licence="apache-2.0")
            server.add(
                "czyssrs/FinQA",
                {"LICENSE": b"MIT", **{f"dataset/{split}.json": b"[]" for split in ("train", "dev", "test")}},
                commit=SOURCES["finqa"].revision,
            )
            server.faults += map(replace, faults)
            os.environ["HUB"] = server.url
            yield server

    return serve


def models(*failures: Failure) -> Callable[[], AbstractContextManager[ModelHub]]:
    """A hub of models in which these things go wrong."""

    @contextmanager
    def serve() -> Iterator[ModelHub]:
        with online(), model_hub() as server:
            server.failures += map(replace, failures)
            server.repositories["afeng/w_step-1"] = Repository(private=False, commits=[{"other.safetensors": b"x"}])
            yield server

    return serve


@contextmanager
def offline() -> Iterator[None]:
    """HF_HUB_OFFLINE is set, which the client reads when it is imported."""
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        yield


def fetched_before() -> None:
    run(FETCH.replace("{url}", os.environ["HUB"]))


@contextmanager
def spoiling() -> Iterator[ModelHub]:
    """A hub of models that keeps another README.md than it is sent, once."""
    with models()() as server:
        pending = [b"other"]
        server.spoil = lambda name, data: pending.pop() if name == "README.md" and pending else data
        yield server


def pushed(failure: Failure) -> Fault:
    """A push that fails, and is made again."""
    return Fault(PUSH, server=models(failure), env={"HF_TOKEN": TOKEN}, needs=NEEDS, by_hand=lambda: None)


def fetched(fault: Answer) -> Fault:
    """A download that fails, and is made again."""
    return Fault(FETCH, server=data(fault), by_hand=lambda: None)


HUBS = {
    "a folder of other files": Fault(FETCH, text("d/x", ""), server=data(), fill={"--out": "new"}),
    "a damaged record of a fetch": Fault(
        FETCH, text("d/fetch.json", "{}"), server=data(), by_hand=new("data fetch snorkel --endpoint {url} --out new")
    ),
    "no address of a hub": Fault(
        "data fetch snorkel --endpoint ftp://x --out d", server=data(), fill={"https://HOST": "{url}"}
    ),
    "no such revision": Fault(f"{FETCH} --revision nosuch", server=data(), by_hand=new(FETCH)),
    "no such revision at GitHub": Fault(
        "data fetch finqa --endpoint {url} --out d --revision nosuch", server=data(), by_hand=new(FETCH)
    ),
    "a hub that is busy": fetched(Answer(where="finqa.csv", status=503, times=TRIES)),
    "a hub that lost a file": fetched(Answer(where="finqa.csv", status=404)),
    "a hub that answers otherwise": fetched(Answer(where="finqa.csv", status=418)),
    "an owner who is another": Fault(
        "push trained/w --to merged --repo-prefix other --endpoint {url}",
        server=models(),
        env={"HF_TOKEN": TOKEN},
        needs=NEEDS,
    ),
    "a push that is refused": pushed(Failure(where="/commit/main", status=402)),
    "a folder that cannot be made": Fault(
        "data fetch snorkel --endpoint {url} --out plain/x", text("plain", "x"), server=data(), fill={"--out": "new"}
    ),
    "a folder of another data set": Fault(
        "data fetch finqa --endpoint {url} --out d", fetched_before, server=data(), fill={"--out": "new"}
    ),
    "a folder of another commit": Fault(
        f"{FETCH} --revision {'b' * 40}",
        fetched_before,
        server=data(),
        by_hand=new(FETCH),
        elsewhere=("--out",),
    ),
    "no data offline": Fault(FETCH, server=data(), during=offline),
    "a hub that asks for a long pause": Fault(
        FETCH,
        server=data(Answer(where="finqa.csv", status=503, headers={"Retry-After": "9999"})),
        by_hand=lambda: None,
    ),
    "a token that GitHub refuses": Fault(
        "data fetch finqa --endpoint {url} --out d",
        server=data(Answer(where="/api/v3", status=401)),
        env={"GITHUB_TOKEN": "wrong"},
    ),
    "no push offline": Fault(PUSH, server=models(), env={"HF_TOKEN": TOKEN}, needs=NEEDS, during=offline),
    "a push to what is no hub": pushed(Failure(where="/whoami-v2", status=200)),
    "a push that the hub spoils": Fault(
        PUSH, server=spoiling, env={"HF_TOKEN": TOKEN}, needs=NEEDS, by_hand=lambda: None
    ),
    "a repository of other weights": Fault(
        f"{PUSH} --step 1", server=models(), env={"HF_TOKEN": TOKEN}, needs=NEEDS, fill={"NAME": "second"}
    ),
    "a push to a busy hub": pushed(Failure(where="/commit/main", status=409, times=TRIES)),
}
