"""`finqa doctor`: what it finds, what it says about it, and that nothing keeps it from answering."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from fixtures.command_calls import document
from fixtures.daytona_images import ready_image
from fixtures.plugin_entry_points import install
from fixtures.tiny_families import make_tiny
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.app import main
from finqa_cli.commands.doctor import report
from finqa_cli.diagnostics import diagnose, machine_checks
from finqa_cli.diagnostics.diagnose import Probe, collect, examine
from finqa_cli.diagnostics.machine_checks import gpu_check, parameters
from finqa_cli.errors import AuthenticationError
from finqa_cli.settings import Settings
from finqa_cli.types import Check, CudaDevice
from finqa_cli.wiring.policies import resolve
from finqa_cli.wiring.sandbox_owners import PID_LABEL, owner_labels
from finqa_testing import LoopbackConfig, LoopbackProcess, Quota

pytestmark = pytest.mark.usefixtures("empty_folder")

ROOT = Path(__file__).parents[2]
HANG_S = 90.0  # a plugin of these tests sleeps longer; the doctor's own limit is in `diagnostics/diagnose.py`

HOOKS = {
    "raises": "raise RuntimeError('no route to host')",
    "refuses": "raise AuthenticationError('The key was refused.', remedy='export EXAMPLE_API_KEY=...')",
    "hangs": "time.sleep(600)",
    "confused": "return ['looks good']",
    "sound": "return [Check(name='example quota', status='warn', detail=repr(settings), remedy='pay more')]",
}


def finqa(site: Path, *arguments: str, limit: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT), str(ROOT / "plugins")]),
        "COLUMNS": "80",
    }
    command = f'{limit} exec "{sys.executable}" -m finqa_cli "$@"'
    return subprocess.run(
        ["bash", "-c", command, "finqa", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        cwd=site,
    )


def found(checks: Sequence[dict[str, str]], name: str) -> dict[str, str]:
    (check,) = (check for check in checks if check["name"] == name)
    return check


@pytest.mark.parametrize(
    ("arguments", "status", "remedy"),
    [
        (["--environment", "own.py"], "fail", "--engine scripted for its expert"),
        (["--environment", "own.py", "--model", "embedded"], "fail", "--engine scripted for its expert"),
        (["--environment", "forecast", "--model", "embedded"], "warn", "--model embedded-forecast"),
        (["--environment", "forecast"], "ok", ""),
        ([], "ok", ""),
    ],
)
def test_a_policy_that_was_taught_another_environment_is_reported(
    arguments: list[str], status: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    Path("own.py").write_text("def tasks():\n    yield 'How many?'\n\ndef reward(answer):\n    return 0.0\n")
    assert main(["doctor", *arguments, "--json"]) == (1 if status == "fail" else 0)
    check = found(json.loads(capsys.readouterr().out)["checks"], "model")
    assert check["status"] == status and remedy in check["remedy"]
    assert ("it cannot play" in check["detail"]) == bool(remedy)


@pytest.mark.parametrize(
    ("family", "more", "status", "found_out"),
    [
        ("mamba", [], "fail", "keys and values"),
        ("qwen3", ["--set=lora.target_modules=absent"], "warn", "absent"),
        ("qwen3", [], "ok", "parameters"),
    ],
)
def test_a_model_that_cannot_be_served_or_trained_is_found_before_a_run(
    family: str, more: list[str], status: str, found_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    make_tiny(family, Path("model"), Path(resolve("embedded").model))
    assert main(["doctor", "--model", "./model", "--json", *more]) == (1 if status == "fail" else 0)
    check = found(json.loads(capsys.readouterr().out)["checks"], "model")
    assert check["status"] == status and found_out in check["detail"]
    assert bool(check["remedy"]) == (status != "ok")


def test_a_sound_machine_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", "--engine", "scripted", "--sandbox", "local", "--sandboxes", "4"]
    checks = document(arguments, capsys)
    assert checks["status"] == "ok"
    assert [set(check) for check in checks["checks"]] == [{"name", "status", "detail", "remedy"}] * len(
        checks["checks"]
    )
    assert [check["name"] for check in checks["checks"]] == [
        *("finqa", "settings", "plugins", "backends", "placement", "snapshot", "gpu", "memory"),
        *("disk data", "disk runs", "open files", "processes", "strays"),
    ]
    assert all(check["detail"] and not check["remedy"] for check in checks["checks"] if check["status"] == "ok")
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "ok    plugins" in shown.out


def test_nothing_that_a_plugin_does_keeps_the_doctor_from_answering(tmp_path: Path) -> None:
    entries = {name: name for name in HOOKS} | {"zz_unimportable": "cannot_import", "zz_misspelt": "misspelt_hook"}
    site = install(tmp_path, entries)
    for name, body in HOOKS.items():
        (site / "finqa_example" / f"{name}.py").write_text(
            "import time\nfrom finqa_cli.errors import AuthenticationError\nfrom finqa_cli.extend import hookimpl\n"
            f"from finqa_cli.types import Check\n\n@hookimpl\ndef doctor_checks(settings):\n    {body}\n"
        )
    started = time.monotonic()
    (site / "finqa.toml").write_text('[sandbox.options]\napi_key = "a-very-secret-key"\n')
    done = finqa(site, "doctor", "--json")
    assert time.monotonic() - started < HANG_S
    assert done.returncode == 1 and "Traceback" not in done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert "no route to host" in found(checks, "raises")["detail"]
    assert found(checks, "refuses")["detail"] == "The key was refused."
    assert found(checks, "refuses")["remedy"] == "export EXAMPLE_API_KEY=..."
    assert found(checks, "hangs")["detail"] == "no response within 20 s"
    assert "'looks good' is not a Check" in found(checks, "confused")["detail"]
    assert all(found(checks, name)["status"] == "fail" for name in ("raises", "refuses", "hangs", "confused"))
    assert found(checks, "example quota")["status"] == "warn"
    assert "'api_key': '**********'" in found(checks, "example quota")["detail"]
    assert "a-very-secret-key" not in done.stdout + done.stderr
    broken = [check for check in checks if check["name"] == "plugins"]
    assert [check["status"] for check in broken] == ["warn", "warn"]
    assert "register_componets" in broken[0]["detail"] and "a_package_that_nobody_has" in broken[1]["detail"]
    assert broken[0]["remedy"] == "pip install --upgrade finqa-example"


def test_a_broken_plugin_that_nobody_chose_fails_nothing(tmp_path: Path) -> None:
    done = finqa(install(tmp_path, {"zz_unimportable": "cannot_import"}), "doctor", "--engine=scripted")
    assert done.returncode == 0, done.stdout
    assert "warn  plugins" in done.stdout and done.stdout.endswith("checks: 1 warning.\n")
    assert f"{tmp_path}/finqa_example/cannot_import.py:1)" in done.stdout
    lines = [
        line for line in done.stdout.splitlines() if "disk data" not in line and str(tmp_path) not in line
    ]  # paths
    assert max(map(len, lines)) <= 80


def test_a_low_limit_of_open_files_names_the_command_that_raises_it(tmp_path: Path) -> None:
    flags = ("--engine=scripted", "--sandboxes=500", "--max-concurrent-play=500")
    done = finqa(tmp_path, "doctor", "--json", *flags, limit="ulimit -n 256;")
    check = found(json.loads(done.stdout)["checks"], "open files")
    assert done.returncode == 1 and check["status"] == "fail"
    assert check["detail"].startswith("256 allowed, 772 needed: a socket for each of 500 sessions")
    assert check["remedy"].startswith("sudo prlimit --pid $$ --nofile=4096:4096, or")
    done = finqa(tmp_path, "doctor", "--json", *flags, limit="ulimit -Sn 256;")  # a run raises the soft limit itself
    assert found(json.loads(done.stdout)["checks"], "open files")["status"] == "ok"


@pytest.mark.parametrize(
    ("flags", "name", "said", "remedy"),
    [
        (["--snapshot=nope"], "snapshot", "no snapshot 'nope'", "finqa snapshot build --snapshot-name nope --data DIR"),
        (["--sandbox=locl"], "sandbox", "Did you mean 'local'", "finqa plugins"),
        (["--set=sandbox.options.processs=1"], "sandbox", "no option 'processs'", "finqa plugins show local"),
        (["--model=./absent"], "model", "no model, run or checkpoint at ./absent", "give a run folder"),
        (["--environment=finqa-text", "--data=absent.csv"], "data", "absent.csv", "existing"),
        (["--run-dir=finqa.toml/run"], "disk runs", "cannot be written", "--run-dir"),
        (["--set=train.group_size=six"], "settings", "group_size = 'six' (--set)", "--set train.group_size=6"),
        (["--config=absent.toml"], "settings", "absent.toml", ""),
    ],
)
def test_each_fault_is_named_with_what_mends_it(
    flags: list[str], name: str, said: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("finqa.toml").write_text('[engine]\nname = "transformers"\n[model]\nname = "embedded"\n')
    checks = document(["doctor", *flags], capsys, status=1)
    check = found(checks["checks"], name)
    assert checks["status"] == check["status"] == "fail"
    assert said in check["detail"] and remedy in check["remedy"]


def test_settings_that_cannot_be_read_are_a_finding_and_not_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    Path("finqa.toml").write_text("[train\n")
    checks = document(["doctor"], capsys, status=1)["checks"]
    assert [(check["name"], check["status"]) for check in checks] == [
        ("finqa", "ok"),
        ("settings", "fail"),
        ("plugins", "ok"),
    ]
    assert "line 1" in found(checks, "settings")["detail"]


def test_where_settings_come_from_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("finqa.toml").write_text("[lora]\nalpha = 64\nrank = 8\n")
    checks = document(["doctor", "--engine", "scripted"], capsys)["checks"]
    assert found(checks, "settings")["detail"] == "environment FINQA_HOME, file finqa.toml"


def test_sandboxes_left_behind_are_noted(capsys: pytest.CaptureFixture[str], finqa_home: Path) -> None:
    """In the ledger of the local provider, with a live server process of a dead owner: here, this test itself."""
    from finqa_cli.processes import start_time
    from finqa_plugins.sandboxes.local.local_ledger import Ledger, SandboxEntry, ServerEntry

    labels = {**owner_labels("run"), PID_LABEL: f"{os.getpid()}:1"}
    entry = ServerEntry(
        id="local-test",
        pid=os.getpid(),
        started=start_time(os.getpid()) or 0,
        port=1,
        sandboxes={"local-test-1": SandboxEntry(labels=labels, created=time.time())},
    )
    ledger = Ledger(finqa_home / "local")
    ledger.create(entry).close()
    try:
        checks = document(["doctor", "--engine", "scripted", "--sandbox", "local"], capsys)["checks"]
    finally:
        ledger.remove(entry)
    strays = found(checks, "strays")
    assert strays["status"] == "warn" and strays["remedy"] == "finqa sandbox reap --sandbox local"


def test_findings_keep_their_order_and_late_ones_are_named() -> None:
    def late() -> list[Check]:
        time.sleep(60)
        raise AssertionError

    def refused() -> list[Check]:
        raise AuthenticationError("refused", remedy="export KEY=...")

    fine = Check(name="fine", status="ok", detail="x")
    probes = [Probe("late", late), Probe("refused", refused), Probe("fine", lambda: [fine, fine])]
    checks = collect([*probes, Probe("late", late, vital=False), Probe("refused", refused, vital=False)], 0.2)
    assert [check.name for check in checks] == ["late", "refused", "fine", "fine"]
    assert [check.status for check in checks] == ["fail", "fail", "ok", "ok"]
    assert checks[1].remedy == "export KEY=..."


def settings(**changes: dict[str, object]) -> Settings:
    return Settings.model_validate({"model": {"name": "some/Model-14B"}, "engine": {"name": "transformers"}} | changes)


H100 = CudaDevice(name="NVIDIA H100", free=80e9, total=80e9)
BUSY = CudaDevice(name="NVIDIA H100", free=40e9, total=80e9)


@pytest.mark.parametrize(
    ("given", "cuda", "devices", "torch_cuda", "status", "said"),
    [
        (settings(model={"name": "embedded"}), False, [], "12.8", "ok", "none; the embedded policy needs none"),
        (settings(engine={"name": "scripted"}), False, [], None, "ok", "none; engine scripted needs none"),
        (settings(), False, [], "12.8", "warn", "no CUDA device; some/Model-14B runs slowly"),
        (settings(engine={"name": "vllm"}), False, [], "12.8", "warn", "no CUDA device"),
        (settings(), True, [H100], "", "fail", "torch was built without CUDA"),
        (settings(), True, [H100, BUSY], "12.8", "warn", "other processes use memory on device 1"),
        (settings(model={"name": "who/knows"}), True, [H100, H100], "12.8", "ok", "2 devices, NVIDIA H100"),
        (settings(), True, [], "12.8", "ok", "a CUDA device"),
    ],
)
def test_a_gpu_is_judged_by_what_the_engine_needs(
    given: Settings, cuda: bool, devices: list[CudaDevice], torch_cuda: str | None, status: str, said: str
) -> None:
    check = gpu_check(given, cuda=cuda, devices=devices, torch_cuda=torch_cuda)
    assert check.status == status and said in check.detail
    assert bool(check.remedy) is (status != "ok")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen/Qwen3-14B", 14e9),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5e9),
        ("HuggingFaceTB/SmolLM2-135M", 135e6),
        ("Qwen/Qwen3-30B-A3B", 30e9),
        ("someone/a-model", None),
        ("gpt2", None),
    ],
)
def test_a_name_tells_the_size(name: str, size: float | None) -> None:
    assert parameters(name) == size


def test_the_embedded_policy_has_the_size_of_its_file() -> None:
    import finqa_plugins.policies as policy

    assert parameters(str(Path(policy.__file__).parent)) == pytest.approx(0.88e6, rel=0.01)


def test_a_policy_larger_than_memory_is_refused_before_it_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "available_memory", lambda: 8e9)
    monkeypatch.setattr(machine_checks, "cuda_visible", lambda: False)
    checks = document(["doctor", "--model", "Qwen/Qwen3-14B", "--engine", "transformers"], capsys, status=1)["checks"]
    memory = found(checks, "memory")
    assert memory["status"] == "fail" and memory["detail"].startswith("8.0 GB free, about 113")


@pytest.mark.parametrize(("free", "status"), [(3e9, "ok"), (1e9, "warn"), (1e8, "fail")])
def test_a_disk_that_fills_up_is_told_before_the_run(
    free: float, status: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda path: usage._replace(free=int(free)))
    checks = document(["doctor", "--engine=scripted"], capsys, status=int(status == "fail"))["checks"]
    for name, remedy in (("disk data", "export FINQA_HOME="), ("disk runs", "--run-dir ")):
        check = found(checks, name)
        assert check["status"] == status and check["remedy"].startswith(remedy if status != "ok" else "")
        assert check["detail"].startswith(f"{free / 1e9:.1f} GB free in ")


def test_too_few_processes_for_local_servers_are_noted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "processes_left", lambda: 20)
    checks = document(["doctor", "--engine=scripted", "--sandbox=local", "--sandboxes=1"], capsys)["checks"]
    check = found(checks, "processes")
    assert (
        check["status"] == "warn"
        and check["detail"].startswith("20 more ")
        and check["remedy"] == ("ulimit -u 768, or docker run --pids-limit 768")
    )


def test_the_limits_of_this_machine_can_be_read() -> None:
    free, left = machine_checks.available_memory(), machine_checks.processes_left()
    assert free is not None and 1e7 < free < 1e14
    assert left is None or left > 0


def test_the_installed_torch_is_read_without_importing_it() -> None:
    torch = pytest.importorskip("torch.version")
    assert machine_checks.torch_cuda() == (torch.cuda or "")
    code = """
import sys
from finqa_cli.app import main
main(["doctor"])
print(sorted({"torch", "transformers", "peft", "vllm", "openenv", "wandb", "pandas"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture(scope="module")
def daytona(finqa_home: Path) -> Iterator[LoopbackProcess]:
    """An account with room for 8 sandboxes, and the image of the embedded snapshot."""
    pytest.importorskip("daytona", reason="needs finqa[daytona]")
    quota = Quota(cpu=8, memory_gib=100, disk_gib=100)
    with LoopbackProcess(LoopbackConfig(images=ready_image(finqa_home), quota=quota)) as loopback:
        yield loopback


@pytest.mark.parametrize(
    ("key", "flags", "name", "status", "said", "remedy"),
    [
        ("right", ["--sandboxes=8"], "daytona key", "ok", "accepted", ""),
        ("right", ["--sandboxes=8"], "daytona quota", "ok", "room for 8 ", ""),
        ("right", ["--sandboxes=8"], "daytona image", "ok", "is active", ""),
        ("right", ["--sandboxes=8"], "strays", "ok", "no sandbox", ""),
        ("wrong", ["--sandboxes=8"], "daytona key", "fail", "rejected the API key", "export DAYTONA_API_KEY="),
        ("", ["--sandboxes=8"], "daytona key", "fail", "DAYTONA_API_KEY is not set", "export DAYTONA_API_KEY="),
        ("right", ["--sandboxes=9"], "daytona quota", "warn", "room for 8 of 9 ", "--sandboxes 8"),
        (
            "right",
            ["--snapshot=other"],
            "daytona image",
            "fail",
            "snapshot other",
            "finqa snapshot build --sandbox daytona",
        ),
    ],
)
def test_a_daytona_account_is_looked_at(
    key: str,
    flags: list[str],
    name: str,
    status: str,
    said: str,
    remedy: str,
    daytona: LoopbackProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("finqa_cli.commands.doctor.examine", partial(examine, deadline_s=60.0))
    monkeypatch.setattr("finqa_plugins.sandboxes.daytona.daytona_doctor.DEADLINE_S", 60.0)
    monkeypatch.setenv("DAYTONA_API_URL", daytona.api_url)
    monkeypatch.setenv("DAYTONA_API_KEY", {"right": daytona.api_key, "wrong": "dtn_another_key"}.get(key, ""))
    arguments = ["doctor", "--engine=scripted", "--sandbox=daytona", *flags, "--json"]
    assert main(arguments) == (1 if status == "fail" else 0)
    shown = capsys.readouterr()
    check = found(json.loads(shown.out)["checks"], name)
    assert check["status"] == status and said in check["detail"] and remedy in check["remedy"]
    assert daytona.api_key not in shown.out + shown.err and "dtn_another_key" not in shown.out + shown.err


def test_a_daytona_that_cannot_be_reached_is_told_within_the_deadline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("daytona", reason="needs finqa[daytona]")
    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("DAYTONA_API_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/api")
        monkeypatch.setenv("DAYTONA_API_KEY", "dtn_any_key")
        started = time.monotonic()
        checks = document(["doctor", "--engine=scripted", "--sandbox=daytona"], capsys, status=1)["checks"]
        assert time.monotonic() - started < HANG_S
    (failed,) = (check for check in checks if check["status"] == "fail")
    assert (
        failed["name"].startswith("daytona") and "did not respond" in failed["detail"] and "network" in failed["remedy"]
    )


texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30)


@given(st.lists(st.builds(Check, name=texts, status=st.sampled_from(diagnose.STATUSES), detail=texts, remedy=texts)))
def test_whatever_is_found_each_remedy_is_shown_whole(checks: list[Check]) -> None:
    shown = report([Check(name="finqa", status="ok", detail="x"), *checks])
    assert all(f"fix: {check.remedy}" in " ".join(shown.split()) for check in checks)


def test_long_findings_are_wrapped_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    long = Check(name="key", status="fail", detail="one two three " * 5, remedy="export A_KEY=value-with-hyphens-in-it")
    shown = report([Check(name="finqa", status="ok", detail="0.1"), long])
    assert shown == textwrap.dedent(
        """\
        ok    finqa  0.1
        fail  key    one two three one two three one two
                     three one two three one two three
                     fix: export
                     A_KEY=value-with-hyphens-in-it

        2 checks: 1 failed."""
    )
