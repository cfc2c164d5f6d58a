"""Environments of a user: tasks, tables, rewards, plugins; and snapshots whose content is wrong."""

from __future__ import annotations

import asyncio
import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from fixtures import finqa_text_rows, own_tables
from fixtures.data_files import write_folder
from fixtures.mistaken_plugin import MistakenPlugin
from remedies.faults import Fault, new, own, text
from remedies.following import run
from remedies.rows.data import store
from remedies.rows.openenv_servers import FOLDER, folder
from remedies.rows.user_code import GOOD, PLAY

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.data.snapshots.compile import file_digest, manifest_digest
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.extend.registry import registry
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.sandboxes.local.server_process import ServerProcess

TASK = '[t]\nprompt = "Write f."\nfunc_name = "f"\ntests = ["1"]\nreference = "xs + 1"\n'
CODE = "eval random --environment code --data t.toml --limit 1 --split train --sandboxes 1 --max-steps 1"
SCORE = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return 1.0\n"
ANSWER = '{"id": "x", "solution": "{}", "truth": "1"}\n'
MAKE = "\n\ndef make(**values) -> Sum:\n    return Sum()\n"
MINE = "eval scripted --snapshot mine --limit 1 --sandboxes 1"


def tasks(content: str) -> Fault:
    """A file of functions to write with a mistake, which the user corrects."""
    return Fault(CODE, text("t.toml", content), by_hand=text("t.toml", TASK))


def resealed(name: str, content: bytes) -> Callable[[], object]:
    """A snapshot `mine` with a file of wrong content and a manifest that fits it, as another program may write it."""

    def write() -> None:
        own()
        run("snapshot build --snapshot-name mine --data own")
        path = store().get("mine").path
        (path / name).write_bytes(content)
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        files = {file: file_digest(path / file) for file in manifest["files"]}
        digest = manifest_digest(files)
        (path / "manifest.json").write_text(json.dumps({**manifest, "files": files, "digest": digest}))
        short = digest.removeprefix("sha256:")[:12]
        path.rename(path.parent / short)
        (path.parent / "current").write_text(short)

    return write


def wrong_content(name: str, content: bytes) -> Fault:
    return Fault(MINE, resealed(name, content), {"DIR": "own"}, home=True)


def without_gold() -> None:
    """Questions with an answer, and nothing that an expert could play."""
    rows = [{**row, "answer": row["answer"] or "1", "sql": "", "program": ""} for row in own_tables.question_rows()]
    source, questions = own_tables.as_csv(Path("tables")), own_tables.write_questions(Path("questions.jsonl"), rows)
    run(f"data import tables {source} --questions {questions} --out mine --snapshot-name mine")


@contextmanager
def sound_server() -> Iterator[SimpleNamespace]:
    """A running server of the questions, whose own truths are right."""
    with TemporaryDirectory() as home:
        snapshot, _ = LocalSnapshots(Path(home)).build("mine", write_folder(Path(home, "own")))
        spec = FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot)).sandbox_spec()
        assert spec is not None
        process = ServerProcess(spec, Path(home, "server.log"))
        try:
            asyncio.run(process.wait_until_healthy(60.0))
            yield SimpleNamespace(url=process.url)
        finally:
            asyncio.run(process.stop(3.0))


CAPABILITIES = (1 << 1) | (1 << 2)
"""Reading what the mode of a file forbids: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@contextmanager
def bound_by_modes() -> Iterator[SimpleNamespace]:
    """Modes of files bind this thread, also where the tests are run by root."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0
    fewer = (ctypes.c_uint32 * 6)(held[0] & ~CAPABILITIES, *held[1:])
    assert libc.capset(header, fewer) == 0
    try:
        yield SimpleNamespace(url="")
    finally:
        assert libc.capset(header, held) == 0


def closed_folder() -> None:
    Path("d").mkdir()
    finqa_text_rows.write(Path("d/train.json"), finqa_text_rows.original(1))
    Path("d").chmod(0o111)  # its files may be named, and not listed


PROVIDER = """
class Bare(Sandbox):
    id = "bare"
    async def healthy(self):
        return True
    async def stop(self): ...

class Bares(SandboxProvider):
    def __init__(self, config, context): ...
    async def start(self, spec, labels):
        return Bare()
    async def list(self, labels):
        return []
    async def reap(self, sandbox_id): ...
    async def close(self): ...

EXTRA = [Component(kind="sandbox", name="acme-sandbox", target=f"{__name__}:Bares")]
"""


@contextmanager
def bare_sandboxes() -> Iterator[SimpleNamespace]:
    """A plugin whose sandboxes neither serve nor execute anything."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as site:
        MistakenPlugin(Path(site), patch, base="", body="", module=PROVIDER)
        yield SimpleNamespace(url="")
    registry.cache_clear()


def on_bare_sandboxes(command: str, write: Callable[[], object] = lambda: None) -> Fault:
    server: Callable[[], AbstractContextManager[SimpleNamespace]] = bare_sandboxes
    return Fault(f"{command} --sandbox acme-sandbox", write, server=server)


OWN_ENVIRONMENTS = {
    "a reference that fails": tasks(TASK.replace("xs + 1", "1/0")),
    "a test that nothing passes": tasks(TASK.replace("xs + 1", "float('nan')")),
    "tasks that are no TOML": tasks(TASK.replace("[t]", "[t")),
    "a file without tasks": tasks(""),
    "a function without its class": Fault(
        f"{PLAY} --set environment.options.attribute=make",
        text("env.py", GOOD + MAKE.replace(" -> Sum", "")),
        by_hand=text("env.py", GOOD + MAKE),
    ),
    "a reward of a library": Fault("eval random --environment verifiers:x --reward graded --limit 1", then=78),
    "data of a library": Fault("eval random --environment verifiers:x --data x --limit 1", then=78),
    "no file of a reward": Fault(
        "eval scripted --environment finqa-text --limit 1 --reward function "
        "--set reward.options.function=nothere.py:compute_score",
        text("good.py", SCORE),
        {"path/to/file.py:compute_score": "good.py:compute_score"},
    ),
    "a file as a reward": Fault(
        "eval scripted --environment finqa-text --limit 1 --reward good.py", text("good.py", SCORE)
    ),
    "a reward that raises": Fault(
        "rewards score a function --set reward.options.function=r.py:compute_score",
        text("r.py", SCORE.replace("1.0", "1 / 0")),
        by_hand=text("r.py", SCORE),
    ),
    "a specification of no date": Fault(
        "rewards show weighted --set reward.options.spec=r.yaml",
        text("r.yaml", "weights: 2026-99-99\n"),
        by_hand=new("rewards show weighted"),
    ),
    "a truth that is no number": Fault(
        "rewards score answers.jsonl environment --set environment=finqa-text",
        text("answers.jsonl", ANSWER.replace('"1"', '"abc"')),
        {"FILE": "answers.jsonl"},
        by_hand=text("answers.jsonl", ANSWER),
    ),
    "a coefficient of a KL that is off": Fault(
        "pipeline --method grpo --dry-run --set optimizer.options.kl=off --set optimizer.options.kl_coef=0.1"
    ),
    "a folder that may not be read": Fault(
        "eval scripted --environment finqa-text --data d --limit 1 --split train --sandboxes 1",
        closed_folder,
        server=bound_by_modes,
        by_hand=lambda: Path("d").chmod(0o755),
    ),
    "tasks that are no text": wrong_content("tasks.jsonl", b"\xe4"),
    "a task that is no JSON": wrong_content("tasks.jsonl", b"{\n"),
    "truths that are no JSON": Fault(
        f"{MINE} --set environment.options.url={{url}}",
        resealed("truth.jsonl", b"{\n"),
        {"DIR": "own"},
        home=True,
        server=sound_server,
    ),
    "questions without an expert": Fault(
        "eval scripted --snapshot mine --split test --limit 1 --sandboxes 1",
        without_gold,
        {"MODEL": "random --split test --limit 1 --sandboxes 1"},
        home=True,
        instead=True,
    ),
    "sandboxes of a plugin that serve nothing": on_bare_sandboxes("eval scripted --limit 1"),
    "sandboxes of a plugin for OpenEnv": on_bare_sandboxes(FOLDER.replace(" --sandboxes 1", ""), folder()),
}
