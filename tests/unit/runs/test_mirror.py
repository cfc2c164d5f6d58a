"""The mirror of a run: complete or the one before, incremental, and never the end of a run."""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finqa_cli.deletion import delete
from finqa_cli.errors import ConfigError, DataError, ServiceUnavailableError
from finqa_cli.runs import checkpoints, mirror_store
from finqa_cli.runs.mirror import SNAPSHOT, Mirror, mirroring
from finqa_cli.runs.mirror_store import MirrorStore

pytest.importorskip("fsspec", reason="needs finqa[train]")

WAIT_S = 60.0
RUN = json.dumps({"id": "mine", "created": "2026-11-27T20:00:00+00:00"})
OWNER = "mine, created 2026-11-27T20:00:00+00:00"


def content(folder: Path) -> dict[str, bytes]:
    """Every file that a mirror has."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def address() -> str:
    """One that no other test uses, in the memory of the process."""
    return f"memory://{uuid.uuid4().hex}/run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder like that of a run with two checkpoints."""
    folder = tmp_path / "run"
    for iteration in (1, 2):
        with checkpoints.writing(folder, iteration, {"policy_version": iteration}) as new:
            (new / "learner").mkdir()
            (new / "learner" / "state").write_bytes(bytes([iteration]) * 100)
    for name, text in {"run.json": RUN, "policies/v1/x": "x", "logs/vllm.log": "x", ".lock": "1"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


class Broken(Exception):
    """The network is gone."""


def break_after(store: MirrorStore, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets so many writes of any store pass, the last of them cut short, and then none."""
    real, left = type(store._fs).pipe_file, [writes]

    def pipe_file(self: Any, path: str, value: bytes, **options: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Broken("s3://user:very-secret@host refused it")
        real(self, path, value[: len(value) // 2] if left[0] == 0 else value, **options)

    monkeypatch.setattr(type(store._fs), "pipe_file", pipe_file)


@given(
    files=st.dictionaries(
        st.lists(st.sampled_from(["a", "b", "c ü", "d.e"]), min_size=1, max_size=3).map("/".join),
        st.binary(max_size=40),
        max_size=5,
    ).filter(lambda files: not any(one != two and two.startswith(f"{one}/") for one in files for two in files)),
    grown=st.binary(max_size=30),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_fetched_is_what_was_written_last(
    files: Mapping[str, bytes], grown: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_store, "PART_BYTES", 16)
    folder, there, store = tmp_path / uuid.uuid4().hex, tmp_path / uuid.uuid4().hex, MirrorStore(address())
    for name, data in {**files, "z": b"first"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    first = store.write(folder, OWNER)
    assert store.write(folder, OWNER).sent == 0 and first.size == sum(map(len, content(folder).values()))
    with (folder / "z").open("ab") as file:
        file.write(grown)
    again = store.write(folder, OWNER)
    assert again.sent <= 16 + len(grown)
    store.fetch(there)
    assert content(there) == content(folder)
    parts = {name.rpartition("/")[2] for name in store._fs.ls(f"{store._root}/parts", detail=False)}
    assert len(parts) <= len(content(folder)) * 6 and len(store._numbers()) == 1, "what is old is removed"


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("writes", range(5))
def test_a_copy_that_is_broken_off_leaves_the_one_before(
    kind: str, writes: int, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MirrorStore(address() if kind == "memory" else f"file://{tmp_path}/mirror/run")
    store.write(run, OWNER)
    before = content(run)
    for name in ("a", "b", "c"):
        (run / name).write_text(name * 50)
    with monkeypatch.context() as patch:
        break_after(store, writes, patch)
        try:
            store.write(run, OWNER)
        except (Broken, OSError):
            pass
        else:
            pytest.fail("it was not broken off")
    MirrorStore(store.address).fetch(tmp_path / "there")
    assert content(tmp_path / "there") == before
    store.write(run, OWNER)
    shutil.rmtree(tmp_path / "there")
    store.fetch(tmp_path / "there")
    assert content(tmp_path / "there") == content(run)


def test_a_damaged_or_hostile_mirror_is_refused_and_leaves_no_folder(run: Path, tmp_path: Path) -> None:
    store = MirrorStore(address())
    with pytest.raises(DataError, match="no complete mirror") as caught:
        store.fetch(tmp_path / "there")
    assert caught.value.remedy.startswith("--run-mirror with the address")
    store.write(run, OWNER)
    manifest = f"{store._root}/manifest-00000001.json"
    document = json.loads(store._fs.cat_file(manifest))
    for hostile in ("../outside", "/outside"):
        changed = {**document, "files": {hostile: document["files"]["run.json"]}}
        store._fs.pipe_file(manifest, json.dumps(changed).encode())
        with pytest.raises(DataError):
            store.fetch(tmp_path / "there")
    store._fs.pipe_file(manifest, json.dumps(document).encode())
    part = store._fs.ls(f"{store._root}/parts", detail=False)[0]
    store._fs.pipe_file(part, b"other")
    with pytest.raises(DataError):
        store.fetch(tmp_path / "there")
    assert not (tmp_path / "there").exists() and not (tmp_path / "outside").exists()


def test_a_place_that_cannot_be_read_is_named_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("s3://user:very-secret@host refused it")

    store = MirrorStore(address())
    monkeypatch.setattr(type(store._fs), "ls", refuse)
    with pytest.raises(ServiceUnavailableError, match="cannot be read") as caught:
        store.fetch(tmp_path / "there")
    assert "very-secret" not in caught.value.message
    assert caught.value.remedy.startswith("--run-mirror with the address of the run; credentials")


def test_a_run_is_mirrored_without_what_no_resumed_run_reads(run: Path, tmp_path: Path) -> None:
    with mirroring(run, where := address()) as mirror:
        assert mirror is not None
    MirrorStore(where).fetch(tmp_path / "there")
    names = set(content(tmp_path / "there"))
    state = {f"checkpoints/step_2/{name}" for name in ("learner/state", "manifest.json", "state.json")}
    assert names == {"run.json", f"checkpoints/{checkpoints.LATEST}", *state}
    found = checkpoints.latest(tmp_path / "there")
    assert found is not None and found.iteration == 2
    assert not (run / SNAPSHOT).exists()


def test_a_copy_keeps_files_that_the_run_deletes_meanwhile(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MirrorStore(address())
    writing, go_on, done = threading.Event(), threading.Event(), threading.Event()
    real = store.write

    def write(folder: Path, owner: str) -> mirror_store.Sent:
        writing.set()
        assert go_on.wait(WAIT_S)
        return real(folder, owner)

    monkeypatch.setattr(store, "write", write)
    mirror = Mirror(run, store)
    mirror.report_to(lambda name, facts: done.set())
    mirror.update()
    assert writing.wait(WAIT_S)
    delete(run / "checkpoints" / "step_2", within=run)
    go_on.set()
    assert done.wait(WAIT_S)
    mirror.close()
    store.fetch(tmp_path / "there")
    assert (tmp_path / "there/checkpoints/step_2/learner/state").read_bytes() == bytes([2]) * 100


def test_a_failure_is_an_event_without_secrets_and_the_next_checkpoint_tries_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MirrorStore(address())
    events: list[tuple[str, Mapping[str, Any]]] = []
    happened = threading.Semaphore(0)

    def note(name: str, facts: Mapping[str, Any]) -> None:
        events.append((name, facts))
        happened.release()

    mirror = Mirror(run, store)
    mirror.report_to(note)
    with monkeypatch.context() as patch:
        break_after(store, 0, patch)
        mirror.update()
        assert happened.acquire(timeout=WAIT_S)
    mirror.update()
    assert happened.acquire(timeout=WAIT_S)
    mirror.close()
    assert [name for name, _ in events] == ["mirror_failed", "mirrored"]
    assert "very-secret" not in str(events) and "Broken" in events[0][1]["reason"]
    assert events[1][1]["iteration"] == 2
    store.fetch(tmp_path / "there")


def test_an_address_that_cannot_be_used_is_refused_at_once(run: Path) -> None:
    with pytest.raises(ConfigError, match="no address of fsspec") as caught, mirroring(run, "nothere://bucket/run"):
        pass
    assert caught.value.remedy.startswith("--run-mirror with an address such as s3://")
    with pytest.raises(ConfigError, match="is not installed") as caught, mirroring(run, "abfs://container/run"):
        pass
    assert caught.value.remedy == "pip install adlfs"


def test_a_run_without_a_checkpoint_has_nothing_to_mirror(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with mirroring(tmp_path / "run", where := address()):
        pass
    with pytest.raises(DataError):
        MirrorStore(where).fetch(tmp_path / "there")


def test_the_copy_of_another_run_is_never_replaced(run: Path, tmp_path: Path) -> None:
    with mirroring(run, where := address()) as mirror:
        assert mirror is not None
        mirror.check_owner()
    before = content(run)
    (run / "run.json").write_text(json.dumps({"id": "other", "created": "2026-11-28T08:00:00+00:00"}))
    with mirroring(run, where) as mirror:
        assert mirror is not None
        with pytest.raises(ConfigError, match=r"the copy of another run \(mine, created 2026-11-27") as caught:
            mirror.check_owner()
    assert caught.value.remedy == "--run-mirror with an address that no other run uses"
    MirrorStore(where).fetch(tmp_path / "there")
    assert (tmp_path / "there" / "run.json").read_bytes() == before["run.json"]
