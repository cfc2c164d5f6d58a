"""How learner processes are placed, started and watched, without starting any with torch."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import DistBackendError, HashStore

from finqa_cli.contracts import LearnerContext
from finqa_cli.errors import ConfigError, FinqaError, LearnerProcessError
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.distributed import distributed_learner
from finqa_plugins.learners.torch.distributed.launch import Workers
from finqa_plugins.learners.torch.distributed.process_group import ProcessGroup, SingleProcess


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize(
    ("option", "devices", "used"),
    [
        ("auto", (), ["cuda:3", "cuda:2"]),
        ("auto", (1, 3), ["cuda:1", "cuda:3"]),
        ("cuda", (2, 0), ["cuda:2", "cuda:0"]),
        ("cpu", (2, 0), ["cpu", "cpu"]),
    ],
)
def test_each_process_takes_its_device_of_the_plan(option: str, devices: tuple[int, ...], used: list[str]) -> None:
    config = TorchLearnerConfig(device=option)
    assert [str(ProcessGroup(rank, 2, rank).device(config, devices)) for rank in range(2)] == used
    assert str(SingleProcess().device(config, devices[:1])) == used[0]


@pytest.mark.usefixtures("four_devices")
def test_a_device_that_is_not_there_is_refused_and_one_that_the_option_names_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"plan gives learner process 1 of this machine cuda:7, .* 4 CUDA") as caught:
        SingleProcess().device(TorchLearnerConfig(), (7,))
    assert caught.value.remedy == "finqa doctor"
    assert str(SingleProcess().device(TorchLearnerConfig(device="cuda:1"), (3,))) == "cuda:1"
    with pytest.raises(ConfigError, match="cuda:1 is one device, but there are 2 learner processes"):
        ProcessGroup(0, 2, 0).device(TorchLearnerConfig(device="cuda:1"), (1, 2))


def workers(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, size: int = 2, **options: Any) -> Workers:
    """Workers that run this code in place of a learner."""
    monkeypatch.setattr(Workers, "_arguments", lambda self, rank: ("-c", code, str(rank)))
    return Workers(size, folder, folder / "logs", options.get("on_end", lambda: None))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", r"process 2 of 2 \(pid \d+\) was ended by SIGKILL"),
        ("print('out'); raise SystemExit(3)", r"process 2 of 2 \(pid \d+\) exited with status 3"),
        ("pass", "A learner process ended early, without an error"),
    ],
)
def test_a_process_that_ends_is_reported_with_how(
    tmp_path: Path, code: str, reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []
    started = workers(tmp_path, monkeypatch, code, on_end=lambda: ended.append("ended"))
    started.start()
    assert started.ended.wait(30)
    started.close(kill=True)
    assert ended == ["ended"] and re.search(reason, started.reason)
    assert capfd.readouterr() == ("", ""), "standard output is for the command's result"


def test_the_process_that_died_is_named_and_the_others_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, sys, time; sys.argv[1] == '2' and os.kill(os.getpid(), 9); time.sleep(600)"
    started = workers(tmp_path, monkeypatch, code, size=4)
    started.start()
    assert started.ended.wait(30)
    started.close(kill=True)
    assert "process 3 of 4" in started.reason and "SIGKILL" in started.reason


def test_closed_processes_may_end_by_themselves_and_have_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hidden")
    monkeypatch.setenv("MODEL_CACHE", "seen")
    code = "import os, sys, time; time.sleep(0.3); print(os.environ, file=sys.stderr)"
    started = workers(tmp_path, monkeypatch, code, on_end=lambda: pytest.fail("it was asked to end"))
    started.start()
    started.close(kill=False)
    log = (tmp_path / "logs" / "learner-2.log").read_text(encoding="utf-8")
    assert "hidden" not in log and "seen" in log and not started.ended.is_set()


def test_a_dead_process_ends_what_waits_over_nccl_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted, failures = threading.Event(), list[FinqaError]()
    processes = distributed_learner.StartedProcesses(2, tmp_path / "logs")
    group = SimpleNamespace(abort=aborted.set)
    processes._mesh = SimpleNamespace(device_type="cuda", get_group=lambda: group)  # type: ignore[assignment]
    processes.on_failure = failures.append
    code = "import time; time.sleep(0.5); raise SystemExit(5)"
    monkeypatch.setattr(Workers, "_arguments", lambda self, rank: ("-c", code))
    processes._workers = Workers(2, tmp_path, processes._logs, processes._ended)
    processes._folder = tmp_path / "rendezvous"
    processes._workers.start()
    with pytest.raises(
        LearnerProcessError, match=r"Learner process 2 of 2 \(pid \d+\) exited with status 5. Its log: "
    ):
        processes._send = lambda call: None  # type: ignore[method-assign]

        def collective() -> None:
            assert aborted.wait(30), "NCCL would wait for the process that is gone"
            raise ValueError("aborted")

        processes.together(collective, "update")
    processes.close()
    processes.close()
    assert [error.exit_code for error in failures] == [70]


def test_a_process_that_cannot_join_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workers, "_arguments", lambda self, rank: ("-c", "raise SystemExit(9)"))
    processes = distributed_learner.StartedProcesses(3, tmp_path / "logs")
    with pytest.raises(LearnerProcessError, match=r"of 3 \(pid \d+\) exited with status 9"):
        processes.begin()
    assert processes._folder is not None and processes._folder.stat().st_mode & 0o777 == 0o700
    processes.close()
    assert not processes._folder.exists()


def test_a_learner_process_ends_when_its_parent_is_another(tmp_path: Path) -> None:
    from finqa_plugins.learners.torch.distributed import serving

    ended: list[int] = []
    (tmp_path / "rendezvous").mkdir()

    def leave(status: int) -> None:
        ended.append(status)
        raise SystemExit(status)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(os, "_exit", leave)
        serving._end_with(1 if os.getppid() != 1 else 2, tmp_path / "rendezvous")
    assert ended == [1] and not (tmp_path / "rendezvous").exists()


def test_torchrun_and_the_setting_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_learner, "_joined", distributed_learner.TorchrunProcesses(0, 2, 0))
    with pytest.raises(ConfigError, match="learner_processes=3, but torchrun started 2 processes"):
        distributed_learner.make_learner(
            TorchLearnerConfig(), LearnerContext(model="m", learning_rate=1e-3, processes=3)
        )
    for processes in (1, 2):
        context = LearnerContext(model="m", learning_rate=1e-3, processes=processes)
        assert isinstance(
            distributed_learner.make_learner(TorchLearnerConfig(), context), distributed_learner.DistributedLearner
        )


def test_over_several_machines_the_setting_may_be_the_number_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4}
    for name, number in numbers.items():
        monkeypatch.setenv(name, str(number))
    monkeypatch.setattr(distributed_learner, "_joined", None)
    monkeypatch.setattr(
        distributed_learner.TorchrunProcesses,
        "join_torchrun",
        lambda self: [monkeypatch.delenv(name) for name in numbers],
    )
    distributed_learner.join()
    for processes in (1, 4, 8):
        context = LearnerContext(model="m", learning_rate=1e-3, processes=processes)
        assert isinstance(
            distributed_learner.make_learner(TorchLearnerConfig(), context), distributed_learner.DistributedLearner
        )
    with pytest.raises(ConfigError, match="learner_processes=2, but torchrun started 8 processes"):
        distributed_learner.make_learner(
            TorchLearnerConfig(), LearnerContext(model="m", learning_rate=1e-3, processes=2)
        )


def test_a_lack_of_memory_is_reported_where_another_process_only_lost_a_connection() -> None:
    processes = ProcessGroup(1, 2, 1)
    processes._store = HashStore()
    processes.leave_error(DistBackendError("[gloo] connection closed by peer"))
    assert not processes._store.check(["failure"])
    processes.leave_error(DistBackendError("NCCL error: unhandled cuda error, Failed to CUDA calloc: out of memory"))
    assert isinstance(processes._failure(""), LearnerProcessError) and "out of memory" in str(processes._failure(""))
